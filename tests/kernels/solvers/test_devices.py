"""Devices and the link between them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.solvers import cholesky
from wavetank.kernels.solvers.balance import RuntimeSplit
from wavetank.kernels.solvers.cpu_device import CpuWorker
from wavetank.kernels.solvers.link import Link, LinkModel
from wavetank.kernels.solvers.pair import default_devices, opened
from wavetank.kernels.solvers.torch_device import TorchDevice
from wavetank.kernels.solvers.triangle import BlockTriangle

SPECS = [
    CpuWorker(),
    CpuWorker(repeats=3),
    CpuWorker(threads=2),
    CpuWorker(threads=2, repeats=2),
    TorchDevice(device="cpu"),
]
IDS = ["worker", "slowed", "threads", "slowed-threads", "torch"]


def positive(size: int) -> np.ndarray:
    a = np.random.default_rng(1).standard_normal((size, size))
    return a @ a.T + size * np.eye(size)


@pytest.fixture(params=SPECS, ids=IDS)
def device(request: pytest.FixtureRequest) -> Any:
    if isinstance(request.param, TorchDevice):
        pytest.importorskip("torch")
    with opened((CpuWorker(), request.param)) as pair:
        yield pair.accelerator


def as_numpy(array: Any) -> np.ndarray:
    return np.asarray(array)


def test_a_device_alone_factors_and_solves(device: Any) -> None:
    a, n, b = positive(20), 5, 4
    device.allocate(n, b, 0)
    device.load(a, 0, n)
    for k in range(n):
        assert device.factor_diagonal(k)[0] == 0
        if k + 1 < n:
            device.solve_column(k, k + 1, n)
            device.update(k, k + 1, n, k + 1, n)
    device.finish()
    lower = np.zeros((20, 20))
    for j in range(n):
        lower[j * b :, j * b : (j + 1) * b] = as_numpy(device.column(j, j, n))
    lower = np.tril(lower)
    assert np.allclose(lower @ lower.T, a, rtol=1e-12)
    x = device.vector()
    x += 1.0
    device.substitute(x)
    assert np.allclose(a @ as_numpy(x), 1.0, rtol=1e-11)


def test_rows_from_any_on_are_enough_for_their_part_of_a_product(device: Any) -> None:
    a, n, b, first = positive(20), 5, 4, 2
    device.allocate(n, b, first)
    device.load(a, first, n)
    x, out = device.vector(), device.vector()
    x += 1.0
    device.multiply(x, out, first, n, n, 3)
    device.finish()
    own = a.copy()
    own[: first * b, : first * b] = 0.0
    assert np.allclose(as_numpy(out), own @ np.ones(20))


@pytest.mark.parametrize("across", [1, 2, 3])
def test_blocks_to_the_left_serve_one_triangle_or_both(device: Any, across: int) -> None:
    a, n, b, first = positive(20), 5, 4, 2
    device.allocate(n, b, 0)
    device.load(BlockTriangle.pack(a, b), 0, n)
    x, out = device.vector(), device.vector()
    x += 1.0
    device.multiply(x, out, first, n, first, across)
    cut = first * b
    expected = np.zeros(20)
    expected[cut:] = (a[cut:, :cut] @ np.ones(cut)) * bool(across & 1)
    expected[:cut] = (a[:cut, cut:] @ np.ones(20 - cut)) * bool(across & 2)
    assert np.allclose(as_numpy(out), expected)


def test_the_bad_pivot_has_its_number_and_value(device: Any) -> None:
    a = np.diag([4.0, 1.0, -2.5, 1.0])
    a[2, 0] = a[0, 2] = 2.0
    device.allocate(1, 4, 0)
    device.load(a, 0, 1)
    bad, value = device.factor_diagonal(0)
    assert (bad, value) == (3, pytest.approx(-3.5))


def test_vector_operations(device: Any) -> None:
    device.allocate(2, 3, 0)
    x, r, d, q = (device.vector() for _ in range(4))
    for value, vector in enumerate((x, r, d, q)):
        vector += float(value)
    assert device.dot(d, q) == pytest.approx(36.0)
    assert device.advance(0.5, x, r, d, q) == pytest.approx(6 * 0.25)
    assert np.allclose(as_numpy(x), 1.0)
    assert np.allclose(as_numpy(r), -0.5)
    device.redirect(2.0, d, r)
    assert np.allclose(as_numpy(d), 3.5)
    device.add(d, q)
    assert np.allclose(as_numpy(d), 6.5)


def test_a_block_product_takes_time(device: Any) -> None:
    assert 0 < device.block_product_s(16) < 10


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_link_counts_every_byte(kind: str) -> None:
    link, source, target = Link(), np.arange(6.0), np.zeros(6)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        there = torch.zeros(6, dtype=torch.float64)
        link.copy(there, source, "there")
        link.copy(target, there, "back")
        assert link.moved_bytes == {"there": 48, "back": 48}
    else:
        link.copy(target[:2], source[:2], "rows")
        link.copy(target, source, "rows")
        assert link.moved_bytes == {"rows": 64}
        assert link.copies == {"rows": 2}
    assert np.array_equal(target, source)


def test_a_modelled_link_takes_its_time() -> None:
    model = LinkModel(bytes_per_s=1e6, latency_s=0.001)
    assert model.seconds(1000) == pytest.approx(0.002)
    start = time.perf_counter()
    Link(model=model).copy(np.zeros(1250), np.ones(1250), "rows")
    assert time.perf_counter() - start >= 0.011


def test_both_devices_work_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=20)
    with opened((CpuWorker(), CpuWorker())) as pair:
        (one, _), (other, _) = pair.at_once(meeting.wait, meeting.wait)
        assert {one, other} == {0, 1}
        assert pair.at_once(None, lambda: "alone")[1][0] == "alone"
        assert pair.at_once(None, None) == ((None, 0.0), (None, 0.0))


def test_a_failure_of_either_device_reaches_the_caller() -> None:
    def fail() -> None:
        raise ZeroDivisionError("here")

    for calls in ((fail, lambda: 1), (lambda: 1, fail)):
        with opened((CpuWorker(), CpuWorker())) as pair:
            with pytest.raises(ZeroDivisionError):
                pair.at_once(*calls)
            assert pair.at_once(lambda: 1, lambda: 2)[1][0] == 2


def test_calls_for_later_are_done_in_order_and_counted() -> None:
    done: list[int] = []
    with opened((CpuWorker(), CpuWorker())) as pair:
        for number in range(5):
            pair.later("odd" if number % 2 else "even", lambda number=number: done.append(number))
        assert len(pair.ended(3)) >= 3
        pair.ended(pair.given)
        assert done == [0, 1, 2, 3, 4]
        assert set(pair.behind_s) == {"odd", "even"}
        assert pair.ended(pair.given) == []


def test_a_failure_of_a_later_call_is_raised_when_its_end_is_asked_for() -> None:
    def fail() -> None:
        raise ZeroDivisionError("there")

    with opened((CpuWorker(), CpuWorker())) as pair:
        pair.later("first", fail)
        pair.later("second", lambda: None)
        with pytest.raises(ZeroDivisionError):
            pair.ended(pair.given)
        assert pair.ended(pair.given) == []


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not say on which cores threads run")
def test_no_thread_is_bound_to_a_core() -> None:
    before = os.sched_getaffinity(0)
    with opened((CpuWorker(), CpuWorker())) as pair:
        (own, _), (other, _) = pair.at_once(lambda: os.sched_getaffinity(0), lambda: os.sched_getaffinity(0))
        assert own == other == before
    assert os.sched_getaffinity(0) == before


def test_calls_that_were_dropped_are_not_made() -> None:
    made: list[int] = []
    begun = threading.Event()

    def first() -> None:
        begun.set()
        time.sleep(0.2)

    with opened((CpuWorker(), CpuWorker())) as pair:
        pair.later("first", first)
        for number in range(5):
            pair.later("more", lambda number=number: made.append(number))  # type: ignore[misc]
        begun.wait()
        pair.drop()
        assert len(pair.ended(pair.given)) == 1
    assert made == []


class _Event:
    """An event of a GPU that is always a call behind."""

    asked: ClassVar[list[str]] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at_s = 0.0
        self.waited = False

    def record(self, stream: str) -> None:
        self.asked.append(f"record on {stream}")
        self.at_s = time.perf_counter()

    def query(self) -> bool:
        return self.waited

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, other: _Event) -> float:
        assert other.waited, "a time was asked for before the end"
        return (other.at_s - self.at_s) * 1e3


class _Gpu:
    """What of torch.cuda the device uses, for tensors of the CPU."""

    Event = _Event

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        self.asked.append(f"enter {name}")
        yield
        self.asked.append(f"leave {name}")

    def current_stream(self, device: Any) -> Any:
        return _Stream(self.asked)

    def synchronize(self, device: Any) -> None:
        self.asked.append("synchronize")


class _Stream:
    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    def __str__(self) -> str:
        return "computing"

    def wait_stream(self, other: str) -> None:
        self.asked.append(f"computing waits for {other}")


def as_gpu(device: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a torch device of the CPU take the paths of a GPU; return what it asks of it, in order."""
    torch = pytest.importorskip("torch")
    asked: list[str] = []
    monkeypatch.setattr(_Event, "asked", asked)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    device._cuda, device._incoming = _Gpu(asked), "incoming"
    return asked


def test_a_gpu_takes_columns_in_beside_its_work_and_computes_with_them_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    with opened((CpuWorker(), TorchDevice(device="cpu"))) as pair:
        device = pair.accelerator
        device.allocate(2, 2, 0)
        asked = as_gpu(device, monkeypatch)
        start = device.mark()
        pair.link.copy(device.column(0, 0, 2), np.arange(8.0).reshape(4, 2), "column", device.receive)
        end = device.mark()
        assert asked == [
            "record on computing", "enter incoming", "leave incoming", "computing waits for incoming",
            "record on computing",
        ]  # fmt: skip
        assert np.array_equal(as_numpy(device.column(0, 0, 2)), np.arange(8.0).reshape(4, 2))
        assert not device.has_passed(end)
        assert device.seconds_between(start, end) >= 0.0
        assert device.has_passed(end)
        assert pair.link.moved_bytes == {"column": 64}


def test_calls_that_a_gpu_has_not_ended_are_waited_for_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    with opened((CpuWorker(), TorchDevice(device="cpu"))) as pair:
        as_gpu(pair.accelerator, monkeypatch)
        for _ in range(3):
            pair.later("work", lambda: None)
        assert len(pair.ended(1)) == 1
        # The thread may have made the other calls; the GPU has not told that it has done them.
        assert pair.ended(1) == []
        assert len(pair.ended(3)) == 2


def test_a_factorisation_takes_the_paths_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    a = positive(80)
    with opened((CpuWorker(), TorchDevice(device="cpu"))) as pair:
        as_gpu(pair.accelerator, monkeypatch)
        law = RuntimeSplit(every=1, ignore_rows=0)
        trace = cholesky.factor(pair, a, 80, 8, 10, law, 6)
        lower = np.zeros((80, 80))
        for j in range(10):
            lower[j * 8 :, j * 8 : (j + 1) * 8] = as_numpy(pair.accelerator.column(j, j, 10))
    lower = np.tril(lower)
    assert np.allclose(lower @ lower.T, a, rtol=1e-12)
    assert min(trace.busy_s) > 0


def test_blas_pools_are_back_to_what_they_were() -> None:
    from threadpoolctl import threadpool_info

    def pools() -> list[int]:
        return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]

    with opened((CpuWorker(), CpuWorker())):
        pass
    before = pools()
    with opened((CpuWorker(), CpuWorker())):
        assert set(pools()) == {1}
    assert pools() == before


def test_the_default_pair_uses_the_machine() -> None:
    host, _ = default_devices()
    assert isinstance(host, CpuWorker)
    assert host.threads >= 1


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"repeats": 0}, {"memory_bytes": 0.0}])
def test_an_impossible_worker_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        CpuWorker(**wrong)


def test_an_impossible_link_is_refused() -> None:
    with pytest.raises(BadValueError):
        LinkModel(bytes_per_s=0.0)


def test_a_device_that_torch_does_not_have_is_refused() -> None:
    pytest.importorskip("torch")
    for word in ("cuda:77", "gpu"):
        with pytest.raises(BadValueError, match="torch cannot"), opened((CpuWorker(), TorchDevice(device=word))):
            pass


def test_the_host_must_be_a_cpu_worker() -> None:
    with pytest.raises(BadValueError, match="first device"), opened((TorchDevice(device="cpu"), CpuWorker())):
        pass
