"""Requests of a recommender: who asks, with which history, and which embedding rows are looked up.

Users and rows are Zipf by rank; a trace is a row of segments, each with exponents, histories and a rate of its own.
Rows are taken in groups of neighbours in rank, so that a look-up stands for as many as a group has; which user a rank
is, and which group, is shuffled, and a share of the ranks is swapped every minute.  Look-ups are drawn from the seed
and the request's number alone: policies under which a request looks up more rows see the same first ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError, unknown_name
from wavetank.serving.memory.che import Floats, mean_service_s, zipf
from wavetank.serving.memory.costs import Node
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream, stream_key

REFERENCE_SHARE = 0.62
"""The boundary at which rates are set: the single one whose largest loss over the known regimes is least (23 %)."""
DEFAULT_LOAD = 0.75
CALM = 0.15
"""Rate between bursts, as a factor: a node that takes ten times its rate for half a minute is mostly idle."""
DEFAULT_TRANSITION = 0.5
# Steps in which one regime turns into the next.
_PARTS = 12
# Entries of the table that brings a draw close to its rank in one step.
_GUIDE = 4096


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stretch of traffic of one kind."""

    requests: int = setting(20_000, unit="requests", says="Length", low=1, high=10**8)
    row_exponent: float = setting(0.9, says="Zipf exponent of look-ups", low=0.0, high=5.0)
    user_exponent: float = setting(0.9, says="Zipf exponent of users", low=0.0, high=5.0)
    history: float = setting(8192.0, unit="tokens", says="Mean history at its beginning", low=1.0, high=1e6)
    history_end: float = setting(
        0.0, unit="tokens", says="Mean history at its end; 0: as at its beginning", low=0.0, high=1e6
    )
    surge: float = setting(1.0, says="Factor on the rate", low=1e-3, high=1e3)
    hot_share: float = setting(0.0, says="Share of the rows that takes half of all look-ups", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, eq=False)
class Traffic:
    """A trace that can be replayed.

    Attributes
    ----------
    node : Node
        Whose table and users it is for.
    group : int
        Rows that a look-up stands for.
    arrival_s : ndarray of float64, shape (requests,)
    user, segment : ndarray of int64, shape (requests,)
    history : ndarray of float64, shape (requests,)
        Tokens of the user's history.
    segments : tuple of Segment
    cumulative : ndarray of float64, shape (segments, groups)
        Distribution of the rank of a looked-up group.
    guide : ndarray of int64, shape (segments, 4097)
        Rank at which the distribution passes each 4096th part.
    order : ndarray of int64, shape (groups,)
        Which group each rank is at the beginning.
    swaps : ndarray of int64, shape (swaps, 3)
        Request from which on two ranks are exchanged.
    key : int
        Of the look-ups' random numbers.
    """

    node: Node
    group: int
    arrival_s: Floats
    user: npt.NDArray[np.int64]
    segment: npt.NDArray[np.int64]
    history: Floats
    segments: tuple[Segment, ...]
    cumulative: Floats
    guide: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    swaps: npt.NDArray[np.int64]
    key: int

    def __len__(self) -> int:
        return len(self.arrival_s)

    @cached_property
    def hot(self) -> Floats:
        """Share of the rows that takes half of the look-ups, by segment."""
        return np.array([each.hot_share for each in self.segments])


def make_traffic(
    segments: Sequence[Segment],
    node: Node,
    seed: int,
    *,
    load: float = DEFAULT_LOAD,
    group: int = 1024,
    swaps_per_minute: float = 0.0,
    spread: float = 0.2,
) -> Traffic:
    """Return a trace.

    Parameters
    ----------
    segments : sequence of Segment
    node : Node
    seed : int
    load : float, default 0.75
        Share of the time in which the node is busy where it has the reference boundary and a segment's surge is 1.
    group : int, default 1024
        Neighbours in rank that are looked up as one.
    swaps_per_minute : float, default 0
        Share of the ranks that is exchanged with others per minute.
    spread : float, default 0.2
        Histories of users are uniform within this share of the mean.

    Raises
    ------
    BadValueError
        If there is no segment, or a number is out of range.
    """
    if not segments or not 0 < load < 10 or not 1 <= group <= node.rows or not 0 <= spread < 1:
        raise BadValueError(
            "This traffic is ill defined.", given=f"{len(segments)} segments, load {load}, groups of {group}, "
            f"spread {spread}", allowed="segments, a load above 0, groups of 1 up to the table's rows, spread below 1",
        )  # fmt: skip
    if not 0 <= swaps_per_minute <= 1:
        raise BadValueError("Ranks cannot be swapped so often.", given=swaps_per_minute, allowed="0 to 1 per minute")
    draws = stream(seed, "traffic")
    factor = 1 + spread * draws.uniform(-1, 1, node.users)
    who = draws.permutation(node.users)
    arrivals, users, histories, numbers = [], [], [], []
    clock = 0.0
    for index, each in enumerate(segments):
        n = each.requests
        mean = np.linspace(each.history, each.history_end or each.history, n)
        user = who[np.searchsorted(np.cumsum(zipf(node.users, each.user_exponent)), draws.random(n), side="right")
                   .clip(max=node.users - 1)]  # fmt: skip
        # The rate follows the histories, as a fleet that is scaled with its work does.
        knots = np.linspace(0, n - 1, 8).astype(int) if each.history_end else np.array([0])
        service = np.interp(np.arange(n), knots, [
            mean_service_s(node, REFERENCE_SHARE, each.row_exponent, each.user_exponent, float(mean[k])) for k in knots
        ])  # fmt: skip
        gaps = draws.exponential(1.0, n) * service / (load * each.surge)
        arrivals.append(clock + np.cumsum(gaps))
        clock = float(arrivals[-1][-1])
        users.append(user)
        histories.append(np.maximum(mean * factor[user], 1.0))
        numbers.append(np.full(n, index))
    arrival_s = np.concatenate(arrivals)
    groups = -(-node.rows // group)
    tables = [_ranks(node.rows, each.row_exponent, group) for each in segments]
    return Traffic(
        node=node, group=group, arrival_s=arrival_s, user=np.concatenate(users).astype(np.int64),
        segment=np.concatenate(numbers).astype(np.int64), history=np.concatenate(histories), segments=tuple(segments),
        cumulative=np.array([table for table, _ in tables]), guide=np.array([guide for _, guide in tables]),
        order=draws.permutation(groups).astype(np.int64), swaps=_swaps(arrival_s, groups, swaps_per_minute, draws),
        key=stream_key(seed, "look-ups") >> 11,
    )  # fmt: skip


@lru_cache(maxsize=512)
def _ranks(rows: int, exponent: float, group: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    cumulative = np.cumsum(zipf(rows, exponent, group))
    cumulative[-1] = 1.0
    guide = np.searchsorted(cumulative, np.arange(_GUIDE + 1) / _GUIDE, side="left").clip(max=len(cumulative) - 1)
    return cumulative, guide.astype(np.int64)


def _swaps(arrival_s: Floats, groups: int, per_minute: float, draws: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return exchanges of ranks, spread evenly over time."""
    count = round(float(arrival_s[-1]) / 60 * per_minute * groups / 2)
    if not count:
        return np.zeros((0, 3), dtype=np.int64)
    when = np.searchsorted(arrival_s, (np.arange(count) + 0.5) * arrival_s[-1] / count)
    return np.column_stack((when, draws.integers(0, groups, (count, 2)))).astype(np.int64)


KNOWN = {
    "steady": (0.9, 0.9, 8192.0),
    "long": (0.9, 0.9, 15_000.0),
    "hot-rows": (1.2, 0.9, 8192.0),
    "flat-users": (0.9, 0.2, 8192.0),
    "hot-users": (0.9, 1.3, 8192.0),
    "short": (0.7, 1.1, 3000.0),
}
"""Regimes that policies are trained and tuned on: exponents of rows and of users, tokens of histories."""

UNSEEN = {
    "steady-2": (0.8, 1.0, 6000.0),
    "long-2": (1.0, 0.8, 12_000.0),
    "hot-rows-2": (1.3, 0.7, 10_000.0),
    "flat-users-2": (0.85, 0.35, 6000.0),
    "hot-users-2": (0.75, 1.4, 10_000.0),
    "short-2": (0.6, 1.2, 4000.0),
}
"""Regimes that policies are scored on and were never trained on."""


SCENARIOS = ("mix", "steady", "trend", "burst")
"""What policies are compared on."""


def regime(name: str, requests: int) -> Segment:
    """Return a segment of a known or unseen regime.

    Parameters
    ----------
    name : str
    requests : int

    Raises
    ------
    UnknownNameError
        If there is no such regime.
    """
    known = {**KNOWN, **UNSEEN}
    if name not in known:
        raise unknown_name("traffic regime", name, known)
    rows, users, history = known[name]
    return Segment(requests=requests, row_exponent=rows, user_exponent=users, history=history)


def switching(
    seed: int, requests: int, segments: int, *, unseen: bool, transition: float = DEFAULT_TRANSITION
) -> tuple[Segment, ...]:
    """Return segments of regimes in random order, none twice in a row, each of which turns into the next.

    Parameters
    ----------
    seed : int
    requests : int
        Of each regime.
    segments : int
        Regimes in a row.
    unseen : bool
        Whether regimes are those that policies are scored on.
    transition : float, default 0.5
        Share of a regime's requests over which exponents and histories go from its own to the next one's; 0 for a jump.

    Raises
    ------
    BadValueError
        If there is no regime, or more than a regime's requests are to turn into the next.
    """
    if segments < 1 or not 0 <= transition <= 1:
        raise BadValueError("These regimes are ill defined.", given=f"{segments} regimes, transition {transition}",
                            allowed="one regime or more, a transition from 0 to 1")  # fmt: skip
    draws = stream(seed, "regimes")
    names = list(UNSEEN if unseen else KNOWN)
    chosen: list[str] = []
    while len(chosen) < segments:
        round_ = [names[i] for i in draws.permutation(len(names))]
        if chosen and round_[0] == chosen[-1]:
            round_ = [*round_[1:], round_[0]]
        chosen += round_
    found = []
    for name, following in zip(chosen[:segments], [*chosen[1:segments], None], strict=True):
        here = regime(name, requests)
        moving = round(requests * transition) if following is not None else 0
        if requests > moving:
            found.append(replace(here, requests=requests - moving))
        if following is not None and moving >= _PARTS:
            there = regime(following, requests)
            found += [_between(here, there, (part + 0.5) / _PARTS, moving // _PARTS) for part in range(_PARTS)]
    return tuple(found)


def _between(one: Segment, other: Segment, share: float, requests: int) -> Segment:
    """Return a segment that has gone a share of the way from one regime to another."""
    names = ("row_exponent", "user_exponent", "history")
    way = {name: (1 - share) * getattr(one, name) + share * getattr(other, name) for name in names}
    return Segment(requests=requests, **way)


def scenario(
    name: str, seed: int, requests: int, transition: float = DEFAULT_TRANSITION
) -> tuple[tuple[Segment, ...], float]:
    """Return the segments of a named scenario, and the share of ranks that is swapped per minute.

    Parameters
    ----------
    name : str
        ``steady``, ``trend`` (histories from 3,000 to 15,000 tokens while ranks are swapped), ``burst`` (half a minute
        each of 3 to 10 times the rate, in which 5 % of the rows take half of the look-ups), ``mix`` (unseen regimes
        that switch) or ``training`` (known regimes that switch).
    seed : int
    requests : int
        In all, roughly.
    transition : float, default 0.5
        Of ``mix`` and ``training``: see :func:`switching`.

    Raises
    ------
    UnknownNameError
        If there is no such scenario.
    """
    if name not in (*SCENARIOS, "training"):
        raise unknown_name("traffic scenario", name, (*SCENARIOS, "training"))
    if name == "steady":
        return (Segment(requests=requests, row_exponent=0.8, user_exponent=1.0, history=6000.0),), 0.0
    if name == "trend":
        return (Segment(requests=requests, history=3000.0, history_end=15_000.0),), 0.01
    if name == "burst":
        draws = stream(seed, "bursts")
        kind = Segment(row_exponent=0.8, user_exponent=1.0, history=6000.0)
        calm = replace(kind, requests=max(requests // 5, 1), surge=CALM)
        found = [calm]
        for _ in range(4):
            surge = CALM * float(draws.uniform(3, 10))
            rate = DEFAULT_LOAD * surge / mean_service_s(Node(), REFERENCE_SHARE, 0.8, 1.0, 6000.0)
            found += [replace(kind, requests=math.ceil(30 * rate), surge=surge, hot_share=0.05), calm]
        return tuple(found), 0.0
    return switching(seed, max(requests // 6, 1), 6, unseen=name == "mix", transition=transition), 0.0
