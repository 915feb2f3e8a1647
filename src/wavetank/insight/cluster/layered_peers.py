"""A node fails on several layers at once, and its peers do the same work: add what is odd on each layer.

No single metric shows every class of failure.  Compare each metric of a node with its peers, take the oddest metric of
each layer (GPU, host, network, storage, chassis), count what is beyond the layer's usual oddity, up to a cap, so that
one wild metric does not decide alone, and add the layers.  What all nodes do together moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.insight.cluster.averages import Decaying, Standardised
from wavetank.insight.cluster.interface import View, Watcher
from wavetank.settings import setting
from wavetank.sim.compiled import compiled

_PLAIN_CAP = 10.0


@dataclass(frozen=True, kw_only=True)
class LayeredPeers(Decaying):
    """Detector that adds over layers how far the oddest metric of a node is beyond what is usual without failures."""

    usual: float = setting(
        0.99, says="Share of a layer's largest distances, without failures, that count as usual", low=0.5, high=1.0
    )
    cap: float = setting(20.0, says="What a layer adds at most, in standard deviations", low=1, high=1000)

    def watcher(self, metrics: tuple[str, ...], layers: tuple[str, ...]) -> Watcher:
        """Return a watcher.

        Parameters
        ----------
        metrics : tuple of str
        layers : tuple of str
            Of each metric.
        """
        return LayerSums(self, layers)


class LayerSums:
    """The detector at work.

    Parameters
    ----------
    detector : LayeredPeers
    layers : tuple of str
        Of each metric.
    """

    def __init__(self, detector: LayeredPeers, layers: tuple[str, ...]) -> None:
        self.detector, self.names = detector, tuple(dict.fromkeys(layers))
        self._layer_of = np.array([self.names.index(each) for each in layers], dtype=np.int64)
        self._sizes = Standardised(detector.half_life, len(layers))
        self._learned: list[NDArray[np.float32]] = []
        self._usual = np.zeros(len(self.names), dtype=np.float32)

    def learn(self, view: View) -> None:
        """Take in what is usual without failures.

        Parameters
        ----------
        view : View
        """
        # Deviations are known at the end alone: some samples are kept until then.
        means = self._sizes.learn(view)
        self._learned.append(np.abs(means[:, :, :: max(1, round(self.detector.half_life))]))

    def score(self, view: View) -> NDArray[np.float32]:
        """Return the sums, shape (nodes, samples).

        Parameters
        ----------
        view : View
        """
        return self.parts(view).sum(axis=0)

    def parts(self, view: View) -> NDArray[np.float32]:
        """Return what each layer adds, shape (layers, nodes, samples).

        Parameters
        ----------
        view : View
        """
        if self._learned:
            some = np.concatenate(self._learned, axis=2) / self._sizes.deviations()[:, None, None]
            largest = self._largest(some).reshape(len(self.names), -1)
            self._usual = np.quantile(largest, self.detector.usual, axis=1).astype(np.float32)
            self._learned = []
        beyond = self._largest(self._sizes.of(view)) - self._usual[:, None, None]
        return np.clip(beyond, 0.0, self.detector.cap)

    def _largest(self, sizes: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.zeros((len(self.names), *sizes.shape[1:]), dtype=np.float32)
        for metric, layer in enumerate(self._layer_of):
            np.maximum(out[layer], sizes[metric], out=out[layer])
        return out


@dataclass(frozen=True, kw_only=True)
class PlainLayers(Decaying):
    """As :class:`LayeredPeers`, in the plainest order: the largest capped distance of each layer, added, then decayed.

    Nothing is known of what is usual, and noise of a layer with many metrics adds as much as that of one with few.
    """

    cap: float = setting(_PLAIN_CAP, says="Distance from peers that counts at most, in standard deviations", low=1,
                         high=1000)  # fmt: skip

    def watcher(self, metrics: tuple[str, ...], layers: tuple[str, ...]) -> Watcher:
        """Return a watcher.

        Parameters
        ----------
        metrics : tuple of str
        layers : tuple of str
            Of each metric.
        """
        names = list(dict.fromkeys(layers))
        return _PlainSums(self, np.array([names.index(each) for each in layers], dtype=np.int64), len(names))


class _PlainSums:
    def __init__(self, detector: PlainLayers, layer_of: NDArray[np.int64], layers: int) -> None:
        self.detector, self.layer_of, self.layers = detector, layer_of, layers
        self._sums: NDArray[np.float64] | None = None

    def learn(self, view: View) -> None:
        """Nothing is learned but what the view has learned already."""

    def score(self, view: View) -> NDArray[np.float32]:
        nodes, samples = view.scores.shape[1:]
        if self._sums is None:
            self._sums = np.zeros(nodes)
        out = np.empty((nodes, samples), dtype=np.float32)
        keep = 0.5 ** (1.0 / self.detector.half_life)
        _summed(view.scores, self.layer_of, self.layers, self.detector.cap, keep, self._sums, out)
        return out


@compiled
def _summed(scores, layer_of, layers, cap, keep, sums, out):  # type: ignore[no-untyped-def]
    metrics, nodes, samples = scores.shape
    largest = np.empty((layers, samples), dtype=np.float32)
    for node in range(nodes):
        largest[:] = 0.0
        for metric in range(metrics):
            layer = layer_of[metric]
            for sample in range(samples):
                distance = abs(scores[metric, node, sample])
                if distance > largest[layer, sample]:
                    largest[layer, sample] = distance
        total = sums[node]
        for sample in range(samples):
            now = 0.0
            for layer in range(layers):
                now += min(largest[layer, sample], cap)
            total = keep * total + (1.0 - keep) * now
            out[node, sample] = total
        sums[node] = total
