"""Workers that fail, recover, drain, stop and join while a cluster serves: what happens when.

A :class:`Churn` says it in three ways, which may be mixed: a list of :class:`Change`; failures at random, and restarts
of one worker after the other; an autoscaler that keeps the requests in flight per worker within bounds.  It also says
what becomes of the requests of a worker that is gone.

=============  ==========================  =======================================================================
action         of a worker that            makes it one that
=============  ==========================  =======================================================================
``fail``       takes requests, or drains   has failed, with all that it had: queue, batch, KV cache, adapters
``recover``    has failed                  takes requests, and has nothing
``drain``      takes requests              drains: it refuses new requests and finishes those that it has
``stop``       takes requests, or drains   is off; what it still had is gone as at a failure
``join``       drains, or is off           takes requests
=============  ==========================  =======================================================================

Every other change has no effect, so that sources of changes need not know of each other: a worker that fails while it
drains stays as it is when its restart would have stopped it, and takes requests when it has recovered.  Workers of a
lockstep group change together.

Sources: exponential times between failures and until repair, K. S. Trivedi, "Probability and Statistics with
Reliability, Queuing, and Computer Science Applications", 2nd edition, 2001, chapter 8; Kubernetes 1.31, rolling
updates and the horizontal pod autoscaler.

Differs from the sources:

1. The autoscaler starts as many workers as it needs at once and drains one at a look; Kubernetes can drain several,
   after a time of calm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, unknown_name
from wavetank.platforms.step_time import PS_PER_S
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream

if TYPE_CHECKING:
    from wavetank.serving.simulator.cluster import Cluster

ACTIONS = ("fail", "recover", "drain", "stop", "join")
FAIL, RECOVER, DRAIN, STOP, JOIN = range(5)
UP, DRAINING, FAILED, OFF = range(4)
"""What a worker is."""

OUTCOMES = ("finished", "refused", "lost", "failed")
"""How a request ends: with its last token; at a full queue; in the middle of its stream; without a token."""
FINISHED, REFUSED, LOST, NOWHERE = range(4)

STREAMS = ("lost", "recomputed")

# Beyond this many changes the unit of a time is wrong.
MOST_CHANGES = 10_000_000


def _check_word(word: str, allowed: Sequence[str], where: str) -> None:
    if word not in allowed:
        raise unknown_name(where, word, allowed, where=f"churn, {where}")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of a worker, and with it of its group."""

    time_s: float = setting(0.0, unit="s", says="Time of the change after the first arrival", low=0.0, high=1e7)
    worker: int = setting(0, says="Worker that changes", low=0, high=100_000)
    action: str = setting("fail", says="Kind of change", choices=ACTIONS)

    def __post_init__(self) -> None:
        check_ranges(self)
        _check_word(self.action, ACTIONS, "action")


@dataclass(frozen=True, kw_only=True)
class Churn:
    """When workers fail, restart, come and go, and what their requests do then."""

    changes: tuple[Change, ...] = field(default=(), metadata={"says": "Changes at given times"})
    time_to_failure_s: float = setting(
        0.0, unit="s", says="Mean time until a worker that runs fails (exponential); 0: none does", low=0.0, high=1e9
    )
    repair_s: float = setting(
        60.0, unit="s", says="Mean time from a failure until the worker takes requests again (exponential)",
        low=0.001, high=1e6,
    )  # fmt: skip
    restarts_s: tuple[float, ...] = setting(
        (), unit="s", says="Times at which rolling restarts begin, after the first arrival", low=0.0, high=1e7
    )
    restart_at_once: int = setting(1, unit="workers", says="Workers that restart together", low=1, high=100_000)
    drain_s: float = setting(
        30.0, unit="s", says="Longest time for a worker that restarts to finish its requests", low=0.0, high=1e6
    )
    start_s: float = setting(
        60.0, unit="s", says="Time from the start of a worker, also by the autoscaler, until it takes requests",
        low=0.001, high=1e6,
    )  # fmt: skip
    scale_low: float = setting(
        0.0, unit="requests", says="Requests in flight per worker below which one worker is drained", low=0.0, high=1e6
    )
    scale_high: float = setting(
        0.0, unit="requests", says="Requests in flight per worker above which workers are started; 0: no autoscaler",
        low=0.0, high=1e6,
    )  # fmt: skip
    scale_every_s: float = setting(15.0, unit="s", says="Period of the autoscaler", low=0.01, high=1e6)
    least_workers: int = setting(1, unit="workers", says="Workers that the autoscaler leaves", low=1, high=100_000)
    first_workers: int = setting(
        0, unit="workers", says="Workers at the start, where there is an autoscaler; 0: all", low=0, high=100_000
    )
    streams: str = setting(
        "lost", says="What becomes of an answer that had begun: lost, or recomputed from prompt and tokens elsewhere",
        choices=STREAMS,
    )  # fmt: skip
    tries: int = setting(
        2, says="Workers that a request is sent to at most, refused connections not counted", low=1, high=1000
    )
    wait_s: float = setting(
        0.0, unit="s", says="Time that a request waits while no worker is seen to take it; 0: it fails at once",
        low=0.0, high=1e6,
    )  # fmt: skip
    seed: int = setting(0, says="Seed of the failures", low=0, high=2**31)

    def __post_init__(self) -> None:
        check_ranges(self)
        _check_word(self.streams, STREAMS, "streams")
        for begin_s in self.restarts_s:
            if not 0 <= begin_s <= 1e7:
                raise BadValueError(
                    "A rolling restart begins within the trace.",
                    given=begin_s,
                    allowed="0 to 1e7 s",
                    where="restarts_s",
                )
        if self.scale_high and self.scale_low > self.scale_high / 2:
            raise BadValueError(
                "The bounds of the autoscaler are too close: a worker that is drained would be missed at once.",
                given=f"scale_low={self.scale_low:g}, scale_high={self.scale_high:g}",
                allowed="scale_low <= scale_high / 2",
                where="scale_low",
            )
        if self.scale_low and not self.scale_high:
            raise BadValueError(
                "An autoscaler needs both bounds.",
                given=f"scale_low={self.scale_low:g}, scale_high=0",
                allowed="scale_high > 0",
                where="scale_high",
            )

    def check(self, cluster: Cluster) -> None:
        """Refuse changes of workers that a cluster has not.

        Raises
        ------
        BadValueError
            It names the worker.
        """
        for change in self.changes:
            if change.worker >= cluster.workers:
                raise BadValueError(
                    "There is no such worker.",
                    given=f"worker {change.worker}",
                    allowed=f"0 to {cluster.workers - 1}",
                    where="churn, changes",
                )
        for name in ("least_workers", "first_workers"):
            count = getattr(self, name)
            split = name == "first_workers" and count % cluster.group_size != 0
            if self.scale_high and (count > cluster.workers or split):
                raise BadValueError(
                    "The autoscaler has not that many workers, or would split a group.",
                    given=f"{name}={count}",
                    allowed=f"up to {cluster.workers}, whole groups of {cluster.group_size}",
                    where=f"churn, {name}",
                )


@dataclass(frozen=True)
class Changes:
    """All changes that are known before a run, in order of time; arrays have shape (changes,).

    Attributes
    ----------
    time_ps : int64
        On the trace's clock.
    group : int64
        Number of the group, which is that of the worker where each steps alone.
    action : int64
        Place in :data:`ACTIONS`.
    """

    time_ps: NDArray[np.int64]
    group: NDArray[np.int64]
    action: NDArray[np.int64]


def changes_of(churn: Churn, cluster: Cluster, first_ps: int, last_ps: int) -> Changes:
    """Return the changes from the first to the last arrival; what began by then is carried through.

    Parameters
    ----------
    churn : Churn
    cluster : Cluster
    first_ps, last_ps : int
        First and last arrival.

    Raises
    ------
    BadValueError
        If there would be more than ten million of them.
    """
    groups, span_s = cluster.workers // cluster.group_size, (last_ps - first_ps) / PS_PER_S
    if churn.time_to_failure_s:
        expected = groups * span_s / churn.time_to_failure_s
        if expected > MOST_CHANGES:
            raise BadValueError(
                "Workers fail too often to simulate.",
                given=f"about {expected:,.0f} failures",
                allowed=f"{MOST_CHANGES:,}",
                where="time_to_failure_s",
                hint="check the unit",
            )
    size = cluster.group_size
    rows = [(change.time_s, change.worker // size, ACTIONS.index(change.action)) for change in churn.changes]
    for group in range(groups):
        rows += [(time_s, group, action) for time_s, action in _failures(churn, group, span_s)]
    at_once = -(-churn.restart_at_once // size)
    for begin_s in churn.restarts_s:
        for group in range(groups):
            rows += _restart(churn, group, begin_s + group // at_once * (churn.drain_s + churn.start_s))
    table = np.array(rows, np.float64).reshape(-1, 3)
    time_ps = first_ps + np.round(table[:, 0] * PS_PER_S).astype(np.int64)
    order = np.argsort(time_ps, kind="stable")
    return Changes(time_ps[order], table[order, 1].astype(np.int64), table[order, 2].astype(np.int64))


def _failures(churn: Churn, group: int, span_s: float) -> Iterator[tuple[float, int]]:
    if not churn.time_to_failure_s:
        return
    draws = stream(churn.seed, "failures", group)
    now_s = float(draws.exponential(churn.time_to_failure_s))
    while now_s <= span_s:
        yield now_s, FAIL
        now_s += float(draws.exponential(churn.repair_s))
        yield now_s, RECOVER
        now_s += float(draws.exponential(churn.time_to_failure_s))


def _restart(churn: Churn, group: int, begin_s: float) -> Sequence[tuple[float, int, int]]:
    stop_s = begin_s + churn.drain_s
    return (begin_s, group, DRAIN), (stop_s, group, STOP), (stop_s + churn.start_s, group, JOIN)
