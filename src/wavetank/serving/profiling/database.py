"""Where measured operations are kept: one SQLite file that several processes and several models share.

A signature is stored once, with what its operation is called with; results belong to a signature and the conditions
under which they were measured (processor, library, threads), so that a file can be carried between machines without
mixing them.  A sweep is one transaction: a process that is killed leaves all of it or nothing.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from wavetank.errors import BadFileError, unknown_name
from wavetank.serving.profiling.operations import Operation, canonical, checked

VERSION = 1
"""Of the tables; a file of another version is refused."""
_APPLICATION = 0x57544F50
_WAIT_S = 60.0
_HEAD = b"SQLite format 3\0"
_TABLES = (
    "CREATE TABLE signatures (signature TEXT PRIMARY KEY, operation TEXT NOT NULL, structure TEXT NOT NULL)",
    "CREATE TABLE results (signature TEXT NOT NULL REFERENCES signatures, conditions TEXT NOT NULL,"
    " tokens INTEGER NOT NULL, requests INTEGER NOT NULL, chunk INTEGER NOT NULL, past INTEGER NOT NULL,"
    " decodes INTEGER NOT NULL, context INTEGER NOT NULL, median_s REAL NOT NULL, mean_s REAL NOT NULL,"
    " min_s REAL NOT NULL, max_s REAL NOT NULL, std_s REAL NOT NULL, runs INTEGER NOT NULL, spent_s REAL NOT NULL,"
    " disturbed INTEGER NOT NULL,"
    " PRIMARY KEY (signature, conditions, tokens, requests, chunk, past, decodes, context))",
    "CREATE TABLE models (model INTEGER PRIMARY KEY, name TEXT NOT NULL, conditions TEXT NOT NULL,"
    " variant TEXT NOT NULL, step_s REAL NOT NULL, sequence_s REAL NOT NULL, UNIQUE (name, conditions, variant))",
    "CREATE TABLE model_operations (model INTEGER NOT NULL REFERENCES models ON DELETE CASCADE,"
    " signature TEXT NOT NULL REFERENCES signatures, count INTEGER NOT NULL, PRIMARY KEY (model, signature))",
    "CREATE TABLE collectives (model INTEGER NOT NULL REFERENCES models ON DELETE CASCADE, operation TEXT NOT NULL,"
    " elements TEXT NOT NULL, dtype TEXT NOT NULL, devices INTEGER NOT NULL, count INTEGER NOT NULL,"
    " PRIMARY KEY (model, operation, elements, dtype, devices))",
)


class Point(NamedTuple):
    """Where an operation is measured: what the request sets, 0 where the operation does not depend on it.

    ``context`` is that of each of ``decodes`` sequences, the token that is computed included; of an operation without
    sequences it is the sum over all of them.
    """

    tokens: int = 0
    requests: int = 0
    chunk: int = 0
    past: int = 0
    decodes: int = 0
    context: int = 0


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a measurement gave, s."""

    median_s: float
    mean_s: float
    min_s: float
    max_s: float
    std_s: float
    runs: int
    spent_s: float
    """All of it, warm-ups included."""
    disturbed: bool = False
    """Whether the machine was busy meanwhile: such a result serves until it is measured again."""

    @property
    def is_sound(self) -> bool:
        """Whether a measurement can have given it."""
        times = (self.median_s, self.mean_s, self.min_s, self.max_s)
        return (
            all(0 < each < math.inf for each in times) and self.min_s <= self.median_s <= self.max_s and self.runs > 0
        )


@dataclass(frozen=True, kw_only=True)
class ProfiledModel:
    """A model as it was profiled: how often a forward pass has each operation.

    Attributes
    ----------
    name, variant : str
        ``variant`` says type, back end and devices, in canonical JSON.
    counts : mapping of Operation to int
    step_s, sequence_s : float
        What a step takes beside its operations, and what each of its sequences adds to that; negative where operations
        that are called one by one take longer.
    collectives : mapping of (operation, elements, dtype, devices) to int
    """

    name: str
    variant: str
    counts: Mapping[Operation, int]
    step_s: float
    sequence_s: float
    collectives: Mapping[tuple[str, str, str, int], int]


class OperationDatabase:
    """An open database; a context manager that closes it.

    Parameters
    ----------
    path : str or Path
        The file; made with its folder if it does not exist.  ``":memory:"`` for this process alone.

    Raises
    ------
    BadFileError
        If the file is no such database, damaged, of another version, or cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        if self.path != ":memory:":
            self.path = str(Path(path).expanduser())
            try:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BadFileError("The folder cannot be made.", given=str(error), where=self.path) from error
            if Path(self.path).is_dir():
                raise BadFileError("The database is a folder.", where=self.path)
            _check_head(Path(self.path))
        with self._checked():
            self._connection = sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None)
        try:
            with self._checked():
                self._open()
        except BaseException:
            self._connection.close()
            raise

    def _open(self) -> None:
        run = self._connection.execute
        run(f"PRAGMA busy_timeout = {int(_WAIT_S * 1000)}")
        # Another process may be making the tables: who comes second finds them.
        run("BEGIN IMMEDIATE")
        try:
            (application,) = run("PRAGMA application_id").fetchone()
            (version,) = run("PRAGMA user_version").fetchone()
            (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
            if not tables and not application:
                for statement in _TABLES:
                    run(statement)
                run(f"PRAGMA application_id = {_APPLICATION}")
                run(f"PRAGMA user_version = {VERSION}")
            elif application != _APPLICATION:
                raise BadFileError("This database is not one of measured operations.", where=self.path)
            elif version != VERSION:
                raise BadFileError(
                    "The database is of another version.", given=version, allowed=str(VERSION), where=self.path,
                    hint="profile into a new file" if version < VERSION else "a newer Wavetank wrote it",
                )  # fmt: skip
        except BaseException:
            run("ROLLBACK")
            raise
        run("COMMIT")
        # What a writer has not finished is in a file beside this one, and readers go on meanwhile.
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run("PRAGMA foreign_keys = ON")
        ((answer,), *_) = run("PRAGMA quick_check(1)").fetchall()
        if answer != "ok":
            raise BadFileError(
                "The database is damaged.", given=answer, where=self.path, hint="profile into a new file"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise BadFileError("The database cannot be used.", given=str(error), where=self.path) from error
        except sqlite3.DatabaseError as error:
            raise BadFileError("The database is damaged, or no database.", given=str(error), where=self.path,
                               hint="move it away and profile again")  from error  # fmt: skip

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Do all that is inside, or nothing."""
        with self._checked():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def results(self, operation: Operation, conditions: str) -> dict[Point, Result]:
        """Return what was measured of an operation under these conditions.

        Raises
        ------
        BadFileError
            If what is there cannot have been measured.
        """
        columns = "tokens, requests, chunk, past, decodes, context"
        figures = "median_s, mean_s, min_s, max_s, std_s, runs, spent_s, disturbed"
        with self._checked():
            rows = self._connection.execute(
                f"SELECT {columns}, {figures} FROM results WHERE signature = ? AND conditions = ?",
                (operation.signature, conditions),
            ).fetchall()
        found = {}
        for row in rows:
            median, mean, least, most, std, runs, spent, disturbed = row[6:]
            result = Result(median_s=median, mean_s=mean, min_s=least, max_s=most, std_s=std, runs=runs,
                            spent_s=spent, disturbed=bool(disturbed))  # fmt: skip
            if not all(isinstance(each, int | float) for each in row) or not result.is_sound:
                raise BadFileError("A result is no time that was measured: the database is damaged.",
                                   given=row, where=f"{self.path}, {operation.name}")  # fmt: skip
            found[Point(*row[:6])] = result
        return found

    def missing(self, operation: Operation, conditions: str, points: Iterable[Point]) -> list[Point]:
        """Return the points at which an operation was not measured, or on a busy machine alone."""
        there = self.results(operation, conditions)
        return [point for point in points if point not in there or there[point].disturbed]

    def store(self, operation: Operation, conditions: str, measured: Mapping[Point, Result]) -> None:
        """Keep a sweep, all of it or nothing.  What was measured on a calm machine is not replaced by what was not."""
        with self._written():
            self._remember(operation)
            for point, result in measured.items():
                self._connection.execute(
                    "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                    " ON CONFLICT DO UPDATE SET median_s = excluded.median_s, mean_s = excluded.mean_s,"
                    " min_s = excluded.min_s, max_s = excluded.max_s, std_s = excluded.std_s, runs = excluded.runs,"
                    " spent_s = excluded.spent_s, disturbed = excluded.disturbed WHERE disturbed",
                    (operation.signature, conditions, *point, result.median_s, result.mean_s, result.min_s,
                     result.max_s, result.std_s, result.runs, result.spent_s, int(result.disturbed)),
                )  # fmt: skip

    def _remember(self, operation: Operation) -> None:
        self._connection.execute(
            "INSERT OR IGNORE INTO signatures VALUES (?, ?, ?)",
            (operation.signature, operation.name, operation.structure),
        )

    def link(self, model: ProfiledModel, conditions: str) -> None:
        """Keep which operations a model has, in place of what was kept under its name, variant and conditions."""
        run = self._connection.execute
        with self._written():
            run("DELETE FROM models WHERE name = ? AND conditions = ? AND variant = ?",
                (model.name, conditions, model.variant))  # fmt: skip
            key = run("INSERT INTO models (name, conditions, variant, step_s, sequence_s) VALUES (?, ?, ?, ?, ?)",
                      (model.name, conditions, model.variant, model.step_s, model.sequence_s)).lastrowid  # fmt: skip
            for operation, count in model.counts.items():
                self._remember(operation)
                run("INSERT INTO model_operations VALUES (?, ?, ?)", (key, operation.signature, count))
            for collective, count in model.collectives.items():
                run("INSERT INTO collectives VALUES (?, ?, ?, ?, ?, ?)", (key, *collective, count))

    def model(self, name: str, conditions: str, variant: str) -> ProfiledModel:
        """Return a model that was profiled.

        Raises
        ------
        UnknownNameError
            If none of that name was, under these conditions.
        """
        run = self._connection.execute
        with self._checked():
            row = run("SELECT model, step_s, sequence_s FROM models WHERE name = ? AND conditions = ? AND variant = ?",
                      (name, conditions, variant)).fetchone()  # fmt: skip
            if row is None:
                there = [each for (each,) in run("SELECT DISTINCT name FROM models").fetchall()]
                raise unknown_name("profiled model", name, there, where=self.path,
                                   hint="wavetank launch profile --model MODEL, on this machine")  # fmt: skip
            kept = run("SELECT signature, operation, structure, count FROM model_operations JOIN signatures"
                       " USING (signature) WHERE model = ? ORDER BY model_operations.rowid",
                       row[:1]).fetchall()  # fmt: skip
            together = run("SELECT operation, elements, dtype, devices, count FROM collectives WHERE model = ?",
                           row[:1]).fetchall()  # fmt: skip
        counts = {checked(operation, text, signature, self.path): count for signature, operation, text, count in kept}
        finite = all(isinstance(each, float) and math.isfinite(each) for each in row[1:])
        if not finite or min(counts.values(), default=0) < 1:
            raise BadFileError("What is kept of a model is damaged.", given=name, where=self.path)
        return ProfiledModel(name=name, variant=variant, counts=counts, step_s=row[1], sequence_s=row[2],
                             collectives={tuple(each[:4]): each[4] for each in together})  # fmt: skip

    def models(self) -> list[tuple[str, str, str]]:
        """Return name, conditions and variant of every model that was profiled."""
        with self._checked():
            return self._connection.execute("SELECT name, conditions, variant FROM models ORDER BY model").fetchall()

    def totals(self) -> dict[str, float]:
        """Return how much is kept: ``signatures``, ``results``, ``models``, and ``spent_s`` on measuring."""
        with self._checked():
            found = {table: self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                     for table in ("signatures", "results", "models")}  # fmt: skip
            (spent,) = self._connection.execute("SELECT total(spent_s) FROM results").fetchone()
        return {**found, "spent_s": spent}


def _check_head(path: Path) -> None:
    """Refuse a file that does not begin as a database does: SQLite takes a short one for an empty database."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_HEAD))
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadFileError("The database cannot be read.", given=str(error), where=str(path)) from error
    if head and head != _HEAD:
        raise BadFileError("The database is damaged, or no database.", given=repr(head), where=str(path),
                           hint="move it away and profile again")  # fmt: skip


def conditions_of(facts: Mapping[str, str]) -> str:
    """Return conditions as they are kept."""
    return canonical(dict(facts))
