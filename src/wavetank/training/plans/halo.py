"""HALO: tokens for the experts of other nodes go through the node, so that a network card sends one message to each.

A flat exchange among many nodes has as many messages through each network card as there are pairs of its ranks and all
ranks elsewhere, each with its time to start.  HALO gathers what leaves through one card for one other node, sends it at
once, and distributes it there; gathering for the next node goes on meanwhile.  What is many small messages becomes few
large ones; where messages are large already, nothing is gained.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.platforms.machines import Machine
from wavetank.settings import setting
from wavetank.training.plans.exchange import (
    Blocks,
    exchange_blocks,
    flat_s,
    halo_phases_s,
    halo_s,
    lanes_of,
)


@dataclass(frozen=True, kw_only=True)
class HaloExchange:
    """Exchange in three phases."""

    overlapped: bool = setting(True, says="Whether the network and the links of nodes work at once")
    lanes: str = setting(
        "cards", says="Members of a node that send to another one: one for each network card, or each to its like",
        choices=("cards", "members"),
    )  # fmt: skip

    def lanes_in(self, machine: Machine) -> int:
        """Return how many members of a node send to each other node.

        Parameters
        ----------
        machine : Machine
        """
        return machine.node if self.lanes == "members" else lanes_of(machine.nics, machine.node, 1)

    def time_s(self, machine: Machine, ranks: int, n_bytes: int) -> float:
        """Return what an exchange among the first ranks takes, s.

        Parameters
        ----------
        machine : Machine
        ranks : int
        n_bytes : int
            That each has for all.
        """
        fabric, lanes = machine.fabric(ranks), self.lanes_in(machine)
        if self.overlapped:
            return halo_s(fabric, ranks, 1, n_bytes, lanes)
        return sum(halo_phases_s(fabric, ranks, 1, n_bytes, lanes))

    def exchanged(self, blocks: Blocks, size: int, node: int) -> Blocks:
        """Return the blocks that each of a few ranks holds afterwards.

        Parameters
        ----------
        blocks : dict of (int, int) to float64 array
        size, node : int
            Ranks, and those of a node; half as many cards.
        """
        return exchange_blocks(blocks, size=size, node=node, lanes=node if self.lanes == "members" else node // 2)

    def messages(self, machine: Machine, ranks: int) -> int:
        """Return how many messages go through the network cards of a node.

        Parameters
        ----------
        machine : Machine
        ranks : int
        """
        return (ranks // machine.node - 1) * self.lanes_in(machine)


@dataclass(frozen=True, kw_only=True)
class FlatExchange:
    """Exchange in which every rank sends to every other one, in as many rounds."""

    def time_s(self, machine: Machine, ranks: int, n_bytes: int) -> float:
        """Return what an exchange among the first ranks takes, s."""
        return flat_s(machine.fabric(ranks), ranks, 1, n_bytes)

    def exchanged(self, blocks: Blocks, size: int, node: int) -> Blocks:
        """Return the blocks that each rank holds afterwards."""
        return dict(blocks)

    def messages(self, machine: Machine, ranks: int) -> int:
        """Return how many messages go through the network cards of a node."""
        return machine.node * (ranks - machine.node)
