"""Real bursts of writes: a few processes, each with a limited number of writers, that hand a checkpoint to a file.

All requests of a process are there at once.  With n requests and W writers, each request waits for (n / W - 1) / 2
others on average, whatever a write takes: the share of waiting is (n / W - 1) / (n / W + 1).
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np

from wavetank.errors import BadValueError

_MOST_PROCESSES = 16
_LONGEST_S = 300.0


def expected_share(requests: int, slots: int) -> float:
    """Return the share of waiting when all requests are there at once.

    Parameters
    ----------
    requests : int
    slots : int
    """
    rounds = max(1.0, requests / slots)
    return (rounds - 1) / (rounds + 1)


def real_share(folder: Path, *, processes: int, requests: int, request_bytes: int, slots: int) -> tuple[float, float]:
    """Return the measured share of waiting, and 1 - mean service time / mean latency of the same requests.

    Parameters
    ----------
    folder : Path
        Where files are written, and removed again.
    processes : int
    requests : int
        Of each process.
    request_bytes : int
    slots : int
        Writers of each process.

    Raises
    ------
    BadValueError
        If a number is none.
    """
    if not 1 <= processes <= _MOST_PROCESSES or min(requests, request_bytes, slots) < 1:
        raise BadValueError("These are no bursts.", given=f"{processes} processes, {requests} requests, {slots} slots",
                            allowed=f"1 to {_MOST_PROCESSES} processes, the others at least 1")  # fmt: skip
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        running = [
            pool.submit(written, str(folder / f"burst{number}"), requests, request_bytes, slots)
            for number in range(processes)
        ]
        times = np.concatenate([np.array(each.result(timeout=_LONGEST_S)) for each in running])
    waits, services = times[:, 1] - times[:, 0], times[:, 2] - times[:, 1]
    latency = times[:, 2] - times[:, 0]
    return float(waits.sum() / latency.sum()), float(1 - services.mean() / latency.mean())


def written(path: str, requests: int, request_bytes: int, slots: int) -> list[tuple[float, float, float]]:
    """Write a burst and return when each request came, was begun and was on disk, s.

    Parameters
    ----------
    path : str
    requests, request_bytes, slots : int
    """
    content = os.urandom(request_bytes)
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)

    def write(number: int, came_s: float) -> tuple[float, float, float]:
        begun_s = time.monotonic()
        os.pwrite(file, content, number * request_bytes)
        os.fdatasync(file)
        return came_s, begun_s, time.monotonic()

    try:
        with concurrent.futures.ThreadPoolExecutor(slots) as pool:
            # Writers are started first: what starting one takes is no waiting for a slot.
            list(pool.map(lambda _: time.sleep(0.01), range(slots)))
            came_s = time.monotonic()
            return list(pool.map(lambda number: write(number, came_s), range(requests)))
    finally:
        os.close(file)
        Path(path).unlink(missing_ok=True)
