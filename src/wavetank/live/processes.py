"""Processes that are started here: pinned to cores, watched through ``/proc``, stopped, and always reaped.

A child is ended when its ``with`` block ends, on Ctrl-C too; where ``setpriv`` is installed (Linux) it also ends when
this process is killed.  Its output goes to a file, so that a pipe that nobody reads cannot stall it.

Command lines of Python processes are made here alone: ``python -m`` and ``python -c`` put the current directory before
everything else that can be imported, so that a ``queue.py`` in a downloaded folder would run in every child.  ``-P``
leaves it out; what the caller could import is passed on by ``PYTHONPATH`` alone.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from wavetank.errors import WavetankError

START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_PROC = Path("/proc")


def python_module(name: str, *words: str) -> list[str]:
    """Return the command line that runs a module of the installed package in a process of its own.

    Parameters
    ----------
    name : str
        Dotted name of the module.
    *words : str
        Its arguments.

    Examples
    --------
    >>> python_module("wavetank", "list")[1:]
    ['-P', '-m', 'wavetank', 'list']
    """
    return [sys.executable, "-P", "-m", name, *words]


def python_code(code: str, *words: str) -> list[str]:
    """Return the command line that runs a text of Python in a process of its own."""
    return [sys.executable, "-P", "-c", code, *words]


def own_cores() -> list[frozenset[int]]:
    """Return each core that this process may use, in rising order; none where the system cannot pin."""
    return [frozenset([core]) for core in sorted(os.sched_getaffinity(0))] if hasattr(os, "sched_getaffinity") else []


def split_cores() -> tuple[frozenset[int], frozenset[int]]:
    """Return the cores for the process under measurement (one) and for everything else.

    Both are empty where the system cannot pin; they are equal on a machine with one core.
    """
    first, *others = own_cores() or [frozenset()]
    return first, frozenset[int]().union(*others) or first


@contextlib.contextmanager
def pinned(cores: frozenset[int]) -> Iterator[None]:
    """Keep the calling thread on ``cores`` within the block; nothing happens when they are empty."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_ports(count: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> list[int]:
    """Return different loopback ports that nobody listened on a moment ago.

    Parameters
    ----------
    count : int
    kind : socket.SocketKind
        ``SOCK_STREAM`` for ports of TCP, ``SOCK_DGRAM`` for those of UDP.
    """
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket(type=kind)) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def free_port() -> int:
    """Return a loopback port that nobody listened on a moment ago."""
    return free_ports(1)[0]


@contextlib.contextmanager
def hold_port() -> Iterator[int]:
    """Keep a loopback port from everybody who does not ask to share it; connections to it are refused meanwhile.

    A server that is killed and started again must find its port free; one that asks for ``SO_REUSEPORT`` does.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


class ChildProcess:
    """A running child process.

    Parameters
    ----------
    words : sequence of str
        Program and arguments.
    name : str
        For messages.
    cores : frozenset of int
        Where it may run; empty: anywhere.
    environment : mapping
        On top of this process's own; None takes a variable away.
    pass_fds : sequence of int
        Descriptors that it inherits.
    pipes : bool
        Whether its standard input and output are pipes to here, ``stdin`` and ``stdout``.  What it writes to standard
        error is kept all the same.
    log : Path, optional
        File to which its output is appended; one without a name by default.

    Raises
    ------
    WavetankError
        If the program cannot be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        name: str,
        cores: frozenset[int] = frozenset(),
        environment: Mapping[str, str | None] | None = None,
        pass_fds: Sequence[int] = (),
        pipes: bool = False,
        log: Path | None = None,
    ) -> None:
        self.name = name
        self._pipes = pipes
        if shutil.which(words[0]) is None:
            # Asked for here: what is started first may be setpriv.
            raise WavetankError(f"{name} could not be started: there is no such program.", given=words[0])
        tether = shutil.which("setpriv")
        prefix = [tether, "--pdeathsig", "KILL"] if tether and sys.platform == "linux" else []
        variables = {**os.environ, **(environment or {})}
        with contextlib.ExitStack() as undo:
            try:
                if log is not None:
                    log.parent.mkdir(parents=True, exist_ok=True)
                output = tempfile.TemporaryFile() if log is None else log.open("ab+")  # noqa: SIM115  (closed by stop)
                self._output = undo.enter_context(output)
                self._process = subprocess.Popen(
                    [*prefix, *words],
                    stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if pipes else self._output,
                    stderr=self._output,
                    env={key: value for key, value in variables.items() if value is not None},
                    pass_fds=pass_fds,
                    # Ctrl-C reaches this process alone, which then ends the child in order.
                    start_new_session=True,
                )
            except OSError as error:
                raise WavetankError(f"{name} could not be started: {error}", given=words[0]) from error
            undo.pop_all()
        if cores:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(self._process.pid, cores)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """Return the code with which the process ended, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def stdin(self) -> IO[bytes]:
        """Return the pipe to its standard input."""
        return _pipe(self._process.stdin, self.name)

    @property
    def stdout(self) -> IO[bytes]:
        """Return the pipe from its standard output."""
        return _pipe(self._process.stdout, self.name)

    def output(self) -> str:
        """Return what the process has written so far, standard error included."""
        self._output.flush()
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def first_line(self, timeout_s: float = START_TIMEOUT_S) -> str:
        """Return the first line the process writes; raises WavetankError if it ends or takes too long."""
        self.until(lambda: "\n" in self.output(), timeout_s, "said nothing")
        return self.output().partition("\n")[0]

    def wait_ready(self, port: int, page: str = "/v1/models", timeout_s: float = START_TIMEOUT_S) -> None:
        """Return once the port answers a page, with a status below 500; raises WavetankError as the others do.

        A port may take connections before the program behind it serves.
        """

        def answers() -> bool:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
            with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
                connection.request("GET", page)
                return connection.getresponse().status < 500
            return False

        self.until(answers, timeout_s, "does not answer")

    def until(self, true: Callable[[], bool], timeout_s: float, complaint: str) -> None:
        """Return once something holds; raises WavetankError if the process ends before or it takes too long.

        Parameters
        ----------
        true : callable
        timeout_s : float
        complaint : str
            What the process does instead, for the message.
        """
        stop = time.monotonic() + timeout_s
        while not true():
            if not self.running:
                code = self._process.returncode
                raise WavetankError(f"{self.name} ended with code {code}.", given=self.output()[-2000:].strip() or None)
            if time.monotonic() > stop:
                said = self.output()[-2000:].strip() or None
                raise WavetankError(f"{self.name} {complaint} after {timeout_s:g} s.", given=said)
            time.sleep(0.02)

    def kill(self) -> None:
        """End the process at once, as a crash would, and reap it."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        """Stop the process, as SIGSTOP does, until :meth:`resume`."""
        if self.running:
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process go on after :meth:`pause`."""
        if self.running:
            self._signal(signal.SIGCONT)

    def wait(self, timeout_s: float) -> int | None:
        """Return the code with which the process ended; None if it still runs after that time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.returncode

    def stop(self, patience_s: float | None = None) -> None:
        """End the process and its own children: politely, after five seconds or another time by force.

        Polite is the end of its input where that is a pipe, and SIGTERM otherwise.  Without any patience nothing
        polite happens first, so that a quick process cannot act on it before the force.
        """
        patience_s = _STOP_TIMEOUT_S if patience_s is None else patience_s
        try:
            if patience_s > 0:
                if self._pipes:
                    self._close_input()
                elif self.running:
                    self._process.terminate()
                self.resume()
                self.wait(patience_s)
        finally:
            # The group outlives its leader while a child of it runs.
            self._signal(signal.SIGKILL)
            self._process.wait()
            if self._pipes:
                self._close_input()
                self.stdout.close()
            self._output.close()

    def _close_input(self) -> None:
        # What a process that has ended did not read belongs to nobody any more.
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def family(self) -> list[int]:
        """Return the ids of the process and its descendants; the process alone where there is no ``/proc``."""
        parents = {}
        for stat in _PROC.glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(stat.parent.name)] = int(_after_name(stat)[1])
        found = [self.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def cpu_s(self) -> float:
        """Return the processor time used so far, user and system, descendants included; NaN without ``/proc``."""
        total, ticks_per_s = 0.0, os.sysconf("SC_CLK_TCK")
        for pid in self.family():
            try:
                fields = _after_name(_PROC / str(pid) / "stat")
            except OSError:
                continue
            total += (int(fields[11]) + int(fields[12])) / ticks_per_s
        return total if _PROC.joinpath("stat").exists() else math.nan

    def resident_bytes(self) -> float:
        """Return the resident memory, descendants included; NaN without ``/proc``."""
        total, page_bytes = 0.0, os.sysconf("SC_PAGE_SIZE")
        for pid in self.family():
            with contextlib.suppress(OSError):
                total += int((_PROC / str(pid) / "statm").read_text().split()[1]) * page_bytes
        return total if _PROC.joinpath("stat").exists() else math.nan

    def open_files(self) -> int:
        """Return how many files and sockets the process itself has open; 0 without ``/proc``."""
        try:
            return sum(1 for _ in (_PROC / str(self.pid) / "fd").iterdir())
        except OSError:
            return 0


def _pipe(pipe: IO[bytes] | None, name: str) -> IO[bytes]:
    if pipe is None:
        raise WavetankError(f"{name} was started without pipes.")
    return pipe


def _after_name(stat: Path) -> list[str]:
    # The second field is the program's name in brackets, which may hold blanks and brackets.
    return stat.read_text().rpartition(")")[2].split()
