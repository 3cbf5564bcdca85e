"""Which function an opcode means: `find("fma.rn.ftz.f32")` gives it with the types it takes and returns.

Covers the element-by-element instructions on floats, and conversions that have a float on either side. What
is not known, or leaves its rounding to the compiler (`add.f32`, which may be contracted), is an
`UnknownOpcode`, whose text says why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from emulator.arrays import Array
from emulator.numerics import arithmetic, conversion, functions, pairs


class UnknownOpcode(Exception):
    """An opcode that no function here stands for."""


@dataclass(frozen=True)
class Function:
    """run(*inputs) -> output: whole arrays of these PTX types' NumPy types (`ptx.types.DTYPES`)."""

    run: Callable[..., Array]
    inputs: tuple[str, ...]
    output: str


_ROUNDINGS = {"rn", "rz", "rm", "rp"}
_TO_INTEGRAL = {"rni", "rzi", "rmi", "rpi"}
_APPROXIMATE = {
    "ex2": functions.exp2,
    "rcp": functions.reciprocal,
    "rsqrt": functions.rsqrt,
    "sqrt": functions.sqrt,
    "lg2": functions.log2,
    "sin": functions.sin,
    "cos": functions.cos,
}
_ARITHMETIC: dict[str, tuple[Callable[..., Array], int]] = {
    "add": (arithmetic.add, 2),
    "sub": (arithmetic.sub, 2),
    "mul": (arithmetic.mul, 2),
    "fma": (arithmetic.fma, 3),
}
_EXTREMA = {"max": arithmetic.maximum, "min": arithmetic.minimum}
_SIGNS = {"neg": arithmetic.negative, "abs": arithmetic.absolute}
_HALVES: dict[str, tuple[Callable[..., Array], Callable[[Array], Array]]] = {
    "bf16": (conversion.to_bf16, conversion.from_bf16),
    "f16": (conversion.to_f16, conversion.from_f16),
}
_PAIRS: dict[tuple[str, ...], tuple[Callable[..., Array], int]] = {
    ("add",): (pairs.add, 2),
    ("sub",): (pairs.sub, 2),
    ("mul",): (pairs.mul, 2),
    ("fma",): (pairs.fma, 3),
    ("fma", "relu"): (functools.partial(pairs.fma, relu=True), 3),
    ("max",): (pairs.maximum, 2),
    ("min",): (pairs.minimum, 2),
    ("max", "NaN"): (functools.partial(pairs.maximum, nan=True), 2),
    ("min", "NaN"): (functools.partial(pairs.minimum, nan=True), 2),
    ("neg",): (pairs.negative, 1),
    ("abs",): (pairs.absolute, 1),
    ("ex2", "approx", "ftz"): (pairs.exp2, 1),
    ("tanh", "approx"): (pairs.tanh, 1),
}


@functools.cache
def find(opcode: str) -> Function:
    """The function of an opcode as it stands in PTX. Raises UnknownOpcode."""
    name, *parts = opcode.split(".")
    handlers: dict[str, Callable[[str, str, list[str]], Function]] = {
        **dict.fromkeys(_ARITHMETIC, _arithmetic),
        **dict.fromkeys(_EXTREMA, _extremum),
        **dict.fromkeys(_SIGNS, _sign),
        **dict.fromkeys(_APPROXIMATE, _approximate),
        "tanh": _approximate,
        "div": _divide,
        "setp": _compare,
        "cvt": _convert,
    }
    handler = handlers.get(name)
    if handler is None or not parts:
        raise UnknownOpcode(f"{opcode}: not an instruction on floats")
    if parts[-1] == "bf16x2" and handler is not _convert:
        return _pair(opcode, name, parts)
    return handler(opcode, name, parts)


def _take(opcode: str, parts: list[str], allowed: set[str], type_name: str = "f32") -> set[str]:
    """The modifiers of an opcode that ends with this type, all of which must be allowed."""
    *modifiers, kind = parts
    if kind != type_name:
        raise UnknownOpcode(f"{opcode}: type {kind} is not covered")
    if unknown := set(modifiers) - allowed:
        raise UnknownOpcode(f"{opcode}: {', '.join(sorted(unknown))} is not covered")
    return set(modifiers)


def _arithmetic(opcode: str, name: str, parts: list[str]) -> Function:
    modifiers = _take(opcode, parts, _ROUNDINGS | {"ftz", "sat"})
    if not (rounding := modifiers & _ROUNDINGS):
        raise UnknownOpcode(f"{opcode}: without a rounding mode it may be contracted, so its bits are open")
    function, count = _ARITHMETIC[name]
    run = functools.partial(function, rounding=rounding.pop(), ftz="ftz" in modifiers)
    if "sat" in modifiers:
        return Function(lambda *x: arithmetic.saturated(run(*x)), ("f32",) * count, "f32")
    return Function(run, ("f32",) * count, "f32")


def _extremum(opcode: str, name: str, parts: list[str]) -> Function:
    modifiers = _take(opcode, parts, {"ftz", "NaN"})
    run = functools.partial(_EXTREMA[name], ftz="ftz" in modifiers, nan="NaN" in modifiers)
    return Function(run, ("f32", "f32"), "f32")


def _sign(opcode: str, name: str, parts: list[str]) -> Function:
    modifiers = _take(opcode, parts, {"ftz"})
    return Function(functools.partial(_SIGNS[name], ftz="ftz" in modifiers), ("f32",), "f32")


def _approximate(opcode: str, name: str, parts: list[str]) -> Function:
    modifiers = _take(opcode, parts, {"approx", "ftz", "rn"})
    if name == "tanh" and modifiers == {"approx"}:
        return Function(functions.tanh, ("f32",), "f32")
    exact = {"rcp": functions.exact_reciprocal, "sqrt": functions.exact_sqrt}
    if "rn" in modifiers and "approx" not in modifiers and name in exact:
        return Function(functools.partial(exact[name], ftz="ftz" in modifiers), ("f32",), "f32")
    if "approx" not in modifiers or "rn" in modifiers or name == "tanh":
        raise UnknownOpcode(f"{opcode}: not covered")
    return Function(functools.partial(_APPROXIMATE[name], ftz="ftz" in modifiers), ("f32",), "f32")


def _divide(opcode: str, name: str, parts: list[str]) -> Function:
    modifiers = _take(opcode, parts, {"approx", "full", "rn", "ftz"})
    if "approx" not in modifiers:
        # div.full may be 2 ulp off; the rounded quotient stands for it.
        return Function(
            functools.partial(functions.exact_quotient, ftz="ftz" in modifiers), ("f32", "f32"), "f32"
        )
    return Function(functools.partial(functions.quotient, ftz="ftz" in modifiers), ("f32", "f32"), "f32")


def _compare(opcode: str, name: str, parts: list[str]) -> Function:
    how, *rest = parts
    modifiers = _take(opcode, rest, {"ftz"}) if rest else set()
    if how not in arithmetic.COMPARISONS or not rest:
        raise UnknownOpcode(f"{opcode}: not a comparison of floats")
    return Function(
        functools.partial(arithmetic.compare, how, ftz="ftz" in modifiers), ("f32", "f32"), "pred"
    )


def _pair(opcode: str, name: str, parts: list[str]) -> Function:
    key = (name, *(part for part in parts[:-1] if part != "rn"))
    if key not in _PAIRS:
        raise UnknownOpcode(f"{opcode}: not covered")
    run, count = _PAIRS[key]
    return Function(run, ("b32",) * count, "b32")


def _convert(opcode: str, name: str, parts: list[str]) -> Function:
    if len(parts) < 2:
        raise UnknownOpcode(f"{opcode}: not a conversion")
    *modifiers, target, source = parts
    given = set(modifiers)
    ftz, sat, relu = "ftz" in given, "sat" in given, "relu" in given
    rounding = given & (_ROUNDINGS | _TO_INTEGRAL | {"rna"})
    if given - rounding - {"ftz", "sat", "relu"} or len(rounding) > 1:
        raise UnknownOpcode(f"{opcode}: not covered")
    way = next(iter(rounding), "")
    run: Callable[..., Array] | None = None
    inputs: tuple[str, ...] = (source,)
    if source == "f32" and target in ("bf16x2", "f16x2") and way in ("rn", "rz") and not (ftz or sat):
        pack = conversion.pack_bf16 if target == "bf16x2" else conversion.pack_f16
        run, inputs = functools.partial(pack, rounding=way, relu=relu), ("f32", "f32")
    elif source == "f32" and target in _HALVES and way in ("rn", "rz") and not (ftz or sat):
        run = functools.partial(_HALVES[target][0], rounding=way, relu=relu)
    elif source in _HALVES and target == "f32" and not given:
        run = _HALVES[source][1]
    elif source == "f32" and target == "tf32" and given == {"rna"}:
        run = conversion.to_tf32
    elif source == "f32" and target == "f32" and not relu and (way in _TO_INTEGRAL or not way):
        run = functools.partial(conversion.f32_to_f32, rounding=way, ftz=ftz, sat=sat)
    elif source == "f32" and target in conversion.LIMITS and way in _TO_INTEGRAL and not relu:
        run = functools.partial(conversion.to_integer_bits, kind=target, rounding=way, ftz=ftz)
    elif source in conversion.LIMITS and target == "f32" and way in _ROUNDINGS and not (ftz or sat or relu):
        run = functools.partial(conversion.from_integer, rounding=way)
    if run is None:
        raise UnknownOpcode(f"{opcode}: not covered")
    return Function(run, inputs, target if target != "tf32" else "b32")
