"""Copies of a router side by side, as replicas of a gateway.

Requests are dealt among the copies, each as likely as any other.  Every copy has a state of its own, and sees beside
the workers' last reports only what it sent itself.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from wavetank.serving.routing.interface import ArrivalRouter, PoolRouter
    from wavetank.serving.simulator.cluster import Cluster


def states_of(router: ArrivalRouter | PoolRouter, cluster: Cluster) -> NDArray[np.float64]:
    """Return the state of every copy of a router before its first decision, shape (routers, cells).

    Copies that draw do so from streams of their own.

    Parameters
    ----------
    router : ArrivalRouter or PoolRouter
    cluster : Cluster
        How many copies there are, and of how many workers.
    """
    copies: list[Any] = [router] * cluster.routers
    seed, plain = getattr(router, "seed", None), dataclasses.is_dataclass(router)
    if plain and isinstance(seed, int):
        replace: Any = dataclasses.replace
        copies = [replace(router, seed=(seed + number) % 2**31) for number in range(cluster.routers)]
    return np.array([np.asarray(each.initial_state(cluster.workers), np.float64).ravel() for each in copies])
