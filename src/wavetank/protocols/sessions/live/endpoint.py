"""A role of a session on sockets.

Every role listens on an address of its own; it opens one connection to each role it sends to, so that messages keep
their order only between the same two roles, as the protocol assumes.  What arrives is checked for size and form; a
connection that breaks the rules is closed and counted, it never brings the role down.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from wavetank.errors import BadValueError, WavetankError, nearest_of
from wavetank.protocols.sessions.machines import Machine
from wavetank.protocols.sessions.runtime import Envelope, Happening, RoleSession
from wavetank.protocols.sessions.tags import Mark

LARGEST_FRAME_BYTES = 1 << 20
MOST_MARKS = 10_000
CONNECT_TIMEOUT_S = 10.0
_LENGTH = struct.Struct(">I")

Address = tuple[str, int]
Interrupt = tuple[float, str, tuple[Any, ...]]


class Greeting(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The first frame of a connection: which protocol and session, and who speaks."""

    protocol: str
    session: str
    role: str


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message on the wire."""

    label: str
    payload: list[Any]
    tag: list[tuple[int, int, int, bool]]


class Endpoint:
    """A role of a session that sends and receives over TCP.

    Parameters
    ----------
    machine : Machine, optional
        A generated subclass brings its own.
    session : str
        Only roles that give the same name talk to each other.
    host : str
        Where to listen; the loopback interface unless told otherwise.
    port : int
        0 for a free one.
    interrupts : mapping
        Mix to (seconds, label, payload): as its arbiter, begin the right side when nothing has come for so long.
    noticed : callable, optional
        Told of everything taken, dropped or switched.

    Examples
    --------
    >>> async def race(P, Q):                                     # doctest: +SKIP
    ...     async with P() as p, Q() as q:
    ...         p.connect({"q": q.address}); q.connect({"p": p.address})
    ...         await p.send("q", "data", (7,))
    ...         return await q.receive()
    """

    machine: ClassVar[Machine]

    def __init__(
        self,
        machine: Machine | None = None,
        *,
        session: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        interrupts: Mapping[str, Interrupt] | None = None,
        noticed: Callable[[Happening], None] | None = None,
    ) -> None:
        self._machine = machine or self.machine
        self.role_session = RoleSession(self._machine)
        self.session = session
        self.faults = 0
        self._host, self._port = host, port
        self._interrupts = dict(interrupts or {})
        self._noticed = noticed
        self._server: asyncio.Server | None = None
        self._addresses: dict[str, Address] = {}
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._taken: asyncio.Queue[Happening] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_state: tuple[int, int] = (-1, -1)
        self._steps = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None

    @property
    def address(self) -> Address:
        """Return where the role listens.

        Raises
        ------
        BadValueError
            When it has not been started.
        """
        if self._server is None:
            raise BadValueError(f"{self._machine.role!r} has not been started.", hint="await endpoint.start()")
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def ended(self) -> bool:
        """Return whether the role has come to an end of the protocol."""
        return self.role_session.ended

    async def __aenter__(self) -> Endpoint:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to listen.

        Raises
        ------
        WavetankError
            When the address cannot be had.
        """
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=LARGEST_FRAME_BYTES)
        except OSError as error:
            raise WavetankError(
                f"{self._machine.role!r} cannot listen: {error.strerror or error}.",
                given=f"{self._host}:{self._port}",
                hint="port=0 takes a free one",
            ) from error
        self._set_timer()

    def connect(self, addresses: Mapping[str, Address]) -> None:
        """Say where the other roles listen; connections are opened when they are needed.

        Raises
        ------
        BadValueError
            For a role that this one does not talk to.
        """
        partners = self._machine.partners()
        for role in addresses:
            if role not in partners and role != self._machine.role:
                raise BadValueError(
                    f"{self._machine.role!r} exchanges nothing with {role!r}.",
                    allowed=partners,
                    nearest=nearest_of(role, partners),
                )
        self._addresses.update(addresses)

    async def send(self, partner: str, label: str, payload: tuple[Any, ...] = ()) -> None:
        """Send a message.

        Raises
        ------
        BadValueError
            When the protocol does not allow it now, or the message is too large.
        WavetankError
            When the other role cannot be reached.
        """
        if not self.role_session.can_send(partner, label):
            self.role_session.send(partner, label, payload)
        # Connect first: once the step is taken it must reach the wire before any later one.
        writer = await self._writer(partner)
        self._put(writer, partner, label, payload)
        await self._drain(writer, partner)

    async def receive(self, timeout_s: float | None = None) -> Happening:
        """Return the next message that was taken.

        Raises
        ------
        WavetankError
            When nothing came in time.
        """
        try:
            return await asyncio.wait_for(self._taken.get(), timeout_s)
        except TimeoutError:
            raise WavetankError(
                f"{self._machine.role!r} took nothing for {timeout_s:g} s.",
                where=f"protocol {self._machine.protocol}, state {self.role_session.state}",
            ) from None

    async def wait_ended(self, timeout_s: float | None = None) -> None:
        """Wait until the role has come to an end of the protocol.

        Raises
        ------
        WavetankError
            When it has not in time, or an interrupt could not be sent.
        """

        async def until_ended() -> None:
            while not self.ended and self._failure is None:
                self._changed.clear()
                await self._changed.wait()

        try:
            await asyncio.wait_for(until_ended(), timeout_s)
        except TimeoutError:
            raise WavetankError(
                f"{self._machine.role!r} has not ended after {timeout_s:g} s.",
                where=f"protocol {self._machine.protocol}, state {self.role_session.state}",
            ) from None
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Stop listening and close all connections; what was sent is sent."""
        if self._timer is not None:
            self._timer.cancel()
        for writer in self._writers.values():
            writer.close()
        for writer in self._writers.values():
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server = None

    # Sending

    def _put(self, writer: asyncio.StreamWriter, partner: str, label: str, payload: tuple[Any, ...]) -> None:
        """Take the step and write its frame, without a pause between the two."""
        probe = self._encoded(label, payload, ())
        if len(probe) > LARGEST_FRAME_BYTES // 2:
            raise BadValueError(
                "The message is too large.", given=f"{len(probe)} bytes", allowed=f"{LARGEST_FRAME_BYTES // 2} bytes"
            )
        envelope, happened = self.role_session.send(partner, label, payload)
        body = self._encoded(label, payload, envelope.tag)
        writer.write(_LENGTH.pack(len(body)) + body)
        self._tell(happened)

    @staticmethod
    def _encoded(label: str, payload: tuple[Any, ...], tag: tuple[Mark, ...]) -> bytes:
        try:
            return msgspec.msgpack.encode(
                Frame(label, list(payload), [(mark.mix, mark.first, mark.last, mark.right) for mark in tag])
            )
        except (TypeError, OverflowError) as error:
            raise BadValueError(
                "The payload cannot be sent.", given=payload, allowed="numbers, text, bytes, lists and mappings of them"
            ) from error

    async def _writer(self, partner: str) -> asyncio.StreamWriter:
        if partner in self._writers:
            return self._writers[partner]
        if partner not in self._addresses:
            raise BadValueError(
                f"Nobody said where {partner!r} listens.", allowed=list(self._addresses), hint="endpoint.connect({...})"
            )
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(*self._addresses[partner]), CONNECT_TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            raise self._unreachable(partner, error) from error
        if partner in self._writers:
            writer.close()
            return self._writers[partner]
        self._writers[partner] = writer
        greeting = msgspec.msgpack.encode(Greeting(self._machine.protocol, self.session, self._machine.role))
        writer.write(_LENGTH.pack(len(greeting)) + greeting)
        return writer

    async def _drain(self, writer: asyncio.StreamWriter, partner: str) -> None:
        try:
            await writer.drain()
        except OSError as error:
            raise self._unreachable(partner, error) from error

    def _unreachable(self, partner: str, error: Exception) -> WavetankError:
        host, port = self._addresses[partner]
        return WavetankError(f"{partner!r} cannot be reached: {error or 'it does not answer'}.", given=f"{host}:{port}")

    # Receiving

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            greeting = msgspec.msgpack.decode(await _frame(reader), type=Greeting)
            expected = (self._machine.protocol, self.session)
            if (greeting.protocol, greeting.session) != expected or greeting.role not in self._machine.partners():
                self.faults += 1
                return
            while True:
                frame = msgspec.msgpack.decode(await _frame(reader), type=Frame)
                tag = tuple(Mark(*mark) for mark in frame.tag)
                if len(tag) > MOST_MARKS or not all(self._is_mark(mark) for mark in tag):
                    self.faults += 1
                    return
                envelope = Envelope(greeting.role, self._machine.role, frame.label, tuple(frame.payload), tag)
                self._tell(self.role_session.deliver(envelope))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        except (msgspec.MsgspecError, WavetankError, UnicodeDecodeError):
            self.faults += 1
        finally:
            writer.close()

    def _is_mark(self, mark: Mark) -> bool:
        return mark.mix in self._machine.mixes and 1 <= mark.first <= mark.last

    def _tell(self, happened: list[Happening]) -> None:
        for each in happened:
            if self._noticed is not None:
                self._noticed(each)
            if each.what == "taken":
                self._taken.put_nowait(each)
        self._steps += 1
        self._changed.set()
        self._set_timer()

    # Interrupting

    def _set_timer(self) -> None:
        """Start the timer of the mix that this role may interrupt now; a step that changes nothing keeps it running."""
        turn = (self.role_session.state, sum(mark.last for mark in self.role_session.tag))
        if turn == self._timer_state:
            return
        self._timer_state = turn
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        here = self.role_session.here
        for each in here.transitions:
            if each.sends and each.settles is not None and each.settles[1] == "right" and here.kind == "mixed":
                wanted = self._interrupts.get(self._machine.mixes[each.settles[0]])
                if wanted is not None and wanted[1] == each.label:
                    seconds, label, payload = wanted
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(seconds, self._interrupt, each.partner, label, payload)

    def _interrupt(self, partner: str, label: str, payload: tuple[Any, ...]) -> None:
        task = asyncio.ensure_future(self._send_interrupt(self._timer_state, partner, label, payload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_interrupt(self, turn: tuple[int, int], partner: str, label: str, payload: tuple[Any, ...]) -> None:
        try:
            writer = await self._writer(partner)
            # What came while the connection was opened may have settled the race.
            if turn == self._timer_state:
                self._put(writer, partner, label, payload)
                await self._drain(writer, partner)
        except WavetankError as error:
            self._failure = error
            self._changed.set()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > LARGEST_FRAME_BYTES:
        raise BadValueError("A frame is too large.", given=f"{length} bytes", allowed=f"{LARGEST_FRAME_BYTES} bytes")
    return await reader.readexactly(length)
