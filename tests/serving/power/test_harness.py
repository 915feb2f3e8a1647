"""Which runs count: synthetic traces with a known integral, and every way in which a run can be spoilt."""

import dataclasses
import itertools

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.power.harness import APPLICATION_CLOCKS, HARDWARE_SLOWDOWN, POWER_CAP, THERMAL, Harness, Trace

HARNESS = Harness()


def trace(**changes):
    """Return a run of 2 s at 1 GHz whose power rises from 200 to 300 W."""
    times = np.arange(0.03, 2.0, 0.06)
    made = Trace(
        time_s=times, power_w=200 + 50 * times, clock_hz=np.full(len(times), 1e9),
        reasons=np.full(len(times), APPLICATION_CLOCKS), began_s=0.0, ended_s=2.0, began_j=1e6, ended_j=1e6 + 500.0,
        tokens=100.0, clock_set_hz=1e9,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def test_the_counters_difference_is_the_integral_of_the_samples():
    assert trace().energy_j == 500.0
    assert trace().integral_j() == pytest.approx(500.0, rel=0.001)
    # A wave with a period of its own, exact integral 2 * 250 W s.
    times = trace().time_s
    wave = trace(power_w=250 + 80 * np.sin(np.pi * times))
    assert wave.integral_j() == pytest.approx(2 * 250.0 + 80 * 0.0, rel=0.03)
    assert HARNESS.fault(wave) == ""


def test_a_calm_run_counts_and_gives_its_figures():
    assert HARNESS.fault(trace()) == ""
    reading = HARNESS.read(trace)
    assert (reading.tokens_per_s, reading.joules_per_token, reading.power_w) == (50.0, 5.0, 250.0)
    assert (reading.runs, reading.rejected, reading.spread, reading.clock_hz) == (5, 0, 0.0, 1e9)


def excursion(at, length, clock):
    clocks = trace().clock_hz.copy()
    clocks[at : at + length] = clock
    return clocks


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clock_hz": excursion(10, 1, 1.98e9)}, "left its locked value by 980 MHz"),
        ({"clock_hz": excursion(0, 33, 0.985e9)}, "left its locked value by 15 MHz"),
        ({"clock_hz": excursion(5, 3, np.nan)}, "no number"),
        ({"power_w": trace().power_w * np.inf}, "no number"),
        ({"time_s": np.where(np.arange(33) == 5, np.nan, trace().time_s)}, "no number"),
        ({"tokens": np.nan}, "no number"),
        ({"tokens": np.inf}, "no number"),
        ({"began_s": np.nan}, "no number"),
        ({"ended_j": np.nan}, "no number"),
        ({"clock_set_hz": np.nan}, "no number"),
        ({"clock_hz": np.full(3, 1e9)}, "samples are missing"),
        ({"reasons": np.zeros(0, int)}, "samples are missing"),
        ({"reasons": np.full(33, THERMAL)}, "throttled"),
        ({"reasons": np.where(np.arange(33) == 32, HARDWARE_SLOWDOWN, 0)}, "throttled"),
        ({"reasons": np.full(33, POWER_CAP)}, "throttled"),
        ({"ended_j": 1e6 - 1.0}, "went back"),
        ({"ended_j": 1e6}, "went back"),
        ({"ended_j": 1e6 + 600.0}, "do not agree"),
        ({"tokens": 0.0}, "nothing was done"),
        ({"ended_s": 0.0}, "went back"),
        ({"ended_s": 2.5}, "no sample was taken"),
        ({"time_s": trace().time_s[::-1]}, "out of order"),
        ({"clock_set_hz": None, "clock_hz": excursion(3, 4, 0.9e9)}, "though nothing was set"),
        (dict.fromkeys(("time_s", "power_w", "clock_hz"), np.array([])) | {"reasons": np.array([], int)}, "no sample"),
    ],
)
def test_a_spoilt_run_is_thrown_away_and_says_why(changes, said):
    spoilt = trace(**changes)
    assert said in HARNESS.fault(spoilt)
    rest = itertools.chain([spoilt], itertools.repeat(trace()))
    reading = HARNESS.read(lambda: next(rest))
    assert (reading.runs, reading.rejected, reading.tokens_per_s) == (5, 1, 50.0)


def test_a_governed_clock_may_move_where_nothing_is_locked():
    moving = excursion(3, 20, 0.8e9)
    governed = trace(clock_set_hz=None, clock_hz=moving, reasons=np.full(33, POWER_CAP))
    assert HARNESS.fault(governed) == ""
    assert "throttled" in HARNESS.fault(trace(clock_set_hz=None, clock_hz=moving, reasons=np.full(33, 0x4 | 0x20)))


def test_too_many_spoilt_runs_give_no_reading_rather_than_a_wrong_one():
    spoilt = trace(clock_hz=excursion(0, 33, 1.98e9))
    assert HARNESS.read(lambda: spoilt) is None
    careless = Harness(rejecting=False).read(lambda: spoilt)
    assert (careless.clock_hz, careless.rejected) == (1.98e9, 0)


def test_a_harness_that_cannot_succeed_is_refused():
    with pytest.raises(BadValueError):
        Harness(repeats=6, most_runs=5).read(trace)
    with pytest.raises(BadValueError):
        Harness(repeats=0)
