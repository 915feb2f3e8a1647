"""Processes that a measurement starts: pinned to cores, watched through ``/proc``, and always reaped.

A child is ended when its ``with`` block ends, on Ctrl-C too; where ``setpriv`` is installed (Linux) it also ends when
this process is killed.  Its output goes to a file, so that a pipe that nobody reads cannot stall it.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from wavetank.errors import WavetankError

START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_PROC = Path("/proc")


def split_cores() -> tuple[frozenset[int], frozenset[int]]:
    """Return the cores for the process under measurement (one) and for everything else.

    Both are empty where the system cannot pin; they are equal on a machine with one core.
    """
    if not hasattr(os, "sched_getaffinity"):
        return frozenset(), frozenset()
    first, *others = sorted(os.sched_getaffinity(0))
    return frozenset([first]), frozenset(others) or frozenset([first])


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


def free_port() -> int:
    """Return a loopback port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
        On top of this process's own.

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
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        if shutil.which(words[0]) is None:
            # Asked for here: what is started first may be setpriv.
            raise WavetankError(f"{name} could not be started: there is no such program.", given=words[0])
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        tether = shutil.which("setpriv")
        prefix = [tether, "--pdeathsig", "KILL"] if tether and sys.platform == "linux" else []
        try:
            self._process = subprocess.Popen(
                [*prefix, *words],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                # Ctrl-C reaches this process alone, which then ends the child in order.
                start_new_session=True,
            )
        except OSError as error:
            self._output.close()
            raise WavetankError(f"{name} could not be started: {error}", given=words[0]) from error
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

    def output(self) -> str:
        """Return what the process has written so far, standard error included."""
        self._output.flush()
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def first_line(self, timeout_s: float = START_TIMEOUT_S) -> str:
        """Return the first line the process writes; raises WavetankError if it ends or takes too long."""
        for _ in self._until(timeout_s, "said nothing"):
            line, newline, _ = self.output().partition("\n")
            if newline:
                return line
        return ""

    def wait_ready(self, port: int, page: str = "/v1/models", timeout_s: float = START_TIMEOUT_S) -> None:
        """Return once the port answers a page, with a status below 500; raises WavetankError as the others do.

        A port may take connections before the program behind it serves.
        """
        for _ in self._until(timeout_s, "does not answer"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
            with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
                connection.request("GET", page)
                if connection.getresponse().status < 500:
                    return

    def _until(self, timeout_s: float, complaint: str) -> Iterator[None]:
        stop = time.monotonic() + timeout_s
        while True:
            yield
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

    def stop(self) -> None:
        """End the process and its own children: politely, after five seconds by force."""
        try:
            if self.running:
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOP_TIMEOUT_S)
        finally:
            # The group outlives its leader while a child of it runs.
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._output.close()

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


def _after_name(stat: Path) -> list[str]:
    # The second field is the program's name in brackets, which may hold blanks and brackets.
    return stat.read_text().rpartition(")")[2].split()
