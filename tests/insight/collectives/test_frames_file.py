"""Frames as JSON lines: written and read back, damage refused."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from tests.insight.collectives.test_ccl_d import JOB

from wavetank.errors import BadFileError
from wavetank.insight.collectives.frames_file import looks_like_frames, read_frames, write_frames
from wavetank.insight.collectives.job_model import Planted, simulated

SEEN = simulated(JOB, Planted(fault="H1", ranks=(13,), kind=0), np.random.default_rng(0), iterations=2)


def test_a_window_is_read_back_as_it_was_written(tmp_path):
    path = tmp_path / "job.jsonl"
    write_frames(path, SEEN)
    back = read_frames(path)
    assert all((a == b).all() for a, b in zip(back.frames, SEEN.frames, strict=True))
    assert (back.now_ns == SEEN.now_ns).all() and back.trees == SEEN.trees
    assert all((a == b).all() for a, b in zip(back.members, SEEN.members, strict=True))
    assert looks_like_frames(path.read_bytes()[:100]) and not looks_like_frames(b'{"a": 1}\n')


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 400}, {"rank": -1}, {"comm": 99}, {"seq": "x"}, {"entered_ns": 2**62}, {"posted": -1}, {"strange": 1},
        {"size": None},
    ],
)  # fmt: skip
def test_lines_that_are_no_frames_are_refused(tmp_path, change):
    path = tmp_path / "job.jsonl"
    write_frames(path, SEEN)
    lines = path.read_text().splitlines()
    lines[3] = json.dumps({**json.loads(lines[3]), **change})
    path.write_text("\n".join(lines))
    with pytest.raises(BadFileError):
        read_frames(path)


def test_damaged_files_end_in_an_error_and_nothing_else(tmp_path):
    path = tmp_path / "job.jsonl"
    write_frames(path, SEEN)
    data, draws = path.read_bytes(), random.Random(1)
    for content in (b"", b"\n", b"{}", data[:50], b"[" * 5000, data.replace(b"frames-1", b"frames-9")):
        path.write_bytes(content)
        with pytest.raises(BadFileError):
            read_frames(path)
    small = b"\n".join(data.split(b"\n")[:6])
    for _ in range(500):
        changed = bytearray(small)
        changed[draws.randrange(len(changed))] = draws.randrange(256)
        path.write_bytes(changed)
        try:
            read_frames(path)
        except BadFileError:
            continue
    with pytest.raises(BadFileError):
        read_frames(tmp_path / "none.jsonl")
