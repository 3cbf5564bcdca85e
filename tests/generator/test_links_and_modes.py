"""Output that is a symbolic link, or has a mode of its own, stays so."""

import os
import stat

import pytest

from generator import files
from tests.generator.command import call, copy_checkout
from variants.loading.atomic import write_whole


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    "write", [write_whole, lambda path, content: files.write({path.name: content.decode()}, path.parent)]
)
def test_the_target_of_a_link_is_written(tmp_path, write):
    """Through two links, into another folder; beside the link nothing is left."""
    (tmp_path / "shared").mkdir()
    target = tmp_path / "shared" / "real.py"
    target.write_text("old\n")
    target.chmod(0o640)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "first").symlink_to("../shared/real.py")
    link = tmp_path / "out" / "a.py"
    link.symlink_to("first")
    write(link, b"new\n")
    assert link.is_symlink() and (tmp_path / "out" / "first").is_symlink()
    assert target.read_text() == "new\n" and mode(target) == 0o640
    assert sorted(os.listdir(tmp_path / "out")) == ["a.py", "first"]
    assert os.listdir(tmp_path / "shared") == ["real.py"]


def test_a_link_to_nothing_makes_its_target(tmp_path):
    """As writing through it would."""
    (tmp_path / "a.py").symlink_to("real.py")
    files.write({"a.py": "new\n"}, tmp_path)
    assert (tmp_path / "a.py").is_symlink() and (tmp_path / "real.py").read_text() == "new\n"


@pytest.mark.parametrize("bits", [0o600, 0o644, 0o755, 0o444])
def test_the_mode_is_kept(tmp_path, bits):
    """Whatever the umask would give a new file."""
    path = tmp_path / "a.py"
    path.write_text("old\n")
    path.chmod(bits)
    write_whole(path, b"new\n")
    assert path.read_bytes() == b"new\n" and mode(path) == bits


def test_the_target_is_replaced_in_one_step(tmp_path):
    """Whoever has the old file open reads it to its end."""
    target = tmp_path / "real"
    target.write_text("old\n")
    (tmp_path / "link").symlink_to("real")
    with target.open() as reader:
        write_whole(tmp_path / "link", b"new\n")
        assert reader.read() == "old\n"


def test_names_as_long_as_the_system_allows(tmp_path):
    """What is written beside the file for a while has a shorter name."""
    write_whole(tmp_path / ("x" * 255), b"new\n")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"new\n"


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "missing"])
def test_what_cannot_be_written_is_named(tmp_path, kind):
    """By the name that the caller gave, and no file is left beside it."""
    path = tmp_path / "a.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to("a.json")
    else:
        path = tmp_path / "none" / "a.json"
    before = os.listdir(tmp_path)
    with pytest.raises(OSError) as caught:
        write_whole(path, b"")
    assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == before


def test_generate_writes_through_a_link(tmp_path):
    """The command as a whole: the module, and the folder, may be links."""
    checkout = copy_checkout(tmp_path)
    (checkout / "elsewhere").mkdir()
    module = checkout / "elsewhere" / "kept.py"
    module.write_text("stale\n")
    module.chmod(0o600)
    (checkout / "elsewhere" / "attn2.py").symlink_to("kept.py")
    (checkout / "made").symlink_to("elsewhere")
    assert call(checkout, "generate", "--out", "made").returncode == 0
    assert (checkout / "made").is_symlink() and (checkout / "elsewhere" / "attn2.py").is_symlink()
    assert module.read_text() == (checkout / "generated" / "attn2.py").read_text() and mode(module) == 0o600
    assert call(checkout, "generate", "--check", "--out", "made").stderr.count("kept.py is an orphan") == 1
