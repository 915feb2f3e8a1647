"""What the algorithms for directed networks have in common: their inputs, and what must hold of decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wavetank.settings import check_parameters, setting
from wavetank.sim.node import Snapshot, disagreement


@dataclass(frozen=True, kw_only=True)
class DigraphConsensus:
    """Consensus of nodes that each have an input, by default 0 or 1."""

    system: ClassVar[str]
    # The condition on the network, a word of :data:`~wavetank.protocols.digraphs.conditions.CONDITIONS` or "complete".
    condition: ClassVar[str]

    faults: int = setting(1, low=0, high=20, says="Byzantine nodes that the algorithm tolerates")
    inputs: tuple[int, ...] = setting((0, 1), low=0, high=1, says="Input of each node, repeated as needed")

    def __post_init__(self) -> None:
        check_parameters(type(self), vars(self), where=f"system {self.system}")

    def input_of(self, index: int) -> int:
        """Return the input of a node."""
        return self.inputs[index % len(self.inputs)] if self.inputs else 0

    def violation(self, snapshot: Snapshot) -> str:
        """Return how agreement or validity is broken among the correct nodes."""
        broken = disagreement(snapshot)
        inputs = {self.input_of(node) for node in snapshot.correct}
        for (node, _), value in snapshot.decisions.items():
            if not broken and node in snapshot.correct and len(inputs) == 1 and value not in inputs:
                broken = f"node {node} decided {value}, though every correct node began with {inputs.pop()}"
        return broken
