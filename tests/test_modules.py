"""Shipped variants are found, not listed: whatever is added to a spec is tested."""

from generator.compiled import load_module
from generator.render import generate
from stages.epilogue.norm_gate import reference as norm_gate
from stages.epilogue.plain import reference as plain
from tests.extended import extended
from tests.kernels.conftest import in_one_cluster
from tests.kernels.split_scale import over_clusters
from tests.modules import PINNED, SHIPPED, VARIANTS, epilogue_of, variants_of


def test_every_module_of_the_checkout_is_found():
    """Those in `generated/` that have variants, each under its own name."""
    assert SHIPPED and all(name == module.NAME for name, module in SHIPPED.items())
    assert len(VARIANTS) == sum(len(module.VARIANTS) for module in SHIPPED.values())


def test_an_added_variant_and_an_added_module_are_found(tmp_path):
    """The kernel tests take both, and finish the rows of each as its own epilogue does."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(extended(PINNED.read_text(encoding="utf-8")), encoding="utf-8")
    generate(spec, tmp_path / "generated")
    modules = {name: load_module(tmp_path / "generated" / f"{name}.py") for name in ("attn2", "attention")}
    variants = variants_of(modules)
    assert in_one_cluster(variants) == ("attn2.cluster", "attn2.cluster8", "attention.cluster_plain")
    assert over_clusters(variants) == ("attn2.split", "attn2.batch")
    epilogues = {name: epilogue_of(variant.kernel) for name, (_, variant) in variants.items()}
    assert epilogues == {**dict.fromkeys(variants, norm_gate), "attention.cluster_plain": plain}
