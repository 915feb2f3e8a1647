"""A cluster of GPU nodes as its monitoring sees it, streamed in chunks, with faults whose signatures were planted.

All nodes run one job: it trains, saves a checkpoint every hour, and starts again after a failure or at its end, so
that most of what moves moves on all nodes alike.  Nodes differ from each other for good, every series has noise with a
memory, and harmless events strike single nodes: bursts of paging and of system time, a warm GPU, slow storage, samples
that were not scraped.  A fault departs on the metrics of its class (:data:`CLASSES`) for a while before the job breaks
down on all nodes at once; some classes are then logged as an XID.

Metrics have the names of the exporters, and levels are round figures for nodes of eight B200.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.diagnosis.planters import Plant, plant
from wavetank.errors import BadValueError
from wavetank.sim.compiled import compiled
from wavetank.sim.rng import stream

STEP_S = 30
DAY = 86_400 // STEP_S
CHUNK = DAY // 4
GPUS = 8
TRAIN, CHECKPOINT, LOAD, IDLE = range(4)

_CHECKPOINT_EVERY, _CHECKPOINT = 120, 6
_IDLE, _LOAD = 22, 8
# What is left of a fault after the job broke down, until the node is taken out.
_AFTER = 20
_LEAD = (4, 120)
_JITTER = 2

_NORMAL, _LOG, _RARE, _NEVER = range(4)


class MetricKind(NamedTuple):
    """How one metric behaves while nothing is wrong.

    Attributes
    ----------
    name : str
        As its exporter calls it, with the GPU or port.
    layer : str
    levels : tuple of float
        While training, saving, loading, and idle.
    noise : float
        Relative; of a rare metric its size when it is not zero.
    spread : float
        Relative difference between nodes that lasts.
    memory : float
        Correlation of the noise with the sample before.
    shape : int
        Normal, log-normal, rarely above zero, never.
    """

    name: str
    layer: str
    levels: tuple[float, float, float, float]
    noise: float
    spread: float
    memory: float
    shape: int


def _metrics() -> tuple[MetricKind, ...]:
    rows: list[MetricKind] = []

    def add(layer: str, name: str, levels: tuple[float, float, float, float], noise: float, spread: float,
            memory: float, shape: int = _NORMAL, times: str = "") -> None:  # fmt: skip
        names = [f"{name}{{{times}={each}}}" for each in range(GPUS)] if times else [name]
        rows.extend(MetricKind(each, layer, levels, noise, spread, memory, shape) for each in names)

    none = (0.0, 0.0, 0.0, 0.0)
    add("gpu", "DCGM_FI_DEV_GPU_TEMP", (62, 52, 45, 34), 0.02, 0.05, 0.95, times="gpu")
    add("gpu", "DCGM_FI_DEV_MEMORY_TEMP", (68, 58, 50, 38), 0.02, 0.05, 0.95, times="gpu")
    add("gpu", "DCGM_FI_DEV_POWER_USAGE", (760, 340, 250, 140), 0.05, 0.02, 0.3, times="gpu")
    add("gpu", "DCGM_FI_DEV_GPU_UTIL", (97, 12, 20, 0), 0.03, 0.0, 0.2, times="gpu")
    add("gpu", "DCGM_FI_PROF_NVLINK_TX_BYTES", (220e9, 5e9, 2e9, 0), 0.08, 0.01, 0.2, times="gpu")
    add("gpu", "DCGM_FI_DEV_XID_ERRORS", none, 1.0, 0, 0, _NEVER)
    add("gpu", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", none, 2.0, 0, 0, _RARE)
    add("gpu", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", none, 1.0, 0, 0, _NEVER)
    add("gpu", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", (4, 1, 1, 1), 0.0, 0, 0)
    add("gpu", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", none, 2.0, 0, 0, _RARE)
    add("gpu", "DCGM_FI_DEV_ROW_REMAP_PENDING", none, 1.0, 0, 0, _NEVER)
    host = (
        ("node_intr", (10_000, 7_000, 6_000, 1_500), 0.06, 0.03, 0.5), ("node_context_switches", (42_000, 30_000,
        25_000, 4_000), 0.08, 0.04, 0.5), ("node_procs_running", (26, 14, 12, 2), 0.15, 0.0, 0.3),
        ("node_procs_blocked", (1, 6, 3, 0.5), 0.5, 0.0, 0.2), ("node_cpu_user", (24, 12, 10, 1), 0.06, 0.03, 0.6),
        ("node_cpu_system", (6, 9, 7, 1), 0.10, 0.04, 0.5), ("node_cpu_iowait", (0.3, 4, 2, 0.1), 0.4, 0.0, 0.4),
        ("node_memory_used", (900e9, 1000e9, 700e9, 120e9), 0.01, 0.02, 0.95), ("node_load1", (30, 22, 18, 2), 0.08,
        0.02, 0.9), ("node_forks", (12, 14, 40, 5), 0.3, 0.0, 0.2), ("node_softirqs", (30_000, 24_000, 20_000, 3_000),
        0.07, 0.03, 0.5), ("node_filefd_allocated", (21_000, 23_000, 20_000, 9_000), 0.01, 0.03, 0.95),
        ("node_sockstat_sockets", (2_400, 2_500, 1_800, 500), 0.02, 0.02, 0.9), ("node_vmstat_pgfault", (60_000, 80_000,
        120_000, 8_000), 0.15, 0.02, 0.4),
    )  # fmt: skip
    for name, levels, noise, spread, memory in host:
        add("host", name, levels, noise, spread, memory)
    for name, levels, noise in (
        ("node_vmstat_pgpgin", (40, 60, 900, 5), 0.6), ("node_vmstat_pgpgout", (30, 400, 60, 8), 0.6),
        ("node_disk_io_time", (0.02, 0.05, 0.06, 0.01), 0.5), ("node_dirty_bytes", (2e8, 2e9, 4e8, 1e8), 0.4),
        ("node_disk_latency", (0.4e-3, 0.9e-3, 0.8e-3, 0.3e-3), 0.5), ("node_tcp_retrans", (3, 12, 10, 1), 0.6),
    ):  # fmt: skip
        add("host", name, levels, noise, 0.05, 0.4, _LOG)
    add("network", "node_infiniband_port_data_transmitted", (9e9, 1e9, 0.5e9, 1e6), 0.06, 0.01, 0.3, times="port")
    add("network", "node_infiniband_port_data_received", (9e9, 0.5e9, 2e9, 1e6), 0.06, 0.01, 0.3, times="port")
    add("network", "node_infiniband_symbol_errors", none, 3.0, 0, 0, _RARE)
    add("network", "node_infiniband_link_downed", none, 1.0, 0, 0, _NEVER)
    add("network", "node_roce_retransmissions", (4, 30, 20, 1), 0.6, 0.05, 0.3, _LOG)
    add("network", "node_network_transmit", (8e6, 2e9, 5e6, 1e6), 0.2, 0.02, 0.4)
    add("storage", "nfs_write_bytes", (2e6, 0.5e9, 1e6, 1e5), 0.3, 0.0, 0.3)
    add("storage", "nfs_read_bytes", (40e6, 5e6, 1.8e9, 1e5), 0.3, 0.0, 0.3)
    for name, levels in (
        ("nfs_getattr_latency", (10e-3, 30e-3, 25e-3, 6e-3)), ("nfs_read_latency", (8e-3, 20e-3, 40e-3, 5e-3)),
        ("nfs_write_latency", (12e-3, 180e-3, 20e-3, 8e-3)), ("nfs_retransmissions", (0.2, 1.5, 1.0, 0.1)),
    ):  # fmt: skip
        add("storage", name, levels, 0.4, 0.05, 0.5, _LOG)
    add("storage", "nfs_operations", (120, 4_000, 6_000, 10), 0.25, 0.0, 0.4)
    add("storage", "nfs_queue_share", (20, 93, 60, 5), 0.05, 0.0, 0.4)
    for fan in range(4):
        add("chassis", f"ipmi_fan_speed{{fan={fan}}}", (12_000, 10_500, 9_500, 6_000), 0.02, 0.02, 0.9)
    add("chassis", "ipmi_temperature_inlet", (24, 24, 24, 23), 0.02, 0.05, 0.98)
    add("chassis", "ipmi_temperature_exhaust", (46, 42, 39, 31), 0.02, 0.04, 0.95)
    for supply in range(2):
        add("chassis", f"ipmi_power{{psu={supply}}}", (4_900, 2_900, 2_300, 1_300), 0.03, 0.02, 0.4)
    return tuple(rows)


METRICS = _metrics()
NAMES = tuple(each.name for each in METRICS)
LAYERS = tuple(dict.fromkeys(each.layer for each in METRICS))
LAYER_OF = np.array([LAYERS.index(each.layer) for each in METRICS], dtype=np.int64)
XID = NAMES.index("DCGM_FI_DEV_XID_ERRORS")


@functools.cache
def indices(prefix: str) -> tuple[int, ...]:
    """Return the metrics whose names begin so.

    Parameters
    ----------
    prefix : str

    Raises
    ------
    BadValueError
        If there is none.
    """
    found = tuple(index for index, name in enumerate(NAMES) if name.startswith(prefix))
    if not found:
        raise BadValueError("No metric of the simulated cluster has this name.", given=prefix, allowed=NAMES)
    return found


class Effect(NamedTuple):
    """What a class of faults does to one metric, at full strength.

    Attributes
    ----------
    metric : str
        Beginning of the names.
    kind : str
        Of a plant.
    factor, size : float
    one : bool
        Whether it strikes one of the metrics that begin so (a GPU, a port, the same for all effects), or all of them.
    """

    metric: str
    kind: str = "level"
    factor: float = 1.0
    size: float = 0.0
    one: bool = False


class FaultClass(NamedTuple):
    """A class of faults.

    Attributes
    ----------
    name : str
    xid : int
        Logged when the job breaks down; 0 for none.
    recorded : int
        Faults of this class among those of 400 servers over 348 days (data set ``gpu-cluster-ops``).
    effects : tuple of Effect
        Empty where the whole node stops reporting.
    """

    name: str
    xid: int
    recorded: int
    effects: tuple[Effect, ...]


CLASSES = (
    FaultClass("nvlink", 74, 3, (
        Effect("node_intr", factor=0.28), Effect("node_procs_running", factor=0.05),
        Effect("node_context_switches", factor=0.4), Effect("DCGM_FI_PROF_NVLINK_TX_BYTES", factor=0.05, one=True))),
    FaultClass("ecc", 94, 61, (
        Effect("nfs_getattr_latency", "spike", factor=12.0), Effect("node_vmstat_pgpgout", "spike", factor=15.0),
        Effect("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "spike", size=20.0))),
    FaultClass("device-error", 31, 51, (
        Effect("DCGM_FI_DEV_GPU_UTIL", factor=0.0, one=True),
        Effect("DCGM_FI_DEV_POWER_USAGE", factor=0.25, one=True), Effect("node_procs_blocked", size=8.0))),
    FaultClass("gpu-lost", 79, 15, (
        Effect("DCGM_FI_DEV_GPU_TEMP", "drop-out", one=True), Effect("DCGM_FI_DEV_POWER_USAGE", "drop-out", one=True),
        Effect("DCGM_FI_DEV_GPU_UTIL", "drop-out", one=True), Effect("node_procs_blocked", size=5.0))),
    FaultClass("link-down", 0, 48, (
        Effect("node_infiniband_port_data_transmitted", factor=0.0, one=True),
        Effect("node_infiniband_port_data_received", factor=0.0, one=True),
        Effect("node_infiniband_symbol_errors", size=40.0), Effect("node_roce_retransmissions", factor=8.0))),
    FaultClass("slow-link", 0, 22, (
        Effect("node_infiniband_port_data_transmitted", factor=0.55, one=True),
        Effect("node_infiniband_port_data_received", factor=0.55, one=True),
        Effect("node_roce_retransmissions", factor=6.0), Effect("node_softirqs", factor=1.5))),
    FaultClass("power", 0, 26, (
        Effect("ipmi_power{psu=0}", factor=0.0), Effect("ipmi_power{psu=1}", factor=1.6),
        Effect("DCGM_FI_DEV_POWER_USAGE", factor=0.75), Effect("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", size=8.0))),
    FaultClass("fan", 0, 33, (
        Effect("ipmi_fan_speed{fan=0}", factor=0.3), Effect("ipmi_fan_speed{fan=1}", factor=1.25),
        Effect("DCGM_FI_DEV_GPU_TEMP", "drift", size=16.0), Effect("DCGM_FI_DEV_MEMORY_TEMP", "drift", size=14.0),
        Effect("ipmi_temperature_exhaust", "drift", size=9.0))),
    FaultClass("pcie", 0, 26, (
        Effect("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "spike", size=25.0), Effect("node_cpu_system", factor=1.6),
        Effect("nfs_read_bytes", factor=0.5), Effect("DCGM_FI_DEV_GPU_UTIL", factor=0.75, one=True))),
    FaultClass("node-down", 0, 1, ()),
)  # fmt: skip
BY_NAME = {each.name: each for each in CLASSES}


class Fault(NamedTuple):
    """A planted fault.

    Attributes
    ----------
    kind : str
        Name of its class.
    node : int
    begin : int
        First sample that departs.
    crash : int
        Sample at which the job breaks down, and the XID is logged where there is one.
    end : int
        Sample at which the node is taken out and well again.
    unit : int
        Which GPU or port.
    """

    kind: str
    node: int
    begin: int
    crash: int
    end: int
    unit: int


class Chunk(NamedTuple):
    """A part of the stream.

    Attributes
    ----------
    first : int
        Its first sample.
    values : ndarray of float32, shape (metrics, nodes, samples)
        Missing samples are NaN.
    """

    first: int
    values: NDArray[np.float32]


@dataclass(frozen=True)
class SimulatedCluster:
    """A cluster over some days.

    Parameters
    ----------
    seed : int
    nodes : int
    days : int
    faults : tuple of Fault
        At most one in a chunk of a quarter of a day, as :func:`drawn_faults` draws them.
    events : float
        Harmless events a day, of each of the kinds of :data:`NUISANCES`.
    """

    seed: int
    nodes: int
    days: int
    faults: tuple[Fault, ...] = ()
    events: float = 4.0

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return self.days * DAY // CHUNK

    def states(self) -> NDArray[np.int8]:
        """Return what the job does, by sample."""
        return _timeline(self.seed, self.days, tuple(each.crash for each in self.faults))

    def stream(self, strength: float = 1.0) -> Iterator[Chunk]:
        """Yield all chunks in their order.

        Parameters
        ----------
        strength : float
            Of the faults.
        """
        for index in range(self.chunks):
            yield self.chunk(index, strength)

    def chunk(self, index: int, strength: float = 1.0) -> Chunk:
        """Return one chunk; it depends on no other one.

        Parameters
        ----------
        index : int
        strength : float
            Of the faults; with 0 the job still breaks down on all nodes.
        """
        first = index * CHUNK
        values = stream(self.seed, "noise", index).standard_normal(
            (len(METRICS), self.nodes, CHUNK), dtype=np.float32
        )  # fmt: skip
        spread = stream(self.seed, "nodes").standard_normal((len(METRICS), self.nodes), dtype=np.float32)
        # Nodes enter and leave a state some samples apart.
        lag = stream(self.seed, "lag", index).integers(0, _JITTER, self.nodes)
        padded = np.concatenate([np.full(_JITTER, TRAIN, dtype=np.int8), self.states()])
        states = np.stack([padded[first + _JITTER - each : first + _JITTER - each + CHUNK] for each in lag])
        _shaped(values, states, _LEVELS, _NOISE, _SPREAD, _MEMORY, _SHAPE, spread)
        plant(values, self._harmless(index), first=first, seed=self.seed)
        for fault in self.faults:
            if fault.begin < first + CHUNK and fault.end > first:
                plant(values, plants_of(fault), strength=strength, first=first, seed=self.seed)
        return Chunk(first, values)

    def _harmless(self, index: int) -> list[Plant]:
        draws = stream(self.seed, "harmless", index)
        plants = []
        for effects, longest in NUISANCES:
            for _ in range(draws.poisson(self.events * CHUNK / DAY)):
                node, unit = int(draws.integers(self.nodes)), int(draws.integers(GPUS))
                begin = index * CHUNK + int(draws.integers(CHUNK - longest))
                end = begin + int(draws.integers(2, longest + 1))
                plants += _plants(effects, node, unit, begin, end, float(draws.lognormal(0.0, 0.5)))
        return plants


# Events on one node that are no faults, and the most samples that they last.
NUISANCES: tuple[tuple[tuple[Effect, ...], int], ...] = (
    ((Effect("node_cpu_system", factor=2.0), Effect("node_disk_io_time", factor=6.0),
      Effect("node_vmstat_pgpgout", factor=8.0)), 20),
    ((Effect("DCGM_FI_DEV_GPU_TEMP", size=9.0, one=True), Effect("DCGM_FI_DEV_MEMORY_TEMP", size=8.0, one=True)), 60),
    ((Effect("nfs_getattr_latency", factor=8.0), Effect("nfs_read_latency", factor=5.0)), 20),
    ((Effect("node_forks", factor=6.0), Effect("node_context_switches", factor=1.5),
      Effect("node_procs_running", factor=1.6)), 20),
    ((Effect("node_roce_retransmissions", factor=6.0), Effect("node_tcp_retrans", factor=6.0)), 10),
    ((), 4),
)  # fmt: skip


def drawn_faults(seed: int, nodes: int, days: int, kinds: tuple[str, ...]) -> tuple[Fault, ...]:
    """Return faults at drawn times on drawn nodes, at most one in a quarter of a day.

    Parameters
    ----------
    seed : int
    nodes : int
    days : int
    kinds : tuple of str
        Their classes, one a fault.

    Raises
    ------
    BadValueError
        If a class is unknown, or there are more faults than quarters of a day.
    """
    unknown = [kind for kind in kinds if kind not in BY_NAME]
    if unknown:
        raise BadValueError("There is no such class of faults.", given=unknown[0], allowed=list(BY_NAME))
    chunks = days * DAY // CHUNK
    if len(kinds) > chunks:
        raise BadValueError("There is one fault in a quarter of a day at most.", given=f"{len(kinds)} faults",
                            allowed=f"at most {chunks} in {days} days")  # fmt: skip
    draws = stream(seed, "faults")
    places = draws.permutation(chunks)[: len(kinds)]
    found = []
    for kind, place in zip(kinds, places, strict=True):
        begin = int(place) * CHUNK + int(draws.integers(120, CHUNK - 300))
        lead = int(np.clip(draws.exponential(40.0), *_LEAD))
        node, unit = int(draws.integers(nodes)), int(draws.integers(GPUS))
        found.append(Fault(kind, node, begin, begin + lead, begin + lead + _AFTER, unit))
    return tuple(sorted(found, key=lambda each: each.begin))


def plants_of(fault: Fault) -> list[Plant]:
    """Return the departures of a fault, its XID included.

    Parameters
    ----------
    fault : Fault
    """
    kind = BY_NAME[fault.kind]
    plants = _plants(kind.effects, fault.node, fault.unit, fault.begin, fault.end, 1.0)
    if kind.xid:
        plants.append(Plant("level", (XID, fault.node), fault.crash, fault.end, size=float(kind.xid)))
    return plants


def _plants(effects: tuple[Effect, ...], node: int, unit: int, begin: int, end: int, strength: float) -> list[Plant]:
    if not effects:
        # Without effects of its own, the whole node stops reporting.
        return [Plant("drop-out", (metric, node), begin, end) for metric in range(len(METRICS))]
    plants = []
    for effect in effects:
        found = indices(effect.metric)
        for metric in (found[unit % len(found)],) if effect.one else found:
            factor = math.pow(effect.factor, strength) if effect.factor else 0.0
            plants.append(Plant(effect.kind, (metric, node), begin, end, factor, effect.size * strength))  # type: ignore[arg-type]
    return plants


@functools.lru_cache(maxsize=4)
def _timeline(seed: int, days: int, crashes: tuple[int, ...]) -> NDArray[np.int8]:
    states = np.full(days * DAY, TRAIN, dtype=np.int8)
    draws = stream(seed, "job")
    ends = draws.integers(0, days * DAY, draws.poisson(days))
    stops = np.sort(np.concatenate([np.asarray(crashes, dtype=np.int64), ends.astype(np.int64)]))
    begin = 0
    for stop in [*stops.tolist(), days * DAY]:
        for save in range(begin + _CHECKPOINT_EVERY, stop, _CHECKPOINT_EVERY):
            states[save : min(save + _CHECKPOINT, stop)] = CHECKPOINT
        states[stop : stop + _IDLE] = IDLE
        states[stop + _IDLE : stop + _IDLE + _LOAD] = LOAD
        begin = stop + _IDLE + _LOAD
    states.flags.writeable = False
    return states


_LEVELS = np.array([each.levels for each in METRICS], dtype=np.float32)
_NOISE = np.array([each.noise for each in METRICS], dtype=np.float32)
_SPREAD = np.array([each.spread for each in METRICS], dtype=np.float32)
_MEMORY = np.array([each.memory for each in METRICS], dtype=np.float32)
_SHAPE = np.array([each.shape for each in METRICS], dtype=np.int64)
# Above which a rare metric is not zero: once in about 3,500 samples.
_RARELY = 3.45


@compiled
def _shaped(values, states, levels, noise, spread, memory, shape, lasting):  # type: ignore[no-untyped-def]
    """Turn standard normal draws into the series of metrics, in place."""
    metrics, nodes, samples = values.shape
    for metric in range(metrics):
        kind, keep = shape[metric], memory[metric]
        fresh = np.float32(math.sqrt(1.0 - keep * keep))
        for node in range(nodes):
            own = np.float32(1.0) + spread[metric] * lasting[metric, node]
            carried = values[metric, node, 0]
            for sample in range(samples):
                drawn = values[metric, node, sample]
                if kind == 3:
                    values[metric, node, sample] = np.float32(0.0)
                    continue
                if kind == 2:
                    values[metric, node, sample] = noise[metric] if drawn > _RARELY else np.float32(0.0)
                    continue
                if sample > 0:
                    carried = keep * carried + fresh * drawn
                level = levels[metric, states[node, sample]] * own
                if kind == 1:
                    values[metric, node, sample] = level * np.float32(math.exp(noise[metric] * carried))
                else:
                    moved = np.float32(1.0) + noise[metric] * carried
                    values[metric, node, sample] = level * moved if moved > 0.0 else np.float32(0.0)
