"""What a controller sees of nodes and services, and what it decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, unknown_name


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine: its GPUs, its CPU in the same unit of work, and its memory."""

    name: str
    gpu: float
    cpu: float
    memory_gb: float


@dataclass(frozen=True, kw_only=True)
class Service:
    """What runs on one node at a time.

    Parameters
    ----------
    name : str
    radio : bool
        A radio function: works all the time and needs its share at every moment; else an AI service with requests.
    memory_gb : float
    downtime_s : float
        How long a move stops it.
    deadline_s : float
        Of its requests, after their arrival; of a radio function, a slot.
    """

    name: str
    radio: bool
    memory_gb: float
    downtime_s: float
    deadline_s: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """What was seen of a service since the last decision, smoothed.

    Attributes
    ----------
    rate_per_s : float
        Requests; 0 of a radio function.
    gpu_s, cpu_s : float
        Mean work of a request; of a radio function, the shares that it needs now.
    spread : float
        Squared coefficient of variation of the work.
    fulfilled : float
        Share of the requests that ended in time, or of the time in which a radio function had its share.
    """

    rate_per_s: float
    gpu_s: float
    cpu_s: float
    spread: float
    fulfilled: float


@dataclass(frozen=True, kw_only=True)
class Move:
    """A service, by its name, to another node, by its name."""

    service: str
    to: str


@dataclass(frozen=True, kw_only=True)
class View:
    """What a controller sees.

    Attributes
    ----------
    time_s : float
    nodes : tuple of Node
    services : tuple of Service
    placement : tuple of int
        Node of each service.
    moving : tuple of bool
        Whether a service is stopped because it moves.
    loads : tuple of Load
    """

    time_s: float
    nodes: tuple[Node, ...]
    services: tuple[Service, ...]
    placement: tuple[int, ...]
    moving: tuple[bool, ...]
    loads: tuple[Load, ...]

    def node(self, name: str) -> int:
        """Return the place of a node.

        Parameters
        ----------
        name : str

        Raises
        ------
        UnknownNameError
        """
        return _place(name, [each.name for each in self.nodes], "node")

    def service(self, name: str) -> int:
        """Return the place of a service.

        Parameters
        ----------
        name : str

        Raises
        ------
        UnknownNameError
        """
        return _place(name, [each.name for each in self.services], "service")

    def free_gb(self, node: int) -> float:
        """Return the memory that is left on a node.

        Parameters
        ----------
        node : int
        """
        used = sum(each.memory_gb for each, at in zip(self.services, self.placement, strict=True) if at == node)
        return self.nodes[node].memory_gb - used

    def after(self, move: Move) -> View:
        """Return the view with a service on another node.

        Parameters
        ----------
        move : Move

        Raises
        ------
        BadValueError
            If the service is there already, moves just now, or does not fit; or a name is unknown.
        """
        service, node = self.service(move.service), self.node(move.to)
        if self.placement[service] == node or self.moving[service]:
            raise BadValueError("This service is there already, or on its way.", given=f"{move.service} to {move.to}")
        if self.services[service].memory_gb > self.free_gb(node):
            raise BadValueError(
                "The node has no memory for the service.", given=f"{self.services[service].memory_gb:g} GB",
                allowed=f"{self.free_gb(node):g} GB on {move.to}",
            )  # fmt: skip
        placement = tuple(node if i == service else at for i, at in enumerate(self.placement))
        return replace(self, placement=placement)


class Controller(Protocol):
    """Decides on moves."""

    def decide(self, view: View) -> Sequence[Move]:
        """Return the moves to make now, in their order; those that cannot be made are left out and counted.

        Parameters
        ----------
        view : View
        """
        ...


def _place(name: str, names: list[str], what: str) -> int:
    if name not in names:
        raise unknown_name(what, name, names, where="move")
    return names.index(name)


def radio_shares(view: View) -> NDArray[np.float64]:
    """Return what radio functions take of every node's GPU and CPU.

    Parameters
    ----------
    view : View

    Returns
    -------
    float64, shape (nodes, 2)
    """
    taken = np.zeros((len(view.nodes), 2))
    for service, load, at in zip(view.services, view.loads, view.placement, strict=True):
        if service.radio:
            taken[at] += (load.gpu_s, load.cpu_s)
    return taken
