"""The timeline: the latest wins; what that costs, and what a careful one saves."""

from __future__ import annotations

from typing import Any

from wavetank.protocols.filesync.applications import Backup, Put
from wavetank.protocols.filesync.timeline import TimelineSync

CUT = [(20.0, 100.0, 2)]
FAR_APART = [(1, 1, Put("a", b"0")), (30, 1, Put("a", b"by one")), (60, 2, Put("a", b"by two"))]


def test_two_edits_during_a_cut_lose_exactly_one_update_silently(engines: Any, play: Any) -> None:
    found = play(engines["timeline"], FAR_APART, cuts=CUT)
    assert len(found.damage.lost) == len(found.damage.silent) == 1
    assert [files["a"].content for files in found.at_end.values()] == [b"by two", b"by two"]
    assert found.damage.conflict_copies == 0


def test_edits_close_in_time_are_shown_as_a_conflict(engines: Any, play: Any) -> None:
    near = [(1, 1, Put("a", b"0")), (30, 1, Put("a", b"by one")), (35, 2, Put("a", b"by two"))]
    found = play(engines["timeline"], near, cuts=CUT)
    assert found.damage.lost == frozenset()
    assert found.damage.conflict_copies == 1


def test_a_careful_timeline_shows_every_conflict(engines: Any, play: Any) -> None:
    found = play(engines["careful"], FAR_APART, cuts=CUT)
    assert found.damage.lost == frozenset()
    assert found.damage.conflict_copies == 1


def test_a_slow_clock_loses_an_edit_made_in_full_knowledge(engines: Any, play: Any) -> None:
    # Device 2 sees the first version and writes the next one; its clock is half a minute behind.
    edits = [(10, 1, Put("a", b"first")), (30, 2, Put("a", b"second"))]
    found = play(engines["timeline"], edits, offsets=(0.0, -30.0))
    assert len(found.damage.silent) == 1
    assert [files["a"].content for files in found.at_end.values()] == [b"first", b"first"]
    fair = play(engines["careful"], edits, offsets=(0.0, -30.0))
    assert fair.damage.lost == frozenset()


def test_a_device_that_starts_over_takes_the_clouds_copy(play: Any) -> None:
    edits = [(1, 1, Put("a", b"0")), (30, 2, Put("a", b"offline work"))]
    found = play(TimelineSync(reset_rounds=50), edits, cuts=[(20.0, 120.0, 2)])
    assert len(found.damage.silent) == 1
    assert found.at_end[2]["a"].content == b"0"


def test_without_room_contents_are_evicted_and_a_walked_backup_lacks_them(play: Any) -> None:
    engine = TimelineSync(reserve_bytes=2000)
    commands = [(10.0 * number, 1, Put(f"f{number}", bytes([number]) * 900)) for number in range(1, 9)]
    found = play(engine, [*commands, (150, 1, Backup())], disk_bytes=6000)
    assert any(seen.content is None for seen in found.at_end[1].values())
    assert found.damage.lost == frozenset()
    assert (found.damage.backups, found.damage.failed_restores) == (1, 1)


def test_an_evicted_file_comes_back_when_a_program_reads_it(play: Any) -> None:
    from wavetank.protocols.filesync.applications import Move

    engine = TimelineSync(reserve_bytes=2000)
    commands = [(10.0 * number, 1, Put(f"f{number}", bytes([number]) * 900)) for number in range(1, 9)]
    found = play(engine, [*commands, (150, 1, Move("f1", "g1"))], disk_bytes=6000)
    assert found.damage.lost == frozenset()
