"""The executor of step graphs: when every operation of a training step starts and ends, in whole picoseconds.

What takes part are streams, collectives, messages and shared links:

1. The operations of one stream of a rank run one after the other, in the order of their numbers.  An operation starts
   when the one before it and all its dependencies have ended.
2. A collective starts when every member of its group has come to it, and ends for all at once.  The k-th collective of
   a group on one rank belongs to the k-th on every other; a group has one queue, so that its collectives never overlap.
3. The k-th receive from a rank with a tag belongs to the k-th send with that tag.  A send ends when the message has
   arrived, whether anybody waits for it or not; a receive starts when its message is there.
4. A shared link carries one message or collective at a time, first come, first served.  Requests are served in the
   order of the times at which they are made; of several at one time, the one with the lowest number among those that
   wait for nothing else.

Without shared links the times are longest paths, and no list of events is needed: a stream runs on until it meets an
operation that has not ended, and is taken up again when that ends.  Every operation is looked at once, and once more
for every time that its stream had to wait.  With shared links, the same pass runs until all streams stand still; then
the earliest request of all is served.

:mod:`~wavetank.sim.step_reference` says the same in plain Python; both agree in every picosecond.

Source: J. E. Kelley, M. R. Walker, "Critical-Path Planning and Scheduling", 1959, for the longest paths; the rules are
those of streams and communicators in CUDA and NCCL.

Differs from the source:

1. Links are shared first come, first served; real ones interleave packets.
2. A send needs no receive that is posted; libraries do this for small messages only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wavetank.errors import WavetankError
from wavetank.sim.compiled import compiled

COMPUTE, COLLECTIVE, SEND, RECEIVE, HOST = range(5)
KINDS = ("compute", "collective", "send", "receive", "host")

_Longs = npt.NDArray[np.int64]
_Ints = npt.NDArray[np.int32]
_SHOWN = 4


class DeadlockError(WavetankError):
    """Operations that wait for each other, or for what never comes."""


class Steps(NamedTuple):
    """The arrays of a step graph, as the executor takes them; n operations, checked by who made them.

    ``rank``, ``stream``, ``group``, ``peer``, ``link`` are int32 and (n,), ``kind`` and ``collective`` int8,
    ``duration_ps``, ``n_bytes`` and ``tag`` int64.  What an operation depends on is ``dep[dep_start[i] :
    dep_start[i + 1]]``; the ranks of a group are ``group_rank[group_start[g] : group_start[g + 1]]``.
    """

    rank: _Ints
    stream: _Ints
    kind: npt.NDArray[np.int8]
    duration_ps: _Longs
    n_bytes: _Longs
    collective: npt.NDArray[np.int8]
    group: _Ints
    peer: _Ints
    tag: _Longs
    link: _Ints
    dep_start: _Longs
    dep: _Longs
    group_start: _Longs
    group_rank: _Longs


class Matches(NamedTuple):
    """Which operations belong together.

    Parameters
    ----------
    sender : ndarray of int64, shape (n,)
        Of a receive, its send; of a send, -1; of either without a partner, -2; of all others -1.
    meeting : ndarray of int64, shape (n,)
        Of a collective, the number of the meeting; -1 of all others.
    members : list of list of int
        By meeting, its operations in the order of the group's ranks.
    whole : list of bool
        By meeting, whether every member has such an operation, of the same kind, size and link.
    """

    sender: _Longs
    meeting: _Longs
    members: list[list[int]]
    whole: list[bool]


def matches(steps: Steps) -> Matches:
    """Return which sends and receives, and which collectives of different ranks, belong together.

    Parameters
    ----------
    steps : Steps
    """
    n = steps.rank.size
    sender, meeting = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    sent: dict[tuple[int, int, int], list[int]] = {}
    received: dict[tuple[int, int, int], list[int]] = {}
    called: dict[tuple[int, int], int] = {}
    numbers: dict[tuple[int, int], int] = {}
    members: list[list[int]] = []
    groups: list[int] = []
    for i in np.flatnonzero((steps.kind == SEND) & (steps.peer >= 0) | (steps.kind == RECEIVE)).tolist():
        rank, peer, tag = int(steps.rank[i]), int(steps.peer[i]), int(steps.tag[i])
        if steps.kind[i] == SEND:
            sent.setdefault((rank, peer, tag), []).append(i)
        else:
            received.setdefault((peer, rank, tag), []).append(i)
        sender[i] = -2
    for key, receives in received.items():
        for send, receive in zip(sent.get(key, ()), receives, strict=False):
            if steps.n_bytes[send] == steps.n_bytes[receive]:
                sender[send], sender[receive] = -1, send
    for i in np.flatnonzero(steps.kind == COLLECTIVE).tolist():
        group, rank = int(steps.group[i]), int(steps.rank[i])
        count = called.get((group, rank), 0)
        called[group, rank] = count + 1
        if (group, count) not in numbers:
            numbers[group, count] = len(members)
            members.append([])
            groups.append(group)
        meeting[i] = numbers[group, count]
        members[meeting[i]].append(i)
    whole = [
        len(those) == steps.group_start[group + 1] - steps.group_start[group]
        and len({(int(steps.collective[i]), int(steps.n_bytes[i]), int(steps.link[i])) for i in those}) == 1
        for group, those in zip(groups, members, strict=True)
    ]
    return Matches(sender, meeting, members, whole)


def numbered_links(steps: Steps) -> tuple[_Ints, int]:
    """Return the shared links as 0, 1, ..., with -1 for none, and how many there are.

    Parameters
    ----------
    steps : Steps
        Its links can have any numbers.
    """
    there = np.unique(steps.link[steps.link >= 0])
    return np.where(steps.link < 0, -1, np.searchsorted(there, steps.link)).astype(np.int32), there.size


@dataclass(frozen=True, eq=False)
class StepTimes:
    """When the operations of a step graph ran.

    Parameters
    ----------
    end_ps, taken_ps : ndarray of int64, shape (n,)
        End, and time from start to end: of a collective the longest among its members.
    """

    end_ps: _Longs
    taken_ps: _Longs

    @cached_property
    def start_ps(self) -> _Longs:
        """When operations started, ps: a collective when all had come, a message when the link was free."""
        return self.end_ps - self.taken_ps

    @property
    def makespan_ps(self) -> int:
        """The end of the last operation, ps; 0 without operations."""
        return int(self.end_ps.max(initial=0))


class PreparedSteps:
    """A step graph laid out for the executor: streams one after the other, partners found.

    Parameters
    ----------
    steps : Steps
    describe : callable
        Returns how errors call an operation, by its number.
    """

    def __init__(self, steps: Steps, describe: Callable[[int], str] = "operation {}".format) -> None:
        self._steps, self._describe = steps, describe
        n = steps.rank.size
        self._found = found = matches(steps)
        streams = steps.rank.astype(np.int64) << 32 | steps.stream
        self._order = np.argsort(streams, kind="stable")
        self._in_order = bool((self._order[1:] > self._order[:-1]).all())
        self._place = place = np.empty(n + 1, np.int64)
        place[self._order] = np.arange(n)
        # One more operation, which never ends.
        place[n] = n
        ordered = streams[self._order]
        first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if n else np.zeros(0, np.int64)
        self._stream_start = np.r_[first, n].astype(np.int32)
        after = np.repeat(np.arange(n), np.diff(steps.dep_start))
        whole = np.array(found.whole, bool)
        never = np.flatnonzero((found.sender == -2) | ~np.append(whole, True)[found.meeting])
        met = np.flatnonzero(found.sender >= 0)
        queue_before, queue_after = self._queues()
        before = place[np.r_[steps.dep, found.sender[met], np.full(never.size, n), queue_before].astype(np.int64)]
        after = place[np.r_[after, met, never, queue_after].astype(np.int64)]
        # Order within a stream needs no word, but a dependency on a later operation of it stops the stream.
        number = np.append(np.searchsorted(first, np.arange(n), side="right"), -1)
        said = (number[before] != number[after]) | (before >= after)
        before, after = before[said], after[said]
        by_place = np.argsort(after, kind="stable")
        self._dep = before[by_place].astype(np.int32)
        self._dep_start = np.r_[0, np.cumsum(np.bincount(after, minlength=n))].astype(np.int32)
        self.taken_ps = self._longest_of_members(steps.duration_ps)
        self._meeting = found.meeting[self._order].astype(np.int32)
        self._member = place[[i for those in found.members for i in those]].astype(np.int32)
        self._member_start = np.r_[0, np.cumsum([len(those) for those in found.members])].astype(np.int32)
        link, self._links = numbered_links(steps)
        self._link = link[self._order]
        asked_as = np.arange(n)
        for those in found.members:
            asked_as[those] = min(those)
        self._asked_as = asked_as[self._order]

    def _queues(self) -> tuple[list[int], list[int]]:
        """The collectives of a group on one rank, where two that follow each other are on different streams."""
        steps = self._steps
        before, after = [], []
        last: dict[tuple[int, int], int] = {}
        for i in np.flatnonzero(steps.kind == COLLECTIVE).tolist():
            key = int(steps.group[i]), int(steps.rank[i])
            if key in last and steps.stream[last[key]] != steps.stream[i]:
                before.append(last[key])
                after.append(i)
            last[key] = i
        return before, after

    @property
    def shares_links(self) -> bool:
        """Whether the graph has shared links, which need events."""
        return self._links > 0

    def times(self, duration_ps: _Longs | None = None) -> StepTimes:
        """Return when every operation ends.

        Parameters
        ----------
        duration_ps : ndarray of int64, shape (n,), optional
            Other durations than those of the graph, 0 or more, whose sum fits into 62 bits: the layout is used again.

        Raises
        ------
        DeadlockError
            If operations wait for each other, or for what never comes; it names them.
        """
        taken = self.taken_ps if duration_ps is None else self._longest_of_members(duration_ps)
        end, stopped = self._run(taken)
        if stopped.size:
            self._raise(end, stopped)
        ended = end[:-1]
        if not self._in_order:
            ended = np.empty_like(end[:-1])
            ended[self._order] = end[:-1]
        return StepTimes(ended, taken)

    def _longest_of_members(self, duration_ps: _Longs) -> _Longs:
        """Durations in which every member of a collective takes as long as the slowest."""
        taken = np.array(duration_ps, np.int64)
        for those in self._found.members:
            taken[those] = taken[those].max()
        return taken

    def _run(self, taken_ps: _Longs) -> tuple[_Longs, _Longs]:
        return _run(
            self._stream_start, self._dep_start, self._dep, taken_ps[self._order], self._meeting, self._member_start,
            self._member, self._link, self._links, self._asked_as,
        )  # fmt: skip

    def cycle(self) -> list[int]:
        """Return operations of which each waits for the next and the last for the first; empty when all can end."""
        end, stopped = self._run(self.taken_ps)
        if not stopped.size:
            return []
        return [int(self._order[place]) for place in self._circle(end, self._waiting(end, stopped))]

    def _circle(self, end: _Longs, at: dict[int, int]) -> list[int]:
        """The places of operations that wait for each other; empty where the first waits for what never comes."""
        place = min(at.values())
        seen: dict[int, None] = {}
        while place not in seen:
            seen[place] = None
            _, awaited = self._reason(end, place)
            if not awaited:
                return []
            place = at[self._stream_of(awaited[0])]
        circle = list(seen)
        return circle[circle.index(place) :]

    def _stream_of(self, place: int) -> int:
        return int(np.searchsorted(self._stream_start, place, side="right")) - 1

    def _waiting(self, end: _Longs, stopped: _Longs) -> dict[int, int]:
        """By stream that stands still, the place of the operation at which it does."""
        return {
            int(each): int(self._stream_start[each] + np.argmax(
                end[self._stream_start[each] : self._stream_start[each + 1]] < 0))
            for each in stopped
        }  # fmt: skip

    def _reason(self, end: _Longs, place: int) -> tuple[str, list[int]]:
        """Why an operation does not start, and the places of the operations that it waits for."""
        i, name = int(self._order[place]), self._describe
        steps, found = self._steps, self._found
        deps = self._dep[self._dep_start[place] : self._dep_start[place + 1]]
        open_deps = [int(each) for each in deps if each < end.size - 1 and end[each] < 0]
        if open_deps:
            return f"{name(i)} waits for {name(int(self._order[open_deps[0]]))}", open_deps
        if found.sender[i] == -2:
            other = "a receive" if steps.kind[i] == SEND else "a send"
            return f"{name(i)} waits for {other} of {int(steps.n_bytes[i])} bytes that is not there", []
        those = found.members[found.meeting[i]]
        group = int(steps.group[i])
        ranks = steps.group_rank[steps.group_start[group] : steps.group_start[group + 1]].tolist()
        missing = sorted(set(ranks) - {int(steps.rank[each]) for each in those})
        if missing:
            return f"{name(i)} waits for rank {', '.join(map(str, missing))}, which calls no such collective", []
        if not found.whole[found.meeting[i]]:
            return f"{name(i)} meets {next(name(each) for each in those if _differ(steps, i, each))}", []
        late = [each for each in those if not self._has_come(end, int(self._place[each]))]
        return f"{name(i)} waits for {name(late[0])}", [int(self._place[each]) for each in late]

    def _has_come(self, end: _Longs, place: int) -> bool:
        """Whether nothing but the other members keeps a member of a collective."""
        before = self._dep[self._dep_start[place] : self._dep_start[place + 1]]
        first = place == self._stream_start[self._stream_of(place)]
        return bool((first or end[place - 1] >= 0) and (end[before] >= 0).all())

    def _raise(self, end: _Longs, stopped: _Longs) -> None:
        at = self._waiting(end, stopped)
        reasons = {place: self._reason(end, place) for place in at.values()}
        # What waits for nothing that is in the graph is the cause; without it, those that wait for each other are.
        causes = [why for why, awaited in reasons.values() if not awaited] or [
            reasons[place][0] for place in self._circle(end, at)
        ]
        left = int((end[:-1] < 0).sum())
        raise DeadlockError(
            f"{left} of {end.size - 1} operations never start: {causes[0]}.",
            given="; ".join(causes[:_SHOWN]) + (f"; and {len(causes) - _SHOWN} more" if len(causes) > _SHOWN else ""),
            allowed="every rank calls the collectives of a group in one order, alike; each receive has its send",
            where=f"{stopped.size} of {self._stream_start.size - 1} streams stand still",
        )


def _differ(steps: Steps, one: int, other: int) -> bool:
    arrays = (steps.collective, steps.n_bytes, steps.link)
    return any(each[one] != each[other] for each in arrays)


# A stream that waits for an operation is noted in the place of that operation's end: -2 - stream; further ones hang on
# it by ``behind``.
@compiled(inline="always")
def _ends(at, time, end, behind, stack, height):  # type: ignore[no-untyped-def]
    """Write down an end, and take up the streams that waited for it."""
    waiting = end[at]
    end[at] = time
    while waiting < -1:
        stream = -2 - waiting
        stack[height] = stream
        height += 1
        waiting = behind[stream]
    return height


@compiled(inline="always")
def _comes_first(time, stream, other_time, other, number):  # type: ignore[no-untyped-def]
    return time < other_time or (time == other_time and number[stream] < number[other])


@compiled
def _push(times, streams, size, time, stream, number):  # type: ignore[no-untyped-def]
    """Put the request of a stream, which is known by its number, on the heap; the earliest is on top."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if not _comes_first(time, stream, times[above], streams[above], number):
            break
        times[at], streams[at] = times[above], streams[above]
        at = above
    times[at], streams[at] = time, stream


@compiled
def _drop_first(times, streams, size, number):  # type: ignore[no-untyped-def]
    """Take the top of a heap of ``size`` off it."""
    time, stream, at, child = times[size - 1], streams[size - 1], 0, 1
    while child < size - 1:
        if child + 1 < size - 1 and _comes_first(
            times[child + 1], streams[child + 1], times[child], streams[child], number
        ):
            child += 1
        if not _comes_first(times[child], streams[child], time, stream, number):
            break
        times[at], streams[at] = times[child], streams[child]
        at, child = child, 2 * child + 1
    times[at], streams[at] = time, stream


@compiled
def _run(stream_start, dep_start, dep, taken, meeting, member_start, member, link, links, asked_as):  # type: ignore[no-untyped-def]
    """Return the ends by place, with one that never comes at the end, and the streams that stand still."""
    streams, n = stream_start.size - 1, taken.size
    end = np.full(n + 1, -1, np.int64)
    at = stream_start[:-1].astype(np.int64)
    free = np.zeros(streams, np.int64)
    behind = np.full(streams, -1, np.int64)
    missing = member_start[1:] - member_start[:-1]
    came = np.zeros(missing.size, np.int64)
    stack = np.arange(streams - 1, -1, -1)
    height = streams
    # Of every stream at most one request waits for a link.
    asked, asked_by, requests = np.zeros(streams, np.int64), np.zeros(streams, np.int64), 0
    number = np.zeros(streams, np.int64)
    link_free = np.zeros(links, np.int64)
    shared = links > 0
    while True:
        while height > 0:
            height -= 1
            stream = stack[height]
            place, last, now = at[stream], stream_start[stream + 1], free[stream]
            if place < last and end[place] >= 0:
                # Ended by others: a collective, or what a link carried.
                now = end[place]
                place += 1
            while place < last:
                ready, still = now, -1
                for j in range(dep_start[place], dep_start[place + 1]):
                    ended = end[dep[j]]
                    if ended < 0:
                        still = dep[j]
                        break
                    ready = max(ready, ended)
                if still >= 0:
                    behind[stream] = end[still]
                    end[still] = -2 - stream
                    break
                meets = meeting[place]
                on_link = shared and link[place] >= 0
                if meets >= 0 or on_link:
                    behind[stream] = end[place]
                    end[place] = -2 - stream
                    if meets >= 0:
                        came[meets] = max(came[meets], ready)
                        ready = came[meets]
                        missing[meets] -= 1
                        if missing[meets] > 0:
                            break
                    if on_link:
                        number[stream] = asked_as[place]
                        _push(asked, asked_by, requests, ready, stream, number)
                        requests += 1
                    else:
                        for j in range(member_start[meets], member_start[meets + 1]):
                            height = _ends(member[j], ready + taken[place], end, behind, stack, height)
                    break
                now = ready + taken[place]
                height = _ends(place, now, end, behind, stack, height)
                place += 1
            at[stream], free[stream] = place, now
        if requests == 0:
            break
        place = at[asked_by[0]]
        time = max(asked[0], link_free[link[place]]) + taken[place]
        _drop_first(asked, asked_by, requests, number)
        requests -= 1
        link_free[link[place]] = time
        if meeting[place] < 0:
            height = _ends(place, time, end, behind, stack, height)
        else:
            for j in range(member_start[meeting[place]], member_start[meeting[place] + 1]):
                height = _ends(member[j], time, end, behind, stack, height)
    return end, np.flatnonzero(at < stream_start[1:])
