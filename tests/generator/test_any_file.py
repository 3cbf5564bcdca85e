"""No file breaks the generator, whatever is in it."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from generator.document import parse_document
from generator.errors import SpecError
from generator.plan import resolve
from generator.spec import check_format
from tests.generator.fakes import SPEC

PIECES = [
    *("64", "-1", "0", "17", "1e9", "99999999999999999999999", "true", "null", "~", "''", "'8'"),
    *("cluster", "dsmem", "plain", "{stage: dsmem}", "../x"),
    *("{", "}", "[", "]", ":", ": ", ",", "- ", "? ", "|\n", ">\n", "#", "'", '"', "\\", "\n", "\n  ", "\t"),
    *("&a ", "*a", "<<: ", "!!str ", "!x ", "---\n", "...", "%YAML 9.9\n", "\x00", "\ud7ff", "😀"),
]


@st.composite
def mutated_specs(draw) -> bytes:
    """The sound spec with a few pieces cut out, repeated or put in."""
    text = SPEC
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.one_of(st.just(start), st.integers(start, min(len(text), start + 30))))
        piece = draw(st.one_of(st.sampled_from(PIECES), st.just(text[start:end] * 2), st.text(max_size=4)))
        text = text[:start] + piece + text[end:]
    content = text.encode("utf-8", errors="surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(content)))
        content = content[:at] + draw(st.binary(max_size=4)) + content[at:]
    return content


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(mutated_specs(), st.binary(max_size=60)))
def test_no_file_breaks_the_generator(catalog, content):
    """There is a plan in it or a list of problems, each on a line that can be printed."""
    try:
        resolve(check_format(parse_document(content, "spec.yaml")), catalog)
    except SpecError as error:
        assert error.problems
        for problem in error.problems:
            str(problem).encode("utf-8")
            assert len(str(problem).splitlines()) == 1
            assert 1 <= problem.line <= content.count(b"\n") + content.count(b"\r") + 1
            assert problem.column >= 1
