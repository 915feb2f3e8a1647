"""Published Kademlia libraries as they are, on loopback, with the keys that the overlays get.

Every library runs its own protocol over its own transport, with its own defaults; all nodes run in this process.

The library kademlia runs on asyncio and UDP; py-libp2p's ``kad_dht`` runs on trio over TCP with Noise and Yamux.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
import typing
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wavetank.errors import BadValueError, missing_extra
from wavetank.live.processes import free_port, free_ports
from wavetank.settings import check_parameters, setting
from wavetank.sim.rng import Draws, stream_key

_HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Record:
    """A record, who publishes it and who asks for it."""

    publisher: int
    asker: int
    key: str
    endpoint: str


def loopback_workload(nodes: int, lookups: int, seed: int) -> list[Record]:
    """Return records, each published and asked for once by random nodes.

    Parameters
    ----------
    nodes : int
        Number of nodes; publishers and askers are drawn from 0 to ``nodes - 1``.
    lookups : int
        Number of records, and so of lookups.
    seed : int
        Of the draws; equal seeds give all directories the same records.

    Returns
    -------
    list of Record
        In the order in which the records are published, and then asked for.
    """
    draws = Draws(stream_key(seed, "loopback"))
    return [
        Record(
            publisher=draws.below(nodes),
            asker=draws.below(nodes),
            key=f"capability {number}",
            endpoint=f"agent {number}",
        )
        for number in range(lookups)
    ]


def figures(latencies_s: Sequence[float], asked: int) -> tuple[float, float]:
    """Return the share of lookups that succeeded and the median of their latencies in seconds, NaN without any.

    Parameters
    ----------
    latencies_s : sequence of float
        Of the lookups that succeeded.
    asked : int
        Number of all lookups.
    """
    found = sorted(latencies_s)
    return len(found) / asked, found[len(found) // 2] if found else math.nan


@dataclass(frozen=True, kw_only=True)
class LibraryDirectory(ABC):
    """Base of the libraries."""

    most_nodes: int = setting(64, low=2, high=256, says="Most nodes per trial")
    most_records: int = setting(1000, low=1, high=10_000, says="Most records per trial")

    def __post_init__(self) -> None:
        check_parameters(type(self), vars(self), where=f"system {type(self).__name__.lower()}")

    def try_out(self, nodes: int, workload: Sequence[Record]) -> tuple[float, float]:
        """Start nodes, publish all records, ask for all.

        Parameters
        ----------
        nodes : int
            Nodes beyond ``most_nodes`` share those that run.
        workload : sequence of Record
            Those beyond ``most_records`` are left out.

        Returns
        -------
        tuple of float
            Lookups that returned the endpoint / lookups, and the median seconds of these (NaN without any).

        Raises
        ------
        BadValueError
            For fewer than two nodes, or no record.
        MissingExtraError
            If the library is not installed.
        """
        if nodes < 2 or not workload:
            raise BadValueError("A trial has 2 nodes and 1 record at least.", given=(nodes, len(workload)))
        workload = workload[: self.most_records]
        answers = self._run(min(nodes, self.most_nodes), workload)
        right = [took for each, (answer, took) in zip(workload, answers, strict=True) if answer == each.endpoint]
        return figures(right, len(workload))

    @abstractmethod
    def _run(self, count: int, workload: Sequence[Record]) -> list[tuple[str, float]]:
        """Return the answer to every question ("" for none), and the seconds that it took."""


@dataclass(frozen=True, kw_only=True)
class KademliaLibrary(LibraryDirectory):
    """The PyPI package ``kademlia``: asyncio, UDP, k = 20, alpha = 3."""

    ksize: int = setting(20, low=1, high=256, says="The library's k")
    alpha: int = setting(3, low=1, high=32, says="The library's alpha")

    def _run(self, count: int, workload: Sequence[Record]) -> list[tuple[str, float]]:
        try:
            from kademlia.network import Server
        except ImportError as error:
            raise missing_extra("kademlia", "protocol-peers", needed_for="kademlia-library") from error

        async def whole() -> list[tuple[str, float]]:
            answers = []
            servers: list[Any] = [Server(ksize=self.ksize, alpha=self.alpha) for _ in range(count)]
            try:
                ports = []
                for server in servers:
                    [port] = free_ports(1, socket.SOCK_DGRAM)
                    await server.listen(port, interface=_HOST)
                    ports.append(port)
                for server in servers[1:]:
                    await server.bootstrap([(_HOST, ports[0])])
                for each in workload:
                    await server_of(servers, each.publisher).set(each.key, each.endpoint)
                for each in workload:
                    began = time.perf_counter()
                    answer = await server_of(servers, each.asker).get(each.key) or ""
                    answers.append((answer, time.perf_counter() - began))
            finally:
                for server in servers:
                    server.stop()
            return answers

        return asyncio.run(whole())


def server_of(servers: Sequence[Any], node: int) -> Any:
    """Return the server that plays a node."""
    return servers[node % len(servers)]


@dataclass(frozen=True, kw_only=True)
class Libp2pDht(LibraryDirectory):
    """The DHT of ``libp2p``: trio, TCP with Noise and Yamux; every node starts with a few others."""

    most_nodes: int = setting(6, low=2, high=64, says="Most nodes per trial")
    most_records: int = setting(8, low=1, high=10_000, says="Most records per trial")
    acquaintances: int = setting(4, low=1, high=32, says="Nodes to which each node connects at the start")
    limit_s: float = setting(
        5.0, unit="s", low=0.1, high=60.0, says="Time after which a publication or lookup has failed"
    )

    def _run(self, count: int, workload: Sequence[Record]) -> list[tuple[str, float]]:
        try:
            import trio
            from libp2p import new_host
            from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
            from libp2p.peer.peerinfo import PeerInfo
            from libp2p.records.validator import NamespacedValidator
            from libp2p.tools.anyio_service import background_trio_service
            from multiaddr import Multiaddr
        except ImportError as error:
            raise missing_extra("libp2p", "protocol-peers", needed_for="libp2p-dht") from error

        async def whole() -> list[tuple[str, float]]:
            answers = []
            hosts: list[Any] = []
            tables: list[Any] = []
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(count):
                    host = new_host()
                    address = Multiaddr(f"/ip4/{_HOST}/tcp/{free_port()}")
                    await stack.enter_async_context(host.run(listen_addrs=[address]))
                    validator = NamespacedValidator({"wavetank": typing.cast(Any, _AnyRecord())})
                    # All nodes share one address here, so the limit on nodes of one subnet must not apply.
                    table = KadDHT(host, DHTMode.SERVER, validator=validator, max_peers_per_subnet=0)
                    await stack.enter_async_context(background_trio_service(table))
                    hosts.append(host)
                    tables.append(table)
                for place, (host, table) in enumerate(zip(hosts, tables, strict=True)):
                    for step in range(1, min(self.acquaintances, count - 1) + 1):
                        other = hosts[(place + step) % count]
                        await host.connect(PeerInfo(other.get_id(), other.get_addrs()))
                        await table.add_peer(other.get_id())
                for each in workload:
                    with trio.move_on_after(self.limit_s):
                        await server_of(tables, each.publisher).put_value(_named(each.key), each.endpoint.encode())
                for each in workload:
                    began, answer = time.perf_counter(), None
                    with trio.move_on_after(self.limit_s):
                        answer = await server_of(tables, each.asker).get_value(_named(each.key))
                    answers.append((bytes(answer or b"").decode(), time.perf_counter() - began))
            return answers

        found: list[tuple[str, float]] = trio.run(whole)
        return found


class _AnyRecord:
    """Takes every record, as the other directories do."""

    def validate(self, key: str, value: bytes) -> None:
        """Accept."""

    def select(self, key: str, values: Sequence[bytes]) -> int:
        """Take the first."""
        return 0


def _named(key: str) -> str:
    return f"/wavetank/{key}"
