"""Write a trace to a file that :func:`wavetank.workloads.load.read_trace` reads back as it was."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from wavetank.errors import BadFileError, BadValueError
from wavetank.workloads.requests import tiers_in_order

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace

WRITTEN_FORMATS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet")


def write_trace(trace: RequestTrace, path: str | Path) -> Path:
    """Write a trace, so that a reader sees the old file or the new one and never a part.

    Parameters
    ----------
    trace : RequestTrace
    path : str or Path
        Its ending, one of :data:`WRITTEN_FORMATS`, is the format; its folder is made where it is not there.

    Returns
    -------
    Path
        Where it was written.

    Raises
    ------
    BadValueError
        If the ending is another one.
    BadFileError
        If the file cannot be written; a file of that name stays as it was.
    """
    target = Path(path).expanduser()
    name = target.name.lower()
    if not name.endswith(WRITTEN_FORMATS):
        raise BadValueError("Traces are not written in this format.", given=target.name, allowed=WRITTEN_FORMATS)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            _write_parquet(trace, partial)
        else:
            with _text(partial, packed=name.endswith(".gz")) as file:
                (_write_csv if ".csv" in name[-7:] else _write_json_lines)(trace, file)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        raise BadFileError(
            f"The trace cannot be written: {error.strerror or error}.", where=str(target),
            hint="choose another place, or make room there",
        ) from error  # fmt: skip
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return target


@contextlib.contextmanager
def _text(path: Path, *, packed: bool) -> Iterator[IO[str]]:
    if not packed:
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    # Neither a name nor a time in the head: equal traces give equal files.
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as unpacked,
        io.TextIOWrapper(unpacked, encoding="utf-8", newline="") as file,
    ):
        yield file


def _columns(trace: RequestTrace) -> dict[str, list[Any]]:
    """Return the columns of a file by name, as Python values."""
    found: dict[str, list[Any]] = {
        "arrival_s": trace.arrival_s.tolist(),
        "prompt_tokens": trace.prompt_tokens.tolist(),
        "output_tokens": trace.output_tokens.tolist(),
    }
    for column in ("model", "tier", "adapter"):
        codes, names = getattr(trace, column), getattr(trace, f"{column}_names")
        if codes is not None:
            found[column] = [names[code] for code in codes.tolist()]
    tiers = trace.used_tiers
    if trace.tier is not None and tiers_in_order(tiers) != tiers:
        found["tier_rank"] = [tiers.index(name) for name in found["tier"]]
    for column in ("session", "max_tokens"):
        values = getattr(trace, column)
        if values is not None:
            found[column] = values.tolist()
    if trace.deadline_s is not None:
        found["deadline_s"] = [None if math.isnan(within) else within for within in trace.deadline_s.tolist()]
    if trace.block_ids is not None and trace.block_offsets is not None:
        ids, offsets = trace.block_ids.tolist(), trace.block_offsets.tolist()
        found["block_ids"] = [ids[first:end] for first, end in itertools.pairwise(offsets)]
    if trace.block_ids is not None or trace.block_tokens != 512:
        found["block_tokens"] = [trace.block_tokens] * len(trace)
    return found


def _write_csv(trace: RequestTrace, file: IO[str]) -> None:
    columns = _columns(trace)
    # Text is quoted, so that an empty name is not taken for a missing one.
    rows = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    file.write(",".join(columns) + "\n")
    if "block_ids" in columns:
        columns["block_ids"] = [json.dumps(ids) for ids in columns["block_ids"]]
    rows.writerows(zip(*columns.values(), strict=True))


def _write_json_lines(trace: RequestTrace, file: IO[str]) -> None:
    columns = _columns(trace)
    for row in zip(*columns.values(), strict=True):
        file.write(json.dumps(dict(zip(columns, row, strict=True)), separators=(",", ":")) + "\n")


def _write_parquet(trace: RequestTrace, path: Path) -> None:
    import duckdb

    from wavetank.workloads.trace_sources import connection

    columns = _columns(trace)
    types = dict.fromkeys(("arrival_s", "deadline_s"), "DOUBLE") | {"block_ids": "BIGINT[]"}
    types |= dict.fromkeys(("model", "tier", "adapter"), "VARCHAR")
    arrays: dict[str, Any] = {}
    for name, values in columns.items():
        if types.get(name) in ("BIGINT[]", "VARCHAR"):
            arrays[name] = np.empty(len(values), dtype=object)
            arrays[name][:] = values
        else:
            arrays[name] = np.asarray(values, np.float64 if types.get(name) == "DOUBLE" else None)
    try:
        with connection() as connected:
            connected.register("trace", arrays)
            wanted = ", ".join(f"CAST({name} AS {types.get(name, 'BIGINT')}) AS {name}" for name in arrays)
            connected.sql(f"SELECT {wanted} FROM trace").write_parquet(str(path), compression="zstd")
    except duckdb.IOException as error:
        raise OSError(str(error).partition("\n")[0]) from error
