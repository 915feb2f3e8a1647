"""Abstract paths that are real, and paths that are not."""

from __future__ import annotations

import pytest

from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.clock import Deadline, OutOfTimeError
from wavetank.protocols.threshold.counterexample import AbstractRun, concretise, replay
from wavetank.protocols.threshold.error_paths import find_run
from wavetank.protocols.threshold.intervals import IntervalAbstraction
from wavetank.protocols.threshold.preprocess import counter_system
from wavetank.protocols.threshold.properties import safety_properties


def search(automaton: ThresholdAutomaton, needs=lambda context: (), seconds: float = 30) -> AbstractRun | None:
    query = safety_properties(automaton)[0].queries[0]
    system = counter_system(automaton, query)
    clock = Deadline(seconds)
    abstraction = IntervalAbstraction(system, clock)
    found = find_run(system, abstraction, abstraction.forward(), needs, clock)
    if found is not None:
        replay(automaton, query, concretise(system, found))
    return found


def test_a_real_path_becomes_a_run(voting) -> None:
    assert search(voting("N > 2 * T")) is not None


def test_every_path_of_a_safe_model_is_spurious(voting) -> None:
    assert search(voting("N > 3 * T")) is None


def test_what_is_known_of_a_context_cuts_paths_off(voting) -> None:
    # Ten processes in d0 (number 3) are asked for before anything goes on: small runs are cut off, larger ones found.
    found = search(voting("N > 2 * T"), lambda context: ({},))
    assert found is not None
    limited = voting("N > 2 * T; N < 9")
    assert search(limited, lambda context: ({0: 10},)) is None


def test_paths_through_resets_grow_longer_and_longer(rounds) -> None:
    assert search(rounds("N - F")) is not None
    with pytest.raises(OutOfTimeError):
        search(rounds("N - F + 1"), seconds=1.0)
