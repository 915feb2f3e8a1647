"""The study leader-election in a tiny form."""

from __future__ import annotations

import math

import pytest

from wavetank.errors import BadValueError
from wavetank.ledger import catalog
from wavetank.protocols.leaders.study import LeaderElectionStudy
from wavetank.study.study import Trial, build_study

TINY = LeaderElectionStudy(
    agents=64, rhos=(2, 4, 8), starts=("duplicate",), few_agents=16, watch=2.0, doubles=4, double_agents=32
)


def _records(name: str, study: LeaderElectionStudy = TINY) -> list:
    return study.run(Trial(systems=(name,), seed=0), {name: catalog.system(name).build()})


@pytest.mark.parametrize("name", catalog.built_in().plain_run(LeaderElectionStudy.name))
def test_every_system_gives_time_and_memory(name: str) -> None:
    found = {(record.metric, tuple(record.at.items())): record.value for record in _records(name)}
    assert found["parallel_time", ()] > 0
    assert found["parallel_time", (("start", "duplicate"),)] > 0
    assert found["parallel_time", (("agents", 16),)] > 0
    assert found["parallel_time", (("rho", 4),)] > 0
    assert found["record_bits", ()] >= 6
    assert found["resets_after", ()] == 0
    assert found["meetings_per_s", ()] > 0


def test_the_trade_is_concluded_from_all_trials() -> None:
    records = _records("ss-leader") + _records("burman-silent")
    concluded = {(record.metric, *record.at.values()): record.value for record in TINY.conclude(records)}
    assert {key[0] for key in concluded} == {"crossover_rho", "crossover_rho_modelled"}
    # Phases grow with the logarithm, so with more agents more names are needed.
    assert concluded["crossover_rho_modelled", 1_000_000] > concluded["crossover_rho_modelled", 100]


def test_nothing_is_concluded_without_the_linear_protocol() -> None:
    assert TINY.conclude(_records("ss-leader")) == []


def test_what_cannot_be_simulated_is_not_a_number() -> None:
    study = LeaderElectionStudy(agents=300, rhos=(), starts=(), few_agents=16, watch=1.0, doubles=0, double_agents=32)
    found = {(record.metric, tuple(record.at)): record.value for record in _records("burman-sublinear", study)}
    assert math.isnan(found["parallel_time", ()])
    assert found["parallel_time", ("agents",)] > 0


def test_rosters_that_do_not_fit_are_refused() -> None:
    study = build_study(LeaderElectionStudy, {"rhos": "2,64", "double_agents": "32"})
    with pytest.raises(BadValueError) as caught:
        study.check()
    assert caught.value.allowed == "2 to 32"


def test_the_notes_say_what_was_not_equal() -> None:
    said = " ".join(TINY.notes())
    assert "Theta(log n)" in said
    assert "high probability" in said
