"""Training of helm's network: ``python -m wavetank.serving.memory.training --out helm_policy.npz``.

Episodes are pairs of known regimes, of which the first turns into the second, at a random load and from a random
boundary.  The network never sees the regimes that policies are scored on.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import click
import numpy as np

from wavetank.serving.memory.che import Floats, mean_service_s
from wavetank.serving.memory.costs import Node
from wavetank.serving.memory.helm import OBSERVATIONS, observe, share_of
from wavetank.serving.memory.interface import WINDOW, NodeReplay, WindowView
from wavetank.serving.memory.node import STEP
from wavetank.serving.memory.traffic import make_traffic, switching
from wavetank.sim.rng import stream
from wavetank.study.learning import Training, train
from wavetank.terminal import say

WINDOWS = 160
"""Windows of an episode."""
_LOADS = (0.3, 0.8)
_SMOOTHING = 0.8
_SHARES = np.linspace(0.02, 0.98, 25)


class MemorySplit:
    """A node whose boundary is moved, as an environment that is learned from."""

    def __init__(self) -> None:
        self.observations, self.actions = OBSERVATIONS, 1
        self._node: NodeReplay
        self._average: Floats
        self._costs: Floats

    def reset(self, seed: int) -> Floats:
        """Begin an episode.

        Parameters
        ----------
        seed : int
        """
        draws = stream(seed, "episode")
        segments = switching(seed, WINDOWS * WINDOW // 2, 2, unseen=False, transition=float(draws.choice([0.0, 0.5])))
        traffic = make_traffic(segments, Node(), seed, load=float(draws.uniform(*_LOADS)))
        self._node = NodeReplay(traffic, float(draws.uniform(0.02, 0.98)))
        self._costs = np.array([
            relative_cost(each.row_exponent, each.user_exponent, each.history) for each in traffic.segments
        ])  # fmt: skip
        self._average = observe(self._node.serve())
        return self._average

    def step(self, action: Floats) -> tuple[Floats, float, bool]:
        """Move the boundary and serve a window.

        Parameters
        ----------
        action : ndarray of float64, shape (1,)
        """
        before = self._node.share
        self._node.move(share_of(float(action[0])))
        moved = abs(self._node.share - before)
        view = self._node.serve()
        now = observe(view)
        self._average = _SMOOTHING * self._average + (1 - _SMOOTHING) * now
        self._average[8] = view.share
        ended = self._node.number >= self._node.windows - 1
        return self._average, self.reward(view, moved), ended

    def reward(self, view: WindowView, moved: float) -> float:
        """Return what is maximised: little time per request, no misses of the objective, little copying, few moves.

        The time is that of the share in the long run, for the popularities that the episode is made with: the measured
        time of 64 requests says little about a step of two hundredths.

        Parameters
        ----------
        view : WindowView
        moved : float
            By how much the share was moved.
        """
        lost = float(np.interp(view.share, _SHARES, self._costs[view.segment]))
        return (
            -10.0 * min(lost, 1.0) - 0.05 * min(view.p99_s / view.slo_s, 4.0) - 0.1 * min(view.refill_share, 1.0)
            - 0.05 * moved / STEP
        )  # fmt: skip


@lru_cache(maxsize=10_000)
def relative_cost(row_exponent: float, user_exponent: float, history: float) -> tuple[float, ...]:
    """Return by how much each share is slower than the best one, for known popularities.

    Parameters
    ----------
    row_exponent, user_exponent, history : float
        As for :func:`~wavetank.serving.memory.che.mean_service_s`.
    """
    times = np.array([mean_service_s(Node(), float(each), row_exponent, user_exponent, history) for each in _SHARES])
    return tuple((times / times.min() - 1).tolist())


@click.command()
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File for the weights.")
@click.option("--steps", default=400_000, show_default=True, type=click.IntRange(1), help="Windows to train on.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of everything that is drawn.")
def main(out: Path, steps: int, seed: int) -> None:
    """Train helm's network and keep its weights."""
    training = Training(steps=steps, seed=seed, learning_rate=1e-3, spread=0.4)
    network = train(MemorySplit, training, report=lambda done, reward: say(f"{done:,} windows: reward {reward:.3f}"))
    network.save(out)


if __name__ == "__main__":
    main()
