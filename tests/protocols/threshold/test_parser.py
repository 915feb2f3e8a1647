"""Reading .ta and .eta files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from wavetank.errors import BadFileError
from wavetank.protocols.threshold.expressions import Comparison, Linear
from wavetank.protocols.threshold.parser import parse_automaton, read_automaton
from wavetank.protocols.threshold.writer import write_automaton

MODEL = """/* one */ skel Model {
  local pc;
  shared x, y;
  parameters N, T;
  define LIMIT == N - T;
  assumptions (1) { N > 3 * T; }
  locations (2) { a: [0]; b: [1]; }
  inits (1) { a == N; b == 0; x == 0; y == 0 }
  rules (2) {
    0: a -> b when (x >= LIMIT) do { x' == x + 1; y' := 0 };
    1: b -> a when (true) do { reset(x); unchanged(y); };
  }
  specifications (1) { safe: [](b == 0) }
} // end
"""


def test_a_model_is_read_as_written() -> None:
    found = parse_automaton(MODEL)
    assert (found.name, found.parameters, found.counters, found.locations) == (
        "Model", ("N", "T"), ("x", "y"), ("a", "b"),
    )  # fmt: skip
    first, second = found.rules
    assert (first.name, first.source, first.target, first.line) == ("0", "a", "b", 10)
    assert first.guard == Comparison(Linear.name("x"), ">=", Linear.of({"N": 1, "T": -1}))
    assert first.updates == (("x", Linear.of({"x": 1}, 1)), ("y", Linear()))
    assert second.updates == (("x", Linear()),)
    assert [name for name, _ in found.specifications] == ["safe"]
    assert found.location_values == ((0,), (1,))


def test_published_liberties_are_taken() -> None:
    text = MODEL.replace("skel", "thresholdAutomaton").replace("assumptions (1)", "assume (0)")
    text = text.replace("local pc;", "").replace("1: b -> a", "0: b -> a").replace("(true)", "(1)")
    # An update wins over an "unchanged" that contradicts it.
    text = text.replace("reset(x); unchanged(y);", "unchanged(x, y); x' == 0")
    assert parse_automaton(text).rules == tuple(
        type(rule)("0", rule.source, rule.target, rule.guard, rule.updates) for rule in parse_automaton(MODEL).rules
    )


@pytest.mark.parametrize(
    ("old", "new", "says", "place"),
    [
        ("skel", "skeleton", "Expected skel or ta", "line 1, column 11"),
        ("LIMIT)", "LIMITS)", "'LIMITS' is not declared", "line 10, column 26"),
        ("x >= LIMIT", "a >= LIMIT", "'a' is a location, which a guard cannot use", "line 10, column 21"),
        ("N > 3 * T", "N > 3 * x", "'x' is a counter, which an assumption cannot use", "line 6, column 29"),
        ("N > 3 * T", "N > T * N", "not linear", "line 6, column 27"),
        ("0: a -> b", "0: a -> c", "'c' is not declared", "line 10, column 13"),
        ("0: a -> b", "zero: a -> b", "Expected the number of a rule", "line 10, column 5"),
        ("x' == x + 1; y'", "x' == x + 1; z'", "'z' is not declared", "line 10, column 51"),
        ("x' == x + 1; y'", "x' == x + 1; x'", "gets two values", "line 10, column 51"),
        ("b: [1]", "b: [1; 2]", "gives 2 values for 1 local", "line 7, column 27"),
        ("b: [1]", "a: [1]", "'a' is declared twice", "line 7, column 27"),
        ("shared x, y", "shared x, when", "is a word of the language", "line 3, column 13"),
        ("a: [0]; b: [1];", "", "has no locations", "line 7, column 20"),
        ("safe: [](b == 0)", "safe: [](b == 0); safe: [](a == 0)", "Two specifications", "line 13, column 42"),
        ("a == N;", "<>(a == N);", "belong into specifications", "line 8, column 15"),
        ("when (x >= LIMIT)", "when ([](x >= LIMIT))", "belong into specifications", "line 10, column 5"),
        ("when (x >= LIMIT)", "when x >= LIMIT", "Expected \\(", "line 10, column 20"),
        ("rules (2) {", "rules (2) ", "Expected {", "line 10, column 5"),
        ("} // end", "", "Expected local or shared", "line 15, column 1"),
        ("specifications (1)", "rules (1) { } rules (1)", "comes twice", "line 13, column 3"),
        ("y == 0 }", "y == 0 y }", "Expected ; or }", "line 8, column 46"),
    ],
)
def test_a_malformed_file_is_reported_with_line_and_column(old: str, new: str, says: str, place: str) -> None:
    assert old in MODEL
    with pytest.raises(BadFileError, match=says) as caught:
        parse_automaton(MODEL.replace(old, new), "model.ta")
    assert caught.value.where == f"model.ta, {place}"


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(BadFileError) as caught:
        parse_automaton(MODEL.replace("LIMIT)", "LIMITT)"))
    assert caught.value.nearest == "LIMIT"
    with pytest.raises(BadFileError) as caught:
        parse_automaton(MODEL.replace("rules (2)", "rule (2)"))
    assert caught.value.nearest == "rules"


def test_a_macro_with_counters_is_no_assumption() -> None:
    text = MODEL.replace("define LIMIT == N - T;", "define LIMIT == N - T; define SUM == x + y;")
    assert parse_automaton(text.replace("x >= LIMIT", "SUM >= LIMIT")).rules[0].guard == Comparison(
        Linear.of({"x": 1, "y": 1}), ">=", Linear.of({"N": 1, "T": -1})
    )
    with pytest.raises(BadFileError, match="'SUM' holds counters"):
        parse_automaton(text.replace("N > 3 * T", "SUM > 3 * T"))


def test_a_missing_section_is_named() -> None:
    with pytest.raises(BadFileError, match="no section 'rules'"):
        parse_automaton("skel M { parameters N; locations (0) { a: [0]; } }")


def test_every_cut_of_a_file_is_refused_politely() -> None:
    body = MODEL[: MODEL.rindex("}")]
    for end in range(0, len(body), 3):
        with pytest.raises(BadFileError):
            parse_automaton(body[:end])


def test_packed_files_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "model.ta.gz"
    path.write_bytes(gzip.compress(MODEL.encode()))
    assert read_automaton(path) == parse_automaton(MODEL)


def published(models: Path) -> list[Path]:
    found = [path for folder in ("ta", "bymc") for path in sorted((models / folder).rglob("*")) if path.is_file()]
    return [path for path in found if path.name.removesuffix(".gz").endswith((".ta", ".eta"))]


def test_published_models_survive_writing_and_reading(models: Path) -> None:
    tried = 0
    for path in published(models):
        if path.stat().st_size < 20_000 and "promela" not in path.parts:
            automaton = read_automaton(path)
            assert parse_automaton(write_automaton(automaton)) == automaton, path
            tried += 1
    assert tried > 20


@pytest.mark.slow
def test_every_published_model_survives_writing_and_reading(models: Path) -> None:
    sizes = {}
    for path in published(models):
        automaton = read_automaton(path)
        assert parse_automaton(write_automaton(automaton)) == automaton, path
        sizes[path.name] = len(automaton.rules)
    assert sizes["cc_case3.ta.gz"] == 6928
