"""Routes of tokens to experts: generated ones, whose topics and faithfulness are known, and a file of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.errors import BadFileError, BadValueError
from wavetank.serving.experts.interface import Numbers, RoutingTrace
from wavetank.sim.rng import stream

_MOST_BYTES = 2_000_000_000
_ARRAYS = ("tokens", "starts", "prompts", "routes")


@dataclass(frozen=True, kw_only=True)
class Generated:
    """Requests about topics, whose tokens have favourite experts.

    Parameters
    ----------
    requests : int
    tokens : int
        Of each request; a quarter of them is generated, that is, unknown when it is sent.
    layers, experts, per_token : int
        Layers with experts, experts of each, and experts of a token.
    vocabulary : int
        Different tokens; the k-th most frequent one is drawn in proportion to ``k ** -1.1``.
    topics : int
        Each has words of its own, equally many.
    circle : int
        Experts of a topic in a layer, drawn anew for each layer and shared with other topics.
    common : float
        Share of a request's tokens that are drawn from all words; the others are words of its topics.
    second : float
        Share of requests that have a second topic, for half of their tokens.
    affinity : float
        Probability that a token goes to a favourite expert, and not to a random one.
    bond : float
        Probability that a favourite expert of a word is one of its topic's experts, and not any.
    """

    requests: int = 600
    tokens: int = 128
    layers: int = 4
    experts: int = 64
    per_token: int = 6
    vocabulary: int = 4096
    topics: int = 24
    circle: int = 16
    common: float = 0.3
    second: float = 0.3
    affinity: float = 0.9
    bond: float = 0.7

    def trace(self, seed: int) -> RoutingTrace:
        """Return the routes of a seed.

        Parameters
        ----------
        seed : int

        Raises
        ------
        BadValueError
            If there are fewer experts than a token has, or fewer words than topics.
        """
        if self.per_token > self.experts:
            raise BadValueError("A token has more experts than there are.", given=self.per_token,
                                allowed=f"at most {self.experts}")  # fmt: skip
        if self.topics > self.vocabulary:
            raise BadValueError("There are more topics than words.", given=self.topics,
                                allowed=f"at most {self.vocabulary}")  # fmt: skip
        draws = stream(seed, "expert-routes")
        popular = np.arange(1, self.vocabulary + 1) ** -1.1
        topic_of = draws.permutation(self.vocabulary) % self.topics
        words = self._words(draws, popular, topic_of)
        favourites = self._favourites(draws, topic_of)
        routes = np.empty((self.layers, len(words), self.per_token), np.int64)
        for layer in range(self.layers):
            # Of each token the first by chance: its favourites, each with the given probability, before all others.
            order = draws.random((len(words), self.experts))
            kept = draws.random((len(words), self.per_token)) < self.affinity
            place = np.take_along_axis(order, favourites[layer][words], axis=1)
            np.put_along_axis(order, favourites[layer][words], np.where(kept, place - 2, place), axis=1)
            routes[layer] = np.argpartition(order, self.per_token - 1, axis=1)[:, : self.per_token]
        starts = np.arange(self.requests + 1) * self.tokens
        prompts = np.full(self.requests, max(1, self.tokens * 3 // 4))
        return RoutingTrace(
            tokens=words, starts=starts, prompts=prompts, routes=routes, experts=self.experts,
            vocabulary=self.vocabulary,
        )  # fmt: skip

    def _words(self, draws: np.random.Generator, popular: Any, topic_of: Numbers) -> Numbers:
        """Return the tokens of all requests."""
        anything = np.cumsum(popular)
        members = [np.flatnonzero(topic_of == topic) for topic in range(self.topics)]
        inside = [np.cumsum(popular[each]) for each in members]
        found = np.empty((self.requests, self.tokens), np.int64)
        for request in range(self.requests):
            first, other = draws.integers(0, self.topics, 2)
            mixed = draws.random() < self.second
            topics = np.where(mixed & (draws.random(self.tokens) < 0.5), other, first)
            level = draws.random(self.tokens)
            row = np.searchsorted(anything, level * anything[-1], side="right")
            own = draws.random(self.tokens) >= self.common
            for topic in {int(first), int(other)}:
                here = own & (topics == topic)
                row[here] = members[topic][np.searchsorted(inside[topic], level[here] * inside[topic][-1], "right")]
            found[request] = row
        return found.ravel()

    def _favourites(self, draws: np.random.Generator, topic_of: Numbers) -> Numbers:
        """Return the favourite experts of each word: (layers, vocabulary, experts per token)."""
        found = np.empty((self.layers, self.vocabulary, self.per_token), np.int64)
        own = min(self.circle, self.experts)
        for layer in range(self.layers):
            circle = np.stack([draws.permutation(self.experts) for _ in range(self.topics)])[:, :own]
            ranks = draws.random((self.vocabulary, self.experts)) + 1.0
            bound = draws.random((self.vocabulary, own)) < self.bond
            places = circle[topic_of]
            now = np.take_along_axis(ranks, places, axis=1)
            np.put_along_axis(ranks, places, np.where(bound, now - 1.0, now), axis=1)
            found[layer] = np.argpartition(ranks, self.per_token - 1, axis=1)[:, : self.per_token]
        return found


def read_routes(path: str | Path) -> RoutingTrace:
    """Return the routes of a file.

    Parameters
    ----------
    path : str or Path
        An archive of numpy (``.npz``) with ``tokens`` (tokens,), ``starts`` (requests + 1,), ``prompts`` (requests,)
        and ``routes`` (layers, tokens, experts per token), all whole numbers, and, if the largest numbers are not
        there, ``experts`` and ``vocabulary``.

    Raises
    ------
    BadFileError
        If it is no such file.
    """
    file = Path(path)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise BadFileError(f"{file} is too large.", given=file.stat().st_size, allowed=f"{_MOST_BYTES} bytes")
        with np.load(file, allow_pickle=False) as stored:
            given = {name: np.asarray(stored[name]) for name in stored.files}
    except BadFileError:
        raise
    except OSError as error:
        raise BadFileError(f"{file} cannot be read.", hint=error.strerror) from error
    except Exception as error:  # numpy, zipfile and zlib have kinds of their own; numpy's words advise to trust pickles
        raise BadFileError(f"{file} is no archive of numpy's arrays, or a damaged one.",
                           hint="write it with numpy.savez, whole numbers only") from error  # fmt: skip
    missing = [name for name in _ARRAYS if name not in given]
    if missing:
        raise BadFileError(f"{file} lacks arrays of routes.", given=sorted(given), allowed=list(_ARRAYS))
    for name, array in given.items():
        if array.dtype.kind not in "iu":
            raise BadFileError(f"{name} of {file} holds no whole numbers.", given=str(array.dtype), allowed="integers")
    whole: dict[str, Any] = {name: given[name].astype(np.int64) for name in _ARRAYS}
    if whole["routes"].size == 0 or whole["tokens"].size == 0:
        raise BadFileError(f"{file} holds no routes.")
    most: dict[str, Any] = {}
    for name, of in (("experts", "routes"), ("vocabulary", "tokens")):
        if name in given and given[name].ndim:
            raise BadFileError(f"{name} of {file} is one number.", given=f"shape {given[name].shape}",
                               allowed="shape ()")  # fmt: skip
        most[name] = int(given[name]) if name in given else int(whole[of].max()) + 1
    try:
        return RoutingTrace(**whole, **most)
    except BadValueError as error:
        raise BadFileError(f"{file} holds no routes of tokens.", hint=str(error)) from error
