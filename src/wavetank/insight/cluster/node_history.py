"""What a saved range of Prometheus says of nodes, each quantity by its name, for evidence that is read again.

Series are sorted by node (label ``node``, ``Hostname``, ``hostname``, ``host`` or ``instance`` without its port) and by
metric (name and all other labels; where two exporters of a node show one metric, with the exporter's job and port as
well: they are two metrics then, on all nodes).  Counters (``_total``, ``_count``, ``_sum``, ``_bucket``) count by their
growth.  Nodes are compared as :mod:`wavetank.insight.cluster.peer_view` compares them; what is usual for a node is
learned from the same file, so that what lasts longer than half of it is usual.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.diagnosis.findings import Value
from wavetank.diagnosis.peers import LEAST_PEERS
from wavetank.errors import BadTraceError, BadValueError, nearest_of
from wavetank.insight.cluster.averages import Averages
from wavetank.insight.cluster.peer_view import PeerView
from wavetank.workloads.prometheus import MOST_CELLS, Series, increases, on_grid, read_range, resets

LEAST_NODES = LEAST_PEERS + 1
LEAST_TIMES = 20
_NODE_LABELS = ("node", "Hostname", "hostname", "host", "instance")
# What is another on every node, and names no metric.
_DROPPED = frozenset({*_NODE_LABELS, "job", "modelName", "UUID", "DCGM_FI_DRIVER_VERSION", "pci_bus_id"})
_COUNTERS = ("_total", "_count", "_sum", "_bucket")
_HALF_LIFE_S = 300.0

_HOW = {
    "nodes": "different values of the label that names nodes",
    "metrics": "different names with their labels, without those of the node",
    "times": "times of the common grid",
    "span_s": "from the first time of the grid to the last",
    "step_s": "the most frequent distance of two samples of a series",
    "missing_share": "cells of metric, node and time without a sample / all",
    "odd_metrics": "metrics whose decayed distance from the peers is at least `far` for at least `lasts_s` in all",
    "oddest_metric": "of these, the one with the largest decayed distance",
    "largest_distance": "(value - median of nodes) / (1.4826 MAD + floor), less its median over time, decayed with a "
    "half-life of 300 s; the largest of the oddest metric",
    "odd_s": "times at which any odd metric is that far x step",
    "odd_after_s": "from the first time of the grid to the first at which an odd metric is that far",
    "value_then": "value of the oddest metric when its distance is largest; the growth of counters",
    "peers_then": "median of all nodes then",
    "odd_confidence": "odd metrics / (odd metrics + 1)",
    "silent_share": "times without any sample of the node while most nodes have one / all",
    "longest_silence_s": "the longest row of such times x step",
    "counter_resets": "times at which any counter of the node is below its last value",
    "nodes_with_resets": "nodes with such times",
}


class TooLittleError(BadTraceError):
    """A file that can be read, and says too little for a quantity."""


class NodeHistory:
    """The metrics of nodes in one file.

    Parameters
    ----------
    path : Path

    Raises
    ------
    BadTraceError
        If the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.series = read_range(path)
        rows = [(_node(each), _metric(each)) for each in self.series]
        counts = Counter(rows)
        several = {metric for (_, metric), count in counts.items() if count > 1}
        rows = [
            (node, _metric(each, exporter=True) if metric in several else metric)
            for each, (node, metric) in zip(self.series, rows, strict=True)
        ]
        self.nodes = tuple(sorted({node for node, _ in rows}))
        self.metrics = tuple(sorted({metric for _, metric in rows}))
        self._rows = rows

    def how(self, name: str) -> str:
        """Return how a quantity is read.

        Parameters
        ----------
        name : str
        """
        return _HOW[name]

    def quantity(self, name: str, **of: Any) -> Value:
        """Return a quantity.

        Parameters
        ----------
        name : str
        **of : value
            ``node``, and for what is odd ``far`` and ``lasts_s``.

        Raises
        ------
        TooLittleError
            If the file says too little for it.
        BadValueError
            If there is no such quantity or node.
        """
        if name not in _HOW:
            raise BadValueError("There is no such quantity.", given=name, allowed=list(_HOW),
                                nearest=nearest_of(name, _HOW))  # fmt: skip
        if "node" in of and of["node"] not in self.nodes:
            raise BadValueError("The file has no such node.", given=of["node"], allowed=self.nodes)
        if name in ("nodes", "metrics"):
            return len(getattr(self, name))
        if name in ("times", "span_s", "step_s", "missing_share"):
            return self._of_grid(name)
        if name in ("silent_share", "longest_silence_s"):
            return self._silence(name, self.nodes.index(of["node"]))
        if name == "nodes_with_resets":
            return sum(self._resets(place) > 0 for place in range(len(self.nodes)))
        place = self.nodes.index(of["node"])
        if name == "counter_resets":
            return self._resets(place)
        return self._odd(name, place, float(of["far"]), float(of["lasts_s"]))

    @functools.cached_property
    def grid(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Times in ns, and values of shape (metrics, nodes, times), counters by their growth."""
        try:
            found = on_grid(self.series)
        except BadTraceError as error:
            if "two samples" not in error.problem:
                raise
            raise TooLittleError("No series has two samples.", given=f"{len(self.series)} series",
                                 where=str(self.path)) from error  # fmt: skip
        shape = len(self.metrics), len(self.nodes), found.time_ns.size
        if math.prod(shape) > MOST_CELLS:
            # Where each metric is of one node alone, there are as many cells as the square of the series.
            raise BadTraceError("Metrics, nodes and times are too many together.", given=shape, where=str(self.path),
                                allowed=f"at most {MOST_CELLS} cells", hint="ask for metrics that all nodes "
                                "have, or for a shorter range")  # fmt: skip
        values = np.full(shape, np.nan)
        metrics = {metric: place for place, metric in enumerate(self.metrics)}
        nodes = {node: place for place, node in enumerate(self.nodes)}
        for (node, metric), row in zip(self._rows, found.value, strict=True):
            finite = np.where(np.isfinite(row), row, np.nan)
            own = increases(finite) if _is_counter(metric) else finite
            values[metrics[metric], nodes[node]] = own
        return found.time_ns, values

    @property
    def step_s(self) -> float:
        """Distance of two times of the grid, s."""
        times, _ = self.grid
        return float(times[1] - times[0]) / 1e9 if times.size > 1 else 0.0

    @functools.cached_property
    def distances(self) -> NDArray[np.float32]:
        """Sizes of decayed distances from peers, shape (metrics, nodes, times).

        Raises
        ------
        TooLittleError
            With fewer than four nodes or too few times.
        """
        times, values = self.grid
        if len(self.nodes) < LEAST_NODES:
            raise TooLittleError("There are too few nodes to compare one with its peers.", given=len(self.nodes),
                                 allowed=f"at least {LEAST_NODES}", where=str(self.path))  # fmt: skip
        if times.size < LEAST_TIMES:
            raise TooLittleError("There are too few times to say what is usual.", given=times.size,
                                 allowed=f"at least {LEAST_TIMES}", where=str(self.path))  # fmt: skip
        return np.abs(Averages(_HALF_LIFE_S / self.step_s).of(PeerView(values).view(values)))

    def _of_grid(self, name: str) -> Value:
        times, values = self.grid
        if name == "times":
            return int(times.size)
        if name == "missing_share":
            return float(np.isnan(values).mean())
        return self.step_s if name == "step_s" else float(times[-1] - times[0]) / 1e9

    def _silence(self, name: str, place: int) -> float:
        _, values = self.grid
        heard: NDArray[np.bool_] = np.isfinite(values).any(axis=0)  # type: ignore[assignment]
        silent = ~heard[place] & (heard.mean(axis=0) > 0.5)
        if name == "silent_share":
            return float(silent.mean())
        edges = np.diff(np.concatenate([[0], silent.astype(np.int8), [0]]))
        rows = np.flatnonzero(edges < 0) - np.flatnonzero(edges > 0)
        return float(rows.max(initial=0)) * self.step_s

    def _resets(self, place: int) -> int:
        node = self.nodes[place]
        times: set[int] = set()
        for each, (own, metric) in zip(self.series, self._rows, strict=True):
            if own == node and _is_counter(metric) and resets(each.value):
                known = np.isfinite(each.value)
                fell = np.flatnonzero(np.diff(each.value[known]) < 0) + 1
                times |= set(each.time_ns[known][fell].tolist())
        return len(times)

    def _odd(self, name: str, place: int, far: float, lasts_s: float) -> Value:
        distances = self.distances[:, place]
        is_far = distances >= far
        odd = np.flatnonzero(is_far.sum(axis=1) * self.step_s >= max(lasts_s, self.step_s))
        if name == "odd_metrics":
            return int(odd.size)
        if name == "odd_confidence":
            return odd.size / (odd.size + 1)
        if not odd.size:
            raise TooLittleError("No metric of the node is odd.", given=self.nodes[place])
        worst = int(odd[np.argmax(distances[odd].max(axis=1))])
        then = int(np.argmax(distances[worst]))
        times = np.flatnonzero(is_far[odd].any(axis=0))
        values = self.grid[1][worst, :, then]
        if name == "oddest_metric":
            return self.metrics[worst]
        if name == "largest_distance":
            return float(distances[worst, then])
        if name == "odd_s":
            return float(times.size * self.step_s)
        if name == "odd_after_s":
            return float(times[0] * self.step_s)
        if name == "value_then":
            return float(values[place]) if np.isfinite(values[place]) else "missing"
        return float(np.nanmedian(values))


def _node(series: Series) -> str:
    for label in _NODE_LABELS:
        if found := series.label(label):
            return found.rpartition(":")[0] or found if label == "instance" else found
    return "(no node)"


def _metric(series: Series, *, exporter: bool = False) -> str:
    kept = [f"{name}={value}" for name, value in series.labels if name not in _DROPPED]
    if exporter:
        kept += [f"job={series.label('job')}", f"port={series.label('instance').rpartition(':')[2]}"]
    rest = ",".join(kept)
    return f"{series.name}{{{rest}}}" if rest else series.name


def _is_counter(metric: str) -> bool:
    return metric.partition("{")[0].endswith(_COUNTERS)

