"""A real lockstep group: the same accounting as a simulation, real processes, and what happens when one is lost."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.machine.threads import usable_cores
from wavetank.platforms.step_time import PS_PER_S, FittedStepTime, step_ps
from wavetank.serving.routing.balance_route import BalanceRoute
from wavetank.serving.routing.barrier import (
    LockstepGroup,
    check_cores,
    decode_for_real,
    group_cluster,
    simulated,
)
from wavetank.serving.routing.barrier_worker import GroupShape
from wavetank.serving.routing.baselines import FewestKVTokens, FewestRequests, RoundRobin
from wavetank.serving.routing.vllm_default import VLLMDefault
from wavetank.workloads.generate import generate_requests
from wavetank.workloads.requests import RequestTrace

ROUTERS = [VLLMDefault(), RoundRobin(), FewestRequests(), FewestKVTokens(), BalanceRoute(horizon_steps=0),
           BalanceRoute(), BalanceRoute(termination="logistic")]  # fmt: skip
LAW = FittedStepTime(overhead_s=2e-5, per_request_s=3e-6, per_context_token_s=9e-8)
SYNC_S = 5e-5

two_cores = pytest.mark.skipif(usable_cores() < 2, reason="two workers need two cores")


def traffic(n, seed=0, rate_per_s=60.0, longest=300):
    made = generate_requests(rate_per_s=rate_per_s, n_requests=n, seed=seed)
    return RequestTrace(
        arrival_s=made.arrival_s,
        prompt_tokens=np.clip(made.prompt_tokens, 1, longest),
        output_tokens=np.clip(made.output_tokens, 2, longest // 2),
    )


def shape_for(requests, workers=2, slots=4):
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    return GroupShape(workers=workers, slots=slots, longest_tokens=longest, head_dim=16, query_heads=2)


class ModelledGroup(LockstepGroup):
    """A group without processes: a step takes what a law says."""

    def __init__(self, shape):
        self.shape = shape
        self.steps = []
        self.clock_s = 0.0

    def copy_bytes_per_s(self):
        return 1e9

    def step(self, workers, cluster, prefilled_pool):
        decoding, context = [], []
        for worker in workers:
            worker.plan(prefilled_pool)
            decoding.append(len(worker.decoding))
            context.append(worker.context)
        works_ps = [step_ps(LAW, r, c) if r else 0 for r, c in zip(decoding, context, strict=True)]
        step = max(works_ps) + round(SYNC_S * PS_PER_S)
        began = self.clock_s
        self.clock_s += step / PS_PER_S
        ended = [began + work / PS_PER_S for work in works_ps]
        self.steps.append((began, self.clock_s, [began] * len(workers), ended, decoding, context))
        # The coordinator is not infinitely fast, and its time does not count.
        self.clock_s += 1.0
        return step


class TestAccounting:
    @pytest.mark.parametrize("router", ROUTERS, ids=repr)
    @pytest.mark.parametrize(("workers", "refresh_s", "rate_per_s"), [(2, 0.0, 60.0), (3, 0.003, 200.0), (1, 0.1, 5.0)])
    def test_a_run_whose_steps_follow_a_law_is_the_run_that_the_simulator_predicts(
        self, router, workers, refresh_s, rate_per_s
    ):
        requests = traffic(60, rate_per_s=rate_per_s)
        shape = shape_for(requests, workers)
        real = decode_for_real(requests, router, ModelledGroup(shape), refresh_s=refresh_s)
        twin = simulated(requests, router, real, shape, refresh_s=refresh_s)
        fit, r_squared = real.fitted()
        assert r_squared == pytest.approx(1)
        assert fit.per_context_token_s == pytest.approx(LAW.per_context_token_s)
        np.testing.assert_allclose(real.finish_s, twin.finish_s, rtol=1e-6)
        # In a simulation prompts run on a worker of their own, which has the first number.
        assert (real.worker + 1).tolist() == twin.worker.tolist()
        assert twin.preemptions.tolist() == [0] * 60
        assert real.makespan_s == pytest.approx(twin.makespan_s)

    def test_what_is_counted_adds_up(self):
        requests = traffic(80, rate_per_s=300.0)
        real = decode_for_real(requests, RoundRobin(), ModelledGroup(shape_for(requests)), refresh_s=0.003)
        assert real.decode_requests.sum() == (requests.output_tokens - 1).sum()
        # The newest token of a step is not counted: a request reads p, p + 1, ..., p + o - 2 tokens.
        lengths = zip(requests.prompt_tokens.tolist(), requests.output_tokens.tolist(), strict=True)
        assert real.context_tokens.sum() == sum(sum(range(p, p + o - 1)) for p, o in lengths)
        found = real.metrics()
        assert found["barrier_s"] == pytest.approx(SYNC_S)
        assert found["between_steps_s"] == pytest.approx(1)
        chosen = real.counted
        assert 0 < chosen.sum() < chosen.size
        idle = [2 * max(row) - sum(row) for row in real.context_tokens[chosen].tolist()]
        assert found["imbalance_tokens"] == pytest.approx(np.mean(idle))
        assert found["step_s"] == pytest.approx(real.step_s[chosen].mean())
        waited = real.work_s[chosen].max(axis=1, keepdims=True) - real.work_s[chosen]
        assert found["waiting_share"] == pytest.approx(waited.sum() / 2 / real.step_s[chosen].sum())
        start_s, end_s = real.window_s
        assert found["throughput_tokens_per_s"] == pytest.approx(real.decode_requests[chosen].sum() / (end_s - start_s))

    def test_more_even_loads_wait_less(self):
        requests = traffic(200, rate_per_s=300.0, longest=4000)
        worst, best = (
            decode_for_real(requests, router, ModelledGroup(shape_for(requests)), refresh_s=0.003).metrics()
            for router in (RoundRobin(), BalanceRoute())
        )
        for name in ("imbalance_tokens", "waiting_share", "step_s"):
            assert best[name] < worst[name]
        assert best["throughput_tokens_per_s"] > worst["throughput_tokens_per_s"]

    def test_requests_that_come_at_once_are_counted_over_the_whole_run(self):
        requests = RequestTrace(arrival_s=np.zeros(6), prompt_tokens=np.full(6, 50), output_tokens=np.full(6, 9))
        real = decode_for_real(requests, RoundRobin(), ModelledGroup(shape_for(requests)), refresh_s=0.0)
        assert real.counted.all()
        assert real.window_s == (0.0, real.makespan_s)
        assert real.metrics()["throughput_tokens_per_s"] == pytest.approx(6 * 8 / real.makespan_s)

    def test_the_cluster_of_a_group_never_preempts(self):
        cluster = group_cluster(GroupShape(workers=3, slots=5, longest_tokens=100), refresh_s=0.01)
        assert (cluster.workers, cluster.group_size, cluster.max_running) == (3, 3, 5)
        assert (cluster.kv_capacity_tokens, cluster.kv_watermark) == (500, 0.0)

    @pytest.mark.parametrize(("prompt", "output"), [(10, 1), (200, 101)])
    def test_requests_that_a_group_cannot_decode_are_refused(self, prompt, output):
        requests = RequestTrace(arrival_s=[0.0, 1.0], prompt_tokens=[10, prompt], output_tokens=[5, output])
        group = ModelledGroup(GroupShape(workers=2, slots=2, longest_tokens=300))
        with pytest.raises(BadValueError, match="cannot be decoded"):
            decode_for_real(requests, RoundRobin(), group, refresh_s=0.0)


@two_cores
class TestProcesses:
    @pytest.mark.parametrize("router", [VLLMDefault(), BalanceRoute()], ids=repr)
    def test_every_request_is_decoded_to_its_end_by_a_real_group(self, router):
        requests = traffic(24, rate_per_s=2000.0, longest=200)
        with LockstepGroup(shape_for(requests)) as group:
            real = decode_for_real(requests, router, group, refresh_s=0.001)
            assert [process.running for process in group.processes] == [True, True]
            assert not group.plan.load_tokens.any()
        assert [process.returncode for process in group.processes] == [0, 0]
        assert real.decode_requests.sum() == (requests.output_tokens - 1).sum()
        assert (real.finish_s > requests.arrival_s).all()
        assert set(real.worker.tolist()) == {0, 1}
        # The order of events, on one clock for all processes.
        assert (real.released_s[:, None] <= real.started_s).all()
        assert (real.started_s < real.ended_s).all()
        assert (real.ended_s <= real.reached_s[:, None]).all()
        assert (real.released_s[1:] > real.reached_s[:-1]).all()
        assert all(np.isfinite(value) and value > 0 for value in real.metrics().values())
        assert simulated(requests, router, real, group.shape, refresh_s=0.001).makespan_s > 0

    def test_a_group_can_be_used_again_with_its_slots_empty(self):
        requests = traffic(10, rate_per_s=2000.0, longest=100)
        with LockstepGroup(shape_for(requests)) as group:
            assert group.full_step_s(50, 3) > 0
            first, second = (decode_for_real(requests, RoundRobin(), group, refresh_s=0.0) for _ in range(2))
        assert first.decode_requests.sum() == second.decode_requests.sum()
        assert first.released_s[-1] < second.released_s[0]

    def test_workers_are_bound_to_cores_of_their_own(self):
        if not hasattr(os, "sched_getaffinity"):
            pytest.skip("this system does not bind processes")
        with LockstepGroup(GroupShape(workers=2, slots=1, longest_tokens=10)) as group:
            cores = [os.sched_getaffinity(process.pid) for process in group.processes]
        assert [len(each) for each in cores] == [1, 1]
        assert cores[0] != cores[1]

    def test_more_workers_than_cores_are_refused(self):
        with pytest.raises(BadValueError, match="a core of its own") as caught:
            check_cores(usable_cores() + 1)
        assert caught.value.allowed == f"up to {usable_cores()} on this machine"
        with pytest.raises(BadValueError):
            LockstepGroup(GroupShape(workers=usable_cores() + 1, slots=1, longest_tokens=10))


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # What ended stays as a zombie until somebody waits for it.
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until(true, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


@two_cores
class TestLosses:
    # Long enough that the signal comes while it runs: hours of decoding.
    ENDLESS = RequestTrace(
        arrival_s=np.linspace(0, 0.001, 8), prompt_tokens=np.full(8, 50), output_tokens=np.full(8, 5_000_000)
    )
    SHAPE = GroupShape(workers=2, slots=4, longest_tokens=5_000_100, head_dim=8, query_heads=1)

    def decode(self, group):
        decode_for_real(self.ENDLESS, RoundRobin(), group, refresh_s=0.01)

    def test_a_killed_worker_ends_the_run_with_an_error_and_leaves_no_process(self):
        with pytest.raises(WavetankError, match=r"Worker 1 of the lockstep group is gone: killed by signal 9"):  # noqa: SIM117
            with LockstepGroup(self.SHAPE) as group:
                threading.Timer(0.3, os.kill, (group.processes[1].pid, signal.SIGKILL)).start()
                self.decode(group)
        assert [process.running for process in group.processes] == [False, False]

    def test_a_worker_that_hangs_is_given_up_and_ended(self, monkeypatch):
        with LockstepGroup(self.SHAPE) as group:
            os.kill(group.processes[1].pid, signal.SIGSTOP)
            real, limits = group._poll, iter((None,))
            # The other worker has as long as it takes; only the wait for the one that hangs has a limit.
            monkeypatch.setattr(group, "_poll", SimpleNamespace(poll=lambda ms: real.poll(next(limits, ms))))
            monkeypatch.setattr(group, "_timeout_s", 0.1)
            with pytest.raises(WavetankError, match=r"did not reach the barrier of a step in 0\.1 s") as caught:
                self.decode(group)
        assert caught.value.given == "worker 1"
        assert [process.running for process in group.processes] == [False, False]

    def test_a_worker_that_cannot_start_says_why(self):
        impossible = GroupShape(workers=2, slots=1 << 20, longest_tokens=1 << 30)
        with pytest.raises(WavetankError, match=r"Worker [01] of the lockstep group is gone: exit code 1") as caught:
            LockstepGroup(impossible).__enter__()
        assert "allocate" in caught.value.given

    @pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
    def test_workers_do_not_outlive_their_coordinator(self, which, tmp_path):
        script = tmp_path / "endless.py"
        script.write_text(
            "import numpy as np\n"
            "from wavetank.serving.routing.barrier import LockstepGroup, decode_for_real\n"
            "from wavetank.serving.routing.barrier_worker import GroupShape\n"
            "from wavetank.serving.routing.baselines import RoundRobin\n"
            "from wavetank.workloads.requests import RequestTrace\n"
            "n = np.full(8, 5_000_000)\n"
            "requests = RequestTrace(arrival_s=np.zeros(8), prompt_tokens=np.full(8, 50), output_tokens=n)\n"
            "shape = GroupShape(workers=2, slots=4, longest_tokens=5_000_100, head_dim=8, query_heads=1)\n"
            "with LockstepGroup(shape) as group:\n"
            "    print(*(process.pid for process in group.processes), flush=True)\n"
            "    decode_for_real(requests, RoundRobin(), group, refresh_s=0.01)\n"
        )
        process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            pids = [int(word) for word in process.stdout.readline().split()]
            assert len(pids) == 2
            time.sleep(0.2)
            process.send_signal(which)
            process.wait(20)
            assert wait_until(lambda: all(map(gone, pids)))
        assert process.returncode != 0
