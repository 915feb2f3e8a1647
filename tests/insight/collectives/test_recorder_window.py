"""Dumps together: who is in a group, what fits, who left no dump."""

from __future__ import annotations

import json

import pytest
from tests.workloads.test_flight_recorder import dump, entry

from wavetank.errors import BadFileError
from wavetank.insight.collectives.recorder_window import read_job


def written(folder, dumps):
    for rank, value in dumps.items():
        (folder / f"fr_{rank}.json").write_text(json.dumps(value))
    return folder


def test_a_folder_is_one_job(tmp_path):
    (tmp_path / "readme.txt").write_text("no dump")
    job = read_job(written(tmp_path, {0: dump(entry(1), entry(2, retired=False)), 1: dump(entry(1))}))
    assert job.dumped == (0, 1) and job.names == ("0",) and job.window.members[0].tolist() == [0, 1]
    assert job.window.frames.rank.tolist() == [0, 0, 1] and job.window.frames.done.tolist() == [True, False, True]
    assert job.calls[0, 0, 1] == "all_reduce of [[8]] to [[8]], Float"
    job.window.check()


def test_members_without_a_dump_and_calls_between_two_are_counted(tmp_path):
    job = read_job(written(tmp_path, {0: dump(entry(1), entry(2, name="nccl:send 0->1", is_p2p=True), ranks="[0, 4]")}))
    assert job.without_dump == (4,) and job.left_out == 1


def test_groups_that_are_not_said_are_those_who_call(tmp_path):
    value = {**dump(entry(1, group=("7", "x"))), "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}
    job = read_job(written(tmp_path, {0: value, 2: value}))
    assert job.names == ("7",) and job.window.members[0].tolist() == [0, 2]


def test_uneven_operations_are_alike_whatever_their_sizes(tmp_path):
    one, two = (dump(entry(1, name="nccl:all_to_all", input_sizes=[[many]])) for many in (3, 5))
    frames = read_job(written(tmp_path, {0: one, 1: two})).window.frames
    assert frames.op[0] == frames.op[1]


def test_dumps_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(BadFileError, match="agree"):
        read_job(written(tmp_path, {0: dump(entry(1)), 1: dump(entry(1), ranks="[1, 2]")}))
    (tmp_path / "fr_1.json").write_text(json.dumps(dump(entry(1))))
    (tmp_path / "other_0.json").write_text(json.dumps(dump(entry(1))))
    with pytest.raises(BadFileError, match="same rank"):
        read_job(tmp_path)


def test_a_folder_without_dumps_is_refused(tmp_path):
    with pytest.raises(BadFileError):
        read_job(tmp_path)
