"""The reference page of specs: fresh, complete, and right about values and defaults."""

import pytest

from generator import reference
from generator.spec import ProblemSpec, ServesSpec, VariantSpec
from tests.generator.command import call


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the tables under a heading."""
    section = text.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]


def test_the_checked_in_page_is_fresh(catalog):
    """Whatever a spec may say is on the page as it is now."""
    fresh = reference.PATH.read_text(encoding="utf-8") == reference.text(catalog)
    assert fresh, f"{reference.PATH.name} is stale: run `{reference.COMMAND}`"


def test_it_is_the_same_whenever_it_is_made(catalog):
    """Nothing on it depends on the order in which things were found."""
    assert reference.text(catalog) == reference.text()


def test_all_keys_are_there(catalog):
    """The fields of the problem, of what a variant serves and of a variant."""
    text = reference.text(catalog)
    for heading, model in (("`problem`", ProblemSpec), ("`serves`", ServesSpec), ("A variant", VariantSpec)):
        assert [row[0] for row in rows(text, f"### {heading}")[2:]] == [f"`{n}`" for n in model.model_fields]
    assert rows(text, "### `serves`")[2][:2] == ["`max_seq_len`", "1 to 1,048,576"]
    assert rows(text, "### `serves`")[3][:3] == ["`window`", "`true` or `false`", "`false`"]
    assert rows(text, "### `problem`")[-1][:3] == ["`dtype`", "`bf16`", "must be given"]


def test_all_skeletons_and_launch_fields_are_there(catalog):
    """With their values and defaults."""
    text = reference.text(catalog)
    for skeleton in catalog.skeletons.values():
        found = {row[0].strip("`"): row[1:] for row in rows(text, f"### Skeleton `{skeleton.name}`")[2:]}
        assert list(found) == [field.name for field in skeleton.launch]
        for field in skeleton.launch:
            assert found[field.name][1] == ("must be given" if field.default is None else str(field.default))
    assert rows(text, "### Skeleton `split`")[2][1] == "1 to 16"
    assert rows(text, "### Skeleton `cluster`")[3][1] == "1, 2, 4, 8"


def test_all_stages_and_parameters_are_there(ring_catalog):
    """Those of a catalog with other stages too."""
    text = reference.text(ring_catalog)
    for slot, stages in ring_catalog.by_slot.items():
        found = rows(text, f"### Slot `{slot}`")
        for stage in stages.values():
            assert next(row[1] for row in found if row[0] == f"`{stage.name}`") == stage.contract.summary
            for p in stage.contract.parameters:
                (row,) = [r for r in found if r[:2] == [f"`{stage.name}`", f"`{p.name}`"]]
                assert row[3:] == [str(p.default), p.help]


@pytest.mark.parametrize("again", ["nothing to do", "wrote"])
def test_the_command(tmp_path, again):
    """It writes the page, and says so; where nothing changes it writes nothing."""
    path = tmp_path / "spec.md"
    assert f"wrote {path}" in call(tmp_path, "docs", "--out", str(path)).stderr
    if again == "wrote":
        path.write_text("old", encoding="utf-8")
    done = call(tmp_path, "docs", "--out", str(path))
    assert done.returncode == 0 and again in done.stderr
    assert path.read_text(encoding="utf-8") == reference.text()
