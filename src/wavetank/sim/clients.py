"""Clients of a simulated run whose next request depends on the answers to those before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Door(Protocol):
    """What clients may do: ask nodes, and wait."""

    @property
    def now(self) -> float:
        """Time in rounds."""

    def ask(self, node: int, command: Any, client: str = "") -> int:
        """Ask a node now; return the number of the request.

        Parameters
        ----------
        node : int
            Whom to ask.
        command : object
        client : str
            Who asks; see :class:`~wavetank.sim.simulation.Request`.
        """

    def later(self, after: float, act: Callable[[], None]) -> None:
        """Call ``act`` in ``after`` rounds, behind all that nodes do at that time."""


class Clients(Protocol):
    """Asks, and hears each answer."""

    def start(self, door: Door) -> None:
        """Called once, before anything happens."""

    def answered(self, number: int, result: Any) -> None:
        """Called at the first reply to a request; nodes are asked again only after the present event."""
