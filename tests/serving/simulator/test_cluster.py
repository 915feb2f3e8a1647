"""What a cluster may be."""

import dataclasses
import math
import pickle

import pytest

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import FittedStepTime, RooflineStepTime
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster


def test_the_default_is_sixteen_independent_replicas_of_a_known_model():
    cluster = Cluster()
    assert (cluster.workers, cluster.group_size) == (16, 1)
    assert cluster.step_time == RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B")
    # vLLM's interval.
    assert cluster.refresh_s == 0.1


def test_equal_parameters_make_equal_clusters_that_survive_pickling():
    given = {"workers": 4, "group_size": 2, "step_time": FittedStepTime(overhead_s=1e-3)}
    assert Cluster(**given) == Cluster(**given)
    assert pickle.loads(pickle.dumps(Cluster(**given))) == Cluster(**given)
    both = DisaggregatedCluster(prefill=Cluster(**given), decode=Cluster())
    assert pickle.loads(pickle.dumps(both)) == both


def test_a_cluster_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Cluster().workers = 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 0}, ["out of range", "0", "1 to 100000 workers", "workers"]),
        ({"workers": -3}, ["out of range", "-3"]),
        ({"workers": 6, "group_size": 4}, ["6 workers in groups of 4", "divides", "group_size"]),
        ({"workers": 4, "group_size": 0}, ["out of range", "group_size"]),
        ({"workers": 2, "group_size": 4}, ["2 workers in groups of 4"]),
        ({"max_running": 0}, ["out of range", "max_running"]),
        ({"max_running": 100, "max_batched_tokens": 99}, ["max_batched_tokens=99, max_running=100"]),
        ({"kv_capacity_tokens": 1}, ["out of range", "2 to ", "kv_capacity_tokens"]),
        ({"pool_window": 0}, ["out of range", "1 to 1000000", "pool_window"]),
        ({"sync_s": -1e-9}, ["out of range", "sync_s"]),
        ({"refresh_s": -0.1}, ["out of range", "refresh_s", "-0.1"]),
        ({"refresh_s": math.nan}, ["out of range", "nan"]),
        ({"refresh_s": math.inf}, ["out of range", "inf"]),
        ({"prefix_memory_s": -1.0}, ["out of range", "prefix_memory_s"]),
        ({"kv_watermark": 1.0}, ["out of range", "0 to 0.999", "kv_watermark"]),
        ({"kv_watermark": -0.1}, ["out of range"]),
        ({"max_waiting": -1}, ["out of range", "0 to ", "max_waiting"]),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_with_what_was_given_and_where(given, said):
    with pytest.raises(BadValueError) as error:
        Cluster(**given)
    assert all(part in str(error.value) for part in said)


@pytest.mark.parametrize("name", ["transfer_s_per_token", "transfer_latency_s"])
@pytest.mark.parametrize("value", [-1e-6, math.nan, math.inf])
def test_a_transfer_takes_no_negative_time(name, value):
    with pytest.raises(BadValueError, match=name):
        DisaggregatedCluster(**{name: value})


@pytest.mark.parametrize("kind", [Cluster, DisaggregatedCluster])
def test_every_parameter_says_what_it_is(kind):
    for field in dataclasses.fields(kind):
        assert field.metadata["says"]
