"""NumPy statements of `stages.fragments`: from rows, keys and head dims to registers and lanes, and back.

Each function is written from the layout's description, register by register, not from the stages' code.
Register files are [register, lane]. Lane 4 g + t holds rows g and g + 8 of a row group.
"""

import numpy as np

HEAD_DIM = 64
PAGE_SIZE = 16
ROWS = 16
LANES = np.arange(32)
G, T = LANES // 4, LANES % 4


def dims_of_pair(j: int, e: int) -> np.ndarray:
    """[lane] the head dim that is element e (0 low, 1 high) of pair j: chunks of 8 dims, 32 apart."""
    return 32 * (j // 4) + 8 * T + 2 * (j % 4) + e


def fold_page(columns: np.ndarray) -> np.ndarray:
    """[slots, 64] BF16 bits of K or V of some pages -> [8 a tile of 8 slots, lane] pairs."""
    words = []
    for tile in range(len(columns) // 8):
        for j in range(8):
            low, high = (columns[8 * tile + G, dims_of_pair(j, e)].astype(np.uint32) for e in range(2))
            words.append(low | (high << 16))
    return np.stack(words)


def fold_page_columns(columns: np.ndarray) -> np.ndarray:
    """As `fold_page`, for V in columns: pair j is slots 2t and 2t + 1 of a tile, of dim 8 j + g."""
    words = []
    for tile in range(len(columns) // 8):
        for j in range(8):
            low, high = (columns[8 * tile + 2 * T + e, 8 * j + G].astype(np.uint32) for e in range(2))
            words.append(low | (high << 16))
    return np.stack(words)


def fold_weights(weights: np.ndarray) -> np.ndarray:
    """[16, keys] BF16 bits -> A fragments of m16n8k16, [4 a page of 16 keys, lane] pairs."""
    words = []
    for page in range(weights.shape[1] // 16):
        for register in range(4):
            row, key = G + 8 * (register % 2), 16 * page + 8 * (register // 2) + 2 * T
            words.append(
                weights[row, key].astype(np.uint32) | (weights[row, key + 1].astype(np.uint32) << 16)
            )
    return np.stack(words)


def unfold_weights(words: np.ndarray) -> np.ndarray:
    """The inverse of `fold_weights`."""
    weights = np.zeros((ROWS, 4 * len(words)), np.uint16)
    for i, word in enumerate(words):
        row, key = G + 8 * (i % 2), 16 * (i // 4) + 8 * (i % 4 // 2) + 2 * T
        weights[row, key], weights[row, key + 1] = word & 0xFFFF, word >> 16
    return weights


def fold_scores(scores: np.ndarray) -> np.ndarray:
    """[16, keys] -> C fragments of m16n8, [4 a tile of 8 keys, lane]."""
    registers = [
        scores[G + 8 * (i // 2), 8 * tile + 2 * T + i % 2]
        for tile in range(scores.shape[1] // 8)
        for i in range(4)
    ]
    return np.stack(registers)


def unfold_scores(registers: np.ndarray) -> np.ndarray:
    """The inverse of `fold_scores`."""
    scores = np.zeros((ROWS, 2 * len(registers)), registers.dtype)
    for i, register in enumerate(registers):
        scores[G + 8 * (i % 4 // 2), 8 * (i // 4) + 2 * T + i % 2] = register
    return scores


def fold_output(o: np.ndarray) -> np.ndarray:
    """[16, 64] -> a lane's accumulator, [4 a pair of dims, lane]: two dims of row g, then of row g + 8."""
    return np.stack([o[G + 8 * (i // 2), dims_of_pair(j, i % 2)] for j in range(8) for i in range(4)])


def unfold_output(registers: np.ndarray) -> np.ndarray:
    """The inverse of `fold_output`."""
    o = np.zeros((ROWS, HEAD_DIM), registers.dtype)
    for i, register in enumerate(registers):
        o[G + 8 * (i % 4 // 2), dims_of_pair(i // 4, i % 2)] = register
    return o


def fold_output_columns(o: np.ndarray) -> np.ndarray:
    """[16, 64] -> an accumulator while V comes in columns: tile j has dims 8 j + 2t and 8 j + 2t + 1."""
    return np.stack([o[G + 8 * (i // 2), 8 * j + 2 * T + i % 2] for j in range(8) for i in range(4)])


def fold_rows(values: np.ndarray) -> np.ndarray:
    """[16] a row -> [2, lane]: what the lanes of a row hold alike."""
    return np.stack([values[G], values[G + 8]])
