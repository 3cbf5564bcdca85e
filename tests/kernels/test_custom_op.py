"""The operator of a generated module: PyTorch's tracers see one opaque step that writes what it declares.

Without a GPU the emulator is registered as the operator's implementation for CPU tensors, so that the same
tests compute numbers everywhere.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from generator.compiled import load_module
from tests.kernels.conftest import bits
from tests.kernels.scale import GPU
from verification.problems import make_problem
from verification.runner import run_emulated

pytest_plugins = ["tests.kernels.split_subject"]

ARGUMENTS = (
    *("q", "gate", "kv_cache", "block_table", "seq_lens", "out", "workspace", "counters"),
    *("max_seq_len", "scale", "eps", "window", "num_splits", "pdl", "variant", "validate"),
)
"""Of the operator, in order."""


def merge_equals(graph: torch.fx.GraphModule, example_inputs):
    """Compile by what a functional graph allows: equal expressions are computed once, unused ones never.

    This is where an undeclared write is lost.
    """
    seen: dict[str, torch.fx.Node] = {}
    for node in graph.graph.nodes:
        if node.op == "call_function":
            node.replace_all_uses_with(seen.setdefault(f"{node.target}{node.args}{node.kwargs}", node))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph.forward


BACKEND = "inductor" if GPU else aot_autograd(fw_compiler=merge_equals)
"""Of torch.compile: what engines use, or as much of it as needs no compiler for the CPU."""


@pytest.fixture
def module(split_module):
    """The module; on the CPU its operator runs on the emulator."""

    def emulate(*values):
        given = dict(zip(ARGUMENTS, values, strict=True))
        out, pdl, variant = given["out"], given["pdl"], given["variant"]
        run_emulated(split_module, variant, given, out=out, pdl=pdl, checks=False)

    name = split_module.OPERATOR._schema.name
    if not GPU and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
        torch.library.register_kernel(name, "cpu", emulate)
    torch.compiler.reset()
    return split_module


def arguments(module, device: str, lengths=(200, 3), seed: int = 0) -> dict[str, Any]:
    """Of a deployment that spreads the request of 200 entries over clusters, without out."""
    deployment = {"max_seq_len": 1000, "num_splits": 2, "variant": "split_tiny"}
    problem = make_problem(list(lengths), device=device, max_seq_len=1000, seed=seed)
    workspace, counters = module.allocate_scratch(len(lengths), kv_heads=1, **deployment, device=device)
    return {**problem.arguments(), **deployment, "workspace": workspace, "counters": counters}


def eager(module, given: dict[str, Any]) -> torch.Tensor:
    """The output of a call that nobody traces."""
    if GPU:
        return module.attn2(**given)
    return run_emulated(module, given["variant"], given)[0]


def test_what_is_written_is_declared(module):
    """Out, workspace and counters, and nothing else; nothing is returned that could alias them."""
    schema = module.OPERATOR._schema
    assert tuple(argument.name for argument in schema.arguments) == ARGUMENTS
    written = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    assert written == {"out", "workspace", "counters"}
    assert schema.returns == []


@pytest.mark.parametrize("scratch", [True, False])
def test_opcheck(module, device, scratch):
    """PyTorch's own checks of schema, autograd registration, fake implementation and tracing."""
    given = arguments(module, device)
    if not scratch:
        given.update(workspace=None, counters=None, variant="cluster")
    given.update(out=torch.empty_like(given["q"]), eps=1e-5, window=None, pdl=False, validate=False)
    results = torch.library.opcheck(module.OPERATOR, tuple(given[name] for name in ARGUMENTS))
    assert set(results.values()) == {"SUCCESS"} and len(results) == 4


def test_compiled_steps_have_the_same_bits(module, device):
    """As one graph; with an output of their own or a given one; the counters are zero again."""
    given = arguments(module, device)
    expected = eager(module, given)

    def step(given, out):
        fresh = module.attn2(**given)
        same = module.attn2(**given, out=out)
        return fresh.float() * 2, same

    out = torch.full_like(given["q"], 7)
    doubled, returned = torch.compile(step, fullgraph=True, backend=BACKEND)(given, out)
    assert torch.equal(bits(out), bits(expected)) and torch.equal(bits(returned), bits(expected))
    assert torch.equal(doubled, expected.float() * 2)
    assert not given["counters"].any()


def test_calls_stay_in_order(module, device):
    """A buffer that one call writes, another op reads and a second call overwrites.

    The three reads are the same expression: a compiler that did not know of the writes would read once.
    """
    first, second = (arguments(module, device, seed=seed) for seed in (1, 2))

    def step(first, second, out):
        out.fill_(3)
        before = out + 1
        module.attn2(**first, out=out)
        between = out + 1
        module.attn2(**second, out=out)
        return torch.stack([before, between, out + 1])

    out = torch.empty_like(first["q"])
    results = torch.compile(step, fullgraph=True, backend=BACKEND)(first, second, out)
    expected = torch.full_like(out, 3), eager(module, first), eager(module, second)
    for result, one in zip(results, expected, strict=True):
        assert torch.equal(bits(result), bits(one + 1))


def test_one_graph_serves_any_number_of_requests(module, device):
    """The fake implementation asks no questions about shapes, so dynamic ones are compiled once.

    Three requests at first: of two, the 16 rows would pass for the 16 slots of a page.
    """
    compiled = []

    def count(graph, example_inputs):
        compiled.append(graph)
        return graph.forward

    def step(given):
        return module.attn2(**given)

    traced = torch.compile(step, fullgraph=True, backend=count, dynamic=True)
    for lengths in ((200, 3, 0), (9, 40, 150, 8, 1), (129, 7)):
        given = arguments(module, device, lengths)
        assert torch.equal(bits(traced(given)), bits(eager(module, given)))
    assert len(compiled) == 1


def test_tracers_that_do_not_compile_record_it_too(module, device):
    """A dispatch mode sees the operator, though eager calls pass the dispatcher by."""
    given = arguments(module, device)

    def step(q):
        return module.attn2(**{**given, "q": q})

    targets = [node.target for node in make_fx(step)(given["q"]).graph.nodes]
    assert targets.count(module.OPERATOR) == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
def test_a_torchscript_trace_has_the_call(module, device):
    """`torch.jit.trace` records it: the traced function computes what it was traced from."""
    given = arguments(module, device)

    def step(q):
        return module.attn2(**{**given, "q": q})

    traced = torch.jit.trace(step, given["q"], check_trace=False)
    assert module.OPERATOR._schema.name in str(traced.graph)
    assert torch.equal(bits(traced(given["q"])), bits(eager(module, given)))


TRANSFORMS = {
    "vmap": lambda step, q: torch.func.vmap(step)(q[None]),
    "grad": lambda step, q: torch.func.grad(lambda q: step(q).float().sum())(q),
    "vjp": lambda step, q: torch.func.vjp(step, q),
    "functionalize": lambda step, q: torch.func.functionalize(step)(q),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_refused(module, device, transform):
    """A transform gets the operator, for which it has no rule, and nothing is launched."""
    given = arguments(module, device)
    out = torch.full_like(given["q"], 7)

    def step(q):
        return module.attn2(**{**given, "q": q}, out=out)

    with pytest.raises(RuntimeError):
        TRANSFORMS[transform](step, given["q"])
    assert bool((out == 7).all())


def test_elements_at_address_0_are_refused(module):
    """Whatever wrapped them: a tensor without memory of its own never reaches a kernel."""
    given = arguments(module, "cpu")
    deployment = module.deploy(given["max_seq_len"], None, given["num_splits"], given["variant"])
    tensors = {name: given[name] for name in ARGUMENTS if isinstance(given.get(name), torch.Tensor)}
    tensors["out"] = torch.empty_like(given["q"])

    class Wrapped(torch.Tensor):
        def data_ptr(self):
            return 0

    for name in tensors:
        wrapped = {**tensors, name: tensors[name].as_subclass(Wrapped)}
        order = (wrapped[name] for name in ARGUMENTS if name in wrapped)
        with pytest.raises(ValueError, match=rf"{name} must be a tensor in memory, got .* at address 0"):
            module.bind(deployment, *order, given["scale"], 1e-5)


def test_fake_tensors_get_fake_results(module, device):
    """Under their mode and outside of it: shapes and types as a real call has them, and nothing runs."""
    given = arguments(module, device)
    mode = FakeTensorMode()
    fakes = {
        name: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
        for name, value in given.items()
    }
    with mode:
        inside = module.attn2(**fakes)
    for out in (inside, module.attn2(**fakes)):
        assert isinstance(out, torch._subclasses.FakeTensor)
        assert (out.shape, out.dtype, out.device) == (given["q"].shape, torch.bfloat16, given["q"].device)


def test_copies_of_a_module_share_what_they_load(module, tmp_path):
    """The operator is the first copy's: it launches what the second one has prepared."""
    text = Path(module.__file__).read_text(encoding="utf-8")
    (tmp_path / "copy.py").write_text(text, encoding="utf-8")
    (tmp_path / "edited.py").write_text(text.replace(module.DIGEST, "e" * 64), encoding="utf-8")
    copy, edited = load_module(tmp_path / "copy.py"), load_module(tmp_path / "edited.py")
    key = (copy.Form("cluster", False, False), -1)
    try:
        prepared = copy.LOADED.get(key, object)
        assert module.loaded_kernel(*key) is prepared
        assert key not in edited.LOADED.values
    finally:
        copy.LOADED.values.pop(key, None)


def test_the_operator_is_named_by_its_content(module, tmp_path):
    """The same module under another name shares the operator, an edited one has its own."""
    text = Path(module.__file__).read_text(encoding="utf-8")
    edited = text.replace(module.DIGEST, "f" * 64)
    assert edited != text
    (tmp_path / "same.py").write_text(text, encoding="utf-8")
    (tmp_path / "edited.py").write_text(edited, encoding="utf-8")
    same = load_module(tmp_path / "same.py")
    other = load_module(tmp_path / "edited.py")
    assert same.OPERATOR is module.OPERATOR
    assert other.OPERATOR._schema.name == f"stagewright::attn2_{'f' * 16}"
    assert module.OPERATOR._schema.name == f"stagewright::attn2_{module.DIGEST[:16]}"


def test_on_a_device_without_kernels_the_operator_says_so(module):
    """Also where the dispatcher calls it: what is no CUDA tensor is refused by the same checks."""
    given = arguments(module, "cpu")
    given.update(out=torch.empty_like(given["q"]), eps=1e-5, window=None, pdl=False, validate=False)
    with pytest.raises(ValueError, match="q must be a CUDA tensor, got one on cpu"):
        module.enqueue(*(given[name] for name in ARGUMENTS))
