"""Snapshots and one head: two versions are shown, readers never see a torn thing."""

from __future__ import annotations

from typing import Any

import pytest

from wavetank.protocols.filesync.applications import Put
from wavetank.protocols.filesync.causal import CausalCloud, CausalSnapshotSync, Propose, Refused
from wavetank.protocols.filesync.simulated import run_simulated
from wavetank.protocols.filesync.workloads import Scenario

CUT = [(20.0, 100.0, 2)]


def test_two_edits_during_a_cut_are_both_shown(play: Any) -> None:
    edits = [(1, 1, Put("a", b"0")), (30, 1, Put("a", b"by one")), (60, 2, Put("a", b"by two"))]
    found = play(CausalSnapshotSync(), edits, cuts=CUT)
    assert found.damage.lost == frozenset()
    assert found.damage.conflict_copies == 1
    assert found.at_end[1].keys() == found.at_end[2].keys()


def test_an_answer_that_is_lost_makes_no_false_conflict(play: Any) -> None:
    edits = [(float(5 * number), 1, Put("a", b"%d" % number)) for number in range(1, 40)]
    for seed in range(5):
        found = play(CausalSnapshotSync(), edits, drop=0.4, seed=seed, until=600)
        assert found.damage.conflict_copies == 0
        assert found.at_end[2]["a"].content == b"39"


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_torn_or_left_different(seed: int) -> None:
    found = run_simulated(CausalSnapshotSync(), Scenario(rounds=300, cuts=4, devices=4), seed, drop=0.1).damage
    assert (len(found.lost), found.torn, found.torn_at_end, found.divergence_bytes) == (0, 0, (), 0)


def test_a_head_is_never_moved_to_what_is_not_whole() -> None:
    class Context:
        peers = (1,)
        now = 0.0
        sent: list[Any]

        def __init__(self) -> None:
            self.sent = []
            self.load = lambda key, default=None: default
            self.save = self.record = lambda *given: None

        def send(self, to: int, message: Any) -> None:
            self.sent.append(message)

    cloud, context = CausalCloud(CausalSnapshotSync()), Context()
    cloud.context = context  # type: ignore[assignment]
    cloud.start()
    cloud.receive(1, Propose(b"", b"nothing of this name", (b"junk",)))
    assert context.sent == [Refused(b"nothing of this name", True)]
    assert cloud.head == b""
