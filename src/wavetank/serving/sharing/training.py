"""Training of the learned critic: simulated placements, what every service fulfilled there, and a random forest.

``python -m wavetank.serving.sharing.training --out FILE`` makes the shipped file anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from wavetank.serving.sharing.critics import features
from wavetank.serving.sharing.interface import Move, View
from wavetank.serving.sharing.simulation import simulate_sharing
from wavetank.serving.sharing.traffic import make_scene
from wavetank.sim.rng import stream
from wavetank.study.forest import Forest, train_forest
from wavetank.terminal import say

# Seeds that no study uses.
_FIRST_SEED = 1_000_000
_TREES, _DEPTH, _LEAF = 12, 10, 20
_EPOCH_S = 30.0


@dataclass
class _Watcher:
    """Moves services at random and notes what was seen before and after every period.

    Attributes
    ----------
    views : list of View
    """

    draws: np.random.Generator
    views: list[View] = field(default_factory=list)

    def decide(self, view: View) -> Sequence[Move]:
        self.views.append(view)
        ai = [each.name for each in view.services if not each.radio]
        return [
            Move(service=ai[int(self.draws.integers(len(ai)))],
                 to=view.nodes[int(self.draws.integers(len(view.nodes)))].name)
            for _ in range(int(self.draws.integers(0, 3)))
        ]  # fmt: skip


def examples(first: int, scenes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return features of AI services, and what they fulfilled in the period that was seen.

    The loads of a view are those of the period before it, so that its fulfilment belongs to its features: the forest
    learns what loads do on a node, not how they change.  Moves take no time here.

    Parameters
    ----------
    first, scenes : int
        Numbers of scenes: the first, and how many.

    Returns
    -------
    (float64, shape (m, 9), float64, shape (m,))
    """
    rows, values = [], []
    for number in range(first, first + scenes):
        draws = stream(number, "critic-training")
        scene = make_scene(
            _FIRST_SEED + number, seconds=300.0, load=float(draws.uniform(0.3, 1.3)),
            hot_s=float(draws.uniform(60.0, 600.0)), downtime_times=0.0,
        )  # fmt: skip
        watcher = _Watcher(draws)
        run = simulate_sharing(scene, watcher, epoch_s=_EPOCH_S)
        for number_, view in enumerate(watcher.views):
            # Placements of the period that the loads were seen in: those before this view's moves.
            if tuple(view.placement) != run.placements[number_]:
                continue
            busy = [i for i, each in enumerate(view.services) if not each.radio and view.loads[i].rate_per_s > 0]
            rows.append(features(view)[busy])
            values += [view.loads[i].fulfilled for i in busy]
    return np.concatenate(rows), np.array(values)


@click.command()
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File for the forest.")
@click.option("--scenes", default=120, show_default=True, type=click.IntRange(2), help="Scenes to train on.")
def main(out: Path, scenes: int) -> None:
    """Train the critic and keep it."""
    rows, values = examples(0, scenes)
    arrays = train_forest(rows, values, trees=_TREES, depth=_DEPTH, leaf=_LEAF)
    unseen, true = examples(scenes, max(scenes // 6, 1))
    say(f"mean error on scenes that were not seen: {np.abs(Forest(arrays).predict(unseen) - true).mean():.3f}")
    np.savez_compressed(out, **arrays)


if __name__ == "__main__":
    main()
