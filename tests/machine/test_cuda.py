"""What kernels on a GPU share, with a stand-in where this machine has none."""

import builtins
import math
from types import SimpleNamespace

import pytest

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.kernels.products.study_gpu import MatmulGpuStudy
from wavetank.machine import cuda
from wavetank.study import timing

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def no_torch(monkeypatch):
    real = builtins.__import__

    def refuse(module, *rest, **more):
        if module == "torch":
            raise ImportError(module)
        return real(module, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)


class Event:
    """A stand-in for an event of the device: each later by one quarter of a second."""

    count = 0

    def __init__(self, enable_timing):
        self.at = None

    def record(self):
        Event.count += 1
        self.at = Event.count

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 250.0 * (other.at - self.at)


@pytest.fixture
def a_gpu(monkeypatch):
    waits = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 4000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Stand-in")
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("wait"))
    return SimpleNamespace(waits=waits)


def test_what_needs_torch_says_so_where_it_is_missing(no_torch):
    with pytest.raises(MissingExtraError, match="A product on a GPU needs the library 'torch'"):
        cuda.require_torch("A product on a GPU")
    assert not cuda.found_gpu()


def test_what_needs_a_gpu_says_so_and_what_to_run_instead(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingExtraError, match="A stencil needs a CUDA device, and torch sees none") as caught:
        cuda.require_cuda("A stencil", "cuda:1", "run this")
    assert caught.value.hint == "run this"
    assert cuda.require_cuda("A stencil", "cpu") is torch
    assert not cuda.found_gpu()


def test_a_gpu_that_torch_sees_is_found(a_gpu):
    assert cuda.found_gpu()
    assert cuda.require_cuda("A stencil") is torch
    assert cuda.described("cuda").startswith(f"Device: Stand-in; torch {torch.__version__}, CUDA ")


def test_what_torch_keeps_unused_is_free(a_gpu):
    assert cuda.free_bytes("cuda") == 1500
    assert cuda.free_bytes(torch.device("cpu")) == math.inf


def test_what_does_not_fit_is_refused_before_it_is_allocated(a_gpu):
    cuda.require_free("cuda", 1500, "Sweeping")
    cuda.require_free("cpu", 1e30, "Sweeping")
    with pytest.raises(BadValueError, match="Sweeping needs more memory than the GPU has free") as caught:
        cuda.require_free("cuda", 1501, "Sweeping", where="grid", hint="smaller")
    assert (caught.value.where, caught.value.hint) == ("grid", "smaller")


def test_a_gpu_is_timed_by_its_own_events_after_what_was_queued_before(a_gpu):
    calls = []
    clock = cuda.DeviceClock("cuda")
    assert clock.on_gpu
    assert clock.seconds(lambda: calls.append(list(a_gpu.waits))) == pytest.approx(0.25)
    assert calls == [["wait"]]


def test_what_is_queued_without_a_gpu_is_called_as_it_is():
    def call():
        return 3

    assert cuda.as_graph("cpu", call) is call


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
def test_a_graph_replays_what_was_queued_on_the_inputs_of_now():
    a, kept = torch.ones(5, device="cuda"), []

    def call():
        kept.append(None)
        return (a + a) * a

    call()
    graph = cuda.as_graph("cuda", call)
    a.fill_(3.0)
    assert graph().tolist() == [18.0] * 5
    assert len(kept) == 2


def test_the_processor_is_timed_by_its_clock(monkeypatch):
    ticks = iter([10.0, 16.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    calls = []
    clock = cuda.DeviceClock.of(MatmulGpuStudy(device="cpu"))
    assert not clock.on_gpu
    assert clock.seconds(lambda: calls.append(1)) == 6.0
    assert calls == [1]
    clock.wait()
