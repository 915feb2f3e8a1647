"""Limits on threads are obeyed, undone exactly, and leave nobody behind."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import ThreadpoolController, threadpool_limits

from wavetank.errors import BadValueError
from wavetank.machine import threads
from wavetank.machine.threads import allowed_threads, libraries_limited, together, usable_cores

two_cores = pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def blas() -> list[Any]:
    import scipy.linalg  # noqa: F401 - loads a second BLAS

    return [each for each in ThreadpoolController().lib_controllers if each.user_api == "blas"]


def counts() -> list[int]:
    return [each.get_num_threads() for each in blas()]


@pytest.fixture
def many() -> Iterator[int]:
    """Give every BLAS several threads, whatever the machine has."""
    before = [(each, each.get_num_threads()) for each in blas()]
    for each, _ in before:
        threads._setter_of(each)(4)
    yield 4
    for each, number in before:
        threads._setter_of(each)(number)


class TestAllowedThreads:
    def test_is_the_affinity_where_nothing_else_is_said(self) -> None:
        code = "from wavetank.machine.threads import *; print(allowed_threads(), usable_cores())"
        clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
        found = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
        allowed, cores = map(int, found.stdout.split())
        assert 1 <= allowed <= cores

    def test_the_caller_s_number_binds_and_never_raises(self) -> None:
        assert allowed_threads(1) == 1
        assert allowed_threads(10**6) == allowed_threads()
        assert allowed_threads(np.int64(1)) == 1  # type: ignore[arg-type]

    @pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
    def test_refuses_what_is_no_number_of_threads(self, wrong: Any) -> None:
        with pytest.raises(BadValueError, match="whole number"):
            allowed_threads(wrong)
        with pytest.raises(BadValueError, match="whole number"):
            libraries_limited(wrong)

    @pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "NUMBA_NUM_THREADS"])
    @pytest.mark.parametrize("text", ["1", " 1 ", "1,4"])
    def test_variables_bind(self, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
        monkeypatch.setattr(threads, "usable_cores", lambda: 8)
        monkeypatch.setenv(name, text)
        assert allowed_threads() == 1

    @pytest.mark.parametrize("text", ["", "0", "-2", "many", "²", ",2"])
    def test_a_variable_without_a_number_is_no_limit(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        free = allowed_threads()
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert allowed_threads() == free

    def test_the_quota_binds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(threads, "usable_cores", lambda: 8)
        monkeypatch.setattr(threads, "cpu_quota", lambda: 1)
        monkeypatch.setattr(threads, "_quota_seen", (-1.0, None))
        assert allowed_threads() == 1
        monkeypatch.setattr(threads, "_quota_seen", (-1.0, None))

    @two_cores
    def test_affinity_binds_for_the_thread_that_has_it(self) -> None:
        def narrow() -> int:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            return allowed_threads()

        found = []
        thread = threading.Thread(target=lambda: found.append(narrow()))
        thread.start()
        thread.join()
        assert found == [1]
        assert usable_cores() > 1

    @two_cores
    def test_threadpool_limits_bind_and_end(self, many: int) -> None:
        free = allowed_threads()
        with threadpool_limits(1):
            assert allowed_threads() == 1
        with threadpool_limits(1, user_api="blas"):
            assert allowed_threads() == 1
        assert allowed_threads() == free > 1

    @two_cores
    def test_torch_s_number_binds_once_torch_is_there(self) -> None:
        code = """
            import sys
            from wavetank.machine.threads import allowed_threads
            allowed_threads()
            assert "torch" not in sys.modules and "numba" not in sys.modules
            import torch
            assert allowed_threads() > 1
            torch.set_num_threads(1)
            print(allowed_threads())
        """
        pytest.importorskip("torch")
        assert run(code).split() == ["1"]

    @two_cores
    def test_numba_s_number_binds_where_its_threads_run(self) -> None:
        import numba

        free = allowed_threads()
        numba.set_num_threads(1)
        try:
            assert allowed_threads() == 1
        finally:
            numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        assert allowed_threads() == free

    @two_cores
    def test_our_own_limit_does_not_count_as_the_user_s(self, many: int) -> None:
        free = allowed_threads()
        with libraries_limited(1):
            assert counts() == [1] * len(counts())
            assert allowed_threads() == free

    @two_cores
    def test_workers_of_joblib_get_their_share(self) -> None:
        joblib = pytest.importorskip("joblib")
        with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
            assert joblib.Parallel(n_jobs=2)(joblib.delayed(allowed_threads)() for _ in range(2)) == [1, 1]


def run(code: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment | variables, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found.stdout


class TestLibrariesLimited:
    def test_limits_for_the_block_and_then_no_more(self, many: int) -> None:
        before = counts()
        with libraries_limited(1):
            assert set(counts()) == {1}
        assert counts() == before

    def test_never_raises_a_number(self, many: int) -> None:
        with threadpool_limits(1), libraries_limited(2):
            assert set(counts()) == {1}
        assert set(counts()) == {many}

    def test_the_least_of_several_is_in_force(self, many: int) -> None:
        with libraries_limited(2):
            with libraries_limited(1):
                assert set(counts()) == {1}
            assert set(counts()) == {2}

    def test_an_error_and_an_interrupt_end_it(self, many: int) -> None:
        before = counts()
        for error in (ValueError, KeyboardInterrupt, GeneratorExit):
            with pytest.raises(error), libraries_limited(1):
                raise error
            assert counts() == before

    def test_blocks_that_end_in_another_order_than_they_began(self, many: int) -> None:
        before = counts()
        blocks = [libraries_limited(1) for _ in range(4)]
        for each in blocks:
            each.__enter__()
        for each in (blocks[1], blocks[0], blocks[3]):
            each.__exit__(None, None, None)
            assert set(counts()) == {1}
        blocks[2].__exit__(None, None, None)
        assert counts() == before

    def test_a_block_that_was_never_left_ends_with_its_object(self, many: int) -> None:
        before = counts()
        block = libraries_limited(1)
        block.__enter__()
        assert set(counts()) == {1}
        del block
        end = time.monotonic() + 30
        while counts() != before and time.monotonic() < end:
            time.sleep(0.001)
        assert counts() == before

    def test_a_user_s_own_limit_inside_is_kept(self, many: int) -> None:
        before = counts()
        with libraries_limited(1):
            with threadpool_limits(2, user_api="blas"):
                assert set(counts()) == {2}
                with libraries_limited(1):
                    assert set(counts()) == {1}
                assert set(counts()) == {2}
            assert set(counts()) == {1}
        assert counts() == before

    def test_a_user_s_limit_that_outlives_the_block_leads_to_no_lower_number(self, many: int) -> None:
        before = counts()
        block = libraries_limited(1)
        block.__enter__()
        user = threadpool_limits(3, user_api="blas")
        block.__exit__(None, None, None)
        assert set(counts()) == {3}
        user.restore_original_limits()
        allowed_threads()
        assert counts() == before

    def test_threads_at_once_leave_everything_as_it_was(self, many: int) -> None:
        before, affinity = counts(), os.sched_getaffinity(0)
        wrong: list[str] = []

        def work(seed: int) -> None:
            dice = random.Random(seed)
            for _ in range(40):
                with libraries_limited(1):
                    time.sleep(dice.random() / 2000)
                    if set(counts()) != {1}:
                        wrong.append("raised inside a block")

        pool = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for each in pool:
            each.start()
        for each in pool:
            each.join()
        assert not wrong
        assert counts() == before
        assert os.sched_getaffinity(0) == affinity

    @settings(max_examples=300, deadline=None)
    @given(data=st.data())
    def test_any_interleaving_of_blocks_and_user_s_limits(self, data: st.DataObject) -> None:
        # A library that is nothing but a number; the user's blocks nest, ours end in any order.
        # No two numbers are equal: such could not be told apart.
        number = [100]
        setting = threads._Setting(lambda: number[0], lambda new: number.__setitem__(0, new), 100)
        order = data.draw(st.permutations(range(1, 31)))
        ours: list[Any] = []
        users: list[int] = []
        smaller, others = iter(order), itertools.count(101)
        for _ in range(data.draw(st.integers(1, 30))):
            step = data.draw(st.sampled_from(["enter", "leave", "user", "user leaves"]))
            if step == "enter":
                request = threads._Request(next(smaller))
                setting.enter(request)
                ours.append(request)
                assert number[0] <= request.threads
            elif step == "leave" and ours:
                ours.pop(data.draw(st.integers(0, len(ours) - 1))).ended = True
                setting.settle()
            elif step == "user":
                users.append(number[0])
                number[0] = next(others)
            elif step == "user leaves" and users:
                number[0] = users.pop()
                setting.settle()
        for request in ours:
            request.ended = True
            setting.settle()
        while users:
            number[0] = users.pop()
            setting.settle()
        setting.settle()
        assert number == [100]
        assert not setting.layers

    @two_cores
    def test_torch_is_limited_in_this_thread_alone(self) -> None:
        torch = pytest.importorskip("torch")
        before = torch.get_num_threads()
        if before < 2:
            pytest.skip("torch has one thread here")
        found: list[int] = []
        with libraries_limited(1):
            assert torch.get_num_threads() == 1
            new = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
            new.start()
            new.join()
        assert torch.get_num_threads() == before
        assert found == [before], "a thread that began meanwhile would keep the limit for good"

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_child_is_free_of_the_limits_of_threads_it_does_not_have(self) -> None:
        code = """
            import os, threading, numpy
            from threadpoolctl import ThreadpoolController
            from wavetank.machine.threads import libraries_limited
            pools = [each for each in ThreadpoolController().lib_controllers if each.user_api == "blas"]
            for each in pools:
                each.set_num_threads(2)
            began, end = threading.Event(), threading.Event()
            def other():
                with libraries_limited(1):
                    began.set()
                    end.wait()
            thread = threading.Thread(target=other)
            thread.start()
            began.wait()
            child = os.fork()
            if not child:
                os._exit(0 if all(each.get_num_threads() == 2 for each in pools) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert all(each.get_num_threads() == 1 for each in pools)
            end.set()
            thread.join()
            assert all(each.get_num_threads() == 2 for each in pools)
        """
        run(code)

    def test_interrupts_at_any_moment_leave_nothing_behind(self) -> None:
        # Signals come every fraction of a millisecond, into whatever the main thread is doing.
        code = """
            import signal, time, numpy
            from threadpoolctl import ThreadpoolController
            from wavetank.machine.threads import allowed_threads, libraries_limited, together
            pools = [each for each in ThreadpoolController().lib_controllers if each.user_api == "blas"]
            for each in pools:
                each.set_num_threads(2)
            allowed_threads(), together(abs, [(1,), (2,)], 2)

            def alarm(*_):
                raise KeyboardInterrupt

            signal.signal(signal.SIGALRM, alarm)
            interrupted = 0
            end = time.monotonic() + 3
            while time.monotonic() < end:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.00005 + 0.0003 * (interrupted % 7) / 7)
                    # Python drops an interrupt that comes within a finaliser; the next round sets another alarm.
                    for _ in range(1000):
                        with libraries_limited(1):
                            together(abs, [(1,), (2,), (3,)], 2)
                except KeyboardInterrupt:
                    interrupted += 1
                    signal.setitimer(signal.ITIMER_REAL, 0)
            assert interrupted > 100, interrupted
            allowed_threads()
            assert all(each.get_num_threads() == 2 for each in pools)
            assert together(abs, [(-1,), (-2,), (-3,)], 2) == [1, 2, 3]
        """
        run(code)


class TestTogether:
    @pytest.mark.parametrize("pool", [1, 2, 5])
    def test_results_come_in_the_order_of_the_calls(self, pool: int) -> None:
        assert together(lambda a, b: a - b, [(i, 1) for i in range(50)], pool) == list(range(-1, 49))
        assert together(print, [], pool) == []

    def test_at_most_so_many_work_at_once(self) -> None:
        lock, at_work, most = threading.Lock(), [0], [0]

        def call() -> None:
            with lock:
                at_work[0] += 1
                most[0] = max(most[0], at_work[0])
            time.sleep(0.002)
            with lock:
                at_work[0] -= 1

        together(call, [()] * 20, 3)
        assert most[0] == 3

    def test_calls_may_wait_for_one_another(self) -> None:
        barrier = threading.Barrier(4, timeout=30)
        assert sorted(together(barrier.wait, [()] * 4, 4)) == [0, 1, 2, 3]

    def test_a_call_may_use_the_crew_itself(self) -> None:
        def outer(n: int) -> int:
            return sum(together(lambda i: i * n, [(i,) for i in range(4)], 4))

        assert together(outer, [(n,) for n in range(6)], 3) == [6 * n for n in range(6)]

    def test_the_workers_are_shared(self) -> None:
        def workers() -> int:
            return len([each for each in threading.enumerate() if each.name == "wavetank pool"])

        barrier = threading.Barrier(3, timeout=30)
        together(barrier.wait, [()] * 3, 3)
        before = workers()
        assert before >= 2
        for _ in range(500):
            together(lambda i: i, [(i,) for i in range(3)], 3)
        assert workers() <= before + 6

    def test_the_first_error_is_raised_when_no_call_is_at_work_any_more(self) -> None:
        at_work = [0]

        def call(i: int) -> None:
            at_work[0] += 1
            time.sleep(0.01)
            at_work[0] -= 1
            raise ValueError(i)

        with pytest.raises(ValueError, match="0"):
            together(call, [(i,) for i in range(20)], 2)
        assert at_work == [0]

    def test_arrays_are_let_go(self) -> None:
        import weakref

        array = np.zeros(10)
        gone = weakref.ref(array)
        together(lambda a: None, [(array,), (array,)], 2)
        del array
        end = time.monotonic() + 10
        while gone() is not None and time.monotonic() < end:
            time.sleep(0.01)
        assert gone() is None

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_has_a_crew_of_its_own(self) -> None:
        code = """
            import os, threading
            from wavetank.machine.threads import forks, together
            barrier = threading.Barrier(3, timeout=30)
            together(barrier.wait, [()] * 3, 3)
            child = os.fork()
            if not child:
                barrier = threading.Barrier(3, timeout=30)
                os._exit(0 if sorted(together(barrier.wait, [()] * 3, 3)) == [0, 1, 2] and forks() == 1 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert forks() == 0
        """
        run(code)

    def test_ctrl_c_begins_no_further_call_and_waits_for_those_at_work(self, tmp_path: Path) -> None:
        code = """
            import sys, threading, time
            from wavetank.machine.threads import together
            at_work, begun, lock = [0], [0], threading.Lock()
            def call():
                with lock:
                    at_work[0] += 1
                    begun[0] += 1
                time.sleep(0.1)
                with lock:
                    at_work[0] -= 1
            print("ready", flush=True)
            try:
                together(call, [()] * 1000, 3)
            except KeyboardInterrupt:
                with lock:
                    # The caller's own call is the one that was interrupted.
                    print(at_work[0] <= 1 and begun[0] < 100, flush=True)
                before = begun[0]
                time.sleep(0.3)
                print(begun[0] == before)
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
        assert (out.split(), process.returncode) == (["True", "True"], 0), error
