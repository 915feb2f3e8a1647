"""Two devices at work on one matrix: host and accelerator, the link between them, and the thread of each.

Differs from the source:

1. Threads are not bound to cores: a program has other work for them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from wavetank.errors import BadValueError
from wavetank.kernels.solvers import blas_calls as blas
from wavetank.kernels.solvers.cpu_device import CpuWorker
from wavetank.kernels.solvers.devices import least_s
from wavetank.kernels.solvers.link import Link, LinkModel
from wavetank.kernels.solvers.torch_device import TorchDevice
from wavetank.kernels.solvers.worker_thread import DROPPED, WorkerThread
from wavetank.machine.cuda import found_gpu
from wavetank.machine.threads import allowed_threads, libraries_limited

DeviceSpec = CpuWorker | TorchDevice


def default_devices() -> tuple[DeviceSpec, DeviceSpec]:
    """Return this machine's host and accelerator: its cores and its GPU, or else its cores in two halves.

    Of the cores those count that :func:`~wavetank.machine.threads.allowed_threads` allows now.
    """
    cores = allowed_threads()
    if found_gpu():
        # One core feeds the GPU.
        return CpuWorker(threads=max(1, cores - 1)), TorchDevice()
    return CpuWorker(threads=max(1, cores // 2)), CpuWorker(threads=max(1, cores - cores // 2))


class Pair:
    """Host and accelerator at work on one matrix.

    Attributes
    ----------
    specs : tuple of two
        What the devices were opened from.
    host, accelerator : Device
    link : Link
    phases_s : dict
        Phase to seconds of wall time of the thread that called.
    behind_s : dict
        Phase to seconds of what :meth:`later` gave to the accelerator's thread.
    given : int
        Calls of :meth:`later` so far.
    """

    def __init__(
        self, specs: tuple[DeviceSpec, DeviceSpec], host: Any, accelerator: Any, link: Link, worker: WorkerThread
    ) -> None:
        self.specs = specs
        self.host = host
        self.accelerator = accelerator
        self.link = link
        self.phases_s: dict[str, float] = {}
        self.behind_s: dict[str, float] = {}
        self.given = 0
        self._seen = 0
        # Calls that the accelerator's thread has made, but the device may not have ended.
        self._begun: deque[tuple[Any, BaseException | None]] = deque()
        self._start = time.perf_counter()
        self._worker = worker

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.phases_s[name] = self.phases_s.get(name, 0.0) + time.perf_counter() - start

    def at_once(
        self, host: Callable[[], object] | None, accelerator: Callable[[], object] | None
    ) -> tuple[tuple[Any, float], tuple[Any, float]]:
        """Run a call for each device, both at the same time; return what each gave and the seconds it took.

        A device without a call gives (None, 0).
        """
        nothing: tuple[Any, float] = (None, 0.0)
        if host is None or accelerator is None:
            own = _timed(host, self.host) if host else nothing
            return own, _timed(accelerator, self.accelerator) if accelerator else nothing
        self._worker.give(lambda: _timed(accelerator, self.accelerator))
        try:
            own = _timed(host, self.host)
        except KeyboardInterrupt:
            self.drop()
            raise
        finally:
            # A failure of one must not leave the other at work on memory that is going away.
            other, error = self._worker.take()
        if error is not None:
            raise error
        return own, other

    def now(self, phase: str, call: Callable[[], object], device: Any) -> float:
        """Do a call of a device here, as part of a phase; return the seconds it took."""
        start = time.perf_counter()
        call()
        device.finish()
        spent = time.perf_counter() - start
        self.phases_s[phase] = self.phases_s.get(phase, 0.0) + spent
        return spent

    def later(self, phase: str, call: Callable[[], object]) -> None:
        """Let the accelerator's thread do a call, as part of a phase, after those it was given before."""

        def work() -> tuple[str, Any, Any]:
            start = self.accelerator.mark()
            call()
            return phase, start, self.accelerator.mark()

        self._worker.give(work)
        self.given += 1

    def drop(self) -> None:
        """End calls of the accelerator's thread as early as can be: nobody needs what they give."""
        self._worker.drop()
        self.accelerator.stop()

    def copy_s(self, block: int) -> float:
        """Return the seconds that a block takes from the host to the accelerator, measured, without a modelled link."""
        link = Link()
        for device in (self.host, self.accelerator):
            device.allocate(1, block, 0)
        target, source = (device.column(0, 0, 1) for device in (self.accelerator, self.host))
        source[:] = 0.0

        def copy() -> None:
            link.copy(target, source, "trial", self.accelerator.receive)
            self.accelerator.finish()

        return least_s(copy)

    def call_s(self) -> float:
        """Return the seconds of a call for later that does nothing, from the asking to the end, measured."""

        self.accelerator.allocate(1, 1, 0)

        def call() -> None:
            self.later("trial", lambda: self.accelerator.update(0, 0, 0, 0, 0))
            self.ended(self.given)

        taken = least_s(call)
        for seconds in (self.phases_s, self.behind_s):
            for phase in ("trial", "waiting"):
                seconds.pop(phase, None)
        return taken

    def longest_s(self) -> dict[str, float]:
        """Return for every phase the longer of two times in seconds: the caller's thread or the accelerator's."""
        phases = [*self.phases_s, *(phase for phase in self.behind_s if phase not in self.phases_s)]
        return {phase: max(self.phases_s.get(phase, 0.0), self.behind_s.get(phase, 0.0)) for phase in phases}

    def elapsed_s(self) -> float:
        """Return the seconds since the devices were opened."""
        return time.perf_counter() - self._start

    def ended(self, calls: int) -> list[float]:
        """Wait until the first ``calls`` calls of :meth:`later` are done.

        Returns
        -------
        list of float
            The seconds of every call that ended since this was asked last, in order.

        Raises
        ------
        BaseException
            The first that such a call raised.
        """
        taken: list[float] = []
        first = None
        with self.phase("waiting") if self._seen + len(self._begun) + self._worker.done() < calls else nullcontext():
            while True:
                if not self._begun and (self._seen < calls or (self._seen < self.given and self._worker.done())):
                    self._begun.append(self._worker.take())
                if not self._begun:
                    break
                found, error = self._begun[0]
                made = found is not DROPPED and error is None
                if made and self._seen >= calls and not self.accelerator.has_passed(found[2]):
                    break
                self._begun.popleft()
                self._seen += 1
                first = first or error
                if not made:
                    continue
                phase, start, end = found
                taken.append(self.accelerator.seconds_between(start, end))
                self.behind_s[phase] = self.behind_s.get(phase, 0.0) + taken[-1]
        if first is not None:
            raise first
        return taken


def _timed(call: Callable[[], object], device: Any) -> tuple[Any, float]:
    # What a GPU was asked for before is no part of this call.
    device.finish()
    start = time.perf_counter()
    found = call()
    device.finish()
    return found, time.perf_counter() - start


@contextmanager
def opened(devices: tuple[DeviceSpec, DeviceSpec], model: LinkModel | None = None) -> Iterator[Pair]:
    """Yield the pair of these devices; meanwhile every BLAS call takes one thread.

    That holds for other threads of the program, too, until the last pair is closed.

    Parameters
    ----------
    devices : (host, accelerator)
        The host is a CPU worker.
    model : LinkModel, optional
    """
    host, accelerator = devices
    if not isinstance(host, CpuWorker):
        raise BadValueError("The first device must be a CPU worker.", given=repr(host), where="devices")
    with ExitStack() as stack:
        # Its library is to be there when libraries are limited.
        blas.load()
        stack.enter_context(libraries_limited(1))
        worker = stack.enter_context(WorkerThread())
        opened_host, opened_accelerator = stack.enter_context(host.open()), stack.enter_context(accelerator.open())
        yield Pair(devices, opened_host, opened_accelerator, Link(model=model), worker)
