"""Exit status 2 and one line, never a traceback: wrong options, odd paths, what the system refuses."""

import os
import subprocess
import sys
import tempfile

import pytest

from generator import compiled
from tests.generator.command import call, copy_checkout, first_variant


@pytest.fixture
def place(tmp_path):
    """A folder with a spec, and with files of every other kind."""
    spec = copy_checkout(tmp_path) / "spec.yaml"
    spec.write_text(first_variant(spec.read_text()))
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "attn2.py").mkdir(parents=True)
    (tmp_path / "exported" / "attn2.sm_90a.json").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    os.symlink("loop", tmp_path / "loop")
    return tmp_path


@pytest.fixture
def no_compiler(monkeypatch):
    """The compiler is never reached."""

    def fail(*arguments, **options):
        raise AssertionError("compiled before the call was refused")

    monkeypatch.setattr(compiled, "compile_forms", fail)
    monkeypatch.setattr(compiled, "export_kernels", fail)


WRONG = [
    (("generate", "--out", "file"), "file: Not a directory"),
    (("generate", "--out", "file/x"), "file/x: Not a directory"),
    (("generate", "--out", "folder"), "folder/attn2.py: Is a directory"),
    (("generate", "--out", "folder", "--check"), "folder/attn2.py: Is a directory"),
    (("generate", "--out", "file", "--check"), "file/__init__.py: Not a directory"),
    (("generate", "--out", "loop/x"), "loop/x: Too many levels of symbolic links"),
    (("generate", "--out", "x" * 300), "File name too long"),
    (("generate", "--spec", "folder"), "folder:1:1: is a folder, not a file"),
    (("list", "--spec", "pipe"), "pipe:1:1: is not a regular file"),
    (("list", "--spec", "loop"), "loop:1:1: cannot be read"),
    (("schema", "--out", "folder"), "folder: Is a directory"),
    (("schema", "--out", "."), ".: Is a directory"),
    (("schema", "--out", "file/x"), "file: Not a directory"),
    (("schema", "--out", "pipe"), "pipe: not a regular file"),
    (("schema", "--out", os.devnull), f"{os.devnull}: not a regular file"),
    (("compile", "--ptx", "file"), "file: Not a directory"),
    (("compile", "--ptx", "file/x"), "file/x: Not a directory"),
    (("compile", "--spec", "nowhere.yaml"), "nowhere.yaml:1:1: cannot be read"),
    (
        ("compile", "--arch", "sm_999a"),
        "the compiler does not know 'sm_999a'; allowed: sm_90, sm_90a, sm_100",
    ),
    (("compile", "--arch", "sm_90a,"), "'' is no architecture"),
    (("compile", "--arch", "sm_80"), "needs sm_90 or later, got 'sm_80'"),
    (("export", "--out", "file"), "file: Not a directory"),
    (("export", "--out", "x", "--arch", "sm_999a"), "the compiler does not know 'sm_999a'; allowed: sm_90"),
    (("export", "--out", "x", "--spec", "nowhere.yaml"), "nowhere.yaml:1:1: cannot be read"),
    (("verify", "--seed", "9" * 20), "--seed"),
    (("verify", "--seed", "x"), "--seed"),
    (("verify", "--spec", "folder"), "folder:1:1: is a folder"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_call_takes_one_line(place, no_compiler, arguments, message):
    """The file that is meant is named, and what is allowed; nothing was compiled."""
    result = call(place, *arguments)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr and "Traceback" not in result.stderr
    if "--seed" not in arguments:
        assert len(result.stderr.splitlines()) == 1


def test_devices_are_left_alone():
    """What is no regular file is never replaced by one."""
    assert not os.path.isfile(os.devnull)


def test_a_folder_in_the_place_of_a_manifest(place):
    """The manifest is named, not the file that was to become it."""
    result = call(place, "export", "--out", "exported")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "exported/attn2.sm_90a.json: Is a directory"
    assert not [path for path in (place / "exported").iterdir() if path.name.startswith(".")]


COMMANDS = {
    "generate": ("generate", "--out", "made"),
    "schema": ("schema", "--out", "made.json"),
    "compile": ("compile",),
    "compile ptx": ("compile", "--ptx", "made"),
    "export": ("export", "--out", "made"),
    "verify": ("verify",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk(place, monkeypatch, command):
    """The system says so at a write, without a name; the message has one."""

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    result = call(place, *COMMANDS[command])
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    name, _, reason = line.rpartition(": ")
    assert reason == "No space left on device" and name.endswith((".py", ".json"))


@pytest.mark.parametrize("command", ["compile", "export", "verify"])
def test_no_folder_for_temporary_files(place, monkeypatch, command):
    """None that can be written, or one in which nothing can be made."""

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied", "/scratch/tmp")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", refuse)
        result = call(place, *COMMANDS[command])
    assert (result.returncode, result.stderr) == (2, "/scratch/tmp: Permission denied\n")

    def none():
        raise FileNotFoundError(2, "the interpreter's words")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    result = call(place, *COMMANDS[command])
    assert result.returncode == 2
    assert (
        result.stderr == "TMPDIR: no folder for temporary files can be written; set TMPDIR to one that can\n"
    )


@pytest.mark.parametrize("command", ["generate", "schema", "export"])
def test_a_folder_without_permission(place, monkeypatch, command):
    """For whoever runs the tests as root: the system's refusal is simulated."""

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied", "made")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    result = call(place, *COMMANDS[command])
    assert (result.returncode, result.stderr) == (2, "made: Permission denied\n")


def shell(place, line):
    """A command line in a shell, `generator` standing for the program."""
    program = f"'{sys.executable}' -m generator"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        ["sh", "-c", line.replace("generator", program)],
        **{"cwd": place, "env": environment, "capture_output": True, "text": True, "timeout": 300},
    )


def test_the_system_itself_refuses(place):
    """A limit of file sizes, and a full device behind standard output: no simulation."""
    limited = shell(place, "ulimit -f 8; generator compile")
    assert limited.returncode == 2, limited.stderr
    assert limited.stderr.endswith("attn2.py: File too large\n") and limited.stderr.count("\n") == 1
    full = shell(place, "generator list > /dev/full")
    assert full.stderr.splitlines()[0] == "standard output: No space left on device"
    assert full.returncode == 2 and "Traceback" not in full.stderr


def test_a_reader_that_has_seen_enough(place):
    """`list | head` is no error to tell of."""
    assert shell(place, "generator list --json | head -1").stderr == ""
