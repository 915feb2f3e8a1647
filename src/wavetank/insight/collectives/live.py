"""Real processes that run collectives of our own, faults that strike them, and a look at their probes from outside.

Each rank computes for a while, as long as its sequence, then calls an all-reduce in a pair, one along the ring of all
and one over the tree of all.  Faults are real: a rank is stopped by SIGSTOP before or inside an operation, calls with
another size or another operation, comes late, or sends slowly.  Clocks are those of the host, moved by seconds for each
rank.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.errors import BadValueError, WavetankError
from wavetank.insight.collectives.interface import FAULTS, FaultFinder, Verdict, Window
from wavetank.insight.collectives.probes import NoProbe, Probe, read_probes
from wavetank.insight.collectives.sockets import Channels, Communicator
from wavetank.live.rank_process import Rank
from wavetank.live.ranks import Fault, Ranks
from wavetank.sim.rng import stream

# Communicators: pairs, the ring of all, the tree of all.
_PAIR_BYTES, _TREE_BYTES = 1 << 16, 1 << 14
_LOOK_S = 0.05
_START_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Strike:
    """A fault that strikes real ranks.

    Parameters
    ----------
    fault : str
        One of the six classes; empty for none.
    rank : int
        The culprit.
    how : str
        Of S2 and S3: ``sleep``, a pause for each chunk, or ``throttle``, a limit of the rank's connections in the
        kernel; of H2: ``size`` or ``op``.
    iteration : int
        Of a hang: when it strikes.
    late_s : float
        What a late rank sleeps before each iteration.
    slow_s : float
        What a slow link sleeps for each chunk.
    bytes_per_s : float
        Of a throttled rank.
    link_bytes_per_s : float
        Of all others.
    """

    fault: str = ""
    rank: int = 0
    how: str = "sleep"
    iteration: int = 4
    late_s: float = 0.08
    slow_s: float = 0.016
    bytes_per_s: float = 12e6
    link_bytes_per_s: float = 60e6

    def __post_init__(self) -> None:
        if self.fault and self.fault not in FAULTS:
            raise BadValueError("There is no such class of faults.", given=self.fault, allowed=FAULTS)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What an analyser said of real ranks.

    Parameters
    ----------
    verdict : Verdict
    delay_s : float
        From the last movement of any rank to the answer, of a hang; 0 of slowness.
    window : Window
        What was seen at last.
    """

    verdict: Verdict
    delay_s: float
    window: Window


def members_of(size: int) -> tuple[list[int], ...]:
    """Return the communicators of a job of an even number of ranks: pairs, the ring, the tree.

    Parameters
    ----------
    size : int
    """
    return (*([first, first + 1] for first in range(0, size, 2)), list(range(size)), list(range(size)))


def iterate(
    rank: Rank, *, folder: str, iterations: int, elements: int, compute_s: float, seed: int, offset_ns: int,
    strike: Mapping[str, Any],
) -> int:  # fmt: skip
    """Run iterations of a rank; what ranks do with ``Ranks``.

    Parameters
    ----------
    rank : Rank
    folder : str
        Where ports and frames stand.
    iterations : int
    elements : int
        Of the array of the ring, float32.
    compute_s : float
        Mean time between operations.
    seed : int
    offset_ns : int
        Of the clocks: the rank's number times this.
    strike : mapping
        The fields of a :class:`Strike`.
    """
    plan = Strike(**strike)
    probe = Probe(Path(folder) / f"frames-{rank.number}", rank.number, capacity=512, offset_ns=offset_ns * rank.number)
    channels = Channels(Path(folder), rank.number, rank.size)
    comms = [
        Communicator(channels, number, members, probe)
        for number, members in enumerate(members_of(rank.size))
        if rank.number in members
    ]
    pair, ring, tree = comms
    culprit = plan.rank == rank.number
    late_s = plan.late_s if culprit and plan.fault in ("S1", "S3") else 0.0
    # A link has a rate of its own, or scheduling would be all that is measured.
    rank.throttle(plan.link_bytes_per_s)
    if culprit and plan.fault in ("S2", "S3"):
        if plan.how == "throttle":
            rank.throttle(plan.bytes_per_s)
        else:
            ring.slow_s = plan.slow_s
    draws = stream(seed, "lengths", rank.number)
    array, small, least = (np.ones(many, np.float32) for many in (elements, _TREE_BYTES // 4, _PAIR_BYTES // 4))
    for number in range(iterations):
        time.sleep(compute_s * float(np.exp(draws.normal(0.0, 0.3))) + late_s)
        now = plan.iteration == number and culprit
        pair.all_reduce(least)
        rank.point("calling", iteration=number)
        ring.at_step = lambda step, at=number: rank.point("step", iteration=at, step=step)  # type: ignore[misc]
        if now and plan.fault == "H2":
            _call_wrongly(ring, array, plan.how)
        else:
            ring.all_reduce(array)
        tree.all_reduce_tree(small)
        array[:] = small[:] = least[:] = 1.0
    rank.report(iterations)
    # The others may still need the connections.
    rank.command(None)
    channels.close()
    return iterations


def _call_wrongly(ring: Communicator, array: np.ndarray[Any, Any], how: str) -> None:
    if how == "op":
        ring.broadcast(array, root=ring.place)
        # Nobody answers the next call either.
        ring.all_reduce(array[: array.size // 2])
    else:
        ring.all_reduce(array[: array.size // 2])


def points_of(strike: Strike) -> list[Fault]:
    """Return what the process harness is to do for a fault: stop a rank before or inside the ring's operation.

    Parameters
    ----------
    strike : Strike
    """
    if strike.fault == "H1":
        return [Fault(rank=strike.rank, point="calling", at={"iteration": strike.iteration}, kind="stop")]
    if strike.fault == "H3":
        at = {"iteration": strike.iteration, "step": 2}
        return [Fault(rank=strike.rank, point="step", at=at, kind="stop")]
    return []


def window_of(folder: Path, size: int, offset_ns: int) -> Window:
    """Return what probes of ranks of this host say now.

    Parameters
    ----------
    folder : Path
    size : int
    offset_ns : int
        As the ranks were given it.
    """
    frames = read_probes([folder / f"frames-{rank}" for rank in range(size)])
    now_ns = time.monotonic_ns() + offset_ns * np.arange(size)
    members = members_of(size)
    return Window(frames, tuple(np.array(each) for each in members), now_ns, frozenset([len(members) - 1]))


@contextlib.contextmanager
def running(strike: Strike, *, size: int, arguments: Mapping[str, Any]) -> Iterator[tuple[Ranks, Path]]:
    """Start ranks that run until the block ends; give the harness and the folder of their frames.

    Parameters
    ----------
    strike : Strike
    size : int
        Even.
    arguments : mapping
        Of :func:`iterate`, but for the folder and the strike.
    """
    if size < 4 or size % 2:
        raise BadValueError("Real ranks come in pairs.", given=size, allowed="4, 6, ... 16")
    with tempfile.TemporaryDirectory(prefix="wavetank-collectives-") as name:
        plain = {key: getattr(strike, key) for key in strike.__dataclass_fields__}
        given = {**arguments, "folder": name, "strike": plain}
        with Ranks(iterate, size, arguments=given, faults=points_of(strike), timeout_s=60.0) as ranks:
            yield ranks, Path(name)


def watched(
    finder: FaultFinder, strike: Strike, *, size: int = 4, iterations: int = 16, elements: int = 1 << 18,
    compute_s: float = 0.01, seed: int = 0, hang_s: float = 1.0, offset_ns: int = 3_000_000_000,
) -> Found:  # fmt: skip
    """Run ranks with a fault, and look at their probes until they hang or are through.

    Parameters
    ----------
    finder : FaultFinder
    strike : Strike
    size : int
    iterations, elements, compute_s, seed, offset_ns
        As for :func:`iterate`.
    hang_s : float
        When the finder says that an operation hangs; looked for until ten times as long after the last movement.
    """
    arguments = {
        "iterations": iterations, "elements": elements, "compute_s": compute_s, "seed": seed, "offset_ns": offset_ns,
    }  # fmt: skip
    with running(strike, size=size, arguments=arguments) as (ranks, folder):
        return _look(finder, ranks, folder, size, offset_ns, hang_s)


def _look(finder: FaultFinder, ranks: Ranks, folder: Path, size: int, offset_ns: int, hang_s: float) -> Found:
    through = 0
    stop_s = time.monotonic() + _START_S
    while time.monotonic() < stop_s:
        for event in ranks.events(_LOOK_S):
            if event.kind in ("raised", "died"):
                raise WavetankError("A rank of the job failed.", given=str(event.value))
            through += event.kind == "reported"
        if not all((folder / f"frames-{rank}").exists() for rank in range(size)):
            continue
        window = window_of(folder, size, offset_ns)
        if through == size:
            # All are through: what was slow is in the window, and nothing hangs.
            return Found(verdict=finder.find(window), delay_s=0.0, window=window)
        frames = window.frames
        inside = frames.entered & ~frames.done
        if not inside.any():
            continue
        moved = window.now_ns[frames.rank[inside]] - np.maximum(frames.moved_ns[inside], frames.entered_ns[inside])
        still_s = float(moved.min()) / 1e9
        if still_s >= hang_s:
            verdict = finder.find(window)
            if verdict.fault or still_s > 10 * hang_s:
                return Found(verdict=verdict, delay_s=still_s, window=window)
    raise WavetankError("The ranks neither came through nor hung.", given=f"{_START_S:g} s")


# -- what probes cost --------------------------------------------------------------------------------------------------


def time_turns(rank: Rank, *, folder: str, sizes: list[int], rounds: list[int]) -> list[list[list[float]]]:
    """Time all-reduces with and without probes in turns; what ranks do with ``Ranks``.

    Parameters
    ----------
    rank : Rank
    folder : str
    sizes : list of int
        Bytes.
    rounds : list of int
        Of each size.

    Returns
    -------
    list of list of list of float
        By size and round: seconds without and with probes.
    """
    probe = Probe(Path(folder) / f"frames-{rank.number}", rank.number)
    channels = Channels(Path(folder), rank.number, rank.size)
    everybody = list(range(rank.size))
    comms = [Communicator(channels, 0, everybody, NoProbe()), Communicator(channels, 0, everybody, probe)]
    found: list[list[list[float]]] = []
    for size, many in zip(sizes, rounds, strict=True):
        array = np.zeros(size // 4, np.float32)
        rows: list[list[float]] = []
        for turn in range(many + 1):
            row = [0.0, 0.0]
            for which in (0, 1) if turn % 2 else (1, 0):
                comms[which].all_reduce(array[:64])
                begin_s = time.perf_counter()
                comms[which].all_reduce(array)
                row[which] = time.perf_counter() - begin_s
            # The first turn warms up.
            rows += [row] if turn else []
        found.append(rows)
    channels.close()
    return found
