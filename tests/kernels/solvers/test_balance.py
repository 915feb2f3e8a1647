"""The laws that set the border."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.kernels.solvers.balance import (
    LAWS,
    Load,
    MeasuredSplit,
    PowerSplit,
    RuntimeSplit,
    StaticSplit,
    accelerator_share,
    first_border,
    host_rows,
    law_of,
)


def load(border: int, blocks: int, host_rate: float, accelerator_rate: float, **other: object) -> Load:
    """Return what a law sees of devices with constant rates, in blocks a second."""
    triangle = bool(other.get("triangle", True))
    host = border * (border + 1) / 2 if triangle else border
    rest = (blocks * (blocks + 1) / 2 if triangle else blocks) - host
    base = Load(blocks, 0, border, host, host / host_rate, rest, rest / accelerator_rate)
    return base._replace(**other)


def test_the_share_gives_the_accelerator_the_rows_rounded_up() -> None:
    assert [first_border(p / 10, 10) for p in range(11)] == list(range(10, -1, -1))
    assert first_border(0.45, 256) == 256 - 116
    assert first_border(0.01, 10) == 9


@given(st.floats(0.0, 1.0), st.integers(0, 500))
def test_the_hosts_triangle_is_the_nearest_to_its_share(share: float, rows: int) -> None:
    v, work = host_rows(share, rows, True), (1 - share) * rows * (rows + 1) / 2
    assert 0 <= v <= rows
    # The triangles of half a row less and half a row more.
    assert (v - 0.5) * (v + 0.5) / 2 <= work + 1e-6 * (work + 1)
    assert v == rows or (v + 0.5) * (v + 1.5) / 2 > work - 1e-6 * (work + 1)


@given(
    st.integers(12, 200), st.floats(0.1, 1.0), st.floats(0.1, 1.0), st.floats(0.1, 0.9), st.booleans(),
)  # fmt: skip
def test_with_constant_speeds_the_runtime_law_ends_within_a_row_of_the_balance(
    blocks: int, host_rate: float, accelerator_rate: float, share: float, triangle: bool
) -> None:
    law = RuntimeSplit(share=share, ignore_rows=0)
    border = min(max(1, first_border(share, blocks)), blocks - 1)
    for _ in range(3):
        border = min(
            max(1, law.border(load(border, blocks, host_rate, accelerator_rate, triangle=triangle))), blocks - 1
        )
    p = accelerator_rate / (accelerator_rate + host_rate)
    work = (1 - p) * blocks * (blocks + 1) / 2
    exact = (math.sqrt(1 + 8 * work) - 1) / 2 if triangle else blocks * (1 - p)
    assert abs(border - exact) <= 1 + 1e-9 or border in (1, blocks - 1)


def test_the_share_is_that_at_which_both_end_together() -> None:
    seen = load(5, 10, 2.0, 6.0)
    assert accelerator_share(seen) == pytest.approx(0.75)
    assert accelerator_share(seen, host_time_factor=1.2) == pytest.approx(1.2 / (1.2 + 1 / 3))


def test_a_change_of_one_row_is_ignored_where_asked() -> None:
    seen = load(51, 100, 1.0, 3.0)
    assert RuntimeSplit(ignore_rows=0).border(seen) == 49 or RuntimeSplit(ignore_rows=0).border(seen) == 50
    assert RuntimeSplit(ignore_rows=2).border(seen) == 51


def test_the_accelerator_keeps_its_least_rows() -> None:
    assert RuntimeSplit(ignore_rows=0).border(load(5, 10, 100.0, 1.0, least=3)) == 7


def test_only_what_is_left_is_shared() -> None:
    seen = load(30, 40, 1.0, 1.0)._replace(first=20)
    assert RuntimeSplit(ignore_rows=0).border(seen) == 20 + host_rows(0.5, 20, True)


def test_a_device_that_did_nothing_tells_nothing() -> None:
    idle = Load(10, 0, 10, 55, 1.0, 0, 0.0)
    assert RuntimeSplit().border(idle) == 10
    assert PowerSplit().border(idle) == 10


def test_laws_are_asked_after_two_steps_and_then_at_intervals() -> None:
    assert [step for step in range(31) if RuntimeSplit().due(step)] == [1, 2, 10, 20, 30]
    assert [step for step in range(9) if PowerSplit(every=4).due(step)] == [1, 2, 4, 8]
    assert not any(StaticSplit().due(step) for step in range(100))
    assert StaticSplit(share=0.3).border(load(7, 10, 1.0, 9.0)) == 7


def test_the_power_law_takes_the_cheapest() -> None:
    seen = load(50, 100, 1.0, 1.0)
    thirsty_accelerator = PowerSplit(host_watts=50.0, accelerator_watts=1000.0)
    thirsty_host = PowerSplit(host_watts=1000.0, accelerator_watts=50.0)
    idle_costs = PowerSplit(host_watts=100.0, accelerator_watts=100.0, idle_watts=150.0, host_only_factor=3.0)
    assert thirsty_accelerator.border(seen) == 100
    assert thirsty_host.border(seen) == 0
    assert 60 < idle_costs.border(seen) < 80


def test_joules_are_watts_times_seconds() -> None:
    joules = PowerSplit(host_watts=100.0, accelerator_watts=200.0).joules(load(5, 10, 11.0, 55.0))
    # 55 blocks: 5 s on the host, 1 s on the accelerator, 5/6 s on both.
    assert joules == pytest.approx({"accelerator": 230.0, "host": 400.0, "both": 250.0})


def test_the_hosts_time_counts_more_only_where_work_is_shared() -> None:
    seen = load(5, 10, 11.0, 55.0)
    joules = PowerSplit(host_watts=100.0, accelerator_watts=200.0, host_time_factor=1.2).joules(seen)
    # 6 s on the host where it shares, so 6/7 s on both.
    assert joules == pytest.approx({"accelerator": 230.0, "host": 400.0, "both": 300.0 * 6 / 7})


def test_whole_rows_are_work_by_their_number() -> None:
    seen = load(5, 10, 2.0, 10.0, triangle=False)
    joules = PowerSplit(host_watts=100.0, accelerator_watts=200.0).joules(seen)
    assert joules == pytest.approx({"accelerator": 230.0, "host": 400.0, "both": 250.0})


def test_both_measuring_laws_balance_alike() -> None:
    seen = load(50, 100, 1.0, 3.0)
    cheap_together = PowerSplit(host_watts=1.0, accelerator_watts=1.0, idle_watts=50.0, host_only_factor=50.0)
    assert cheap_together.border(seen) == RuntimeSplit().border(seen) == cheap_together.balanced(seen)
    assert issubclass(PowerSplit, MeasuredSplit)
    assert issubclass(RuntimeSplit, MeasuredSplit)


def test_moving_rows_costs_joules() -> None:
    law, seen = PowerSplit(every=10), load(5, 10, 11.0, 55.0)
    dear = law.joules(seen._replace(copy_s_per_row=1.0))
    assert dear["host"] - law.joules(seen)["host"] == pytest.approx(450.0 * 5 / 10)


def test_laws_have_names() -> None:
    assert [type(law_of(name, share=0.5)).__name__ for name in LAWS] == ["StaticSplit", "RuntimeSplit", "PowerSplit"]
    with pytest.raises(UnknownNameError) as caught:
        law_of("runtme", share=0.5)
    assert caught.value.nearest == "runtime"
    with pytest.raises(BadValueError):
        law_of("static", share=1.5)
