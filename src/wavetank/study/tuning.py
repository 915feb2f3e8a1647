"""What a tuner sees: configurations, what a formula says of their memory, and the trials that were made.

A trial runs a configuration and gives its speed, or none where it did not fit into memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import ndtr

from wavetank.errors import BadValueError

Floats = NDArray[np.float64]
_NOISE = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class Space:
    """All configurations.

    Parameters
    ----------
    configurations : tuple of tuple of int
        Tensor shards, stages, sequences of a microbatch, microbatches, and one more choice; at least one.
    predicted_bytes : int64 array (configurations,)
        What a formula says that each holds.
    room_bytes : int
        What there is.
    node : int
        Tensor shards that a node holds.
    """

    configurations: tuple[tuple[int, ...], ...]
    predicted_bytes: NDArray[np.int64]
    room_bytes: int
    node: int

    def __post_init__(self) -> None:
        widths = {len(each) for each in self.configurations}
        if len(widths) != 1 or self.predicted_bytes.shape != (len(self.configurations),):
            raise BadValueError("A space has configurations of one form, and the bytes of each.",
                                given=f"{len(self.configurations)}, {self.predicted_bytes.shape}")  # fmt: skip

    @property
    def features(self) -> Floats:
        """Logarithms of all numbers, each column from 0 to 1."""
        logs = np.log2(1.0 + np.array(self.configurations, np.float64))
        low, high = logs.min(0), logs.max(0)
        return np.asarray((logs - low) / np.where(high > low, high - low, 1.0))


class Trial(NamedTuple):
    """A configuration that was tried.

    Parameters
    ----------
    number : int
        Of the configuration.
    speed : float or None
        None where it did not fit.
    figures : mapping of str to float
        What else was measured of it, for tuners that look at more than the speed.
    """

    number: int
    speed: float | None
    figures: Mapping[str, float] = MappingProxyType({})


class Tuner(Protocol):
    """Chooses what is tried next."""

    def propose(self, space: Space, tried: Sequence[Trial], draws: Generator) -> int:
        """Return the number of a configuration that was not tried.

        Parameters
        ----------
        space : Space
        tried : sequence of Trial
            In their order, less than there are configurations.
        draws : Generator
            The tuner's random numbers.
        """
        ...


def trials_to(
    tuner: Tuner, space: Space, speeds: Sequence[float | None], wanted: float, draws: Generator, *, most: int,
    judged: Sequence[float | None] | None = None, figures: Sequence[Mapping[str, float]] | None = None,
) -> list[Trial]:  # fmt: skip
    """Return the trials of a tuner until one is as fast as wanted, or the budget is spent.

    Parameters
    ----------
    tuner : Tuner
    space : Space
    speeds : sequence of float or None
        What each configuration gives; None where it does not fit.
    wanted : float
        Speed.
    draws : Generator
    most : int
        Trials at most.
    judged : sequence of float or None, optional
        Speeds by which it is decided whether one is as fast as wanted, where those that are shown are noisy.
    figures : sequence of mapping, optional
        What else a trial of each shows.

    Raises
    ------
    BadValueError
        For a proposal of what was tried already, or of nothing.
    """
    tried: list[Trial] = []
    seen: set[int] = set()
    for _ in range(min(most, len(space.configurations))):
        number = int(tuner.propose(space, tried, draws))
        if number in seen or not 0 <= number < len(speeds):
            raise BadValueError("A tuner tries each configuration once.", given=number,
                                allowed=f"one of {len(speeds)} that was not tried")  # fmt: skip
        seen.add(number)
        speed = speeds[number]
        tried.append(Trial(number, speed, figures[number] if figures is not None else MappingProxyType({})))
        truth = speed if judged is None else judged[number]
        if speed is not None and truth is not None and truth >= wanted:
            break
    return tried


def random_median(configurations: int, good: int) -> int:
    """Return the median number of trials of a search at random, without repetition, until the first good one.

    Parameters
    ----------
    configurations, good : int
        How many there are, and how many of them are good; at least one.

    Examples
    --------
    >>> random_median(10, 1), random_median(100, 10)
    (5, 7)
    """
    if not 1 <= good <= configurations:
        raise BadValueError("Some of the configurations are good.", given=(good, configurations))
    # In whole numbers: a product of rounded shares would miss one half.
    missed, of, trials = 1, 1, 0
    while 2 * missed > of:
        missed, of = missed * (configurations - good - trials), of * (configurations - trials)
        trials += 1
    return trials


def untried(space: Space, tried: Sequence[Trial]) -> list[int]:
    """Return the numbers of configurations that were not tried, in order.

    Parameters
    ----------
    space : Space
    tried : sequence of Trial
    """
    seen = {trial.number for trial in tried}
    return [number for number in range(len(space.configurations)) if number not in seen]


def alike(one: Floats, other: Floats, length: float) -> Floats:
    """Return how much places resemble others: 1 for the same, less with the square of the distance.

    Parameters
    ----------
    one : float64 array (n, features)
    other : float64 array (m, features)
    length : float
        At which 0.6 is left.

    Returns
    -------
    float64 array (n, m)
    """
    squares = ((one[:, None, :] - other[None, :, :]) ** 2).sum(-1)
    return np.asarray(np.exp(-squares / (2 * length**2)))


def gaussian_process(at: Floats, values: Floats, where: Floats, length: float) -> tuple[Floats, Floats]:
    """Return mean and standard deviation at other places.

    Parameters
    ----------
    at : float64 array (n, features)
        Where values are known.
    values : float64 array (n,)
    where : float64 array (m, features)
    length : float
        Of the squared exponential kernel.
    """
    centre, scale = float(values.mean()), float(values.std()) or 1.0
    inner = alike(at, at, length) + _NOISE * np.eye(len(at))
    across = alike(where, at, length)
    solved = np.linalg.solve(inner, np.column_stack([(values - centre) / scale, across.T]))
    mean = across @ solved[:, 0]
    variance = 1.0 - (across * solved[:, 1:].T).sum(1)
    return centre + scale * mean, scale * np.sqrt(np.maximum(variance, 1e-12))


def expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Return by how much a normal value is expected to exceed the best, 0 where it does not.

    Parameters
    ----------
    mean, deviation : float64 array
    best : float
    """
    z = (mean - best) / deviation
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(deviation * (z * ndtr(z) + density))
