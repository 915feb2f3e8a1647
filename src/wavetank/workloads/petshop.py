"""PetShop: metrics of a small shop of services on AWS with injected faults, read into arrays.

A folder SCENARIO has ``graph.csv`` (who calls whom), ``train/issue_N/metrics.csv.gz`` (one fault each, windows of five
minutes), ``train/issue_N/target.json`` (what was noticed, and where the fault was injected) and, for two scenarios,
``noissue/metrics.csv.gz`` (normal operation).
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError

Floats = NDArray[np.float64]
_HEADER = 4
_MOST_BYTES = 64 << 20
_MOST_CELLS = 4_000_000


@dataclass(frozen=True, eq=False)
class ServiceMetrics:
    """Metrics of services over time.

    Parameters
    ----------
    columns : tuple of (str, str, str)
        Service, metric and statistic of each column.
    time_s : numpy.ndarray of float64, shape (windows,)
        Unix time of each window, rising.
    values : numpy.ndarray of float64, shape (windows, columns)
        NaN where nothing was reported.
    """

    columns: tuple[tuple[str, str, str], ...]
    time_s: Floats
    values: Floats

    def of(self, service: str, metric: str, statistic: str) -> Floats:
        """Return one column, NaN everywhere where there is none, shape (windows,).

        Parameters
        ----------
        service, metric, statistic : str
        """
        key = (service, metric, statistic)
        if key not in self.columns:
            return np.full(len(self.time_s), np.nan)
        column: Floats = self.values[:, self.columns.index(key)]
        return column


@dataclass(frozen=True, kw_only=True)
class Issue:
    """What was noticed, and what had been done.

    Parameters
    ----------
    noticed : str
        The service whose objective broke.
    metric : str
        Which one of its metrics.
    noticed_s : float
        Unix time.
    cause : str
        The service into which the fault was injected.
    """

    noticed: str
    metric: str
    noticed_s: float
    cause: str


def read_metrics(path: Path) -> ServiceMetrics:
    """Return the metrics of a file, packed or not.

    Parameters
    ----------
    path : Path

    Raises
    ------
    BadFileError
        If it is no such table.
    """
    rows = _rows(path)
    if len(rows) < _HEADER or [row[:1] for row in rows[:3]] != [["microservice"], ["metric"], ["statistic"]]:
        raise BadFileError("This is no table of metrics of services.", where=str(path),
                           allowed="rows microservice, metric, statistic, unix_timestamp, then windows")  # fmt: skip
    width = len(rows[0])
    if width < 2 or any(len(row) != width for row in rows):
        raise BadFileError("The rows of a table of metrics have one length.", where=str(path))
    columns = tuple(zip(*(row[1:] for row in rows[:3]), strict=True))
    try:
        values = np.array([[float(cell) if cell else math.nan for cell in row] for row in rows[_HEADER:]], np.float64)
    except ValueError as error:
        raise BadFileError("A cell of a table of metrics is no number.", given=str(error), where=str(path)) from error
    values = values.reshape(-1, width)
    if not np.isfinite(values[:, 0]).all() or (np.diff(values[:, 0]) <= 0).any():
        raise BadFileError("The times of a table of metrics rise.", where=str(path))
    return ServiceMetrics(columns, values[:, 0], np.where(np.isfinite(values[:, 1:]), values[:, 1:], np.nan))


def read_calls(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the services that each service calls.

    Parameters
    ----------
    path : Path
        Of a table with one row a caller, one column a callee, and a number above 0 where the one calls the other.

    Raises
    ------
    BadFileError
        If rows and columns are not the same services.
    """
    rows = _rows(path)
    names = rows[0][1:] if rows else []
    if not names or len(set(names)) != len(names) or [row[0] for row in rows[1:]] != names:
        raise BadFileError("A table of calls has the same services as rows and as columns.", where=str(path))
    try:
        calls = {
            row[0]: tuple(name for name, cell in zip(names, row[1:], strict=True) if float(cell or 0) > 0)
            for row in rows[1:]
        }
    except ValueError as error:
        raise BadFileError("A table of calls has numbers.", given=str(error), where=str(path)) from error
    return calls


def read_issue(path: Path) -> Issue:
    """Return what was noticed and injected.

    Parameters
    ----------
    path : Path
        Of a ``target.json``.

    Raises
    ------
    BadFileError
        If it does not say so.
    """
    try:
        said = json.loads(_bytes(path).decode("utf-8"))
        target, cause = said["target"], said["root_cause"]["node"]
        found = Issue(noticed=target["node"], metric=target["metric"], noticed_s=float(target["timestamp"]),
                      cause=cause)  # fmt: skip
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BadFileError("This does not say what was noticed, when, and where the cause is.", given=str(error),
                           where=str(path)) from error  # fmt: skip
    if not math.isfinite(found.noticed_s):
        raise BadFileError("The time of what was noticed is none.", given=found.noticed_s, where=str(path))
    if not all(isinstance(each, str) for each in (found.noticed, found.metric, found.cause)):
        raise BadFileError("Services and metrics are named by words.", where=str(path))
    return found


def _bytes(path: Path) -> bytes:
    """Return what a file holds, unpacked; no more than a table or an issue may have is read."""
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        if packed:
            with gzip.open(plain) as file:
                raw = file.read(_MOST_BYTES + 1)
        else:
            raw = plain.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise BadFileError("This file is larger than any that is meant.", where=str(path),
                           allowed=f"{_MOST_BYTES} bytes")  # fmt: skip
    return raw


def _rows(path: Path) -> list[list[str]]:
    try:
        raw = _bytes(path)
        if raw.count(b",") + raw.count(b"\n") > _MOST_CELLS:
            raise BadFileError("This table has more cells than any that is meant.", where=str(path),
                               allowed=f"{_MOST_CELLS} cells")  # fmt: skip
        return [row for row in csv.reader(raw.decode("utf-8").splitlines()) if row]
    except (OSError, EOFError, ValueError, zlib.error, csv.Error) as error:
        raise BadFileError("This table cannot be read.", given=str(error), where=str(path)) from error
