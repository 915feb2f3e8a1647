"""What the launcher and its processes say to each other.

A process connects to the launcher, both prove that they know the token in the handshake of
:mod:`wavetank.live.wire`, and from then on every frame carries a counter and a keyed checksum.  The token itself, and
the secret that the endpoints use among themselves, never cross the network: both ends derive keys from it.  Only a run
with TLS is also hidden from who can read the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import random
import secrets
import socket
import ssl
from collections.abc import Mapping
from typing import Any

import msgspec

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.credentials import fingerprint, pinned_context
from wavetank.live.links import reason_of
from wavetank.live.wire import (
    VERSION,
    Challenge,
    FrameSplitter,
    Hello,
    HostileFrameError,
    RunIdentity,
    Stamp,
    Welcome,
    framed,
    fresh_nonce,
)

LARGEST_CONTROL_BYTES = 2**28
_GREETING_BYTES = 4096
_GREETING_TIMEOUT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_COUNTER_BYTES, _TAG_BYTES = 8, 16
# Of words that came and were not read yet.
_WAITING_BYTES = 16 * 2**20
_TOKEN = "WAVETANK_TOKEN or --token-file"
# Each connection is a run of its own, named after the process; as endpoints of it they are:
_LAUNCHER, _PROCESS = 0, 1


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A process's first words under the keys that both derived."""


class Assign(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a process is to run.

    Parameters
    ----------
    module : str
        Where the algorithm is defined.
    algorithm, network, faults : bytes
        Values, encoded with the classes of that module.
    run : str
    size : int
    homes : list of list of int
        Nodes of all endpoints.
    endpoints : list of int
        Those of this process.
    incarnation : int
        How often they were started before.
    options : dict
        Transport, seconds per round, limits.
    folder : str
        Where nodes keep what they save; a joined host has its own.
    ports : dict
        Endpoint to the port it listens on; 0 for any.
    sign : bool
    certificate : list of str
        Certificate, key and authority in PEM; empty for none.
    begun : bool
        Whether its nodes were started before, in this run or an earlier one: what they saved must be there.
    hosts : list of str
        Names of the hosts, in their order; empty when all processes run beside the launcher.
    """

    module: str
    algorithm: bytes
    network: bytes
    faults: bytes
    run: str
    size: int
    homes: list[list[int]]
    endpoints: list[int]
    incarnation: int
    options: dict[str, int | float | str]
    folder: str
    ports: dict[int, int]
    sign: bool
    certificate: list[str]
    begun: bool
    hosts: list[str]


class Listening(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Addresses of a process's endpoints, and its nodes' public keys."""

    addresses: dict[int, tuple[str, int]]
    public_keys: dict[int, bytes]


class Book(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Addresses and incarnations of all endpoints, public keys of all nodes.

    ``settled`` is true when the run has begun and an endpoint has moved, so that nobody needs to say it is connected.
    """

    addresses: dict[int, tuple[str, int]]
    incarnations: dict[int, int]
    public_keys: dict[int, bytes]
    settled: bool


class Connected(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """All links of a process are up, or were waited for long enough; those that are not, with their last error."""

    missing: dict[str, str]


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Start the nodes; ``elapsed_s`` seconds of the run have passed."""

    elapsed_s: float


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A request for a node."""

    node: int
    number: int
    command: bytes


class Outputs(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What nodes decided, replied and recorded: kind, node, round, name, value."""

    outputs: list[tuple[str, int, float, bytes, bytes]]


class Tally(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Counters so far, and the links that never came up (``"0 1"`` from endpoint 0 to 1) with their last error."""

    counters: dict[str, int]
    hostile: dict[str, int]
    missing: dict[str, str]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The code of a node raised."""

    node: int
    trace: str


class Trouble(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A process cannot do what it was asked: an error's parts."""

    problem: str
    given: str
    hint: str


class Die(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End as kill -9 does."""


class Freeze(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Stand still for ``for_s`` seconds."""

    for_s: float


class Finish(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Stop, and say how it ended."""


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The end of a process: its nodes' states, those that could be sent."""

    states: dict[int, bytes]


Words = (
    Challenge | Hello | Welcome | Ready | Assign | Listening | Book | Connected | Begin | Ask | Outputs | Tally
    | Failed | Trouble | Die | Freeze | Finish | Ended
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Words)


class LauncherBusyError(WavetankError):
    """The program at that address closed the connection before a word: it is crowded, or no launcher."""


class Token:
    """What lets a host join: a secret, and with TLS the fingerprint of the launcher's certificate.

    Parameters
    ----------
    text : str
        As the launcher prints it.

    Raises
    ------
    BadValueError
        If the text is no token.
    """

    def __init__(self, text: str) -> None:
        secret, _, self.fingerprint = text.strip().partition(".")
        try:
            self._secret = bytes.fromhex(secret)
        except ValueError:
            self._secret = b""
        if len(self._secret) < 16 or len(self.fingerprint) not in (0, 64):
            raise BadValueError(
                "This is not a token.",
                given=f"{len(text)} characters",
                allowed="what the launcher printed",
                where=_TOKEN,
            )
        self.text = text.strip()

    @classmethod
    def new(cls, certificate_fingerprint: str = "") -> Token:
        """Return a token that nobody knows yet."""
        return cls(secrets.token_hex(16) + (f".{certificate_fingerprint}" if certificate_fingerprint else ""))

    def derived(self, *purpose: str | bytes) -> bytes:
        """Return a key of 32 bytes for a purpose."""
        text = b"\0".join(part.encode() if isinstance(part, str) else part for part in purpose)
        return hmac.digest(self._secret, text, hashlib.sha256)

    def identity(self, name: str) -> RunIdentity:
        """Return what the launcher and a process of that name prove to each other that they share."""
        return RunIdentity(run=name, secret=self.derived("control"), size=0)


class ControlConnection(asyncio.Protocol):
    """One end of the connection between the launcher and a process, after which words come out of :meth:`heard`."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        # As they came: what follows a greeting in the same segment is read with the keys that the greeting gives, and
        # not before there are any.
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting_bytes = 0
        self.closed = False
        self.problem = ""
        self._splitter = FrameSplitter(_GREETING_BYTES)
        self._send_stamp: Stamp | None = None
        self._receive_stamp: Stamp | None = None
        self._sent = self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by the event loop."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Take bytes; called by the event loop."""
        if self.closed:
            return
        try:
            for frame in self._splitter.feed(data):
                self._frames.put_nowait(frame)
                self._waiting_bytes += len(frame)
        except HostileFrameError as error:
            self._refuse(error)
        if self._waiting_bytes > _WAITING_BYTES and not self.closed:
            # The reader is slow: the writer has to wait, or memory would grow.
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; called by the event loop."""
        self.closed = True
        self._frames.put_nowait(None)

    def secure(self, key: bytes, *, launcher: bool) -> None:
        """Stamp everything from now on."""
        ours, theirs = (b"launcher", b"process") if launcher else (b"process", b"launcher")
        self._send_stamp = Stamp(hmac.digest(key, ours, hashlib.sha256))
        self._receive_stamp = Stamp(hmac.digest(key, theirs, hashlib.sha256))
        self._splitter.limit = LARGEST_CONTROL_BYTES

    def say(self, words: Words) -> None:
        """Send words; nothing happens when the connection is gone."""
        if self.closed:
            return
        body = _encoder.encode(words)
        if self._send_stamp is not None:
            counter = self._sent.to_bytes(_COUNTER_BYTES, "big")
            self._sent += 1
            body = counter + self._send_stamp(counter, body) + body
        self.transport.write(framed(body))

    async def heard(self, timeout_s: float | None = None) -> Words | None:
        """Return the next words; None when the connection is gone; raises TimeoutError."""
        frame = await asyncio.wait_for(self._frames.get(), timeout_s)
        if frame is None or self.problem:
            return None
        before, self._waiting_bytes = self._waiting_bytes, self._waiting_bytes - len(frame)
        if before > _WAITING_BYTES >= self._waiting_bytes and not self.closed:
            self.transport.resume_reading()
        try:
            return self._opened(frame)
        except HostileFrameError as error:
            self._refuse(error)
            return None

    def _refuse(self, error: HostileFrameError) -> None:
        """Take nothing more from the other end, not even what it said before."""
        self.problem = self.problem or str(error)
        self.close()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the other end has not taken yet."""
        return 0 if self.closed else self.transport.get_write_buffer_size()

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        if not self.transport.is_closing():
            self.transport.close()
        self._frames.put_nowait(None)

    def _opened(self, frame: bytes) -> Words:
        body = frame
        if self._receive_stamp is not None:
            counter, tag = frame[:_COUNTER_BYTES], frame[_COUNTER_BYTES : _COUNTER_BYTES + _TAG_BYTES]
            body = frame[_COUNTER_BYTES + _TAG_BYTES :]
            if not hmac.compare_digest(self._receive_stamp(counter, body), tag):
                raise HostileFrameError("forged", "control frame")
            if int.from_bytes(counter, "big") != self._received:
                raise HostileFrameError("replayed", "control frame")
            self._received += 1
        try:
            words: Words = _decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise HostileFrameError("garbage", str(error)[:200]) from error
        return words


async def admit(connection: ControlConnection, token: Token, timeout_s: float = _GREETING_TIMEOUT_S) -> str | None:
    """Have a process prove that it knows the token; return its name, or None after closing the connection."""
    nonce = fresh_nonce()
    connection.say(Challenge(VERSION, nonce))
    hello = None
    with contextlib.suppress(TimeoutError):
        hello = await connection.heard(timeout_s)
    if isinstance(hello, Hello) and hello.version == VERSION:
        identity = token.identity(hello.run)
        try:
            identity.check_hello(hello, nonce, target=_LAUNCHER)
        except HostileFrameError:
            connection.say(Trouble("The token is wrong.", "", "copy it from the launcher's first lines"))
        else:
            connection.say(identity.welcome(hello, nonce, target=_LAUNCHER))
            connection.secure(identity.session(hello.endpoint, nonce, hello.nonce, target=_LAUNCHER), launcher=True)
            with contextlib.suppress(TimeoutError):
                if isinstance(await connection.heard(timeout_s), Ready):
                    return hello.run
    elif isinstance(hello, Hello):
        connection.say(Trouble("The launcher is of another version.", str(VERSION), "install the same Wavetank"))
    connection.close()
    return None


async def join(address: tuple[str, int], token: Token, name: str, timeout_s: float = 10.0) -> ControlConnection:
    """Connect to a launcher and prove that one knows the token; a launcher that is busy is asked again.

    Raises
    ------
    WavetankError
        If nobody is there, the token is wrong, or it is not the launcher that the token came from.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await _join(address, token, name, timeout_s)
        except LauncherBusyError:
            if loop.time() + pause_s >= deadline:
                raise
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def join_over(channel: socket.socket, token: Token, name: str, timeout_s: float = 10.0) -> ControlConnection:
    """Prove that one knows the token over a channel that was inherited from the launcher; raises WavetankError."""
    _, connection = await asyncio.get_running_loop().create_connection(ControlConnection, sock=channel)
    await _introduce(connection, token, name, timeout_s, pinned=False)
    return connection


async def _join(address: tuple[str, int], token: Token, name: str, timeout_s: float) -> ControlConnection:
    where = f"{address[0]}:{address[1]}"
    context = pinned_context() if token.fingerprint else None
    loop = asyncio.get_running_loop()
    try:
        _, connection = await asyncio.wait_for(
            loop.create_connection(ControlConnection, *address, ssl=context), timeout_s
        )
    except (OSError, TimeoutError) as error:
        tls = isinstance(error, ssl.SSLError)
        reason = "the program that listens there does not speak TLS" if tls else reason_of(error)
        raise WavetankError(
            f"The launcher cannot be reached: {reason}.",
            given=where,
            hint="is it running, and does a firewall let this port through?",
        ) from None
    try:
        await _introduce(connection, token, name, timeout_s, pinned=True)
    except BaseException:
        with contextlib.suppress(AttributeError):
            connection.close()
        raise
    return connection


async def _introduce(connection: ControlConnection, token: Token, name: str, timeout_s: float, *, pinned: bool) -> None:
    # A channel that was inherited leads to the launcher alone, and is not encrypted.
    if pinned and token.fingerprint:
        tls: ssl.SSLObject = connection.transport.get_extra_info("ssl_object")
        if not hmac.compare_digest(fingerprint(tls.getpeercert(binary_form=True)), token.fingerprint):
            raise WavetankError("The process at this address is not the launcher that issued the token.")
    try:
        challenge = await connection.heard(timeout_s)
        if challenge is None:
            raise LauncherBusyError(
                "The process at this address is busy, or is not a launcher.", hint="check --join; try again later"
            )
        if not isinstance(challenge, Challenge) or challenge.version != VERSION:
            raise WavetankError("The process at this address is not a launcher of this version.", hint="check --join")
        identity, nonce = token.identity(name), fresh_nonce()
        connection.say(identity.hello(_PROCESS, challenge, nonce, target=_LAUNCHER))
        answer = await connection.heard(timeout_s)
        if answer is None:
            raise LauncherBusyError("The launcher closed the connection before it answered.", hint="try again later")
    except TimeoutError:
        raise WavetankError("The process at this address does not answer.", hint="check --join") from None
    if isinstance(answer, Trouble):
        raise WavetankError(answer.problem, given=answer.given or None, hint=answer.hint or None, where=_TOKEN)
    welcome = answer if isinstance(answer, Welcome) else Welcome(b"")
    try:
        identity.check_welcome(welcome, _PROCESS, challenge.nonce, nonce, target=_LAUNCHER)
    except HostileFrameError:
        raise WavetankError("The process at this address does not know the token.", where=_TOKEN) from None
    connection.secure(identity.session(_PROCESS, challenge.nonce, nonce, target=_LAUNCHER), launcher=False)
    # Only now may the launcher go on: what it said earlier would have been read without the keys.
    connection.say(Ready())


def trouble_of(error: WavetankError) -> Trouble:
    """Return an error in a form that travels."""
    parts: Mapping[str, str] = dict(error.lines())
    where = f", {error.where}" if error.where else ""
    return Trouble(error.problem, parts.get("given", "") + where, error.hint or "")
