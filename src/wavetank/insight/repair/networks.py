"""Discrete Bayesian networks: tables by counts, exact inference, Markov blankets, interventions and free energy.

A network is a directed graph without cycles over variables with a few levels each, and one table a variable: how likely
each level is for every combination of its parents' levels.  Everything here is exact; what a blanket leaves out is
only what cannot matter where the rest is observed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError

Floats = NDArray[np.float64]
Levels = NDArray[np.int64]

MISSING = -1
"""The level of a variable that was not observed."""
_MOST_CELLS = 2**24


@dataclass(frozen=True, eq=False)
class Network:
    """A Bayesian network.

    Parameters
    ----------
    names : tuple of str
        Of the variables.
    parents : tuple of tuple of int
        Of each variable, as places in ``names``.
    tables : tuple of numpy.ndarray of float64
        Of each variable: probabilities, shape (levels of its first parent, ..., own levels).

    Raises
    ------
    BadValueError
        If the graph has a cycle, names a parent that does not exist, or a table is no table of probabilities.
    """

    names: tuple[str, ...]
    parents: tuple[tuple[int, ...], ...]
    tables: tuple[Floats, ...]

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.parents) == len(self.tables):
            raise BadValueError("Every variable has parents and a table.",
                                given=(len(self.names), len(self.parents), len(self.tables)))  # fmt: skip
        ordered(self.parents)
        levels = self.levels
        for name, parents, table in zip(self.names, self.parents, self.tables, strict=True):
            shape = (*(levels[each] for each in parents), table.shape[-1])
            if table.shape != shape or not (table >= 0).all() or not np.allclose(table.sum(-1), 1.0, atol=1e-9):
                raise BadValueError(f"The table of {name!r} is no table of probabilities for its parents' levels.",
                                    given=table.shape, allowed=str(shape))  # fmt: skip

    @functools.cached_property
    def levels(self) -> tuple[int, ...]:
        """How many levels each variable has."""
        return tuple(table.shape[-1] for table in self.tables)

    @functools.cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each variable."""
        return tuple(
            tuple(child for child, parents in enumerate(self.parents) if node in parents)
            for node in range(len(self.names))
        )

    def blanket(self, node: int) -> frozenset[int]:
        """Return the Markov blanket of a variable: parents, children, and other parents of children.

        Parameters
        ----------
        node : int
        """
        found = set(self.parents[node]) | set(self.children[node])
        for child in self.children[node]:
            found |= set(self.parents[child])
        return frozenset(found - {node})


def ordered(parents: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the variables with every parent before its children.

    Parameters
    ----------
    parents : sequence of sequence of int

    Raises
    ------
    BadValueError
        If there is a cycle, a parent that does not exist, or one that is named twice.
    """
    size, done, order = len(parents), set[int](), list[int]()
    for node, of in enumerate(parents):
        if len(set(of)) != len(of) or any(not 0 <= each < size or each == node for each in of):
            raise BadValueError("Parents are other variables of the network, each named once.", given=(node, tuple(of)))
    while len(order) < size:
        ready = [node for node in range(size) if node not in done and done.issuperset(parents[node])]
        if not ready:
            raise BadValueError("A Bayesian network has no cycle.", given=sorted(set(range(size)) - done))
        order += ready
        done.update(ready)
    return tuple(order)


def counted(
    names: Sequence[str], parents: Sequence[Sequence[int]], levels: Sequence[int], states: Levels, prior: float = 1.0
) -> Network:
    """Return the network whose tables are counts of observed states with a Dirichlet prior.

    Parameters
    ----------
    names : sequence of str
    parents : sequence of sequence of int
    levels : sequence of int
        How many levels each variable has.
    states : numpy.ndarray of int64, shape (cases, variables)
        Observed levels; :data:`MISSING` leaves a case out of the tables that need it.
    prior : float
        Added to every count; above 0.

    Raises
    ------
    BadValueError
        If a state is no level, or the prior is none.
    """
    wide = np.asarray(levels)
    if not prior > 0 or not math.isfinite(prior):
        raise BadValueError("A Dirichlet prior is a number above 0.", given=prior)
    if states.ndim != 2 or states.shape[1] != len(wide) or (states < MISSING).any() or (states >= wide).any():
        raise BadValueError("Every state is a level of its variable.", given=states.shape,
                            allowed=[str(each) for each in levels])  # fmt: skip
    tables = []
    for node, of in enumerate(parents):
        family = [*of, node]
        shape = tuple(int(wide[each]) for each in family)
        chosen = states[:, family]
        chosen = chosen[(chosen != MISSING).all(axis=1)]
        cells = np.ravel_multi_index(tuple(chosen.T), shape)
        table = np.bincount(cells, minlength=math.prod(shape)).reshape(shape) + prior
        tables.append(table / table.sum(-1, keepdims=True))
    return Network(tuple(names), tuple(tuple(each) for each in parents), tuple(tables))


def posterior(
    network: Network, query: Sequence[int], evidence: Mapping[int, int], *, within: Iterable[int] | None = None
) -> tuple[Floats, float]:
    """Return the joint distribution of some variables given others, and the logarithm of the evidence's probability.

    Variables are eliminated one after the other, least product first.

    Parameters
    ----------
    network : Network
    query : sequence of int
        Variables that are asked for, none of them observed.
    evidence : mapping of int to int
        Observed levels by variable.
    within : iterable of int, optional
        Variables whose tables are used; all by default.  Of variables that these tables name, and that are neither
        observed nor used, nothing is known: they must be among the used ones.

    Returns
    -------
    table : numpy.ndarray of float64, shape (levels of the first queried variable, ...)
    log_evidence : float
        In nats; of the used tables alone.

    Raises
    ------
    BadValueError
        If a level or a variable does not exist, evidence is impossible, or a product would not fit into memory.
    """
    levels = network.levels
    for node, level in evidence.items():
        if not 0 <= node < len(levels) or not 0 <= level < levels[node]:
            raise BadValueError("Evidence is a level of a variable.", given=(node, level))
    if len(set(query)) != len(query) or any(each in evidence or not 0 <= each < len(levels) for each in query):
        raise BadValueError("What is asked for is a variable that is not observed, named once.", given=tuple(query))
    used = range(len(levels)) if within is None else sorted(set(within))
    scale, factors = 0.0, list[tuple[tuple[int, ...], Floats]]()
    for node in used:
        family = (*network.parents[node], node)
        at = tuple(evidence.get(each, slice(None)) for each in family)
        free = tuple(each for each in family if each not in evidence)
        table = network.tables[node][at]
        if free:
            factors.append((free, table))
        elif table > 0:
            scale += math.log(table)
        else:
            raise BadValueError("These observations are impossible in the network.", given=network.names[node])
    hidden = {each for free, _ in factors for each in free} - set(query)
    while hidden:
        joint = {
            node: frozenset(each for free, _ in factors if node in free for each in free) for node in hidden
        }
        node = min(hidden, key=lambda each: (math.prod(levels[other] for other in joint[each]), each))
        touching = [each for each in factors if node in each[0]]
        kept = tuple(sorted(joint[node] - {node}))
        factors = [each for each in factors if node not in each[0]]
        table, log = _product(touching, kept, levels)
        scale += log
        if kept:
            factors.append((kept, table))
        else:
            scale += math.log(float(table))
        hidden.discard(node)
    table, log = _product(factors, tuple(query), levels)
    total = float(table.sum())
    if not total > 0:
        raise BadValueError("These observations are impossible in the network.", given=dict(evidence))
    return table / total, scale + log + math.log(total)


def _product(
    factors: Sequence[tuple[tuple[int, ...], Floats]], kept: tuple[int, ...], levels: Sequence[int]
) -> tuple[Floats, float]:
    """Return the product of factors summed to the kept variables, with its largest cell scaled to 1, and the scale."""
    joint = sorted({each for free, _ in factors for each in free} | set(kept))
    if math.prod(levels[each] for each in joint) > _MOST_CELLS:
        raise BadValueError("Exact inference would need a product that does not fit.", given=f"{len(joint)} variables",
                            allowed=f"{_MOST_CELLS} cells")  # fmt: skip
    table = np.ones([levels[each] for each in joint])
    for free, of in factors:
        order = np.argsort(free)
        table = table * of.transpose(order).reshape([levels[each] if each in free else 1 for each in joint])
    summed = table.sum(axis=tuple(place for place, each in enumerate(joint) if each not in kept))
    largest = float(np.max(summed))
    if not largest > 0:
        raise BadValueError("These observations are impossible in the network.", given=tuple(kept))
    rest = sorted(kept)
    return np.transpose(summed, [rest.index(each) for each in kept]) / largest, math.log(largest)


def blanket_posterior(network: Network, node: int, evidence: Mapping[int, int]) -> tuple[Floats, float]:
    """Return the distribution of one variable from its Markov blanket alone, and the log probability of what is used.

    Where the whole blanket is observed, this is the distribution given all other variables.  A member of the blanket
    that is not observed is summed over by its prior; its own other children are not asked.

    Parameters
    ----------
    network : Network
    node : int
    evidence : mapping of int to int
        Observed levels by variable; what lies outside of the blanket is not looked at.
    """
    children = [each for each in network.children[node] if each in evidence]
    used, open_ends = {node, *children}, [node, *children]
    while open_ends:
        for parent in network.parents[open_ends.pop()]:
            if parent not in evidence and parent not in used:
                used.add(parent)
                open_ends.append(parent)
    near = {each for one in used for each in (*network.parents[one], one)}
    return posterior(network, (node,), {each: level for each, level in evidence.items() if each in near}, within=used)


def intervened(network: Network, forced: Mapping[int, int]) -> Network:
    """Return the network after graph surgery: forced variables lose their parents and have one level.

    Parameters
    ----------
    network : Network
    forced : mapping of int to int
        Level by variable, as in do(X = x).

    Raises
    ------
    BadValueError
        If a level or a variable does not exist.
    """
    parents, tables = list(network.parents), list(network.tables)
    for node, level in forced.items():
        if not 0 <= node < len(parents) or not 0 <= level < network.levels[node]:
            raise BadValueError("A variable can be forced to one of its levels only.", given=(node, level))
        parents[node] = ()
        tables[node] = np.eye(network.levels[node])[level]
    return Network(network.names, tuple(parents), tuple(tables))


def free_energy(belief: Floats, network: Network, query: Sequence[int], evidence: Mapping[int, int]) -> float:
    """Return the variational free energy of a belief, E[ln belief - ln p(evidence, query)], in nats.

    The exact posterior has the least one, -ln p(evidence); any other belief has its divergence from it on top.

    Parameters
    ----------
    belief : numpy.ndarray of float64
        Joint distribution of the queried variables, shape as :func:`posterior` returns it.
    network : Network
    query : sequence of int
    evidence : mapping of int to int

    Raises
    ------
    BadValueError
        If the belief is no distribution of this shape.
    """
    exact, log_evidence = posterior(network, query, evidence)
    sums_to_one = math.isclose(float(belief.sum()), 1.0, abs_tol=1e-9)
    if belief.shape != exact.shape or not (belief >= 0).all() or not sums_to_one:
        raise BadValueError("A belief is a distribution over the queried variables.", given=belief.shape,
                            allowed=str(exact.shape))  # fmt: skip
    held = belief > 0
    if (exact[held] <= 0).any():
        return math.inf
    return float((belief[held] * (np.log(belief[held]) - np.log(exact[held]))).sum()) - log_evidence


def overlap(before: Floats, after: Floats, level: int) -> Floats:
    """Return how a variable would have turned out under other parents, given how it did turn out.

    Both tables are cut into pieces of one hidden number between 0 and 1, in the order of levels, so that its unknown
    cause keeps what the observation says of it (a twin network of monotone causes).

    Parameters
    ----------
    before : numpy.ndarray of float64, shape (levels,)
        Table of the variable under the parents as they were.
    after : numpy.ndarray of float64, shape (levels,)
        Under the parents as they would be.
    level : int
        What was observed.
    """
    edges = np.concatenate(([0.0], np.cumsum(before)))
    low, high = edges[level], edges[level + 1]
    ends = np.concatenate(([0.0], np.cumsum(after)))
    ends[-1] = 1.0
    if not high > low:
        return after
    shared = np.maximum(np.minimum(ends[1:], high) - np.maximum(ends[:-1], low), 0.0)
    total = float(shared.sum())
    return shared / total if total > 0 else after
