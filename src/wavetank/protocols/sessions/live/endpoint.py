"""A role of a session on sockets.

Every role listens on an address of its own; it opens one connection to each role it sends to, so that messages keep
their order only between the same two roles, as the protocol assumes.  Both ends of a connection prove that they know
the secret of the session, with the handshake of :mod:`wavetank.live.wire`, and every frame carries a counter
and a keyed checksum: what the checker proved of the roles holds only if nobody else can speak for one.  Who has not
proven it costs at most a greeting's length, is waited for a few seconds, and waits in a room of its own.  What arrives
is checked for size and form; a connection that breaks the rules is closed and counted, it never brings the role down.
Frames are not encrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from wavetank.errors import BadValueError, WavetankError, nearest_of
from wavetank.live.strangers import Strangers, address_of
from wavetank.live.wire import (
    LARGEST_GREETING_BYTES,
    VERSION,
    Challenge,
    Hello,
    HostileFrameError,
    Refusal,
    RunIdentity,
    Stamp,
    Welcome,
    fresh_nonce,
    greeting,
    read_greeting,
)
from wavetank.protocols.sessions.machines import Machine
from wavetank.protocols.sessions.runtime import Envelope, RoleSession, SessionEvent
from wavetank.protocols.sessions.tags import Mark

LARGEST_FRAME_BYTES = 1 << 20
MOST_MARKS = 10_000
CONNECT_TIMEOUT_S = 10.0
HELLO_TIMEOUT_S = 5.0
# Where roles that are started apart find the secret of their session, in hexadecimal.
SECRET_VARIABLE = "WAVETANK_SESSION_SECRET"
_LENGTH = struct.Struct(">I")
_COUNTER_BYTES, _TAG_BYTES = 8, 16

T = TypeVar("T")
Address = tuple[str, int]
Interrupt = tuple[float, str, tuple[Any, ...]]


def new_secret() -> bytes:
    """Return a secret that nobody knows yet; all roles of one session are given the same."""
    return secrets.token_bytes(32)


def role_number(role: str) -> int:
    """Return the number under which a role proves itself; every program finds the same one."""
    return int.from_bytes(hashlib.sha256(role.encode()).digest()[:4], "big")


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
    secret : bytes, optional
        At least 16 bytes that the roles of the session share, as from :func:`new_secret`; by default the hexadecimal
        digits in ``WAVETANK_SESSION_SECRET``.
    host : str
        Where to listen; by default the loopback interface.
    port : int
        0 for a free one.
    interrupts : mapping
        Mix to (seconds, label, payload): as its arbiter, begin the right side when nothing has come for so long.
    noticed : callable, optional
        Called with everything taken, dropped or switched.

    Raises
    ------
    BadValueError
        Without a secret, or with one that is too short.

    Examples
    --------
    >>> async def race(P, Q, secret):                             # doctest: +SKIP
    ...     async with P(secret=secret) as p, Q(secret=secret) as q:
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
        secret: bytes | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        interrupts: Mapping[str, Interrupt] | None = None,
        noticed: Callable[[SessionEvent], None] | None = None,
    ) -> None:
        self._machine = machine or self.machine
        self.role_session = RoleSession(self._machine)
        self.session = session
        self.faults = 0
        self._identity = RunIdentity(
            run=msgspec.json.encode((self._machine.protocol, session)).decode(),
            secret=_secret_from_environment() if secret is None else secret,
            size=0,
        )
        self._number = role_number(self._machine.role)
        self._roles = {role_number(role): role for role in self._machine.partners()}
        self._strangers: Strangers[asyncio.StreamWriter] = Strangers()
        # Roles that are connected to here; a second connection would have an order of its own.
        self._heard: set[str] = set()
        self._host, self._port = host, port
        self._interrupts = dict(interrupts or {})
        self._noticed = noticed
        self._server: asyncio.Server | None = None
        self._addresses: dict[str, Address] = {}
        self._writers: dict[str, _Sender] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        self._taken: asyncio.Queue[SessionEvent] = asyncio.Queue()
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
            # What is not yet read is kept by the stream: little of it, wherever it comes from.
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=LARGEST_GREETING_BYTES)
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
        sender = await self._sender(partner)
        self._put(sender, partner, label, payload)
        await self._drain(sender, partner)

    async def receive(self, timeout_s: float | None = None) -> SessionEvent:
        """Return the next message that was taken.

        Raises
        ------
        WavetankError
            When nothing came in time.
        """
        return await self._in_time(self._taken.get(), timeout_s, "took nothing for")

    async def _in_time(self, wanted: Coroutine[Any, Any, T], timeout_s: float | None, failed: str) -> T:
        try:
            return await asyncio.wait_for(wanted, timeout_s)
        except TimeoutError:
            raise WavetankError(
                f"{self._machine.role!r} {failed} {timeout_s:g} s.",
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

        await self._in_time(until_ended(), timeout_s, "has not ended after")
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Stop listening and close all connections; what was sent is sent."""
        if self._timer is not None:
            self._timer.cancel()
        for each in self._writers.values():
            each.writer.close()
        for each in self._writers.values():
            with contextlib.suppress(OSError):
                await each.writer.wait_closed()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server = None

    # Sending

    def _put(self, sender: _Sender, partner: str, label: str, payload: tuple[Any, ...]) -> None:
        """Take the step and write its frame, without a pause between the two."""
        probe = self._encoded(label, payload, ())
        if len(probe) > LARGEST_FRAME_BYTES // 2:
            raise BadValueError(
                "The message is too large.", given=f"{len(probe)} bytes", allowed=f"{LARGEST_FRAME_BYTES // 2} bytes"
            )
        envelope, happened = self.role_session.send(partner, label, payload)
        body = self._encoded(label, payload, envelope.tag)
        sender.send(body)
        self._report(happened)

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

    async def _sender(self, partner: str) -> _Sender:
        if partner not in self._addresses:
            raise BadValueError(
                f"The address of {partner!r} is not known.",
                allowed=list(self._addresses),
                hint="endpoint.connect({...})",
            )
        async with self._connecting.setdefault(partner, asyncio.Lock()):
            if partner not in self._writers:
                self._writers[partner] = await self._introduced(partner)
            return self._writers[partner]

    async def _introduced(self, partner: str) -> _Sender:
        """Connect to a partner; both ends prove that they know the secret."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(*self._addresses[partner], limit=LARGEST_GREETING_BYTES)
                return await self._prove(reader, writer, partner)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            if writer is not None:
                writer.close()
            raise self._unreachable(partner, error) from error
        except HostileFrameError as error:
            if writer is not None:
                writer.close()
            raise WavetankError(
                f"The process at this address is not {partner!r} of this session.",
                given=str(error),
                where="{}:{}".format(*self._addresses[partner]),
                hint="all roles of a session are given the same secret and session",
            ) from error

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, partner: str) -> _Sender:
        identity, number, target = self._identity, self._number, role_number(partner)
        challenge = read_greeting(await _frame(reader, LARGEST_GREETING_BYTES))
        if not isinstance(challenge, Challenge):
            raise HostileFrameError("garbage", f"{type(challenge).__name__} in place of a challenge")
        nonce = fresh_nonce()
        writer.write(greeting(identity.hello(number, challenge, nonce, target=target)))
        answer = read_greeting(await _frame(reader, LARGEST_GREETING_BYTES))
        if isinstance(answer, Refusal):
            raise HostileFrameError("refused", answer.reason[:64])
        if not isinstance(answer, Welcome):
            raise HostileFrameError("garbage", f"{type(answer).__name__} in place of a welcome")
        identity.check_welcome(answer, number, challenge.nonce, nonce, target=target)
        return _Sender(writer, identity.session(number, challenge.nonce, nonce, target=target))

    async def _drain(self, sender: _Sender, partner: str) -> None:
        try:
            await sender.writer.drain()
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
        out = self._strangers.enter(writer, address_of(writer.get_extra_info("peername")))
        if out is not None:
            self.faults += 1
            out.transport.abort()
        role = ""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                role, receiver = await self._recognised(reader, writer)
            self._strangers.leave(writer)
            while True:
                frame = msgspec.msgpack.decode(receiver.opened(await _frame(reader, LARGEST_FRAME_BYTES)), type=Frame)
                tag = tuple(Mark(*mark) for mark in frame.tag)
                if len(tag) > MOST_MARKS or not all(self._is_mark(mark) for mark in tag):
                    self.faults += 1
                    return
                envelope = Envelope(role, self._machine.role, frame.label, tuple(frame.payload), tag)
                self._report(self.role_session.deliver(envelope))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        except asyncio.CancelledError:
            # Only close() does that; the stream's own callback would log it as an error.
            return
        except HostileFrameError as error:
            self.faults += 1
            writer.write(greeting(Refusal(error.reason)))
        except (msgspec.MsgspecError, WavetankError, UnicodeDecodeError, TimeoutError):
            self.faults += 1
        finally:
            self._strangers.leave(writer)
            self._heard.discard(role)
            writer.close()

    async def _recognised(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, _Receiver]:
        """Find out who connects; raises HostileFrameError for a process that is no partner of this session."""
        identity, nonce = self._identity, fresh_nonce()
        writer.write(greeting(Challenge(VERSION, nonce)))
        hello = read_greeting(await _frame(reader, LARGEST_GREETING_BYTES))
        if not isinstance(hello, Hello):
            raise HostileFrameError("garbage", f"{type(hello).__name__} in place of a hello")
        identity.check_hello(hello, nonce, target=self._number)
        role = self._roles.get(hello.endpoint)
        if role is None:
            raise HostileFrameError("wrong-sender", f"role {hello.endpoint}")
        if role in self._heard:
            raise HostileFrameError("crowded", f"{role} is connected already")
        self._heard.add(role)
        writer.write(greeting(identity.welcome(hello, nonce, target=self._number)))
        return role, _Receiver(identity.session(hello.endpoint, nonce, hello.nonce, target=self._number))

    def _is_mark(self, mark: Mark) -> bool:
        return mark.mix in self._machine.mixes and 1 <= mark.first <= mark.last

    def _report(self, happened: list[SessionEvent]) -> None:
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
            sender = await self._sender(partner)
            # What came while the connection was opened may have settled the race.
            if turn == self._timer_state:
                self._put(sender, partner, label, payload)
                await self._drain(sender, partner)
        except WavetankError as error:
            self._failure = error
            self._changed.set()


class _Sender:
    """The connection to a partner: every frame has a counter and a keyed checksum."""

    def __init__(self, writer: asyncio.StreamWriter, key: bytes) -> None:
        self.writer = writer
        self._stamp = Stamp(key)
        self._count = 0

    def send(self, body: bytes) -> None:
        counter = self._count.to_bytes(_COUNTER_BYTES, "big")
        self._count += 1
        frame = counter + self._stamp(counter, body) + body
        self.writer.write(_LENGTH.pack(len(frame)) + frame)


class _Receiver:
    """Reads the frames of one connection."""

    def __init__(self, key: bytes) -> None:
        self._stamp = Stamp(key)
        self._count = 0

    def opened(self, frame: bytes) -> bytes:
        counter, tag = frame[:_COUNTER_BYTES], frame[_COUNTER_BYTES : _COUNTER_BYTES + _TAG_BYTES]
        body = frame[_COUNTER_BYTES + _TAG_BYTES :]
        if not hmac.compare_digest(self._stamp(counter, body), tag):
            raise HostileFrameError("forged", "checksum")
        if int.from_bytes(counter, "big") != self._count:
            raise HostileFrameError("replayed", "frame")
        self._count += 1
        return body


def _secret_from_environment() -> bytes:
    text = os.environ.get(SECRET_VARIABLE, "")
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if not found:
        raise BadValueError(
            "The roles of a session share a secret, so that no other process can act as one.",
            given=f"{len(text)} characters in {SECRET_VARIABLE}" if text else None,
            where="secret",
            hint=f"secret=new_secret() for roles of one program, {SECRET_VARIABLE} in hexadecimal for several",
        )
    return found


async def _frame(reader: asyncio.StreamReader, most: int) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > most:
        raise HostileFrameError("oversized", f"{length} bytes, allowed are {most}")
    return await reader.readexactly(length)
