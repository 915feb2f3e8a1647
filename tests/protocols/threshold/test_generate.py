"""Random automata."""

from __future__ import annotations

import re

from wavetank.protocols.threshold.generate import random_automaton, random_text
from wavetank.protocols.threshold.properties import safety_properties


def test_a_seed_names_one_automaton() -> None:
    assert random_text(7) == random_text(7)
    assert random_automaton(7) == random_automaton(7)
    assert random_text(7) != random_text(8)
    assert len({random_text(seed) for seed in range(50)}) == 50


def test_drawn_automata_are_small_and_ask_for_safety() -> None:
    for seed in range(50):
        automaton = random_automaton(seed)
        assert 3 <= len(automaton.locations) <= 6
        assert 1 <= len(automaton.counters) <= 3
        assert len(automaton.rules) <= 8
        assert all(not item.not_checked for item in safety_properties(automaton))
        assert automaton.has_only_increments


def test_resets_are_drawn_where_they_are_asked_for() -> None:
    assert any(not random_automaton(seed, resets=True).has_only_increments for seed in range(20))


def test_differences_are_drawn_where_they_are_asked_for() -> None:
    texts = [random_text(seed, differences=True) for seed in range(30)]
    assert any(re.search(r"x\d - (2 \* )?x\d", text) for text in texts)
    assert any("x0 <= N;" in text for text in texts)
    assert not any(re.search(r"x\d - (2 \* )?x\d|x0 <= N;", random_text(seed)) for seed in range(30))
