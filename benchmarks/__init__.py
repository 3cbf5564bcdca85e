"""The generated kernel beside what an engine would run instead, in one run on one GPU.

    python -m benchmarks.decode                                     # the default shapes
    python -m benchmarks.decode --shapes "1 1 512" "8 2 2048"       # requests, KV heads, context length
    python -m benchmarks.decode --fa3 _vllm_fa3_C.abi3.so --json result.json

Contenders
    ours       the module's fused kernel: attention, per-head RMS norm and sigmoid gate in one launch
    pair       FlashAttention 3 as vLLM ships it, then a Triton norm-gate kernel: what ours replaces
    fa3        FlashAttention 3 alone
    norm-gate  the Triton kernel alone, on an attention output that is already there

FlashAttention 3 is the library `vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so` of a vLLM wheel (0.33 was used).
It is taken from `--fa3`, else from the environment variable STAGEWRIGHT_FA3_LIBRARY, else from an installed
vLLM. Without it the table says so and the rest is measured.

Method
    One CUDA graph a contender holds 64 calls, like 64 layers of a model: q, gate, block table and lengths
    are shared, every call reads its own KV cache and writes its own output. The pages of a cache lie in
    random order. Before each replay a buffer of four times the L2 is read, so each call finds its pages in
    device memory, whatever the size of the shape. That read is outside the timed interval; it also gives
    the host the time to enqueue the graph, so no launch latency is measured. Large shapes whose 64 caches
    would not fit share fewer caches, in turn, several gigabytes in all.

    A call's time is the graph's time between two CUDA events over 64. Contenders are interleaved, one replay
    each a round, in alternating order, so a drift of the clocks meets all of them. The table gives the
    median over the rounds, and in brackets the 10th and 90th percentile. One contender is timed twice in
    every round: the difference of its two medians is the noise, and a difference between two contenders
    that is not well above it means nothing.

    Nothing is timed before it is right. The very graph that is timed is replayed into outputs filled with
    NaN and its first and last call are compared with a float64 reference, row by row and head by head; all
    other calls must have written finite numbers. A contender that fails is reported and left out.

Fairness
    Included for everyone: what runs on the device for one layer of one step. Excluded for everyone: host
    work (a graph replay has none), compilation, preparation. FlashAttention 3's scheduler metadata is
    computed once outside the graph, because vLLM computes it once a step for all layers; whatever its call
    launches otherwise (its combine kernel, clearing its semaphore) is in. It is called as vLLM calls it:
    causal, paged, variable-length queries, its own heuristics for the number of splits and the packing of
    query heads. It is told the true maximum length, unless `--max-seq-len` gives both sides a longer
    deployment. All contenders read the same packed cache (peers through strided views of its K and V
    halves) and the same slices of one fused row [q | k | v | gate]. The norm-gate kernel picks its block
    size by measurement for each shape. `--pdl` turns programmatic dependent launch on in ours and in the
    norm-gate kernel alike; FlashAttention 3 uses it inside its own call either way.

    GB/s is the keys and values that a call must read over our time; small shapes are bound by latency, and
    there it says little.
"""
