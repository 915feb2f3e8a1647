"""How many threads a call may use, limits on the threads of libraries, and one pool of workers for the process.

:func:`allowed_threads` obeys whatever limits the user has set, by whichever of the usual ways.
:func:`libraries_limited` holds BLAS and OpenMP to some threads for a block; blocks of several threads may overlap, and
what was set before the first is there again after the last.  :func:`together` makes calls at once on workers that all
kernels share.

Threads are never bound to cores.

How Ctrl-C reaches a kernel: Python raises KeyboardInterrupt between two calls of compiled code, never within one.  A
kernel therefore makes calls of a tenth of a second or so, many more than threads where need be.  :func:`together`
begins no further call then, waits for those that were begun, and raises.

A forked child starts with a pool of its own, and without the limits of the threads that it has not inherited.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from wavetank.errors import BadValueError
from wavetank.machine.quota import cpu_quota

# A quota may be changed from outside while the program runs.
_QUOTA_IS_GOOD_FOR_S = 1.0
_VARIABLES = ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "NUMBA_NUM_THREADS")


# --- how many threads ---------------------------------------------------------------------------------------------


def usable_cores() -> int:
    """Return the number of cores that the calling thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def allowed_threads(most: int | None = None) -> int:
    """Return how many threads a call may use now.

    The least of everything that says something counts, so no limit takes precedence over another:

    - ``most``, what the caller of a kernel asked for;
    - the cores that the calling thread may run on;
    - the quota of the control groups (versions 1 and 2) in cores, rounded up; read anew after a second;
    - the variables ``OMP_NUM_THREADS`` (of a list the first number), ``OMP_THREAD_LIMIT`` and ``NUMBA_NUM_THREADS``, as
      they are now, whether or not a library was loaded before they were set;
    - ``numba.set_num_threads`` in this thread;
    - a limit on a loaded BLAS or OpenMP, by ``threadpoolctl.threadpool_limits`` or a variable of that library, and
      ``torch.set_num_threads``: where a library has fewer threads than it takes by default.  Limits that
      :func:`libraries_limited` has set do not count.

    It costs some microseconds, a few milliseconds after new modules were imported, and imports neither numba nor torch.

    Parameters
    ----------
    most : int, optional
        At least 1; no limit by default.

    Raises
    ------
    BadValueError
        If ``most`` is not a whole number above 0.
    """
    if most is not None:
        _check(most, "threads")
    found = min(usable_cores(), _quota() or sys.maxsize)
    for name in _VARIABLES:
        number = _of_variable(name)
        if number is not None:
            found = min(found, number)
    if found > 1:
        found = min(found, _of_numba() or found)
    if found > 1:
        found = min(found, _LIMITS.set_by_user(found))
    return found if most is None else min(found, int(most))


def _check(threads: object, where: str) -> None:
    # numpy's whole numbers count, too.
    if isinstance(threads, bool) or not hasattr(threads, "__index__") or threads.__index__() < 1:
        raise BadValueError(
            "A number of threads is a whole number above 0.", given=threads, allowed="1 or more", where=where
        )


def _of_variable(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    first = text.partition(",")[0].strip()
    # Like OpenMP, which ignores what is no number above 0.
    return int(first) if first.isascii() and first.isdigit() and int(first) > 0 else None


def _of_numba() -> int | None:
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    # Asking would start numba's threads.
    if parallel is None or not getattr(parallel, "_is_initialized", False):
        return None
    return int(parallel.get_num_threads())


_quota_seen: tuple[float, int | None] = (-1.0, None)


def _quota() -> int | None:
    global _quota_seen
    now = time.monotonic()
    if not 0 <= now - _quota_seen[0] < _QUOTA_IS_GOOD_FOR_S or _quota_seen[0] < 0:
        _quota_seen = now, cpu_quota()
    return _quota_seen[1]


def _physical_cores() -> int:
    """Return the cores of this machine that are not hyper-threads of another; what MKL takes by default."""
    seen = set()
    try:
        for cpu in sorted(os.sched_getaffinity(0)):
            siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
            seen.add(siblings.read_text().strip())
    except (OSError, AttributeError):
        return usable_cores()
    return len(seen)


# --- the threads of libraries -------------------------------------------------------------------------------------


class _Request:
    """One limit, from where it is asked for to its end."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.thread = threading.get_ident()
        self.ended = False


class _Layer:
    """Limits that were set while nobody else changed the setting."""

    def __init__(self, before: int) -> None:
        self.before = before
        self.ours = before
        self.requests: list[_Request] = []


class _Setting:
    """A number of threads of one library, and the limits on it.

    Any other code that changes it, inside a limit of ours or around it, restores what it found when it is done: a
    new layer is put on theirs, and a layer that ends below theirs waits until they are gone.  Where their limit began
    before ours and ended within it, the number is no longer ours, and is left as it is.
    """

    def __init__(self, get: Callable[[], int], put: Callable[[int], object], default: int | None) -> None:
        self.get, self.put, self.default = get, put, default
        self.layers: list[_Layer] = []

    def users(self) -> int:
        """Return the number without our limits."""
        now = self.get()
        if self.layers and now == self.layers[-1].ours:
            return self.layers[-1].before
        return now

    def settle(self) -> None:
        """Set the number to what all requests of the highest layer allow; drop the layers that nobody needs.

        It may be interrupted anywhere: the next one does what is left.
        """
        while self.layers:
            self._find_top()
            top = self.layers[-1]
            top.requests = [each for each in top.requests if not each.ended]
            now = self.get()
            if now != top.ours:
                if top.requests or now != self.default:
                    return
                # Nobody limits the library any more.
                self.layers.pop()
                continue
            wanted = min([top.before, *(each.threads for each in top.requests)])
            if wanted != top.ours:
                top.ours = wanted
                self.put(wanted)
            if top.requests:
                return
            self.layers.pop()

    def _find_top(self) -> None:
        """Drop the layers that lay on somebody else's number which is gone; their requests go to the layer below."""
        now = self.get()
        if not any(each.ours == now for each in self.layers):
            return
        while self.layers[-1].ours != now:
            requests = self.layers[-1].requests
            self.layers[-2].requests += [each for each in requests if each not in self.layers[-2].requests]
            self.layers.pop()

    def enter(self, request: _Request) -> None:
        """Put a request into force."""
        self.settle()
        now = self.get()
        if not self.layers or now != self.layers[-1].ours:
            self.layers.append(_Layer(now))
        self.layers[-1].requests.append(request)
        self.settle()


class _Limits:
    """All settings: those of BLAS libraries, which hold for the process, and those of OpenMP, each thread's own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: dict[str, _Setting] = {}
        self._own = threading.local()
        self._openmp: dict[str, Any] = {}
        self._modules = -1

    def _scan(self) -> None:
        """Find the libraries that were loaded since the last time."""
        modules = len(sys.modules)
        if modules == self._modules:
            return
        from threadpoolctl import ThreadpoolController

        for each in ThreadpoolController().lib_controllers:
            path = str(each.filepath)
            if each.user_api == "openmp":
                self._openmp.setdefault(path, each)
            # A BLAS on OpenMP has the number of that library.
            elif each.user_api == "blas" and path not in self._process and _layer_of(each) != "openmp":
                self._process[path] = _Setting(each.get_num_threads, _setter_of(each), _default_of(each))
        self._modules = modules

    def _settings(self) -> list[_Setting]:
        """Return the settings that the calling thread is subject to."""
        own: dict[str, _Setting] = self._own.__dict__
        torch = _torch()
        if torch is not None and "torch" not in own:
            # torch sets its thread's number at its first use there, which would undo a limit.
            torch.get_num_threads()
            mkl = _MklOfTorch.found(torch)
            if mkl is not None:
                own["torch"] = _Setting(mkl.get, mkl.put, None)
            elif not self._openmp:
                own["torch"] = _Setting(torch.get_num_threads, torch.set_num_threads, _physical_cores())
        for path, each in self._openmp.items():
            if path not in own:
                # torch's own number is that of its OpenMP; by default it takes no hyper-threads.
                own[path] = _Setting(each.get_num_threads, each.set_num_threads, _physical_cores())
        return [*self._process.values(), *own.values()]

    def set_by_user(self, most: int) -> int:
        """Return the least number of threads that a user has set for a library, ``most`` where none is lower."""
        with self._lock:
            self._scan()
            for each in self._settings():
                if each.layers:
                    each.settle()
                number = each.users() if each.default is not None else 0
                if each.default is not None and 0 < number < each.default:
                    most = min(most, number)
        return most

    def enter(self, request: _Request) -> None:
        """Put a request into force."""
        with self._lock:
            self._scan()
            for each in self._settings():
                each.enter(request)

    def settle(self) -> None:
        """Let requests that have ended have no effect any more."""
        with self._lock:
            for each in self._settings():
                each.settle()

    def abandon(self, request: _Request) -> None:
        """End a request from wherever the garbage collector happens to run, be it inside of this object."""
        request.ended = True
        # Another thread can wait for the lock, and no interrupt reaches it.  What it cannot set, the number of OpenMP
        # of this thread, is set when this thread asks for something next.
        with suppress(RuntimeError):
            start_new_thread(self.settle, ())

    def forked(self) -> None:
        """Drop the requests of threads that a child does not have."""
        self._lock = threading.Lock()
        here = threading.get_ident()
        for setting in self._process.values():
            for layer in setting.layers:
                for request in layer.requests:
                    request.ended = request.ended or request.thread != here
            setting.settle()


def _torch() -> Any:
    torch = sys.modules.get("torch")
    # A module that another thread is just importing is there without its functions.
    return torch if hasattr(torch, "get_num_threads") else None


class _MklOfTorch:
    """The number that the MKL inside torch keeps for a thread; none stands for no limit."""

    def __init__(self, call: Callable[[int], int]) -> None:
        self._call = call

    @staticmethod
    @functools.cache
    def found(torch: Any) -> _MklOfTorch | None:
        """Return that of this torch; None for one without MKL."""
        for path in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
            try:
                # The lower-case name is Fortran's, which takes an address.
                return _MklOfTorch(ctypes.CDLL(str(path)).MKL_Set_Num_Threads_Local)
            except (OSError, AttributeError):
                continue
        return None

    def get(self) -> int:
        """Return the number."""
        before = self._call(0)
        if before:
            self._call(before)
        return before or sys.maxsize

    def put(self, threads: int) -> None:
        """Set the number."""
        self._call(0 if threads == sys.maxsize else threads)


def _default_of(library: Any) -> int:
    """Return from how many threads on a BLAS has not been limited."""
    cores = usable_cores()
    if library.internal_api == "mkl":
        return min(cores, _physical_cores())
    if library.internal_api == "openblas":
        # Built for at most this many threads.
        return min(cores, _built_for(library) or cores)
    return cores


def _layer_of(library: Any) -> str:
    return str(getattr(library, "threading_layer", ""))


def _openblas(library: Any, name: str) -> Any:
    """Return a function of OpenBLAS, which builds put between various letters; None where it is not there."""
    for prefix in ("", "scipy_"):
        for suffix in ("", "64_", "_64"):
            found = getattr(library.dynlib, f"{prefix}openblas_{name}{suffix}", None)
            if found is not None:
                return found
    return None


def _setter_of(library: Any) -> Callable[[int], object]:
    """Return what sets a library's number from any thread.

    threadpoolctl lets a single thread of the program set that of OpenBLAS, and does nothing in others.
    """
    found = _openblas(library, "set_num_threads") if library.internal_api == "openblas" else None
    setter: Callable[[int], object] = library.set_num_threads if found is None else found
    return setter


def _built_for(library: Any) -> int | None:
    """Return the most threads that a build of OpenBLAS takes."""
    found = _openblas(library, "get_config")
    if found is None:
        return None
    found.restype = ctypes.c_char_p
    _, _, after = (found() or b"").decode(errors="replace").partition("MAX_THREADS=")
    digits = after.split()[0] if after.split() else ""
    return int(digits) if digits.isdigit() else None


_LIMITS = _Limits()


class libraries_limited:  # noqa: N801 - used like a function
    """Hold BLAS and OpenMP libraries, torch's included, to some threads for a block.

    Limits may nest and overlap: while several are in force the least one counts, and after the last every library has
    the number that it had before the first.  None raises a number.  A limit that the user sets inside the block, or has
    set around it, is kept, and allowed again after an inner block of ours.  BLAS keeps one number for the process, so a
    block limits other threads of the program, too, while it lasts; OpenMP's and torch's number is the calling thread's.

    Two numbers that are equal cannot be distinguished: what another thread sets meanwhile to the very value of ours,
    for longer than our block, is undone at the end of it.

    Parameters
    ----------
    threads : int
        At least 1.

    Raises
    ------
    BadValueError
        If ``threads`` is not a whole number above 0.
    """

    def __init__(self, threads: int = 1) -> None:
        _check(threads, "libraries_limited")
        self._threads = int(threads)
        self._blocks: list[_Block] = []

    def __enter__(self) -> None:
        # Known before it has an effect: an interrupt may come at any instruction.
        self._blocks.append(_Block(self._threads))
        _LIMITS.enter(self._blocks[-1].request)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks[-1].request.ended = True
        _LIMITS.settle()
        self._blocks.pop().done = True


class _Block:
    """Ends its request with its own last reference where an interrupt has kept the program from it."""

    # As long as an interrupt may come before there is a request.
    done = True

    def __init__(self, threads: int) -> None:
        self.request = _Request(threads)
        self.done = False

    def __del__(self) -> None:
        if not self.done:
            _LIMITS.abandon(self.request)


# --- the pool -----------------------------------------------------------------------------------------------------


# A wait that was interrupted between being woken and noticing looks again after this.
_LOOK_S = 0.05


class _Batch:
    """Calls that are made at once by the threads that are free.

    An interrupt hits the caller at any instruction, so nothing that the caller does is counted, and nobody waits for
    a single message that could be lost.
    """

    def __init__(self, function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> None:
        self.function = function
        self.calls = calls
        self.results: list[Any] = [None] * len(calls)
        self.errors: dict[int, BaseException] = {}
        self.begun = self.begun_by_helpers = self.ended_by_helpers = 0
        self.stopped = False
        self.lock = threading.Lock()
        self.ended: SimpleQueue[None] = SimpleQueue()

    def _take(self, helpers: int) -> int | None:
        with self.lock:
            if self.stopped or self.begun == len(self.calls):
                return None
            self.begun += 1
            self.begun_by_helpers += helpers
            return self.begun - 1

    def work(self) -> None:
        """Make calls until none is left, in the thread that asks for them."""
        while (at := self._take(0)) is not None:
            try:
                self.results[at] = self.function(*self.calls[at])
            except BaseException as error:
                self.errors[at] = error
                raise

    def help(self) -> None:
        """Make calls until none is left, in another thread."""
        while (at := self._take(1)) is not None:
            try:
                self.results[at] = self.function(*self.calls[at])
            except BaseException as error:
                # Belongs to the thread that asked.
                self.errors[at] = error
                self.stopped = True
            with self.lock:
                self.ended_by_helpers += 1
            self.ended.put(None)

    def wait(self) -> None:
        """Begin no further call, and wait for those that helpers have begun."""
        with self.lock:
            self.stopped = True
        while self.ended_by_helpers < self.begun_by_helpers:
            try:
                self.ended.get(timeout=_LOOK_S)
            except Empty:
                continue


class _Ticket:
    """A place for one helper."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work: Callable[[], object] | None = work


class _ThreadPool:
    """Workers that wait for tickets; there are as many as were ever of use at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: SimpleQueue[_Ticket] = SimpleQueue()
        self._workers = 0
        # Tickets that wait or are worked on.
        self._open = 0

    def ask(self, work: Callable[[], object], helpers: int) -> list[_Ticket]:
        """Let ``helpers`` workers do ``work()`` at once, which keeps its errors to itself."""
        tickets = [_Ticket(work) for _ in range(helpers)]
        with self._lock:
            self._open += helpers
            while self._workers < self._open:
                # These wait for nothing but work, so a program may end whenever it likes; and unlike those of
                # threading they start without a wait in which an interrupt would do damage.
                start_new_thread(self._serve, ())
                self._workers += 1
        for each in tickets:
            self._tickets.put(each)
        return tickets

    def withdraw(self, tickets: list[_Ticket]) -> None:
        """Take back the tickets that nobody works on."""
        with self._lock:
            for each in tickets:
                if each.work is not None:
                    each.work = None
                    self._open -= 1

    def _serve(self) -> None:
        threading.current_thread().name = "wavetank pool"
        while True:
            ticket: _Ticket | None = self._tickets.get()
            with self._lock:
                work, ticket.work = ticket.work, None  # type: ignore[union-attr]
            # What it worked on must not live on until the next work comes.
            ticket = None
            if work is not None:
                work()
                work = None
                with self._lock:
                    self._open -= 1


_pool = _ThreadPool()
_forks = 0


def forks() -> int:
    """Return how many forks lie between this process and the first: where it has changed, no helper is left."""
    return _forks


def start_helpers(work: Callable[[], object], helpers: int) -> None:
    """Let workers of the pool do ``work()``, each once and all at once, and return without waiting.

    Parameters
    ----------
    work : callable
        Keeps its errors to itself.
    helpers : int
        How many workers.

    Raises
    ------
    RuntimeError
        If the system has no more threads.
    """
    _pool.ask(work, helpers)


def together(
    function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], threads: int,
    halt: Callable[[], object] | None = None,
) -> list[Any]:  # fmt: skip
    """Return the results of ``function(*call)`` in the order of ``calls``, several of which are made at once.

    The caller makes calls itself and is helped by up to ``threads - 1`` workers that the process shares, so calls may
    use this function, too.  After an error, KeyboardInterrupt included, no further call is begun, those that were begun
    are waited for, and the error is raised: of several that of the first call.

    Parameters
    ----------
    function : callable
        Releases the interpreter's lock where it is to run at the same time as others.
    calls : iterable of tuple
    threads : int
        That work at once, the caller included.
    halt : callable, optional
        Made after an error in the caller, before calls are waited for: what it sets lets long ones end early.
    """
    listed = list(calls)
    helpers = min(threads, len(listed)) - 1
    if helpers < 1:
        return [function(*call) for call in listed]
    batch = _Batch(function, listed)
    pool, tickets = _pool, []
    try:
        tickets = pool.ask(batch.help, helpers)
        batch.work()
        batch.wait()
    except BaseException as error:
        if halt is not None:
            halt()
        batch.wait()
        # Of several errors that of the first call, unless the program is to end.
        first = batch.errors[min(batch.errors)] if batch.errors and isinstance(error, Exception) else error
        raise first from None if first is not error else first.__cause__
    finally:
        # A worker that comes too late must not keep the arrays.
        pool.withdraw(tickets)
        batch.calls = []
    if batch.errors:
        raise batch.errors[min(batch.errors)]
    return batch.results


def _forked() -> None:
    global _pool, _forks
    _pool = _ThreadPool()
    _forks += 1
    _LIMITS.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
