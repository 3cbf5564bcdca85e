"""The generated kernel beside what an engine would run instead, in one run on one GPU.

    python -m benchmarks.decode                                     # all loads, everything that is installed
    python -m benchmarks.decode --loads uneven --seeds 3            # some loads, with more seeds
    python -m benchmarks.decode --shapes "1 1 512" "8 2 8192 2048"  # others: R H L [W]
    python -m benchmarks.decode --fa3 _vllm_fa3_C.abi3.so --json result.json --plots plots
    python -m benchmarks.plots result.json --out plots              # later, without a GPU

Loads (`benchmarks/loads.py`)
    points     18 batches whose requests have one length, up to 131,072 entries, with and without a window
    uneven     six whose requests differ, four of them random; `--seeds` adds draws of these

    Each is run with the deployment that fits, whose `max_seq_len` is the longest length, and with one of
    131,072 entries (`--deployment`): an engine is deployed for what it may have to serve.

Contenders (`benchmarks/contenders`)
    ours         the module's fused kernel, by a call that names no variant and no number of splits
    ours-named   by what `default_variant` and `default_splits` recommend for the number of requests
    ours:NAME    by the variant NAME, with `--variants`
    fa3          FlashAttention 3 as vLLM ships it, then a Triton norm-gate kernel: the same function as ours
    fi-fa2       FlashInfer's paged prefill with its fa2 backend, then the norm-gate kernel
    fi-xqa       FlashInfer's XQA in speculative mode, then the norm-gate kernel
    fa4          FlashAttention 4 (`flash_attn.cute`), then the norm-gate kernel
    vllm         vLLM's Triton unified attention, then the norm-gate kernel
    page-read    a Triton kernel that only reads the live pages: the limit
    fa3-alone, ..., norm-gate: the parts of these pairs, where `--contenders` asks for them

    FlashAttention 3 is the library `vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so` of a vLLM wheel (0.33 was
    used). It is taken from `--fa3`, else from the environment variable STAGEWRIGHT_FA3_LIBRARY, else from an
    installed vLLM. FlashInfer's modules are used where they are built; `--build` lets it compile them. What
    is not there is named in the report with the reason, and the rest is measured.

Method
    One CUDA graph a contender holds 64 calls, like 64 layers of a model: q, gate, block table and lengths
    are shared, every call reads its own KV cache and writes its own output. The pages of a cache lie in
    random order. Before each replay a buffer of four times the L2 is read, so each call finds its pages in
    device memory, whatever the size of the load. That read is outside the timed interval; it also gives
    the host the time to enqueue the graph, so no launch latency is measured. Large loads whose 64 caches
    would not fit share fewer caches, in turn, several gigabytes in all.

    A call's time is the graph's time between two CUDA events over 64. Contenders are interleaved, one replay
    each a round, in alternating order, so a drift of the clocks meets all of them. The table gives the
    median over the rounds, the file of `--json` percentiles too. `--budget` limits the run: its seconds are
    shared by the rows, each of which has 20 rounds at least, and `--replays` at most. One contender is timed
    twice in every round: the difference of its two medians is the noise, and a difference between two
    contenders that is not well above it means nothing.

    Nothing is timed before it is right. The very graph that is timed is replayed into outputs filled with
    NaN and its first and last call are compared with a float64 reference, row by row and head by head; all
    other calls must have written finite numbers. A contender that fails is reported and left out.

    The page-read limit is measured in the same rounds: whole pages of the load, with a window only those
    that hold a visible key, through the live entries of the block table, gathered beforehand, with a
    checksum that is compared. The fastest of several grids and block sizes is picked for each load. It is a
    practical limit: a kernel that reads the same bytes in another way may be a little faster.

Fairness
    Included for everyone: what runs on the device for one layer of one step. Excluded for everyone: host
    work (a graph replay has none), compilation, preparation. FlashAttention 3's scheduler metadata is
    computed once outside the graph, because vLLM computes it once a step for all layers, and so is
    FlashInfer's plan, which is made for exactly the lengths of the load; whatever their calls launch
    otherwise (combining partial results, clearing semaphores) is in. FlashAttention 3 is called as vLLM calls
    it: causal, paged, variable-length queries, its own heuristics for the number of splits and the packing of
    query heads. All contenders are told the longest context of the deployment, where they have a parameter
    for it. All read the same packed cache (peers through strided views of its K and V halves) and the same
    slices of one fused row [q | k | v | gate], but for XQA, which needs a contiguous q and gets it for
    nothing. The norm-gate kernel picks its block size by measurement for each size. `--pdl` turns
    programmatic dependent launch on in ours and in the norm-gate kernel alike; peers use it inside their own
    calls either way.
"""
