"""Whatever comes from outside is printed as it is: no path, name or message is taken for rich markup."""

import re
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from generator import cli, compiled, console, tables
from generator.catalog import Catalog
from generator.errors import CatalogError, SpecError
from generator.link import LinkError
from generator.listing import listing
from generator.plan import load_plan
from tests.generator.command import ROOT, call, copy_checkout, first_variant

ODD = ("k[/]x", "k[bold]x", "k[link=x]x", ":smile:", "[[x]]", "a\\[b]")
"""Markup that closes nothing, that opens something, emoji codes, and escapes."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy with the first variant alone."""
    folder = copy_checkout(tmp_path_factory.mktemp("checkout"))
    spec = folder / "spec.yaml"
    spec.write_text(first_variant(spec.read_text()))
    return folder


@pytest.mark.parametrize("name", ODD)
def test_paths(checkout, name):
    """Of every command that writes, and of the spec."""
    assert f"wrote {name}/attn2.py" in call(checkout, "generate", "--out", name).stderr
    assert f"{name} are as" in call(checkout, "generate", "--out", name, "--check").stderr
    assert f"{name}2/attn2.py is missing" in call(checkout, "generate", "--out", f"{name}2", "--check").stderr
    assert f"wrote {name}/{name}.json" in call(checkout, "schema", "--out", f"{name}/{name}.json").stderr
    (checkout / f"{name}.yaml").write_text("modules: 1")
    for command in (("list",), ("compile",), ("verify",), ("export", "--out", "x")):
        assert call(checkout, *command, "--spec", f"{name}.yaml").stderr.startswith(f"{name}.yaml:1:10: ")


@pytest.mark.parametrize("name", ODD)
def test_what_an_export_wrote(checkout, name, monkeypatch):
    """The status line and the line of the manifest; nothing is compiled here."""

    def export(plan, sources, archs, out, progress):
        for path in (out / f"{name}.cubin", out / f"{name}.json"):
            progress(path)

    monkeypatch.setattr(compiled, "export_kernels", export)
    result = call(checkout, "export", "--out", name)
    assert result.returncode == 0, result.stderr
    assert f"wrote {name}/{name}.json and the kernels that it lists" in result.stderr


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", [SpecError, CatalogError, LinkError, compiled.CompileError, OSError])
def test_errors(checkout, monkeypatch, kind, name):
    """Whatever is raised comes out letter by letter."""

    def fail(path):
        raise OSError(28, "No space left", name) if kind is OSError else kind(name)

    monkeypatch.setattr(cli, "load_plan", fail)
    monkeypatch.setattr(SpecError, "__init__", lambda self, text: setattr(self, "text", text))
    monkeypatch.setattr(SpecError, "__str__", lambda self: self.text)
    result = call(checkout, "list")
    assert result.returncode == (2 if kind in (SpecError, OSError) else 1)
    assert result.stderr.strip() == (f"{name}: No space left" if kind is OSError else name)


@pytest.mark.parametrize("name", [name for name in ODD if "=" not in name])
def test_wrong_calls(name):
    """Commands, options and values of options; some are quoted."""
    for arguments in (
        (name,),
        ("list", f"--{name}"),
        ("verify", "--device", name),
        ("compile", "--arch", name),
    ):
        result = CliRunner().invoke(cli.app, arguments)
        assert result.exit_code == 2
        assert name in result.output or repr(name) in result.output


def printed(*found) -> str:
    """What a console of the command line makes of tables."""
    out = console.literal_console()
    out.width = 300
    with out.capture() as capture:
        for one in found:
            out.print(one)
    return re.sub(r"\s+", " ", capture.get())


@pytest.mark.parametrize("name", ODD)
def test_tables(name):
    """Names of modules, variants and stages, their help, and messages, in every table."""
    plan, catalog = load_plan(ROOT / "spec.yaml"), Catalog.load()
    found = listing(plan, catalog)
    variant, stage, skeleton = found["variants"][0], found["stages"][0], found["skeletons"][0]
    variant.update(module=name, variant=name)
    stage.update(summary=name, parameters={name: {"help": name, "allowed": [1], "default": 1}})
    skeleton.update(summary=name)
    skeleton["launch"]["warps"]["help"] = name
    assert printed(*tables.listed(found, 300)).count(name) >= 6
    outcome = SimpleNamespace(
        module=name, variant=name, problem=name, verdict=name, ulps=1.0, seconds=1.0, counts={name: 1}
    )
    assert printed(*tables.verified([outcome])).count(name) >= 7
    report = SimpleNamespace(
        **{"module": name, "form": name, "arch": name, "resident_limit": name, "spill_bytes": 8},
        **{"registers": 1, "shared_bytes": 1, "threads": 1, "seconds": 1.0, "crowded": False},
        **{"resident_ctas": 1, "instructions": dict.fromkeys(("all", *compiled.COUNTED), 1)},
    )
    assert printed(*tables.compiled([report])).count(name) >= 7


@pytest.mark.parametrize("name", ODD)
def test_progress(name):
    """The line that says what is being done."""
    with console.progress(name) as status:
        status(name)


def test_what_no_terminal_prints_is_escaped(checkout):
    """A line end, an escape sequence or half a character in a path makes no second line and no colour."""
    result = call(checkout, "generate", "--out", "a\nb\x1b[31m\udcff")
    assert result.returncode == 0
    assert r"wrote a\nb\x1b[31m\udcff/attn2.py" in result.stderr


def test_a_diff_is_whole_however_narrow_the_terminal(checkout, monkeypatch):
    """Lines of a diff are neither broken nor cut."""
    monkeypatch.setattr("tests.generator.command.WIDTH", {"COLUMNS": "40"})
    result = call(checkout, "generate", "--check", "--out", "nowhere")
    generated = (ROOT / "generated" / "attn2.py").read_text().splitlines()
    longest = max(
        (line for line in generated if line.isascii() and "SHA-256" not in line and "sha256 of" not in line),
        key=len,
    )
    assert len(longest) > 100 and f"+{longest}\n" in result.stdout
