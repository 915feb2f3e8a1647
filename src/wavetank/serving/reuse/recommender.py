"""Prompts of a recommender: instructions, a user's history, candidates with their texts, and what is asked.

The same items come back for other users in another order, and a user comes back with a history that has grown at its
end, which is the kindest order to a cache of prefixes.  Generated catalogues have tastes, each with its own popular
items; a user has two.  Real titles, genres and histories are those of MovieLens.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.serving.reuse.interface import ENTRY, INSTRUCTIONS, ITEM, TASK, Parts, Prompt
from wavetank.serving.reuse.segments import Tokens
from wavetank.sim.rng import stream
from wavetank.workloads import datasets

Ints = NDArray[np.int64]

MOVIES = "movielens-small"
_WORD = re.compile(r"\w+|[^\w\s]")
_UNIT, _LONGEST = 8, 22
_INSTRUCTIONS, _TASK = 24, 4
_TASTES = 40
# Shares: candidates of the user's own tastes, the others being popular everywhere; how fast popularity falls.
_OWN, _FALL = 0.8, 0.9


class Request(NamedTuple):
    """A user's request.

    Attributes
    ----------
    user : int
    history : int64 array (entries,)
        Twice the item, and one more if it was liked; the oldest first.
    candidates : int64 array (candidates,)
        Items.
    """

    user: int
    history: Ints
    candidates: Ints


@dataclass(frozen=True, eq=False)
class Shop:
    """A catalogue and its requests.

    Parameters
    ----------
    items : sequence of uint32 array
        Texts of items, in ids.
    titles : sequence of uint32 array
        What an entry of a history says of an item.
    marks : tuple of two uint32 arrays
        What an entry begins with: disliked, liked.
    instructions, task : uint32 array
    unit : int
        Tokens of an id.
    learned, asked : sequence of Request
        Earlier requests, from which may be learned, and those that are judged.
    """

    items: Sequence[Tokens]
    titles: Sequence[Tokens]
    marks: tuple[Tokens, Tokens]
    instructions: Tokens
    task: Tokens
    unit: int
    learned: Sequence[Request]
    asked: Sequence[Request]

    def __post_init__(self) -> None:
        for request in (*self.learned, *self.asked):
            for name, found, most in (("candidates", request.candidates, len(self.items)),
                                      ("history", request.history, 2 * len(self.items))):  # fmt: skip
                if len(found) and not 0 <= found.min() <= found.max() < most:
                    raise BadValueError("A request names items that are not in the catalogue.",
                                        given=int(found.max()), allowed=f"0 to {most - 1}", where=name)  # fmt: skip

    def entry(self, number: int) -> Tokens:
        """Return the text of an entry of a history.

        Parameters
        ----------
        number : int
            As in :class:`Request`.
        """
        return np.concatenate([self.marks[number % 2], self.titles[number // 2]])

    def prompt(self, request: Request) -> Prompt:
        """Return the prompt of a request.

        Parameters
        ----------
        request : Request
        """
        pieces = [
            self.instructions, *(self.entry(each) for each in request.history.tolist()),
            *(self.items[each] for each in request.candidates.tolist()), self.task,
        ]  # fmt: skip
        kinds = [INSTRUCTIONS, *[ENTRY] * len(request.history), *[ITEM] * len(request.candidates), TASK]
        ends = np.cumsum([len(each) for each in pieces])
        ids = np.concatenate(pieces).astype(np.uint32)
        return Prompt(ids, len(ids) * self.unit, request.user, Parts(ends, np.array(kinds, np.int64)))


@lru_cache(maxsize=8)
def generated_shop(
    seed: int, *, items: int, users: int, learned: int, asked: int, candidates: int, entries: int = 20
) -> Shop:  # fmt: skip
    """Return a catalogue that never was: items of 64 to 176 tokens, 40 tastes, histories that grow with each request.

    Parameters
    ----------
    seed : int
    items, users : int
    learned, asked : int
        Requests.
    candidates : int
        Of a request, all different; at most as many as items.
    entries : int
        Mean length of a history before the first request; half to one and a half as long.
    """
    draws, count = stream(seed, "generated shop"), min(candidates, items)
    tastes = draws.integers(0, min(_TASTES, items), items)
    popular = draws.permutation(items) + 1.0
    weights = popular**-_FALL
    lengths = draws.integers(_UNIT, _LONGEST + 1, items)
    texts = [np.arange(64 * each, 64 * each + size, dtype=np.uint32) for each, size in enumerate(lengths.tolist())]
    other = 64 * items
    marks = (np.array([other], np.uint32), np.array([other + 1], np.uint32))
    instructions = np.arange(other + 2, other + 2 + _INSTRUCTIONS, dtype=np.uint32)
    task = np.arange(other + 100, other + 100 + _TASK, dtype=np.uint32)
    own = draws.integers(0, min(_TASTES, items), (users, 2))
    histories = []
    for user in range(users):
        size = int(draws.integers(entries // 2, entries + entries // 2 + 1))
        mine = weights * np.where(np.isin(tastes, own[user]), 1.0, 0.05)
        seen = draws.choice(items, min(size, items), replace=False, p=mine / mine.sum())
        histories.append([2 * int(each) + int(tastes[each] in own[user]) for each in seen])
    often = 1.0 / (draws.permutation(users) + 1.0) ** 0.6
    requests = []
    for user in draws.choice(users, learned + asked, p=often / often.sum()).tolist():
        liked = np.isin(tastes, own[user])
        shares = weights * np.where(liked, _OWN / max((weights * liked).sum(), 1e-12), 0.0)
        shares += weights * (1.0 - _OWN) / weights.sum()
        # The largest of exponential clocks: a draw without replacement by weight.
        clocks = draws.exponential(size=items) / shares
        found = draws.permutation(np.argpartition(clocks, count - 1)[:count] if count else clocks[:0].astype(np.int64))
        requests.append(Request(user, np.array(histories[user], np.int64), found.astype(np.int64)))
        if count:
            histories[user].append(2 * int(found[0]) + 1)
    return Shop(texts, [each[:1] for each in texts], marks, instructions, task, _UNIT,
                requests[:learned], requests[learned:])  # fmt: skip


@lru_cache(maxsize=4)
def movie_shop(seed: int, *, learned: int, asked: int, candidates: int, entries: int = 20) -> Shop:
    """Return requests over MovieLens: real titles, genres and ratings; candidates are drawn.

    Candidates are films that others rated who rated a film of the history, as often as they did.

    Parameters
    ----------
    seed : int
        Draws users and candidates.
    learned, asked, candidates, entries : int
        As for :func:`generated_shop`; a history begins with the first ratings of a user.

    Raises
    ------
    DataUnavailableError
        If the data set is not on this machine.
    """
    draws, known = stream(seed, "movie shop"), dict[str, int]()

    def ids(text: str) -> Tokens:
        words = _WORD.findall(text)
        return np.fromiter((known.setdefault(each, len(known)) for each in words), np.uint32, len(words))

    movies = _rows("movies.csv.gz")
    numbers = {row["movieId"]: number for number, row in enumerate(movies)}
    titles = [ids(row["title"]) for row in movies]
    texts = [np.concatenate([each, ids(" : " + row["genres"])]) for each, row in zip(titles, movies, strict=True)]
    rated: dict[str, list[tuple[int, int, bool]]] = {}
    for row in _rows("ratings.csv.gz"):
        rated.setdefault(row["userId"], []).append(
            (int(row["timestamp"]), numbers[row["movieId"]], float(row["rating"]) >= 4.0)
        )  # fmt: skip
    films = [np.array([number for _, number, _ in sorted(each)]) for each in rated.values()]
    likes = [[2 * number + liked for _, number, liked in sorted(each)] for each in rated.values()]
    raters: dict[int, list[int]] = {}
    for user, each in enumerate(films):
        for film in each.tolist():
            raters.setdefault(film, []).append(user)
    visits, requests = np.zeros(len(films), np.int64), []
    for user in draws.integers(0, len(films), learned + asked).tolist():
        seen = min(entries + int(visits[user]), len(films[user]))
        visits[user] += 1
        found: dict[int, None] = {}
        for _ in range(20 * candidates):
            if len(found) == candidates:
                break
            film = int(films[user][draws.integers(0, seen)])
            mine = films[raters[film][int(draws.integers(0, len(raters[film])))]]
            found.setdefault(int(mine[draws.integers(0, len(mine))]))
        order = draws.permutation(np.array(list(found), np.int64))
        requests.append(Request(user, np.array(likes[user][:seen], np.int64), order))
    marks = (ids("disliked"), ids("liked"))
    instructions = ids(" ".join(f"rule{number} of the shop ;" for number in range(20)))
    return Shop(texts, titles, marks, instructions, ids("which of these is next ?"), 1,
                requests[:learned], requests[learned:])  # fmt: skip


def _rows(name: str) -> list[dict[str, Any]]:
    text = gzip.decompress(datasets.find(MOVIES, name).read_bytes()).decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def arrivals(seed: int, count: int, rate_per_s: float) -> NDArray[np.float64]:
    """Return times of arrival, those of a Poisson process, in s; equal seeds give the same ones but for the rate.

    Parameters
    ----------
    seed : int
    count : int
    rate_per_s : float
    """
    return np.cumsum(stream(seed, "recommender arrivals").exponential(size=count)) / rate_per_s
