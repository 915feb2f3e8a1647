"""A few real processes that work together through ``torch.distributed``, and what can happen to them.

:class:`Ranks` starts a function in 2 to 16 processes of this host, takes what they report and return, and lets one be
killed, stopped, slowed down or throttled, by hand or at a planned point.  Every wait has a limit; when the ``with``
block ends, for whatever reason, no process is left.  :class:`~wavetank.live.rank_process.Rank` is what the function is
given.  Needs the extra ``torch`` once a rank joins a process group.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import os
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.live.membership import Decision, Membership
from wavetank.live.processes import ChildProcess, python_module
from wavetank.live.rank_link import FrameReader, encode_frame
from wavetank.live.shared_pages import mapped, shared_pages

MOST_RANKS = 16
_KINDS = ("kill", "stop", "sleep", "raise")
_SEND_TIMEOUT_S = 5.0
_PERIOD_S = 0.02
_BURIAL_S = 5.0
# Gloo listens where the name of the host leads to, unless it is given an interface.
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that happens to a rank when it reaches a point for the first time.

    Parameters
    ----------
    rank : int
    point : str
        Name of the point; ``in flight`` is in the middle of every all-reduce.
    at : mapping of str to int
        Coordinates that the point must have; others do not matter.
    kind : str
        ``kill`` (SIGKILL), ``stop`` (SIGSTOP), ``sleep`` or ``raise``.
    seconds : float
        How long a sleep lasts; of ``kill`` and ``stop``, how long after the point they strike.
    """

    rank: int
    point: str
    at: Mapping[str, int] = field(default_factory=dict)
    kind: str = "kill"
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise BadValueError("There is no such fault of a rank.", given=self.kind, allowed=_KINDS)
        if not 0 <= self.seconds < float("inf"):
            raise BadValueError("A fault strikes after a time.", given=self.seconds, allowed="0 s or more")


@dataclass(frozen=True)
class Event:
    """What a rank reported, or how it ended.

    Parameters
    ----------
    rank : int
    kind : str
        ``reported``, ``returned``, ``raised`` or ``died``.
    value : object
        The reported or returned value; the error as text; the negative number of the signal, or the exit code.
    at_s : float
        Seconds since the start.
    """

    rank: int
    kind: str
    value: Any
    at_s: float


@dataclass
class Outcome:
    """How a rank ended.

    Parameters
    ----------
    rank : int
    ended : str
        ``returned``, ``raised``, ``died``, or ``running`` when the time was up.
    value : object
        What it returned, or the text of its error.
    trace : str
        Traceback of an error.
    reports : list
        What it had reported.
    """

    rank: int
    ended: str = "running"
    value: Any = None
    trace: str = ""
    reports: list[Any] = field(default_factory=list)


class Ranks:
    """Processes 0 to ``size - 1`` that run one function.

    Parameters
    ----------
    work : callable
        A function on the top level of a module, ``work(rank, **arguments)``.  Each process imports that module again.
    size : int
        1 to 16.
    arguments : mapping
        Plain values and arrays.
    faults : sequence of Fault
        What is to happen at planned points.
    timeout_s : float
        How long a collective operation, and a rank that waits for others to join again, may take.
    start_timeout_s : float
        How long a rank waits for others to join the first group, while some still load their libraries.
    patience_s : float
        How long members that have voted wait for one that has not, before it is ended; twice ``timeout_s`` by default.
    bytes_per_s : float
        Limit of every connection between ranks; 0: none.
    cores : sequence of frozenset of int
        Where each rank may run; empty: anywhere.
    shared_bytes : int
        Memory that all ranks, and this process, have as ``shared``; 0: none.

    Raises
    ------
    BadValueError
        If the work is no function of a module, or a number is out of its range.
    """

    def __init__(
        self,
        work: Callable[..., Any],
        size: int,
        *,
        arguments: Mapping[str, Any] | None = None,
        faults: Sequence[Fault] = (),
        timeout_s: float = 10.0,
        start_timeout_s: float = 60.0,
        patience_s: float | None = None,
        bytes_per_s: float = 0.0,
        cores: Sequence[frozenset[int]] = (),
        shared_bytes: int = 0,
    ) -> None:
        if not 1 <= size <= MOST_RANKS:
            raise BadValueError("The number of ranks is out of range.", given=size, allowed=f"1 to {MOST_RANKS}")
        for limit in (timeout_s, start_timeout_s):
            if not 0 < limit < float("inf"):
                raise BadValueError("Ranks need a limit of time.", given=limit, allowed="more than 0 s")
        for fault in faults:
            if not 0 <= fault.rank < size:
                raise BadValueError("A fault names no rank.", given=fault.rank, allowed=f"0 to {size - 1}")
        _check_rate(bytes_per_s)
        name = getattr(work, "__qualname__", "")
        if not inspect.isfunction(work) or "<" in name or "." in name:
            raise BadValueError(
                "Ranks run a function of a module, which each process imports again.",
                given=name or repr(work),
                hint="define it with def on the top level of a file",
            )
        self.size = size
        self.membership = Membership(size, 2 * timeout_s if patience_s is None else patience_s)
        self.outcomes = [Outcome(rank) for rank in range(size)]
        self._work, self._arguments, self._faults = work, dict(arguments or {}), list(faults)
        self._timeout_s, self._start_timeout_s, self._bytes_per_s = timeout_s, start_timeout_s, bytes_per_s
        self._cores = list(cores) or [frozenset[int]()] * size
        self._shared_bytes = shared_bytes
        self.shared: NDArray[np.uint8] | None = None
        self._children: list[ChildProcess] = []
        self._links: list[socket.socket] = []
        self._folder, self._pages = "", -1
        self._readers = [FrameReader() for _ in range(size)]
        self._slow: dict[int, tuple[threading.Event, threading.Thread]] = {}
        self._begin_s = 0.0
        # What was read and not yielded yet: one read may bring several reports.
        self._found: collections.deque[Event] = collections.deque()
        self._stack = contextlib.ExitStack()
        self._selector = selectors.DefaultSelector()

    # -- begin and end -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._children:
            raise BadValueError("Ranks are started once.", given="a second with block", hint="make new Ranks")
        with contextlib.ExitStack() as undo:
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="wavetank-ranks-"))
            undo.callback(self._selector.close)
            self._begin_s = time.monotonic()
            self._folder = folder
            if self._shared_bytes:
                self._pages = shared_pages(self._shared_bytes)
                undo.callback(os.close, self._pages)
                self.shared = mapped(self._pages)
            for rank in range(self.size):
                child, link = self._start(rank, self._arguments, self._faults, undo)
                self._children.append(child)
                self._links.append(link)
            self._stack = undo.pop_all()
        return self

    def _start(
        self, rank: int, arguments: Mapping[str, Any], faults: Sequence[Fault], undo: contextlib.ExitStack
    ) -> tuple[ChildProcess, socket.socket]:
        assignment = {
            "rank": rank,
            "size": self.size,
            "timeout_s": self._timeout_s,
            "start_timeout_s": self._start_timeout_s,
            # The votes that lack, their owners' ends, and the way back.
            "decision_timeout_s": self.membership.patience_s + self.size * _BURIAL_S + self._timeout_s,
            "bytes_per_s": self._bytes_per_s,
            "folder": self._folder,
            "pages": self._pages,
            "module": self._work.__module__,
            "file": str(Path(inspect.getsourcefile(self._work) or "").absolute()),
            "name": self._work.__qualname__,
            "arguments": dict(arguments),
            "faults": [
                {"point": each.point, "at": dict(each.at), "kind": each.kind, "seconds": each.seconds}
                for each in faults
                if each.rank == rank
            ],
        }
        frame = encode_frame(assignment)
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        with theirs:
            child = ChildProcess(
                python_module("wavetank.live.rank_process", str(theirs.fileno())),
                name=f"rank {rank}",
                cores=self._cores[rank % len(self._cores)],
                environment={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK},
                pass_fds=[theirs.fileno(), *([self._pages] if self._pages >= 0 else [])],
            )
        undo.callback(child.stop, 0)
        ours.settimeout(max(_SEND_TIMEOUT_S, self._timeout_s))
        with contextlib.suppress(OSError):
            # One that ends at once is noticed by the end of its link.
            ours.sendall(frame)
        self._selector.register(ours, selectors.EVENT_READ, rank)
        return child, ours

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in list(self._slow):
            self.slow(rank, 1.0)
        self._stack.close()

    # -- what comes out ------------------------------------------------------------------------------------------------

    @property
    def running(self) -> tuple[int, ...]:
        """Return the ranks that have not ended."""
        return tuple(outcome.rank for outcome in self.outcomes if outcome.ended == "running")

    def pid(self, rank: int) -> int:
        """Return the process id of a rank."""
        return self._children[rank].pid

    def events(self, timeout_s: float) -> Iterator[Event]:
        """Yield what ranks report and how they end, as it comes, until all have ended or the time is up.

        Who leaves the loop early gets the rest with the next call.
        """
        stop = time.monotonic() + timeout_s
        while True:
            while self._found:
                yield self._found.popleft()
            left = stop - time.monotonic()
            if not self.running or left <= 0:
                return
            for key, _ in self._selector.select(min(left, 0.1)):
                self._found.extend(self._take(key.data))
            for rank in self.membership.overdue(time.monotonic()):
                # Fenced: the others go on without it, and it must not come back.
                self.kill(rank)

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return how each rank ended; one that still runs when the time is up is killed.

        Parameters
        ----------
        timeout_s : float
        """
        for _ in self.events(timeout_s):
            pass
        for rank in self.running:
            self._children[rank].kill()
        return self.outcomes

    def values(self, timeout_s: float) -> list[Any]:
        """Return what every rank returned.

        Raises
        ------
        WavetankError
            If a rank raised, died or did not end in time; it names the first.
        """
        for outcome in self.wait(timeout_s):
            if outcome.ended != "returned":
                said = outcome.value if outcome.ended == "raised" else self._children[outcome.rank].output()[-500:]
                how = {"running": f"did not end within {timeout_s:g} s", "raised": "failed", "died": "died"}
                raise WavetankError(f"Rank {outcome.rank} {how[outcome.ended]}.", given=said or None)
        return [outcome.value for outcome in self.outcomes]

    def _take(self, rank: int) -> list[Event]:
        outcome, now = self.outcomes[rank], time.monotonic()
        found: list[Event] = []
        try:
            data = self._links[rank].recv(1 << 20)
            frames = self._readers[rank].feed(data)
        except (OSError, BadFileError):
            data, frames = b"", []
        for kind, value in frames:
            if kind == "voted":
                epoch, well = value
                if epoch == self.membership.epoch:
                    self.membership.vote(rank, well, now)
                continue
            if kind == "reported":
                outcome.reports.append(value)
            elif kind == "raised":
                outcome.ended, outcome.value, outcome.trace = kind, ": ".join(value[:2]), value[2]
                value = outcome.value
            else:
                outcome.ended, outcome.value = kind, value
            found.append(Event(rank, kind, value, now - self._begin_s))
        if not data and outcome.ended == "running":
            outcome.ended, outcome.value = "died", self._buried(rank)
            found.append(Event(rank, "died", outcome.value, now - self._begin_s))
        if outcome.ended != "running":
            self._selector.unregister(self._links[rank])
            self.membership.lose(rank)
            for other in self.running:
                self._send(other, "ended", rank)
        self._tell(self.membership.decide())
        # Who takes an end may replace the rank at once.
        return found

    def _buried(self, rank: int) -> int | None:
        child = self._children[rank]
        code = child.wait(_BURIAL_S)
        if code is None:
            # Its link is closed, so that it can do nothing useful any more.
            child.kill()
        return child.returncode

    def _tell(self, decision: Decision | None) -> None:
        if decision is not None:
            words = [decision.commit, decision.epoch, list(decision.members), list(decision.lost)]
            for rank in decision.members:
                self._send(rank, "decided", words)

    # -- what is done to ranks -----------------------------------------------------------------------------------------

    def send(self, rank: int, value: Any) -> None:
        """Give a rank a value; it takes it with ``rank.command()``.  Nothing happens when the rank has ended."""
        self._send(rank, "command", value)

    def _send(self, rank: int, kind: str, value: Any) -> None:
        frame = encode_frame([kind, value])
        try:
            self._links[rank].sendall(frame)
        except TimeoutError:
            # One that does not read any more has missed a part of a frame, and could not go on.
            self.kill(rank)
        except OSError:
            return

    def kill(self, rank: int) -> None:
        """End a rank with SIGKILL, stopped or not."""
        self._children[rank].kill()

    def replace(
        self, rank: int, *, arguments: Mapping[str, Any] | None = None, faults: Sequence[Fault] = ()
    ) -> None:  # fmt: skip
        """Start a new process in the place of one that has ended; it has the same shared memory, and no group.

        Parameters
        ----------
        rank : int
        arguments : mapping, optional
            In place of those that all ranks were started with.
        faults : sequence of Fault
            What is to happen to the new one.

        Raises
        ------
        BadValueError
            If the old process has not ended.
        """
        if rank in self.running:
            raise BadValueError("Only a rank that has ended is replaced.", given=f"rank {rank}",
                                hint="kill it and wait for its end")  # fmt: skip
        self._children[rank].stop(0)
        self._links[rank].close()
        # An end that nobody has heard of yet is not that of the new one.
        self._found = collections.deque(each for each in self._found if each.rank != rank or each.kind == "reported")
        self.outcomes[rank], self._readers[rank] = Outcome(rank), FrameReader()
        given = self._arguments if arguments is None else arguments
        self._children[rank], self._links[rank] = self._start(rank, given, faults, self._stack)

    def stop(self, rank: int) -> None:
        """Stop a rank with SIGSTOP until :meth:`resume`."""
        self._children[rank].pause()

    def resume(self, rank: int) -> None:
        """Let a stopped rank go on with SIGCONT."""
        self._children[rank].resume()

    def slow(self, rank: int, share: float) -> None:
        """Let a rank run for a share of the time only, by stopping it and letting it go on every 20 ms.

        What it does in much less than 20 ms is either not slowed down, or stands still.

        Parameters
        ----------
        rank : int
        share : float
            Above 0; 1 lets it run all the time again.
        """
        if not 0 < share <= 1:
            raise BadValueError("A rank runs for a share of the time.", given=share, allowed="above 0, at most 1")
        if rank in self._slow:
            end, thread = self._slow.pop(rank)
            end.set()
            thread.join()
        if share < 1:
            end = threading.Event()
            thread = threading.Thread(target=_brake, args=(self._children[rank], share, end), daemon=True)
            self._slow[rank] = (end, thread)
            thread.start()

    def throttle(self, rank: int, bytes_per_s: float) -> None:
        """Limit what each connection of a rank sends to others (Linux); 0 lifts the limit."""
        _check_rate(bytes_per_s)
        self._send(rank, "throttle", float(bytes_per_s))


def _check_rate(bytes_per_s: float) -> None:
    if not (bytes_per_s == 0 or 1 <= bytes_per_s < 2**32 - 1):
        raise BadValueError("A connection sends bytes per second.", given=bytes_per_s,
                            allowed="1 to 4.29e9; 0 for no limit")  # fmt: skip


def _brake(child: ChildProcess, share: float, end: threading.Event) -> None:
    while not end.is_set() and child.running:
        child.pause()
        end.wait(_PERIOD_S * (1 - share))
        child.resume()
        end.wait(_PERIOD_S * share)


def run_ranks(
    work: Callable[..., Any], size: int, *, arguments: Mapping[str, Any] | None = None, timeout_s: float = 120.0
) -> list[Any]:
    """Run a function in several processes and return what each returned.

    Parameters
    ----------
    work, size, arguments
        As for :class:`Ranks`.
    timeout_s : float
        For the whole; single operations among ranks have it as their limit, too.

    Raises
    ------
    WavetankError
        If a rank raised, died or did not end in time.
    """
    with Ranks(work, size, arguments=arguments, timeout_s=timeout_s) as ranks:
        return ranks.values(timeout_s)
