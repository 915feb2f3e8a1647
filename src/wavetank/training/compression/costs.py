"""What an all-reduce takes on a fabric: codecs and links of all ranks, frame by frame.

A rank has one codec and one link; each does one frame at a time.  A frame is decoded, added to and coded when it has
arrived and the codec is free; it leaves when that is done and the link is free; while it travels the codec has the next
one.  What is only passed on does not wait for the codec.  Numbers are quantised all together before the first message,
and restored after the last.  The bytes are those that ranks really sent each other (:mod:`.ring`), enlarged where a
larger message is asked for.

Differs from hardware: messages of a link do not interleave, and a codec does not slow down the sums beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.platforms.fabric import Fabric
from wavetank.settings import check_ranges, setting
from wavetank.training.compression.frames import FRAME_BYTES, Speeds
from wavetank.training.compression.interface import WORK
from wavetank.training.compression.ring import Played

Seconds = NDArray[np.float64]

# How fast work is beside coding by entropy: least times on one core, of the field u; see docs/why/ncclz.md.  Quantising
# and restoring contain differences and their sums; a choice is one of a frame of 4 MiB.
RELATIVE: Mapping[str, float] = {
    "rans-encode": 1.0, "rans-decode": 3.3, "pack": 5.6, "unpack": 6.4, "block-pack": 3.4, "block-unpack": 5.1,
    "choose": 10.0, "quantise": 19.0, "restore": 5.7, "add": 44.0, "cast": 34.0, "sz-encode": 0.34, "sz-decode": 1.2,
    "zfp-encode": 0.33, "zfp-decode": 0.39,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What codecs take, by how fast coding by entropy is.

    Parameters
    ----------
    relative : mapping of str to float
        How many times as fast other work is.
    """

    rans_bytes_per_s: float = setting(
        100e9, unit="bytes/s", says="Coding by entropy, numbers of four bytes", low=1.0, high=1e15
    )
    frame_s: float = setting(5e-6, unit="s", says="What work on a frame takes besides", low=0.0, high=1.0)
    relative: Mapping[str, float] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        check_ranges(self)
        given = RELATIVE if self.relative is None else self.relative
        if not set(RELATIVE) <= set(given) or not all(0 < each < np.inf for each in given.values()):
            raise BadValueError("Every work of a codec has a speed above 0.", given=dict(given), allowed=WORK)
        object.__setattr__(self, "relative", dict(given))

    def seconds(self, work: Counter[str]) -> float:
        """Return what work takes, without what every frame takes besides.

        Parameters
        ----------
        work : counter of str
            Numbers by kind.
        """
        return sum(4.0 * many / (self.rans_bytes_per_s * self.relative[kind]) for kind, many in work.items())

    def speeds(self, link_bytes_per_s: float) -> Speeds:
        """Return what the modes of a frame are chosen by.

        Parameters
        ----------
        link_bytes_per_s : float
        """

        def both(one: str, other: str) -> float:
            return self.rans_bytes_per_s / (1 / self.relative[one] + 1 / self.relative[other])

        return Speeds(
            link_bytes_per_s=link_bytes_per_s, fixed_bytes_per_s=both("pack", "unpack"),
            rans_bytes_per_s=both("rans-encode", "rans-decode"), frame_s=self.frame_s,
        )  # fmt: skip


def all_reduce_s(played: Played, fabric: Fabric, costs: Costs, *, scale: float = 1.0) -> float:
    """Return how long an all-reduce takes until its last rank is done, s.

    Parameters
    ----------
    played : Played
    fabric : Fabric
        Of as many ranks or more.
    costs : Costs
    scale : float
        How many times as large messages and work are as those that were played.

    Raises
    ------
    BadValueError
        If the fabric has too few ranks, or nothing is scaled.
    """
    size = len(played.sums)
    if size > fabric.ranks or not 0 < scale < np.inf:
        raise BadValueError("The all-reduce does not fit the fabric.", given=f"{size} ranks, {scale} times",
                            allowed=f"{fabric.ranks} ranks, above 0 times")  # fmt: skip
    largest = max([int(each.numbers.max()) for each in played.rounds], default=0)
    frames = max(1, int(np.ceil(4 * largest * scale / FRAME_BYTES)))
    codec_free, link_free = np.zeros(size), np.zeros(size)
    arrived = np.zeros((frames, size))
    for number, one in enumerate(played.rounds):
        alpha_s, per_byte_s = _links(fabric, size, one.distance)
        first, before, after = (
            np.array([costs.seconds(getattr(work, when)) for work in one.work]) * scale
            for when in ("first", "before", "after")
        )
        if number == 0:
            codec_free += first
            arrived[:] = codec_free
        bytes_s = one.n_bytes * scale / frames * per_byte_s
        came = np.empty_like(arrived)
        for frame in range(frames):
            ready = arrived[frame].copy()
            begins = np.maximum(codec_free, ready)
            busy = before > 0
            done = np.where(busy, begins + before / frames + costs.frame_s, ready)
            codec_free = np.where(busy, done, codec_free)
            link_free = np.maximum(done, link_free) + bytes_s
            came[frame] = link_free + alpha_s
            codec_free = _later(codec_free, ready, after / frames, costs.frame_s)
        # What has arrived at a rank came from the one that sends to it.
        arrived = np.roll(came, one.distance, axis=1)
    return float(_finished(played, costs, scale, arrived, codec_free).max())


def _later(codec_free: Seconds, ready: Seconds, work_s: Seconds, frame_s: float) -> Seconds:
    """Return when codecs are free after work that nothing waits for."""
    return np.where(work_s > 0, np.maximum(codec_free, ready) + work_s + frame_s, codec_free)


def _finished(played: Played, costs: Costs, scale: float, arrived: Seconds, codec_free: Seconds) -> Seconds:
    frames = len(arrived)
    after = np.array([costs.seconds(work.after) for work in played.rest]) * scale
    for frame in range(frames):
        codec_free = _later(codec_free, arrived[frame], after / frames, costs.frame_s)
    whole = np.array([costs.seconds(work.first) + costs.seconds(work.before) for work in played.rest]) * scale
    return np.maximum(codec_free, arrived.max(axis=0)) + whole


def _links(fabric: Fabric, size: int, distance: int) -> tuple[Seconds, Seconds]:
    """Return what the message of each rank takes before its first byte, and for every byte."""
    alpha_s, per_byte_s = np.empty(size), np.empty(size)
    links = []
    for rank in range(size):
        to = (rank + distance) % size
        level = fabric.level_between(rank, to)
        alpha_s[rank], per_byte_s[rank] = level.alpha_s, 1.0 / level.bytes_per_s
        links.append(fabric.link_of(rank, to))
    at_once = Counter(link for link in links if link >= 0)
    return alpha_s, per_byte_s * np.array([at_once.get(link, 1) for link in links])


def crossing_bytes_per_s(costs: Costs, size: int) -> float:
    """Return the bandwidth above which coding by entropy on every hop takes longer than sending numbers as they are.

    Of messages so large that only the slower of codec and link counts, on equal links.  A rank's codec codes each part
    once (size times), decodes 2 (size - 1) parts and adds size - 1 of them, and quantises and restores all; coded
    frames are so short that links do not bind.  The plain ring's links take 2 (size - 1) parts.

    Parameters
    ----------
    costs : Costs
    size : int
        Ranks, 2 or more.
    """
    per = {kind: 1.0 / (costs.rans_bytes_per_s * costs.relative[kind]) for kind in costs.relative}
    turns = size - 1
    coded_s = size * (per["quantise"] + per["rans-encode"] + per["restore"])
    coded_s += turns * (2.0 * per["rans-decode"] + per["add"])
    return 2.0 * turns / coded_s
