"""Which keys a row sees: the causal rule of a verify step, and a sliding window.

Contract
    The last `tokens` cache entries of a request are the tokens being verified. Token i of a request of
    length L sees keys [0, L - tokens + i]; with a window of W keys, the token's own among them,
    [L - tokens + i - W + 1, L - tokens + i], of which those below 0 are no keys.

    A lane's two rows belong to the tokens of rows g and g + 8 of its row group; `heads_per_kv` is a
    multiple of 8, so that all lanes agree on the two tokens.

    Masking selects. A masked key's score or value may be NaN or Inf, and an addition or a product with
    zero would let it through.

    Any thread may call these; none of them touches memory.
"""

from dataclasses import dataclass

from cutlass import Int32

from stages.fragments import ROWS


@dataclass(frozen=True)
class KeyRange:
    """The keys [first, last] that one row sees; none if last < first. first: None for 0, or below 0."""

    first: Int32 | None
    last: Int32

    def sees(self, key):
        """Whether the row sees this key (an Int32 index into the request's cache entries)."""
        if self.first is None:
            return key <= self.last
        return (key >= self.first) & (key <= self.last)

    def sees_any(self, first_key, keys: int):
        """Whether the row sees one or more of `keys` keys from `first_key` on."""
        if self.first is None:
            return first_key <= self.last
        return (first_key <= self.last) & (first_key + (keys - 1) >= self.first)

    def sees_all(self, first_key, keys: int):
        """Whether the row sees each of `keys` keys from `first_key` on."""
        if self.first is None:
            return first_key + (keys - 1) <= self.last
        return (first_key >= self.first) & (first_key + (keys - 1) <= self.last)


@dataclass(frozen=True)
class CausalMask:
    """The verify step's mask: `key_ranges` gives a lane the keys of its two rows."""

    tokens: int
    heads_per_kv: int
    window: int | None = None

    def key_ranges(self, length: Int32, row_group: Int32) -> tuple[KeyRange, KeyRange]:
        """The keys of rows g and g + 8 of a row group of a request with `length` cache entries."""
        return self._token(length, row_group, 0), self._token(length, row_group, ROWS // 2)

    def _token(self, length, row_group, row_in_group: int) -> KeyRange:
        token = (row_group * ROWS + row_in_group) // self.heads_per_kv
        last = length - self.tokens + token
        if self.window is None:
            return KeyRange(None, last)
        return KeyRange(last - (self.window - 1), last)
