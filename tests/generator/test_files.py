"""Writing generated files: whole or not at all, and only what changed."""

import os
import stat

import pytest

from generator import files


def test_writes_what_changes_and_nothing_else(tmp_path):
    """A second run with the same texts writes nothing, so nothing downstream rebuilds."""
    folder = tmp_path / "new" / "folder"
    texts = {"a.py": "A = 1\n", "b.py": "B = 'ü'\n"}
    assert files.write(texts, folder) == [folder / "a.py", folder / "b.py"]
    before = (folder / "a.py").stat()
    assert files.write(texts, folder) == []
    assert files.write({**texts, "b.py": "B = 2\n"}, folder) == [folder / "b.py"]
    after = (folder / "a.py").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
    assert (folder / "b.py").read_bytes() == b"B = 2\n"
    assert sorted(os.listdir(folder)) == ["a.py", "b.py"]


def test_respects_the_umask(tmp_path):
    """A generated file is as readable as any other new file."""
    old = os.umask(0o027)
    try:
        files.write({"a.py": ""}, tmp_path)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.py").stat().st_mode) == 0o640


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    """If the new file cannot be put in place, the old one stays and no temporary file is left."""
    files.write({"a.py": "old\n"}, tmp_path)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        files.write({"a.py": "new\n"}, tmp_path)
    assert os.listdir(tmp_path) == ["a.py"]
    assert (tmp_path / "a.py").read_text() == "old\n"


def test_compare_finds_missing_stale_and_orphaned_files(tmp_path):
    """Every way in which the folder can differ from the spec has a name; a stale file comes with a diff."""
    files.write({"same.py": "S = 1\n", "stale.py": "A = 1\nB = 2\n", "orphan.py": ""}, tmp_path)
    (tmp_path / "notes.txt").write_text("not the generator's business")
    found = files.compare(
        {"same.py": "S = 1\n", "stale.py": "A = 1\nB = 3\n", "gone.py": "G = 1\n"}, tmp_path
    )
    assert [(d.path.name, d.kind) for d in found] == [
        ("gone.py", "missing"),
        ("stale.py", "stale"),
        ("orphan.py", "orphan"),
    ]
    assert "-B = 2\n+B = 3\n" in found[1].diff
    assert "-A = 1" not in found[1].diff


def test_line_endings_count(tmp_path):
    """Byte-identical is meant literally: a file with other line endings is stale."""
    (tmp_path / "a.py").write_bytes(b"A = 1\r\n")
    assert [d.kind for d in files.compare({"a.py": "A = 1\n"}, tmp_path)] == ["stale"]


def test_the_python_files_of_the_folder_are_the_generators(tmp_path):
    """Suffix in capital letters, hidden, only a suffix, a broken link, no name for a module: all orphans.

    Other suffixes and none are not, nor folders, called like a module or not, and what they hold.
    """
    orphans = [".hidden.py", ".py", "OLD.PY", "a b.py", "attn2.copy.py", "link.py", "old.Py", "torn.py"]
    others = ["attn2", "attn2.py~", "attn2.pyc", "attn2.pyi", "attn2py", "notes.txt", "py", ".hidden"]
    for name in {*orphans, *others} - {"link.py", "torn.py"}:
        (tmp_path / name).write_text("")
    (tmp_path / "link.py").symlink_to("attn2")
    (tmp_path / "torn.py").symlink_to("nowhere")
    for folder in ("nested", "__pycache__", "folder.py"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "inside.py").write_text("")
    files.write({"attn2.py": "A = 1\n", "py.typed": ""}, tmp_path)
    found = files.compare({"attn2.py": "A = 1\n", "py.typed": ""}, tmp_path)
    assert [(d.path.parent, d.path.name, d.kind) for d in found] == [
        (tmp_path, name, "orphan") for name in sorted(orphans)
    ]


def test_a_folder_that_is_not_there_has_no_orphans(tmp_path):
    """Everything is missing, and no more is said."""
    found = files.compare({"a.py": ""}, tmp_path / "nowhere")
    assert [(d.path.name, d.kind) for d in found] == [("a.py", "missing")]
