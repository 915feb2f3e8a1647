"""Labelled logs: what programs do to files, how long it takes in a model of servers, and the counters of a log of it.

A program is a list of phases; each says which ranks make which requests to which file through which interface.  Time
follows from latencies and bandwidths of clients, servers and the server of metadata.  The truth is causal: an issue
counts where removing it from the phases makes the model's I/O time more than 5 % shorter.  The counters follow from the
requests by Darshan's definitions, with noise on times alone; no threshold of a rule stands here.

This module was fixed before the rules were written.  Each trace comes from a template, a family of programs; templates
that were held out lend no trace to tuning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from wavetank.insight.io.labels import CODES, kind
from wavetank.sim.rng import stream
from wavetank.workloads.darshan import SIZE_BOUNDS_BYTES, DarshanLog, ModuleRecords, StripeRecords, empty_records

KIB, MIB = 1 << 10, 1 << 20
ALIGNMENT_BYTES = MIB
GAIN = 0.05
"""An issue counts where removing it saves more than this share of the I/O time."""
_MOST_REQUESTS = 20_000


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Latencies in s and bandwidths in bytes/s of the modelled file system.

    Parameters
    ----------
    servers : int
    request_s : float
        A server's time for a request, whatever its size.
    seek_s : float
        Added to a request that does not follow the one before it.
    server_bytes_per_s : float
    lock_s : float
        A server's time to take a block from one client and give it to another.
    client_request_s, round_trip_s : float
        A client's time for a call, and for one that it has to wait for.
    client_bytes_per_s, stdio_bytes_per_s, exchange_bytes_per_s : float
        Of a rank: to the servers, through STDIO's buffers, and to aggregators.
    metadata_s : float
        Of the metadata server for one operation; ranks wait three times as long for one.
    packet_bytes : int
        What clients join consecutive requests to.
    """

    servers: int = 16
    request_s: float = 1e-4
    seek_s: float = 1e-3
    server_bytes_per_s: float = 5e8
    lock_s: float = 5e-4
    client_request_s: float = 5e-6
    round_trip_s: float = 2e-4
    client_bytes_per_s: float = 1.5e9
    stdio_bytes_per_s: float = 2.5e8
    exchange_bytes_per_s: float = 4e9
    metadata_s: float = 5e-5
    packet_bytes: int = 4 * MIB


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One step of a program: ranks that make requests to a file, or to a file each.

    Parameters
    ----------
    name : str
        Of the file; phases of one name share their file.
    writes : bool
    ranks : int
        Ranks 0 to ranks - 1 take part.
    shared : bool
        One file for all, or one and more for each.
    size_bytes : int
        Of a request.
    requests : int
        Of each rank, where all have the same load.
    pattern : str
        consecutive, strided (blocks of ranks take turns) or random.
    shift_bytes : int
        Where the first request begins.
    interface : str
        posix, independent, collective or stdio.
    stripes : int
        Servers that a file is spread over.
    files : int
        Of a rank, where they are not shared.
    calls : int
        Metadata operations of each rank with each file.
    skew : float
        Share of the load of all ranks that rank 0 takes from them.
    again : int
        How often every byte is read.
    """

    name: str
    writes: bool
    ranks: int
    shared: bool
    size_bytes: int
    requests: int
    pattern: str = "consecutive"
    shift_bytes: int = 0
    interface: str = "posix"
    stripes: int = 1
    files: int = 1
    calls: int = 2
    skew: float = 0.0
    again: int = 1

    def loads(self) -> NDArray[np.int64]:
        """Requests of each rank, those that repeat others left out."""
        total = self.requests * self.ranks
        even = np.full(self.ranks, total * (1 - self.skew) / self.ranks)
        even[0] += total * self.skew
        return np.maximum(np.rint(even), 0).astype(np.int64)

    @property
    def bytes_once(self) -> int:
        """Bytes of all ranks, each counted once."""
        return int(self.loads().sum()) * self.size_bytes


@dataclass(frozen=True, kw_only=True)
class Took:
    """What a phase takes in the model, in s.

    Parameters
    ----------
    data_s : array of float, shape (ranks,)
        What each rank spends on data.
    metadata_s : float
        Likewise on metadata.
    total_s : float
        Until the last rank is done.
    """

    data_s: NDArray[np.float64]
    metadata_s: float
    total_s: float


def took(phase: Phase, servers: Servers) -> Took:
    """Return what a phase takes.

    Parameters
    ----------
    phase : Phase
    servers : Servers
    """
    loads = phase.loads().astype(np.float64) * phase.again
    sizes = loads * phase.size_bytes
    total_bytes, ranks = float(sizes.sum()), phase.ranks
    spread = phase.stripes if phase.shared or ranks == 1 else phase.stripes * ranks * phase.files
    used = min(servers.servers, max(1, spread))
    calls = phase.calls * phase.files
    metadata_s = max(calls * ranks * servers.metadata_s, 3 * calls * servers.metadata_s)
    packets = total_bytes / servers.packet_bytes
    if phase.interface == "collective":
        aggregators = min(ranks, servers.servers)
        exchange_s = total_bytes / ranks / servers.exchange_bytes_per_s + 2e-4 * math.ceil(packets / aggregators / 4)
        server_s = (packets * servers.request_s + total_bytes / servers.server_bytes_per_s) / used
        busiest_s = total_bytes / aggregators / servers.client_bytes_per_s
        all_s = exchange_s + max(server_s, busiest_s)
        return Took(data_s=np.full(ranks, all_s), metadata_s=metadata_s, total_s=all_s + metadata_s)
    joined = phase.pattern == "consecutive" and phase.size_bytes < servers.packet_bytes
    pieces = np.maximum(1.0, np.ceil(phase.size_bytes / servers.packet_bytes))
    at_server = packets if joined else float(loads.sum()) * pieces
    alone = np.zeros(ranks) if joined else loads
    moved = total_bytes
    if phase.shift_bytes % ALIGNMENT_BYTES and not joined:
        # One more block is touched, and for a write a stripe of the disks is read first.
        at_server += float(loads.sum()) * (2 if phase.writes else 1)
        moved += float(loads.sum()) * (512 if phase.writes else 64) * KIB
    busy_s = at_server * servers.request_s + moved / servers.server_bytes_per_s
    if phase.pattern == "random":
        busy_s += float(loads.sum()) * servers.seek_s
    if contended(phase):
        busy_s += float(loads.sum()) * servers.lock_s
    server_s = busy_s / used
    rate = servers.stdio_bytes_per_s if phase.interface == "stdio" else servers.client_bytes_per_s
    client_s = loads * servers.client_request_s + sizes / rate + alone * servers.round_trip_s
    waits_s = server_s * sizes / max(float(sizes.max()), 1.0)
    each_s: NDArray[np.float64] = np.maximum(client_s, waits_s)
    return Took(data_s=each_s, metadata_s=metadata_s, total_s=float(each_s.max()) + metadata_s)


def contended(phase: Phase) -> bool:
    """Return whether ranks take blocks of a shared file from each other.

    Parameters
    ----------
    phase : Phase
    """
    if not (phase.shared and phase.writes and phase.ranks > 1) or phase.interface == "collective":
        return False
    interleaved = phase.pattern != "consecutive" and phase.size_bytes < ALIGNMENT_BYTES
    across = phase.pattern != "consecutive" and phase.shift_bytes % ALIGNMENT_BYTES != 0
    return interleaved or across


def io_time_s(phases: Sequence[Phase], servers: Servers) -> float:
    """Return the I/O time of a program, one phase after another.

    Parameters
    ----------
    phases : sequence of Phase
    servers : Servers
    """
    return sum(took(phase, servers).total_s for phase in phases)


def without(phase: Phase, code: str, processes: int, servers: Servers) -> Phase:
    """Return a phase from which an issue is removed; the same phase where it does not have it.

    Parameters
    ----------
    phase : Phase
    code : str
        One of ``CODES``.
    processes : int
        Of the whole program.
    servers : Servers
    """
    of, _, direction = code.partition("-")
    if direction and (direction == "W") != phase.writes:
        return phase
    many = phase.shared and phase.ranks > 1
    match of:
        case "SML" if phase.size_bytes < MIB and phase.interface in ("posix", "independent"):
            each = max(1, phase.requests * phase.size_bytes // servers.packet_bytes)
            return replace(phase, size_bytes=max(1, phase.requests * phase.size_bytes // each), requests=each)
        case "MSL":
            return replace(phase, shift_bytes=0)
        case "RMA" if phase.pattern == "random":
            return replace(phase, pattern="consecutive")
        case "RDA":
            return replace(phase, again=1)
        case "NC" if many and phase.interface == "independent":
            return replace(phase, interface="collective")
        case "MPNM" if many and phase.interface == "posix":
            return replace(phase, interface="collective")
        case "LLL" if phase.interface == "stdio":
            return replace(phase, interface="posix")
        case "HMD":
            return replace(phase, calls=min(phase.calls, 2))
        case "SLIM":
            return replace(phase, stripes=servers.servers)
        case "RLIM" if phase.ranks < processes:
            each = max(1, phase.requests * phase.ranks // processes)
            size = max(1, phase.bytes_once // (each * processes))
            return replace(phase, skew=0.0, ranks=processes, requests=each, size_bytes=size)
        case "RLIM":
            return replace(phase, skew=0.0)
        case "SHF" if contended(phase):
            return replace(phase, shared=False, pattern="consecutive" if phase.pattern == "strided" else phase.pattern)
    return phase


def gains(phases: Sequence[Phase], processes: int, servers: Servers) -> dict[str, float]:
    """Return by code the share of the I/O time that is saved without the issue.

    Parameters
    ----------
    phases : sequence of Phase
    processes : int
    servers : Servers
    """
    whole_s = io_time_s(phases, servers)
    return {
        code: 1 - io_time_s([without(phase, code, processes, servers) for phase in phases], servers) / whole_s
        for code in CODES
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class PlantedTrace:
    """A log with its truth.

    Parameters
    ----------
    log : DarshanLog
    truth : frozenset of str
        Codes of the issues that count.
    template : str
        The family of programs.
    planted : mapping of str to float
        Kinds that were planted, with their strengths; they need not count.
    decoy : bool
        Whether something was added that looks like an issue and costs next to nothing; in a program that is very short
        it may count all the same.
    gains : mapping of str to float
        By code, the share of the I/O time saved without it.
    """

    log: DarshanLog
    truth: frozenset[str]
    template: str
    planted: Mapping[str, float]
    decoy: bool
    gains: Mapping[str, float]

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds that count, reads and writes together."""
        return frozenset(kind(code) for code in self.truth)

    @property
    def strength(self) -> float:
        """Strength of what was planted strongest; 0 where nothing was."""
        return max(self.planted.values(), default=0.0)


# --- templates: what families of programs do when nothing is wrong ---


def _wide(ranks: int, servers: int = 16) -> int:
    return max(1, -(-servers // ranks))


def _own(name: str, *, writes: bool, ranks: int, total: float, size: int) -> Phase:
    each = max(1, round(total / ranks / size))
    return Phase(name=name, writes=writes, ranks=ranks, shared=False, size_bytes=size, requests=each,
                 stripes=_wide(ranks))  # fmt: skip


def _joint(name: str, *, writes: bool, ranks: int, total: float, size: int, interface: str = "collective") -> Phase:
    each = max(1, round(total / ranks / size))
    pattern = "strided" if interface == "collective" else "consecutive"
    return Phase(name=name, writes=writes, ranks=ranks, shared=True, size_bytes=size, requests=each, pattern=pattern,
                 interface=interface, stripes=16)  # fmt: skip


Template = Callable[[np.random.Generator, int, float, int], list[Phase]]


def _checkpoint_shared(draws: np.random.Generator, n: int, total: float, size: int) -> list[Phase]:
    return [_joint("checkpoint", writes=True, ranks=n, total=total, size=size)]


def _checkpoint_own(draws: np.random.Generator, n: int, total: float, size: int) -> list[Phase]:
    return [_own("checkpoint", writes=True, ranks=n, total=total, size=size)]


def _restart(draws: np.random.Generator, n: int, total: float, size: int) -> list[Phase]:
    return [_joint("restart", writes=False, ranks=n, total=total, size=size)]


def _climate(draws: np.random.Generator, n: int, total: float, size: int) -> list[Phase]:
    many = int(draws.integers(2, 5))
    return [_joint(f"history{k}", writes=True, ranks=n, total=total / many, size=size) for k in range(many)]


def _training(draws: np.random.Generator, n: int, total: float, size: int) -> list[Phase]:
    model = _own("model", writes=True, ranks=n, total=0.2 * total, size=size)
    return [_own("samples", writes=False, ranks=n, total=0.8 * total, size=size), model]


def _scan(draws: np.random.Generator, n: int, total: float, size: int) -> list[Phase]:
    return [_joint("table", writes=False, ranks=n, total=total, size=size, interface="posix")]


def _sorting(draws: np.random.Generator, n: int, total: float, size: int) -> list[Phase]:
    return [
        _own("runs", writes=True, ranks=n, total=0.5 * total, size=size),
        _own("merge", writes=False, ranks=n, total=0.5 * total, size=size),
    ]


def _visualisation(draws: np.random.Generator, n: int, total: float, size: int) -> list[Phase]:
    frames = _own("frames", writes=True, ranks=n, total=0.15 * total, size=size)
    return [_joint("field", writes=False, ranks=n, total=0.85 * total, size=size), frames]


def _reduction(draws: np.random.Generator, n: int, total: float, size: int) -> list[Phase]:
    result = _own("result", writes=True, ranks=1, total=0.005 * total, size=MIB)
    return [_own("input", writes=False, ranks=n, total=total, size=size), result]


def _coupled(draws: np.random.Generator, n: int, total: float, size: int) -> list[Phase]:
    return [
        _joint("ocean", writes=False, ranks=n, total=0.3 * total, size=size),
        _joint("ocean-out", writes=True, ranks=n, total=0.4 * total, size=size),
        _own("ice", writes=True, ranks=n, total=0.3 * total, size=size),
    ]


def _genomes(draws: np.random.Generator, n: int, total: float, size: int) -> list[Phase]:
    many = int(draws.integers(2, 5))
    reads = _own("reads", writes=False, ranks=n, total=0.7 * total / many, size=size)
    return [replace(reads, files=many), _own("aligned", writes=True, ranks=n, total=0.3 * total, size=size)]


def _ensemble(draws: np.random.Generator, n: int, total: float, size: int) -> list[Phase]:
    forcing = _joint("forcing", writes=False, ranks=n, total=0.4 * total, size=size, interface="posix")
    return [forcing, _joint("members", writes=True, ranks=n, total=0.6 * total, size=size)]


TEMPLATES: dict[str, Template] = {
    "checkpoint-shared": _checkpoint_shared, "checkpoint-own": _checkpoint_own, "restart": _restart,
    "climate": _climate, "training": _training, "scan": _scan, "sorting": _sorting, "visualisation": _visualisation,
    "reduction": _reduction, "coupled": _coupled, "genomes": _genomes, "ensemble": _ensemble,
}  # fmt: skip
"""Families of programs."""


# --- planting ---


def _part(phase: Phase, share: float, draws: np.random.Generator, **change: object) -> tuple[Phase, Phase]:
    """Return what is left of a phase, and a part of its bytes with other traits: in the same file, or another."""
    moved = share * phase.bytes_once
    size = int(change.get("size_bytes", phase.size_bytes))  # type: ignore[call-overload]
    ranks = int(change.get("ranks", phase.ranks))  # type: ignore[call-overload]
    each = max(1, min(round(moved / ranks / size), _MOST_REQUESTS // ranks))
    left = max(1, phase.requests - round(each * ranks * size / phase.ranks / phase.size_bytes))
    same = change.get("shared", phase.shared) == phase.shared and change.get("stripes", phase.stripes) == phase.stripes
    name = phase.name if same and draws.random() < 0.5 else f"{phase.name}-{len(change)}{draws.integers(10**6)}"
    return replace(phase, requests=left), replace(phase, name=name, requests=each, **change)  # type: ignore[arg-type]


def _small(draws: np.random.Generator) -> int:
    return int(2 ** draws.uniform(11, 17.5))


def _odd(draws: np.random.Generator) -> int:
    return int(draws.choice([512, 2048, 4096, 100, 65_536]))


def _plant(of: str, phase: Phase, d: float, draws: np.random.Generator, processes: int) -> tuple[Phase, Phase] | None:
    """Return the phase with a part that has an issue; None where it cannot have it."""
    loose = "independent" if phase.interface == "collective" else phase.interface
    middle = int(2 ** draws.uniform(16, 19.5))
    match of:
        case "SML":
            pattern = str(draws.choice(["consecutive", "strided"]))
            return _part(phase, d, draws, size_bytes=_small(draws), pattern=pattern, interface=loose)
        case "MSL":
            size = int(2 ** draws.uniform(17, 22.5))
            return _part(phase, d, draws, size_bytes=size, shift_bytes=_odd(draws), pattern="strided", interface=loose)
        case "RMA":
            return _part(phase, d, draws, size_bytes=middle, pattern="random", interface=loose)
        case "RDA" if not phase.writes:
            return _part(phase, d, draws, again=int(draws.integers(2, 7)))
        case "NC" if phase.shared:
            return _part(phase, d, draws, size_bytes=middle, pattern="strided", interface="independent")
        case "MPNM" if phase.shared:
            return _part(phase, d, draws, size_bytes=middle, pattern="strided", interface="posix")
        case "SHF" if phase.writes:
            chosen = str(draws.choice(["posix", "independent"]))
            return _part(phase, d, draws, size_bytes=middle, pattern="strided", interface=chosen, shared=True,
                         stripes=16)  # fmt: skip
        case "LLL":
            return _part(phase, d, draws, size_bytes=_small(draws), pattern="consecutive", interface="stdio",
                         shared=False, ranks=int(draws.choice([1, phase.ranks])))  # fmt: skip
        case "HMD":
            return phase, replace(phase, calls=phase.calls + int(d * 1000 / phase.files))
        case "SLIM" if phase.shared or phase.ranks <= 16:
            return _part(phase, d, draws, stripes=1, shared=True)
        case "RLIM":
            if draws.random() < 0.5:
                return _part(phase, d, draws, ranks=1, shared=False, stripes=16, interface="posix",
                             pattern="consecutive")  # fmt: skip
            return phase, replace(phase, skew=d)
    return None


def _decoy(phases: Sequence[Phase], draws: np.random.Generator, processes: int) -> Phase:
    """Return a phase that looks like an issue and costs next to nothing."""
    writes = bool(draws.random() < 0.5)
    match int(draws.integers(5)):
        case 0:
            return Phase(name="notes", writes=writes, ranks=1, shared=False, size_bytes=512, requests=2000, stripes=1)
        case 1:
            return Phase(name="index", writes=False, ranks=processes, shared=False, size_bytes=4096,
                         requests=1 + 40 // processes, pattern="random", stripes=_wide(processes))  # fmt: skip
        case 2:
            return Phase(name="log", writes=True, ranks=1, shared=False, size_bytes=80, requests=5000,
                         interface="stdio", stripes=1)  # fmt: skip
        case 3:
            return Phase(name="tables", writes=False, ranks=processes, shared=False, size_bytes=8 * KIB,
                         requests=1 + 1500 // processes, stripes=_wide(processes))  # fmt: skip
        case _:
            base = max(phases, key=lambda each: each.bytes_once)
            if base.interface == "collective" or base.size_bytes < 4 * MIB:
                return Phase(name="header", writes=writes, ranks=processes, shared=True, size_bytes=200, requests=2,
                             pattern="strided", stripes=16, shift_bytes=100)  # fmt: skip
            return replace(base, name="shifted", requests=1, shift_bytes=2048)


def make_trace(template: str, seed: int, number: int, *, servers: Servers | None = None) -> PlantedTrace:
    """Return one trace of a template.

    Parameters
    ----------
    template : str
        One of :data:`TEMPLATES`.
    seed : int
    number : int
        Of the trace.
    servers : Servers, optional
        The modelled file system.
    """
    servers = servers or Servers()
    draws = stream(seed, "planted", template, number)
    processes = int(2 ** draws.integers(2, 7))
    total = float(2 ** draws.uniform(29, 34))
    size = int(2 ** draws.integers(22, 25))
    phases = TEMPLATES[template](draws, processes, total, size)
    chance = draws.random()
    count = 0 if chance < 0.3 else 1 if chance < 0.6 else int(draws.integers(2, 5))
    planted: dict[str, float] = {}
    kinds = ["SML", "MSL", "RMA", "RDA", "NC", "MPNM", "SHF", "LLL", "HMD", "SLIM", "RLIM"]
    changed: list[int] = []
    for of in draws.permutation(kinds).tolist():
        if len(planted) == count:
            break
        strength = float(10 ** draws.uniform(-2, 0))
        again = changed and draws.random() < 0.4
        at = changed[-1] if again else int(draws.integers(len(phases)))
        found = _plant(of, phases[at], strength, draws, processes)
        if found is None:
            continue
        left, part = found
        planted[of] = strength
        if left is phases[at]:
            phases[at] = part
            changed.append(at)
        else:
            phases[at] = left
            phases.append(part)
            changed.append(len(phases) - 1)
    decoy = bool(draws.random() < 0.2)
    if decoy:
        phases.append(_decoy(phases, draws, processes))
    saved = gains(phases, processes, servers)
    return PlantedTrace(
        log=counted(phases, processes, servers, draws), template=template, planted=planted, decoy=decoy, gains=saved,
        truth=frozenset(code for code, gain in saved.items() if gain > GAIN),
    )  # fmt: skip


def make_traces(
    seed: int, *, tuning: int = 150, held_out: int = 50, servers: Servers | None = None
) -> tuple[list[PlantedTrace], list[PlantedTrace]]:
    """Return traces to tune with, and traces of templates that are not among those.

    Parameters
    ----------
    seed : int
        Also decides which three templates are held out.
    tuning, held_out : int
    servers : Servers, optional
        The modelled file system.
    """
    order = stream(seed, "templates").permutation(list(TEMPLATES)).tolist()
    out, rest = order[:3], order[3:]
    return (
        [make_trace(rest[number % len(rest)], seed, number, servers=servers) for number in range(tuning)],
        [make_trace(out[number % len(out)], seed, tuning + number, servers=servers) for number in range(held_out)],
    )


# --- counters, by Darshan's definitions ---


@dataclass
class _FileUse:
    """What happened to one file: streams of requests by rank, and times."""

    stripes: int
    shared: bool
    streams: dict[int, list[tuple[Phase, NDArray[np.int64], int]]] = field(default_factory=dict)
    seconds: dict[int, list[float]] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    mpi: dict[int, list[Phase]] = field(default_factory=dict)


def offsets(phase: Phase, rank: int, draws: np.random.Generator) -> NDArray[np.int64]:
    """Return where the requests of a rank begin, in their order.

    Parameters
    ----------
    phase : Phase
    rank : int
    draws : numpy.random.Generator
        Orders the requests of a random pattern.
    """
    loads = phase.loads()
    count = int(loads[rank])
    index = np.arange(count, dtype=np.int64)
    if phase.pattern == "strided" and phase.shared:
        starts = index * phase.ranks + rank
    elif phase.pattern == "strided":
        starts = index * 2
    else:
        if phase.pattern == "random":
            index = draws.permutation(index)
        starts = index + (int(loads[:rank].sum()) if phase.shared else 0)
    found = starts * phase.size_bytes + phase.shift_bytes
    return np.tile(found, phase.again)


def _reach(phase: Phase) -> int:
    """Return how many bytes of a file a phase reaches over, to the next multiple of the alignment."""
    loads = phase.loads()
    far = int(loads.sum()) if phase.shared else int(loads.max()) * (2 if phase.pattern == "strided" else 1)
    if phase.shared and phase.pattern == "strided":
        far = int(loads.max()) * phase.ranks
    return -(-(far * phase.size_bytes + phase.shift_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _collective_offsets(phase: Phase, rank: int, servers: Servers) -> tuple[NDArray[np.int64], int]:
    """Return what a rank asks of the file system for a collective phase: packets if it is an aggregator, else none."""
    aggregators = min(phase.ranks, servers.servers)
    step = phase.ranks // aggregators
    packets = max(1, phase.bytes_once // servers.packet_bytes)
    if rank % step or rank // step >= aggregators:
        return np.empty(0, np.int64), servers.packet_bytes
    size = servers.packet_bytes if phase.bytes_once >= servers.packet_bytes else max(1, phase.bytes_once)
    return np.tile(np.arange(rank // step, packets, aggregators, dtype=np.int64) * size, phase.again), size


def counted(phases: Sequence[Phase], processes: int, servers: Servers, draws: np.random.Generator) -> DarshanLog:
    """Return the log of a program.

    Parameters
    ----------
    phases : sequence of Phase
    processes : int
    servers : Servers
    draws : numpy.random.Generator
        Of the order of random requests and the noise of times.
    """
    files: dict[tuple[str, int, str], _FileUse] = {}
    whole_s = 0.0
    # Phases of one file use bytes of their own: only ``again`` reads any twice.
    ends: dict[str, int] = {}
    for phase in phases:
        base = ends.get(phase.name, 0)
        ends[phase.name] = base + _reach(phase)
        spent = took(phase, servers)
        noise = float(np.exp(draws.normal(0, 0.1)))
        whole_s += spent.total_s * noise
        module = "STDIO" if phase.interface == "stdio" else "POSIX"
        for rank in range(phase.ranks):
            own_noise = noise * float(np.exp(draws.normal(0, 0.02)))
            if phase.interface == "collective":
                found, size = _collective_offsets(phase, rank, servers)
            else:
                found, size = offsets(phase, rank, draws), phase.size_bytes
            found = found + base
            parts = np.array_split(found, phase.files) if phase.files > 1 else [found]
            for number, part in enumerate(parts):
                owner = -1 if phase.shared else rank * 1000 + number
                use = files.setdefault((phase.name, owner, module), _FileUse(phase.stripes, phase.shared))
                use.streams.setdefault(rank, []).append((phase, part, size))
                seconds = use.seconds.setdefault(rank, [0.0, 0.0, 0.0])
                seconds[phase.writes] += float(spent.data_s[rank]) * own_noise / phase.files
                seconds[2] += 3 * phase.calls * servers.metadata_s * max(1.0, phase.ranks / 3) * own_noise
                use.calls[rank] = use.calls.get(rank, 0) + phase.calls
                if phase.interface in ("independent", "collective"):
                    use.mpi.setdefault(rank, []).append(phase)
    run_time_s = whole_s / float(draws.uniform(0.1, 0.8))
    rows: dict[str, list[tuple[int, int, dict[str, float]]]] = {"POSIX": [], "MPI-IO": [], "STDIO": []}
    names, stripes = dict[int, str](), list[tuple[int, int]]()
    for number, ((name, owner, module), use) in enumerate(files.items(), start=1):
        names[number] = f"/scratch/{name}" + (f".{owner}" if owner >= 0 else "")
        if module == "POSIX":
            stripes.append((number, use.stripes))
        each = {rank: _counters(module, use, rank) for rank in use.streams}
        rows[module] += _reduced(number, each, processes, module)
        if use.mpi:
            layer = {rank: _mpi_counters(use, rank) for rank in use.mpi}
            rows["MPI-IO"] += _reduced(number, layer, processes, "MPIIO")
    return DarshanLog(
        version="3.41", processes=processes, run_time_s=run_time_s, program="planted", names=names,
        modules={name: _module(name, found) for name, found in rows.items() if found},
        stripes=StripeRecords(
            version=2, incomplete=False, file=np.array([file for file, _ in stripes], np.uint64),
            rank=np.zeros(len(stripes), np.int64), stripe_bytes=np.full(len(stripes), ALIGNMENT_BYTES),
            stripe_count=np.array([count for _, count in stripes], np.int64),
        ) if stripes else None,
    )  # fmt: skip


def _counters(module: str, use: _FileUse, rank: int) -> dict[str, float]:
    """Return what Darshan counts of the requests of a rank to a file, in their order."""
    found: dict[str, float] = {}

    def add(name: str, value: float) -> None:
        found[name] = found.get(name, 0) + value

    seconds, calls = use.seconds[rank], use.calls[rank]
    last = {False: 0, True: 0}
    before: bool | None = None
    for phase, starts, size in use.streams[rank]:
        word = "WRITE" if phase.writes else "READ"
        moved = "WRITTEN" if phase.writes else "READ"
        count = len(starts)
        if not count:
            continue
        add(f"{module}_{word}S", count)
        add(f"{module}_BYTES_{moved}", count * size)
        highest = f"{module}_MAX_BYTE_{moved}"
        found[highest] = max(found.get(highest, 0), int(starts.max()) + size - 1)
        if module == "POSIX":
            ends = np.concatenate(([last[phase.writes]], starts[:-1] + size - 1))
            add(f"POSIX_SEQ_{word}S", int((starts > ends).sum()))
            add(f"POSIX_CONSEC_{word}S", int((starts == ends + 1).sum()))
            add("POSIX_FILE_NOT_ALIGNED", int((starts % ALIGNMENT_BYTES != 0).sum()))
            add(f"POSIX_SIZE_{word}_{size_class(size)}", count)
            add("POSIX_RW_SWITCHES", before is not None and before != phase.writes)
        last[phase.writes], before = int(starts[-1]) + size - 1, phase.writes
    opens = min(calls, 1 + calls // 4)
    add(f"{module}_OPENS", opens)
    if module == "POSIX":
        add("POSIX_STATS", calls - opens)
        found["POSIX_FILE_ALIGNMENT"], found["POSIX_MEM_ALIGNMENT"] = ALIGNMENT_BYTES, 8
    for name, value in zip(("READ", "WRITE", "META"), seconds, strict=True):
        found[f"{module}_F_{name}_TIME"] = value
    return found


def size_class(size: int) -> str:
    """Return the end of the name of the counter for requests of a size.

    Parameters
    ----------
    size : int
        In bytes.
    """
    names = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS")
    return names[int(np.searchsorted(SIZE_BOUNDS_BYTES, size, "left"))]


def _mpi_counters(use: _FileUse, rank: int) -> dict[str, float]:
    found: dict[str, float] = {"MPIIO_COLL_OPENS": 1}
    for phase in use.mpi[rank]:
        word = "WRITE" if phase.writes else "READ"
        way = "COLL" if phase.interface == "collective" else "INDEP"
        count = int(phase.loads()[rank]) * phase.again
        name = f"MPIIO_{way}_{word}S"
        found[name] = found.get(name, 0) + count
        sizes = f"MPIIO_SIZE_{word}_AGG_{size_class(phase.size_bytes)}"
        found[sizes] = found.get(sizes, 0) + count
        moved = f"MPIIO_BYTES_{'WRITTEN' if phase.writes else 'READ'}"
        found[moved] = found.get(moved, 0) + count * phase.size_bytes
    for name, value in zip(("READ", "WRITE", "META"), use.seconds[rank], strict=True):
        found[f"MPIIO_F_{name}_TIME"] = value
    return found


def _reduced(
    number: int, each: Mapping[int, dict[str, float]], processes: int, prefix: str
) -> list[tuple[int, int, dict[str, float]]]:
    """Return the records of a file: one for all ranks where all opened it, else one a rank."""
    if len(each) < processes or processes == 1:
        return [(number, rank, found) for rank, found in each.items()]
    total: dict[str, float] = {}
    for found in each.values():
        for name, value in found.items():
            if "MAX_BYTE" in name or "ALIGNMENT" in name:
                total[name] = max(total.get(name, 0), value)
            else:
                total[name] = total.get(name, 0) + value
    spent = {
        rank: sum(found.get(f"{prefix}_F_{part}_TIME", 0.0) for part in ("READ", "WRITE", "META"))
        for rank, found in each.items()
    }
    moved = {
        rank: found.get(f"{prefix}_BYTES_READ", 0) + found.get(f"{prefix}_BYTES_WRITTEN", 0)
        for rank, found in each.items()
    }
    for word, rank in (("FASTEST", min(spent, key=spent.__getitem__)), ("SLOWEST", max(spent, key=spent.__getitem__))):
        total[f"{prefix}_{word}_RANK"] = rank
        total[f"{prefix}_{word}_RANK_BYTES"] = moved[rank]
        total[f"{prefix}_F_{word}_RANK_TIME"] = spent[rank]
    total[f"{prefix}_F_VARIANCE_RANK_TIME"] = float(np.var(list(spent.values())))
    total[f"{prefix}_F_VARIANCE_RANK_BYTES"] = float(np.var([float(value) for value in moved.values()]))
    return [(number, -1, total)]


def _module(name: str, rows: Sequence[tuple[int, int, dict[str, float]]]) -> ModuleRecords:
    found = empty_records(name, len(rows))
    found.file[:] = [file for file, _, _ in rows]
    found.rank[:] = [rank for _, rank, _ in rows]
    for index, (_, _, values) in enumerate(rows):
        for counter, value in values.items():
            if counter in found.times:
                found.times[counter][index] = value
            else:
                found.counters[counter][index] = int(value)
    return found
