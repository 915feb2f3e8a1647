"""Dumps of torch's flight recorder: JSON and pickle say the same; what is none is refused."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
import random
import time
from pathlib import Path

import pytest

from wavetank.errors import BadFileError
from wavetank.workloads.flight_recorder import looks_like_recorder, rank_of, read_recorder


def entry(seq=1, name="gloo:all_reduce", group=("0", "default_pg"), **more):
    return {
        "record_id": seq - 1, "pg_id": 0, "process_group": group, "collective_seq_id": seq, "p2p_seq_id": 0,
        "op_id": seq, "profiling_name": name, "time_created_ns": 5, "input_sizes": [[8]], "input_dtypes": ["Float"],
        "output_sizes": [[8]], "output_dtypes": ["Float"], "state": "scheduled", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": True, "timeout_ms": 5000, "is_p2p": False, **more,
    }  # fmt: skip


def dump(*entries, ranks="[0, 1]"):
    return {
        "version": "2.10", "comm_lib_version": "", "pg_status": {}, "entries": list(entries),
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
    }  # fmt: skip


def test_json_pickle_and_gzip_are_the_same(tmp_path):
    value = dump(entry(2, retired=False), entry(1))
    (tmp_path / "fr_3.json").write_text(json.dumps(value))
    (tmp_path / "trace_3").write_bytes(pickle.dumps(value, 2))
    (tmp_path / "fr_3.json.gz").write_bytes(gzip.compress(json.dumps(value).encode()))
    one, two, three = (read_recorder(tmp_path / name) for name in ("fr_3.json", "trace_3", "fr_3.json.gz"))
    assert one == two == three
    assert (one.rank, one.groups, one.version) == (3, {"0": (0, 1)}, "2.10")
    assert [(call.collective_seq_id, call.done) for call in one.calls] == [(1, True), (2, False)]


def test_both_forms_are_known_by_their_begin():
    value = dump(entry())
    assert looks_like_recorder(json.dumps(value).encode()) and looks_like_recorder(pickle.dumps(value, 2))
    assert not looks_like_recorder(b'{"traceEvents": []}') and not looks_like_recorder(b"\x80\x02}.")
    assert not looks_like_recorder(b"")


def test_the_rank_is_the_number_at_the_end_of_the_name():
    names = ("trace_0", "fr_17.json", "rank5.pkl", "r12.json.gz", "nccl_trace_rank_3.pickle")
    assert [rank_of(Path(name)) for name in names] == [0, 17, 5, 12, 3]
    for name in ("trace", "7b", "x_99999999999"):
        with pytest.raises(BadFileError):
            rank_of(Path(name))


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("hostile-was-here",)


def test_a_hostile_pickle_is_refused_and_does_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace_0").write_bytes(pickle.dumps({**dump(entry()), "extra": Hostile()}, 2))
    with pytest.raises(BadFileError, match="not executed"):
        read_recorder(tmp_path / "trace_0")
    assert [each.name for each in tmp_path.iterdir()] == ["trace_0"]


@pytest.mark.parametrize(
    "value",
    [
        [], {}, {"entries": 3}, dump({"record_id": 1}), dump(entry(collective_seq_id=-5)), dump(entry(input_sizes="x")),
        dump(ranks="__import__('os').system('true')"), dump(ranks="[0, 0]"), dump(ranks="[-1]"), dump(ranks="{}"),
    ],
)  # fmt: skip
def test_what_is_no_dump_is_refused(tmp_path, value):
    for name, data in (("fr_0.json", json.dumps(value).encode()), ("trace_0", pickle.dumps(value, 2))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BadFileError):
            read_recorder(tmp_path / name)


def test_cut_off_and_absent_files_are_refused(tmp_path):
    data = json.dumps(dump(entry())).encode()
    for name, content in (("a_0", data[:-5]), ("b_0", b""), ("c_0", gzip.compress(data)[:-9]), ("d_0", b"\x80\x02")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadFileError):
            read_recorder(tmp_path / name)
    with pytest.raises(BadFileError):
        read_recorder(tmp_path / "none_0")


LEAVES = (None, True, 0, -1, -2, 2**62, 2**64, 1e308, "", "[0, 1]", "[16777215]", "gloo:send", [], {}, [[8]], "\ud800")


def places(value, path=()):
    """Yield the path of each part of a value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def changed(value, path, new):
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = changed(value[path[0]], path[1:], new)
    return copied


def fuzz(tmp_path, many, seed):
    """Change parts of dumps and bytes of files; anything but an error of the house is a failure of the test."""
    draws, path = random.Random(seed), tmp_path / "trace_1"
    base = dump(entry(1), entry(2, retired=False), entry(3, is_p2p=True, profiling_name="nccl:send"))
    every, slowest_s, read = list(places(base)), 0.0, 0
    for _ in range(many):
        value = base
        for _ in range(draws.choice((0, 1, 1, 2))):
            at = draws.choice(every)
            with contextlib.suppress(KeyError, IndexError, TypeError):
                value = changed(value, at, draws.choice(LEAVES))
        with contextlib.suppress(UnicodeEncodeError):
            data = bytearray(json.dumps(value).encode() if draws.random() < 0.5 else pickle.dumps(value, 2))
        for _ in range(draws.choice((0, 0, 1, 3))):
            data[draws.randrange(len(data))] = draws.randrange(256)
        path.write_bytes(data[: draws.randrange(len(data)) if draws.random() < 0.1 else None])
        begin_s = time.process_time()
        with contextlib.suppress(BadFileError):
            read_recorder(path)
            read += 1
        slowest_s = max(slowest_s, time.process_time() - begin_s)
    assert slowest_s < 2.0 and many // 20 < read < many // 2


def test_changed_dumps_are_read_or_refused(tmp_path):
    fuzz(tmp_path, 700, 1)


@pytest.mark.slow
def test_a_hundred_thousand_changed_dumps_are_read_or_refused(tmp_path):
    fuzz(tmp_path, 100_000, 2)
