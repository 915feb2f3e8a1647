"""The bench: what is measured twice is looked up, what is asked of whom, and how runs are counted."""

from tests.serving.power.conftest import CELLS, make_bench

from wavetank.serving.power.architectures import architecture
from wavetank.serving.power.dvfs import UNLIMITED, PowerSetting
from wavetank.serving.power.interface import DECODE, PREFILL

LOCKED = PowerSetting(clock_hz=1200e6)


def test_a_cell_has_a_work_for_each_phase():
    assert CELLS[1].work(DECODE) == architecture("gqa").decode(8, 4096)
    assert CELLS[1].work(PREFILL) == architecture("gqa").prefill(8, 4096)


def test_without_noise_a_reading_is_the_truth(bench):
    for phase in (PREFILL, DECODE):
        reading, truth = bench.read(CELLS[0], phase, LOCKED), bench.truth(CELLS[0], phase, LOCKED)
        assert abs(reading.tokens_per_s / truth.tokens_per_s - 1) < 1e-12
        assert abs(reading.joules_per_token / truth.joules_per_token - 1) < 1e-6


def test_what_was_measured_is_looked_up_and_oracles_measure_nothing(bench):
    bench.truth(CELLS[0], DECODE, LOCKED)
    assert bench.runs == 0
    first = bench.read(CELLS[0], DECODE, LOCKED)
    assert bench.runs == 5
    assert bench.read(CELLS[0], DECODE, LOCKED) is first
    assert bench.runs == 5


def test_the_same_runs_are_made_for_whoever_asks_whatever_was_asked_before():
    one, other = make_bench(noise=0.01, excursions=0.3), make_bench(noise=0.01, excursions=0.3)
    other.read(CELLS[1], DECODE, UNLIMITED)
    assert one.read(CELLS[0], DECODE, LOCKED) == other.read(CELLS[0], DECODE, LOCKED)
    assert one.read(CELLS[0], DECODE, LOCKED) != make_bench(noise=0.01, seed=1).read(CELLS[0], DECODE, LOCKED)


def test_rejected_runs_are_counted_and_a_reading_that_fails_counts_all_of_its_runs():
    never = make_bench(excursions=1.0)
    assert never.read(CELLS[0], DECODE, LOCKED) is None
    assert (never.runs, never.rejected) == (15, 15)
    assert never.read(CELLS[0], DECODE, LOCKED, rejecting=False) is not None
