"""Linear bounded automata as populations whose agents know their neighbours."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.populations.exact_check import ExactCheck, words
from wavetank.protocols.populations.ordered_simulator import OrderedSkipping
from wavetank.protocols.populations.successor_compiler import LinearBoundedAutomaton, SuccessorCompiler
from wavetank.protocols.populations.syntactic_monoid import Automaton

EVEN = LinearBoundedAutomaton.from_automaton(Automaton.from_regex("(aa)*", "a"))
ALTERNATING = LinearBoundedAutomaton.from_automaton(Automaton.from_regex("(ab)*", "ab"))
HALVES = LinearBoundedAutomaton.nested("ab", [("a", "b")])
PALINDROMES = LinearBoundedAutomaton.nested("ab", [("a", "a"), ("b", "b")], odd=True)


def halves(word):
    return len(word) % 2 == 0 and list(word) == ["a"] * (len(word) // 2) + ["b"] * (len(word) // 2)


CASES = [
    ("even", EVEN, "a", lambda word: len(word) % 2 == 0, 4),
    ("alternating", ALTERNATING, "ab", lambda word: list(word) == list("ab") * (len(word) // 2), 4),
    ("halves", HALVES, "ab", halves, 3),
    ("palindromes", PALINDROMES, "ab", lambda word: tuple(word) == tuple(word)[::-1], 3),
]


@pytest.mark.parametrize(("name", "automaton", "letters", "truth", "_"), CASES, ids=lambda each: str(each)[:12])
def test_the_automata_decide_their_languages(name, automaton, letters, truth, _):
    assert all(automaton.accepts(word) == truth(word) for word in words(letters, 9))


@pytest.mark.parametrize(("name", "automaton", "letters", "truth", "longest"), CASES, ids=lambda each: str(each)[:12])
def test_every_fair_run_of_short_words_ends_with_the_truth(name, automaton, letters, truth, longest):
    protocol = SuccessorCompiler().compile(automaton, name)
    assert protocol.predicates == ("<", "+1")
    for word in words(letters, longest):
        verdict = ExactCheck().decide(protocol, word)
        assert verdict.decided
        assert verdict.output == int(truth(word))


@pytest.mark.parametrize(("name", "automaton", "letters", "truth", "_"), CASES, ids=lambda each: str(each)[:12])
def test_runs_of_longer_words_end_silent_with_the_truth(name, automaton, letters, truth, _):
    protocol = SuccessorCompiler().compile(automaton, name)
    rng = np.random.default_rng(5)
    drawn = ["".join(rng.choice(list(letters), 11)) for _ in range(3)]
    for word in [*drawn, "a" * 10, *(["aaabbb", "abbaabba", "ababab"] if letters == "ab" else [])]:
        run = OrderedSkipping().run(protocol, word, interactions=10**12, seed=2)
        assert run.silent
        assert run.output == int(truth(word))


def test_a_survivor_that_does_not_start_over_can_be_wrong():
    protocol = SuccessorCompiler().compile(ALTERNATING, "alternating")
    broken = protocol.without("merge")
    outcomes = [
        ExactCheck().decide(broken, word).output == int(ALTERNATING.accepts(word)) for word in words("ab", 3, 2)
    ]
    assert not all(outcomes)


def test_a_letter_in_the_middle_is_allowed_only_when_asked_for():
    assert LinearBoundedAutomaton.nested("ab", [("a", "a")], odd=True).accepts("aaa")
    assert not LinearBoundedAutomaton.nested("ab", [("a", "a")]).accepts("aaa")


def test_automata_that_only_read_leave_the_tape_alone():
    assert not EVEN.writes
    assert HALVES.writes


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ({("s", "a", "middle"): ("s", "a", 1)}, "no such kind of cell"),
        ({("s", "a", "last"): ("s", "a", 1)}, "may not leave the tape"),
        ({("s", "a", "first"): ("s", "a", -1)}, "may not leave the tape"),
        ({("s", "a", "inside"): ("s", "a", 2)}, "may not leave the tape"),
        ({("s", "a", "inside"): ("rewind", "a", 1)}, "uses this state itself"),
    ],
)
def test_steps_that_no_head_can_make_are_refused(steps, says):
    with pytest.raises(BadValueError, match=says):
        LinearBoundedAutomaton(("a",), "s", steps)


def test_an_automaton_that_does_not_stop_is_refused():
    endless = LinearBoundedAutomaton(("a",), "s", {("s", "a", cell): ("s", "a", 0) for cell in ("only", "first")})
    with pytest.raises(BadValueError, match="does not stop"):
        endless.accepts("a", most_steps=100)
    with pytest.raises(BadValueError, match="does not stop on one cell"):
        SuccessorCompiler().compile(endless, "endless")
