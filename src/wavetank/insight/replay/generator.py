"""Traces to share: what a job communicates, without its names, its model and the order of its calls.

A model is fitted to traces: the shares of kinds of communication with their group sizes, the bytes of each kind, how
often a kind follows itself, the durations of computation in between, and how often computation waits for
communication.  Traces drawn from it have the same shares to the last call, and the same bytes in distribution, in an
order of their own.

Bytes that occur often (at least ``MOST_RARE + 1`` times on a rank) are values of the source, and are kept: a
distribution that is a few points has no other that is near it.  All others come from a mixture of normal distributions
of their logarithm between the least and the most of the source.
With ``blur`` these values are moved, too: then the layers of a model cannot be read from them, and how far the sizes
are from the source's is the price.

Source: MLCommons Chakra, arXiv 2605.11333 (collective mix, Gaussian mixtures of sizes, group sizes, autocorrelation).

Differs from the source:

1. Shares are dealt out exactly and then put into an order, where draws one by one would stray by chance.
2. Of the order, the model keeps the probability that a kind follows itself, and nothing else.
3. All ranks of a group size call together, in groups of neighbours; ranks beyond the last whole group compute only.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadTraceError, BadValueError
from wavetank.sim.rng import stream
from wavetank.workloads.chakra import (
    SEND_NODE,
    ExecutionTrace,
    collective_of,
    duration_ns,
    group_of,
    in_order,
    is_collective,
    names_group,
    on_host,
    peer_of,
    size_of,
)
from wavetank.workloads.chakra_writing import made_node, made_trace
from wavetank.workloads.operations import COLLECTIVES

MOST_RARE = 2
"""Bytes that occur more often are values of the mixture; those that occur so rarely could show whose trace it is."""

MOST_NODES = 10_000_000
_FLOOR_LOG = 0.02
_COMPONENTS = 4
_ROUNDS = 60

Kind = tuple[str, int]
"""A collective and the size of its group, or ``send`` and how many ranks ahead it goes."""

_Floats = npt.NDArray[np.float64]
_Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A distribution of sizes: values with their shares, and normal distributions of the logarithm.

    Parameters
    ----------
    values, shares : tuple of int and of float
        Sizes that occur often, and how often.
    means, spreads, weights : tuple of float
        Of the logarithm of all others, and how often each component occurs; with ``shares`` they add up to 1.
    least, most : int
        Of the source; nothing else is drawn.
    """

    values: tuple[int, ...]
    shares: tuple[float, ...]
    means: tuple[float, ...]
    spreads: tuple[float, ...]
    weights: tuple[float, ...]
    least: int
    most: int

    @classmethod
    def fitted(cls, sizes: Sequence[int], *, copies: int = 1) -> Sizes:
        """Return the distribution of some sizes.

        Parameters
        ----------
        sizes : sequence of int
            One or more, from 0.
        copies : int
            How often each can be counted: once on every rank that takes part.
        """
        counts = Counter(sizes)
        rare = MOST_RARE * copies
        often = sorted(value for value, count in counts.items() if count > rare)
        rest = np.array([size for size in sizes if counts[size] <= rare], np.float64)
        means, spreads, weights = _mixture(np.log(np.maximum(rest, 1.0)))
        return cls(
            values=tuple(often), shares=tuple(counts[value] / len(sizes) for value in often), means=means,
            spreads=spreads, weights=tuple(weight * rest.size / len(sizes) for weight in weights),
            least=min(sizes), most=max(sizes),
        )  # fmt: skip

    def dealt(self, n: int, rng: np.random.Generator, blur: float = 0.0) -> _Longs:
        """Return ``n`` sizes, each share dealt out exactly, in random order.

        Parameters
        ----------
        n : int
        rng : Generator
        blur : float
            Standard deviation of the logarithm by which each value is moved.
        """
        moved = np.array([self._moved(value, rng, blur) for value in self.values], np.int64)
        counts = _quotas(np.array([*self.shares, *self.weights]), n)
        found = [np.repeat(moved, counts[: moved.size])]
        from scipy.special import ndtr, ndtri

        ends = np.log([max(self.least, 1), max(self.most, 1)])
        for mean, spread, count in zip(self.means, self.spreads, counts[moved.size :].tolist(), strict=True):
            # One from each of equal parts of the distribution between both ends: what is beyond them, put upon them,
            # would show the source's largest size, which may occur once.
            low, high = ndtr((ends - mean) / spread)
            at = low + (high - low) * (np.arange(count) + rng.random(count)) / max(count, 1)
            drawn = np.exp(mean + spread * ndtri(np.clip(at, 1e-9, 1 - 1e-9)))
            found.append(np.clip(np.rint(drawn), self.least, self.most).astype(np.int64))
        whole = np.concatenate(found)
        rng.shuffle(whole)
        return whole

    def _moved(self, value: int, rng: np.random.Generator, blur: float) -> int:
        return value if not blur else max(int(value * math.exp(blur * rng.standard_normal())), min(value, 1))


def _mixture(logs: _Floats) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Means, spreads and weights of a mixture of normal distributions, by expectation and maximisation."""
    if not logs.size:
        return (), (), ()
    k = max(1, min(_COMPONENTS, logs.size // 8))
    means = np.quantile(logs, (np.arange(k) + 0.5) / k)
    spreads, weights = np.full(k, max(logs.std() / k, _FLOOR_LOG)), np.full(k, 1.0 / k)
    for _ in range(_ROUNDS):
        density = weights * np.exp(-0.5 * ((logs[:, None] - means) / spreads) ** 2) / spreads
        belongs = density / np.maximum(density.sum(1, keepdims=True), 1e-300)
        mass = np.maximum(belongs.sum(0), 1e-9)
        means = (belongs * logs[:, None]).sum(0) / mass
        spreads = np.maximum(np.sqrt((belongs * (logs[:, None] - means) ** 2).sum(0) / mass), _FLOOR_LOG)
        weights = mass / mass.sum()
    return tuple(means.tolist()), tuple(spreads.tolist()), tuple(weights.tolist())


def _quotas(shares: _Floats, n: int) -> _Longs:
    """Whole numbers that add up to n, as near to the shares as can be; of equal rests the first is rounded up."""
    exact = shares / max(shares.sum(), 1e-300) * n
    counts: _Longs = np.floor(exact + 1e-9).astype(np.int64)
    missing = n - int(counts.sum())
    counts[np.argsort(-(exact - counts), kind="stable")[:missing]] += 1
    return counts


@dataclass(frozen=True, kw_only=True)
class TraceModel:
    """What is kept of the traces of a job.

    Parameters
    ----------
    ranks : int
    calls : int
        Communication of a rank, the mean over ranks.
    mix : mapping of (str, int) to float
        Share of each kind of communication.
    sizes : mapping of (str, int) to Sizes
    repeats : float
        How much oftener than by chance a kind follows itself: 0 by chance, 1 always.
    computing : Sizes or None
        Nanoseconds of computation before each communication.
    awaited : float
        Share of communication for which computation waits.
    """

    ranks: int
    calls: int
    mix: Mapping[Kind, float]
    sizes: Mapping[Kind, Sizes]
    repeats: float
    computing: Sizes | None
    awaited: float

    @classmethod
    def fitted(cls, traces: Sequence[ExecutionTrace], *, ranks: int | None = None) -> TraceModel:
        """Return the model of the traces of ranks 0, 1, ...

        Parameters
        ----------
        traces : sequence of ExecutionTrace
            Converted ones.
        ranks : int, optional
            How many ranks the job had, where not all have a trace; groups without known members are of all of them.

        Raises
        ------
        BadTraceError
            If nothing communicates, or a node has not what it needs.
        BadValueError
            For fewer ranks than traces.
        """
        ranks = len(traces) if ranks is None else ranks
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < len(traces):
            raise BadValueError("A job has as many ranks as traces, or more.", given=ranks,
                                allowed=f"{len(traces)} or more")  # fmt: skip
        sequences = communication(traces, ranks)
        flat = [call for calls in sequences for call in calls]
        if not flat:
            raise BadTraceError("Nothing in the traces communicates.", given=f"{len(traces)} traces",
                                where=traces[0].where if traces else None)  # fmt: skip
        counts = Counter(kind for kind, _ in flat)
        of: dict[Kind, list[int]] = {}
        for kind, size in flat:
            of.setdefault(kind, []).append(size)
        computing, awaited = _computing(traces)
        work = Sizes.fitted(computing, copies=len(traces)) if computing else None
        return cls(
            ranks=ranks, calls=max(1, round(len(flat) / len(traces))),
            mix={kind: count / len(flat) for kind, count in sorted(counts.items())},
            sizes={kind: Sizes.fitted(each, copies=len(traces)) for kind, each in sorted(of.items())},
            repeats=repeats_of(sequences), computing=work, awaited=awaited,
        )  # fmt: skip


def communication(traces: Sequence[ExecutionTrace], ranks: int | None = None) -> list[list[tuple[Kind, int]]]:
    """Return what each rank communicates, in its order: kind and bytes, 0 where they are not said.

    Receives are left out: each belongs to a send.

    Parameters
    ----------
    traces : sequence of ExecutionTrace
    ranks : int, optional
        How many ranks there are; by default one for each trace.
    """
    ranks = len(traces) if ranks is None else ranks
    members: dict[str, set[int]] = {}
    for rank, trace in enumerate(traces):
        for node in trace.nodes:
            if is_collective(node) and names_group(node):
                members.setdefault(group_of(node), set()).add(rank)
    found: list[list[tuple[Kind, int]]] = []
    for rank, trace in enumerate(traces):
        calls: list[tuple[Kind, int]] = []
        for node in in_order(trace):
            size = max(size_of(node, trace.where), 0)
            if is_collective(node):
                known = len(members[group_of(node)]) if names_group(node) else ranks
                # With the trace of one rank alone its groups have members that are not seen.
                calls.append(((collective_of(node, trace.where), known if len(traces) > 1 else ranks), size))
            elif node.type == SEND_NODE and not on_host(node):
                calls.append((("send", (peer_of(node, trace.where)[0] - rank) % ranks), size))
        found.append(calls)
    return found


def repeats_of(sequences: Sequence[Sequence[tuple[Kind, int]]]) -> float:
    """Return how much oftener than by chance a kind follows itself: 0 by chance or less, 1 always.

    Parameters
    ----------
    sequences : sequence of sequence
        As of :func:`communication`.
    """
    pairs = [(a[0], b[0]) for calls in sequences for a, b in itertools.pairwise(calls)]
    if not pairs:
        return 0.0
    counts = Counter(kind for calls in sequences for kind, _ in calls)
    total = sum(counts.values())
    chance = sum((count / total) ** 2 for count in counts.values())
    same = sum(a == b for a, b in pairs) / len(pairs)
    return 0.0 if chance >= 1 else float(min(max((same - chance) / (1 - chance), 0.0), 1.0))


def _computing(traces: Sequence[ExecutionTrace]) -> tuple[list[int], float]:
    """Nanoseconds of computation before each communication, and how often computation waits for one."""
    found, waited, calls = [], 0, 0
    for trace in traces:
        communicates = {
            node.id for node in trace.nodes if is_collective(node) or (node.type == SEND_NODE and not on_host(node))
        }
        awaited: set[int] = set()
        since = 0
        for node in in_order(trace):
            if node.id in communicates:
                found.append(since)
                since = 0
                calls += 1
                continue
            awaited |= communicates.intersection((*node.ctrl_deps, *node.data_deps))
            since += duration_ns(node)
        waited += len(awaited)
    return found, waited / calls if calls else 0.0


def generate(
    source: TraceModel | Sequence[ExecutionTrace],
    *,
    seed: int = 0,
    ranks: int | None = None,
    calls: int | None = None,
    blur: float = 0.0,
) -> tuple[ExecutionTrace, ...]:
    """Return traces that communicate as the source does, without its names and the order of its calls.

    Parameters
    ----------
    source : TraceModel or sequence of ExecutionTrace
    seed : int
        Equal seeds give equal traces.
    ranks : int, optional
        How many traces; by default as many as the source has.
    calls : int, optional
        Communication of each rank; by default as much as the source has.
    blur : float
        Standard deviation of the logarithm by which frequent sizes are moved, from 0 to 2.

    Raises
    ------
    BadValueError
        For numbers that are out of range, or a group that is larger than the ranks.
    BadTraceError
        As :meth:`TraceModel.fitted`.
    """
    model = source if isinstance(source, TraceModel) else TraceModel.fitted(source)
    ranks = model.ranks if ranks is None else ranks
    calls = model.calls if calls is None else calls
    for name, value, most in (("ranks", ranks, 1 << 16), ("calls", calls, MOST_NODES)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BadValueError(f"There is no such number of {name}.", given=value, allowed=f"1 to {most}", where=name)
    if ranks * calls > MOST_NODES:
        raise BadValueError("These are more calls than can be written.", given=f"{ranks} ranks, {calls} calls",
                            allowed=f"{MOST_NODES} in all")  # fmt: skip
    if not 0 <= blur <= 2:
        raise BadValueError("Sizes are moved by a share of themselves.", given=blur, allowed="0 to 2", where="blur")
    largest = max((size for name, size in model.mix if name != "send"), default=1)
    if ranks < largest or (ranks < 2 and any(name == "send" for name, _ in model.mix)):
        raise BadValueError("The source's groups have more members than there are ranks.", given=ranks,
                            allowed=f"{max(largest, 2)} or more", where="ranks")  # fmt: skip
    kinds = list(model.mix)
    order = _ordered(_quotas(np.array([model.mix[kind] for kind in kinds]), calls), model.repeats,
                     stream(seed, "trace-order"))  # fmt: skip
    sizes = np.zeros(calls, np.int64)
    for number, kind in enumerate(kinds):
        at = np.flatnonzero(order == number)
        sizes[at] = model.sizes[kind].dealt(at.size, stream(seed, "trace-sizes", number), blur)
    work = (
        model.computing.dealt(calls, stream(seed, "trace-work"))
        if model.computing is not None
        else np.zeros(calls, np.int64)
    )
    waits = stream(seed, "trace-waits").permutation(calls) < round(model.awaited * calls)
    program = [
        (kinds[which], size, took, wait)
        for which, size, took, wait in zip(order.tolist(), sizes.tolist(), work.tolist(), waits.tolist(), strict=True)
    ]
    return tuple(_rank_trace(rank, ranks, program) for rank in range(ranks))


def _ordered(counts: _Longs, repeats: float, rng: np.random.Generator) -> _Longs:
    """Numbers of kinds, each as often as it counts, a kind following itself with this probability beyond chance."""
    left, order, last = counts.copy(), np.empty(int(counts.sum()), np.int64), -1
    again, which = rng.random(order.size), rng.random(order.size)
    for i in range(order.size):
        if last < 0 or left[last] == 0 or again[i] >= repeats:
            last = int(np.searchsorted(np.cumsum(left), which[i] * (order.size - i), side="right"))
        order[i] = last
        left[last] -= 1
    return order


def _rank_trace(rank: int, ranks: int, program: Sequence[tuple[Kind, int, int, bool]]) -> ExecutionTrace:
    nodes: list[bytes] = []
    computed, behind = -1, list[int]()
    for number, ((name, span), size, took, wait) in enumerate(program):
        after = [*([computed] if computed >= 0 else []), *behind]
        computed, behind = len(nodes), []
        nodes.append(made_node(computed, "compute", "compute", after=after, duration_ns=took,
                               attributes={"is_cpu_op": False}))  # fmt: skip
        common: dict[str, int | float | bool | str] = {"is_cpu_op": False, "comm_size": size}
        if name == "send":
            ahead = span % ranks
            if ahead:
                to, by = (rank + ahead) % ranks, (rank - ahead) % ranks
                nodes.append(made_node(len(nodes), "send", "send", after=[computed],
                                       attributes=common | {"comm_dst": to, "comm_tag": number}))  # fmt: skip
                nodes.append(made_node(len(nodes), "receive", "receive", after=[computed],
                                       attributes=common | {"comm_src": by, "comm_tag": number}))  # fmt: skip
        elif rank < ranks // span * span:
            nodes.append(
                made_node(
                    len(nodes), name, "collective", after=[computed],
                    attributes=common | {"comm_type": COLLECTIVES.index(name), "pg_name": f"{span}-{rank // span}"},
                )
            )  # fmt: skip
        else:
            continue
        if wait:
            behind = [len(nodes) - 1]
    return made_trace(nodes)


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """How near generated traces are to their source.

    Parameters
    ----------
    chi_square, degrees, p_value : float, int, float
        Of the counts of kinds, against the source's shares; a p of 0.05 and less is a different mix.
    ks : float
        The largest distance between both distributions of bytes: over all calls.
    largest_ks : float
        The same of the kind with the largest distance, of kinds with at least 30 calls on both sides.
    repeats, source_repeats : float
        How much oftener than by chance a kind follows itself.
    """

    chi_square: float
    degrees: int
    p_value: float
    ks: float
    largest_ks: float
    repeats: float
    source_repeats: float


_FEW = 30


def likeness(source: Sequence[ExecutionTrace], made: Sequence[ExecutionTrace]) -> Likeness:
    """Return how near generated traces are to their source.

    Parameters
    ----------
    source, made : sequence of ExecutionTrace

    Raises
    ------
    BadTraceError
        If nothing communicates in one of them.
    """
    from scipy.stats import chi2

    before, after = communication(source), communication(made)
    one, other = ([call for calls in side for call in calls] for side in (before, after))
    if not one or not other:
        raise BadTraceError("Nothing in the traces communicates.", given=f"{len(one)} and {len(other)} calls")
    shares, counts = Counter(kind for kind, _ in one), Counter(kind for kind, _ in other)
    chi = math.inf if set(counts) - set(shares) else sum(
        (counts[kind] - expected) ** 2 / expected
        for kind, expected in ((kind, count / len(one) * len(other)) for kind, count in shares.items())
    )  # fmt: skip
    degrees = len(shares) - 1
    sizes: dict[Kind, tuple[list[int], list[int]]] = {}
    for side, calls in enumerate((one, other)):
        for kind, size in calls:
            sizes.setdefault(kind, ([], []))[side].append(size)
    enough = [each for each in sizes.values() if min(map(len, each)) >= _FEW]
    return Likeness(
        chi_square=chi, degrees=degrees, p_value=float(chi2.sf(chi, degrees)) if degrees else float(chi < 1e-9),
        ks=ks_distance([size for _, size in one], [size for _, size in other]),
        largest_ks=max((ks_distance(*each) for each in enough), default=0.0),
        repeats=repeats_of(after), source_repeats=repeats_of(before),
    )  # fmt: skip


def ks_distance(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the largest difference between two empirical distributions.

    Parameters
    ----------
    one, other : sequence of int
        One value or more.
    """
    a, b = np.sort(one), np.sort(other)
    at = np.concatenate((a, b))
    return float(np.abs(np.searchsorted(a, at, "right") / a.size - np.searchsorted(b, at, "right") / b.size).max())
