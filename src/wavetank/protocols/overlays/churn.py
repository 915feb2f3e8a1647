"""Churn: nodes come and go, alternating between up and down times drawn from exponential distributions.

The whole schedule follows from the seed and the node's number, not from what the algorithm draws: all systems compared
lose the same nodes at the same times, and an experimenter knows beforehand who will be up.  Nodes leave without a word
and come back with nothing but what they saved.

Source: P. Dazzi et al., arXiv 2605.11839, 2026; S. Rhea et al., "Handling Churn in a DHT", USENIX ATC 2004 (exponential
sessions, crash-stop, fresh tables).

Differs from the source:
1. Mean sessions of 10, 30 and 100 rounds are ours; the first source names no figures.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, ClassVar

from wavetank.errors import BadValueError
from wavetank.protocols.overlays.directory import PURPOSES, DirectoryNode
from wavetank.sim.faults import Behaviour, Fault, FaultyNode
from wavetank.sim.rng import Draws, stream_key

_MOST_CHANGES = 100_000


@dataclass(frozen=True, kw_only=True)
class Sessions(Fault):
    """Exponential up and down times.

    Parameters
    ----------
    mean_up, mean_down : float
        Rounds.
    until : float
        Rounds beyond which nothing changes any more.
    seed : int
        Of the schedule.
    """

    mean_up: float = 30.0
    mean_down: float = 30.0
    until: float = 1000.0
    seed: int = 0
    byzantine: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.mean_up > 0 or not self.mean_down > 0:
            raise BadValueError("Sessions and absences take time.", given=(self.mean_up, self.mean_down), allowed="> 0")

    def schedule(self, member: int) -> tuple[bool, tuple[float, ...]]:
        """Return whether a node is up at first, and when it goes or comes.

        Returns
        -------
        tuple of bool and tuple of float
            Changes in rounds, rising.
        """
        draws = Draws(stream_key(self.seed, "sessions", member))
        first = up = draws.chance(self.mean_up / (self.mean_up + self.mean_down))
        at = 0.0
        changes: list[float] = []
        while len(changes) < _MOST_CHANGES:
            # Whole rounds, so that a node goes and comes at the same time in rounds and as events.
            at += max(math.ceil(draws.exponential(self.mean_up if up else self.mean_down)), 1)
            if at > self.until:
                break
            changes.append(at)
            up = not up
        return first, tuple(changes)

    def behaviour(self, index: int, pool: dict[str, Any]) -> Behaviour:
        """Return the behaviour of one member."""
        up, changes = self.schedule(index)
        return _Coming(up, list(changes))


class Presence:
    """Who is up when, as the schedules say.

    Parameters
    ----------
    sessions : Sessions or None
        None for nodes that are always up.
    size : int
        Nodes.
    """

    def __init__(self, sessions: Sessions | None, size: int) -> None:
        members = frozenset(sessions.members) if sessions else frozenset()
        self._schedules = {
            node: sessions.schedule(node) if sessions and node in members else (True, ()) for node in range(size)
        }

    def up(self, node: int, at: float) -> bool:
        """Return whether a node is up at a time."""
        first, changes = self._schedules[node]
        return first == (bisect_right(changes, at) % 2 == 0)

    def stays(self, node: int, start: float, stop: float) -> bool:
        """Return whether a node is up from one time to another without a break."""
        _, changes = self._schedules[node]
        return self.up(node, start) and bisect_right(changes, start) == bisect_right(changes, stop)


@dataclass
class _Coming(Behaviour):
    up: bool
    changes: list[float] = field(default_factory=list)

    def start(self, node: FaultyNode) -> None:
        if not self.up:
            node.crash()
        self._arm(node)

    def _arm(self, node: FaultyNode) -> None:
        if self.changes:
            node.set_fault_timer(self, "change", max(self.changes.pop(0) - node.context.now, 1e-6))

    def timer(self, node: FaultyNode, name: str) -> None:
        if self.up:
            record_traffic(node.inner)
            node.crash()
        else:
            node.recover()
        self.up = not self.up
        self._arm(node)


def record_traffic(node: object) -> None:
    """Record what a node has sent before it is forgotten, as ``messages PURPOSE`` and ``bytes PURPOSE``."""
    if not isinstance(node, DirectoryNode):
        return
    for purpose, name in enumerate(PURPOSES):
        if node.sent[purpose]:
            node.context.record(f"messages {name}", node.sent[purpose])
            node.context.record(f"bytes {name}", node.sent_bytes[purpose])
