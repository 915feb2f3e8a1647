"""Plans: experts at devices, and how requests and tokens are sent: in turns, by what was learnt, or by the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from wavetank.errors import unknown_name
from wavetank.serving.experts.counting import main_device
from wavetank.serving.experts.interface import Batch, Numbers, RoutingTrace, Seen, Shares

VOTES = ("labels", "confidence", "shares")


class Sending(Protocol):
    """Decides where requests and tokens go when experts have their places."""

    def send(self, waiting: Sequence[Seen]) -> Numbers:
        """Return a device per request; see :class:`~wavetank.serving.experts.interface.Plan`.

        Parameters
        ----------
        waiting : sequence of Seen
        """
        ...

    def split(self, layer: int, batch: Batch) -> Numbers:
        """Return a device per token; see :class:`~wavetank.serving.experts.interface.Plan`.

        Parameters
        ----------
        layer : int
        batch : Batch
        """
        ...


@dataclass(frozen=True, eq=False)
class Composed:
    """A plan made of places of experts and of a way of sending.

    Parameters
    ----------
    experts : int64 array (layers, experts)
    sending : Sending
    """

    experts: Numbers
    sending: Sending

    def send(self, waiting: Sequence[Seen]) -> Numbers:
        """Return a device per request.

        Parameters
        ----------
        waiting : sequence of Seen
        """
        return self.sending.send(waiting)

    def split(self, layer: int, batch: Batch) -> Numbers:
        """Return a device per token.

        Parameters
        ----------
        layer : int
        batch : Batch
        """
        return self.sending.split(layer, batch)


@dataclass(frozen=True)
class InTurns:
    """Requests one after another to the devices; of tokens, each device gets the next equal piece.

    Parameters
    ----------
    devices : int
    """

    devices: int

    def send(self, waiting: Sequence[Seen]) -> Numbers:
        """Return a device per request.

        Parameters
        ----------
        waiting : sequence of Seen
        """
        return np.arange(len(waiting)) % self.devices

    def split(self, layer: int, batch: Batch) -> Numbers:
        """Return a device per token.

        Parameters
        ----------
        layer : int
        batch : Batch
        """
        return np.arange(len(batch.tokens)) // -(-len(batch.tokens) // self.devices)


@dataclass(frozen=True, eq=False)
class ByTables:
    """Requests and tokens go where their tokens' experts were.

    Parameters
    ----------
    votes : float64 array (vocabulary, devices)
        What a token of a prompt says for each device.
    expected : float64 array (layers, vocabulary, devices)
        Share of a token's routes that went to each device; 0 for a token that was never seen.
    after : float64 array (layers, devices + 1, devices + 1, devices)
        The same share, by the main devices one and two layers ago; the last index is for no such layer.
    """

    votes: Shares
    expected: Shares
    after: Shares

    def send(self, waiting: Sequence[Seen]) -> Numbers:
        """Return the devices by which most votes of the round are heard.

        Parameters
        ----------
        waiting : sequence of Seen
        """
        return matched(np.array([self.votes[each.prompt].sum(axis=0) for each in waiting]))

    def split(self, layer: int, batch: Batch) -> Numbers:
        """Return the device that a token's own table or the sequence of its devices expects with more confidence.

        Parameters
        ----------
        layer : int
        batch : Batch
        """
        own = self.expected[layer][batch.tokens]
        sequence = self.after[layer][batch.before[0], batch.before[1]]
        sure = own.max(axis=1) >= sequence.max(axis=1)
        return filled(np.where(sure[:, None], own, sequence))


@dataclass(frozen=True, eq=False)
class ByTruth:
    """Requests and tokens go where their experts will be.

    Parameters
    ----------
    experts : int64 array (layers, experts)
    devices : int
    """

    experts: Numbers
    devices: int

    def send(self, waiting: Sequence[Seen]) -> Numbers:
        """Return the devices that keep most routes of the round.

        Parameters
        ----------
        waiting : sequence of Seen
        """
        scores = np.zeros((len(waiting), self.devices))
        for row, each in enumerate(waiting):
            if each.routes is not None:
                at = np.take_along_axis(self.experts, each.routes.reshape(len(self.experts), -1), axis=1)
                scores[row] = np.bincount(at.ravel(), minlength=self.devices)
        return matched(scores)

    def split(self, layer: int, batch: Batch) -> Numbers:
        """Return the device that has most of a token's experts, while there is room.

        Parameters
        ----------
        layer : int
        batch : Batch
        """
        routes = np.zeros((len(batch.tokens), 1), np.int64) if batch.routes is None else batch.routes
        at = self.experts[layer][routes]
        return filled((at[:, :, None] == np.arange(self.devices)).mean(axis=1))


def matched(scores: Shares) -> Numbers:
    """Return the devices of the largest total score, each for at most ``ceil(requests / devices)`` of the requests.

    Parameters
    ----------
    scores : float64 array (requests, devices)
    """
    requests, devices = scores.shape
    places = np.tile(np.arange(devices), -(-requests // devices))
    rows, columns = linear_sum_assignment(scores[:, places], maximize=True)
    found = np.empty(requests, np.int64)
    found[rows] = places[columns]
    return found


def filled(scores: Shares) -> Numbers:
    """Return the best device of each token while that device has room, and any other one behind that.

    Parameters
    ----------
    scores : float64 array (tokens, devices)
        Each device has room for ``ceil(tokens / devices)``; tokens with larger scores come first.
    """
    tokens, devices = scores.shape
    best = scores.argmax(axis=1)
    order = np.lexsort((-scores.max(axis=1), best))
    counts = np.bincount(best, minlength=devices)
    ranks = np.arange(tokens) - np.repeat(np.cumsum(counts) - counts, counts)
    room = -(-tokens // devices)
    late = order[ranks >= room]
    best[late] = np.repeat(np.arange(devices), np.maximum(room - counts, 0))[: len(late)]
    return best


def profile(seen: RoutingTrace) -> tuple[Numbers, NDArray[np.int64]]:
    """Return how often each token came, and its routes to each expert: (layers, vocabulary, experts).

    Parameters
    ----------
    seen : RoutingTrace
    """
    times = np.bincount(seen.tokens, minlength=seen.vocabulary)
    uses = np.zeros((seen.layers, seen.vocabulary, seen.experts), np.int64)
    for layer, routes in enumerate(seen.routes):
        np.add.at(uses[layer], (seen.tokens[:, None], routes), 1)
    return times, uses


def tables(seen: RoutingTrace, experts: Numbers, devices: int, *, votes: str) -> ByTables:
    """Return the tables that a plan looks up.

    Parameters
    ----------
    seen : RoutingTrace
    experts : int64 array (layers, experts)
        Where experts are.
    devices : int
    votes : str
        What a token of a prompt says: ``labels`` (1 for its main device), ``confidence`` (its share there) or
        ``shares`` (its share of every device).
    """
    if votes not in VOTES:
        raise unknown_name("vote", votes, VOTES)
    times, uses = profile(seen)
    at = experts[:, :, None] == np.arange(devices)
    routed = np.einsum("lve,led->lvd", uses, at)
    per_token = seen.routes.shape[2]
    expected = routed / np.maximum(times * per_token, 1)[None, :, None]
    share = expected.mean(axis=0)
    if votes != "shares":
        label = np.eye(devices)[share.argmax(axis=1)] * (times > 0)[:, None]
        share = label if votes == "labels" else label * share
    after = np.zeros((seen.layers, devices + 1, devices + 1, devices))
    before = np.full((2, len(seen.tokens)), devices)
    for layer, routes in enumerate(seen.routes):
        where = experts[layer][routes]
        here = (where[:, :, None] == np.arange(devices)).sum(axis=1)
        np.add.at(after[layer], (before[0], before[1]), here)
        before = np.stack([main_device(where, devices), before[0]])
    after /= np.maximum(after.sum(axis=3, keepdims=True), 1)
    return ByTables(share, expected, after)
