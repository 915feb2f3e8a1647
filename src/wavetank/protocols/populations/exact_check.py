"""Whether a population protocol decides a word: every run, not samples of them.

The configurations that a word can reach form a finite graph.  A globally fair run ends in a bottom strongly connected
component of it, so the protocol decides the word exactly if every bottom component that can be reached consists of
configurations in which all agents give one and the same answer.

Source: M. Blondin et al., "Population Protocols over Ordered Agents", arXiv 2605.09937, 2026; D. Angluin et al.,
"The computational power of population protocols", Distributed Computing 20(4), 2007.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.protocols.populations.interface import PopulationProtocol, relation_of


@dataclass(frozen=True)
class WordVerdict:
    """What every fair run from one word comes to.

    Attributes
    ----------
    word : tuple of str
    output : int
        0 or 1 when all fair runs end with that answer; -1 when some bottom component has no single answer, or two
        bottom components differ.
    configurations : int
        Reachable configurations.
    bottom_components : int
    witness : tuple of str
        States of a configuration in a bottom component that spoils the consensus; empty when ``output`` is 0 or 1.
    decided : bool
        False when the limit on configurations ended the search.
    """

    word: tuple[str, ...]
    output: int
    configurations: int
    bottom_components: int
    witness: tuple[str, ...] = ()
    decided: bool = True


@dataclass(frozen=True, kw_only=True)
class ExactCheck:
    """Decides single words by the graph of their configurations.

    Parameters
    ----------
    most_configurations : int
        The search ends undecided beyond this many.
    """

    most_configurations: int = 400_000

    def decide(self, protocol: PopulationProtocol, word: Sequence[str]) -> WordVerdict:
        """Return the verdict on one word.

        Raises
        ------
        BadValueError
            For a bad word, or one so long that its configurations cannot be numbered with 63 bits.
        """
        start = protocol.start(word).astype(np.int64)
        n, size = len(start), len(protocol)
        if n * math.log2(max(size, 2)) > 62:
            raise BadValueError(
                "The word is too long for the exact check.",
                given=f"{n} agents of {size} states",
                allowed=f"{int(62 / math.log2(max(size, 2)))} agents",
                where=protocol.name,
            )
        weights = size ** np.arange(n, dtype=np.int64)
        found = self._explore(protocol, start, weights)
        if found is None:
            return WordVerdict(tuple(word), -1, self.most_configurations, 0, decided=False)
        codes, sources, targets = found
        return _verdict(protocol, tuple(word), codes, sources, targets, weights)

    def _explore(
        self, protocol: PopulationProtocol, start: NDArray[np.int64], weights: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None:
        """Return codes of the reachable configurations and the edges between them (as indices), or None."""
        full, n = protocol.with_relations(), len(start)
        enabled, first, second = full.enabled, full.new_initiator, full.new_responder
        meetings = [(i, j, relation_of(i, j)) for i in range(n) for j in range(n) if i != j]
        known = np.array([start @ weights])
        frontier, edges = known, []
        while frontier.size:
            states = frontier[:, None] // weights % len(protocol)
            reached = []
            for i, j, relation in meetings:
                p, q = states[:, i], states[:, j]
                rows = np.flatnonzero(enabled[relation, p, q])
                if not rows.size:
                    continue
                p, q = p[rows], q[rows]
                targets = (
                    frontier[rows]
                    + (first[relation, p, q] - p) * weights[i]
                    + (second[relation, p, q] - q) * weights[j]
                )
                edges.append((frontier[rows], targets))
                reached.append(targets)
            if not reached:
                break
            fresh = np.unique(np.concatenate(reached))
            spots = np.minimum(np.searchsorted(known, fresh), known.size - 1)
            frontier = fresh[known[spots] != fresh]
            known = np.union1d(known, frontier)
            if known.size > self.most_configurations:
                return None
        if not edges:
            return known, np.zeros(0, np.int64), np.zeros(0, np.int64)
        sources = np.searchsorted(known, np.concatenate([edge[0] for edge in edges]))
        targets = np.searchsorted(known, np.concatenate([edge[1] for edge in edges]))
        return known, sources, targets


def _verdict(
    protocol: PopulationProtocol,
    word: tuple[str, ...],
    codes: NDArray[np.int64],
    sources: NDArray[np.int64],
    targets: NDArray[np.int64],
    weights: NDArray[np.int64],
) -> WordVerdict:
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    shape = (codes.size, codes.size)
    graph = csr_matrix((np.ones(sources.size, np.int8), (sources, targets)), shape=shape)
    components, component = connected_components(graph, directed=True, connection="strong")
    bottom = np.ones(components, bool)
    bottom[component[sources[component[sources] != component[targets]]]] = False
    members = np.flatnonzero(bottom[component])
    states = codes[members, None] // weights % len(protocol)
    ones = protocol.outputs[states].sum(axis=1)
    # Per configuration: 0, 1, or 2 for a split one.
    answers = np.where(ones == 0, 0, np.where(ones == len(word), 1, 2))
    if (answers == answers[0]).all() and answers[0] < 2:
        return WordVerdict(word, int(answers[0]), codes.size, int(bottom.sum()))
    spoiler = int(np.argmax(answers == 2)) if (answers == 2).any() else int(np.argmax(answers != answers[0]))
    witness = tuple(protocol.states[state] for state in states[spoiler])
    return WordVerdict(word, -1, codes.size, int(bottom.sum()), witness)


def words(letters: Sequence[str], longest: int, shortest: int = 1) -> list[tuple[str, ...]]:
    """Return all words over ``letters`` from length ``shortest`` to ``longest``, in length-lexicographic order."""
    return [word for length in range(shortest, longest + 1) for word in itertools.product(letters, repeat=length)]
