"""What else is asked which rank holds up a collective: durations, timestamps, receive waits, recorders, chance.

All see the same frames, and all that look at hangs share :mod:`~wavetank.insight.collectives.stalls`: which operations
hang, who is missing, and which one holds up the others.  They differ in what they make of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wavetank.diagnosis.peers import LEAST_PEERS, peer_scores
from wavetank.insight.collectives.ccl_d import (
    SELDOM,
    Floats,
    by_operation,
    lower_quantiles,
    medians,
    of_operations,
    transfers,
)
from wavetank.insight.collectives.interface import FAULTS, NEVER, Frames, Ints, Verdict, Window, by_rank
from wavetank.insight.collectives.stalls import Stall, all_missing, roots, stalls
from wavetank.settings import check_ranges, setting


@dataclass(frozen=True, kw_only=True)
class DurationThreshold:
    """Alarms on durations alone: a rank whose operations take ``theta`` times as long as those of the others.

    A hang is an operation that takes too long; who has not entered it has no duration and is named, else the one that
    has been in it for longest.
    """

    hang_s: float = setting(300.0, unit="s", says="Standstill from which an operation hangs", low=0.001, high=1e6)
    theta: float = setting(3.0, says="Ratio of durations that alarms", low=1.01, high=1000.0)
    least_ops: int = setting(5, says="Operations below which nothing is said of slowness", low=1, high=10_000)

    def __post_init__(self) -> None:
        check_ranges(self)

    def find(self, window: Window) -> Verdict:
        """Return what durations say of a window.

        Parameters
        ----------
        window : Window
        """
        window = _ordered(window)
        root = _root(window, self.hang_s)
        if root is not None:
            if root.missing.size:
                return _missing(root)
            rows = root.rows[~window.frames.done[root.rows]]
            longest = np.argmax(window.now_ns[window.frames.rank[rows]] - window.frames.entered_ns[rows])
            return _one("H3", window.frames.rank[rows[longest]], root)
        seen = _Seen.of(window, self.least_ops)
        ratio = seen.took / seen.usual(seen.took)
        return _worst("S2", window, ratio, self.theta)


@dataclass(frozen=True, kw_only=True)
class Timestamps:
    """Compares when ranks entered and left, by their own clocks: the last to enter is late, a long rest slow."""

    hang_s: float = setting(300.0, unit="s", says="Standstill from which an operation hangs", low=0.001, high=1e6)
    theta: float = setting(3.0, says="Ratio of lateness to the usual transfer that alarms", low=1.01, high=1000.0)
    least_ops: int = setting(5, says="Operations below which nothing is said of slowness", low=1, high=10_000)
    scores: float = setting(8.0, says="Robust standard deviations that a late rank must be off its peers", low=0.0,
                            high=1000.0)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    def find(self, window: Window) -> Verdict:
        """Return what timestamps say of a window.

        Parameters
        ----------
        window : Window
        """
        window = _ordered(window)
        root = _root(window, self.hang_s)
        if root is not None:
            if root.missing.size:
                return _missing(root)
            rows = root.rows[~window.frames.done[root.rows]]
            return _one("H3", window.frames.rank[rows[np.argmin(window.frames.moved_ns[rows])]], root)
        seen = _Seen.of(window, self.least_ops)
        ended, slot = seen.rows, seen.slot
        entered = ended.entered_ns - _lowest(ended.entered_ns)
        lag = entered - by_operation(of_operations(ended), entered.astype(np.float64), "lower")
        lag = lower_quantiles(slot, lag, seen.took.size, SELDOM)
        shortest = seen.usual(seen.sends)
        score = _scores(seen, lag, 0.1 * shortest)
        late = _worst("S1", window, np.where(score >= self.scores, lag / shortest + 1, 0.0), self.theta)
        if late.fault:
            return late
        # From the last entry to the own end: what is left is transfer, as long in all communicators of a size.
        rest = ended.ended_ns - _lowest(ended.entered_ns) - _last(of_operations(ended), entered)
        rests = medians(slot, rest, seen.took.size)
        return _worst("S2", window, rests / np.maximum(by_operation(seen.sizes, rests), 1.0), self.theta)


@dataclass(frozen=True, kw_only=True)
class ReceiveWaits:
    """As C4D describes itself: durations and waits of receivers, one answer for each window.

    A hang is somebody who has not come, or the one whose transfers are behind; a slow rank is the one for which the
    others wait and which does not wait itself; a slow link the one with the longest transfers.
    """

    hang_s: float = setting(300.0, unit="s", says="Standstill from which an operation hangs", low=0.001, high=1e6)
    theta: float = setting(3.0, says="Ratio that alarms", low=1.01, high=1000.0)
    least_ops: int = setting(5, says="Operations below which nothing is said of slowness", low=1, high=10_000)
    scores: float = setting(8.0, says="Robust standard deviations that a late rank must be off its peers", low=0.0,
                            high=1000.0)  # fmt: skip

    least_bytes: int = setting(1 << 20, unit="bytes", says="Bytes of a rank in an operation below which its transfers "
                               "say nothing", low=1, high=1 << 50)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    def find(self, window: Window) -> Verdict:
        """Return what durations and receive waits say of a window.

        Parameters
        ----------
        window : Window
        """
        window = _ordered(window)
        root = _root(window, self.hang_s)
        if root is not None:
            if root.missing.size:
                return _missing(root)
            rows = root.rows[~window.frames.done[root.rows]]
            return _one("H3", window.frames.rank[rows[np.argmin(window.frames.received[rows])]], root)
        seen = _Seen.of(window, self.least_ops)
        arrive = 1e6 * transfers(
            seen.slot, seen.rows.received_bytes, seen.rows.recv_ns, seen.took.size, self.least_bytes, self.least_ops
        )
        slow = _worst("S2", window, arrive / seen.usual(arrive), self.theta)
        lag = by_operation(of_operations(seen.rows), seen.waits, "upper") - seen.waits
        lag = lower_quantiles(seen.slot, lag, seen.took.size, SELDOM)
        usual = seen.usual(seen.sends)
        score = _scores(seen, lag, 0.1 * usual)
        late = _worst("S1", window, np.where(score >= self.scores, lag / usual + 1, 0.0), self.theta)
        # The receiver of a slow link sees it; the sender before it is named.
        if slow.fault and slow.comm not in window.trees:
            ring = window.members[slow.comm]
            before = int(ring[int(np.flatnonzero(ring == slow.ranks[0])[0]) - 1])
            slow = Verdict(fault="S2", ranks=(before,), link=(before, slow.ranks[0]), comm=slow.comm)
        return slow if slow.fault else late


@dataclass(frozen=True, kw_only=True)
class RandomRank:
    """Names a class and a rank at random, whenever an operation hangs or a rank's duration is unusual."""

    hang_s: float = setting(300.0, unit="s", says="Standstill from which an operation hangs", low=0.001, high=1e6)
    seed: int = setting(0, says="Start of its random numbers", low=0, high=2**31)

    def __post_init__(self) -> None:
        check_ranges(self)

    def find(self, window: Window) -> Verdict:
        """Return a random answer, the same for the same frames.

        Parameters
        ----------
        window : Window
        """
        window = _ordered(window)
        # Differences within a rank, so that other clocks give the same answer.
        waits = np.ascontiguousarray(window.frames.wait_ns).tobytes()
        key = int.from_bytes(hashlib.blake2b(waits, digest_size=8).digest(), "little") ^ self.seed
        draws = np.random.Generator(np.random.Philox(key=key))
        classes = FAULTS[:3] if stalls(window, self.hang_s) else FAULTS[3:]
        return Verdict(fault=classes[int(draws.integers(3))], ranks=(int(draws.integers(window.now_ns.size)),))


# -- what they share ---------------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """What the ended operations of a window took, slot by slot, in ns; NaN for slots with too few of them."""

    rows: Frames
    slot: Ints
    waits: Floats
    took: Floats
    sends: Floats
    comm: Ints
    sizes: Ints

    @classmethod
    def of(cls, window: Window, least: int) -> _Seen:
        comm, rank, begin = window.slots
        kept = window.frames.done
        rows, slot = window.frames.chosen(kept), window.slot_of[kept]
        many = np.bincount(slot, minlength=rank.size)
        few = np.where(many >= least, 1.0, np.nan)
        took = medians(slot, (rows.ended_ns - rows.entered_ns).astype(np.float64), rank.size)
        sends = few * np.bincount(slot, rows.send_ns, minlength=rank.size) / np.maximum(many, 1)
        return cls(rows, slot, rows.wait_ns.astype(np.float64), took * few, sends, comm, np.diff(begin)[comm])

    def usual(self, values: Floats) -> Floats:
        """Return for each slot the median of its communicator, never 0."""
        return np.maximum(by_operation(self.comm, values), 1.0)


def _ordered(window: Window) -> Window:
    window.check()
    return Window(by_rank(window.frames), window.members, window.now_ns, window.trees)


def _root(window: Window, hang_s: float) -> Stall | None:
    hanging = stalls(window, hang_s)
    if not hanging:
        return None
    first, circle = roots(window, hanging)
    return first[0]._replace(missing=all_missing(first)) if first else circle[0]


def _missing(root: Stall) -> Verdict:
    return Verdict(fault="H1", ranks=tuple(np.unique(root.missing).tolist()), comm=root.comm, seq=root.seq)


def _one(fault: str, rank: int, root: Stall) -> Verdict:
    return Verdict(fault=fault, ranks=(int(rank),), comm=root.comm, seq=root.seq)


def _worst(fault: str, window: Window, ratio: Floats, theta: float) -> Verdict:
    """Return the slot with the largest ratio, where it alarms."""
    known = np.nan_to_num(ratio, nan=0.0)
    if not known.size or known.max() < theta:
        return Verdict()
    comm, rank, _ = window.slots
    worst = int(np.argmax(known))
    return Verdict(fault=fault, ranks=(int(rank[worst]),), comm=int(comm[worst]))


def _scores(seen: _Seen, values: Floats, floors: Floats) -> Floats:
    found = np.full(values.size, np.inf)
    for size in np.unique(seen.sizes):
        places = np.flatnonzero(seen.sizes == size)
        if places.size > LEAST_PEERS:
            floor = np.nan_to_num(floors[places], nan=np.inf).min()
            found[places] = peer_scores(values[places], max(float(floor), 1.0) if np.isfinite(floor) else 1.0)
    return np.nan_to_num(found, nan=0.0, posinf=np.inf)


def _lowest(times: Ints) -> int:
    return int(times[times != NEVER].min()) if times.size else 0


def _last(operation: Ints, times: Ints) -> Floats:
    """Return for each row when the last rank entered its operation."""
    if not operation.size:
        return times.astype(np.float64)
    numbers, which = np.unique(operation, return_inverse=True)
    last = np.full(numbers.size, np.iinfo(np.int64).min)
    np.maximum.at(last, which, times)
    return last[which].astype(np.float64)
