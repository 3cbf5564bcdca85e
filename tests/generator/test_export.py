"""Kernels compiled ahead of time: what is written, and that nothing else is ever loaded."""

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from generator.cli import app
from generator.compiled import load_module
from generator.render import generate
from tests.modules import PINNED

ARCH = "sm_90a"

MANIFEST = f"attn2.{ARCH}.json"


@pytest.fixture(scope="module")
def spec(tmp_path_factory) -> Path:
    """A spec with a cluster variant alone, whose two forms compile within a second each."""
    content = yaml.safe_load(PINNED.read_text(encoding="utf-8"))
    variants = content["modules"]["attn2"]["variants"]
    content["modules"]["attn2"]["variants"] = {"cluster": variants["cluster"]}
    path = tmp_path_factory.mktemp("spec") / "spec.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def module(spec):
    """The module of that spec."""
    generate(spec, spec.parent / "generated")
    return load_module(spec.parent / "generated" / "attn2.py")


@pytest.fixture(scope="module")
def exported(spec, tmp_path_factory) -> Path:
    """What the command line exports for it."""
    folder = tmp_path_factory.mktemp("exported") / "new"
    result = CliRunner().invoke(app, ["export", "--spec", str(spec), "--arch", ARCH, "--out", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def kernels(exported, tmp_path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(exported, tmp_path / "kernels"))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest."""
    content = json.loads((folder / MANIFEST).read_text())
    change(content)
    (folder / MANIFEST).write_text(json.dumps(content))


def cubin(folder: Path) -> Path:
    """The machine code of the form without PDL."""
    (path,) = folder.glob(f"attn2.cluster.{ARCH}.*.cubin")
    return path


def test_every_form_is_written_and_described(exported, module):
    """A cubin for each form, and a manifest with all that decides whether it may be run."""
    content = json.loads((exported / MANIFEST).read_text())
    records = content.pop("kernels")
    assert content == {
        **{"format": 1, "module": "attn2", "digest": module.DIGEST, "arch": ARCH},
        "cute_dsl": module.cutlass.__version__,
    }
    kernel = module.VARIANTS[0].kernel
    assert [(r["variant"], r["pdl"], r["windowed"]) for r in records] == list(module.VARIANTS[0].forms)
    for record in records:
        name = module.cubin_name(module.Form(record["variant"], record["pdl"], False), ARCH, record["sha256"])
        code = (exported / name).read_bytes()
        assert hashlib.sha256(code).hexdigest() == record["sha256"] and len(code) == record["bytes"]
        assert code[:4] == b"\x7fELF" and record["entry"].encode() in code
        assert (record["cluster"], record["threads"]) == (kernel.cluster, 32 * kernel.warps)
        assert record["shared_bytes"] == kernel.shared_bytes
    assert len(list(exported.iterdir())) == 1 + len(records)


def test_windowed_forms_are_those_of_variants_that_serve_windows(module):
    """Four forms of the split kernel, two of the cluster kernel; each has a name of its own."""
    variant = dataclasses.replace(module.VARIANTS[0], name="split", windows=True)
    names = [str(form) for form in variant.forms]
    assert names == ["split", "split-windowed", "split-pdl", "split-pdl-windowed"]
    assert [str(form) for form in module.VARIANTS[0].forms] == ["cluster", "cluster-pdl"]


def test_what_is_read_is_what_is_compiled(exported, module):
    """Bit for bit: the compiler is deterministic, so an exported kernel is the one `prepare` would make."""
    form = module.Form("cluster", False, False)
    assert module.read(exported, form, ARCH) == module.compile_image(form, ARCH)
    assert module.image(form, ARCH, exported) == module.read(str(exported), form, ARCH)


def test_exporting_again_changes_nothing_and_removes_what_is_out_of_date(kernels, module):
    """The same files, and no others of this module and architecture; other people's stay."""
    before = {path.name: path.read_bytes() for path in kernels.iterdir()}
    foreign = {"attn3.cluster.sm_90a.0123.cubin": b"a", "attn2.cluster.sm_100a.0123.cubin": b"b"}
    for name, content in {**foreign, f"attn2.old.{ARCH}.0123.cubin": b"c"}.items():
        (kernels / name).write_bytes(content)
    heard: list[Path] = []
    files = module.export_kernels(kernels, arch=ARCH, progress=heard.append)
    assert {path.name: path.read_bytes() for path in kernels.iterdir()} == {**before, **foreign}
    assert heard == files and files[-1] == kernels / MANIFEST


def test_an_export_that_fails_leaves_the_old_kernels(kernels, module, monkeypatch):
    """The manifest is the last to be written: until then the folder is as good as it was."""
    compiled = []

    def fail_at_the_second(form, arch):
        if compiled:
            raise MemoryError
        compiled.append(form)
        return module.Image(b"\x7fELF entry", "entry")

    monkeypatch.setattr(module, "compile_image", fail_at_the_second)
    form = module.Form("cluster", False, False)
    before = module.read(kernels, form, ARCH)
    with pytest.raises(MemoryError):
        module.export_kernels(kernels, arch=ARCH)
    assert module.read(kernels, form, ARCH) == before
    assert not list(kernels.glob(".*")), "no temporary file is left"


@dataclass(frozen=True)
class Spoilt:
    """A folder that must be refused. spoil: makes it of a good one. says: what the message has to say."""

    name: str
    spoil: Callable[[Path], object]
    says: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def flip_a_bit(path: Path) -> None:
    """Somewhere in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


SPOILT = [
    Spoilt("no folder", shutil.rmtree, (MANIFEST, "No such file")),
    Spoilt("no manifest", lambda f: (f / MANIFEST).unlink(), (MANIFEST, "No such file")),
    Spoilt("no JSON", lambda f: rewrite(f / MANIFEST, b'{"format": 1'), ("is damaged",)),
    Spoilt("no text", lambda f: rewrite(f / MANIFEST, b"\xff\xfe\xfa"), ("is damaged",)),
    Spoilt("no object", lambda f: rewrite(f / MANIFEST, b"[1]"), ("is damaged", "no JSON object")),
    Spoilt("newer format", lambda f: edit(f, lambda m: m.update(format=2)), ("format 2", "needs 1")),
    Spoilt("other module", lambda f: edit(f, lambda m: m.update(module="x")), ("module 'x'", "'attn2'")),
    Spoilt("stale", lambda f: edit(f, lambda m: m.update(digest="0" * 64)), ("digest '0000", "this module")),
    Spoilt("other device", lambda f: edit(f, lambda m: m.update(arch="sm_100a")), ("arch 'sm_100a'", ARCH)),
    Spoilt("other compiler", lambda f: edit(f, lambda m: m.update(cute_dsl="4.0")), ("cute_dsl '4.0'",)),
    Spoilt("no kernels", lambda f: edit(f, lambda m: m.pop("kernels")), ("no kernel cluster",)),
    Spoilt("odd kernels", lambda f: edit(f, lambda m: m.update(kernels=[1, []])), ("no kernel cluster",)),
    Spoilt("other form", lambda f: edit(f, lambda m: m["kernels"].pop(0)), ("no kernel cluster;",)),
    Spoilt(
        "other shared memory",
        lambda f: edit(f, lambda m: m["kernels"][0].update(shared_bytes=8)),
        ("shared_bytes 8", "not 21768"),
    ),
    Spoilt(
        "other parameters",
        lambda f: edit(f, lambda m: m["kernels"][0]["parameters"].update(q="i")),
        ("parameters", "'q': 'i'", "'q': 'q'"),
    ),
    Spoilt(
        "other code", lambda f: edit(f, lambda m: m["kernels"][0].update(sha256="12" * 32)), ("12121212",)
    ),
    Spoilt(
        "another entry", lambda f: edit(f, lambda m: m["kernels"][0].update(entry="boom")), ("kernel 'boom'",)
    ),
    Spoilt("a path", lambda f: edit(f, lambda m: m["kernels"][0].update(sha256="../x")), ("sha256 '../x'",)),
    Spoilt("no cubin", lambda f: cubin(f).unlink(), ("cubin cannot be read", "No such file")),
    Spoilt("a bit flipped", lambda f: flip_a_bit(cubin(f)), ("is damaged", "SHA-256")),
    Spoilt("cut short", lambda f: rewrite(cubin(f), cubin(f).read_bytes()[:-1]), ("is damaged", "SHA-256")),
    Spoilt("empty", lambda f: rewrite(cubin(f), b""), ("is damaged", "SHA-256")),
]


@pytest.mark.parametrize("spoilt", SPOILT, ids=str)
def test_anything_else_is_refused(kernels, module, spoilt):
    """Stale, foreign, damaged: the error says which file, what is wrong, and to export again."""
    spoilt.spoil(kernels)
    with pytest.raises(ValueError, match=r"^from_dir: ") as caught:
        module.read(kernels, module.Form("cluster", False, False), ARCH)
    for part in (*spoilt.says, str(kernels), f"export the kernels for {ARCH} again"):
        assert part in str(caught.value), f"{part!r} is not in {caught.value}"


def test_kernels_of_another_architecture_are_not_even_found(kernels, module):
    """Each architecture has a manifest of its own."""
    with pytest.raises(ValueError, match=r"attn2\.sm_100a\.json cannot be read"):
        module.read(kernels, module.Form("cluster", False, False), "sm_100a")


@pytest.mark.parametrize("arch", ["hopper", "sm_90a --opt-level 0", "", None, 90])
def test_a_wrong_architecture_is_refused(module, tmp_path, arch):
    """Before anything is compiled or written."""
    with pytest.raises(ValueError, match=re.escape(f'such as "sm_90a", got {arch!r}')):
        module.export_kernels(tmp_path / "new", arch=arch)
    assert not (tmp_path / "new").exists()


def test_the_command_line_refuses_what_cannot_work(spec, tmp_path):
    """Exit 2 and a message for a wrong architecture, a wrong spec and a folder that is a file."""
    (tmp_path / "file").write_text("")
    (tmp_path / "bad.yaml").write_text("modules: 1")
    for arguments, message in (
        (("--spec", str(spec), "--arch", "hopper", "--out", "x"), "'hopper' is no architecture"),
        (("--spec", str(tmp_path / "bad.yaml"), "--out", "x"), "bad.yaml:1"),
        (("--spec", str(spec), "--out", str(tmp_path / "file")), "Not a directory"),
        (("--spec", str(spec)), "Missing option"),
    ):
        result = CliRunner().invoke(app, ["export", *arguments])
        assert result.exit_code == 2, result.output
        assert message in result.output
