"""Probes: what is counted can be read from outside, also while or after the rank stands still; damage is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.insight.collectives.interface import NEVER
from wavetank.insight.collectives.probes import NoProbe, Probe, read_probe, read_probes


def one_operation(probe, seq=0):
    probe.launch(3, seq, 0, 4096, 4, 2)
    probe.enter()
    since = probe.posted()
    probe.sent(since, 1024)
    probe.received(since, 512)
    probe.looked()


def test_the_file_of_a_probe_is_whole_from_its_first_moment_on(tmp_path, monkeypatch):
    """Others look for it while it is made; half of it was read as damage."""
    path, write, seen = tmp_path / "frames", Path.write_bytes, []

    def slowly(self, data):
        write(self, data[:100])
        seen.append(path.exists())
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", slowly)
    Probe(path, 0).close()
    assert seen == [False] and [each.name for each in tmp_path.iterdir()] == ["frames"]
    assert read_probe(path).rank.size == 0


def test_an_open_operation_is_seen_while_it_runs(tmp_path):
    path = tmp_path / "frames"
    probe = Probe(path, 7, offset_ns=5_000_000_000_000)
    probe.launch(3, 0, 0, 4096, 4, 2)
    assert read_probe(path).entered.tolist() == [False]
    one_operation(probe, seq=1)
    seen = read_probe(path).chosen([1])
    assert [int(each[0]) for each in seen[:7]] == [7, 3, 1, 0, 4096, 4, 2]
    assert seen.entered[0] and not seen.done[0] and seen.polled_ns[0] >= seen.moved_ns[0] >= seen.entered_ns[0]
    assert (seen.posted[0], seen.received[0], seen.sent_bytes[0], seen.received_bytes[0]) == (1, 1, 1024, 512)
    assert seen.entered_ns[0] > 5_000_000_000_000 and abs(probe.now_ns() - seen.entered_ns[0]) < 10**10
    probe.end()
    done = read_probe(path).chosen([1])
    took = int(done.ended_ns[0] - done.entered_ns[0])
    assert 0 <= done.wait_ns[0] <= took and done.send_ns[0] >= 0
    probe.close()
    assert read_probe(path).done.tolist() == [False, True]


def test_the_newest_frames_are_kept_in_order(tmp_path):
    probe = Probe(tmp_path / "frames", 0, capacity=3)
    for seq in range(7):
        one_operation(probe, seq)
        probe.end()
    assert read_probe(tmp_path / "frames").seq.tolist() == [4, 5, 6]


def test_a_frame_begins_anew_where_an_old_one_stood(tmp_path):
    probe = Probe(tmp_path / "frames", 0, capacity=1)
    one_operation(probe)
    probe.end()
    probe.launch(0, 1, 1, 8, 2)
    seen = read_probe(tmp_path / "frames")
    assert seen.ended_ns.tolist() == seen.entered_ns.tolist() == [NEVER] and seen.posted.tolist() == [0]


def test_several_ranks_are_read_together(tmp_path):
    for rank in range(2):
        one_operation(Probe(tmp_path / str(rank), rank))
    assert read_probes([tmp_path / "0", tmp_path / "1"]).rank.tolist() == [0, 1]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: b"x" + data[1:],
                                    lambda data: data[:16] + b"\xff" * 8 + data[24:],
                                    lambda data: data[:24] + b"\xff" * 8 + data[32:]])  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = tmp_path / "frames"
    Probe(path, 0, capacity=2).close()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadFileError):
        read_probe(path)


def test_absent_files_and_capacities_that_are_none_are_refused(tmp_path):
    with pytest.raises(BadFileError):
        read_probe(tmp_path / "none")
    with pytest.raises(BadValueError):
        Probe(tmp_path / "frames", 0, capacity=0)


def test_no_probe_takes_all_calls_and_counts_nothing():
    probe = NoProbe()
    one_operation(probe)
    probe.end()
    assert probe.posted() == probe.now_ns() == 0
