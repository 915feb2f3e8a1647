"""Step graphs of steps that were not run: calls as recorded, priced by what was measured of other steps and messages.

A call has the length that a line through its lengths at the recorded numbers of rows gives.  Collectives and messages
have that of a fabric whose latency and bandwidth were fitted to messages alone.  Beside its time under way each also
takes time of the processor that computes, as much as was measured of messages alone: ranks on processors have no
engine that moves bytes while they compute.

Who waits for a collective follows from data (the first call that touches what it writes) and, of callers that wait at
once, from the time that passes before the next call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError
from wavetank.platforms.fabric import Fabric, Level
from wavetank.platforms.step_time import PS_PER_S
from wavetank.workloads.operations import Operation, StepGraph

Floats = npt.NDArray[np.float64]

# Of times of one thing: the machine has other work, which only ever makes them longer.
QUIET = 0.25

_COMPUTE, _COLLECTIVES, _SENDS, _RECEIVES = range(4)
# A wait of torch's functional collectives: its length is that of what it waits for.
_WAIT = "_c10d_functional::wait_tensor"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a message or collective between two ranks takes.

    Parameters
    ----------
    fabric : Fabric
        Prices the time under way.
    work_s, work_s_per_byte : float
        Processor time on each of its ranks: so much, and so much for each byte.
    """

    fabric: Fabric
    work_s: float
    work_s_per_byte: float

    def seconds(self, call: Mapping[str, Any]) -> float:
        """Return the time under way of a call that communicates between ranks 0 and 1, s.

        Parameters
        ----------
        call : mapping
            With its ``kind`` and ``n_bytes``.
        """
        if call["kind"] in ("send", "receive"):
            return self.fabric.message_ps(0, 1, call["n_bytes"]) / PS_PER_S
        return self.fabric.collective_ps(call["kind"], range(2), call["n_bytes"]) / PS_PER_S

    def work_ps(self, n_bytes: int) -> int:
        """Return the processor time of one of some bytes, ps.

        Parameters
        ----------
        n_bytes : int
        """
        return round((self.work_s + self.work_s_per_byte * n_bytes) * PS_PER_S)


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return intercept and slope, neither below 0, of the line with the least sum of squared relative errors.

    Parameters
    ----------
    x, y : sequence of float
        Above 0, two points or more.

    Raises
    ------
    BadValueError
        For values that are not above 0, or fewer than two different x.
    """
    at, found = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if (
        at.shape != found.shape
        or np.unique(at).size < 2
        or not ((at > 0) & (found > 0) & np.isfinite(at + found)).all()
    ):
        raise BadValueError(
            "A line goes through two points or more, above 0.", given=(list(x), list(y)),
            allowed="two different x or more, and as many y",
        )  # fmt: skip
    weighted = np.stack([1 / found, at / found], 1)
    intercept, slope = np.linalg.lstsq(weighted, np.ones(found.size), rcond=None)[0].tolist()
    if intercept < 0:
        intercept, slope = 0.0, float((at / found).sum() / ((at / found) ** 2).sum())
    elif slope < 0:
        intercept, slope = float((1 / found).sum() / (1 / found**2).sum()), 0.0
    return intercept, slope


def costs(messages: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Cost]:
    """Return the cost of each kind of message or collective, fitted to those that were timed alone.

    Parameters
    ----------
    messages : sequence of mapping
        By rank: by kind and size in bytes, an array (repetitions, 3) of begin, end and processor seconds.  Each
        takes from when the last rank has come: the others only wait.
    """
    found = {}
    for kind, of in messages[0].items():
        sizes = sorted(of, key=int)
        elapsed, worked = [], []
        for size in sizes:
            ranks = np.stack([np.asarray(each[kind][size], np.float64) for each in messages])
            took = ranks[:, :, 1].max(0) - ranks[:, :, 0].max(0)
            elapsed.append(max(float(np.quantile(took, QUIET)), 1e-9))
            worked.append(max(float(np.quantile(ranks[:, :, 2], QUIET)), 1e-9))
        at = [float(size) for size in sizes]
        alpha_s, per_byte = line(at, elapsed)
        # What a ring of two makes of latency and bandwidth.
        rounds = 2 if kind == "all-reduce" else 1
        share = 1.0 if kind in ("all-reduce", "send") else 0.5
        level = Level(
            name="loopback", size=len(messages), alpha_s=alpha_s / rounds, bytes_per_s=share / max(per_byte, 1e-15)
        )
        work_s, work_per_byte = line(at, worked)
        found[kind] = Cost(fabric=Fabric(levels=(level,)), work_s=work_s, work_s_per_byte=work_per_byte)
    return found


def gaps(begin: Floats, end: Floats) -> Floats:
    """Return the time before each call, and at last after all of them, in which no call runs, s.

    Parameters
    ----------
    begin, end : float64 array (steps, 1 + calls)
        Of the step, then of its calls.

    Returns
    -------
    float64 array (steps, calls + 1)
    """
    ends = np.concatenate([begin[:, :1], end[:, 1:]], 1)
    return np.maximum(np.concatenate([begin[:, 1:], end[:, :1]], 1) - ends, 0.0)


def waits(
    calls: Sequence[Mapping[str, Any]], begin: Floats, end: Floats, prices: Mapping[str, Cost]
) -> list[tuple[int, ...]]:
    """Return for which collectives or messages each call waits, by their numbers among the calls.

    A call waits for what writes a storage that it touches, if no call before it did.  It waits for the call right
    before it where even the shortest time between the two is half of what that takes: its caller was synchronous.

    Parameters
    ----------
    calls : sequence of mapping
        As of :func:`wavetank.workloads.host_calls.calls_of`.
    begin, end : float64 array (steps, 1 + calls)
    prices : mapping of str to Cost
    """
    shortest = gaps(begin, end).min(0)
    pending: dict[int, int] = {}
    found = []
    for i, call in enumerate(calls):
        before = {pending[storage] for storage in call["touches"] if storage in pending}
        last = calls[i - 1] if i else call
        if last["kind"] not in ("", "send") and shortest[i] > _price(prices, last).seconds(last) / 2:
            before.add(i - 1)
        found.append(tuple(sorted(before)))
        pending = {storage: number for storage, number in pending.items() if number not in before}
        if call["kind"] not in ("", "send"):
            pending |= dict.fromkeys(call["writes"], i)
    return found


def own_seconds(
    calls: Sequence[Mapping[str, Any]], waiting: Sequence[Sequence[int]], begin: Floats, end: Floats,
    unwatched: Floats,
) -> Floats:  # fmt: skip
    """Return how long each call keeps its process busy, with the interpreter's time before it, s.

    Where a call waits for others, or follows one that communicates, the time before it is taken to be the median of
    that before other calls.  A mean over the quicker half of the steps, whose middle is :data:`QUIET`: quantiles of
    single calls would leave out what interrupts every step, but never the same call.  By as much as steps are longer
    while they are watched, calls are, each by the same.

    Parameters
    ----------
    calls : sequence of mapping
    waiting : sequence of sequence of int
        As of :func:`waits`.
    begin, end : float64 array (steps, 1 + calls)
    unwatched : float64 array (steps,)
        Lengths of the same steps of the process while nobody watched, s.

    Returns
    -------
    float64 array (calls + 1,)
        At last, how long the step goes on after its calls.
    """
    busy, before = np.pad(end[:, 1:] - begin[:, 1:], ((0, 0), (0, 1))), gaps(begin, end)
    follows = [False, *(bool(call["kind"]) for call in calls)]
    odd = np.array([bool(each) or after for each, after in zip([*waiting, ()], follows, strict=True)])
    before[:, odd] = np.median(before[:, ~odd], 1, keepdims=True)
    busy[:, [*(call["name"] == _WAIT for call in calls), False]] = 0.0
    length = end[:, 0] - begin[:, 0]
    watching_s = max(length[_quicker(length)].mean() - unwatched[_quicker(unwatched)].mean(), 0.0) / len(calls)
    seconds: Floats = (busy + before)[_quicker(length)].mean(0)
    seconds[:-1] = np.maximum(seconds[:-1] - watching_s, 0.0)
    return seconds


def _quicker(lengths: Floats) -> npt.NDArray[np.intp]:
    """Which are in the quicker half: as many on either side of the quantile as lie below it."""
    return np.argsort(lengths, kind="stable")[: math.ceil(2 * QUIET * lengths.size)]


class RankSteps(NamedTuple):
    """The step of one rank.

    Parameters
    ----------
    calls : sequence of mapping
    waiting : sequence of sequence of int
        As of :func:`waits`.
    seconds : float64 array (calls + 1,)
        How long each call keeps its rank busy, and how long the step goes on after the last.
    """

    calls: Sequence[Mapping[str, Any]]
    waiting: Sequence[Sequence[int]]
    seconds: Floats


def predicted_graph(ranks: Sequence[RankSteps], prices: Mapping[str, Cost]) -> StepGraph:
    """Return the step graph of two ranks.

    Parameters
    ----------
    ranks : sequence of RankSteps
    prices : mapping of str to Cost
        By kind of message or collective.
    """
    operations: list[Operation] = []
    for rank, (calls, waiting, seconds) in enumerate(ranks):
        under_way: dict[int, int] = {}
        *each_s, rest_s = seconds.tolist()
        for i, (call, took_s) in enumerate(zip(calls, each_s, strict=True)):
            issued = len(operations)
            operations.append(
                Operation(rank=rank, stream=_COMPUTE, duration_ps=round(took_s * PS_PER_S),
                          after=tuple(under_way[each] for each in waiting[i]), name=call["name"])
            )  # fmt: skip
            if call["kind"]:
                under_way[i] = len(operations)
                operations.append(_communication(rank, call, issued, prices))
                operations.append(
                    Operation(rank=rank, stream=_COMPUTE, duration_ps=_price(prices, call).work_ps(call["n_bytes"]),
                              name=f"work of {call['name']}")
                )  # fmt: skip
        operations.append(Operation(rank=rank, stream=_COMPUTE, duration_ps=round(rest_s * PS_PER_S), name="rest"))
    return StepGraph.of(operations, groups=(range(len(ranks)),))


def _price(prices: Mapping[str, Cost], call: Mapping[str, Any]) -> Cost:
    return prices["send" if call["kind"] == "receive" else call["kind"]]


def _communication(rank: int, call: Mapping[str, Any], issued: int, prices: Mapping[str, Cost]) -> Operation:
    kind, n_bytes = call["kind"], call["n_bytes"]
    common: dict[str, Any] = {"rank": rank, "n_bytes": n_bytes, "after": (issued,), "name": call["name"]}
    if kind == "receive":
        return Operation(kind="receive", stream=_RECEIVES, peer=1 - rank, **common)
    took_ps = round(prices[kind].seconds(call) * PS_PER_S)
    if kind == "send":
        return Operation(kind="send", stream=_SENDS, peer=1 - rank, duration_ps=took_ps, **common)
    return Operation(kind="collective", stream=_COLLECTIVES, collective=kind, group=0, duration_ps=took_ps, **common)


def at_rows(
    calls: Mapping[int, Sequence[Mapping[str, Any]]], seconds: Mapping[int, Floats], rows: int
) -> tuple[list[dict[str, Any]], Floats]:
    """Return the calls of a step of some rows and their lengths, from those at other numbers of rows.

    Parameters
    ----------
    calls : mapping of int to sequence of mapping
        By rows, of one process.
    seconds : mapping of int to float64 array (calls + 1,)
        By rows, as of :func:`own_seconds`.
    rows : int

    Raises
    ------
    BadValueError
        If the process calls different operations at different numbers of rows, or bytes grow by no whole number.
    """
    known = sorted(calls)
    first, last = known[0], known[-1]
    if any([c["name"] for c in calls[each]] != [c["name"] for c in calls[first]] for each in known):
        raise BadValueError("A step calls other operations with other rows.", given=known, allowed="one program")
    lengths = np.stack([seconds[each] for each in known])
    at = np.array(known, np.float64)
    design = np.stack([np.ones_like(at), at], 1)
    coefficients = np.linalg.lstsq(design, lengths, rcond=None)[0]
    predicted: Floats = np.maximum(coefficients[0] + coefficients[1] * rows, 0.0)
    found = []
    for one, other in zip(calls[first], calls[last], strict=True):
        grown, span = (other["n_bytes"] - one["n_bytes"]) * (rows - first), last - first
        if span and grown % span:
            raise BadValueError("The bytes of a call are no whole number at these rows.", given=rows,
                                where=one["name"])  # fmt: skip
        found.append(dict(one) | {"n_bytes": one["n_bytes"] + (grown // span if span else 0)})
    return found, predicted
