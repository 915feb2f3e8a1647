"""Records: measured rows.  One JSON line a finished trial while a study runs, Parquet after; DuckDB reads them.

A record says what kind of figure it is, because kinds are never mixed in one comparison:

========== ===================================================
measured   seconds (or bytes) of a real run on this machine
counted    bytes, rounds, instructions, steps: exact
simulated  out of the event model
modelled   out of a formula
========== ===================================================
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from wavetank.errors import BadFileError, RunFolderError

KINDS = ("measured", "counted", "simulated", "modelled")
COLUMNS = ("study", "system", "seed", "metric", "value", "unit", "kind", "at")


class Record(msgspec.Struct, frozen=True):
    """One figure.

    Attributes
    ----------
    study, system : str
    seed : int
        The trial's seed; in a timing study the number of the interleaved round.
    metric : str
    value : float
        NaN when the trial could not give the figure (no request finished, say).
    unit : str
    kind : str
        ``measured``, ``counted``, ``simulated`` or ``modelled``.
    at : dict
        Coordinates inside the trial: a sweep's load, a quantile, a time; empty for a trial's main figures.
    """

    study: str
    system: str
    seed: int
    metric: str
    value: float
    unit: str
    kind: str
    at: dict[str, float | str] = {}


class FinishedTrial(msgspec.Struct, frozen=True):
    """All that one trial gave; written as one line, so that a trial is either whole or absent."""

    trial: str
    wall_s: float
    records: list[Record]


class RunLog:
    """Append-only file of finished trials.

    A last line that was cut off by a crash or a full disk is removed when the file is opened, and its trial runs again.

    Parameters
    ----------
    path : Path
        ``records.jsonl`` of a run folder; created when absent.

    Raises
    ------
    RunFolderError
        If the file cannot be opened, or another process is writing it.
    BadFileError
        If a whole line is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: IO[bytes] = path.open("ab")
        except OSError as error:
            raise RunFolderError(f"The run's records cannot be opened: {error}", where=str(path)) from error
        try:
            _lock(self._file, path)
            self.finished = {done.trial: done for done in read_log(path)}
            _drop_cut_off_line(path)
        except BaseException:
            self._file.close()
            raise

    def append(self, done: FinishedTrial) -> None:
        """Write one finished trial and flush it to the disk.

        Raises
        ------
        RunFolderError
            If it cannot be written (a full disk, say); what was written before is safe.
        """
        try:
            self._file.write(_encode(done) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunFolderError(
                f"A finished trial could not be recorded: {error.strerror or error}.",
                given=done.trial,
                where=str(self.path),
                hint=f"the {len(self.finished)} trials before it are safe: make room, then repeat the command with "
                f"--resume {self.path.parent}",
            ) from error
        self.finished[done.trial] = done

    def close(self) -> None:
        """Close the file; a buffer that a full disk refused is given up (its trial was never counted as finished)."""
        try:
            self._file.close()
        except OSError:
            # The failed append was already reported; closing tries the same write again.
            return


def _encode(done: FinishedTrial) -> bytes:
    # json, not msgspec: NaN and infinities must survive the trip.
    return json.dumps(msgspec.to_builtins(done), separators=(",", ":")).encode()


def _lock(file: IO[bytes], path: Path) -> None:
    """Keep a second process from writing the same run; the lock ends with the process, however it ends."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunFolderError(
            "This run is still going on in another process.", where=str(path), hint="wait for it, or start a new run"
        ) from None
    except OSError:
        # Some network file systems know no locks; the run goes on without one.
        return


def _drop_cut_off_line(path: Path) -> None:
    text = path.read_bytes()
    if not text.endswith(b"\n"):
        os.truncate(path, text.rfind(b"\n") + 1)


def read_log(path: Path) -> list[FinishedTrial]:
    """Read the whole lines of a run's ``records.jsonl``; a last line without its end was cut off and is left out.

    Raises
    ------
    BadFileError
        If the file cannot be read, or a line that has its end is damaged.
    """
    try:
        *lines, _cut_off = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BadFileError(f"The run's records cannot be read: {error.strerror or error}.", where=str(path)) from error
    trials = []
    for number, line in enumerate(lines, 1):
        try:
            trials.append(msgspec.convert(json.loads(line), FinishedTrial))
        except (ValueError, msgspec.ValidationError) as error:
            raise BadFileError(
                f"A line of the run's records is damaged: {error}",
                where=f"{path}, line {number}",
                hint="remove that line to run its trial again with --resume",
            ) from error
    return trials


def canonical_at(at: Mapping[str, float | str]) -> str:
    """Return the coordinates as canonical JSON text: the form they have in Parquet and as a grouping key."""
    return json.dumps(dict(sorted(at.items())), separators=(",", ":"))


def write_parquet(records: Iterable[Record], path: Path) -> None:
    """Write records to a Parquet file with the columns of :data:`COLUMNS`; ``at`` as JSON text.  Atomic.

    Parameters
    ----------
    records : iterable of Record
    path : Path
        Replaced if it exists.
    """
    import duckdb

    rows = path.with_name(path.name + ".rows")
    partial = path.with_name(path.name + ".partial")
    try:
        with rows.open("w") as file:
            for record in records:
                row = msgspec.structs.asdict(record)
                row["at"] = canonical_at(record.at)
                # DuckDB's JSON reader knows no NaN; the text column is cast below.
                row["value"] = repr(float(record.value))
                file.write(json.dumps(row) + "\n")
        with duckdb.connect() as connection:
            types = dict.fromkeys(COLUMNS, "VARCHAR") | {"seed": "BIGINT"}
            table = connection.read_json(str(rows), columns=types, format="newline_delimited")
            table = table.project(
                ", ".join("CAST(value AS DOUBLE) AS value" if name == "value" else f'"{name}"' for name in COLUMNS)
            )
            table.write_parquet(str(partial), compression="zstd")
        partial.replace(path)
    except (OSError, duckdb.Error) as error:
        raise RunFolderError(
            f"The records could not be written as Parquet: {str(error).splitlines()[0]}",
            where=str(path),
            hint=f"they are safe in records.jsonl: make room, then repeat the command with --resume {path.parent}",
        ) from error
    finally:
        rows.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def read_parquet(path: Path) -> list[Record]:
    """Read the records of a run or of the evidence.

    Raises
    ------
    BadFileError
        If the file is missing, is not Parquet or lacks a column.
    """
    import duckdb

    if not path.is_file():
        raise BadFileError("There is no such file of records.", given=str(path))
    try:
        with duckdb.connect() as connection:
            rows = connection.read_parquet(str(path)).project(", ".join(f'"{name}"' for name in COLUMNS)).fetchall()
    except duckdb.Error as error:
        raise BadFileError(
            f"This is not a file of records: {str(error).splitlines()[0]}",
            where=str(path),
            hint="run the study again, or --resume its folder while records.jsonl is there",
        ) from error
    return [Record(**dict(zip(COLUMNS, (*row[:-1], json.loads(row[-1])), strict=True))) for row in rows]


def json_number(value: float) -> float | str | None:
    """Return a number JSON can hold: NaN becomes null, infinities their names."""
    if math.isnan(value):
        return None
    return ("inf" if value > 0 else "-inf") if math.isinf(value) else value


def as_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the records as plain dictionaries, in the stable shape that ``--json`` prints."""
    return [msgspec.structs.asdict(record) for record in records]
