"""Simulated jobs with planted faults: the windows of probing frames that analysers are held against.

Ranks are laid out in tensor-parallel groups within data-parallel rings, several stages of them; each iteration has some
operations in the small group, one in the ring and one of the whole job over a tree.  What a rank computes in between
follows the lengths of its sequences, so that someone else is late each time in a healthy job.  Truth is the planted
cause.  Clocks of ranks are off by seconds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.insight.collectives import chunk_model as chunks
from wavetank.insight.collectives.interface import ABSENT, NEVER, OPERATIONS, Frames, Ints, Window

Floats = NDArray[np.float64]
_ALL_REDUCE, _ALL_GATHER = OPERATIONS.index("all_reduce"), OPERATIONS.index("all_gather")
_BF16, _FP32 = 2, 4
_TREE_CHUNKS, _TREE_BYTES = 8, 1 << 20
_GROUP_BYTES, _RING_BYTES = 32 << 20, 1 << 30
# What a chunk takes on a healthy link, s: within a machine, between machines, of a small message.
_GROUP_STEP_S, _RING_STEP_S, _TREE_STEP_S = 50e-6, 60e-6, 20e-6
_POLL_S = 0.05
_SPREAD_OF_CLOCKS_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """The layout of a job and how much its healthy parts vary.

    Parameters
    ----------
    group : int
        Ranks of a tensor-parallel group.
    replicas, stages : int
    group_ops : int
        Operations of a tensor-parallel group in an iteration.
    compute_s : float
        Between operations, at the usual length.
    lengths : float
        Spread of the logarithm of a replica's lengths, drawn anew each iteration.
    noise : float
        Spread of the logarithm of each computing time and transfer.
    congested : float
        Share of the transfers of a rank in an operation that something else makes two to five times slower.
    """

    group: int = 8
    replicas: int = 125
    stages: int = 4
    group_ops: int = 2
    compute_s: float = 0.04
    lengths: float = 0.3
    noise: float = 0.05
    congested: float = 0.01

    def __post_init__(self) -> None:
        if self.group < 2 or self.replicas < 2 or self.stages < 1 or self.group_ops < 1:
            raise BadValueError("A job has groups and rings of at least two ranks.",
                                given=(self.group, self.replicas, self.stages, self.group_ops))  # fmt: skip

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.group * self.replicas * self.stages

    @property
    def ops(self) -> int:
        """Operations of a rank in an iteration."""
        return self.group_ops + 2


class Layout(NamedTuple):
    """Communicators of a job: groups, rings, and the whole."""

    groups: Ints
    rings: Ints
    whole: Ints
    members: tuple[Ints, ...]
    replica: Ints


@functools.lru_cache(maxsize=4)
def layout(job: Job) -> Layout:
    """Return the communicators of a job.

    Parameters
    ----------
    job : Job
    """
    at = np.arange(job.ranks).reshape(job.stages, job.replicas, job.group)
    groups = at.reshape(-1, job.group)
    rings = at.transpose(0, 2, 1).reshape(-1, job.replicas)
    whole = np.arange(job.ranks)
    replica = np.broadcast_to(np.arange(job.replicas)[None, :, None], at.shape).reshape(-1)
    return Layout(groups, rings, whole, (*groups, *rings, whole), replica.copy())


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A fault, as it is planted; an analyser is right when it names ``ranks``.

    Parameters
    ----------
    fault : str
        One of the six classes; empty for a healthy window.
    ranks : tuple of int
        The culprits.
    link : bool
        Whether the link from the culprit to the next rank is at fault rather than the rank.
    kind : int
        Of a hang: in which operation of the iteration; of slow transfers: ``group_ops`` for the ring, 0 for the group.
    late : tuple of int
        Culprits that compute slowly, of S1 and S3.
    slow : int
        Culprit that transfers slowly, of S2 and S3.
    factor : float
        How many times slower it transfers.
    extra_s : float
        What late ranks compute longer before each operation.
    pause_s : float
        Of a healthy window: some ranks write a checkpoint for so long.
    pausing : bool
        Whether the window is looked at while they write.
    changed : str
        What of an operation a culprit of H2 has changed: size, op, dtype or root.
    """

    fault: str = ""
    ranks: tuple[int, ...] = ()
    link: bool = False
    kind: int = 0
    late: tuple[int, ...] = ()
    slow: int = ABSENT
    factor: float = 1.0
    extra_s: float = 0.0
    pause_s: float = 0.0
    pausing: bool = False
    changed: str = ""
    paused: tuple[int, ...] = field(default=())


def drawn_fault(job: Job, fault: str, draws: np.random.Generator, factor: tuple[float, float] = (3.3, 10.0)) -> Planted:
    """Return a fault of a class with culprits and strength drawn.

    Parameters
    ----------
    job : Job
    fault : str
        A class; empty for a healthy window.
    draws : numpy.random.Generator
    factor : (float, float)
        Range of how many times slower slow transfers are, drawn evenly in the logarithm.
    """
    rank, kind = int(draws.integers(job.ranks)), int(draws.integers(job.ops))
    slower = float(np.exp(draws.uniform(*np.log(factor))))
    extra_s = job.compute_s * float(draws.uniform(0.5, 4.0))
    if not fault:
        pause_s = float(draws.uniform(10.0, 240.0)) if draws.random() < 0.25 else 0.0
        if not pause_s:
            return Planted()
        at = layout(job)
        writers = (at.whole[:1], at.whole[at.replica == 0], at.whole)[int(draws.integers(3))]
        return Planted(pause_s=pause_s, pausing=bool(draws.random() < 0.5), paused=tuple(writers.tolist()))
    if fault == "H1":
        # One rank, or a whole group: a machine.
        ranks = (rank,) if draws.random() < 0.7 else tuple(layout(job).groups[rank // job.group].tolist())
        return Planted(fault=fault, ranks=ranks, kind=kind)
    if fault == "H2":
        changed = ("size", "op", "dtype", "root")[draws.integers(4)]
        return Planted(fault=fault, ranks=(rank,), kind=kind, changed=changed)
    if fault == "H3":
        link = bool(draws.random() < 0.5)
        return Planted(fault=fault, ranks=(rank,), link=link, kind=int(draws.integers(job.ops - link)))
    if fault == "S1":
        return Planted(fault=fault, ranks=(rank,), late=(rank,), extra_s=extra_s)
    link, place = bool(draws.random() < 0.5), (job.group_ops, 0)[int(draws.integers(2))]
    if fault == "S2":
        return Planted(fault=fault, ranks=(rank,), slow=rank, link=link, kind=place, factor=slower)
    if fault == "S3":
        other = rank if draws.random() < 0.5 else int(draws.integers(job.ranks))
        ranks = tuple(sorted({rank, other}))
        return Planted(fault=fault, ranks=ranks, late=(other,), slow=rank, link=link, kind=place, factor=slower,
                       extra_s=extra_s)  # fmt: skip
    raise BadValueError("There is no such class of faults.", given=fault)


def simulated(
    job: Job,
    planted: Planted,
    draws: np.random.Generator,
    *,
    iterations: int = 8,
    hang_s: float = 300.0,
    period_s: float = 10.0,
    clocks_s: float = _SPREAD_OF_CLOCKS_S,
) -> Window:
    """Return the frames of a window of a job with a planted fault.

    Parameters
    ----------
    job : Job
    planted : Planted
    draws : numpy.random.Generator
    iterations : int
        In the window; a hang is in the last one.
    hang_s : float
        An analyser looks at a hang when nobody has moved for this long,
    period_s : float
        and at most so much later.
    clocks_s : float
        Spread of the clocks of ranks, and of their distance from zero.
    """
    run = _Run(job, planted, draws, iterations)
    for turn in range(iterations):
        run.iterate(turn, last=turn == iterations - 1)
    if planted.fault.startswith("H"):
        wait_s = hang_s + float(draws.uniform(0.0, period_s))
    else:
        # A checkpoint that is being written: nobody moves, and nothing is wrong.
        wait_s = float(draws.uniform(0.0, max(planted.pause_s, 1e-3))) if planted.pausing else 1.0
    return run.window(run.moved_s + wait_s, draws.normal(0.0, clocks_s, job.ranks))


class _Run:
    def __init__(self, job: Job, planted: Planted, draws: np.random.Generator, iterations: int) -> None:
        self.job, self.planted, self.draws = job, planted, draws
        self.at = layout(job)
        self.free_s = np.full(job.ranks, 10.0) + draws.exponential(0.01, job.ranks)
        shape = (job.ranks, iterations * job.ops)
        self.columns = {name: np.zeros(shape, np.int64) for name in Frames._fields}
        self.entry_s, self.end_s, self.last_s = (np.full(shape, np.inf) for _ in range(3))
        self.stands_s = np.full(job.ranks, np.inf)
        self.links = {kind: np.exp(draws.normal(0.0, job.noise, job.ranks)) for kind in ("group", "ring", "tree")}
        self.paused_turn = iterations - 1 if planted.pausing else int(draws.integers(iterations))
        self.moved_s = 10.0
        self.launched = np.zeros(shape, bool)

    def iterate(self, turn: int, *, last: bool) -> None:
        job, draws, planted = self.job, self.draws, self.planted
        length = np.exp(draws.normal(0.0, job.lengths, job.replicas))[self.at.replica]
        strikes = planted.kind if last and planted.fault.startswith("H") else ABSENT
        for op in range(job.ops):
            compute_s = job.compute_s * length * np.exp(draws.normal(0.0, job.noise, job.ranks))
            compute_s[list(planted.late)] += planted.extra_s
            if planted.pause_s and turn == self.paused_turn and op == 0:
                compute_s[list(planted.paused)] += np.inf if planted.pausing else planted.pause_s
            self._operation(turn * job.ops + op, turn, op, self.free_s + compute_s, length, strikes == op)

    def _operation(self, column: int, turn: int, op: int, entry_s: Floats, length: Floats, strikes: bool) -> None:
        job, out = self.job, np.zeros((self.job.ranks, chunks.COLUMNS))
        breaks_s = np.full(job.ranks, np.inf)
        size, kind = self._call(column, turn, op, length)
        step_s = self._steps_of(kind, op, length)
        if strikes:
            entry_s = self._strike(column, entry_s, breaks_s, kind, step_s)
        if kind == "tree":
            chunks.tree(self.at.whole, entry_s, step_s, self.stands_s, _TREE_CHUNKS, out)
            chunk = np.full(job.ranks, _TREE_BYTES // _TREE_CHUNKS)
        else:
            of = self.at.groups if kind == "group" else self.at.rings
            steps = 2 * (of.shape[1] - 1)
            chunks.ring(of, entry_s, step_s, self.stands_s, breaks_s, steps, out)
            chunk = size // of.shape[1]
        self.entry_s[:, column], self.end_s[:, column] = entry_s, out[:, chunks.ENDED]
        self.last_s[:, column] = out[:, chunks.MOVED]
        self.launched[:, column] |= np.isfinite(entry_s)
        put = self.columns
        put["posted"][:, column] = out[:, chunks.POSTED]
        put["received"][:, column] = out[:, chunks.RECEIVED]
        put["sent_bytes"][:, column] = out[:, chunks.SENT_CHUNKS] * chunk
        put["received_bytes"][:, column] = out[:, chunks.RECEIVED] * chunk
        for name, of_out in (("send_ns", chunks.SEND), ("recv_ns", chunks.RECV), ("wait_ns", chunks.WAIT)):
            put[name][:, column] = np.round(out[:, of_out] * 1e9)
        moved = self.last_s[:, column]
        if np.isfinite(moved).any():
            self.moved_s = max(self.moved_s, float(moved[np.isfinite(moved)].max()))
        self.free_s = out[:, chunks.ENDED]

    def _call(self, column: int, turn: int, op: int, length: Floats) -> tuple[Ints, str]:
        """Write what all members of each communicator call."""
        job, put = self.job, self.columns
        ranks, groups = self.at.whole, len(self.at.groups)
        if op < job.group_ops:
            kind, comm, seq = "group", ranks // job.group, turn * job.group_ops + op
            # Activations: as long as the sequences.
            size = (_GROUP_BYTES * length).astype(np.int64) // job.group * job.group
        elif op == job.group_ops:
            stage, place = ranks // (job.replicas * job.group), ranks % job.group
            kind, comm, seq = "ring", groups + stage * job.group + place, turn
            size = np.full(job.ranks, _RING_BYTES // job.replicas * job.replicas)
        else:
            kind, comm, seq = "tree", np.full(job.ranks, groups + len(self.at.rings)), turn
            size = np.full(job.ranks, _TREE_BYTES)
        put["rank"][:, column], put["comm"][:, column], put["seq"][:, column] = ranks, comm, seq
        put["op"][:, column], put["size"][:, column] = _ALL_REDUCE, size
        put["dtype"][:, column], put["root"][:, column] = _BF16, ABSENT
        return size, kind

    def _steps_of(self, kind: str, op: int, length: Floats) -> Floats:
        job, planted = self.job, self.planted
        usual = {"group": _GROUP_STEP_S, "ring": _RING_STEP_S, "tree": _TREE_STEP_S}[kind]
        step_s = usual * self.links[kind] * np.exp(self.draws.normal(0.0, job.noise, job.ranks))
        if kind == "group":
            step_s *= length
        crowded = self.draws.random(job.ranks) < job.congested
        step_s[crowded] *= self.draws.uniform(2.0, 5.0, int(crowded.sum()))
        where = "ring" if planted.kind == job.group_ops else "group"
        if planted.slow != ABSENT and kind == where:
            step_s[planted.slow] *= planted.factor
            if not planted.link:
                of = self.at.groups if kind == "group" else self.at.rings
                row = of[(of == planted.slow).any(axis=1)][0]
                step_s[row[int(np.flatnonzero(row == planted.slow)[0]) - 1]] *= planted.factor
        return step_s

    def _strike(self, column: int, entry_s: Floats, breaks_s: Floats, kind: str, step_s: Floats) -> Floats:
        """Let the planted hang begin in this operation."""
        planted, put, who = self.planted, self.columns, list(self.planted.ranks)
        if planted.fault == "H1":
            entry_s = entry_s.copy()
            entry_s[who] = np.inf
            # Some have launched it, and the device does not begin.
            self.launched[who, column] = self.draws.random() < 0.5
            return entry_s
        row = {"group": self.at.groups, "ring": self.at.rings, "tree": self.at.whole[None]}[kind]
        members = row[(row == who[0]).any(axis=1)][0]
        begins_s = float(entry_s[members].max())
        many = _TREE_CHUNKS if kind == "tree" else 2 * (members.size - 1)
        if planted.fault == "H2":
            # Nothing fits: its first chunk is the last one that moves.
            self.stands_s[who] = begins_s
            name = planted.changed
            half = put["size"][who, column] // 2
            other = {"op": _ALL_GATHER, "dtype": _FP32, "root": 0}
            put[name][who, column] = half if name == "size" else other[name]
            return entry_s
        strikes_s = begins_s + float(self.draws.uniform(0.02, 0.9)) * many * float(np.median(step_s[members]))
        (breaks_s if planted.link else self.stands_s)[who] = strikes_s
        return entry_s

    def window(self, now_s: float, offsets_s: Floats) -> Window:
        """Return the frames as each rank's own clock has them."""
        job, put = self.job, self.columns
        stood = np.isfinite(self.stands_s) & (self.planted.fault == "H3")
        for name, at_s in (("entered_ns", self.entry_s), ("ended_ns", self.end_s), ("moved_ns", self.last_s)):
            own = np.where(np.isfinite(at_s), at_s, 0.0) + offsets_s[:, None]
            put[name] = np.where(np.isfinite(at_s), np.round(own * 1e9).astype(np.int64), NEVER)
        put["moved_ns"] = np.where(put["entered_ns"] == NEVER, NEVER, put["moved_ns"])
        # Pollers look again and again while their rank is alive; the last look is a moment ago.
        looked_s = now_s - self.draws.uniform(0.0, _POLL_S, job.ranks)
        looked_s[stood] = self.stands_s[stood]
        polled = np.where(np.isfinite(self.end_s), self.end_s, looked_s[:, None])
        put["polled_ns"] = np.where(
            put["entered_ns"] == NEVER, NEVER, np.round((polled + offsets_s[:, None]) * 1e9).astype(np.int64)
        )
        kept = self.launched.reshape(-1)
        frames = Frames(*(put[name].reshape(-1)[kept] for name in Frames._fields))
        now_ns = np.round((now_s + offsets_s) * 1e9).astype(np.int64)
        return Window(frames, self.at.members, now_ns, frozenset([len(self.at.members) - 1]))
