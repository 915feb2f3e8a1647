"""A live watch over a few exporters that speaks only when it must: who is silent, who was started again, who is odd.

The first scrapes are taken as usual.  From then on a node is odd when the layers of its metrics add up to more than a
threshold (:class:`~wavetank.insight.cluster.layered_peers.LayeredPeers`) for some scrapes; with fewer than four nodes
that cannot be said, and the watch says so once.  A temperature or an XID that stays above an operators' threshold for
as long as their rule asks is said for any number of nodes.  What was said is said again only after it had been over for
half an hour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.insight.cluster.layered_peers import LayeredPeers, LayerSums
from wavetank.insight.cluster.node_history import LEAST_NODES
from wavetank.insight.cluster.peer_view import PeerView
from wavetank.insight.cluster.rivals import RULES
from wavetank.insight.cluster.simulated_cluster import STEP_S
from wavetank.settings import check_ranges, setting
from wavetank.svg import printable
from wavetank.workloads.prometheus import Sample

_MOST_METRICS = 5000
# Names and labels together; a metric with more of them is not watched.
_LONGEST_NAME, _LONGEST_SHOWN = 1000, 120
_LARGEST = 1e37
_AGAIN_S = 1800.0
_SETTLES = 30
# Words in the names of metrics, and the layer that they show.
_LAYERS = (
    ("gpu", ("dcgm", "nvidia", "gpu")), ("storage", ("nfs", "disk", "filesystem")),
    ("network", ("infiniband", "network", "netstat", "roce")), ("chassis", ("ipmi", "hwmon", "fan")),
)  # fmt: skip


class Said(NamedTuple):
    """Something that the watch says.

    Attributes
    ----------
    at_s : float
    node : str
    label : str
        ``silent``, ``back``, ``started-again``, ``odd``, ``above-threshold`` or ``too-few-nodes``.
    text : str
    """

    at_s: float
    node: str
    label: str
    text: str


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """How a live watch judges."""

    learn: int = setting(20, unit="scrapes", says="Scrapes that count as usual", low=5, high=10_000)
    threshold: float = setting(15.0, says="Sum over layers above which a node is odd, in standard deviations", low=1,
                               high=100)  # fmt: skip
    held: int = setting(3, unit="scrapes", says="Scrapes for which it must be", low=1, high=1000)
    silent: int = setting(3, unit="scrapes", says="Scrapes without an answer after which a node is silent", low=1,
                         high=1000)  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)


class FleetWatch:
    """The watch; it knows neither clocks nor sockets.

    Parameters
    ----------
    nodes : sequence of str
    settings : FleetSettings
    """

    def __init__(self, nodes: Sequence[str], settings: FleetSettings) -> None:
        self.nodes, self.settings = tuple(nodes), settings
        self._missed = dict.fromkeys(self.nodes, 0)
        self._last: dict[str, dict[str, float]] = {}
        self._first: list[dict[str, dict[str, float]]] = []
        self._metrics: tuple[str, ...] = ()
        self._view: PeerView | None = None
        self._sums: LayerSums | None = None
        self._odd = dict.fromkeys(self.nodes, 0)
        self._until_s: dict[tuple[str, str], float] = {}
        # Since when a node is above the threshold of a rule.
        self._since_s: dict[tuple[str, int], float] = {}

    def take(self, at_s: float, shown: Mapping[str, Sequence[Sample] | str | None]) -> list[Said]:
        """Take one round of scrapes and return what must be said.

        Parameters
        ----------
        at_s : float
            Rising from round to round.
        shown : mapping of str to sequence of Sample, str or None
            Of each node; where it showed no metrics the reason, or None where nothing is known of it.
        """
        said: list[Said] = []
        values: dict[str, dict[str, float]] = {}
        for node in self.nodes:
            samples = shown.get(node)
            why = samples if isinstance(samples, str) else ""
            heard = samples is not None and not isinstance(samples, str)
            said += self._heard(at_s, node, heard, why)
            if samples is not None and not isinstance(samples, str):
                values[node], again = self._growth(node, samples)
                if again:
                    said += self._once(at_s, node, "started-again", f"{node} or its exporter was started again: "
                                       f"{again} counters fell")  # fmt: skip
                said += self._above(at_s, node, values[node])
        if len(self.nodes) < LEAST_NODES:
            return said + self._once(at_s, "", "too-few-nodes", f"{len(self.nodes)} nodes cannot be compared with "
                                     f"each other: that needs {LEAST_NODES}")  # fmt: skip
        if self._view is None:
            self._first.append(values)
            if len(self._first) > self.settings.learn:
                self._learn()
            return said
        return said + self._compared(at_s, values)

    def _heard(self, at_s: float, node: str, answered: bool, why: str) -> list[Said]:
        before = self._missed[node]
        self._missed[node] = 0 if answered else before + 1
        if answered and before >= self.settings.silent:
            # Its distances decay from those of a silent node.
            self._odd[node] = -_SETTLES
            return [Said(at_s, node, "back", f"{node} answers again")]
        if self._missed[node] == self.settings.silent:
            for place in range(len(RULES)):
                self._since_s.pop((node, place), None)
            text = f"{node} has shown no metrics {self.settings.silent} times" + (f": {why}" if why else "")
            return [Said(at_s, node, "silent", printable(text))]
        return []

    def _growth(self, node: str, samples: Sequence[Sample]) -> tuple[dict[str, float], int]:
        """Return values by metric, counters by their growth, and how many counters fell."""
        found: dict[str, float] = {}
        before, now = self._last.get(node, {}), dict[str, float]()
        fell = 0
        for sample in samples[:_MOST_METRICS]:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels)
            metric = f"{sample.name}{{{labels}}}" if labels else sample.name
            if not np.isfinite(sample.value) or len(metric) > _LONGEST_NAME:
                continue
            if sample.kind == "counter":
                last = before.get(metric)
                now[metric] = sample.value
                if last is None:
                    continue
                fell += sample.value < last
                found[metric] = sample.value if sample.value < last else sample.value - last
            else:
                found[metric] = sample.value
        # What is not shown any more is forgotten: names that change forever fill no memory.
        self._last[node] = now
        return found, fell

    def _above(self, at_s: float, node: str, values: Mapping[str, float]) -> list[Said]:
        """Return one sentence a rule at most, however many of its metrics are above."""
        said = []
        for place, rule in enumerate(RULES):
            if rule.kind != "above":
                continue
            limit = rule.limit / rule.scale
            over = [(value, each) for each, value in values.items() if value >= limit and each.startswith(rule.metric)]
            if not over:
                self._since_s.pop((node, place), None)
                continue
            # A rule counts samples of the operators' clock, a watch may scrape at another one.
            if at_s - self._since_s.setdefault((node, place), at_s) >= (rule.held - 1) * STEP_S:
                value, metric = max(over)
                more = f", and {len(over) - 1} more like it are above" if len(over) > 1 else ""
                said += self._once(at_s, node, f"above-threshold {rule.metric}", f"{node}: {_short(metric)} is "
                                   f"{value:g}, the operators' threshold {limit:g}{more}")  # fmt: skip
        return said

    def _learn(self) -> None:
        counts: dict[str, int] = {}
        # The first round has no growth of counters.
        for values in self._first[1:]:
            for own in values.values():
                for metric in own:
                    counts[metric] = counts.get(metric, 0) + 1
        half = len(self.nodes) * (len(self._first) - 1) / 2
        self._metrics = tuple(sorted(metric for metric, count in counts.items() if count > half))[:_MOST_METRICS]
        if not self._metrics:
            self._first = []
            return
        learned = np.stack([self._row(values) for values in self._first[1:]], axis=2)
        self._view = PeerView(learned)
        self._sums = LayerSums(LayeredPeers(held=self.settings.held), tuple(layer_of(each) for each in self._metrics))
        self._sums.learn(self._view.view(learned))
        self._first = []

    def _row(self, values: Mapping[str, Mapping[str, float]]) -> NDArray[np.float32]:
        row = np.array([[values.get(node, {}).get(metric, np.nan) for node in self.nodes] for metric in self._metrics])
        # What single precision cannot hold is no value that peers could be compared with.
        row[np.abs(row) > _LARGEST] = np.nan
        return row.astype(np.float32)

    def _compared(self, at_s: float, values: Mapping[str, Mapping[str, float]]) -> list[Said]:
        if self._view is None or self._sums is None:
            return []
        view = self._view.view(self._row(values)[:, :, None])
        parts = self._sums.parts(view)[:, :, 0]
        said = []
        for place, node in enumerate(self.nodes):
            total = float(parts[:, place].sum())
            self._odd[node] = self._odd[node] + 1 if total > self.settings.threshold else 0
            if self._odd[node] >= self.settings.held and self._missed[node] < self.settings.silent:
                layers = [name for name, part in zip(self._sums.names, parts[:, place], strict=True) if part > 1]
                worst = self._metrics[int(np.argmax(np.abs(view.scores[:, place, 0])))]
                said += self._once(at_s, node, "odd", f"{node} is far from its peers on {', '.join(layers)} ("
                                   f"{total:.0f} standard deviations in all), most on {_short(worst)}")  # fmt: skip
        return said

    def _once(self, at_s: float, node: str, label: str, text: str) -> list[Said]:
        """Return what is to be said, unless it was said and has gone on since."""
        quiet = at_s < self._until_s.get((node, label), -np.inf)
        self._until_s[node, label] = at_s + _AGAIN_S
        return [] if quiet else [Said(at_s, node, label.partition(" ")[0], printable(text))]


def _short(metric: str) -> str:
    return metric if len(metric) <= _LONGEST_SHOWN else f"{metric[:_LONGEST_SHOWN]}..."


def layer_of(metric: str) -> str:
    """Return the layer that a metric's name shows; ``host`` where it shows none.

    Parameters
    ----------
    metric : str
    """
    name = metric.partition("{")[0].lower()
    return next((layer for layer, words in _LAYERS if any(word in name for word in words)), "host")
