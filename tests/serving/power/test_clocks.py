"""Clocks that policies choose, beside the best found by trying every one on the truth."""

import math

import pytest
from tests.serving.power.conftest import CELLS, TABLE, make_bench

from wavetank.serving.power.clocks import ClassClocks, PhaseAwareClocks, by_architecture, cost, grid, lowest
from wavetank.serving.power.dvfs import UNLIMITED, PowerSetting
from wavetank.serving.power.interface import DECODE, PREFILL, Cell

FINE = PhaseAwareClocks(step_hz=15e6, margin=0.0)


def brute_force(bench, cells, phase):
    """Return the clock of least mean log energy that loses no more than allowed in any cell, on the truth."""
    best, least = None, 0.0
    for clock in TABLE.clocks_hz():
        total, enough = 0.0, True
        for cell in cells:
            base, found = (bench.truth(cell, phase, each) for each in (UNLIMITED, PowerSetting(clock_hz=clock)))
            # A clock above what the board's power limit allows cannot be kept, so that no run at it counts.
            enough &= found.tokens_per_s >= base.tokens_per_s * (1 - bench.loss_limit) and found.clock_hz == clock
            total += math.log(found.joules_per_token / base.joules_per_token)
        if enough and total < least:
            best, least = clock, total
    return best


@pytest.mark.parametrize("loss_limit", [0.0, 0.01, 0.05, 0.2])
def test_without_noise_the_clock_of_each_phase_is_the_best_of_all(loss_limit):
    bench = make_bench(loss_limit=loss_limit)
    chosen = FINE.choose(bench)
    for cells in by_architecture(CELLS).values():
        for phase in (PREFILL, DECODE):
            for cell in cells:
                assert getattr(chosen[cell], phase).clock_hz == brute_force(bench, cells, phase)


def test_a_clock_is_fast_enough_in_every_cell_of_its_architecture(bench):
    chosen = FINE.choose(bench)
    alone = FINE.choose(make_bench(cells=(Cell("gqa", 8, 4096),)))
    assert chosen[CELLS[0]] == chosen[CELLS[1]]
    assert alone[CELLS[1]].decode.clock_hz <= chosen[CELLS[1]].decode.clock_hz


def test_noise_costs_energy_but_loses_no_more_than_allowed():
    for seed in range(3):
        bench = make_bench(noise=0.004, excursions=0.3, seed=seed)
        for cell, given in PhaseAwareClocks().choose(bench).items():
            base, found = (bench.truth(cell, DECODE, each) for each in (UNLIMITED, given.decode))
            assert found.tokens_per_s >= 0.95 * base.tokens_per_s
            assert found.joules_per_token < 0.8 * base.joules_per_token


def test_cost_is_the_mean_log_ratio_and_says_what_is_too_slow_or_not_measured(bench):
    given = PowerSetting(clock_hz=1500e6)
    ratios = [
        bench.truth(cell, DECODE, given).joules_per_token / bench.truth(cell, DECODE, UNLIMITED).joules_per_token
        for cell in CELLS
    ]
    expected = sum(map(math.log, ratios)) / len(CELLS)
    assert cost(bench, CELLS, DECODE, given, margin=0.0) == pytest.approx(expected, rel=1e-6)
    assert cost(bench, CELLS, DECODE, PowerSetting(clock_hz=345e6), margin=0.0) == math.inf
    assert math.isnan(cost(make_bench(excursions=1.0), CELLS, DECODE, given, margin=0.0))


def test_the_search_ends_after_three_clocks_that_are_too_slow(bench):
    lowest(bench, CELLS[:1], DECODE, grid(bench, 15e6), margin=0.0)
    tried = sorted({given.clock_hz for _, _, given, _ in bench.known if given.clock_hz})
    slow = [clock for clock in tried if cost(bench, CELLS[:1], DECODE, PowerSetting(clock_hz=clock), margin=0.0) > 9]
    assert len(slow) == 3 and slow == tried[:3]
    assert len(grid(bench, 60e6)) == 28


def test_where_nothing_may_be_lost_and_everything_is_lost_nothing_is_set():
    launches = make_bench(loss_limit=0.0, kernel_cycles=1e6)
    assert FINE.choose(launches)[CELLS[0]].decode in (UNLIMITED, PowerSetting(clock_hz=TABLE.clock_max_hz))


def test_classes_are_found_from_two_clocks_and_have_one_clock_each():
    words = ClassClocks(insensitive=0.5, mild=0.75, sensitive=1.0)

    def clock(**model):
        return words.choose(make_bench(cells=CELLS[:1], **model))[CELLS[0]].decode.clock_hz

    assert clock(kernel_cycles=0.0, saturation_share=0.0) == 990e6
    assert clock(kernel_cycles=6000.0, saturation_share=0.0) == 1485e6
    assert clock(kernel_cycles=1e6) == 1980e6
    bench = make_bench()
    words.choose(bench)
    assert {given.clock_hz for _, _, given, _ in bench.known} == {1980e6, 990e6}
