"""Failures of a job over a year, and what follows them: restarts that fail or hold, exclusions, and a human at last.

A job needs a number of nodes of a cluster that has a few more.  It breaks down for one of three reasons, drawn by
shares: a *disturbance* (storage, network) passes by itself after a while; a *bad node* breaks every run in which it
takes part until it was taken out and repaired; *software* needs a human.  A few nodes fail far more often than the
others and do so again after repair.  After a breakdown monitoring names suspects: the bad node, mostly, and innocent
ones.  A policy (:mod:`wavetank.insight.cluster.restart_policies`) decides what to exclude, how long to wait, and when
to call a human.  A chain is all attempts from a breakdown until the job runs or a human takes over; it succeeds if
nobody has to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wavetank.errors import BadValueError
from wavetank.sim.rng import stream

DISTURBANCE, NODE, SOFTWARE = "disturbance", "node", "software"
_HOUR_S = 3600.0
_MOST_ATTEMPTS = 1000


class Restart(NamedTuple):
    """What a policy decides after a failure.

    Attributes
    ----------
    wait_s : float
        Until the attempt.
    exclude : tuple of int
        Nodes that are taken out first.
    by_hand : bool
        Whether a human restarts the job: the first time in a chain after a reaction.
    call : bool
        Whether a human finds and removes the cause, in place of another attempt.
    """

    wait_s: float = 0.0
    exclude: tuple[int, ...] = ()
    by_hand: bool = False
    call: bool = False


class Failed(NamedTuple):
    """What a policy sees after a failure.

    Attributes
    ----------
    chain : int
        Number of the chain.
    attempt : int
        Restarts of this chain so far.
    suspects : tuple of int
        Nodes that monitoring names, the likeliest first; those that are out are not named.
    spares : int
        Nodes that the cluster can do without.
    """

    chain: int
    attempt: int
    suspects: tuple[int, ...]
    spares: int


class Operator(Protocol):
    """A policy at work: it may remember what happened."""

    def decide(self, failed: Failed) -> Restart:
        """Return what follows a failure."""


class RestartPolicy(Protocol):
    """Decides after failures."""

    def begin(self, nodes: int) -> Operator:
        """Return an operator that knows nothing yet."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A cluster and its troubles.

    Parameters
    ----------
    nodes, needed : int
        Nodes that there are, and that the job needs.
    days : float
    mtbf_s : float
        Mean time between troubles of all kinds, while all nodes are in, s.
    shares : tuple of float
        Of disturbances, bad nodes and software among the causes; they are scaled to 1.
    lemons : int
        Nodes that get ``lemon_share`` of the failures of nodes.
    lemon_share : float
    disturbance_s : float
        Longest disturbance, s; lengths are drawn evenly up to it.
    named : float
        Probability that monitoring names the bad node after a failure.
    innocent : float
        Probability that it names an innocent one, first or second by chance.
    reaction_s : float
        Median time until a human reacts, s; log-normal.
    fix_s : float
        Time in which a human finds the cause and removes it, s.
    repair_s : float
        Time for which an excluded node is away, s.
    restart_s : float
        From the decision until the job runs, or has failed again, s.
    """

    nodes: int = 63
    needed: int = 60
    days: float = 365.0
    mtbf_s: float = 36 * _HOUR_S
    shares: tuple[float, float, float] = (1.0, 1.0, 1.0)
    lemons: int = 3
    lemon_share: float = 0.6
    disturbance_s: float = 3600.0
    named: float = 0.9
    innocent: float = 0.5
    reaction_s: float = 900.0
    fix_s: float = 4 * _HOUR_S
    repair_s: float = 24 * _HOUR_S
    restart_s: float = 360.0

    def __post_init__(self) -> None:
        if not 3 <= self.needed <= self.nodes or not 0 <= self.lemons <= self.nodes:
            raise BadValueError("The job needs nodes that there are.", given=f"{self.needed} of {self.nodes}",
                                allowed="3 or more, at most all")  # fmt: skip
        if min(self.shares) < 0 or not 0 < sum(self.shares) < math.inf:
            raise BadValueError("Shares of causes are 0 or more, one of them above.", given=self.shares)
        times = (self.days, self.mtbf_s, self.disturbance_s, self.reaction_s, self.fix_s, self.repair_s, self.restart_s)
        if not all(0 < each < math.inf for each in times):
            raise BadValueError("Times are above 0 and finite.", given=times)
        if not all(0 <= each <= 1 for each in (self.lemon_share, self.named, self.innocent)):
            raise BadValueError("Probabilities lie between 0 and 1.",
                                given=(self.lemon_share, self.named, self.innocent))  # fmt: skip


class Outcome(NamedTuple):
    """What a run was.

    Attributes
    ----------
    chains, succeeded, attempts : int
    trained_s, total_s : float
        Time in which the job ran, and all time.
    excluded : ndarray of int64, shape (exclusions,)
        The nodes, in the order in which they were taken out.
    innocent : int
        Exclusions of nodes that were well.
    calls : int
        Times that a human was called or restarted the job.
    gaps_s : ndarray of float64
        Times for which the job ran between breakdowns.
    """

    chains: int
    succeeded: int
    attempts: int
    trained_s: float
    total_s: float
    excluded: NDArray[np.int64]
    innocent: int
    calls: int
    gaps_s: NDArray[np.float64]


class Trouble(NamedTuple):
    """One thing that breaks a job that runs.

    Attributes
    ----------
    number : int
    at_s : float
    cause : str
    node : int
        The one that turns bad, where the cause is a node.
    lasts_s : float
        For which a disturbance lasts.
    reaction_s : float
        After which a human reacts.
    """

    number: int
    at_s: float
    cause: str
    node: int
    lasts_s: float
    reaction_s: float


def troubles(site: Site, seed: int) -> list[Trouble]:
    """Return all troubles of the days of a site, in their order; no policy changes them.

    Parameters
    ----------
    site : Site
    seed : int
    """
    draws = stream(seed, "troubles")
    horizon_s = site.days * 86_400
    count = int(draws.poisson(horizon_s / site.mtbf_s))
    at_s = np.sort(draws.random(count)) * horizon_s
    causes = draws.choice(3, count, p=np.array(site.shares) / sum(site.shares))
    weights = np.full(site.nodes, (1 - site.lemon_share if site.lemons else 1.0) / site.nodes)
    if site.lemons:
        weights[draws.permutation(site.nodes)[: site.lemons]] += site.lemon_share / site.lemons
    nodes = draws.choice(site.nodes, count, p=weights / weights.sum())
    lasts_s = draws.random(count) * site.disturbance_s
    reaction_s = site.reaction_s * draws.lognormal(0.0, 1.0, count)
    return [
        Trouble(number, float(at_s[number]), (DISTURBANCE, NODE, SOFTWARE)[causes[number]], int(nodes[number]),
                float(lasts_s[number]), float(reaction_s[number]))
        for number in range(count)
    ]  # fmt: skip


def simulate(site: Site, policy: RestartPolicy, seed: int) -> Outcome:
    """Run a job through all troubles of a site; while it does not run, or to a node that is out, nothing happens.

    Parameters
    ----------
    site : Site
    policy : RestartPolicy
    seed : int
        Of troubles, and of what monitoring names after each attempt.
    """
    run = _Run(site, policy, seed)
    for trouble in troubles(site, seed):
        if trouble.at_s >= run.now_s and not (trouble.cause == NODE and run.is_out(trouble.node, trouble.at_s)):
            run.breaks(trouble)
    return run.outcome()


class _Run:
    def __init__(self, site: Site, policy: RestartPolicy, seed: int) -> None:
        self.site, self.seed = site, seed
        # Until when the job is known to have run, or to have stood still.
        self.now_s = self.trained_s = 0.0
        self.back_s: dict[int, float] = {}
        self.bad: set[int] = set()
        self.excluded: list[int] = []
        self.innocent = self.calls = self.chains = self.succeeded = self.attempts = 0
        self.gaps_s: list[float] = []
        self.operator = policy.begin(site.nodes)

    def is_out(self, node: int, at_s: float) -> bool:
        return self.back_s.get(node, 0.0) > at_s

    def breaks(self, trouble: Trouble) -> None:
        """Go through a chain, from a breakdown until the job runs again."""
        self.gaps_s.append(trouble.at_s - self.now_s)
        self.trained_s += trouble.at_s - self.now_s
        self.now_s = trouble.at_s
        if trouble.cause == NODE:
            self.bad.add(trouble.node)
        self.chains += 1
        attempt, somebody_there = 0, False
        while True:
            spares = self.site.nodes - len(self._out()) - self.site.needed
            restart = self.operator.decide(Failed(trouble.number, attempt, self._suspects(trouble, attempt), spares))
            if (restart.by_hand or restart.call) and not somebody_there:
                somebody_there = True
                self.calls += 1
                self.now_s += trouble.reaction_s
            self._exclude(restart.exclude)
            if restart.call:
                self.now_s += self.site.fix_s
                self._exclude(sorted(self.bad))
                self._wait_for_nodes()
                return
            self.now_s += restart.wait_s
            self._wait_for_nodes()
            disturbed = trouble.cause == DISTURBANCE and self.now_s < trouble.at_s + trouble.lasts_s
            self.now_s += self.site.restart_s
            self.attempts += 1
            attempt += 1
            if not (disturbed or trouble.cause == SOFTWARE or self.bad):
                self.succeeded += 1
                return
            if attempt >= _MOST_ATTEMPTS:
                raise BadValueError("The policy goes on for ever.", given=f"{attempt} attempts in a chain")

    def _out(self) -> list[int]:
        return [node for node, back_s in self.back_s.items() if back_s > self.now_s]

    def _suspects(self, trouble: Trouble, attempt: int) -> tuple[int, ...]:
        draws = stream(self.seed, "suspects", trouble.number, attempt)
        named, wrong, order = draws.random(3)
        innocent = int(draws.integers(self.site.nodes))
        found = [node for node in sorted(self.bad) if named < self.site.named]
        if wrong < self.site.innocent and innocent not in found and not self.is_out(innocent, self.now_s):
            found.insert(0 if order < 0.5 else len(found), innocent)
        return tuple(found)

    def _exclude(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            if self.is_out(node, self.now_s):
                continue
            self.back_s[node] = self.now_s + self.site.repair_s
            self.excluded.append(node)
            self.innocent += node not in self.bad
            self.bad.discard(node)

    def _wait_for_nodes(self) -> None:
        """Stand still until there are as many nodes as the job needs."""
        times = sorted(self.back_s[node] for node in self._out())
        short = self.site.needed - (self.site.nodes - len(times))
        if short > 0:
            self.now_s = times[short - 1]

    def outcome(self) -> Outcome:
        end_s = self.site.days * 86_400
        self.trained_s += max(0.0, end_s - self.now_s)
        return Outcome(
            self.chains, self.succeeded, self.attempts, self.trained_s, max(self.now_s, end_s),
            np.array(self.excluded, dtype=np.int64), self.innocent, self.calls, np.array(self.gaps_s),
        )  # fmt: skip


def gini(counts: ArrayLike) -> float:
    """Return the Gini coefficient of counts: 0 where all are alike, near 1 where one has everything.

    Parameters
    ----------
    counts : array, shape (n,)
        0 or more, of every node, those without any included.

    Raises
    ------
    BadValueError
        Without a count above 0, or with one below.
    """
    of = _counts(counts)
    rank = np.arange(1, of.size + 1)
    return float((2 * rank - of.size - 1) @ np.sort(of) / (of.size * of.sum()))


def top_share(counts: ArrayLike, first: int) -> float:
    """Return the share of the largest counts.

    Parameters
    ----------
    counts : array, shape (n,)
        0 or more.
    first : int
        How many of the largest.

    Raises
    ------
    BadValueError
        Without a count above 0, or with one below.
    """
    of = _counts(counts)
    if first < 1:
        raise BadValueError("The largest counts are one at least.", given=first)
    return float(np.sort(of)[::-1][:first].sum() / of.sum())


def _counts(counts: ArrayLike) -> NDArray[np.float64]:
    of = np.asarray(counts, np.float64).ravel()
    if not np.isfinite(of).all() or (of < 0).any() or not of.sum() > 0:
        raise BadValueError("Counts are 0 or more, one of them above.", given=f"{of.size} counts")
    return of
