"""The linker: what it takes from workshop modules, and what it refuses."""

import ast
import textwrap

import pytest

from generator.link import Linker, LinkError, parse


@pytest.fixture
def workshop(tmp_path):
    """A linker over modules that a test writes."""
    (tmp_path / "stages").mkdir()

    def write(**modules):
        for name, text in modules.items():
            text = f'"""The contract of {name}."""\n' + textwrap.dedent(text)
            (tmp_path / "stages" / f"{name}.py").write_text(text)
        return Linker(tmp_path)

    return write


def names(linked):
    return [(section.module.name, [d.name for d in section.definitions]) for section in linked.sections]


def test_takes_what_is_used_and_nothing_else(workshop):
    """Definitions come in the order in which they are needed, unused ones and unused imports don't."""
    linker = workshop(
        base="""
            import math
            import os

            LIMIT = 3
            UNUSED = os.sep

            def used(x):
                return math.sqrt(x) + LIMIT

            def unused(x):
                return used(x)
            """,
        top="""
            from stages.base import unused, used

            class Top:
                def run(self, x):
                    return used(x)

            CONTRACT = unused
            """,
    )
    linked = linker.link([("stages.top", "Top")])
    assert names(linked) == [("stages.base", ["LIMIT", "used"]), ("stages.top", ["Top"])]
    assert [(i.module, i.symbol) for i in linked.imports] == [("math", None)]


def test_text_is_verbatim(workshop):
    """Decorators, docstrings, comments inside and right above a definition come along, letter by letter."""
    source = textwrap.dedent('''
        # Why it is so.
        @property
        def odd(  x ):
            """What it does."""
            # and how
            return x   # spaced
        ''').strip("\n")
    linker = workshop(
        one="\n# A heading of the module.\n\n" + source + "\n\nHALF = 0.5\n'''Half.'''\nREST = 1\n"
    )
    linked = linker.link([("stages.one", "odd"), ("stages.one", "HALF")])
    assert [d.text for d in linked.sections[0].definitions] == [source, "HALF = 0.5\n'''Half.'''"]


@pytest.mark.parametrize(
    ("code", "uses"),
    [
        ("def f(a: A, b=B, *, c: C = D) -> E:\n    return a + b + c + F", "ABCDEF"),
        ("@G\ndef f():\n    H = 1\n    return H", "G"),
        ("def f():\n    return [I for I in J]", "J"),
        ("def f():\n    return lambda K: K + L", "L"),
        ("def f():\n    def M():\n        return N\n    return M()", "N"),
        ("class f(O):\n    p: P = Q\n    def g(self):\n        return R", "OPQR"),
        ("f = S + 1", "S"),
    ],
)
def test_finds_the_names_that_a_definition_reads(code, uses):
    """Names bound within a definition are its own; annotations, defaults, decorators and bases are not."""
    used = parse("m", '"""Doc."""\n' + code).definitions["f"].uses
    assert {name for name in used if len(name) == 1 and name.isupper()} == set(uses)


def test_two_definitions_of_one_name_are_refused(workshop):
    """All modules end up side by side, so a name can have one meaning only."""
    linker = workshop(
        a="def twice(x):\n    return 2 * x\n",
        b="def twice(x):\n    return x + x\n",
    )
    with pytest.raises(LinkError) as error:
        linker.link([("stages.a", "twice"), ("stages.b", "twice")])
    assert str(error.value) == (
        "'twice' is both a definition of stages/a.py and a definition of stages/b.py; rename one of them"
    )


def test_a_definition_must_not_hide_an_import(workshop):
    """A function called like another module's import would replace it."""
    linker = workshop(
        a="import math\ndef a():\n    return math.pi\n",
        b="def math():\n    return 3\n",
    )
    with pytest.raises(LinkError, match="'math' is both `import math` and a definition of stages/b"):
        linker.link([("stages.a", "a"), ("stages.b", "math")])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("from stages.x import y as z", "m, line 2: write `from stages.x import name`, without an alias"),
        ("import stages.x", "m, line 2: write `from stages.x import name`, without an alias"),
        ("from . import y", "m, line 2: relative imports cannot be linked"),
        ("print(1)", "m, line 2: only imports, functions, classes and constants can be linked"),
        ("a, b = 1, 2", "m, line 2: a constant must be assigned to a plain name"),
        ("def f(:", "m, line 2: not valid Python"),
    ],
)
def test_what_cannot_be_linked_is_refused(code, message):
    """A construction that the linker would get wrong is an error, not a guess."""
    with pytest.raises(LinkError) as error:
        parse("m", '"""Doc."""\n' + code)
    assert str(error.value) == message


def test_a_module_needs_its_contract():
    """A workshop module without a docstring has no banner to give."""
    with pytest.raises(LinkError, match=r"^m: a workshop module opens with a docstring"):
        parse("m", "A = 1")


def test_missing_names_are_named(workshop):
    """An import of something that a module does not have is found when it is linked."""
    linker = workshop(a="A = 1\n", b="from stages.a import B\n\nC = B\n")
    with pytest.raises(LinkError, match=r"stages/a.py has no definition of 'B'"):
        linker.link([("stages.b", "C")])
    with pytest.raises(LinkError, match=r"module stages\.none cannot be read"):
        linker.link([("stages.none", "x")])


def test_every_stage_links_and_parses():
    """Each stage of the workshop, alone, becomes Python that compiles."""
    from generator.catalog import Catalog

    for entry in Catalog.load().stages():
        linked = Linker().link([(entry.module, entry.contract.stage.__name__)])
        text = "\n".join(d.text for s in linked.sections for d in s.definitions)
        assert ast.parse(text)
        assert "CONTRACT" not in text
