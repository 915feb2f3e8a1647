from __future__ import annotations

import pytest
from small_protocols import Flood

from wavetank.check.explore import Clock, Environment
from wavetank.check.explore.explorer import Exploration
from wavetank.check.explore.system import System
from wavetank.check.explore.verdicts import Judgement, limits_in_words, on_time
from wavetank.protocols.consensus.raft import Raft


@pytest.mark.parametrize(
    ("system", "says"),
    [
        (System(Flood(), 2), ""),
        (System(Flood(), 2, environment=Environment(drops=1)), "with at most 1 loss"),
        (System(Flood(), 2, environment=Environment(timeouts=2)), "with at most 2 time-outs"),
        (System(Flood(), 2, environment=Environment(timers="never")), "with at most 0 time-outs"),
        (System(Flood(), 2, clock=Clock()), "under a clock of whole rounds, delays of 1 to 1 rounds"),
        (System(Raft(), 2, seed=4), "with the random numbers of seed 4"),
    ],
)
def test_what_kept_runs_short_is_named(system: System, says: str) -> None:
    assert limits_in_words(system) == says


def test_beyond_a_horizon_only_what_is_shown_stands() -> None:
    system = System(Flood(), 2, clock=Clock(horizon=7), absolute=True)
    holds = Judgement("invariant", "always", "holds", "in all states")
    assert on_time(holds, Exploration(system=system, order="breadth-first")) is holds
    cut = on_time(holds, Exploration(system=system, order="breadth-first", beyond_horizon=1))
    assert (cut.outcome, cut.says) == (
        "undecided",
        "bounded by the horizon: not explored after round 7, up to there it holds",
    )
    open_ = Judgement("invariant", "always", "undecided", "the time was up")
    assert on_time(open_, Exploration(system=system, order="breadth-first", beyond_horizon=1)) is open_
