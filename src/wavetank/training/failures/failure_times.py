"""When replicas fail: at counted steps, as a memoryless process in time, or as recorded on real servers."""

from __future__ import annotations

import functools
import gzip
import json
import math
import operator
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadValueError
from wavetank.workloads import datasets

DATA_SET = "gpu-fault-trace"
_SERVERS = 400  # that were watched; those without a fault are not in the file
_DAY_S = 86_400.0


class StepFailures(NamedTuple):
    """Failures during the synchronisation of executed steps, whatever these take.  Nothing is repaired.

    Attributes
    ----------
    every : int
        Executed steps per failure, the failing one included; steps that are done again count, too.
    places : ndarray of float64, shape (failures,)
        Share of the gradients that were summed when a replica died.
    """

    every: int
    places: NDArray[np.float64]


class TimedFailures(NamedTuple):
    """Failures of machines at times; each machine carries one replica.

    Attributes
    ----------
    time_s : ndarray of float64, shape (failures,)
        Rising.
    machine : ndarray of int64, shape (failures,)
    back_s : ndarray of float64, shape (failures,)
        When the machine can be used again; infinite where never.
    horizon_s : float
        End of the run.
    """

    time_s: NDArray[np.float64]
    machine: NDArray[np.int64]
    back_s: NDArray[np.float64]
    horizon_s: float

    def first(self, machines: int) -> TimedFailures:
        """Return the failures of the first machines alone."""
        chosen = self.machine < machines
        return TimedFailures(self.time_s[chosen], self.machine[chosen], self.back_s[chosen], self.horizon_s)


def paper_schedule(every: int, failures: int, draws: np.random.Generator) -> StepFailures:
    """Return a failure at regular numbers of executed steps, while gradients are summed.

    Parameters
    ----------
    every : int
        Executed steps per failure, the failing one included.
    failures : int
    draws : numpy.random.Generator
        Says where in the synchronisation.
    """
    if every < 1 or failures < 0:
        raise BadValueError("Failures come after executed steps.", given=f"{failures} failures, every {every} steps",
                            allowed="0 or more failures, every 1 or more steps")  # fmt: skip
    return StepFailures(every, draws.random(failures))


def poisson_failures(
    machines: int, mtbf_s: float, repair_s: float, horizon_s: float, draws: np.random.Generator
) -> TimedFailures:
    """Return failures whose distances in time have no memory, each machine by itself.

    Parameters
    ----------
    machines : int
    mtbf_s : float
        Mean time between failures of one machine, s.
    repair_s : float
        After which a machine can be used again, s; infinite: never.
    horizon_s : float
    draws : numpy.random.Generator
    """
    if not mtbf_s > 0 or not repair_s >= 0 or not 0 < horizon_s < math.inf:
        raise BadValueError("Machines fail after a time.", given=f"{mtbf_s} s, repaired in {repair_s} s",
                            allowed="positive times, a finite end")  # fmt: skip
    counts = draws.poisson(horizon_s / mtbf_s, machines)
    machine = np.repeat(np.arange(machines), counts)
    time_s = draws.random(len(machine)) * horizon_s
    order = np.argsort(time_s, kind="stable")
    time_s = time_s[order]
    return TimedFailures(time_s, machine[order].astype(np.int64), time_s + repair_s, horizon_s)


def recorded_failures(
    machines: int, faster: float, draws: np.random.Generator, folder: Path | None = None
) -> TimedFailures:
    """Return the faults of servers drawn from those of the data set ``gpu-fault-trace``.

    Parameters
    ----------
    machines : int
        At most 400, the servers that were watched.
    faster : float
        By which all times are divided: 100 for failures as frequent as on a hundred times as many servers.
    draws : numpy.random.Generator
        Says which servers.
    folder : Path, optional
        Of the data set.

    Raises
    ------
    BadValueError
        If there are not enough servers.
    BadFileError
        If the file is not the data set's.
    """
    if not 1 <= machines <= _SERVERS or not 0 < faster < math.inf:
        raise BadValueError("The recorded servers are not enough.", given=f"{machines} machines, {faster} times faster",
                            allowed=f"1 to {_SERVERS} machines", hint="take fewer replicas and spares")  # fmt: skip
    servers, end_s = read_faults(folder or datasets.find(DATA_SET))
    chosen = draws.permutation(_SERVERS)[:machines]
    rows = [
        (begin_s, place, back_s)
        for place, server in enumerate(chosen)
        if server < len(servers)
        for begin_s, back_s in servers[server]
    ]
    table = np.array(sorted(rows), dtype=np.float64).reshape(-1, 3)
    return TimedFailures(table[:, 0] / faster, table[:, 1].astype(np.int64), table[:, 2] / faster, end_s / faster)


@functools.lru_cache(maxsize=4)
def read_faults(folder: Path) -> tuple[tuple[tuple[tuple[float, float], ...], ...], float]:
    """Return when each server that had a fault was away, and the length of the trace, s.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    (tuple, float)
        For each server (begin, end) in s, rising and without overlap; a fault without end lasts for ever.

    Raises
    ------
    BadFileError
        If it cannot be read.
    """
    path = folder / "fault_trace.json.gz"
    try:
        rows: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))
        events = [(str(row["node_id"]), float(row["event_time"]) * _DAY_S, str(row["event_type"])) for row in rows]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadFileError("This is no trace of faults.", given=str(error)[:200], where=str(path)) from error
    open_: dict[str, list[float]] = {}
    away: dict[str, list[tuple[float, float]]] = {}
    # The earliest first, whatever the order in the file; of one time as they stand there.
    for server, time_s, kind in sorted(events, key=operator.itemgetter(1)):
        if kind not in ("fault_start", "fault_end") or not 0 <= time_s < math.inf:
            raise BadFileError("This is no event of a trace of faults.", given=f"{kind} at {time_s} s", where=str(path))
        begun = open_.setdefault(server, [])
        if kind == "fault_start":
            begun.append(time_s)
        elif begun:
            # Several faults at a time: the server is away from the first to the last.
            first_s = begun.pop(0) if len(begun) == 1 else begun.pop()
            if not begun:
                away.setdefault(server, []).append((first_s, time_s))
    for server, begun in open_.items():
        if begun:
            away.setdefault(server, []).append((begun[0], math.inf))
    end_s = max((time_s for _, time_s, _ in events), default=0.0)
    if not away or not end_s:
        raise BadFileError("The trace holds no fault.", given=f"{len(events)} events", where=str(path))
    return tuple(tuple(sorted(each)) for each in away.values()), end_s
