"""Quantise once, sum integers, and code them anew for every link by what they turn out to be.

A number is quantised before the first message and restored after the last: in between there are integers, whose sums
are exact, so that errors do not depend on the order of ranks.  Each frame is sent raw, packed, or coded by entropy,
whichever is expected to be on the other side first; sums are wider than what they are made of, so that it is chosen
again at every hop.  It wins where the network is slower than the codec and neighbouring numbers are alike.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream
from wavetank.training.compression.frames import (
    CHOICES,
    FRAME_BYTES,
    MODES,
    RAW,
    BadFrameError,
    choose,
    decode_frame,
    encode_frame,
)
from wavetank.training.compression.interface import Floats, Message, Rounds, Task, Work
from wavetank.training.compression.quantise import (
    LARGEST,
    Ints,
    by_chance,
    differences,
    quantised,
    restored,
    scales_of,
    summed,
)
from wavetank.training.compression.ring import ring

_NUMBERS = FRAME_BYTES // 4
_WORK = {
    "fixed": ("pack", "unpack"), "rans": ("rans-encode", "rans-decode"), "blocks": ("block-pack", "block-unpack"),
}  # fmt: skip


@dataclass
class _Held:
    """Integers of one rank, and what they are multiples of where chance has decided.

    It acts as the array that a ring sums.
    """

    integers: Ints
    units: NDArray[np.float64] | None = None

    def __getitem__(self, at: slice) -> Ints:
        return self.integers[at]

    def __setitem__(self, at: slice, part: Ints) -> None:
        self.integers[at] = part


@dataclass(frozen=True, kw_only=True)
class Ncclz:
    """An all-reduce of integers in frames.

    Parameters
    ----------
    raw_below_bytes : int
        The source has 65536; here costs decide about small frames, too.
    """

    lossless: ClassVar[bool] = True

    mode: str = setting("chosen", says="How frames are coded", choices=CHOICES)
    predictor: str = setting(
        "differences", says="What of neighbours is subtracted before numbers of a grid are summed",
        choices=("differences", "none"),
    )  # fmt: skip
    raw_below_bytes: int = setting(0, unit="bytes", says="Frames up to this length are raw", low=0, high=1 << 30)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.mode not in CHOICES or self.predictor not in ("differences", "none"):
            raise BadValueError("Frames have another mode or predictor.", given=(self.mode, self.predictor),
                                allowed=(*CHOICES, "differences", "none"))  # fmt: skip

    def rounds(self, values: Floats, place: int, task: Task, work: Work) -> Rounds:
        """Run one rank's part of a ring.

        Parameters
        ----------
        values, place, task, work
            As for :func:`~wavetank.training.compression.ring.ring`.

        Raises
        ------
        BadValueError
            For numbers that are not finite, or too large to be summed at the bound.
        BadFrameError
            If a message is damaged.
        """
        return ring(self, values, place, task, work)

    def _predicts(self, task: Task) -> bool:
        return self.predictor == "differences" and len(task.shape) > 1 and not task.levels

    def _key(self, task: Task) -> int:
        return zlib.crc32(b"differences" if self._predicts(task) else b"", task.key)

    def begin(self, values: Floats, place: int, task: Task, work: Work) -> Generator[Message, bytes, _Held]:
        """Quantise all numbers; by chance, the ranks agree about units before."""
        work.did("quantise", values.size, "first")
        if not task.levels:
            integers = quantised(values, task.bound, task.size)
            return _Held(differences(integers, task.shape) if self._predicts(task) else integers)
        if (task.levels + 1) * task.size > LARGEST:
            raise BadValueError("Sums of these levels overflow.", given=f"{task.levels} levels, {task.size} ranks",
                                allowed=f"{LARGEST // task.size - 1} levels at most")  # fmt: skip
        scales = own = scales_of(values, task.bucket)
        for _ in range(task.size - 1):
            arrived = yield Message(1, own.tobytes(), 0)
            own = np.frombuffer(arrived, np.float32)
            if own.size != scales.size or not np.all(np.isfinite(own)):
                raise BadFrameError("Another rank has other buckets.", given=own.size, allowed=str(scales.size))
            scales = np.maximum(scales, own)
        units = scales.astype(np.float64) / task.levels
        uniform = stream(task.seed, f"rounding of rank {place}").random(values.size, np.float32)
        return _Held(by_chance(values, units, task.bucket, uniform), units)

    def encode(self, part: Ints, at: slice, task: Task, work: Work, *, last: bool) -> bytes:
        """Return the frames of a part."""
        frames, key = [], self._key(task)
        several = max(1, math.ceil(part.size * task.times / _NUMBERS))
        for first in range(0, max(part.size, 1), _NUMBERS):
            frame = part[first : first + _NUMBERS]
            mode = self._mode(frame, task, several, part.size * task.times / several, work)
            frames.append(encode_frame(frame, mode, key))
            if MODES[mode] in _WORK:
                work.did(_WORK[MODES[mode]][0], frame.size)
        return b"".join(frames)

    def _mode(self, frame: Ints, task: Task, several: int, numbers: float, work: Work) -> int:
        """Return the mode of a frame, which is one of ``several`` of ``numbers`` each."""
        if 4 * numbers <= self.raw_below_bytes or not frame.size:
            return RAW
        if self.mode != "chosen":
            return MODES.index(self.mode)
        work.did("choose", frame.size)
        return choose(frame, task.speeds, several, numbers / frame.size)

    def decode(self, data: bytes, at: slice, task: Task, work: Work, *, when: str) -> Ints:
        """Return the integers of frames.

        Raises
        ------
        BadFrameError
            If they are damaged, or of another number of integers.
        """
        count, parts, place = at.stop - at.start, [], 0
        view, key = memoryview(data), self._key(task)
        missing = count
        while place < len(view):
            integers, took = decode_frame(view[place:], missing, key)
            if not integers.size and (count or place):
                raise BadFrameError("A frame of a message is empty.", given=f"after {count - missing} integers",
                                    allowed=str(count))  # fmt: skip
            work_of = MODES[view[place + 2]]
            if work_of in _WORK:
                work.did(_WORK[work_of][1], integers.size, when)
            parts.append(integers)
            place += took
            missing -= integers.size
        if missing:
            raise BadFrameError("A message has another number of integers.", given=count - missing, allowed=str(count))
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int32), *parts])

    def end(self, total: _Held, task: Task, work: Work) -> Floats:
        """Return the numbers that the summed integers stand for."""
        work.did("restore", task.count)
        if total.units is not None:
            return (total.integers * np.repeat(total.units, task.bucket)[: task.count]).astype(np.float32)
        integers = summed(total.integers, task.shape) if self._predicts(task) else total.integers
        return restored(integers, task.bound, task.size)
