"""Reading the TLA+ subset."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavetank.check.deadline import Deadline
from wavetank.errors import BadFileError
from wavetank.protocols.threshold.expressions import Comparison, Linear
from wavetank.protocols.threshold.parser import parse_automaton, read_automaton
from wavetank.protocols.threshold.preprocess import counter_system
from wavetank.protocols.threshold.properties import safety_properties
from wavetank.protocols.threshold.smt import SmtReachability
from wavetank.protocols.threshold.tla import parse_tla
from wavetank.protocols.threshold.writer import write_automaton

MODEL = r"""---------------- MODULE model ----------------
EXTENDS Integers, FiniteSets
CONSTANTS Processes, NbOfCorrProc, N, T, F
ASSUME NbOfCorrProc = N - F /\ N > 3 * T /\ T >= F
VARIABLES ProcessesLocations, x, y
(* what
   is what *)
TypeOk == x \in Nat /\ y \in Nat
    /\ ProcessesLocations \in [Processes -> {"a", "b"}]
Init == ProcessesLocations \in [Processes -> {"a"}] /\ x = 0 /\ y = 0
Limit == N - T
----------------------------------------------
Rule0(p) == ProcessesLocations[p] = "a"
    /\ (x >= Limit \/ y < 1)
    /\ ProcessesLocations' = [ProcessesLocations EXCEPT ![p] = "b"]
    /\ x' = x + 1
    /\ UNCHANGED <<y>>
Rule1(q) == /\ ProcessesLocations[q] = "b" /\ UNCHANGED x /\ y' = 0
    /\ ProcessesLocations' = [ProcessesLocations EXCEPT ![q] = "a"]
Next == \E p \in Processes: \/ Rule0(p) \/ Rule1(p)
Spec == Init /\ [][Next]_<<ProcessesLocations, x, y>>
InB == Cardinality({p \in Processes : ProcessesLocations[p] = "b"})
Few == x < NbOfCorrProc
safe == (InB = 0) => [](InB = 0 \/ Few)
==============================================
"""


def test_a_module_is_read_as_written() -> None:
    found = parse_tla(MODEL)
    assert (found.name, found.parameters, found.counters, found.locations) == (
        "model", ("N", "T", "F"), ("x", "y"), ("a", "b"),
    )  # fmt: skip
    first, second = found.rules
    assert (first.name, first.source, first.target, first.line) == ("0", "a", "b", 13)
    assert str(first.guard) == "(x >= N - T) || (y < 1)"
    assert first.updates == (("x", Linear.of({"x": 1}, 1)),)
    assert second.updates == (("y", Linear()),)
    assert [str(item) for item in found.assumptions] == ["N > 3 * T", "T >= F"]
    assert found.initial[0] == Comparison(Linear.name("a"), "==", Linear.of({"N": 1, "F": -1}))
    assert str(found.initial[1]) == "b == 0"
    ((name, formula),) = found.specifications
    assert name == "safe"
    assert "x < N - F" in str(formula)


def test_a_module_can_be_written_in_the_other_language() -> None:
    found = parse_tla(MODEL)
    again = parse_automaton(write_automaton(found))
    assert again.rules == found.rules
    assert again.specifications == found.specifications


def test_rules_that_next_does_not_name_are_none() -> None:
    assert [rule.name for rule in parse_tla(MODEL.replace(r"\/ Rule1(p)", "")).rules] == ["0"]


@pytest.mark.parametrize(
    ("old", "new", "says", "place"),
    [
        (r"\/ Rule1(p)", r"\/ Rule7(p)", "'Rule7', which is not defined", "line 20, column 44"),
        ("UNCHANGED <<y>>", "x' = x + 1", "what becomes of y", "line 13, column 1"),
        ("x' = x + 1", "x' = x + 1 /\\ x' = x", "gets two values", "line 16, column 22"),
        ('EXCEPT ![p] = "b"', 'EXCEPT ![p] = "c"', "'c' is not declared", "line 15, column 64"),
        ('[Processes -> {"a"}]', '[Processes -> {"c"}]', "'c' is not declared", "line 10, column 47"),
        ("x >= Limit", "x >= Limits", "'Limits' is not declared", "line 14, column 14"),
        ("NbOfCorrProc = N - F /\\", "", "No assumption says", "line 26, column 1"),
        ("TypeOk == x", "TypeOk == z", "'z' is not declared", "line 8, column 11"),
        ("Next == ", "Nxt == ", "Expected a name", "line 20, column 8"),
        ('ProcessesLocations[p] = "a"', "x >= 0", "does not say ProcessesLocations", "line 13, column 1"),
        ("Few == x", "InB == x", "defined twice", "line 23, column 1"),
        ("Rule1(q)", "Rule0(q)", "defined twice", "line 18, column 1"),
        ("N, T, F", "N, T, N", "declared twice", "line 3, column 42"),
        ('{"a", "b"}', '{"a", "a"}', "comes twice", "line 9, column 51"),
        ("(* what", "(* what (", "ok", ""),
        ("   is what *)", "", "does not end", "line 6, column 1"),
    ],
)
def test_a_malformed_module_is_reported_with_line_and_column(old: str, new: str, says: str, place: str) -> None:
    assert old in MODEL
    text = MODEL.replace(old, new)
    if not place:
        assert parse_tla(text) == parse_tla(MODEL)
        return
    with pytest.raises(BadFileError, match=says) as caught:
        parse_tla(text, "model.tla")
    assert caught.value.where == f"model.tla, {place}"


@pytest.mark.parametrize("gone", ["Processes, ", "ProcessesLocations, x", "Init == ", "TypeOk == "])
def test_a_module_that_lacks_something_is_refused(gone: str) -> None:
    with pytest.raises(BadFileError):
        parse_tla(MODEL.replace(gone, gone[-1:] if gone.endswith("x") else "", 1))


def test_every_cut_of_a_module_is_refused_politely() -> None:
    body = MODEL[: MODEL.index("InB ==")]
    for end in range(0, len(body) - 80, 3):
        with pytest.raises(BadFileError):
            parse_tla(body[:end])


def with_list(text: str) -> str:
    return MODEL.replace("ASSUME NbOfCorrProc = N - F /\\ N > 3 * T /\\ T >= F", text)


def test_items_behind_bullets_of_one_column_are_in_parentheses() -> None:
    listed = with_list("""ASSUME
  /\\ NbOfCorrProc = N - F
  /\\ \\/ N > 3 * T
     \\/ /\\ N = 7
        /\\ T = 3
  /\\ T >= F""")
    # Read as one row of operators, "or" would let T >= F go.
    assert [str(item) for item in parse_tla(listed).assumptions] == ["(N > 3 * T) || ((N == 7) && (T == 3))", "T >= F"]
    in_row = with_list("ASSUME NbOfCorrProc = N - F /\\ (N > 3 * T \\/ (N = 7 /\\ T = 3)) /\\ T >= F")
    assert parse_tla(listed).assumptions == parse_tla(in_row).assumptions


def test_a_list_inside_a_rule_ends_where_the_next_item_begins() -> None:
    guard = """/\\ \\/ x >= Limit
       \\/ y < 1
    /\\ (/\\ x < 9
        /\\ y < 9)"""
    found = parse_tla(MODEL.replace("/\\ (x >= Limit \\/ y < 1)", guard))
    assert str(found.rules[0].guard) == "((x >= N - T) || (y < 1)) && (x < 9) && (y < 9)"
    assert found.rules[0].target == "b"


def test_a_list_without_an_item_is_reported_with_its_place() -> None:
    with pytest.raises(BadFileError, match="Expected a name") as caught:
        parse_tla(with_list("ASSUME\n  /\\ NbOfCorrProc = N - F\n  /\\ )"), "model.tla")
    assert caught.value.where == "model.tla, line 6, column 6"


def verdicts(path: Path) -> dict[str, str]:
    automaton = read_automaton(path)
    found = {}
    for item in safety_properties(automaton):
        if not item.not_checked:
            answers = [
                SmtReachability().decide(counter_system(automaton, query), Deadline(30)).outcome
                for query in item.queries
            ]
            found[item.name] = "violated" if "violated" in answers else max(answers, default="holds")
    return found


@pytest.mark.parametrize("name", ["strb", "frb", "bcrb", "nbacr", "nbacg", "cc", "c1cs", "cf1s"])
def test_both_languages_give_one_verdict(models: Path, name: str) -> None:
    in_tla = verdicts(models / "tla" / f"{name}.tla")
    in_bymc = verdicts(models / "ta" / "isola18" / "handcoded" / f"{name}.ta")
    assert in_tla
    assert set(in_tla.values()) == {"holds"}
    assert {key: value for key, value in in_bymc.items() if key in in_tla} == in_tla
