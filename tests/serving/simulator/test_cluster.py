"""What a cluster may be."""

import dataclasses
import math
import pickle

import pytest

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import FittedStepTime, RooflineStepTime
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster, WorkerKind
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads import RequestTrace


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


@pytest.mark.parametrize("name", ["kv_bytes_per_token", "link_bytes_per_s", "transfer_latency_s"])
@pytest.mark.parametrize("value", [-1e-6, math.nan, math.inf])
def test_a_transfer_takes_no_negative_time(name, value):
    with pytest.raises(BadValueError, match=name):
        DisaggregatedCluster(**{name: value})


@pytest.mark.parametrize("kind", [Cluster, DisaggregatedCluster])
def test_every_parameter_says_what_it_is(kind):
    for field in dataclasses.fields(kind):
        assert field.metadata["says"]


class TestKinds:
    def test_a_kind_takes_from_the_cluster_what_it_does_not_name(self):
        fast = FittedStepTime(overhead_s=1e-3)
        cluster = Cluster(
            workers=3, max_running=20, kinds=(WorkerKind(workers=1, kv_capacity_tokens=500), WorkerKind(workers=2)),
            step_time=fast,
        )  # fmt: skip
        assert [each.kv_capacity_tokens for each in cluster.each_worker()] == [500, 400_000, 400_000]
        assert {each.max_running for each in cluster.each_worker()} == {20}
        assert cluster.slots == 60
        assert pickle.loads(pickle.dumps(cluster)) == cluster

    def test_speed_is_a_share_of_the_fastest(self):
        slow, fast = FittedStepTime(overhead_s=4e-3), FittedStepTime(overhead_s=1e-3)
        cluster = Cluster(workers=3, kinds=(WorkerKind(step_time=slow), WorkerKind(workers=2, step_time=fast)))
        assert cluster.speeds() == (0.25, 1.0, 1.0)
        assert Cluster(workers=2).speeds() == (1.0, 1.0)
        devices = [RooflineStepTime(device=device, model="Llama-3.1-8B") for device in ("H100-SXM", "A100-SXM-80GB")]
        mixed = Cluster(workers=2, kinds=tuple(WorkerKind(step_time=each) for each in devices))
        # 3.35 TB/s against 2.04 TB/s, and the same overhead on both.
        assert 0.6 < mixed.speeds()[1] < 0.7

    @pytest.mark.parametrize("group_size", [1, 2])
    def test_each_worker_takes_its_own_time_and_a_barrier_waits_for_the_slower(self, group_size):
        slow, fast = FittedStepTime(overhead_s=4e-3), FittedStepTime(overhead_s=1e-3)
        cluster = Cluster(
            workers=2, group_size=group_size, kinds=(WorkerKind(step_time=slow), WorkerKind(step_time=fast))
        )
        requests = RequestTrace(arrival_s=[0.0, 0.0], prompt_tokens=[10, 10], output_tokens=[5, 5])
        run = simulate(requests, cluster, RoundRobin())
        assert run.worker.tolist() == [0, 1]
        assert run.finish_s == pytest.approx([0.02, 0.005 if group_size == 1 else 0.02])

    def test_slots_and_caches_are_a_workers_own(self):
        kinds = (WorkerKind(max_running=1), WorkerKind(max_running=2), WorkerKind(kv_capacity_tokens=25))
        cluster = Cluster(workers=3, kinds=kinds, step_time=FittedStepTime(overhead_s=1e-3), kv_watermark=0.0)
        requests = RequestTrace(arrival_s=[0.0] * 6, prompt_tokens=[10] * 6, output_tokens=[4] * 6)
        run = simulate(requests, cluster, RoundRobin())
        # Worker 0 runs one after the other, 1 both at once; on 2 both begin and one gives way: 2 * 13 > 25.
        assert run.finish_s[[0, 3]] == pytest.approx([0.004, 0.008])
        assert run.finish_s[[1, 4]] == pytest.approx([0.004, 0.004])
        assert run.preemptions.tolist() == [0, 0, 0, 0, 0, 1]

    @pytest.mark.parametrize(
        ("kinds", "said"),
        [
            ((WorkerKind(workers=3), WorkerKind(workers=2)), ["do not add up", "3 \\+ 2 = 5, workers=16", "workers=5"]),
            (
                (WorkerKind(workers=8), WorkerKind(workers=8, step_time=FittedStepTime(overhead_s=1e-3))),
                ["one class", "RooflineStepTime, FittedStepTime"],
            ),
            ((WorkerKind(workers=8), WorkerKind(workers=8, max_running=5000)), ["max_batched_tokens >= max_running"]),
        ],
    )
    def test_kinds_that_cannot_be_are_refused(self, kinds, said):
        with pytest.raises(BadValueError) as error:
            Cluster(kinds=kinds)
        for text in said:
            assert text.replace("\\", "") in str(error.value)

    def test_a_request_must_fit_into_every_worker_for_a_router_may_choose_any(self):
        cluster = Cluster(workers=2, kinds=(WorkerKind(), WorkerKind(kv_capacity_tokens=50)))
        requests = RequestTrace(arrival_s=[0.0], prompt_tokens=[60], output_tokens=[5])
        with pytest.raises(BadValueError, match="smallest cache of 50"):
            simulate(requests, cluster, RoundRobin())
