"""The placement with the least overload for the loads that will come: an oracle by integer programming."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.sharing.interface import Controller, Move, View
from wavetank.serving.sharing.nodes import RULES
from wavetank.serving.sharing.traffic import BIN_S, Scene
from wavetank.settings import setting

# Where a node's use of what radio functions leave begins to cost, and how much more per use from there on.
_KINKS = ((0.5, 0.3), (0.75, 1.5), (0.95, 8.0))
_HORIZON_S = 60.0
_LIMIT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Foresight:
    """Places services every time as an integer program says that knows the true loads of the next minute."""

    rule: str = setting("closed-form", says="How nodes divide what they have", choices=RULES)

    def controller(self, seed: int, scene: Scene) -> Controller:
        """Return a controller for one run.

        Parameters
        ----------
        seed : int
            Not used.
        scene : Scene
            Whose future is known.
        """
        return _Foreseen(scene)


class _Foreseen:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def decide(self, view: View) -> list[Move]:
        scene = self._scene
        first = int(view.time_s / BIN_S)
        bins = slice(first, first + int(_HORIZON_S / BIN_S))
        work = (scene.rates[bins].mean(axis=0)[:, None] * scene.means)[:, 0]
        radio = scene.needs[bins].mean(axis=0)[:, 0]
        ai = [i for i, each in enumerate(view.services) if not each.radio]
        left = np.array([each.gpu for each in view.nodes])
        free = np.array([view.free_gb(node) for node in range(len(view.nodes))])
        for i, each in enumerate(view.services):
            if each.radio:
                left[view.placement[i]] -= radio[i]
            else:
                free[view.placement[i]] += each.memory_gb
        target = _program(
            work[ai], np.array([view.services[i].memory_gb for i in ai]), np.maximum(left, 1e-3), free,
            np.array([view.placement[i] for i in ai]),
            np.array([min(view.services[i].downtime_s / _HORIZON_S, 1e3) for i in ai]),
            np.array([view.moving[i] for i in ai]),
        )  # fmt: skip
        wanted = [
            Move(service=view.services[i].name, to=view.nodes[node].name)
            for i, node in zip(ai, target, strict=True)
            if node != view.placement[i]
        ]
        # Those that leave make room for those that come: an order in which all fit, where there is one.
        found: list[Move] = []
        while wanted:
            ready = [
                move
                for move in wanted
                if view.services[view.service(move.service)].memory_gb <= view.free_gb(view.node(move.to))
            ]
            if not ready:
                break
            found.append(ready[0])
            view = view.after(ready[0])
            wanted.remove(ready[0])
        return found


def _program(work: NDArray[np.float64], memory: NDArray[np.float64], left: NDArray[np.float64],
             free: NDArray[np.float64], at: NDArray[np.int64], cost: NDArray[np.float64],
             fixed: NDArray[np.bool_]) -> list[int]:  # fmt: skip
    """Return the node of every service that costs least: of overload and of moves, in seconds of one service's loss."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    services, nodes = work.size, left.size
    placed, kinks = services * nodes, nodes * len(_KINKS)
    objective = np.zeros(placed + kinks)
    stays = np.zeros((services, nodes), bool)
    stays[np.arange(services), at] = True
    objective[:placed] = np.where(stays, 0.0, cost[:, None]).ravel()
    rows, low, high = [], [], []
    for i in range(services):
        row = np.zeros(placed + kinks)
        row[i * nodes : (i + 1) * nodes] = 1
        rows.append(row)
        low.append(1.0)
        high.append(1.0)
    for n in range(nodes):
        row = np.zeros(placed + kinks)
        row[n:placed:nodes] = memory
        rows.append(row)
        low.append(-np.inf)
        high.append(float(free[n]))
        for k, (begin, slope) in enumerate(_KINKS):
            # What is above the kink: at least use - begin, and not below 0.
            over = placed + n * len(_KINKS) + k
            row = np.zeros(placed + kinks)
            row[n:placed:nodes] = work / left[n]
            row[over] = -1
            rows.append(row)
            low.append(-np.inf)
            high.append(begin)
            objective[over] = slope
    lower, upper = np.zeros(placed + kinks), np.concatenate([np.ones(placed), np.full(kinks, 1e4)])
    lower[:placed] = (stays & fixed[:, None]).ravel()
    result = milp(
        objective, integrality=np.concatenate([np.ones(placed), np.zeros(kinks)]), bounds=Bounds(lower, upper),
        constraints=LinearConstraint(np.array(rows), low, high), options={"time_limit": _LIMIT_S, "mip_rel_gap": 0.02},
    )  # fmt: skip
    if result.x is None:
        return [int(node) for node in at]
    return [int(node) for node in result.x[:placed].reshape(services, nodes).argmax(axis=1)]
