"""A generated file may be replaced at any time; more is in `tests.faults.covered`."""

import os
import sys
from pathlib import Path

import pytest

from generated import attn2 as checked_in
from generator.compiled import load_module


def test_a_module_that_was_replaced_is_not_compiled(tmp_path):
    """CuTe DSL would read another module's lines as this one's; imported again, the new one compiles."""
    file = tmp_path / "attn2.py"
    text = Path(checked_in.__file__).read_text(encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    module = load_module(file)
    file.write_text("# One line more.\n" + text.replace(module.DIGEST, "f" * 64), encoding="utf-8")
    with pytest.raises(
        RuntimeError, match=r"attn2\.py was replaced after it was imported.*start the process"
    ):
        module.compile_attn2(arch="sm_90a")
    assert load_module(file).compile_attn2(arch="sm_90a") is not None


def test_a_module_is_loaded_by_its_content(tmp_path, monkeypatch):
    """Another one of the same size, written within the same second, is not taken for the one before."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "module.py"
    for value in (1, 2):
        file.write_text(f"number = {value}\n")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        module = load_module(file)
        assert module.number == value
