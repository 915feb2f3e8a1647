"""When single GPUs of a job die, become slow and are well again: drawn, or as recorded on real servers."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wavetank.errors import BadFileError, BadValueError
from wavetank.training.failures.failure_times import recorded_failures
from wavetank.workloads import datasets

DATA_SET = "gpu-fault-trace"
# Servers that overheat or lose bandwidth run on, slower; all else ends the process.
SLOWING = ("Fan", "Power Supply", "Parameter Plane Cable", "NIC")
GPUS = 8  # of a recorded server
MOST_SERVERS = 400


class Event(NamedTuple):
    """A change of one device.

    Attributes
    ----------
    time_s : float
    device : int
    speed : float
        From now on: 0 dead, 1 well.
    """

    time_s: float
    device: int
    speed: float


def drawn_events(
    devices: int, *, every_s: float, horizon_s: float, slow_share: float, losses: tuple[float, ...], repair_s: float,
    draws: np.random.Generator,
) -> tuple[Event, ...]:
    """Return faults at regular times, each of a device that was well, drawn.

    Parameters
    ----------
    devices : int
    every_s, horizon_s : float
        Between faults, and end of the run, s.
    slow_share : float
        Share of the faults that make a device slow; the others kill it.
    losses : tuple of float
        Shares of its speed that a slow device loses, drawn.
    repair_s : float
        After which a device is well again, s; infinite: never.
    draws : numpy.random.Generator
    """
    if not 0 < every_s < math.inf or not 0 < horizon_s < math.inf or not 0 <= slow_share <= 1 or not repair_s > 0:
        raise BadValueError("Faults come after a time.", given=f"every {every_s} s until {horizon_s} s, {slow_share}",
                            allowed="positive times, a share from 0 to 1")  # fmt: skip
    if not losses or not all(0 < each < 1 for each in losses):
        raise BadValueError("A slow device loses a share of its speed.", given=losses, allowed="above 0, below 1")
    found: list[Event] = []
    back: dict[int, float] = {}
    count = math.ceil(horizon_s / every_s) - 1
    for number in range(1, count + 1):
        time_s = number * every_s
        well = [each for each in range(devices) if back.get(each, -1.0) <= time_s]
        slow, loss, place = draws.random(), draws.choice(losses), draws.random()
        if not well:
            continue
        device = well[int(place * len(well))]
        found.append(Event(time_s, device, 1 - float(loss) if slow < slow_share else 0.0))
        back[device] = time_s + repair_s
        if time_s + repair_s < horizon_s:
            found.append(Event(time_s + repair_s, device, 1.0))
    return tuple(sorted(found))


def slow_share_of_trace(folder: Path | None = None) -> float:
    """Return the share of recorded faults whose class slows a server down, as far as this study takes it.

    Parameters
    ----------
    folder : Path, optional
        Of the data set.

    Raises
    ------
    BadFileError
        If it cannot be read.
    """
    path = (folder or datasets.find(DATA_SET)) / "fault_trace.json.gz"
    try:
        rows: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))
        classes = [str(row["fault_type"]["Class"]) for row in rows if row["event_type"] == "fault_start"]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadFileError("This is no trace of faults.", given=str(error)[:200], where=str(path)) from error
    if not classes:
        raise BadFileError("The trace holds no fault.", where=str(path))
    return sum(each in SLOWING for each in classes) / len(classes)


def recorded_events(
    devices: int, *, faster: float, slow_share: float, losses: tuple[float, ...], days: float,
    draws: np.random.Generator, folder: Path | None = None,
) -> tuple[tuple[Event, ...], float]:
    """Return faults of servers drawn from the data set, each of one GPU of its server, and the end of the run, s.

    Parameters
    ----------
    devices : int
        GPUs; eight to a server.
    faster : float
        By which all times are divided.
    slow_share, losses
        As for :func:`drawn_events`.
    days : float
        Of the trace, from a day that is drawn.
    draws : numpy.random.Generator
    folder : Path, optional
        Of the data set.
    """
    servers = -(-devices // GPUS)
    failures = recorded_failures(servers, faster, draws, folder)
    length_s = min(days * 86_400 / faster, failures.horizon_s)
    begin_s = float(draws.random()) * (failures.horizon_s - length_s)
    found: list[Event] = []
    for time_s, machine, back_s in zip(*(each.tolist() for each in failures[:3]), strict=True):
        slow, loss = draws.random(), float(draws.choice(losses))
        device = machine * GPUS + int(draws.random() * min(GPUS, devices - machine * GPUS))
        if back_s <= begin_s or time_s >= begin_s + length_s:
            continue
        found.append(Event(max(0.0, time_s - begin_s), device, 1 - loss if slow < slow_share else 0.0))
        if back_s < begin_s + length_s:
            found.append(Event(back_s - begin_s, device, 1.0))
    return tuple(sorted(found)), length_s
