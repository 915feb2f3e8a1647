"""FATE's decisions: known cases by hand, its program against all choices, and what it becomes at its limits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.workflows.conftest import application, platform

from wavetank.errors import UnknownNameError
from wavetank.serving.workflows.dispatcher import Dispatcher
from wavetank.serving.workflows.fate import Candidate, Fate, greedy, solved
from wavetank.serving.workflows.interface import Application, Stage
from wavetank.serving.workflows.list_scheduling import ListScheduling
from wavetank.serving.workflows.rivals import LeastCost, RoundRobin
from wavetank.serving.workflows.simulate import simulate
from wavetank.workloads.workflows import Workflow

pytest.importorskip("ortools")


def test_an_alternating_chain_pins_a_model_on_each_device_where_round_robin_loads_again():
    """Three devices in turn meet two models in turn: nearly every stage finds the wrong model."""
    models = ("a", "b") * 6
    chain = application(tuple((i - 1,) if i else () for i in range(12)), (1.0,) * 12, models=models)
    three = platform((1.0, 1.0, 1.0), load_s=5.0)
    found = simulate([chain], three, Fate())
    turns = simulate([chain], three, RoundRobin())
    assert sum(each.loads for each in found.stages) == 2
    assert sum(each.loads for each in turns.stages) == 12
    assert found.makespan_s == pytest.approx(12 + 2 * 5)
    assert turns.makespan_s == pytest.approx(12 * 6)


def test_a_stage_waits_for_a_busy_device_that_has_its_model():
    """The other device is idle; loading there takes 20 s, waiting 3 s."""
    first, second = application(((),), (5.0,)), application(((),), (1.0,), arrival_s=22.0)
    run = simulate([first, second], platform(load_s=20.0), Fate())
    assert run.stages[0].devices == run.stages[1].devices
    assert run.finish_s == pytest.approx((25.0, 26.0))


def test_without_a_future_and_with_one_candidate_it_is_the_greedy_earliest_finish():
    plain = Fate(future_weight=0.0, cost_weight=1.0, looks_at="", candidates=1, shard_penalty_s=0.0)
    for seed in range(5):
        # A chain has one ready stage at a time, so that nothing but where it ends first can matter.
        chain = application(
            tuple((i - 1,) if i else () for i in range(8)), tuple(1.0 + (seed * 7 + i * 3) % 5 for i in range(8)),
            models=tuple("ab"[(seed + i * i) % 2] for i in range(8)),
        )  # fmt: skip
        devices = platform((1.0, 1.7), load_s=2.0)
        ours, theirs = simulate([chain], devices, plain), simulate([chain], devices, LeastCost())
        assert [each.devices for each in ours.stages] == [each.devices for each in theirs.stages]


@pytest.mark.parametrize("seed", range(4))
def test_where_nothing_is_kept_and_devices_are_alike_it_is_as_good_as_heft(seed):
    import random

    rng = random.Random(seed)
    parents = tuple(
        tuple(sorted(rng.sample(range(i), min(i, rng.randint(1, 2))))) if i else () for i in range(24)
    )
    made = application(parents, tuple(rng.uniform(0.5, 5.0) for _ in range(24)))
    alike = platform((1.0, 1.0, 1.0), models=("a",))
    assert simulate([made], alike, Fate()).makespan_s <= 1.05 * simulate([made], alike, ListScheduling()).makespan_s


def test_a_warm_prefix_draws_a_stage_that_has_a_choice():
    """Equal devices; the second stage's prefix lies on one of them and is nine tenths of its prompt."""
    stages = (
        Stage(model="a", prompt_tokens=1000, output_tokens=1, prefix="p", prefix_tokens=900),
        Stage(model="a", prompt_tokens=1000, output_tokens=1, prefix="p", prefix_tokens=900),
    )
    made = Application(workflow=Workflow(name="w", tasks=("x", "y"), parents=((), (0,))), stages=stages)
    run = simulate([made], platform(room=2, token_bytes=0.1), Fate())
    assert run.stages[0].devices == run.stages[1].devices
    assert run.stages[1].reused_tokens == 900


def candidates_of(rows):
    return [
        Candidate((0, stage), tuple(sorted(devices)), cost, float(score)) for stage, devices, cost, score in rows
    ]


rows = st.lists(
    st.tuples(
        st.integers(0, 3), st.frozensets(st.integers(0, 3), min_size=1, max_size=2), st.just(1.0), st.integers(-9, 20)
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@given(rows, st.lists(st.integers(0, 20), min_size=4, max_size=4))
@settings(deadline=None)
def test_the_program_chooses_as_well_as_trying_everything(given_rows, worth):
    found = candidates_of(given_rows)
    reward = {(0, stage): float(value) for stage, value in enumerate(worth)}

    def allowed(chosen):
        stages = [each.key for each in chosen]
        devices = [device for each in chosen for device in each.devices]
        return len(set(stages)) == len(stages) and len(set(devices)) == len(devices)

    def value(chosen):
        return sum(each.score_s - reward[each.key] for each in chosen)

    best = min(
        value(chosen)
        for size in range(len(found) + 1)
        for chosen in itertools.combinations(found, size)
        if allowed(chosen)
    )
    plan = solved(found, reward, 1.0)
    assert plan is not None
    assert allowed(plan)
    assert value(plan) == pytest.approx(best)
    second = greedy(found, reward)
    assert allowed(second)
    assert value(second) >= best - 1e-9


@pytest.mark.parametrize("wrong", ["residensy", "residency,,prefixes", "all"])
def test_a_dimension_that_does_not_exist_is_refused_instead_of_left_out(wrong):
    with pytest.raises(UnknownNameError, match="residency"):
        Fate(looks_at=wrong)
    assert Fate(looks_at="prefixes, locality").dimensions == {"prefixes", "locality"}
    assert Fate(looks_at="").dimensions == frozenset()


def test_equal_runs_are_equal():
    made = application(((), (0,), (0,), (1, 2)), (1.0, 2.0, 3.0, 1.0), models=("a", "b", "a", "b"))
    devices = platform((1.0, 1.3), load_s=1.0)
    one, other = (simulate([made], devices, Fate()) for _ in range(2))
    assert one.stages == other.stages


def test_what_is_expected_and_not_what_will_be_is_seen():
    """The same lengths expected, other lengths written: the first decision is the same."""
    views = []
    for written in (1, 400):
        stage = Stage(model="a", prompt_tokens=900, output_tokens=written, expected_tokens=50.0)
        other = Stage(model="b", prompt_tokens=900, output_tokens=50)
        made = Application(workflow=Workflow(name="w", tasks=("x", "y"), parents=((), ())), stages=(stage, other))
        devices = platform((1.0, 2.0))
        books = Dispatcher(platform=devices, scheduler=Fate(), record=True)
        simulate([made], devices, Fate(), dispatcher=books)
        views.append(books.views[0][1])
    assert views[0] == views[1]
