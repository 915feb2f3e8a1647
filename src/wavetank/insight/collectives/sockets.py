"""Collective operations of our own over TCP: all-reduce along a ring and over a binary tree, with probes in the loops.

A chunk moves when both sides are there: the receiver gives a credit, the sender answers with the chunk, and the
receiver says when it has it.  Without that the sender would count how long the kernel takes to accept a chunk, and not
the link.  Nothing else is on the wire, so that calls that do not fit hang, as they do in the libraries of accelerators.
"""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.errors import WavetankError
from wavetank.insight.collectives.interface import OPERATIONS
from wavetank.insight.collectives.probes import NoProbe, Probe

_HELLO = struct.Struct("<II")
_CREDIT, _ARRIVED = b"c", b"a"
_LOOK_MS = 20
_BUFFER_BYTES = 1 << 16
_JOIN_S = 60.0
_ALL_REDUCE, _BROADCAST = OPERATIONS.index("all_reduce"), OPERATIONS.index("broadcast")


class Channels:
    """Connections of one rank to others: one for each direction, credits come back on it.

    Parameters
    ----------
    folder : Path
        Where ranks leave their ports.
    rank : int
    size : int
    """

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.out: dict[int, socket.socket] = {}
        self.into: dict[int, socket.socket] = {}
        others = [other for other in range(size) if other != rank]
        with socket.create_server(("127.0.0.1", 0), backlog=size) as server:
            server.settimeout(_JOIN_S)
            name = folder / f"port-{rank}"
            part = folder / f"port-{rank}.part"
            part.write_text(str(server.getsockname()[1]))
            part.rename(name)
            for other in others:
                link = socket.create_connection(("127.0.0.1", _port(folder / f"port-{other}")), timeout=_JOIN_S)
                link.sendall(_HELLO.pack(rank, other))
                self.out[other] = _ready(link)
            for _ in others:
                link, _ = server.accept()
                link.settimeout(_JOIN_S)
                sender, _ = _HELLO.unpack(link.recv(_HELLO.size, socket.MSG_WAITALL))
                self.into[sender] = _ready(link)

    def close(self) -> None:
        """Close all connections."""
        for link in (*self.out.values(), *self.into.values()):
            link.close()


def _port(file: Path) -> int:
    stop_s = time.monotonic() + _JOIN_S
    while not file.exists():
        if time.monotonic() > stop_s:
            raise WavetankError("A rank did not come.", given=file.name)
        time.sleep(0.005)
    return int(file.read_text())


def _ready(link: socket.socket) -> socket.socket:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    link.setblocking(False)
    return link


def _nothing(step: int) -> None:
    """No fault strikes."""


class Communicator:
    """Ranks that call operations together.

    Parameters
    ----------
    channels : Channels
    number : int
        Of the communicator.
    members : sequence of int
        In the order of the ring.
    probe : Probe or NoProbe
    """

    def __init__(self, channels: Channels, number: int, members: Sequence[int], probe: Probe | NoProbe) -> None:
        self.number, self.members, self.probe = number, tuple(members), probe
        self.place = self.members.index(channels.rank)
        self.seq = 0
        # What a link costs more for each chunk, s: a fault.
        self.slow_s = 0.0
        self.at_step: Callable[[int], None] = _nothing
        self._channels = channels

    def all_reduce(self, array: np.ndarray[Any, Any]) -> None:
        """Sum an array over all members, in place, along the ring.

        Parameters
        ----------
        array : contiguous array
        """
        self._begin(_ALL_REDUCE, array)
        many, place = len(self.members), self.place
        flat = array.reshape(-1)
        edges = [flat.size * part // many for part in range(many + 1)]
        parts = [flat[edges[part] : edges[part + 1]] for part in range(many)]
        after, before = self.members[(place + 1) % many], self.members[place - 1]
        room = np.empty(max(part.size for part in parts), array.dtype)
        for step in range(2 * (many - 1)):
            self.at_step(step)
            outgoing, incoming = parts[(place - step) % many], parts[(place - step - 1) % many]
            into = room[: incoming.size] if step < many - 1 else incoming
            self._step([(after, outgoing)], [(before, into)])
            if step < many - 1:
                incoming += into
        self.probe.end()

    def all_reduce_tree(self, array: np.ndarray[Any, Any]) -> None:
        """Sum an array over all members, in place, up a binary tree and down again.

        Parameters
        ----------
        array : contiguous array
        """
        self._begin(_ALL_REDUCE, array)
        flat, many = array.reshape(-1), len(self.members)
        below = [self.members[child] for child in (2 * self.place + 1, 2 * self.place + 2) if child < many]
        above = self.members[(self.place - 1) // 2]
        room = np.empty_like(flat)
        for number, child in enumerate(below):
            self.at_step(number)
            self._step([], [(child, room)])
            flat += room
        if self.place:
            self.at_step(len(below))
            self._step([(above, flat)], [])
            self._step([], [(above, flat)])
        for child in below:
            self._step([(child, flat)], [])
        self.probe.end()

    def broadcast(self, array: np.ndarray[Any, Any], root: int) -> None:
        """Give the root's array to all members, along the ring.

        Parameters
        ----------
        array : contiguous array
        root : int
            Place in the ring.
        """
        self._begin(_BROADCAST, array, root)
        many = len(self.members)
        distance = (self.place - root) % many
        flat = array.reshape(-1)
        if distance:
            self._step([], [(self.members[self.place - 1], flat)])
        if distance < many - 1:
            self._step([(self.members[(self.place + 1) % many], flat)], [])
        self.probe.end()

    def _begin(self, op: int, array: np.ndarray[Any, Any], root: int = -1) -> None:
        self.probe.launch(self.number, self.seq, op, array.nbytes, array.dtype.itemsize, root)
        self.seq += 1
        self.probe.enter()

    def _step(self, outgoing: list[tuple[int, np.ndarray[Any, Any]]], incoming: list[Any]) -> None:
        """Send and receive at the same time, at most one chunk each."""
        try:
            self._exchange(outgoing, incoming)
        except ConnectionError as error:
            peers = " or ".join(f"rank {peer}" for peer, _ in (*outgoing, *incoming))
            raise WavetankError("A member of the communicator has ended.", given=f"{peers}: {error}") from error

    def _exchange(self, outgoing: list[tuple[int, np.ndarray[Any, Any]]], incoming: list[Any]) -> None:
        probe, channels = self.probe, self._channels
        poll = select.poll()
        out = outgoing[0][1].data.cast("B") if outgoing else memoryview(b"")
        into = incoming[0][1].data.cast("B") if incoming else memoryview(b"")
        # Where there are fewer elements than members, some have nothing to send.
        to = channels.out[outgoing[0][0]] if len(out) else None
        source = channels.into[incoming[0][0]] if len(into) else None
        sent, got, posted_ns, first_ns = 0, 0, 0, 0
        credit = False
        if source is not None:
            _now(source.send, _CREDIT)
            poll.register(source, select.POLLIN)
        if to is not None:
            poll.register(to, select.POLLIN)
        due_s = math.inf
        while source is not None or to is not None:
            ready = poll.poll(_LOOK_MS if due_s == math.inf else max(0.0, 1e3 * (due_s - time.monotonic())))
            if to is not None and due_s <= time.monotonic():
                poll.register(to, select.POLLOUT)
                due_s = math.inf
            if not ready:
                probe.looked()
                continue
            for descriptor, _ in ready:
                if source is not None and descriptor == source.fileno():
                    if not got:
                        first_ns = probe.now_ns()
                    many = source.recv_into(into[got:])
                    if not many:
                        raise ConnectionError("closed")
                    got += many
                    if got == len(into):
                        probe.received(first_ns, got)
                        _now(source.send, _ARRIVED)
                        poll.unregister(source)
                        source = None
                elif to is not None and sent == len(out):
                    if not to.recv(1):
                        raise ConnectionError("closed")
                    probe.sent(posted_ns, sent)
                    poll.unregister(to)
                    to = None
                elif to is not None and not credit:
                    if not to.recv(1):
                        raise ConnectionError("closed")
                    credit = True
                    posted_ns = probe.posted()
                    if self.slow_s:
                        # The link is slow, and not the rank: what comes in is read meanwhile.
                        poll.unregister(to)
                        due_s = time.monotonic() + self.slow_s
                    else:
                        poll.modify(to, select.POLLOUT)
                elif to is not None:
                    sent += to.send(out[sent : sent + _BUFFER_BYTES])
                    if sent == len(out):
                        poll.modify(to, select.POLLIN)


def _now(send: Callable[[bytes], int], data: bytes) -> None:
    """Send a byte; there is always room for it."""
    if send(data) != len(data):
        raise WavetankError("A credit could not be sent.")
