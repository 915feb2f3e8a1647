"""Rivals by hand: turns, queues, residency, prefixes and the least cost."""

from __future__ import annotations

import pytest
from tests.serving.workflows.conftest import application, platform

from wavetank.serving.workflows.interface import Application, Stage
from wavetank.serving.workflows.rivals import (
    CommonQueue,
    LeastCost,
    LeastLoaded,
    PrefixFirst,
    ResidencyFirst,
    RoundRobin,
)
from wavetank.serving.workflows.simulate import simulate
from wavetank.workloads.workflows import Workflow


def test_round_robin_by_hand():
    """Two devices, one twice as fast: stages in turn, models loaded at each change."""
    run = simulate(
        [application(((), (0,), (1,)), (2.0, 4.0, 2.0), models=("a", "b", "a"))],
        platform((1.0, 2.0), load_s=3.0), RoundRobin(),
    )  # fmt: skip
    # 3 + 2 on the slow one, 3 + 2 on the fast one, and again a on the slow one, which still has it.
    assert [each.devices for each in run.stages] == [(0,), (1,), (0,)]
    assert run.makespan_s == pytest.approx(5.0 + 5.0 + 2.0)
    assert (sum(each.loads for each in run.stages), run.load_s) == (2, pytest.approx(6.0))


def test_an_output_takes_time_to_another_device_and_none_where_it_is():
    made = application(((), (0,)), (1.0, 1.0), edge_bytes=((), (2e9,)))
    there = simulate([made], platform(network=1e9), RoundRobin())
    assert there.makespan_s == pytest.approx(1 + 2 + 1)
    stays = simulate([made], platform(network=1e9), LeastCost())
    assert stays.makespan_s == pytest.approx(2.0)


def test_the_least_loaded_device_is_the_one_that_would_be_done_first():
    """Three equal stages on devices of speeds 1 and 3: the fast one takes two before the slow one is as good."""
    run = simulate([application(((), (), ()), (3.0, 3.0, 3.0))], platform((1.0, 3.0)), LeastLoaded())
    assert run.makespan_s == pytest.approx(3.0)


def test_residency_is_followed_within_its_limit():
    chain = application(((), (0,), (1,)), (1.0, 1.0, 1.0))
    devices = platform((1.0, 9.0), load_s=0.5)
    held = simulate([chain], devices, ResidencyFirst(most_ahead_s=0.0))
    # Nothing is held before the first stage, which goes to the fast device; the others follow.
    assert {each.devices for each in held.stages} == {(1,)}
    both = application(((), ()), (8.0, 8.0))
    assert len({each.devices for each in simulate([both], platform(), ResidencyFirst(most_ahead_s=1.0)).stages}) == 2
    assert len({each.devices for each in simulate([both], platform(), ResidencyFirst(most_ahead_s=9.0)).stages}) == 1


def test_prefixes_are_followed_where_models_are_everywhere():
    stages = tuple(
        Stage(model="a", prompt_tokens=1000, output_tokens=1, prefix=prefix, prefix_tokens=900) for prefix in "pqpq"
    )
    made = Application(
        workflow=Workflow(name="w", tasks=tuple("wxyz"), parents=((), (0,), (1,), (2,))), stages=stages
    )
    run = simulate([made], platform((1.0, 1.0), room=2, token_bytes=0.5), PrefixFirst())
    assert sum(each.reused_tokens for each in run.stages) == 2 * 900


def test_the_common_queue_is_first_come_first_served_on_the_fastest_idle_device():
    run = simulate([application(((), (), ()), (2.0, 4.0, 6.0))], platform((1.0, 2.0)), CommonQueue())
    assert [each.devices for each in sorted(run.stages, key=lambda each: each.key)] == [(1,), (0,), (1,)]
    assert run.makespan_s == pytest.approx(4.0)


def test_the_least_cost_counts_what_has_to_be_loaded():
    """The fast device would need 5 s to load; the slow one has the model."""
    first = application(((),), (1.0,))
    second = application(((),), (2.0,), arrival_s=10.0)
    slow = platform((1.0, 1.1), load_s=5.0)
    run = simulate([first, second], slow, LeastCost())
    assert run.stages[0].devices == run.stages[1].devices
