"""What calls and kernels share is known by all that it depends on; more is in `tests.faults.covered`."""

import dataclasses

import torch

from generated import attn2 as module
from tests.kernels.driver import NotedDriver, pretend_there_is_a_device
from verification.problems import make_problem
from verification.runner import kernel_ptx

TENSORS = ("q", "gate", "kv_cache", "block_table", "seq_lens", "out")


def base() -> dict:
    """A call of 2 requests, 2 KV heads and a window."""
    problem = make_problem([40, 64], kv_heads=2, window=24)
    return {**problem.arguments(), "out": problem.poisoned_out(), "variant": None, "pdl": False, "eps": 1e-5}


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Equal, in rows that are farther apart."""
    rows = torch.empty(tensor.shape[0], 2 * tensor[0].numel(), dtype=tensor.dtype)
    return rows[:, : tensor[0].numel()].unflatten(1, tensor.shape[1:]).copy_(tensor)


def bound(given: dict) -> tuple:
    """What a call launches: form, grid, and the kernel's parameters but for addresses."""
    deployment = module.deploy(
        given["max_seq_len"], given["window"], variant=given["variant"], pdl=given["pdl"]
    )
    call = module.bind(
        deployment, *(given[name] for name in TENSORS), None, None, given["scale"], given["eps"]
    )
    return deployment.form, call.layout.grid, call.scalars


CHANGES = {
    "scale": lambda given: {"scale": 1.5},
    "scale of the other sign": lambda given: {"scale": -1.5},
    "eps": lambda given: {"eps": 1.5},
    "window": lambda given: {"window": 25},
    "no window": lambda given: {"window": None},
    "pdl": lambda given: {"pdl": True},
    "columns": lambda given: {"block_table": torch.zeros(2, 9, dtype=torch.int32)},
    **{
        f"strides of {name}": lambda given, name=name: {name: wide(given[name])}
        for name in ("q", "gate", "kv_cache", "block_table", "out")
    },
    "one request": lambda given: {
        name: given[name][: len(given[name]) // 2] for name in TENSORS if name != "kv_cache"
    },
}


def test_calls_that_differ_are_not_taken_for_each_other():
    """In one number, stride or shape each; in any order, with what has been worked out before or without."""
    calls = [base(), *({**base(), **change(base())} for change in CHANGES.values())]
    fresh = []
    for given in calls:
        module._deploy.cache_clear()
        module.LAYOUTS.clear()
        fresh.append(bound(given))
    assert len(set(fresh)) == len(calls)
    assert [bound(given) for given in calls * 2] == fresh * 2


def test_no_address_is_in_a_key():
    """The tensors of other layers and steps find what was worked out for the first."""
    module.LAYOUTS.clear()
    for _ in range(4):
        bound(base())
    assert len(module.LAYOUTS) == 1


def test_each_architecture_is_compiled_for(monkeypatch):
    """Devices of two architectures in one process have two kernels, each in machine code of its own."""
    first = module.deploy(2048).variant.name
    pretend_there_is_a_device(monkeypatch, module, NotedDriver(kernel_ptx(module, first)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9 + device, 0))
    compiled = []

    def compile_image(form, arch):
        compiled.append(arch)
        return module.Image(b"an entry", "entry")

    monkeypatch.setattr(module, "compile_image", compile_image)
    for device in (0, 1, 0, 1):
        module.prepare(kv_heads=2, max_seq_len=2048, device=device)
    assert compiled == ["sm_90a", "sm_100a"]


def test_forms_have_names_of_their_own():
    """Nothing is dropped from a variant's name, so names that differ in one character stay apart."""
    variants = [
        dataclasses.replace(variant, name=variant.name + more)
        for variant in module.VARIANTS
        for more in ("", "_", "2", "_2")
    ]
    forms = [form for variant in variants for form in variant.forms]
    assert len({str(form) for form in forms}) == len(forms)
