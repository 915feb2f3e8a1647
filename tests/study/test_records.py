from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadFileError, RunFolderError
from wavetank.study.records import (
    COLUMNS,
    FinishedTrial,
    Record,
    RunLog,
    as_rows,
    canonical_at,
    json_number,
    read_log,
    read_parquet,
    write_parquet,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
RECORDS = st.builds(
    Record,
    study=TEXTS,
    system=TEXTS,
    seed=st.integers(0, 2**53),
    metric=TEXTS,
    value=st.floats(),
    unit=TEXTS,
    kind=TEXTS,
    at=st.dictionaries(TEXTS, st.one_of(TEXTS, st.floats(allow_nan=False, allow_infinity=False)), max_size=2),
)


def trial(number: int) -> FinishedTrial:
    at: dict[str, float | str] = {"x": number, "word": 'with } and "'}
    records = [
        Record("s", "a", number, "m", number / 3, "s", "counted", {}),
        Record("s", "a", number, "n", 1, "", "", at),
    ]
    return FinishedTrial(trial=f"a#{number}", wall_s=0.5, records=records)


def write(path: Path, trials: int) -> list[FinishedTrial]:
    log = RunLog(path)
    finished = [trial(number) for number in range(trials)]
    for done in finished:
        log.append(done)
    log.close()
    return finished


def same(one: Record, other: Record) -> bool:
    nan = math.isnan(one.value) and math.isnan(other.value)
    return (nan or one.value == other.value) and as_rows([one])[0] | {"value": 0} == as_rows([other])[0] | {"value": 0}


def test_a_log_cut_off_at_any_byte_loses_at_most_its_last_trial(tmp_path: Path) -> None:
    written = write(tmp_path / "whole.jsonl", 3)
    whole = (tmp_path / "whole.jsonl").read_bytes()
    for size in range(len(whole) + 1):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(whole[:size])
        ends = whole[:size].count(b"\n")
        for _ in range(2):
            log = RunLog(path)
            assert list(log.finished.values()) == written[:ends]
            log.close()
        log = RunLog(path)
        log.append(written[2])
        log.close()
        kept = written[:ends] if ends < 3 else written
        assert read_log(path)[:ends] == kept[:ends]
        assert read_log(path)[-1] == written[2]


@settings(max_examples=50)
@given(st.lists(RECORDS, max_size=4))
def test_every_record_survives_the_log(tmp_path_factory: pytest.TempPathFactory, records: list[Record]) -> None:
    path = tmp_path_factory.mktemp("log") / "records.jsonl"
    log = RunLog(path)
    log.append(FinishedTrial(trial="t", wall_s=1.0, records=records))
    log.close()
    (back,) = read_log(path)
    assert len(back.records) == len(records)
    assert all(map(same, back.records, records))


def test_every_record_survives_parquet(tmp_path: Path) -> None:
    path = tmp_path / "records.parquet"

    @settings(max_examples=30)
    @given(st.lists(RECORDS, max_size=3))
    def check(records: list[Record]) -> None:
        write_parquet(records, path)
        back = read_parquet(path)
        assert len(back) == len(records)
        assert all(map(same, back, records))

    check()
    assert [file.name for file in tmp_path.iterdir()] == ["records.parquet"]


def test_equal_records_give_equal_files(tmp_path: Path) -> None:
    records = [record for number in range(5) for record in trial(number).records]
    for name in ("one", "other"):
        write_parquet(records, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_no_record_is_a_file_too(tmp_path: Path) -> None:
    write_parquet([], tmp_path / "none.parquet")
    assert read_parquet(tmp_path / "none.parquet") == []


def test_the_order_of_coordinates_does_not_matter() -> None:
    assert canonical_at({"b": 1, "a": "x"}) == canonical_at({"a": "x", "b": 1}) == '{"a":"x","b":1}'


def test_json_has_a_word_for_every_number() -> None:
    assert [json_number(value) for value in (1.5, math.nan, math.inf, -math.inf)] == [1.5, None, "inf", "-inf"]


def test_a_damaged_line_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write(path, 2)
    path.write_bytes(b'{"trial": 3}\n' + path.read_bytes())
    for reader in (read_log, RunLog):
        with pytest.raises(BadFileError) as caught:
            reader(path)
        assert str(caught.value).startswith("A line of the run's records is damaged: ")
        assert caught.value.where == f"{path}, line 1"
        assert caught.value.hint == "remove that line to run its trial again with --resume"


def test_two_processes_cannot_write_the_same_run(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    log = RunLog(path)
    with pytest.raises(RunFolderError) as caught:
        RunLog(path)
    assert str(caught.value) == (
        f"This run is still going on in another process.\n  where: {path}\n  next: wait for it, or start a new run"
    )
    log.close()
    RunLog(path).close()


def test_a_log_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError) as caught:
        RunLog(tmp_path / "gone" / "records.jsonl")
    assert caught.value.problem.startswith("The run's records cannot be opened: ")


def test_a_full_disk_is_told_and_loses_nothing_that_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records.jsonl"
    log = RunLog(path)
    log.append(trial(0))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError) as caught:
        log.append(trial(1))
    log.close()
    assert str(caught.value) == (
        "A finished trial could not be recorded: No space left on device.\n  given: a#1\n"
        f"  where: {path}\n  next: the 1 trials before it are safe: make room, then repeat the command with "
        f"--resume {tmp_path}"
    )
    assert list(log.finished) == ["a#0"]
    assert read_log(path)[0] == trial(0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    words = ["-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if mount is None or subprocess.run([mount, *words], capture_output=True).returncode:
        pytest.skip("this user may not mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_really_full_keeps_what_was_recorded(small_disk: Path) -> None:
    path = small_disk / "records.jsonl"
    log = RunLog(path)
    recorded: list[FinishedTrial] = []
    with pytest.raises(RunFolderError, match="could not be recorded: No space left on device"):
        for number in range(10_000):
            log.append(trial(number))
            recorded.append(trial(number))
    log.close()
    assert recorded
    assert read_log(path) == recorded
    with pytest.raises(RunFolderError, match="could not be written as Parquet"):
        write_parquet([record for done in recorded for record in done.records], small_disk / "records.parquet")
    assert [file.name for file in small_disk.iterdir()] == ["records.jsonl"]
    again = RunLog(path)
    assert list(again.finished.values()) == recorded
    again.close()


def test_a_file_that_is_not_of_records_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.parquet"
    with pytest.raises(BadFileError) as caught:
        read_parquet(path)
    assert str(caught.value) == f"There is no such file of records.\n  given: {path}"
    path.write_text("PAR1 this is not")
    with pytest.raises(BadFileError, match=r"^This is not a file of records: "):
        read_parquet(path)
    with duckdb.connect() as connection:
        connection.sql("SELECT 1 AS study").write_parquet(str(path))
    with pytest.raises(BadFileError, match=r"^This is not a file of records: "):
        read_parquet(path)


def test_a_row_is_json_with_the_columns_of_the_file() -> None:
    (row, _) = as_rows(trial(1).records)
    assert tuple(row) == COLUMNS
    back: dict[str, Any] = json.loads(json.dumps(row))
    assert back == row
