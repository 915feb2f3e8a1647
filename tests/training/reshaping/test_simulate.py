"""A job under faults: counts in round numbers, and what was not noticed yet."""

from __future__ import annotations

import math

import pytest
from tests.training.reshaping.jobs import job

from wavetank.errors import BadValueError
from wavetank.platforms.links import Link
from wavetank.training.reshaping.fault_events import Event
from wavetank.training.reshaping.interface import healthy_plan
from wavetank.training.reshaping.reshape import Reshape
from wavetank.training.reshaping.rivals import RestartAnew
from wavetank.training.reshaping.simulate import Times, simulate

WORK = job()
TIMES = Times(dead_s=10.0, slow_steps=5, validate_s=3.0, restart_s=300.0, unsaved_s=100.0)
STEP_S = 120.0
DROP = Reshape(tensor=False, pipeline=False, data=False)


class Stays:
    """Keeps the layout that everybody began with, as long as it can."""

    def reshape(self, view):
        return healthy_plan(view.job) if all(view.speed > 0) else None


def test_without_faults_steps_follow_each_other():
    run = simulate(WORK, [], 1200.0, DROP, TIMES)
    assert (run.steps, run.plans, run.changing_s, run.worst) == (pytest.approx(10.0), 0, 0.0, 1.0)


def test_a_death_costs_half_a_step_its_notice_and_the_change():
    run = simulate(WORK, [Event(600.0, 0, 0.0)], 1200.0, DROP, TIMES)
    # One replica does eight micro-batches in nine times 24 s.
    assert run.steps == pytest.approx(5 - 0.5 + (600 - 10 - 5) / 216)
    assert (run.plans, run.changing_s) == (1, pytest.approx(15.0))
    assert run.worst == pytest.approx(216 / STEP_S)


def test_a_slow_gpu_is_noticed_after_slow_steps():
    run = simulate(WORK, [Event(0.0, 0, 0.5)], 3000.0, Reshape(), TIMES)
    # Forward 16 s of 48 s on stage 0, whose second half waits for nobody: walked by hand below.
    slow_s = 5 / run.segments[0][2]
    assert run.segments[0][:2] == (0.0, pytest.approx(slow_s))
    assert run.segments[1] == (pytest.approx(slow_s), pytest.approx(slow_s + 3 + 5), 0.0)
    assert run.steps == pytest.approx(5 + (3000 - slow_s - 8) * run.segments[2][2])
    assert run.segments[0][2] < run.segments[2][2] < 1 / STEP_S


def test_a_plan_that_stays_pays_for_the_validation_alone():
    run = simulate(WORK, [Event(0.0, 0, 0.5)], 3000.0, Stays(), TIMES)
    assert (run.plans, run.changing_s) == (0, pytest.approx(3.0))


def test_nothing_is_trained_without_a_plan_until_the_device_is_back():
    events = [Event(600.0, 0, 0.0), Event(1000.0, 0, 1.0)]
    run = simulate(WORK, events, 1600.0, Stays(), TIMES)
    assert run.stopped_s == pytest.approx(390.0)
    # Ten seconds of notice and five of regrouping are no part of that.
    assert run.changing_s == pytest.approx(15.0)
    assert run.steps == pytest.approx(5 - 0.5 + 595 / STEP_S)


def test_a_restart_takes_its_time_and_what_was_not_saved():
    run = simulate(WORK, [Event(600.0, 0, 0.0)], 3000.0, RestartAnew(), TIMES)
    assert run.changing_s == pytest.approx(10 + 5 + 300 + 100)


def test_a_fault_while_the_job_stands_still_lets_it_stand_longer_and_loses_no_step():
    once = simulate(WORK, [Event(600.0, 0, 0.0)], 3000.0, RestartAnew(), TIMES)
    twice = simulate(WORK, [Event(600.0, 0, 0.0), Event(700.0, 2, 0.0)], 3000.0, RestartAnew(), TIMES)
    # Three groups of four were in use, two are after it: both deaths need a restart.
    assert twice.plans == 2
    assert twice.changing_s >= once.changing_s + 400
    assert twice.segments[1][0] == 600.0 and twice.segments[1][2] == 0.0


def test_a_device_that_is_not_in_use_is_not_noticed():
    run = simulate(WORK, [Event(600.0, 0, 0.0), Event(1500.0, 1, 0.0)], 3000.0, DROP, TIMES)
    assert run.plans == 1 and run.changing_s == pytest.approx(15.0)


def test_moves_stop_the_job():
    moving = job(layer_bytes=1e3, network=Link(bytes_per_s=1e3, latency_s=0.0))
    one, other = (simulate(each, [Event(0.0, 0, 0.0)], 1e5, Reshape(), TIMES) for each in (WORK, moving))
    assert other.changing_s > one.changing_s


def test_events_after_the_end_do_not_count():
    assert simulate(WORK, [Event(5000.0, 0, 0.0)], 1200.0, DROP, TIMES).steps == pytest.approx(10.0)


@pytest.mark.parametrize("name", ["dead_s", "validate_s", "restart_s", "unsaved_s"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_times_that_there_cannot_be_are_refused(name, value):
    with pytest.raises(BadValueError, match="no time"):
        Times(**{name: value})
