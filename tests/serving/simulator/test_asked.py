"""What routers are shown of a trace's requests: known answers, in both simulators."""

import dataclasses

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.routing.baselines import CentralQueue, FewestRequests, RoundRobin
from wavetank.serving.simulator.asked import asked_of, models_of, serving_of
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads import RequestTrace

STEP = FittedStepTime(overhead_s=0.01)


def trace(**columns):
    rows = {"arrival_s": [0.0, 1.0, 2.5], "prompt_tokens": [5, 6, 7], "output_tokens": [3, 2, 1]}
    return RequestTrace(**rows | columns)


def test_where_nothing_is_known_one_row_stands_for_all():
    table = asked_of(trace(), None, None)
    assert table.size == 1
    (row,) = table
    assert np.isnan([row["expected"], row["spread"], row["max_tokens"]]).all()
    assert row["deadline_s"] == np.inf
    assert [row[name] for name in ("model", "adapter", "session", "tier")] == [-1] * 4


def test_each_column_is_the_requests_own():
    asked = trace(
        max_tokens=[0, 9, 8], deadline_s=[np.nan, 0.5, 2.0], session=[4, -1, 4], tier=[1, 0, 1],
        tier_names=("now", "later"), model=[0, 1, 0], model_names=("m", ""), adapter=[0, 1, 2],
        adapter_names=("", "a", "b"),
    )  # fmt: skip
    table = asked_of(asked, np.array([1.0, 2.0, np.nan]), np.array([0.1, np.nan, 0.3]))
    assert table["max_tokens"].tolist()[1:] == [9.0, 8.0]
    assert np.isnan(table["max_tokens"][0])
    assert table["deadline_s"].tolist() == [np.inf, 1.5, 4.5]
    assert table["session"].tolist() == [0, -1, 0]
    assert table["tier"].tolist() == [1, 0, 1]
    assert table["model"].tolist() == [0, -1, 0]
    assert table["adapter"].tolist() == [-1, 0, 1]
    assert table["expected"].tolist()[:2] == [1.0, 2.0]
    assert table["spread"].tolist()[::2] == [0.1, 0.3]


def test_models_without_a_name_are_none():
    assert models_of(trace()) is None
    assert models_of(trace(model=[0, 0, 0], model_names=("",))) is None


def test_a_model_that_no_worker_has_is_named():
    asked = trace(model=[0, 1, 0], model_names=("big", "huge"))
    cluster = Cluster(workers=2, models=(("big",), ("big", "small")), step_time=STEP)
    with pytest.raises(BadValueError, match="row 2: 'huge'"):
        serving_of(asked, cluster)
    with pytest.raises(BadValueError, match="huge"):
        simulate(asked, cluster, RoundRobin())
    assert serving_of(asked, Cluster(workers=2)) is None
    assert serving_of(trace(model=[0, 1, 0], model_names=("big", "small")), cluster).tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize("models", [(("a",),), (("a",), ()), ("a", "b"), (("a",), ("",)), (("a",), (1,))])
def test_models_of_workers_are_checked(models):
    with pytest.raises(BadValueError, match="models"):
        Cluster(workers=2, models=models)


class Stubborn:
    """Sends everything to worker 0."""

    def initial_state(self, workers):
        return np.zeros(0)

    def parameters(self):
        return np.zeros(0)

    def choose(self, view, arrival, state, parameters):
        return 0


class StubbornPool(Stubborn):
    choose = None

    def place(self, view, pool, active, state, parameters, placed):
        placed[:] = 0
        return placed.size


def test_a_router_that_sends_a_request_where_its_model_is_not_is_named():
    asked = trace(model=[0, 1, 0], model_names=("big", "small"))
    cluster = Cluster(workers=2, models=(("big",), ("big", "small")), step_time=STEP)
    for router in (Stubborn(), StubbornPool()):
        with pytest.raises(WavetankError, match="has not the request's model") as raised:
            simulate(asked, cluster, router)
        assert type(router).__name__ in str(raised.value)
    for router in (RoundRobin(), FewestRequests(), CentralQueue()):
        assert simulate(asked, cluster, router).worker[1] == 1
    everywhere = dataclasses.replace(cluster, models=None)
    assert simulate(asked, everywhere, Stubborn()).worker.tolist() == [0, 0, 0]
