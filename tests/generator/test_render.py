"""The generated text: the stages' own code, formatted like the workshop, and nothing that is not used."""

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import tomllib

import black
import pytest
from black.mode import TargetVersion

from generator import render as rendering
from generator.plan import load_plan
from generator.render import LINE_LENGTH, render
from tests.modules import PINNED, ROOT, SPEC
from tests.modules import SHIPPED as MODULES


@pytest.fixture(scope="module", params=MODULES)
def plan(request):
    """The plan of each shipped module."""
    return next(module for module in load_plan(SPEC).modules if module.name == request.param)


@pytest.fixture(scope="module")
def text(plan):
    return rendering.render_module(plan)


def stages(plan):
    return [stage for variant in plan.variants for stage in variant.stages.values()]


def test_every_stage_is_found_verbatim(plan, text):
    """A stage's class in the output is, letter by letter, the one that the stage's test tested."""
    assert len(stages(plan)) >= 8
    for stage in stages(plan):
        source = inspect.getsource(getattr(importlib.import_module(stage.module), stage.class_name))
        assert source.strip() in text, f"{stage.module} is not verbatim"


def test_a_banner_names_the_file_of_each_section(plan, text):
    """Who reads the output finds the source; the module's contract comes along as a comment."""
    for stage in stages(plan):
        path = stage.module.replace(".", "/") + ".py"
        assert f"# {path}\n#\n" in text
        contract = inspect.getdoc(importlib.import_module(stage.module)).splitlines()[0]
        assert f"\n# {contract}\n" in text


def test_nothing_of_the_workshop_is_imported(text):
    """The output is self-contained: cutlass, its CUDA bindings, torch and the standard library."""
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.split(".")[0])
    assert imported - sys.stdlib_module_names == {"cuda", "cutlass", "torch"}


def test_nothing_unused_is_in_the_output(plan, text):
    """Every import, function, class and constant of the output is used in it, or is its interface."""
    tree = ast.parse(text)
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    names += [alias.asname or alias.name for n in imports for alias in n.names]
    names += [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if t.id != "__all__"]
    assert len(names) > 60
    interface = re.search(r"__all__ = \[(.*?)\]", text, re.DOTALL).group(1)
    for name in names:
        used = len(re.findall(rf"\b{re.escape(name)}\b", text))
        assert used >= 2, f"{name} is not used"
    assert sorted(ast.literal_eval(f"[{interface}]")) == sorted(
        [
            *("VARIANTS", "allocate_scratch", plan.name, f"compile_{plan.name}", "counters_bytes"),
            *("default_splits", "default_variant"),
            *("export_kernels", "prepare", "split_forms", "split_kernel", "window_pages", "workspace_bytes"),
        ]
    )
    for leftover in ("CONTRACT", "Contract(", "stages.contract", "def reference("):
        assert leftover not in text


def test_black_leaves_the_output_alone(text):
    """The output is formatted as the workshop is, so linked code keeps its shape."""
    mode = black.Mode(line_length=LINE_LENGTH, target_versions={TargetVersion.PY311})
    assert black.format_str(text, mode=mode) == text
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert config["black"]["line-length"] == config["ruff"]["line-length"] == LINE_LENGTH


def test_the_table_of_variants_is_the_plan(plan, text):
    """Every fact of the plan reaches the kernel object: fields, offsets and the stages' own facts."""
    table = text[text.index("VARIANTS = (") :]
    for variant in plan.variants:
        for name, value in variant.kernel_fields.items():
            assert f"{name}={value!r},".replace("'", '"') in table
        for region in variant.regions:
            assert f"{region.name}={region.offset},  # {region.bytes:,} B of {region.slot}\n" in table
        for stage in variant.stages.values():
            facts = ", ".join(f"{name}={value}" for name, value in stage.facts.items())
            assert f"{stage.slot}={stage.class_name}({facts})," in table


def test_host_names_follow_the_module():
    """A module of another name has its own entry points; variants of one name do not collide."""
    (plan,) = load_plan(PINNED).modules
    other = dataclasses.replace(plan, name="verify_step")
    text = rendering.render_module(other)
    assert "def verify_step(" in text
    assert "def compile_verify_step(" in text
    interface = ast.literal_eval(re.search(r"__all__ = (\[.*?\])", text, re.DOTALL).group(1))
    assert {"verify_step", "compile_verify_step"} < set(interface)
    assert not [name for name in interface if "attn2" in name]
    assert "attn2" not in text[text.index("# variants/host/api.py") :]


def test_rendering_twice_gives_the_same_bytes(plan, text):
    """No clock, no path, no order of a set."""
    assert render(load_plan(SPEC))[f"{plan.name}.py"] == text
    assert str(ROOT) not in text
