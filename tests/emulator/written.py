"""Small kernels written by hand, and how the emulator's tests run them."""

import numpy as np
import pytest

import emulator
from emulator.errors import MemoryFault

HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"

REGISTERS = """\
    .reg .pred %p<16>;
    .reg .b16 %rs<16>;
    .reg .b32 %r<64>;
    .reg .b64 %rd<32>;
"""

PREFIX = {"pred": "%p", "16": "%rs", "32": "%r", "64": "%rd"}


def kernel(body: str, parameters: str = ".u64", before: str = "", name: str = "k") -> str:
    """PTX of one kernel; parameters: types, separated by blanks, of a0, a1 ..."""
    declared = ",\n".join(f"    .param {kind} a{i}" for i, kind in enumerate(parameters.split()))
    return f"{HEAD}{before}\n.visible .entry {name}(\n{declared}\n)\n{{\n{REGISTERS}{body}\n}}\n"


def launch(body: str, *arguments, threads: int = 32, parameters: str = "", before: str = "", **more):
    """Run a kernel with one argument a parameter; arrays are .u64, whole numbers .u32, floats .f32."""
    kinds = {int: ".u32", float: ".f32"}
    parameters = parameters or " ".join(kinds.get(type(a), ".u64") for a in arguments)
    more = {"grid": 1, "block": threads, **more}
    return emulator.launch(kernel(body, parameters, before), arguments=list(arguments), **more)


def place_of(number: int, size: int) -> str:
    """Code that puts into %rd30 the address of this thread's element of argument `number`."""
    return f"""
    mov.u32 %r60, %tid.x;  mov.u32 %r61, %ctaid.x;  mov.u32 %r62, %ntid.x;
    mad.lo.s32 %r60, %r61, %r62, %r60;
    ld.param.u64 %rd30, [a{number}];
    mul.wide.u32 %rd29, %r60, {size};
    add.s64 %rd30, %rd30, %rd29;
"""


def store(register: str, number: int = 0, size: int = 4) -> str:
    """Code that stores a register as this thread's element of argument `number`."""
    return f"{place_of(number, size)} st.global.b{8 * size} [%rd30], {register};\n"


def load(register: str, number: int, size: int = 4) -> str:
    """Code that loads this thread's element of argument `number`."""
    return f"{place_of(number, size)} ld.global.b{8 * size} {register}, [%rd30];\n"


def register(dtype, number: int) -> str:
    """The register `number` for values of a NumPy type."""
    if np.dtype(dtype) == np.bool_:
        return f"%p{number}"
    return f"{PREFIX[str(8 * max(2, np.dtype(dtype).itemsize))]}{number}"


def apply(opcode: str, out, *inputs: np.ndarray, extra: str = "") -> np.ndarray:
    """What an instruction gives, one thread an element. out: NumPy type; extra: operands behind the inputs.

    bool inputs and outputs are predicates.
    """
    count = len(inputs[0])
    code, operands = "", []
    result = np.full(count, 0x5A, np.uint32 if np.dtype(out) == np.bool_ else out)
    arrays = [result]
    for i, given in enumerate(inputs, 1):
        name = register(given.dtype, i)
        if given.dtype == np.bool_:
            code += load(f"%r{i}", i) + f" setp.ne.b32 {name}, %r{i}, 0;\n"
            given = given.astype(np.uint32)
        else:
            code += load(name, i, given.dtype.itemsize)
        operands.append(name)
        arrays.append(given)
    name = register(out, 9)
    code += f"    {opcode} {name}, {', '.join(operands)}{extra};\n"
    if np.dtype(out) == np.bool_:
        code += f"    selp.b32 %r9, 1, 0, {name};\n"
        name = "%r9"
    code += store(name, 0, result.dtype.itemsize) + "    ret;"
    launch(code, *arrays, threads=count)
    return result.astype(bool) if np.dtype(out) == np.bool_ else result


def raised(kind, body: str, *arguments, **more) -> str:
    """The text of the error of this type that a kernel raises."""
    with pytest.raises(kind) as error:
        launch(body, *arguments, **more)
    return str(error.value)


def fault(body: str, *arguments, **more) -> str:
    """The text of the MemoryFault that a kernel raises."""
    with pytest.raises(MemoryFault) as raised:
        launch(body, *arguments, **more)
    error = raised.value
    assert error.line and error.address and error.thread and error.kernel == "k"
    return str(error)


def run(body: str, threads: int = 32, out: int = 1, **more) -> np.ndarray:
    """Run a kernel that leaves something in %r9; out: words that it stores at most."""
    result = np.zeros(threads * out, np.uint32)
    launch(body + store("%r9") + "ret;", result, threads=threads, **more)
    return result
