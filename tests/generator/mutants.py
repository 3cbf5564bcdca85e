"""Specs that nobody should write: a sound one, spoiled at random.

`mutant` takes a source of chance and gives the bytes of a file. Most mutants are one to three changes away
from a spec that is sound: of its entries (dropped, doubled, renamed, moved, of another type), of its text, or
of its bytes. Some stay sound, so that what is generated gets its share of odd choices too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import yaml

from generator.catalog import Catalog


@dataclass
class Map:
    """A mapping: pairs of a key and what it holds, doubled keys and all. Scalars are the text in the file."""

    entries: list[tuple[str, Node]]


@dataclass
class List:
    """A sequence."""

    items: list[Node]


Node = Map | List | str

NUMBERS = (
    *("64", "8", "16", "4", "2", "1", "0", "-1", "17", "1024", "2048", "1048576", "1048577", "2147483648"),
    *("1" + "0" * 40, "9" * 5000, "-" + "9" * 99, "+8", "08", "010", "0o20", "0x10", "1_000", "1:30", "0b1"),
    *("8.0", "1e3", "1e999", "-1e-999", ".5", "8.", ".inf", "-.inf", ".nan", "nan", "inf", "1.2.3", "٨"),
)
"""Numbers, and what other readers take for one."""

WORDS = (
    *("true", "false", "yes", "no", "on", "off", "y", "null", "~", "", "''", '"8"', "'true'", "bf16", "fp8"),
    *("2026-01-01", "2026-01-01T00:00:00Z", "=", "<<", "[]", "{}", "[8]", "{a: 8}", "../x", "/etc/passwd"),
    *("cluster", "split", "dsmem", "plain", "norm_gat", "online", "{stage: dsmem}", "{stage: plain, a: 8}"),
    *("batch", "stream"),
    *("{stage: cp_async_ring, depth: 7}", "__import__('os')", "class", "None", "a" * 200, "é", "😀", "ﬁ"),
    *('"\\0"', '"\\ud800"', '"\\x85"', '"\\Uffffffff"', '"\\u202e"', "{{ 8 }}", "%d", "\u202e", "\ufeff8"),
)
"""Words, types and characters that a value may be taken for."""

TAGGED = (
    *("!!int ", "!!str ", "!!float ", "!!bool ", "!!null ", "!!binary ", "!!set ", "!!timestamp ", "!x "),
    *("!!python/object/apply:os.system ", "!!python/name:os.system ", "!<tag:yaml.org,2002:int> ", "!<> "),
    *("! ", "&a ", "&a !!int ", "*a ", "*a #", "| ", ">-\n", "? ", "- ", "@", "`", "%", "\t", "&", "*", "!"),
)
"""What may stand before a value."""

NAMES = (
    *("a-b c", "../x", "/tmp/x", "''", "class", "def", "_", "__init__", "torch", "cutlass", "attn2", "x_1"),
    *("Attn", "2d", "é", "a" * 41, "a" * 2000, "<<", "8", "true", "null", "~", "[a]", "{a: 8}", "? a", "con"),
    *("kernel", "VARIANTS", "prepare", "bind", "math", "print", "stage", "depth", "attn2.py", '"a\\nb"'),
)
"""Names of modules, variants, slots and parameters, and what is no name."""

CHOICES = {
    "cluster": [str(n) for n in range(1, 17)],
    "warps": ["1", "2", "4", "8"],
    "pages_per_step": ["1", "2"],
    "short_rounds": ["1", "3", "8", "64"],
    "depth": ["2", "4", "8", "16", "32"],
    "max_seq_len": ["1", "16", "777", "2048", "16384", "1048576"],
    "window": ["true", "false"],
    "epilogue": list(Catalog.load().by_slot["epilogue"]),
    "ring": ["cp_async_ring", "bulk_ring", "{stage: bulk_ring, depth: 4}"],
    "head_dim": ["32", "64", "128"],
    "tokens": ["4", "8"],
    "page_size": ["16", "32", "64"],
    "heads_per_kv": ["4", "8"],
}
"""For some keys, values that are allowed somewhere or nearly so."""

PIECES = (
    *NUMBERS[:20],
    *WORDS,
    *TAGGED,
    *"{}[]:,#'\"\\\n\r",
    ": ",
    "\n  ",
    "---\n",
    "...\n",
    "%YAML 9.9\n",
    "\x00",
)


def tree_of(text: str) -> Node:
    """A sound spec as a tree."""
    return _node(yaml.compose(text, yaml.SafeLoader))


def _node(node: yaml.Node) -> Node:
    if isinstance(node, yaml.MappingNode):
        return Map([(key.value, _node(value)) for key, value in node.value])
    if isinstance(node, yaml.SequenceNode):
        return List([_node(item) for item in node.value])
    return str(node.value)


def text_of(node: Node, random: Random) -> str:
    """A tree as YAML, partly in flow style."""
    return "".join(_block(node, 0, random)).lstrip("\n")


def _block(node: Node, depth: int, random: Random) -> Iterator[str]:
    if isinstance(node, str) or depth > 40 or (depth > 2 and random.random() < 0.3):
        yield f" {_flow(node)}\n"
        return
    yield "\n"
    parts = node.entries if isinstance(node, Map) else [("-", item) for item in node.items]
    for key, value in parts:
        yield "  " * depth + (key if isinstance(node, List) else f"{key}:")
        yield from _block(value, depth + 1, random)


def _flow(node: Node) -> str:
    if isinstance(node, Map):
        return "{" + ", ".join(f"{key}: {_flow(value)}" for key, value in node.entries) + "}"
    return "[" + ", ".join(map(_flow, node.items)) + "]" if isinstance(node, List) else node


def _maps(node: Node) -> Iterator[Map]:
    """All mappings of a tree that hold something."""
    if isinstance(node, Map):
        if node.entries:
            yield node
        for _, value in node.entries:
            yield from _maps(value)
    elif isinstance(node, List):
        for item in node.items:
            yield from _maps(item)


def _slip(name: str, random: Random) -> str:
    """A name with a letter lost, doubled or changed."""
    at = random.randrange(len(name) + 1)
    return name[:at] + random.choice(["", name[at : at + 1] * 2, "x", "_", " ", "É"]) + name[at + 1 :]


# ---- changes of the tree, each of one entry ----------------------------------------------------------


def choose(tree: Node, random: Random) -> None:
    """Another choice where there is one: what stays sound, and what misses it by a little."""
    places = [(m, i) for m in _maps(tree) for i, (key, _) in enumerate(m.entries) if key in CHOICES]
    if places:
        mapping, i = random.choice(places)
        key, value = mapping.entries[i]
        if key != "cluster" or isinstance(value, str):
            mapping.entries[i] = (key, random.choice(CHOICES[key]))


def add(tree: Node, random: Random) -> None:
    """An entry once more, under another name."""
    for _, mapping, (_, value) in _entry(tree, random):
        mapping.entries.append((random.choice(NAMES), copy.deepcopy(value)))


def drop(tree: Node, random: Random) -> None:
    for i, mapping, _ in _entry(tree, random):
        del mapping.entries[i]


def double(tree: Node, random: Random) -> None:
    for i, mapping, (key, value) in _entry(tree, random):
        mapping.entries.insert(random.randint(0, i), (key, copy.deepcopy(value)))


def rename(tree: Node, random: Random) -> None:
    for i, mapping, (key, value) in _entry(tree, random):
        mapping.entries[i] = (random.choice([_slip(key, random), random.choice(NAMES)]), value)


def retype(tree: Node, random: Random) -> None:
    for i, mapping, (key, _) in _entry(tree, random):
        mapping.entries[i] = (key, random.choice(random.choice([NUMBERS, WORDS])))


def decorate(tree: Node, random: Random) -> None:
    """A tag, an anchor, an alias or an indicator before a value."""
    for i, mapping, (key, value) in _entry(tree, random):
        shown = value if isinstance(value, str) else random.choice(WORDS)
        mapping.entries[i] = (key, random.choice(TAGGED) + shown)


def move(tree: Node, random: Random) -> None:
    """An entry to another mapping, or to another place in its own."""
    for i, mapping, entry in _entry(tree, random):
        del mapping.entries[i]
        target = random.choice([mapping, *_maps(tree)])
        if target is not entry[1]:
            target.entries.insert(random.randint(0, len(target.entries)), entry)


def nest(tree: Node, random: Random) -> None:
    """A value some, or far too many, levels further down."""
    for i, mapping, (key, value) in _entry(tree, random):
        for _ in range(random.choice([1, 2, 30, 60])):
            value = random.choice([Map([(key, value)]), List([value])])
        mapping.entries[i] = (key, value)


def flood(tree: Node, random: Random) -> None:
    """Thousands of values in place of one."""
    for i, mapping, (key, value) in _entry(tree, random):
        count = random.choice([100, 3000, 30000])
        leaf = value if isinstance(value, str) else "1"
        many = Map([(f"a{n}", leaf) for n in range(count)])
        mapping.entries[i] = (key, random.choice([many, Map([(key, leaf)] * count), List([leaf] * count)]))


def _entry(tree: Node, random: Random) -> Iterator[tuple[int, Map, tuple[str, Node]]]:
    """One entry of the tree: its place, its mapping and itself; nothing where the tree has none."""
    maps = list(_maps(tree))
    if maps:
        mapping = random.choice(maps)
        i = random.randrange(len(mapping.entries))
        yield i, mapping, mapping.entries[i]


TREE_CHANGES: tuple[Callable[[Node, Random], None], ...] = (
    *(choose,) * 8,
    *(add, drop, double, rename, retype, decorate, move) * 2,
    *(nest, flood),
)


# ---- changes of the text and of the bytes ------------------------------------------------------------


def cut_and_paste(text: str, random: Random) -> str:
    """A piece cut out, repeated or put in."""
    start = random.randint(0, len(text))
    end = random.choice([start, min(len(text), start + random.randint(0, 30))])
    piece = random.choice([random.choice(PIECES), text[start:end] * 2, chr(random.randrange(0x110000))])
    return text[:start] + piece + text[end:]


def bomb(text: str, random: Random) -> str:
    """Aliases of aliases, which multiply where they are followed."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, random.randint(2, 40))]
    return "\n".join(random.choice([[*lines, text], [text, *lines]]))


def repeat(text: str, random: Random) -> str:
    """Some characters very often, somewhere."""
    at = random.randint(0, len(text))
    return text[:at] + random.choice(PIECES) * random.choice([10, 1000, 50000]) + text[at:]


TEXT_CHANGES: tuple[Callable[[str, Random], str], ...] = (*(cut_and_paste,) * 12, bomb, repeat)


STRANGE = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x00", b"\x1b[2J", b"\xc2\x85")
ENCODINGS = ("utf-16", "utf-16-be", "utf-32", "utf-7", "utf-8-sig")


def _other_bytes(content: bytes, random: Random) -> bytes:
    at = random.randint(0, len(content))
    return content[:at] + random.choice(STRANGE) + content[at + random.randint(0, 3) :]


def _other_encoding(content: bytes, random: Random) -> bytes:
    text = content.decode("utf-8", errors="replace")
    return text.encode(random.choice(ENCODINGS), errors="replace")


BYTE_CHANGES: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(_other_bytes,) * 4,
    _other_encoding,
    lambda content, random: content.replace(b"\n", random.choice([b"\r\n", b"\r", b"\n\n", b"\x0b\n"])),
    lambda content, random: content[: random.randint(0, len(content))],
    lambda content, random: random.randbytes(random.randint(0, 200)),
)


def mutant(spec: str, random: Random) -> bytes:
    """A spoiled copy of a sound spec."""
    level = random.choice(["tree"] * 6 + ["text"] * 3 + ["bytes"])
    text = spec
    if level == "tree":
        tree = tree_of(spec)
        for _ in range(random.choice([1, 1, 1, 2, 3])):
            random.choice(TREE_CHANGES)(tree, random)
        text = text_of(tree, random)
    elif level == "text":
        for _ in range(random.randint(1, 3)):
            text = random.choice(TEXT_CHANGES)(text, random)
    content = text.encode("utf-8", errors="surrogatepass")
    return random.choice(BYTE_CHANGES)(content, random) if level == "bytes" else content
