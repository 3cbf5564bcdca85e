"""Operands of primitives: a value of another type is refused when it is traced, never converted."""

import importlib
import inspect
import pkgutil

import pytest
from cutlass import Boolean, Float32, Int32, Int64
from cutlass._mlir import ir

import stages.ptx
from stages.ptx.arithmetic import select
from stages.ptx.inline import operand

OTHERS = {
    Float32: (Int32(1), Int64(1), Boolean(True), True, "1", None),
    Int32: (Float32(1.0), Int64(1), Boolean(True), True, 1.5, None),
    Int64: (Int32(1), Float32(1.0), Boolean(True), True, 1.5, None),
}
"""For each type of an operand, values that are not of it."""

LISTS = {list[Int32]: [Int32(1)] * 4}
"""For annotations of operands that are several registers, such registers."""


def primitives():
    """Every function of the package that stages call, as (name, function)."""
    for module in pkgutil.iter_modules(stages.ptx.__path__):
        found = importlib.import_module(f"stages.ptx.{module.name}")
        for name, function in vars(found).items():
            own = inspect.isfunction(function) and inspect.unwrap(function).__module__ == found.__name__
            if own and module.name != "inline" and "ip" in inspect.signature(function).parameters:
                yield f"{module.name}.{name}", function


CASES = [
    (name, function, parameter.name)
    for name, function in primitives()
    for parameter in inspect.signature(function).parameters.values()
    if parameter.annotation in OTHERS
]


@pytest.fixture
def tracing():
    """A place for the instructions that primitives emit, as the body of a kernel is."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            yield module


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_an_operand_is_of_its_type(kind):
    """Its own values pass as they are, Python numbers become constants, all else is refused."""
    own = kind(3)
    assert operand(kind, own) is own
    assert isinstance(operand(kind, 3), kind)
    for other in OTHERS[kind]:
        with pytest.raises(TypeError, match=rf"must be {kind.__name__} or a Python number, got \w+"):
            operand(kind, other)


@pytest.mark.parametrize(
    ("name", "function", "parameter"), CASES, ids=lambda case: case if isinstance(case, str) else ""
)
def test_every_primitive_refuses_other_types(tracing, name, function, parameter):
    """Each operand that a signature names, with all others right."""
    signature = inspect.signature(function).parameters
    right = {p.name: p.annotation(1) for p in signature.values() if p.annotation in OTHERS}
    for p in signature.values():
        if p.annotation in LISTS:
            right[p.name] = LISTS[p.annotation]
        if p.name not in right and p.default is p.empty and p.name not in ("loc", "ip"):
            right[p.name] = [Float32(1.0)] * 4 if p.annotation is p.empty else 16
    function(**right)
    for other in OTHERS[signature[parameter].annotation]:
        with pytest.raises(TypeError, match="an operand must be"):
            function(**{**right, parameter: other})


def test_what_is_selected_from_has_one_type(tracing):
    """Neither of the two is converted to the other's type."""
    for a, b in ((Int32(1), Float32(1.0)), (Float32(1.0), Int32(1)), (Int64(1), Int64(2)), (Int32(1), 0.5)):
        with pytest.raises(TypeError, match="an operand must be"):
            select(Boolean(True), a, b)
    with pytest.raises(TypeError, match="an operand must be Boolean"):
        select(Int32(1), Int32(1), Int32(2))
