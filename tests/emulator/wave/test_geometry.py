"""Numbers of threads, CTAs and clusters, as special registers give them."""

import numpy as np
import pytest

from tests.emulator.written import launch


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("%tid.x", lambda t: t % 4),
        ("%tid.y", lambda t: t // 4 % 8),
        ("%tid.z", lambda t: t // 32 % 2),
        ("%ntid.y", lambda t: 8 + 0 * t),
        ("%laneid", lambda t: t % 32),
        ("%warpid", lambda t: t % 64 // 32),
        ("%ctaid.x", lambda t: t // 64 % 4),
        ("%ctaid.y", lambda t: t // 256 % 2),
        ("%nctaid.x", lambda t: 4 + 0 * t),
        ("%clusterid.x", lambda t: t // 64 % 4 // 2),
        ("%nclusterid.x", lambda t: 2 + 0 * t),
        ("%cluster_ctaid.x", lambda t: t // 64 % 2),
        ("%cluster_ctarank", lambda t: t // 64 % 2),
        ("%cluster_nctarank", lambda t: 2 + 0 * t),
        ("%lanemask_lt", lambda t: (1 << t % 32) - 1),
        ("%lanemask_ge", lambda t: 0xFFFFFFFF & ~((1 << t % 32) - 1)),
        ("%dynamic_smem_size", lambda t: 48 + 0 * t),
    ],
)
@pytest.mark.parametrize("resident", [1, 4])
def test_special_registers(name, want, resident):
    """Grid 4 x 2 in clusters of 2, blocks of 4 x 8 x 2, in one wave and in several."""
    out = np.zeros(512, np.uint32)
    body = f"""
    mov.u32 %r9, {name};
    mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %ctaid.y;
    mad.lo.s32 %r5, %r5, 4, %r4; mad.lo.s32 %r3, %r5, 2, %r3; mad.lo.s32 %r2, %r3, 8, %r2;
    mad.lo.s32 %r1, %r2, 4, %r1; ld.param.u64 %rd1, [a0]; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
    st.global.u32 [%rd1], %r9; ret;
    """
    where = {"grid": (4, 2), "cluster": 2, "block": (4, 8, 2), "shared_bytes": 48, "resident": resident}
    launch(body, out, **where)
    np.testing.assert_array_equal(out, want(np.arange(512)))
