"""What surrounds a compilation: odd folders, other exports, environment variables, modules in archives."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

import pytest

from generator.compiled import load_module
from generator.render import generate
from verification.runner import kernel_ptx

ROOT = Path(__file__).resolve().parent.parent.parent

ARCH = "sm_90a"

MANIFEST = f"attn2.{ARCH}.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The generated modules, for tests that change how they compile."""
    found = tmp_path_factory.mktemp("surroundings")
    generate(ROOT / "spec.yaml", found)
    return found


@pytest.fixture
def module(folder):
    """A copy of the module of its own."""
    return load_module(folder / "attn2.py")


@pytest.mark.parametrize("name", ["a b", "it's", 'say "no"', "back\\slash", "--opt-level", "{ptx}"])
def test_temporary_folders_may_be_called_anything(module, tmp_path, monkeypatch, name):
    """What CuTe DSL keeps lies in a temporary folder, whose path becomes part of its options."""
    odd = tmp_path / name
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    assert module.compile_image(module.Form("cluster", False, False), ARCH).cubin.startswith(b"\x7fELF")
    assert ".entry" in kernel_ptx(module, "cluster")


def quick(module, content: bytes) -> None:
    """Let a module compile in no time, to machine code that tells which version it is of."""
    module.compile_image = lambda form, arch: module.Image(b"entry " + content + str(form).encode(), "entry")


def unreadable(folder: Path) -> list[str]:
    """What the manifest lists, and is not there."""
    listed = json.loads((folder / MANIFEST).read_text())["kernels"]
    names = {path.name for path in folder.iterdir()}
    wanted = [f"attn2.{k['variant']}{'-pdl' * k['pdl']}{'-windowed' * k['windowed']}" for k in listed]
    files = [f"{name}.{ARCH}.{k['sha256'][:16]}.cubin" for name, k in zip(wanted, listed, strict=True)]
    return [file for file in files if file not in names]


def test_an_export_within_an_export_leaves_what_the_last_manifest_lists(folder, tmp_path):
    """Another version exports while this one has written its kernels and not its manifest yet."""
    one, other = load_module(folder / "attn2.py"), load_module(folder / "attn2.py")
    quick(one, b"one "), quick(other, b"other ")
    cubins = len([form for variant in one.VARIANTS for form in variant.forms])
    written = []

    def interrupt(path: Path) -> None:
        written.append(path)
        if len(written) == cubins:
            other.export_kernels(tmp_path, arch=ARCH)
            assert unreadable(tmp_path) == []

    one.export_kernels(tmp_path, arch=ARCH, progress=interrupt)
    assert unreadable(tmp_path) == []
    kept = [path for path in tmp_path.iterdir() if path.suffix == ".cubin"]
    assert len(kept) == cubins and all(b"one " in path.read_bytes() for path in kept)


def test_versions_that_export_at_the_same_time_leave_whole_folders(folder, tmp_path):
    """Two threads, many times; the folder is whole after each manifest."""
    modules = [load_module(folder / "attn2.py") for _ in range(2)]
    for number, module in enumerate(modules):
        quick(module, f"version {number} ".encode())
    problems: list[BaseException] = []

    def export(module) -> None:
        try:
            for _ in range(20):
                module.export_kernels(tmp_path, arch=ARCH)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=export, args=(module,)) for module in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert unreadable(tmp_path) == []


@pytest.mark.parametrize(
    ("variable", "value"), [("LINEINFO", "1"), ("DEBUG", "true"), ("COMPILER_OPT", "--enable-assertions")]
)
def test_variables_that_change_the_code_are_refused_by_name(module, tmp_path, monkeypatch, variable, value):
    """Before anything is compiled, and nothing is written."""
    monkeypatch.setenv(f"CUTE_DSL_{variable}", value)
    module.compile_image = None
    with pytest.raises(RuntimeError, match=f"CUTE_DSL_{variable}={value}.*manifest"):
        module.export_kernels(tmp_path, arch=ARCH)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("variable", "value"), [("LINEINFO", "0"), ("PRINT_IR", "1"), ("CACHE_DIR", "/tmp")])
def test_other_variables_are_none_of_its_business(module, tmp_path, monkeypatch, variable, value):
    """What is off, and what was seen to leave the code as it is."""
    monkeypatch.setenv(f"CUTE_DSL_{variable}", value)
    quick(module, b"")
    assert module.export_kernels(tmp_path, arch=ARCH)


def test_a_dry_run_compiles_nothing_and_says_why(module, monkeypatch):
    """CuTe DSL returns nothing then, which no message would explain."""
    monkeypatch.setenv("CUTE_DSL_DRYRUN", "1")
    with pytest.raises(RuntimeError, match=r"CUTE_DSL_DRYRUN=1: .* no machine code"):
        module.compile_image(module.Form("cluster", False, False), ARCH)


def test_a_module_in_an_archive_says_what_it_needs(folder, tmp_path):
    """It is imported; what needs its source, which CuTe DSL reads from a file, is refused in words."""
    with zipfile.ZipFile(tmp_path / "kernels.zip", "w") as archive:
        archive.write(folder / "attn2.py", "attn2.py")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import attn2\n"
        "try: attn2.compile_attn2(arch='sm_90a')\n"
        "except RuntimeError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "kernels.zip")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "as files, not as an archive" in done.stdout
