"""A central registry: one node knows everything, and everything depends on it.

Nobody keeps a table, nothing is maintained, every question takes one hop: the least that a directory can cost, and a
single point of failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.protocols.overlays.directory import Directory, DirectoryNode
from wavetank.protocols.overlays.identifiers import ring_distance

_REGISTRY = 0


class RegistryNode(DirectoryNode):
    """A client of the registry, or, as node 0, the registry."""

    is_always_joined = True

    def answer(self, target: int) -> tuple[tuple[int, ...], bool]:
        """Return the registry."""
        return (_REGISTRY,), True

    def rank(self, node: int, target: int) -> int:
        """Return the distance on the ring; there is nothing to choose."""
        return ring_distance(self.ids[node], target)

    def learn(self, node: int) -> None:
        """Nobody else matters."""

    def forget(self, node: int) -> None:
        """There is no other registry."""
        self.suspected.pop(node, None)

    def known(self) -> set[int]:
        """Return the registry."""
        return {_REGISTRY} - {self.own}


@dataclass(frozen=True, kw_only=True)
class Registry(Directory):
    """A directory in one place; of the parameters, limits, periods of publication and timeouts matter."""

    def node(self, index: int, size: int) -> RegistryNode:
        """Return a new node."""
        return RegistryNode(self, index, size)

    def max_faults(self, size: int) -> int:
        """Return 0: without node 0 there is no directory."""
        return 0
