"""What clocks and limits do: inert limits, memory-bound and compute-bound phases, dominance, classes."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.platforms.power import power_table
from wavetank.serving.power.architectures import Work, architecture, architectures
from wavetank.serving.power.dvfs import (
    INSENSITIVE,
    MILD,
    SENSITIVE,
    UNLIMITED,
    GpuModel,
    Operation,
    PowerSetting,
    check_fits,
    clock_class,
    dominates,
    pareto,
    some_gpu,
)

TABLE = power_table("H200-SXM")
GPU = GpuModel(table=TABLE)
IDEAL = GpuModel(table=TABLE, kernel_cycles=0.0, saturation_share=0.0)
MEMORY = Work(bytes=4e9, flops=0.0, scan_flops=0.0, kernels=1, tokens=1.0)
COMPUTE = Work(bytes=0.0, flops=2e11, scan_flops=0.0, kernels=1, tokens=1.0)
EVERY = [
    architecture(name).decode(batch, context)
    for name, batch, context in itertools.product(architectures(), (1, 8, 32), (1024, 16384))
]


@pytest.mark.parametrize("work", EVERY)
def test_a_limit_above_what_a_phase_draws_changes_nothing_at_all(work):
    alone = GPU.run(work)
    above = [cap for cap in (200.0, 300.0, 500.0, 600.0, 650.0, 700.0) if cap >= alone.power_w]
    assert above, "a board never draws more than its own limit"
    for cap in above:
        assert GPU.run(work, PowerSetting(cap_w=cap)) == alone
        assert GPU.limit_is_inert(work, cap)
    if alone.power_w > 200:
        assert GPU.run(work, PowerSetting(cap_w=200.0)).tokens_per_s < alone.tokens_per_s
        assert not GPU.limit_is_inert(work, 200.0)


def test_a_memory_bound_phase_keeps_its_throughput_at_every_clock_and_saves_energy():
    operations = [IDEAL.run(MEMORY, PowerSetting(clock_hz=clock)) for clock in TABLE.clocks_hz()]
    assert {each.tokens_per_s for each in operations} == {IDEAL.run(MEMORY).tokens_per_s}
    energies = [each.joules_per_token for each in operations]
    assert energies == sorted(energies, reverse=True) and energies[-1] < 0.7 * energies[0]


def test_a_compute_bound_phase_loses_throughput_in_proportion_to_the_clock():
    big = dataclasses.replace(TABLE, matrix_w=1.0)
    gpu = dataclasses.replace(IDEAL, table=big)
    base = gpu.run(COMPUTE)
    for clock in TABLE.clocks_hz()[::7]:
        found = gpu.run(COMPUTE, PowerSetting(clock_hz=clock))
        assert found.tokens_per_s / base.tokens_per_s == pytest.approx(clock / TABLE.clock_max_hz, rel=1e-12)


def test_time_is_the_longer_of_traffic_and_arithmetic_and_the_kernels_on_top():
    work = Work(bytes=1e9, flops=1e12, scan_flops=1e10, kernels=100, tokens=2.0)
    clock = 990e6
    arithmetic = (1e12 / 0.9 + 1e10 / 0.12) / (9.89e14 / 2)
    assert arithmetic > 1e9 / (4.8e12 * 0.85)
    assert GPU.at(work, clock).time_s == pytest.approx(arithmetic + 100 * 1800 / clock, rel=1e-12)
    waiting = dataclasses.replace(GPU, host_s_per_kernel=1e-4)
    assert waiting.at(work, clock).time_s == pytest.approx(1e-2)
    starved = GPU.at(MEMORY, 495e6)
    assert starved.time_s == pytest.approx(4e9 / (4.8e12 * 0.85 * 0.5) + 1800 / 495e6, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_for_every_limit_some_clock_is_as_good_in_both_and_in_prefill_limits_bind(seed):
    gpu = some_gpu("H200-SXM", seed)
    for work in EVERY[::3]:
        clocks = [gpu.run(work, PowerSetting(clock_hz=clock)) for clock in TABLE.clocks_hz()]
        for cap in (200.0, 300.0, 400.0, 500.0, 600.0):
            assert any(dominates(each, gpu.run(work, PowerSetting(cap_w=cap))) for each in clocks)
    prompts = architecture("gqa").prefill(4, 4096)
    assert not gpu.limit_is_inert(prompts, 500.0)
    assert gpu.run(prompts, PowerSetting(cap_w=500.0)).tokens_per_s < 0.9 * gpu.run(prompts).tokens_per_s


def test_the_governor_takes_the_highest_clock_within_the_limit():
    work = architecture("gqa").prefill(4, 4096)
    found = GPU.run(work, PowerSetting(cap_w=450.0))
    assert found.power_w <= 450.0 < GPU.at(work, found.clock_hz + TABLE.clock_step_hz).power_w
    both = GPU.run(work, PowerSetting(cap_w=450.0, clock_hz=600e6))
    assert both == GPU.run(work, PowerSetting(clock_hz=600e6))


def test_a_limit_that_no_clock_keeps_is_said_to_be_broken():
    hungry = GpuModel(table=dataclasses.replace(TABLE, idle_w=300.0))
    found = hungry.run(MEMORY, PowerSetting(cap_w=200.0))
    assert (found.within_cap, found.clock_hz) == (False, TABLE.clock_min_hz)
    assert GPU.run(MEMORY).within_cap


@given(
    works=st.builds(
        Work, bytes=st.floats(1e6, 1e11), flops=st.floats(0, 1e14), scan_flops=st.floats(0, 1e12),
        kernels=st.integers(1, 2000), tokens=st.just(1.0),
    ),
    cap=st.floats(200.0, 700.0),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_no_setting_makes_a_phase_faster_and_every_limit_is_kept_or_said_to_be_broken(works, cap):
    alone, capped = GPU.run(works), GPU.run(works, PowerSetting(cap_w=cap))
    assert capped.tokens_per_s <= alone.tokens_per_s * (1 + 1e-12)
    assert capped.within_cap == (capped.power_w <= cap)
    assert math.isclose(capped.joules_per_token, capped.power_w / capped.tokens_per_s)


def test_the_front_is_what_nothing_is_better_than():
    def point(speed, joules):
        return Operation(clock_hz=1e9, time_s=1 / speed, power_w=joules * speed, tokens=1.0)

    points = [point(*each) for each in ((1, 1), (2, 3), (3, 2), (4, 5), (4, 4), (3, 2))]
    front = pareto(points)
    assert [(round(each.tokens_per_s), round(each.joules_per_token)) for each in front] == [(4, 4), (3, 2), (1, 1)]
    brute = [
        each for each in points
        if not any(dominates(other, each) and not dominates(each, other) for other in points)
    ]  # fmt: skip
    assert {each.tokens_per_s for each in brute} == {each.tokens_per_s for each in front}


def test_classes_by_how_throughput_follows_the_clock():
    launches = Work(bytes=1e6, flops=1e6, scan_flops=0.0, kernels=1000, tokens=1.0)
    assert clock_class(IDEAL.clock_slope(MEMORY)) == INSENSITIVE
    assert IDEAL.clock_slope(MEMORY) == pytest.approx(0.0, abs=1e-12)
    assert clock_class(GPU.clock_slope(launches)) == SENSITIVE
    assert GPU.clock_slope(launches) == pytest.approx(1.0, abs=0.01)
    assert [clock_class(each) for each in (0.09, 0.1, 0.4, 0.41)] == [INSENSITIVE, MILD, MILD, SENSITIVE]


def test_seeds_are_gpus_around_the_measured_one():
    assert some_gpu("H200-SXM", 3) == some_gpu("H200-SXM", 3) != some_gpu("H200-SXM", 4)
    idle = [some_gpu("H200-SXM", seed).table.idle_w for seed in range(50)]
    assert 0.93 * TABLE.idle_w <= min(idle) < TABLE.idle_w < max(idle) <= 1.07 * TABLE.idle_w


def test_bad_settings_and_what_does_not_fit_are_refused():
    for given_setting in (PowerSetting(clock_hz=1e9), PowerSetting(cap_w=100.0)):
        with pytest.raises(BadValueError):
            GPU.run(MEMORY, given_setting)
    with pytest.raises(BadValueError):
        GpuModel(table=TABLE, bandwidth_share=1.2)
    with pytest.raises(BadValueError, match="does not fit"):
        check_fits(1.6e11, TABLE, "A batch")
    check_fits(1.5e11, TABLE, "A batch")
    for cap in (-5.0, 100.0, 701.0, math.nan):
        with pytest.raises(BadValueError):
            GPU.limit_is_inert(MEMORY, cap)


@pytest.mark.parametrize(
    "changes",
    [{"bytes": 0.0, "kernels": 0}, {"bytes": math.nan}, {"bytes": -1.0}, {"tokens": 0.0}, {"flops": math.inf}],
    ids=str,
)
def test_work_that_is_none_has_no_operation(changes):
    with pytest.raises(BadValueError):
        GPU.run(MEMORY._replace(**changes))
    assert PowerSetting() == UNLIMITED
