"""Version vectors: descent decides, siblings are kept."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wavetank.protocols.filesync.applications import Put, Remove
from wavetank.protocols.filesync.vectors import covers, merged

VECTORS = st.dictionaries(st.integers(1, 4), st.integers(1, 5)).map(lambda found: tuple(sorted(found.items())))
CUT = [(20.0, 100.0, 2)]


@given(VECTORS, VECTORS, VECTORS)
def test_the_merge_is_the_least_vector_that_covers_both(one: Any, other: Any, third: Any) -> None:
    both = merged(one, other)
    assert covers(both, one)
    assert covers(both, other)
    if covers(third, one) and covers(third, other):
        assert covers(third, both)
    assert covers(one, other) == (merged(one, other) == one)


def test_two_edits_during_a_cut_are_both_shown(engines: Any, play: Any) -> None:
    edits = [(1, 1, Put("a", b"0")), (30, 1, Put("a", b"by one")), (60, 2, Put("a", b"by two"))]
    found = play(engines["vectors"], edits, cuts=CUT)
    assert found.damage.lost == frozenset()
    assert found.damage.conflict_copies == 1
    contents = {seen.content for seen in found.at_end[1].values()}
    assert contents == {b"by one", b"by two"}
    assert found.at_end[1].keys() == found.at_end[2].keys()


def test_a_wrong_clock_does_not_matter(engines: Any, play: Any) -> None:
    edits = [(10, 1, Put("a", b"first")), (30, 2, Put("a", b"second"))]
    found = play(engines["vectors"], edits, offsets=(0.0, -300.0))
    assert [files["a"].content for files in found.at_end.values()] == [b"second", b"second"]
    assert found.damage.conflict_copies == 0


def test_an_edit_wins_over_a_removal_that_did_not_know_it(engines: Any, play: Any) -> None:
    for removing, editing in ((1, 2), (2, 1)):
        commands = [(1, 1, Put("a", b"0")), (30, removing, Remove("a")), (40, editing, Put("a", b"edited"))]
        found = play(engines["vectors"], commands, cuts=CUT)
        assert [files["a"].content for files in found.at_end.values()] == [b"edited", b"edited"]
        assert found.damage.resurrected == frozenset()
        assert any("removed an earlier version" in notice.says for notice in found.notices)


def test_files_of_one_thing_can_still_be_torn(engines: Any) -> None:
    from wavetank.protocols.filesync.simulated import run_simulated
    from wavetank.protocols.filesync.workloads import Scenario

    found = run_simulated(engines["vectors"], Scenario(work="git", rounds=300, cuts=4), 1)
    assert found.damage.torn > 0
    assert found.damage.lost == frozenset()
