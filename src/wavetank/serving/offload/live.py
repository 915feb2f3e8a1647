"""Blocks whose weights come from files while others run: chunkflow between real threads.

:class:`ChunkedWeights` keeps some tensors of every block in memory and gives a loop all of them, block after block:
another thread copies the others ahead, in chunks, into landing slots, and asks the same rule as the simulation before
each chunk.  A :class:`~wavetank.sim.links.TokenBucket` can stand for a link that the copies share with collectives.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.machine.cuda import require_cuda
from wavetank.serving.offload.chunkflow import CHUNK_BYTES, ChunkFlow
from wavetank.serving.offload.device_slots import DeviceSlots
from wavetank.serving.offload.weight_files import BlockFile, StoredTensor, open_blocks
from wavetank.sim.links import PS_PER_S, CopyView, TokenBucket, YieldRule

_GRAIN_BYTES = 1 << 16
_ALIGNED = 64
# How often those who wait look whether the other thread is still there.
_LOOK_S = 0.2
_NAP_S = 0.05
_NEVER_PS = 1 << 62
_NEWEST = 0.3


class StreamError(WavetankError):
    """Weights that do not come, or are used when they are not there."""


class Counted(NamedTuple):
    """What has happened so far.

    Attributes
    ----------
    copied_bytes : int
        By the copying thread.
    blocks : int
        Given to the loop.
    stalled_s : float
        How long the loop waited for weights, s.
    peak_bytes : int
        Resident tensors and landing slots.
    bytes_per_s : float
        Of the chunks copied last; 0 before the first.
    """

    copied_bytes: int
    blocks: int
    stalled_s: float
    peak_bytes: int
    bytes_per_s: float


class Link:
    """A token bucket that several threads share, in the order in which they come.

    Parameters
    ----------
    bucket : TokenBucket
    """

    def __init__(self, bucket: TokenBucket) -> None:
        self._bucket, self._lock = bucket, threading.Lock()

    def send(self, n_bytes: int, ended: Callable[[], bool] = lambda: False, *, since_ns: int = 0) -> int:
        """Return when these bytes have passed, grain by grain, or soon after nobody needs them any more.

        Parameters
        ----------
        n_bytes : int
        ended : callable
            Whether that is so.
        since_ns : int
            Since when they were ready, by the monotonic clock; 0 for now.

        Returns
        -------
        int
            When the last one passed, ns: what follows at once is ready since then.
        """
        until_ns = since_ns or time.monotonic_ns()
        while n_bytes > 0:
            grain = min(n_bytes, _GRAIN_BYTES)
            with self._lock:
                # Ready since the last grain passed: what was overslept is made up for.
                until_ns = self._bucket.take(until_ns, grain)
            while (rest_s := (until_ns - time.monotonic_ns()) / 1e9) > 0:
                if ended():
                    return until_ns
                time.sleep(min(rest_s, _NAP_S))
            n_bytes -= grain
        return until_ns


class Block(Mapping[str, Any]):
    """The tensors of a block by name, as long as the loop is at it: arrays that cannot be written, or torch's on a GPU.

    What the loop keeps beyond that is overwritten: copy it.
    """

    def __init__(self, number: int, tensors: dict[str, Any]) -> None:
        self.number = number
        self._tensors: dict[str, Any] | None = tensors

    def _there(self) -> dict[str, Any]:
        if self._tensors is None:
            raise StreamError("The loop has left this block: its weights are gone.", given=self.number)
        return self._tensors

    def __getitem__(self, name: str) -> Any:
        return self._there()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._there())

    def __len__(self) -> int:
        return len(self._there())

    def leave(self) -> None:
        """Give the weights up."""
        self._tensors = None


def resident_tensors(block: BlockFile, share: float) -> tuple[StoredTensor, ...]:
    """Return which tensors stay: the largest that do not exceed the share, and the least that fills it.

    Parameters
    ----------
    block : BlockFile
    share : float
        Of the bytes of the block; 0 to 1.
    """
    # As it is written: 0.07 is seven hundredths.
    wanted = Fraction(repr(float(share))) * block.n_bytes
    kept: list[StoredTensor] = []
    rest = sorted(block.tensors, key=lambda each: (-each.n_bytes, each.start))
    for each in list(rest):
        if sum(one.n_bytes for one in kept) + each.n_bytes <= wanted:
            kept.append(each)
            rest.remove(each)
    if sum(one.n_bytes for one in kept) < wanted and rest:
        kept.append(rest[-1])
    return tuple(kept)


@dataclass
class _Shared:
    """What both threads know; everything is changed with the lock held."""

    changed: threading.Condition
    free: list[npt.NDArray[np.uint8]]
    landed: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)
    visit: int = 0  # that the loop is at or comes to next; visits count on from pass to pass
    inside: bool = False  # whether the loop is at a block
    began_s: float = 0.0
    block_s: float = 0.0  # what a block takes; 0 before the first
    waited_for: bool = False
    pending: int = 0
    stop: bool = False
    error: BaseException | None = None
    copied_bytes: int = 0
    bytes_per_s: float = 0.0

    def end(self) -> None:
        with self.changed:
            self.stop = True
            self.changed.notify_all()


class _Copier:
    """The copying thread's work."""

    def __init__(
        self, shared: _Shared, blocks: tuple[BlockFile, ...], missing: list[tuple[StoredTensor, ...]],
        rule: YieldRule, chunk_bytes: int, link: Link | None, gpu: DeviceSlots | None,
    ) -> None:  # fmt: skip
        self.shared, self.blocks, self.missing, self.gpu = shared, blocks, missing, gpu
        self.rule, self.chunk_bytes, self.link = rule, chunk_bytes, link
        # Checksums that were not written down are those of the first copy.
        self.sums: dict[tuple[int, str], int] = {}
        # When the last chunk passed the link, ns, if the next one follows without a pause; or 0.
        self.passed_ns = 0

    def run(self) -> None:
        shared = self.shared
        following = 0
        try:
            while True:
                with shared.changed:
                    while not shared.stop and not shared.free:
                        shared.changed.wait()
                    if shared.stop:
                        return
                    following = self.next_lacking(max(following, shared.visit))
                    slot = shared.free.pop()
                whole = self.copy(following, slot)
                with shared.changed:
                    # The loop may have gone on to another step meanwhile.
                    if whole and following >= shared.visit:
                        shared.landed[following] = slot
                        following += 1
                    else:
                        shared.free.append(slot)
                    shared.changed.notify_all()
        except BaseException as error:
            with shared.changed:
                shared.error = error
                shared.changed.notify_all()

    def next_lacking(self, visit: int) -> int:
        """Return the first visit from this one on whose block lacks something; some block does."""
        while not self.missing[visit % len(self.blocks)]:
            visit += 1
        return visit

    def copy(self, visit: int, slot: npt.NDArray[np.uint8]) -> bool:
        """Fill a slot; return whether it was filled, and not given up because nobody needs it any more."""
        number = visit % len(self.blocks)
        block = self.blocks[number]
        left = sum(each.n_bytes for each in self.missing[number])
        self.passed_ns = 0
        if self.gpu is not None:
            self.gpu.begin(slot)
        with opened(block) as file:
            place = 0
            for tensor in self.missing[number]:
                into, landing = slot[place : place + tensor.n_bytes], place
                place += -(-tensor.n_bytes // _ALIGNED) * _ALIGNED
                for start in range(0, tensor.n_bytes, self.chunk_bytes):
                    if not self.may_go(visit, left):
                        return False
                    chunk = into[start : start + self.chunk_bytes]
                    began = time.perf_counter()
                    read_exactly(file, chunk, tensor.start + start, block)
                    if self.gpu is not None:
                        self.gpu.send(slot, landing + start, chunk.size)
                    self.pass_link(chunk.size, began)
                    left -= chunk.size
                self.verify(number, tensor, into)
        return True

    def may_go(self, visit: int, left: int) -> bool:
        """Wait as long as the rule says; return whether the copy is needed still."""
        shared = self.shared
        with shared.changed:
            while not shared.stop and visit >= shared.visit:
                view = self.view(visit, left)
                if not self.rule.waits(view):
                    return True
                self.passed_ns = 0
                shared.changed.wait(view.slack_ps / PS_PER_S if 0 < view.slack_ps < PS_PER_S else _LOOK_S)
        return False

    def view(self, visit: int, left: int) -> CopyView:
        shared = self.shared
        left_ps = int(left / shared.bytes_per_s * PS_PER_S) if shared.bytes_per_s else 0
        if shared.waited_for and shared.visit == visit:
            due_ps = 0
        elif not shared.block_s:
            due_ps = _NEVER_PS
        else:
            rest_s = max(0.0, shared.began_s + shared.block_s - time.monotonic()) if shared.inside else 0.0
            due_ps = int((rest_s + max(0, visit - shared.visit - 1) * shared.block_s) * PS_PER_S)
        return CopyView(shared.pending, left_ps, due_ps)

    def pass_link(self, n_bytes: int, began: float) -> None:
        if self.link is not None:
            self.passed_ns = self.link.send(n_bytes, lambda: self.shared.stop, since_ns=self.passed_ns)
        rate = n_bytes / max(time.perf_counter() - began, 1e-9)
        with self.shared.changed:
            self.shared.copied_bytes += n_bytes
            old = self.shared.bytes_per_s
            # A chunk beside a collective is slower than one alone: only the latter say what the link can do.
            if not old or not self.shared.pending:
                self.shared.bytes_per_s = old + _NEWEST * (rate - old) if old else rate

    def verify(self, number: int, tensor: StoredTensor, found: npt.NDArray[np.uint8]) -> None:
        crc = zlib.crc32(found.data)
        expected = tensor.crc32 if tensor.crc32 >= 0 else self.sums.setdefault((number, tensor.name), crc)
        if crc != expected:
            raise BadFileError(f"The tensor {tensor.name!r} is not what it was: its checksum differs.",
                               where=str(self.blocks[number].path))  # fmt: skip


@contextlib.contextmanager
def opened(block: BlockFile) -> Iterator[int]:
    """Give the descriptor of a block's file, which is the described one before and after.

    Parameters
    ----------
    block : BlockFile

    Raises
    ------
    BadFileError
    """
    try:
        file = os.open(block.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise BadFileError("Weights are gone.", given=str(error), where=str(block.path)) from error
    try:
        block.check(file)
        yield file
        block.check(file)
    finally:
        os.close(file)


def read_exactly(file: int, into: npt.NDArray[np.uint8], start: int, block: BlockFile) -> None:
    """Read bytes of a file into an array, all of them.

    Parameters
    ----------
    file : int
        Descriptor.
    into : ndarray of uint8
    start : int
        Place in the file.
    block : BlockFile
        For the error.

    Raises
    ------
    BadFileError
        For a file that ends too soon.
    """
    view, done = into.data, 0
    while done < into.size:
        got = os.preadv(file, [view[done:]], start + done)
        if got == 0:
            raise BadFileError("Weights have changed while they were in use: the file is shorter.",
                               where=str(block.path))  # fmt: skip
        done += got


class ChunkedWeights:
    """Weights of a folder, block after block, with only some of them in memory.

    ``for block in weights`` is one step: it gives every block once.  The first block of the next step is copied while
    the last ones of a step are used.  The loop may be left at any block; the next one begins at the first.  Leaving
    the ``with`` ends the copying thread.

    Parameters
    ----------
    folder : path
        One file a block (:func:`~wavetank.serving.offload.weight_files.open_blocks`).
    resident : float
        Share of every block that stays, 0 to 1, in whole tensors; rounded up.
    chunk_bytes : int
    ahead : int
        Blocks that are copied ahead, 1 or more; 0 copies a block when the loop comes to it.
    rule : YieldRule, optional
        When copies step aside; that of chunkflow when left out.
    link : Link, optional
        What copies pass; nothing holds them up when left out.
    patience_s : float
        How long the loop waits for a block before it gives up, s.
    device : str
        ``cpu``, or a GPU as torch names it: blocks then are tensors there, copied through pinned memory on a stream of
        their own.

    Raises
    ------
    BadFileError
        Here, or in the loop: for weights that are damaged, gone, or changed while they are in use.
    BadValueError

    Examples
    --------
    >>> with ChunkedWeights(folder, resident=0.3) as weights:      # doctest: +SKIP
    ...     for _ in range(steps):
    ...         for block in weights:
    ...             x = layer(x, block["q"], block["k"])
    ...             with weights.collective():
    ...                 exchange(x)
    """

    def __init__(
        self, folder: str | Path, *, resident: float = 0.0, chunk_bytes: int = CHUNK_BYTES, ahead: int = 1,
        rule: YieldRule | None = None, link: Link | None = None, patience_s: float = 60.0, device: str = "cpu",
    ) -> None:  # fmt: skip
        _check(resident, chunk_bytes, ahead, patience_s)
        self._blocks = open_blocks(Path(folder))
        self._patience_s = patience_s
        kept = [resident_tensors(each, resident) for each in self._blocks]
        self._missing = [
            tuple(one for one in each.tensors if one not in stay) for each, stay in zip(self._blocks, kept, strict=True)
        ]
        room = max(sum(-(-one.n_bytes // _ALIGNED) * _ALIGNED for one in each) for each in self._missing)
        count = min(ahead + 1, len(self._blocks) + 1) if room else 0
        self._gpu: DeviceSlots | None = None
        if device != "cpu":
            self._gpu = DeviceSlots(require_cuda("A block on a GPU", device), device, count, room)
        slots = [np.empty(room, np.uint8) for _ in range(count)] if self._gpu is None else list(self._gpu.host)
        self._shared = _Shared(threading.Condition(), slots)
        chosen = ChunkFlow() if rule is None else rule
        self._copier = _Copier(self._shared, self._blocks, self._missing, chosen, chunk_bytes, link, self._gpu)
        self._resident = [self._load(number, each) for number, each in enumerate(kept)]
        stay_bytes = sum(one.n_bytes for each in kept for one in each)
        self._peak_bytes = stay_bytes + len(slots) * room
        self._given, self._stalled_s, self._looping, self._closed = 0, 0.0, False, False
        self._thread: threading.Thread | None = None
        # One that nobody closes leaves no thread behind: the thread does not hold this object.
        self._finalizer = weakref.finalize(self, self._shared.end)

    def _load(self, number: int, kept: tuple[StoredTensor, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if not kept:
            return {}
        with opened(self._blocks[number]) as file:
            for tensor in kept:
                raw = np.empty(tensor.n_bytes, np.uint8)
                read_exactly(file, raw, tensor.start, self._blocks[number])
                self._copier.verify(number, tensor, raw)
                found[tensor.name] = _as_tensor(raw, tensor) if self._gpu is None else self._gpu.resident(raw, tensor)
        return found

    def __len__(self) -> int:
        return len(self._blocks)

    def __enter__(self) -> ChunkedWeights:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.close()

    @property
    def counted(self) -> Counted:
        """What has happened so far."""
        with self._shared.changed:
            copied, rate = self._shared.copied_bytes, self._shared.bytes_per_s
        return Counted(copied, self._given, self._stalled_s, self._peak_bytes, rate)

    def close(self) -> None:
        """End the copying thread, at the end of its chunk; the weights cannot be used any more."""
        self._closed = True
        self._shared.end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._resident = []

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        """Say that something else needs the link of the copies until the end of the ``with``."""
        shared = self._shared
        with shared.changed:
            shared.pending += 1
        try:
            yield
        finally:
            with shared.changed:
                shared.pending -= 1
                shared.changed.notify_all()

    def __iter__(self) -> Iterator[Block]:
        self._check_free()
        return self._step()

    def _check_free(self) -> None:
        if self._closed:
            raise StreamError("These weights are closed.", hint="open the folder again")
        if self._looping:
            raise StreamError("A loop is at these weights already.", hint="open the folder a second time")

    def _step(self) -> Iterator[Block]:
        shared, count = self._shared, len(self._blocks)
        # Of two loops that were made before either began, one may begin.
        self._check_free()
        self._looping = True
        self._start()
        try:
            for number in range(count):
                if self._closed:
                    raise StreamError("These weights were closed within a loop.", given=f"block {number}")
                block = Block(number, self._wait(number))
                self._given += 1
                try:
                    yield block
                finally:
                    block.leave()
                    self._leave()
        finally:
            self._looping = False
            with shared.changed:
                # A loop that was left early: the next one begins at the first block.
                shared.visit = -(-shared.visit // count) * count
                for visit in [each for each in shared.landed if each < shared.visit]:
                    shared.free.append(shared.landed.pop(visit))
                shared.changed.notify_all()

    def _start(self) -> None:
        if self._thread is None and self._shared.free:
            self._thread = threading.Thread(target=self._copier.run, name="chunked-weights", daemon=True)
            self._thread.start()

    def _wait(self, number: int) -> dict[str, Any]:
        shared = self._shared
        began = time.monotonic()
        with shared.changed:
            if self._missing[number] and shared.visit not in shared.landed:
                shared.waited_for = True
                # The rule is asked again: its copy is late now.
                shared.changed.notify_all()
            try:
                while self._missing[number] and shared.visit not in shared.landed:
                    self._check_alive(number, began)
                    shared.changed.wait(_LOOK_S)
            finally:
                shared.waited_for = False
            now = time.monotonic()
            self._stalled_s += now - began
            shared.inside, shared.began_s = True, now
            slot = shared.landed.get(shared.visit)
        tensors, place = dict(self._resident[number]), 0
        for tensor in self._missing[number]:
            if slot is not None and self._gpu is not None:
                tensors[tensor.name] = self._gpu.tensor(slot, place, tensor)
            elif slot is not None:
                tensors[tensor.name] = _as_tensor(slot[place : place + tensor.n_bytes], tensor)
            place += -(-tensor.n_bytes // _ALIGNED) * _ALIGNED
        return tensors

    def _check_alive(self, number: int, began: float) -> None:
        shared = self._shared
        if shared.error is not None:
            if isinstance(shared.error, WavetankError):
                raise shared.error
            raise StreamError("The copying thread has failed.", given=repr(shared.error)) from shared.error
        if shared.stop or self._thread is None or not self._thread.is_alive():
            raise StreamError("The copying thread has ended: no weights will come.", given=f"block {number}")
        if time.monotonic() - began > self._patience_s:
            raise StreamError(
                "A block does not come.", given=f"block {number} after {self._patience_s:g} s",
                hint="does a collective never end, with a rule that always yields?",
            )  # fmt: skip

    def _leave(self) -> None:
        shared = self._shared
        with shared.changed:
            took = time.monotonic() - shared.began_s
            shared.block_s = shared.block_s + _NEWEST * (took - shared.block_s) if shared.block_s else took
            slot = shared.landed.pop(shared.visit, None)
            if slot is not None:
                if self._gpu is not None:
                    self._gpu.leave(slot)
                shared.free.append(slot)
            shared.inside = False
            shared.visit += 1
            shared.changed.notify_all()


def _check(resident: float, chunk_bytes: int, ahead: int, patience_s: float) -> None:
    if isinstance(resident, bool) or not isinstance(resident, int | float) or not 0 <= resident <= 1:
        raise BadValueError("A share of the weights stays in memory.", given=resident, allowed="0 to 1",
                            where="resident")  # fmt: skip
    for name, value, low in (("chunk_bytes", chunk_bytes, 1), ("ahead", ahead, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 2**31 - 1:
            raise BadValueError("Copies have chunks, and landing slots.", given=value, where=name,
                                allowed=f"a whole number, {low} to {2**31 - 1}")  # fmt: skip
    if not 0 < patience_s < 1e9:
        raise BadValueError("The loop waits for some time.", given=patience_s, allowed="above 0 s", where="patience_s")


def _as_tensor(raw: npt.NDArray[np.uint8], tensor: StoredTensor) -> npt.NDArray[Any]:
    found = raw.view(tensor.dtype).reshape(tensor.shape)
    found.flags.writeable = False
    return found
