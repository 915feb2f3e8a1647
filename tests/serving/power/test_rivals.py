"""The rivals at their best, and the bound that none of them passes."""

import pytest
from tests.serving.power.conftest import CELLS, TABLE, make_bench

from wavetank.serving.power.clocks import PhaseAwareClocks
from wavetank.serving.power.dvfs import UNLIMITED, PowerSetting
from wavetank.serving.power.interface import DECODE, PREFILL
from wavetank.serving.power.rivals import BestSettings, ClockHillClimbing, NoPowerLimit, OneClock, PowerLimitOptimizer


def energy(bench, chosen, cell, phase=DECODE):
    base, found = bench.truth(cell, phase, UNLIMITED), bench.truth(cell, phase, getattr(chosen[cell], phase))
    assert found.tokens_per_s >= base.tokens_per_s * (1 - bench.loss_limit) * (1 - 1e-9)
    return found.joules_per_token / base.joules_per_token


def test_leaving_alone_sets_nothing(bench):
    assert {*NoPowerLimit().choose(bench).values()} == {(UNLIMITED, UNLIMITED)}
    assert bench.runs == 0


@pytest.mark.parametrize("loss_limit", [0.02, 0.05, 0.15])
def test_no_policy_takes_less_energy_than_the_oracle(loss_limit):
    bench = make_bench(loss_limit=loss_limit)
    best = BestSettings().choose(bench)
    for policy in (PhaseAwareClocks(), OneClock(), ClockHillClimbing(), PowerLimitOptimizer()):
        chosen = policy.choose(bench)
        for cell in CELLS:
            assert energy(bench, best, cell) <= energy(bench, chosen, cell) + 1e-12


def test_the_oracle_is_the_least_of_every_setting(bench):
    best = BestSettings().choose(bench)
    for cell in CELLS:
        for phase in (PREFILL, DECODE):
            base = bench.truth(cell, phase, UNLIMITED)
            every = [bench.truth(cell, phase, PowerSetting(clock_hz=clock)) for clock in TABLE.clocks_hz()]
            every += [bench.truth(cell, phase, PowerSetting(cap_w=cap)) for cap in bench.caps_w]
            least = min(
                each.joules_per_token for each in [*every, base] if each.tokens_per_s >= 0.95 * base.tokens_per_s
            )
            assert bench.truth(cell, phase, getattr(best[cell], phase)).joules_per_token == least


def test_the_best_limit_is_the_best_of_the_limits(bench):
    chosen = PowerLimitOptimizer(margin=0.0).choose(bench)
    for cells in (CELLS[:2], CELLS[2:]):
        costs = {}
        for cap in (None, *bench.caps_w):
            pairs = [(bench.truth(cell, DECODE, UNLIMITED), bench.truth(cell, DECODE, PowerSetting(cap_w=cap)))
                     for cell in cells]  # fmt: skip
            if all(found.tokens_per_s >= 0.95 * base.tokens_per_s for base, found in pairs):
                product = 1.0
                for base, found in pairs:
                    product *= found.joules_per_token / base.joules_per_token
                costs[cap] = product
        assert chosen[cells[0]].decode.cap_w == min(costs, key=costs.get)
        assert chosen[cells[0]].prefill == UNLIMITED


def test_limits_that_cannot_be_measured_are_not_set():
    assert PowerLimitOptimizer().choose(make_bench(excursions=1.0))[CELLS[0]].decode == UNLIMITED


def test_one_clock_is_one_for_all_and_hill_climbing_measures_less(bench):
    one = OneClock().choose(bench)
    assert len({each.decode for each in one.values()}) == 1
    other = make_bench()
    climbed = ClockHillClimbing().choose(other)
    grid_runs = make_bench()
    PhaseAwareClocks().choose(grid_runs)
    assert other.runs < 0.5 * grid_runs.runs
    assert all(energy(other, climbed, cell) < 0.85 for cell in CELLS)
    assert all(energy(bench, one, cell) < 0.85 for cell in CELLS)
