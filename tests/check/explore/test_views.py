from __future__ import annotations

from wavetank.check.explore.environment import Environment
from wavetank.check.explore.explorer import explore
from wavetank.check.explore.system import System
from wavetank.check.explore.views import Views
from wavetank.protocols.exploration.two_phase_commit import ResourceManager, TwoPhaseCommit
from wavetank.sim.node import Node, Snapshot

PERSISTENT = Environment(channels="set")


def test_states_that_differ_in_what_nobody_reads_are_judged_once() -> None:
    calls = []

    def told(snapshot: Snapshot) -> bool:
        calls.append(snapshot)
        return bool(snapshot.decisions)

    found = explore(TwoPhaseCommit(), 6, environment=PERSISTENT, sometimes={"told": told})
    # The invariant reads the state of five resource managers: at most 4**5 views, times three of the manager.
    assert found.states == 8832
    assert len(calls) == found.judged < 3 * 4**5


def test_a_predicate_that_reads_a_field_late_is_still_right() -> None:
    def odd(snapshot: Snapshot) -> bool:
        if snapshot.nodes[1].state != "committed":  # type: ignore[attr-defined]
            return False
        return sum(snapshot.nodes[0].prepared) == 3  # type: ignore[attr-defined]

    def never(snapshot: Snapshot) -> bool:
        return odd(snapshot) and not all(snapshot.nodes[0].prepared[1:])  # type: ignore[attr-defined]

    for exact in (False, True):
        found = explore(TwoPhaseCommit(), 4, environment=PERSISTENT, sometimes={"odd": odd}, exact=exact)
        assert found.judgements[1].outcome == "holds"
        found = explore(TwoPhaseCommit(), 4, environment=PERSISTENT, sometimes={"never": never}, exact=exact)
        assert found.judgements[1].outcome == "violated"


def test_a_stand_in_is_of_the_nodes_class_and_shows_its_fields() -> None:
    seen = []

    def look(snapshot: Snapshot) -> str:
        node = snapshot.nodes[1]
        seen.append((isinstance(node, ResourceManager), type(node).__name__, vars(node).get("state")))
        return ""

    system = System(TwoPhaseCommit(), 2)
    views = Views(system, (), look)
    views.update()
    assert views.flags(system.initial) == 0
    assert seen == [(True, "ResourceManager", "working")]
    assert views.version == 1


def test_a_field_that_is_not_there_is_seen_too() -> None:
    def late(snapshot: Snapshot) -> bool:
        return hasattr(snapshot.nodes[1], "bored")

    class Bored(ResourceManager):
        def timer(self, name: str) -> None:
            super().timer(name)
            self.bored = True

    class Office(TwoPhaseCommit):
        def node(self, index: int, size: int) -> Node:
            return Bored() if index == 1 else super().node(index, size)

    found = explore(Office(), 3, sometimes={"late": late})
    assert found.judgements[1].outcome == "holds"


def test_flags_are_bits_in_the_order_of_the_predicates() -> None:
    predicates = [("yes", lambda snapshot: True), ("no", lambda snapshot: False), ("one", lambda snapshot: 1)]
    system = System(TwoPhaseCommit(), 2)
    views = Views(system, predicates, lambda snapshot: "")
    assert views.flags(system.initial) == 2 + 8
    broken = Views(system, (), lambda snapshot: "bad")
    assert broken.flags(system.initial) == 1
    assert broken.violation(system.initial) == "bad"
