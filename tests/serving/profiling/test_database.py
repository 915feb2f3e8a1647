"""The database: what is kept comes back, damage is refused, and several processes may write at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import BadFileError, UnknownNameError, WavetankError
from wavetank.serving.profiling.database import OperationDatabase, Point, ProfiledModel, Result, conditions_of
from wavetank.serving.profiling.operations import Operation, canonical

HERE = conditions_of({"device": "a processor", "threads": "1"})
VARIANT = canonical({"dtype": "float32"})


def operation(width: int = 64) -> Operation:
    tensors = [{"t": "float32", "d": [{"NUM_TOKS": 1}, 32]}, {"t": "float32", "d": [width, 32], "w": 1}]
    return Operation("aten.linear.default", canonical({"a": tensors}))


def result(seconds: float = 1e-3, **change: Any) -> Result:
    same: dict[str, Any] = dict.fromkeys(("median_s", "mean_s", "min_s", "max_s"), seconds)
    return Result(**{**same, "std_s": 0.0, "runs": 20, "spent_s": 0.1, **change})


def sweep(seconds: float = 1e-3, **change: Any) -> dict[Point, Result]:
    return {Point(tokens=n): result(seconds * n, **change) for n in (1, 2, 4)}


def model(**change: Any) -> ProfiledModel:
    given: dict[str, Any] = {
        "name": "mine", "variant": VARIANT, "counts": {operation(): 3, operation(128): 1}, "step_s": 1e-4,
        "sequence_s": -1e-6, "collectives": {("all_reduce", "[4]", "float32", 2): 5},
    }  # fmt: skip
    return ProfiledModel(**{**given, **change})


def test_what_was_kept_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "operations.sqlite"
    with OperationDatabase(path) as database:
        database.store(operation(), HERE, sweep())
        database.link(model(), HERE)
    with OperationDatabase(path) as database:
        assert database.results(operation(), HERE) == sweep()
        assert database.results(operation(), conditions_of({"device": "another"})) == {}
        assert database.model("mine", HERE, VARIANT) == model()
        assert database.models() == [("mine", HERE, VARIANT)]
        assert database.totals() == {"signatures": 2, "results": 3, "models": 1, "spent_s": pytest.approx(0.3)}


def test_only_points_that_are_absent_or_disturbed_are_missing() -> None:
    with OperationDatabase(":memory:") as database:
        points = [*sweep(), Point(tokens=8)]
        assert database.missing(operation(), HERE, points) == points
        database.store(operation(), HERE, sweep())
        database.store(operation(), HERE, {Point(tokens=8): result(disturbed=True)})
        assert database.missing(operation(), HERE, points) == [Point(tokens=8)]
        assert database.missing(operation(128), HERE, points) == points


def test_a_calm_result_replaces_a_disturbed_one_and_never_the_other_way() -> None:
    with OperationDatabase(":memory:") as database:
        for seconds, disturbed in ((3e-3, True), (2e-3, True), (1e-3, False), (5e-3, True), (6e-3, False)):
            database.store(operation(), HERE, {Point(tokens=1): result(seconds, disturbed=disturbed)})
        assert database.results(operation(), HERE)[Point(tokens=1)] == result(1e-3)


def test_a_model_that_is_profiled_again_takes_the_place_of_the_first() -> None:
    with OperationDatabase(":memory:") as database:
        database.link(model(), HERE)
        again = model(counts={operation(): 7}, collectives={})
        database.link(again, HERE)
        assert database.model("mine", HERE, VARIANT) == again
        with pytest.raises(UnknownNameError) as caught:
            database.model("min", HERE, VARIANT)
        assert caught.value.nearest == "mine"


def _foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()


def _newer(path: Path) -> None:
    OperationDatabase(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def _cut(path: Path) -> None:
    with OperationDatabase(path) as database:
        for width in range(200):
            database.store(operation(width), HERE, sweep())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _scrambled(path: Path) -> None:
    with OperationDatabase(path) as database:
        for width in range(200):
            database.store(operation(width), HERE, sweep())
    content = bytearray(path.read_bytes())
    content[4096 : len(content) - 4096] = os.urandom(len(content) - 8192)
    path.write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"not a database at all" * 100),
        lambda path: path.write_text("x"),
        lambda path: path.mkdir(),
        _foreign,
        _newer,
        _cut,
        _scrambled,
    ],
)
def test_a_file_that_is_no_such_database_is_refused_and_left_as_it_is(
    spoil: Callable[[Path], Any], tmp_path: Path
) -> None:
    path = tmp_path / "operations.sqlite"
    spoil(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(BadFileError) as caught:
        OperationDatabase(path)
    assert caught.value.where == str(path)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "operations.sqlite"
    path.touch()
    with OperationDatabase(path) as database:
        assert database.totals()["results"] == 0


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE results SET median_s = -1",
        "UPDATE results SET median_s = 'long'",
        "UPDATE results SET min_s = 1, median_s = 0.5",
        "UPDATE results SET runs = 0",
        "UPDATE results SET max_s = 9e999",
    ],
)
def test_a_result_that_nobody_measured_is_refused(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "operations.sqlite"
    with OperationDatabase(path) as database:
        database.store(operation(), HERE, sweep())
        database.link(model(counts={operation(): 1}), HERE)
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with OperationDatabase(path) as database, pytest.raises(BadFileError, match="damaged"):
        database.results(operation(), HERE)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE signatures SET structure = '{\"a\":[]}'",
        "UPDATE model_operations SET count = 0",
        "DELETE FROM model_operations",
        "UPDATE models SET step_s = 'x'",
    ],
)
def test_a_model_that_was_tampered_with_is_refused(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "operations.sqlite"
    with OperationDatabase(path) as database:
        database.link(model(counts={operation(): 1}), HERE)
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with OperationDatabase(path) as database, pytest.raises(BadFileError, match="damaged"):
        database.model("mine", HERE, VARIANT)


def test_a_sweep_that_fails_halfway_leaves_nothing() -> None:
    with OperationDatabase(":memory:") as database:
        bad = {**sweep(), Point(tokens=8): result(spent_s=None)}
        with pytest.raises(WavetankError):
            database.store(operation(), HERE, bad)
        assert database.results(operation(), HERE) == {}
        database.store(operation(), HERE, sweep())


def _write(path: str, first: int) -> None:
    with OperationDatabase(path) as database:
        for width in range(first, first + 25):
            database.store(operation(width), HERE, sweep())


def test_processes_that_open_and_write_one_file_at_once_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "operations.sqlite")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(path, first)) for first in (0, 10, 40)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    with OperationDatabase(path) as database:
        assert database.totals()["signatures"] == len({*range(25), *range(10, 35), *range(40, 65)})
        assert all(database.results(operation(width), HERE) == sweep() for width in (0, 34, 64))


def test_a_writer_that_is_killed_leaves_whole_sweeps(tmp_path: Path) -> None:
    path = tmp_path / "operations.sqlite"
    script = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from test_database import OperationDatabase, operation, sweep, HERE\n"
        "database = OperationDatabase(sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "for width in range(10**6):\n"
        "    database.store(operation(width), HERE, sweep())\n"
    )
    words = [sys.executable, "-c", script, str(path), str(Path(__file__).parent)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.3)
        writer.send_signal(signal.SIGKILL)
    with OperationDatabase(path) as database:
        written = int(database.totals()["signatures"])
        assert written > 0
        assert database.totals()["results"] == 3 * written
        assert all(database.results(operation(width), HERE) == sweep() for width in range(written))
