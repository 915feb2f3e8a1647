"""Experts change places: pairs of the busiest and the idlest rank are swapped while that pays for itself.

Tokens choose some experts far more often than others, and a layer is done when its busiest rank is.  Loads are counted
over some steps; when the busiest rank has more than a threshold over the mean, the pair of experts, one of it and one
of another rank, whose swap makes the larger of both loads least is swapped, with its optimizer's state, at the border
of a step.  Swaps cost bytes on the network and must earn that back before loads have drifted away: of all
beginnings of the sequence, the one is made that saves most in a step, times a horizon, less what its swaps cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.balanced_assignment import longest_first
from wavetank.settings import setting

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class View(NamedTuple):
    """What a balancer knows.

    Parameters
    ----------
    load : float64 array (experts,)
        Tokens of each in a step, as counted.
    owner : int64 array (experts,)
        Rank of each; as many on every one.
    ranks : int
    token_s : float
        What a token costs its rank, s.
    swap_s : float
        What it takes to swap two experts, s.
    """

    load: Floats
    owner: Ints
    ranks: int
    token_s: float
    swap_s: float


class Balancer(Protocol):
    """Says where experts should be."""

    def place(self, view: View) -> Ints:
        """Return the rank of each expert, as many on every one.

        Parameters
        ----------
        view : View
        """
        ...


def rank_loads(load: Floats, owner: Ints, ranks: int) -> Floats:
    """Return the tokens of each rank.

    Parameters
    ----------
    load : float64 array (experts,)
    owner : int64 array (experts,)
    ranks : int
    """
    return np.asarray(np.bincount(owner, load, ranks), np.float64)


@dataclass(frozen=True, kw_only=True)
class Swaps:
    """Balancer that swaps pairs while the busiest rank is over a threshold and a swap earns its cost back."""

    threshold: float = setting(1.2, says="Load of the busiest rank over the mean from which on swaps are made", low=1.0,
                               high=100.0)  # fmt: skip
    horizon: float = setting(100.0, unit="steps", says="Steps for which loads are taken to stay", low=0.0, high=1e9)

    def place(self, view: View) -> Ints:
        """Return the places after the swaps."""
        owner = best = view.owner
        before, most = float(rank_loads(view.load, owner, view.ranks).max()), 0.0
        for swaps in range(1, owner.size * view.ranks + 1):
            loads = rank_loads(view.load, owner, view.ranks)
            hot = int(np.argmax(loads))
            if loads[hot] <= self.threshold * loads.mean():
                break
            pair = _best_pair(view.load, owner, loads, hot)
            if pair is None:
                break
            after = owner.copy()
            after[list(pair)] = owner[list(pair[::-1])]
            owner = after
            # Other ranks may be as busy: a step is as long as the busiest of all.
            saved = before - float(rank_loads(view.load, owner, view.ranks).max())
            earned = saved * view.token_s * self.horizon - swaps * view.swap_s
            if earned > most:
                best, most = owner, earned
        return best


def _best_pair(load: Floats, owner: Ints, loads: Floats, hot: int) -> tuple[int, int] | None:
    """Return the expert of the busiest rank and one of another whose swap makes the larger of both loads least."""
    mine, others = np.flatnonzero(owner == hot), np.flatnonzero(owner != hot)
    moved = load[mine][:, None] - load[others][None, :]
    larger = np.maximum(loads[hot] - moved, loads[owner[others]][None, :] + moved)
    at = int(np.argmin(larger))
    one, other = divmod(at, others.size)
    # Each swap lowers the sum of squares, so that there is an end.
    return (int(mine[one]), int(others[other])) if larger[one, other] < loads[hot] else None


@dataclass(frozen=True, kw_only=True)
class Stay:
    """Balancer that leaves experts where they are."""

    def place(self, view: View) -> Ints:
        """Return the places as they are."""
        return view.owner


@dataclass(frozen=True, kw_only=True)
class Reshuffle:
    """Balancer that places all experts anew, the busiest first, each on the rank with least load that has room."""

    pays: bool = setting(False, says="Whether they stay where moving does not pay within the horizon")
    horizon: float = setting(100.0, unit="steps", says="Steps for which loads are taken to stay", low=0.0, high=1e9)

    def place(self, view: View) -> Ints:
        """Return the places."""
        room = view.load.size // view.ranks
        found: Ints = longest_first(view.load, np.ones(view.load.size), view.ranks, room)
        before, after = (float(rank_loads(view.load, each, view.ranks).max()) for each in (view.owner, found))
        swaps = int((found != view.owner).sum()) / 2
        if self.pays and (before - after) * view.token_s * self.horizon <= swaps * view.swap_s:
            return view.owner
        return found


def check_places(view: View, owner: Ints) -> int:
    """Return how many experts move; refuse places that leave ranks unequal numbers of them.

    Parameters
    ----------
    view : View
    owner : int64 array (experts,)

    Raises
    ------
    BadValueError
        For places of another number of experts, or that are not even.
    """
    if owner.shape != view.load.shape or np.any(np.bincount(owner, minlength=view.ranks) * view.ranks != owner.size):
        raise BadValueError("Every rank has as many experts.", given=np.bincount(owner).tolist()[:8])
    return int((owner != view.owner).sum())
