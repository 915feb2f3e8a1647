"""Critics: what a placement is expected to fulfil, and whether a move is worth its interruption."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.serving.sharing.interface import Move, View, radio_shares
from wavetank.study.forest import Forest

HORIZON_S = 60.0
FEATURES = ("gpu_use", "cpu_use", "gpu_left", "work_over_deadline", "spread", "rate_times_deadline", "own_use",
            "radio_share", "others")  # fmt: skip
"""What the learned critic sees of an AI service on its node: GPU and CPU work of all AI services over what radio
functions leave, GPU left by them, the service's work on the GPU left over its deadline, the spread of its work, its
requests per deadline, its own part of the use, the radio functions' part of the GPU, and how many others are there."""


def per_node(view: View) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what radio functions leave of every node, and the work of AI services there.

    Parameters
    ----------
    view : View

    Returns
    -------
    (float64, shape (nodes, 2), float64, shape (nodes, 2))
        GPU and CPU.
    """
    radio = radio_shares(view)
    whole = np.array([(each.gpu, each.cpu) for each in view.nodes])
    asked = np.zeros_like(whole)
    for service, load, at in zip(view.services, view.loads, view.placement, strict=True):
        if not service.radio:
            asked[at] += (load.rate_per_s * load.gpu_s, load.rate_per_s * load.cpu_s)
    return whole - radio, asked


def features(view: View) -> NDArray[np.float64]:
    """Return what the learned critic sees of every service.

    Parameters
    ----------
    view : View

    Returns
    -------
    float64, shape (services, 9)
        In the order of :data:`FEATURES`; zeros of radio functions.
    """
    left, asked = per_node(view)
    left = np.maximum(left, 1e-3)
    use = np.minimum(asked / left, 20.0)
    ai = np.array([not each.radio for each in view.services])
    crowd = np.bincount(np.asarray(view.placement)[ai], minlength=len(view.nodes))
    rows = np.zeros((len(view.services), len(FEATURES)))
    for i, (service, load, at) in enumerate(zip(view.services, view.loads, view.placement, strict=True)):
        if not service.radio:
            rows[i] = (
                use[at, 0], use[at, 1], left[at, 0], load.gpu_s / left[at, 0] / service.deadline_s, load.spread,
                load.rate_per_s * service.deadline_s, load.rate_per_s * load.gpu_s / left[at, 0],
                1 - left[at, 0] / view.nodes[at].gpu, crowd[at] - 1,
            )  # fmt: skip
    return rows


class Fulfilment(Protocol):
    """Predicts what every service fulfils under a placement."""

    def of(self, view: View) -> NDArray[np.float64]:
        """Return the expected fulfilment of each service, if loads stay.

        Parameters
        ----------
        view : View

        Returns
        -------
        float64, shape (services,)
        """
        ...


class Fluid:
    """Every node as one queue in which jobs share the GPU: what is above one in use is lost, and of the rest the
    sojourn time has an exponential tail, ``use * exp(-(1 - use) D x / (W (1 + spread) / 2))`` for work W, deadline D
    and x left.
    """

    def of(self, view: View) -> NDArray[np.float64]:
        """See :class:`Fulfilment`.

        Parameters
        ----------
        view : View
        """
        left, asked = per_node(view)
        fits = left >= -1e-9
        left = np.maximum(left, 1e-6)
        use = asked / left
        found = np.ones(len(view.services))
        for i, (service, load, at) in enumerate(zip(view.services, view.loads, view.placement, strict=True)):
            if service.radio:
                found[i] = float(fits[at].all())
                continue
            for kind, work in enumerate((load.gpu_s, load.cpu_s)):
                if work <= 0:
                    continue
                busy = use[at, kind]
                least = work / left[at, kind] / service.deadline_s
                if busy >= 1 or least >= 1:
                    found[i] = min(found[i], 0.8 / busy if busy >= 1 else 0.0)
                else:
                    late = busy * np.exp(-(1 - busy) / (least * (1 + load.spread) / 2))
                    found[i] = min(found[i], 1 - late)
        return found


class Learned:
    """A random forest trained on simulated placements; of radio functions and idle services, the fluid formula."""

    def __init__(self) -> None:
        self._fluid = Fluid()

    def of(self, view: View) -> NDArray[np.float64]:
        """See :class:`Fulfilment`.

        Parameters
        ----------
        view : View
        """
        found = self._fluid.of(view)
        busy = [i for i, each in enumerate(view.services) if not each.radio and view.loads[i].rate_per_s > 0]
        if busy:
            found[busy] = np.clip(shipped_forest().predict(features(view)[busy]), 0.0, 1.0)
        return found


@cache
def shipped_forest() -> Forest:
    """Return the forest that ships."""
    with (resources.files("wavetank.serving.sharing") / "critic.npz").open("rb") as file:
        return Forest(np.load(file, allow_pickle=False))


def value_of(view: View, fulfilled: NDArray[np.float64]) -> float:
    """Return what a placement is worth: the fulfilment of radio functions and of AI services in use, added up.

    Services count alike, however many requests they have, as in the study's goal.

    Parameters
    ----------
    view : View
    fulfilled : float64, shape (services,)
    """
    used = [service.radio or load.rate_per_s > 0 for service, load in zip(view.services, view.loads, strict=True)]
    return float(fulfilled[used].sum())


def gain(
    view: View, move: Move, fulfilment: Fulfilment, horizon_s: float = HORIZON_S, *, now: float | None = None
) -> float:
    """Return what a move wins over a horizon less what its interruption loses.

    Parameters
    ----------
    view : View
    move : Move
        One that can be made.
    fulfilment : Fulfilment
    horizon_s : float
    now : float, optional
        :func:`value_of` the placement as it is, where that is known already.

    Returns
    -------
    float
        Service-seconds of fulfilment; minus infinity where the interruption is as long as the horizon.
    """
    moved = view.service(move.service)
    down_s = view.services[moved].downtime_s
    after = fulfilment.of(view.after(move))
    if down_s >= horizon_s:
        return -np.inf
    won = value_of(view, after) - (value_of(view, fulfilment.of(view)) if now is None else now)
    # While the service is stopped it fulfils nothing, and the others have what they will have.
    return horizon_s * won - down_s * float(after[moved])
