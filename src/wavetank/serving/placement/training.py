"""Training of the distilled model: random sets of adapters, what the twin keeps up with, and a small random forest.

``python -m wavetank.serving.placement.training MODEL --out FILE`` makes the shipped file of a base model anew.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from wavetank.serving.placement.beliefs import features
from wavetank.serving.placement.interface import Adapter, PlacementProblem
from wavetank.serving.placement.twin import capacity_per_s
from wavetank.sim.rng import stream
from wavetank.study.forest import Forest, train_forest
from wavetank.terminal import say

# The largest forest that the source tries.
_TREES, _DEPTH = 4, 8
_RANKS = (8, 16, 32)
_MOST_ADAPTERS = 384


def example(model: str, seed: int, number: int) -> tuple[PlacementProblem, int]:
    """Return a random set of adapters on one GPU, and a number of slots.

    Up to 384 adapters, most often few; rates from equal to very unequal; one rank for all or a mix.

    Parameters
    ----------
    model : str
    seed, number : int
    """
    draws = stream(seed, "distilled", model, number)
    count = round(float(np.exp(draws.uniform(0.0, np.log(_MOST_ADAPTERS)))))
    spread = float(draws.uniform(0.0, 2.0))
    rates = np.exp(draws.normal(0.0, spread, count))
    ranks = draws.choice(_RANKS, count) if draws.random() < 0.5 else np.full(count, draws.choice(_RANKS))
    adapters = tuple(
        Adapter(name=str(i), rank=int(rank), rate_per_s=float(rate))
        for i, (rank, rate) in enumerate(zip(ranks, rates, strict=True))
    )
    problem = PlacementProblem(adapters=adapters, model=model)
    choices = [each for each in problem.choices(int(ranks.max())) if each < 2 * count]
    return problem, int(draws.choice(choices))


def examples(model: str, seed: int, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what the forest sees of some sets, and what the twin keeps up with.

    Parameters
    ----------
    model : str
    seed, count : int

    Returns
    -------
    (float64, shape (count, 9), float64, shape (count,))
        Features, and the logarithm of requests/s.
    """
    from joblib import Parallel, delayed

    def one(number: int) -> tuple[NDArray[np.float64], float]:
        problem, slots = example(model, seed, number)
        row = features(problem, problem.adapters, [slots])[0]
        return row, float(np.log(capacity_per_s(problem, problem.adapters, slots, seed=number)))

    found = Parallel(n_jobs=-1)(delayed(one)(number) for number in range(count))
    return np.array([row for row, _ in found]), np.array([value for _, value in found])


def smape(forest: Forest, rows: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    """Return the symmetric error of a forest's rates.

    Parameters
    ----------
    forest : Forest
    rows : float64, shape (m, 9)
    values : float64, shape (m,)
        Logarithms of requests/s.
    """
    said, true = np.exp(forest.predict(rows)), np.exp(values)
    return float(np.mean(2 * np.abs(said - true) / (said + true)))


@click.command()
@click.argument("model")
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File for the forest.")
@click.option("--sets", default=3000, show_default=True, type=click.IntRange(20), help="Sets of adapters to train on.")
def main(model: str, out: Path, sets: int) -> None:
    """Train the distilled model of one base model and keep it."""
    arrays = train_forest(*examples(model, 0, sets), trees=_TREES, depth=_DEPTH)
    unseen = examples(model, 1, sets // 10)
    say(f"error on sets that were not seen: {smape(Forest(arrays), *unseen):.1%}")
    np.savez_compressed(out, **arrays)


if __name__ == "__main__":
    main()
