"""Power tables: the formula, what it was fitted to, and what is refused."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.optimize import least_squares

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.platforms.power import measured_power, power_table, power_tables

H200 = power_table("H200-SXM")


def test_power_is_the_sum_of_rest_memory_and_chip():
    half = H200.device.hbm_bytes_per_s / 2
    full = H200.power_w(H200.clock_max_hz, bytes_per_s=half, flops_per_s=H200.device.bf16_flops_per_s / 4)
    expected = H200.idle_w + H200.memory_w / 2 + H200.fetch_w / 2 + H200.matrix_w / 4
    assert full == pytest.approx(expected, rel=1e-12)
    assert H200.power_w(H200.clock_max_hz, bytes_per_s=0, flops_per_s=0) == pytest.approx(H200.idle_w)


def test_below_the_knee_the_chips_energy_per_byte_is_flat_and_above_it_goes_with_the_square_of_the_voltage():
    def per_byte(clock):
        rest = H200.power_w(clock, bytes_per_s=0, flops_per_s=0)
        return H200.power_w(clock, bytes_per_s=1e12, flops_per_s=0) - rest

    knee = H200.knee_share * H200.clock_max_hz
    assert per_byte(0.5 * knee) == pytest.approx(per_byte(knee), rel=1e-12)
    middle = (knee + H200.clock_max_hz) / 2
    volts = (1 + H200.floor_voltage_share) / 2
    memory, fetch = (each / H200.device.hbm_bytes_per_s * 1e12 for each in (H200.memory_w, H200.fetch_w))
    assert per_byte(middle) == pytest.approx(memory + fetch * volts**2, rel=1e-9)


def test_the_figures_are_those_that_fit_the_measurements_best():
    rows = [row for row in measured_power() if row.device == "H200-SXM" and (row.bytes_per_s or row.flops_per_s)]

    def errors(given):
        fetch, matrix, floor = given
        table = dataclasses.replace(H200, fetch_w=fetch, matrix_w=matrix, floor_voltage_share=floor)
        return [
            table.power_w(row.clock_hz, bytes_per_s=row.bytes_per_s, flops_per_s=row.flops_per_s) / row.power_w - 1
            for row in rows
        ]

    found = least_squares(errors, [300.0, 1000.0, 0.8]).x
    assert [H200.fetch_w, H200.matrix_w, H200.floor_voltage_share] == pytest.approx(found, rel=0.01)
    assert math.sqrt(np.mean(np.square(errors(found)))) < 0.04
    # Loops at the board's limit are what the voltage is known from.
    assert sum(row.power_w > 685 and row.clock_hz < H200.clock_max_hz for row in rows) >= 3


def test_clocks_go_from_the_highest_to_the_lowest_in_equal_steps():
    clocks = H200.clocks_hz()
    assert (clocks[0], clocks[-1], len(clocks)) == (1980e6, 345e6, 110)
    assert set(np.diff(clocks)) == {-15e6}


@pytest.mark.parametrize("clock", [1979e6, 330e6, 1995e6, math.nan, math.inf])
def test_a_clock_that_cannot_be_locked_is_refused_with_the_nearest(clock):
    with pytest.raises(BadValueError) as caught:
        H200.check_clock(clock, where="here")
    assert caught.value.where == "here"
    assert float(caught.value.nearest.split()[0]) * 1e6 in H200.clocks_hz()


@pytest.mark.parametrize("cap", [199.0, 701.0, math.nan, -math.inf])
def test_a_power_limit_outside_the_devices_range_is_refused(cap):
    with pytest.raises(BadValueError, match="power limit"):
        H200.check_cap(cap)
    H200.check_cap(200.0)
    H200.check_cap(700.0)


@pytest.mark.parametrize(
    ("change", "value"),
    [("idle_w", 0.0), ("memory_w", math.nan), ("knee_share", 1.5), ("clock_min_hz", 2e9), ("cap_min_w", 800.0),
     ("fetch_w", math.inf), ("name", "H2000")],
)  # fmt: skip
def test_a_table_of_impossible_figures_is_refused(change, value):
    with pytest.raises((BadValueError, UnknownNameError)):
        dataclasses.replace(H200, **{change: value})


def test_an_unknown_device_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        power_table("H200")
    assert caught.value.nearest == "H200-SXM"
    assert "H200-SXM" in power_tables()
