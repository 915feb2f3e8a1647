"""Models that the tests of threshold automata share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wavetank.errors import DataUnavailableError
from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.parser import parse_automaton
from wavetank.workloads import datasets

# Srikanth and Toueg's reliable broadcast: accept after n - t messages, join after t + 1.
BROADCAST = """
skel Broadcast {
  local pc;
  shared nsnt;
  parameters N, T, F;
  define JOIN == T + 1;
  define ACCEPT == N - T;
  assumptions (0) { RESILIENCE; T >= F; T >= 1; }
  locations (0) { loc0: [0]; loc1: [1]; locSE: [2]; locAC: [3]; }
  inits (0) { (loc0 + loc1) == N - F; locSE == 0; locAC == 0; nsnt == 0; }
  rules (8) {
  0: loc1 -> locSE when (true) do { nsnt' == nsnt + 1; };
  1: loc0 -> locAC when (nsnt >= ACCEPT - F) do { nsnt' == nsnt + 1; };
  2: loc1 -> locAC when (nsnt >= ACCEPT - F) do { nsnt' == nsnt + 1; };
  3: loc0 -> locSE when (nsnt >= JOIN - F) do { nsnt' == nsnt + 1; };
  4: locSE -> locAC when (nsnt >= ACCEPT - F) do { unchanged(nsnt); };
  5: loc0 -> loc0 when (true) do { nsnt' == nsnt; };
  6: locSE -> locSE when (true) do { nsnt' == nsnt; };
  7: locAC -> locAC when (true) do { nsnt' == nsnt; };
  }
  specifications (0) {
    unforg: (loc1 == 0) -> [](locAC == 0);
    corr: <>[](nsnt < JOIN || loc0 == 0) -> ((loc0 == 0) -> <>(locAC != 0));
  }
}
"""

# Processes vote 0 or 1 and decide on what n - t sent: two decisions agree exactly if n > 3t.
VOTING = """
skel Voting {
  shared x0, x1;
  parameters N, T, F;
  assumptions (0) { RESILIENCE; T >= F; T >= 1; }
  locations (0) { v0: [0]; v1: [1]; sent: [2]; d0: [3]; d1: [4]; }
  inits (0) { v0 + v1 == N - F; sent == 0; d0 == 0; d1 == 0; x0 == 0; x1 == 0; }
  rules (0) {
  0: v0 -> sent when (true) do { x0' == x0 + 1; };
  1: v1 -> sent when (true) do { x1' == x1 + 1; };
  2: sent -> d0 when (x0 >= N - T - F) do { };
  3: sent -> d1 when (x1 >= N - T - F) do { };
  }
  specifications (0) {
    agreement: [](d0 == 0 || d1 == 0);
    validity: (v0 == 0) -> [](d0 == 0);
  }
}
"""

# A round that starts again: the counter is reset by the last to leave.
ROUNDS = """
skel Rounds {
  shared x;
  parameters N, F;
  assumptions (0) { N > F; F >= 0; }
  locations (0) { wait: [0]; sent: [1]; bad: [2]; }
  inits (0) { wait == N - F; sent == 0; bad == 0; x == 0; }
  rules (0) {
  0: wait -> sent when (x < N - F) do { x' == x + 1; };
  1: sent -> wait when (x >= N - F) do { x' == 0; };
  2: sent -> bad when (x >= LIMIT) do { };
  }
  specifications (0) { never_bad: [](bad == 0); }
}
"""


def broadcast_text(resilience: str = "N > 3 * T", join: str = "T + 1") -> str:
    """Return reliable broadcast, sound unless planted otherwise."""
    return BROADCAST.replace("RESILIENCE", resilience).replace("JOIN == T + 1", f"JOIN == {join}")


@pytest.fixture
def broadcast() -> Callable[..., ThresholdAutomaton]:
    """Return the maker of reliable broadcast: ``broadcast(resilience, join)``."""
    return lambda *planted: parse_automaton(broadcast_text(*planted))


@pytest.fixture
def voting() -> Callable[[str], ThresholdAutomaton]:
    """Return the maker of the voting model: ``voting(resilience)``."""
    return lambda resilience: parse_automaton(VOTING.replace("RESILIENCE", resilience))


@pytest.fixture
def rounds() -> Callable[[str], ThresholdAutomaton]:
    """Return the maker of the model with resets: ``rounds(limit)``."""
    return lambda limit: parse_automaton(ROUNDS.replace("LIMIT", limit))


@pytest.fixture(scope="session")
def models() -> Path:
    """Return the folder of published models."""
    try:
        return datasets.find("threshold-automata")
    except DataUnavailableError as error:
        pytest.skip(error.problem)
