"""CCL-D's analyser: the class of a fault and the rank that causes it, by comparing counters of ranks.

A hanging operation is judged by who has entered, what they called, and whose counters stand still.  A slow one is
judged over all operations of a window: who comes late again and again for reasons of its own, and whose transfers,
without waiting, take longer than those of its peers.  Clocks of ranks are never compared: nothing has to be
synchronised.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.diagnosis.peers import LEAST_PEERS, peer_scores
from wavetank.insight.collectives.interface import NEVER, Frames, Ints, Verdict, Window, by_rank
from wavetank.insight.collectives.stalls import Stall, all_missing, roots, stalls
from wavetank.settings import check_ranges, setting
from wavetank.sim.compiled import compiled

Floats = NDArray[np.float64]
# An operation is looked at until this share of its members looked lately: pollers say who is alive.
_ALIVE_SHARE = 0.5
# Below this many members, transfers are held against those of like communicators.
_OWN_PEERS = 5
# Differences of lateness below this share of a transfer mean nothing.
_LATE_FLOOR = 0.1
# Of what a rank is late, the share that must be its own time between operations.
_OWN_SHARE = 0.5
# Operations that there may be for each row, without being numbered anew.
_DENSE = 64
# Who is late or slow may be less so in this share of the operations.
SELDOM = 0.2
_SIDES = {"lower": -1, "middle": 0, "upper": 1}


@dataclass(frozen=True, kw_only=True)
class CclD:
    """Names the class of a fault and the ranks or the link that cause it.

    Parameters
    ----------
    hang_s : float
        300 in the paper.
    theta : float
        Close to 3 in the paper, which learns it.

    References
    ----------
    arXiv 2605.04478.
    """

    hang_s: float = setting(300.0, unit="s", says="Standstill from which an operation hangs", low=0.001, high=1e6)
    theta: float = setting(3.0, says="Ratio to its peers from which a rank is late or a transfer slow", low=1.01,
                           high=1000.0)  # fmt: skip
    least_ops: int = setting(5, says="Operations of a communicator below which nothing is said of slowness", low=1,
                             high=10_000)  # fmt: skip
    scores: float = setting(8.0, says="Robust standard deviations that a late rank must be off its peers", low=0.0,
                            high=1000.0)  # fmt: skip
    least_bytes: int = setting(1 << 20, unit="bytes", says="Bytes of a rank in an operation below which its transfers "
                               "say nothing", low=1, high=1 << 50)  # fmt: skip
    polls: bool = setting(True, says="Use when the loop that waits looked last, where the probe says so")

    def __post_init__(self) -> None:
        check_ranges(self)

    def find(self, window: Window) -> Verdict:
        """Return what is wrong in a window, and who it is.

        Parameters
        ----------
        window : Window

        Raises
        ------
        BadValueError
            If frames contradict the communicators.
        """
        window.check()
        window = Window(by_rank(window.frames), window.members, window.now_ns, window.trees)
        hanging = stalls(window, self.hang_s)
        return self._hang(window, hanging) if hanging else self._slow(window)

    # -- hangs ---------------------------------------------------------------------------------------------------------

    def _hang(self, window: Window, hanging: list[Stall]) -> Verdict:
        first, circle = roots(window, hanging)
        if not first:
            return _out_of_order(window, circle)
        root = first[0]
        if root.missing.size:
            return Verdict(fault="H1", ranks=_named(all_missing(first)), comm=root.comm, seq=root.seq)
        return _mismatch(window, root) or self._standing(window, root)

    def _standing(self, window: Window, root: Stall) -> Verdict:
        """Return whose counters stand still although all have entered the same operation."""
        frames, comm = window.frames, root.comm
        rows = root.rows[~frames.done[root.rows]]
        ranks = frames.rank[rows]
        if self.polls and (frames.polled_ns[rows] != NEVER).all():
            silent = window.now_ns[ranks] - frames.polled_ns[rows] >= _ALIVE_SHARE * self.hang_s * 1e9
            if silent.any() and not silent.all():
                return Verdict(fault="H3", ranks=_named(ranks[silent]), comm=comm, seq=root.seq)
        if comm not in window.trees:
            verdict = self._stuck_link(window, root)
            if verdict is not None:
                return verdict
        progress = frames.posted[rows] + frames.received[rows]
        least = ranks[progress == progress.min()]
        return Verdict(fault="H3", ranks=_named(least[:1]), comm=comm, seq=root.seq, sure=least.size == 1)

    def _stuck_link(self, window: Window, root: Stall) -> Verdict | None:
        """Return the link of a ring on which chunks were posted that have not arrived, or the rank between two."""
        frames, ring = window.frames, window.members[root.comm]
        at = np.full(window.now_ns.size, -1)
        at[frames.rank[root.rows]] = root.rows
        own, before = at[ring], at[np.roll(ring, 1)]
        # A frame may be lost, or pushed out by younger ones: of such a rank nothing is known.
        under_way = np.where((own >= 0) & (before >= 0), frames.posted[before] - frames.received[own], 0)
        stuck = np.flatnonzero(under_way > 0)
        if not stuck.size:
            return None
        both = stuck[np.isin((stuck + 1) % ring.size, stuck)] if ring.size > 2 else stuck[:0]
        if both.size and not self._alive(window, root, ring[both]):
            return Verdict(fault="H3", ranks=_named(ring[both]), comm=root.comm, seq=root.seq, sure=both.size == 1)
        # The most that is under way; of those alike, where least has arrived.
        worst = stuck[np.lexsort((frames.received[own[stuck]], -under_way[stuck]))[0]]
        sender, receiver = int(ring[worst - 1]), int(ring[worst])
        return Verdict(fault="H3", ranks=(sender,), link=(sender, receiver), comm=root.comm, seq=root.seq,
                       sure=stuck.size == 1)  # fmt: skip

    def _alive(self, window: Window, root: Stall, ranks: Ints) -> bool:
        rows = root.rows[np.isin(window.frames.rank[root.rows], ranks)]
        return self.polls and bool((window.frames.polled_ns[rows] != NEVER).all())

    # -- slowness ------------------------------------------------------------------------------------------------------

    def _slow(self, window: Window) -> Verdict:
        late, late_comm = self._late(window)
        slow, link, slow_comm = self._transfers(window)
        if late.size and slow.size:
            return Verdict(fault="S3", ranks=_named(np.concatenate([late, slow])), link=link, comm=slow_comm)
        if slow.size:
            return Verdict(fault="S2", ranks=_named(slow), link=link, comm=slow_comm)
        return Verdict(fault="S1", ranks=_named(late), comm=late_comm) if late.size else Verdict()

    def _late(self, window: Window) -> tuple[Ints, int]:
        """Return the ranks that come late in most operations, for reasons of their own."""
        comm, rank, begin = window.slots
        frames = window.frames
        # Who enters later than others is in the operation for a shorter time: all leave it together.
        gaps = _gaps(window)
        kept = frames.done
        rows, slot = frames.chosen(kept), window.slot_of[kept]
        operation = of_operations(rows)
        took = (rows.ended_ns - rows.entered_ns).astype(np.float64)
        # Against the earlier half: of two ranks one is late, and not both by half of it.
        lag = by_operation(operation, took, "upper") - took
        own = gaps[kept] - by_operation(operation, gaps[kept], "lower")
        count = np.bincount(slot, minlength=rank.size)
        lateness = lower_quantiles(slot, lag, rank.size, SELDOM)
        own_lateness = medians(slot, own, rank.size)
        with np.errstate(invalid="ignore", divide="ignore"):
            transfer = np.bincount(slot, rows.send_ns, minlength=rank.size) / count
        transfer = np.where(count > 0, transfer, np.nan)
        usual = by_operation(comm, transfer)
        # Lateness is against the communicator already; how much it varies shows in all communicators of a size.
        score = _scores(np.diff(begin)[comm], lateness, _LATE_FLOOR * usual)
        with np.errstate(invalid="ignore"):
            late = (
                (count >= np.where(np.diff(begin)[comm] < _OWN_PEERS, 2, 1) * self.least_ops)
                & (lateness >= (self.theta - 1) * usual)
                & (score >= self.scores)
                & (own_lateness >= _OWN_SHARE * lateness)
                & (usual > 0)
            )
        chosen = np.flatnonzero(late)
        return np.unique(rank[chosen]), int(comm[chosen[0]]) if chosen.size else -1

    def _transfers(self, window: Window) -> tuple[Ints, tuple[int, ...], int]:
        """Return the ranks whose transfers are slow, the link if it is one, and the communicator."""
        comm, rank, _ = window.slots
        kept = window.frames.done
        rows, slot = window.frames.chosen(kept), window.slot_of[kept]
        out = self._slowness(window, slot, rows.sent_bytes, rows.send_ns)
        into = self._slowness(window, slot, rows.received_bytes, rows.recv_ns)
        slow_out, slow_in = out >= self.theta, into >= self.theta
        both = slow_out & slow_in
        # Slow in both directions is a rank; one direction alone is the link, which its sender is named for.
        chosen = np.flatnonzero(both if both.any() else slow_out if slow_out.any() else slow_in)
        if not chosen.size:
            return np.zeros(0, np.int64), (), -1
        first, named = int(comm[chosen[0]]), rank[chosen]
        if both.any():
            return np.unique(named), (), first
        links = [_link(window, int(comm[each]), int(rank[each]), arrives=not slow_out.any()) for each in chosen]
        return np.unique([link[0] if link else who for link, who in zip(links, named, strict=True)]), links[0], first

    def _slowness(self, window: Window, slot: Ints, moved: Ints, took: Ints) -> Floats:
        """Return for each slot how many times slower it transfers than its peers; 0 where that cannot be said."""
        comm, rank, _ = window.slots
        per_byte = transfers(slot, moved, took, rank.size, self.least_bytes, self.least_ops)
        # The lower middle: a slow rank of four slows two transfers of four.
        pools = _pools(window, comm)
        usual = medians(pools, per_byte, int(pools.max()) + 1, "lower")[pools] if pools.size else per_byte
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(per_byte / usual, nan=0.0, posinf=0.0)


def _link(window: Window, comm: int, rank: int, *, arrives: bool) -> tuple[int, ...]:
    """Return the link of a ring on which a rank sends, or from which it receives; nothing in a tree."""
    if comm in window.trees:
        return ()
    ring = window.members[comm]
    place = int(np.flatnonzero(ring == rank)[0]) - arrives
    return int(ring[place]), int(ring[(place + 1) % ring.size])


def transfers(slot: Ints, moved: Ints, took: Ints, slots: int, least_bytes: int, least_ops: int) -> Floats:
    """Return ns for each byte of each slot, as it is in four of five operations at least; NaN where too few say so.

    Parameters
    ----------
    slot, moved, took : int64 array, shape (rows,)
        The slot of each row, bytes, and ns on the wire.
    slots : int
    least_bytes : int
        Operations with less are left out.
    least_ops : int
    """
    said = (moved >= least_bytes) & (took > 0)
    each = np.full(slot.size, np.nan)
    each[said] = took[said] / moved[said]
    per_byte = lower_quantiles(slot, each, slots, SELDOM)
    per_byte[np.bincount(slot[said], minlength=slots) < least_ops] = np.nan
    return per_byte


def _named(ranks: Ints) -> tuple[int, ...]:
    return tuple(np.unique(ranks).tolist())


def _mismatch(window: Window, root: Stall) -> Verdict | None:
    """Return the minority of ranks that called another operation; None where all called the same."""
    frames = window.frames
    called = np.stack([column[root.rows] for column in (frames.op, frames.size, frames.dtype, frames.root)], axis=1)
    kinds, which, many = np.unique(called, axis=0, return_inverse=True, return_counts=True)
    if len(kinds) == 1:
        return None
    which = which.ravel()
    usual = int(np.argmax(many))
    clear = int((many == many[usual]).sum()) == 1
    guilty = frames.rank[root.rows[which != usual]] if clear else frames.rank[root.rows]
    return Verdict(fault="H2", ranks=_named(guilty), comm=root.comm, seq=root.seq, sure=clear)


def _out_of_order(window: Window, circle: list[Stall]) -> Verdict:
    """Return who called operations of several communicators in another order, so that each waits for the other."""
    frames = window.frames
    sides = [frames.rank[each.rows[~frames.done[each.rows]]] for each in circle]
    waited_for = [np.intersect1d(side, circle[place - 1].missing) for place, side in enumerate(sides)]
    sizes = [side.size for side in waited_for]
    least = int(np.argmin(sizes))
    clear = sizes.count(sizes[least]) == 1
    guilty = waited_for[least] if clear else np.concatenate(waited_for)
    return Verdict(fault="H2", ranks=_named(guilty), comm=circle[least].comm, seq=circle[least].seq, sure=clear)


def of_operations(rows: Frames) -> Ints:
    """Return numbers of the operations that rows belong to; equal ones for the same operation.

    Parameters
    ----------
    rows : Frames
    """
    if not rows.seq.size:
        return rows.seq
    low, high = int(rows.seq.min()), int(rows.seq.max())
    if (high - low + 1) * (int(rows.comm.max()) + 1) > _DENSE * rows.seq.size:
        # Sequence numbers far from each other, as no job has them in one window.
        _, numbers = np.unique(np.stack([rows.comm, rows.seq], axis=1), axis=0, return_inverse=True)
        return numbers.ravel().astype(np.int64)
    return rows.comm * (high - low + 1) + (rows.seq - low)


def _gaps(window: Window) -> Floats:
    """Return for each row the rank's own time since its operation before, by its own clock; NaN for the first."""
    frames = window.frames
    gaps = np.full(frames.rank.size, np.nan)
    same = (frames.rank[1:] == frames.rank[:-1]) & frames.done[:-1] & frames.entered[1:]
    gaps[1:][same] = np.maximum(frames.entered_ns[1:][same] - frames.ended_ns[:-1][same], 0)
    return gaps


def lower_quantiles(group: Ints, values: Floats, groups: int, share: float) -> Floats:
    """Return the value of each group that at least ``1 - share`` of its values reach; NaN for a group without values.

    Parameters
    ----------
    group : int64 array, shape (rows,)
        From 0.
    values : float64 array, shape (rows,)
        Those that are NaN are left out.
    groups : int
    share : float
        From 0, the least value, to below 1.
    """
    found = np.empty(groups)
    _quantiles(group, values, share, _SIDES["lower"], found)
    return found


def medians(group: Ints, values: Floats, groups: int, side: str = "middle") -> Floats:
    """Return the median of each group without NaN; NaN for a group without values.

    Parameters
    ----------
    group : int64 array, shape (rows,)
        From 0.
    values : float64 array, shape (rows,)
    groups : int
    side : str
        Of an even number the ``lower`` or the ``upper`` of the two in the middle, or their mean (``middle``).
    """
    found = np.empty(groups)
    _quantiles(group, values, 0.5, _SIDES[side], found)
    return found


@compiled
def _quantiles(group, values, share, side, found):  # type: ignore[no-untyped-def]
    """Put the value of a share of each group; with a side of 1 the upper middle, with 0 the mean of both."""
    groups = found.size
    begin = np.zeros(groups + 1, np.int64)
    for row in range(group.size):
        if not np.isnan(values[row]):
            begin[group[row] + 1] += 1
    for each in range(groups):
        begin[each + 1] += begin[each]
    place, sorted_values = begin[:-1].copy(), np.empty(begin[groups])
    for row in range(group.size):
        if not np.isnan(values[row]):
            sorted_values[place[group[row]]] = values[row]
            place[group[row]] += 1
    for each in range(groups):
        many = begin[each + 1] - begin[each]
        if not many:
            found[each] = np.nan
            continue
        ranked = np.sort(sorted_values[begin[each] : begin[each + 1]])
        low = ranked[int(share * (many - 1))]
        high = ranked[many // 2]
        found[each] = low if side < 0 else high if side > 0 else low + (high - low) / 2


def by_operation(group: Ints, values: Floats, side: str = "middle") -> Floats:
    """Return for each row the median of its group.

    Parameters
    ----------
    group : int64 array, shape (rows,)
        From 0.
    values : float64 array, shape (rows,)
    side : str
        As for :func:`medians`.
    """
    return medians(group, values, int(group.max()) + 1, side)[group] if group.size else values


def _pools(window: Window, comm: Ints) -> Ints:
    """Return whom each slot is held against: its communicator, or with few members all communicators of its size."""
    sizes = np.array([len(each) for each in window.members], np.int64)
    pools = np.where(sizes >= _OWN_PEERS, np.arange(sizes.size), sizes.size + sizes)
    return pools[comm]


def _scores(pools: Ints, values: Floats, floors: Floats) -> Floats:
    """Return robust scores among all slots of communicators of a size; infinite where they are too few."""
    found = np.full(values.size, np.inf)
    for pool in np.unique(pools):
        places = np.flatnonzero(pools == pool)
        if places.size > LEAST_PEERS:
            floor = np.nanmin(floors[places]) if not np.isnan(floors[places]).all() else 0.0
            found[places] = peer_scores(values[places], max(float(floor), 1.0))
    return found
