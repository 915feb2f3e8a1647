"""What runs in each process of :class:`wavetank.live.ranks.Ranks`: a function that is given its :class:`Rank`.

The process groups are torch's gloo on loopback, made anew in every epoch with a store of its own, so that nothing of a
group that broke can reach the next one.  The process ends when its launcher is gone, and when its function is done.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError, missing_extra
from wavetank.live.membership import Decision
from wavetank.live.rank_link import FrameReader, encode_frame
from wavetank.live.shared_pages import mapped

# linux/socket.h; Python's socket module has no name for it.
_SO_MAX_PACING_RATE = 47
_UNLIMITED = 0xFFFFFFFF
_LAUNCHER_GONE = 70
_LOOK_S = 0.005


class GroupBrokenError(WavetankError):
    """A collective operation that did not end well: a member is gone, or was too slow."""


class Rank:
    """The place of this process among others, and what it may do with them.

    Parameters
    ----------
    number, size : int
        Its number, from 0, and the number of ranks that were started.
    shared : uint8 array (n,), optional
        Memory that all ranks have, if the launcher was asked for some.
    """

    def __init__(self, link: socket.socket, assignment: dict[str, Any]) -> None:
        self.number: int = assignment["rank"]
        self.size: int = assignment["size"]
        self.timeout_s: float = assignment["timeout_s"]
        self.start_timeout_s: float = assignment["start_timeout_s"]
        self.decision_timeout_s: float = assignment["decision_timeout_s"]
        self.epoch = 0
        self.members: tuple[int, ...] = tuple(range(self.size))
        self._folder = Path(assignment["folder"])
        self._faults: list[dict[str, Any]] = list(assignment["faults"])
        self._link = link
        self._sending = threading.Lock()
        self._decisions: queue.Queue[Decision] = queue.Queue()
        self._commands: queue.Queue[Any] = queue.Queue()
        # What the launcher says has ended; filled by the thread that listens.
        self._ended: set[int] = set()
        self._bytes_per_s: float = assignment["bytes_per_s"] or 0.0
        self._group: Any = None
        self.shared: NDArray[np.uint8] | None = None
        if assignment["pages"] >= 0:
            self.shared = mapped(assignment["pages"])
            os.close(assignment["pages"])

    # -- with the launcher ---------------------------------------------------------------------------------------------

    def report(self, value: Any) -> None:
        """Give the launcher a plain value or array: an event of this rank."""
        self._say("reported", value)

    def command(self, timeout_s: float | None = 0.0) -> Any:
        """Return the next value that the launcher sent; None if none comes in time.  ``None``: wait without a limit."""
        with contextlib.suppress(queue.Empty):
            return self._commands.get(timeout=timeout_s) if timeout_s != 0.0 else self._commands.get_nowait()
        return None

    def point(self, name: str, **at: int) -> None:
        """Name a place that the function has reached: planned faults strike here.

        Parameters
        ----------
        name : str
        **at : int
            Where exactly: a step, a bucket.
        """
        for fault in [f for f in self._faults if f["point"] == name and f["at"].items() <= at.items()]:
            self._faults.remove(fault)
            if fault["kind"] == "sleep":
                time.sleep(fault["seconds"])
            elif fault["kind"] == "raise":
                raise RuntimeError(f"planned fault at {name} {at}")
            else:
                number = signal.SIGKILL if fault["kind"] == "kill" else signal.SIGSTOP
                if fault["seconds"]:
                    threading.Timer(fault["seconds"], os.kill, (os.getpid(), number)).start()
                else:
                    os.kill(os.getpid(), number)

    def expect(self, point: str, kind: str, seconds: float = 0.0) -> None:
        """Plan one more fault of this rank, as :class:`~wavetank.live.ranks.Fault` describes them.

        Parameters
        ----------
        point, kind : str
        seconds : float
        """
        self._faults.append({"point": point, "at": {}, "kind": kind, "seconds": seconds})

    def agree(self, well: bool) -> Decision:
        """Vote whether the common work went well, and return the answer that all living members get.

        The group of an epoch that is over is left; :meth:`join` makes the next one.

        Raises
        ------
        WavetankError
            If the launcher gives no answer within ``decision_timeout_s``, longer than it waits for anybody's vote.
        """
        self._say("voted", [self.epoch, well])
        try:
            decision = self._decisions.get(timeout=self.decision_timeout_s)
        except queue.Empty:
            raise WavetankError(
                "The launcher does not say whether the work counts.",
                given=f"no answer within {self.decision_timeout_s:g} s",
                hint="take the events of Ranks as they come, with wait() or in a loop over events()",
            ) from None
        if decision.epoch != self.epoch:
            self.leave()
            self.epoch, self.members = decision.epoch, decision.members
        return decision

    # -- with the other ranks ------------------------------------------------------------------------------------------

    @property
    def group(self) -> Any:
        """Return torch's process group of this epoch's members; it is made at the first use."""
        if self._group is None:
            self.join()
        return self._group

    def join(self) -> None:
        """Meet the other members of this epoch in a process group.

        Raises
        ------
        GroupBrokenError
            If one of them has ended, or does not come within ``timeout_s``, or ``start_timeout_s`` in the first epoch,
            when some still load their libraries.
        """
        dist = _distributed()
        self.leave()
        patience_s = self.timeout_s if self.epoch else self.start_timeout_s
        try:
            store = dist.FileStore(str(self._folder / f"store-{self.epoch}"), len(self.members))
            store.set_timeout(timedelta(seconds=patience_s))
            self._meet(store, patience_s)
            options = dist.ProcessGroupGloo._Options()
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            options._timeout = timedelta(seconds=patience_s)
            place = self.members.index(self.number)
            group = dist.ProcessGroupGloo(store, place, len(self.members), options)
            group._set_default_timeout(timedelta(seconds=self.timeout_s))
            self._group = group
        except RuntimeError as error:
            raise GroupBrokenError(
                f"Not all of {len(self.members)} ranks came within {patience_s:g} s.", given=_first_line(error)
            ) from error
        self.throttle(self._bytes_per_s)

    def _meet(self, store: Any, patience_s: float) -> None:
        """Wait until all members are there: in here the end of one is noticed, while gloo would wait for it."""
        self.point("joining", epoch=self.epoch)
        store.set(f"here-{self.number}", "yes")
        wanted, stop_s = [f"here-{member}" for member in self.members], time.monotonic() + patience_s
        while not store.check(wanted):
            ended = self._ended.intersection(self.members)
            if ended:
                raise GroupBrokenError("A member of the group has ended.", given=f"rank {min(ended)}")
            if time.monotonic() > stop_s:
                raise GroupBrokenError(
                    f"Not all of {len(self.members)} ranks came within {patience_s:g} s.",
                    given=f"epoch {self.epoch}",
                )
            time.sleep(_LOOK_S)

    def leave(self) -> None:
        """Leave the process group, so that its other members see its end at once."""
        self._group = None

    def default_group(self) -> None:
        """Make the group of all ranks torch's default group, as ``torch.distributed`` and DTensor expect it.

        Its operations may take ``timeout_s``, or ``start_timeout_s`` where that is longer.

        Raises
        ------
        GroupBrokenError
            If one of them has ended, or does not come within ``start_timeout_s``.
        """
        dist = _distributed()
        store = dist.FileStore(str(self._folder / "store-default"), self.size)
        self._meet(store, self.start_timeout_s)
        limit = timedelta(seconds=max(self.start_timeout_s, self.timeout_s))
        dist.init_process_group("gloo", store=store, rank=self.number, world_size=self.size, timeout=limit)
        self.throttle(self._bytes_per_s)

    def all_reduce(self, tensor: Any, **at: int) -> None:
        """Sum a contiguous tensor over the members of the epoch, in place.

        Parameters
        ----------
        tensor : torch.Tensor
        **at : int
            Coordinates of the point ``in flight``, which is reached after the operation has begun.

        Raises
        ------
        GroupBrokenError
            If a member is gone or late.  What the tensor then holds is neither its old content nor the sum.
        """
        if len(self.members) == 1:
            self.point("in flight", **at)
            return
        try:
            work = self.group.allreduce([tensor])
            self.point("in flight", **at)
            work.wait()
        except RuntimeError as error:
            work = None
            self.leave()
            raise GroupBrokenError("A member of the group is gone or late.", given=_first_line(error)) from error

    def throttle(self, bytes_per_s: float) -> None:
        """Limit what each connection of this process sends (Linux paces it in the kernel); 0 lifts the limit."""
        self._bytes_per_s = bytes_per_s
        if not sys.platform.startswith("linux"):
            if bytes_per_s:
                raise WavetankError("Connections are throttled on Linux only.", given=sys.platform)
            return
        limit = struct.pack("=I", int(bytes_per_s) if bytes_per_s else _UNLIMITED)
        for entry in list(Path("/proc/self/fd").iterdir()):
            with contextlib.suppress(OSError):
                # A copy of what is no socket would stay open: nobody closes what could not be made one.
                if str(entry.readlink()).startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(entry.name))) as each:
                        if each.family == socket.AF_INET:
                            each.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, limit)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _say(self, kind: str, value: Any) -> None:
        frame = encode_frame([kind, value])
        with self._sending:
            self._link.sendall(frame)

    def _listen(self, reader: FrameReader, frames: list[Any]) -> None:
        with contextlib.suppress(OSError):
            while True:
                for kind, value in frames:
                    if kind == "decided":
                        commit, epoch, members, lost = value
                        self._decisions.put(Decision(commit, epoch, tuple(members), tuple(lost)))
                    elif kind == "ended":
                        self._ended.add(value)
                    elif kind == "throttle":
                        self.throttle(value)
                    else:
                        self._commands.put(value)
                data = self._link.recv(1 << 16)
                if not data:
                    break
                frames = reader.feed(data)
        # Nobody waits for this process any more; a collective operation may hold the main thread.
        os._exit(_LAUNCHER_GONE)


def _distributed() -> Any:
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise missing_extra("torch", "torch", needed_for="A process group") from error
    return dist


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def function_named(module: str, file: str, name: str) -> Callable[..., Any]:
    """Return a function by the name of its module, or out of its file where the module cannot be imported by name.

    Raises
    ------
    BadValueError
        If neither has it.
    """
    found: Any = None
    with contextlib.suppress(ImportError):
        if module != "__main__":
            found = importlib.import_module(module)
    if found is None:
        spec = importlib.util.spec_from_file_location("wavetank_rank_work", file) if file else None
        if spec is None or spec.loader is None or not Path(file).is_file():
            raise BadValueError("A rank cannot import what it is to do.", given=f"{module}:{name}", where=file or None)
        found = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = found
        spec.loader.exec_module(found)
    function = getattr(found, name, None)
    if not callable(function):
        raise BadValueError("There is no such function for ranks.", given=name, where=file or module)
    return function


def main(descriptor: int) -> None:
    """Serve one rank: read the assignment, run the function, say how it ended."""
    link = socket.socket(fileno=descriptor)
    reader = FrameReader()
    frames: list[Any] = []
    while not frames:
        data = link.recv(1 << 16)
        if not data:
            os._exit(_LAUNCHER_GONE)
        frames = reader.feed(data)
    assignment = frames[0]
    rank = Rank(link, assignment)
    threading.Thread(target=rank._listen, args=(reader, frames[1:]), daemon=True).start()
    try:
        work = function_named(assignment["module"], assignment["file"], assignment["name"])
        rank._say("returned", work(rank, **assignment["arguments"]))
    except WavetankError as error:
        rank._say("raised", [type(error).__name__, str(error), traceback.format_exc()])
    except Exception as error:
        rank._say("raised", [type(error).__name__, _first_line(error), traceback.format_exc()])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a broken group could keep the interpreter from ending.
    os._exit(0)


if __name__ == "__main__":
    # By its name, or the function's module would import a second copy of these classes.
    from wavetank.live import rank_process

    rank_process.main(int(sys.argv[1]))
