"""The study population-speed: rates from times, and work that must have been done."""

import pytest

from wavetank.errors import WavetankError
from wavetank.protocols.populations.simulator import PopulationSequential
from wavetank.protocols.populations.study_speed import PROTOCOLS, PopulationSpeed
from wavetank.run.comparison import compare

OURS = ("population-sequential", "population-batched", "population-python")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    given = {"agents": 2000, "interactions": 3000, "rounds": 2}
    return compare("population-speed", seeds=1, systems=OURS, out=folder, on="here", **given)


def test_every_system_has_a_rate_for_every_protocol_and_round(result):
    assert result.failures == ()
    rates = {(r.system, r.seed, r.at["protocol"]): r.value for r in result.records if r.metric == "interactions_per_s"}
    times = {(r.system, r.seed, r.at["protocol"]): r.value for r in result.records if r.metric == "time_s"}
    assert set(rates) == {(system, seed, name) for system in OURS for seed in (0, 1) for name in PROTOCOLS}
    for key, rate in rates.items():
        assert rate == pytest.approx(3000 / times[key])


def test_the_slowest_protocol_is_recorded_once_a_round(result):
    slowest = {(r.system, r.seed): r.value for r in result.records if r.metric == "slowest_interactions_per_s"}
    assert len(slowest) == 2 * len(OURS)
    for (system, seed), value in slowest.items():
        rates = [r.value for r in result.records
                 if (r.metric, r.system, r.seed) == ("interactions_per_s", system, seed)]  # fmt: skip
        assert value == pytest.approx(min(rates))


def test_a_protocol_that_settles_early_is_refused():
    study = PopulationSpeed(agents=100, interactions=10**6)
    case = study.case("approximate-majority", 0)
    result = study.prepared_call(PopulationSequential(), case)()
    with pytest.raises(WavetankError, match="stopped early"):
        study.verify(case, "population-sequential", result)


def test_lost_agents_are_noticed():
    study = PopulationSpeed(agents=100, interactions=10)
    case = study.case("rock-paper-scissors", 0)
    result = PopulationSpeed(agents=100, interactions=10).prepared_call(PopulationSequential(), case)()
    with pytest.raises(WavetankError, match="lost agents"):
        PopulationSpeed(agents=101, interactions=10).verify(case, "population-sequential", result)
