from __future__ import annotations

from wavetank.protocols.digraphs.signed_consensus import SignedConsensus
from wavetank.sim.node import Snapshot


def snapshot(decisions: dict[int, int]) -> Snapshot:
    return Snapshot((), frozenset(decisions), {(node, 0): value for node, value in decisions.items()}, {})


def test_inputs_are_repeated_when_there_are_more_nodes() -> None:
    assert [SignedConsensus(inputs=(0, 1, 1)).input_of(index) for index in range(5)] == [0, 1, 1, 0, 1]
    assert SignedConsensus(inputs=()).input_of(3) == 0


def test_disagreement_comes_before_broken_validity() -> None:
    zeros = SignedConsensus(inputs=(0,))
    assert zeros.violation(snapshot({0: 0, 1: 0})) == ""
    assert zeros.violation(snapshot({0: 1, 1: 1})) == "node 0 decided 1, though every correct node began with 0"
    assert "though" not in zeros.violation(snapshot({0: 0, 1: 1}))
    assert SignedConsensus(inputs=(0, 1)).violation(snapshot({0: 1, 1: 1})) == ""
