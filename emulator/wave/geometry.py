"""The geometry of a wave: numbers of its threads, warps, CTAs and clusters, and special registers."""

from __future__ import annotations

import functools

import numpy as np

from emulator.arrays import Array

Dim = tuple[int, int, int]


@functools.lru_cache(maxsize=64)
def geometry(grid: Dim, cluster: Dim, block: Dim, clusters: tuple[int, ...]) -> Geometry:
    """The geometry of the wave that runs these clusters of a grid, cached."""
    return Geometry(grid, cluster, block, clusters)


def split(number: Array, size: Dim) -> tuple[Array, Array, Array]:
    """Linear numbers as (x, y, z), x fastest."""
    return number % size[0], number // size[0] % size[1], number // (size[0] * size[1])


class Geometry:
    """A wave: the clusters with these numbers, in this order. Arrays are int64 and never written to.

    Threads are numbered by cluster in the wave, then rank in the cluster, then linear thread index.
    """

    def __init__(self, grid: Dim, cluster: Dim, block: Dim, clusters: tuple[int, ...]):
        self.grid, self.cluster, self.block, self.clusters = grid, cluster, block, clusters
        self.cluster_size = int(np.prod(cluster))
        self.block_size = int(np.prod(block))
        self.cta_count = len(clusters) * self.cluster_size
        self.thread_count = self.cta_count * self.block_size
        warps = -(-self.block_size // 32)
        self.warp_count = self.cta_count * warps
        threads = np.arange(self.thread_count)
        self.cta_of = threads // self.block_size
        self.index_of = threads % self.block_size
        self.lane_of = self.index_of % 32
        self.warp_of = self.cta_of * warps + self.index_of // 32
        self.warp_lanes = np.bincount(self.warp_of, minlength=self.warp_count)
        self._specials: dict[str, Array] = {}

        rank = np.arange(self.cta_count) % self.cluster_size
        number = np.repeat(np.array(clusters, np.int64), self.cluster_size)
        of_grid = (grid[0] // cluster[0], grid[1] // cluster[1], grid[2] // cluster[2])
        self._ranks, self._in_cluster = rank, split(rank, cluster)
        self._cluster_ids, self._clusters_of_grid = split(number, of_grid), of_grid
        self.cta_ids = tuple(
            self._cluster_ids[axis] * cluster[axis] + self._in_cluster[axis] for axis in range(3)
        )

    def describe(self, thread: int) -> str:
        """A thread of the wave in words."""
        cta, index = divmod(thread, self.block_size)
        x, y, z = (int(axis[cta]) for axis in self.cta_ids)
        words = f"thread {index} (warp {index // 32}, lane {index % 32}) of CTA ({x}, {y}, {z})"
        if self.cluster_size > 1:
            words += f", rank {cta % self.cluster_size} of cluster {self.clusters[cta // self.cluster_size]}"
        return words

    def special(self, name: str, shared_bytes: int) -> Array:
        """A special register of all threads, one of SPECIALS: uint32."""
        key = f"{name} {shared_bytes}" if name.endswith("smem_size") else name
        found = self._specials.get(key)
        if found is None:
            values = self._special(name, shared_bytes)
            found = np.broadcast_to(np.asarray(values), self.thread_count).astype(np.uint32)
            found.flags.writeable = False
            self._specials[key] = found
        return found

    def _special(self, name: str, shared_bytes: int) -> Array | int:
        stem, _, axis_name = name.lstrip("%").partition(".")
        if axis_name:
            axis = "xyz".index(axis_name)
            per_cta = {
                "ctaid": self.cta_ids,
                "clusterid": self._cluster_ids,
                "cluster_ctaid": self._in_cluster,
            }
            constants = {
                "ntid": self.block,
                "nctaid": self.grid,
                "nclusterid": self._clusters_of_grid,
                "cluster_nctaid": self.cluster,
            }
            if stem == "tid":
                return split(self.index_of, self.block)[axis]
            if stem in per_cta:
                return per_cta[stem][axis][self.cta_of]
            return constants[stem][axis]
        lane = self.lane_of.astype(np.uint64)
        one = np.uint64(1)
        below = (one << lane) - one
        values: dict[str, Array | int] = {
            "laneid": self.lane_of,
            "warpid": self.index_of // 32,
            "nwarpid": -(-self.block_size // 32),
            "cluster_ctarank": self._ranks[self.cta_of],
            "cluster_nctarank": self.cluster_size,
            "is_explicit_cluster": int(self.cluster_size > 1),
            "lanemask_lt": below,
            "lanemask_le": below | (one << lane),
            "lanemask_eq": one << lane,
            "lanemask_ge": ~below & np.uint64(0xFFFFFFFF),
            "lanemask_gt": ~(below | (one << lane)) & np.uint64(0xFFFFFFFF),
            "smid": self.cta_of % 132,
            "nsmid": 132,
            "gridid": 0,
            "dynamic_smem_size": shared_bytes,
            "total_smem_size": shared_bytes + 1024,
        }
        return values[stem]
