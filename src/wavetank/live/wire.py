"""Frames: what nodes put on a socket, and what may come off one.

A frame is a length and a body.  After a handshake in which both ends prove that they know the run's secret, a body is
a counter, a keyed checksum and a batch of messages in MessagePack, decoded straight into the algorithm's own types.
Whatever does not fit (too long, cut off, garbage, an old frame again, another run, a sender that does not belong there)
is a :class:`HostileFrameError` with a reason; who reads the socket counts it and drops the connection.

Nothing here touches a socket, so everything can be fed from a test.

Source: R. Krovetz et al., RFC 7693 (keyed BLAKE2); S. Josefsson, I. Liusvaara, RFC 8032 (Ed25519); S. Kent, RFC 4303,
section 3.4.3 (the sliding window against replayed datagrams).

Differs from the source:
1. One checksum and one signature cover a whole batch of messages, not each of them.
2. A session's key comes from the run's secret and one fresh number of each end, so a recorded connection is worth
   nothing in another one; there is no forward secrecy (TLS has it).
3. The window of datagrams begins anew with each incarnation of an endpoint, which the launcher numbers; a datagram
   names the sender's and the receiver's, so that none from before a restart of either is taken.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from wavetank.errors import BadValueError
from wavetank.live.credentials import Signatures
from wavetank.sim.node import Message

VERSION = 4
LARGEST_FRAME_BYTES = 2**20
LARGEST_GREETING_BYTES = 1024
LARGEST_DATAGRAM_BYTES = 65_507
# What fits an Ethernet frame beside the headers of IPv6 and UDP; only a message that is larger makes a larger datagram.
FILLED_DATAGRAM_BYTES = 1_400
BATCH_MESSAGES = 512

REASONS = {
    "oversized": "a frame longer than allowed",
    "truncated": "a connection that ended inside a frame",
    "garbage": "bytes that are no message of the algorithm",
    "version": "another version of the frames",
    "wrong-run": "a frame of another run",
    "wrong-sender": "a node of another endpoint",
    "not-here": "a message to a node of another endpoint, or over a link that does not exist",
    "replayed": "a frame out of its turn, or a datagram a second time",
    "forged": "a wrong checksum or signature, as when a whole connection is played back",
    "silent": "a connection that did not say who it is in time",
    "crowded": "more connections at once that had not said who they are than there is room for",
    "tls": "a connection whose TLS handshake failed or was not finished in time",
}

_LENGTH = struct.Struct(">I")
_COUNTER = struct.Struct(">Q")
_SENDER = struct.Struct(">I")
# Version, sending endpoint, its incarnation, that of the receiving endpoint, counter.
_DATAGRAM = struct.Struct(">BIIIQ")
_TAG_BYTES = 16
_SIGNATURE_BYTES = 64
_NONCE_BYTES = 16
_WINDOW = 4096
_ALL_SEEN = (1 << _WINDOW) - 1

_ATOMS = frozenset((int, str, bytes, float, bool, type(None)))

# Sender, receiver, message.
Envelope = tuple[int, int, Any]


class HostileFrameError(Exception):
    """Something came from a socket that no honest peer sends.

    Parameters
    ----------
    reason : str
        One of :data:`REASONS`.
    detail : str
        What exactly.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class UnsendableError(BadValueError):
    """A node sent a message that no frame holds, or that cannot be encoded.

    Attributes
    ----------
    envelope : tuple
        Sender, receiver, message.
    """

    envelope: Envelope = (0, 0, None)


class FrameSplitter:
    """Cuts a stream of bytes into frames.

    Parameters
    ----------
    limit : int
        Greatest length of a frame in bytes; a length beyond it is refused before anything is kept.
    """

    def __init__(self, limit: int = LARGEST_FRAME_BYTES) -> None:
        self.limit = limit
        self._parts: list[bytes] = []
        self._have = 0
        self._need = _LENGTH.size

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete."""
        return self._have

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes and yield the frames they complete; raises HostileFrameError when reaching one that is too long.

        Bytes are joined only once a frame is complete, so that a drip of single bytes costs no more than a stream.
        """
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts = []
        at, end = 0, len(data)
        self._have, self._need = 0, _LENGTH.size
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, at)
            if length > self.limit:
                raise HostileFrameError("oversized", f"{length} bytes, allowed are {self.limit}")
            start = at + _LENGTH.size
            if end - start < length:
                self._need = _LENGTH.size + length
                break
            at = start + length
            yield data[start:at]
        if at < end:
            self._parts = [data[at:]]
            self._have = end - at


def framed(body: bytes) -> bytes:
    """Return a body with its length before it."""
    return _LENGTH.pack(len(body)) + body


class MessageCodec:
    """Batches of an algorithm's messages as bytes, and back into exactly these types.

    Parameters
    ----------
    messages : sequence of type
        Every kind of message that may come.

    Raises
    ------
    BadValueError
        If the kinds cannot be distinguished or hold fields that cannot be sent.
    """

    def __init__(self, messages: Sequence[type[Message]]) -> None:
        self.kinds = frozenset(messages)
        kind: Any = typing.Union[tuple(messages)] if messages else None  # noqa: UP007  (a computed union)
        self._encoder = msgspec.msgpack.Encoder()
        try:
            self._decoder = msgspec.msgpack.Decoder(list[tuple[int, int, kind]])
        except TypeError as error:
            raise BadValueError(
                "The messages of this algorithm cannot be sent.",
                given=str(error),
                allowed="subclasses of wavetank.sim.node.Message with different names",
            ) from error
        self._loose: dict[type, tuple[str, ...]] = {}
        for each in messages:
            self._find_loose(each)

    def encode(self, batch: Sequence[Envelope]) -> bytes:
        """Return a batch as bytes."""
        return self._encoder.encode(batch)

    def decode(self, data: bytes | memoryview) -> list[Envelope]:
        """Return a batch; raises HostileFrameError for anything but a batch of these messages."""
        try:
            batch: list[Envelope] = self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, MemoryError) as error:
            raise HostileFrameError("garbage", str(error)[:200]) from error
        if self._loose:
            loose = self._loose
            for _, _, message in batch:
                if type(message) in loose:
                    self._freeze(message)
        return batch

    def _find_loose(self, kind: type) -> bool:
        """Note the fields of a kind, and of the kinds in it, in which tuples come as lists; return whether any do."""
        if kind in self._loose:
            return bool(self._loose[kind])
        # A kind may hold itself; until that is known, it is looked through.
        self._loose[kind] = ("",)
        hints = typing.get_type_hints(kind)
        fields = msgspec.structs.fields(kind)
        found = tuple(item.name for item in fields if self._is_loose(hints[item.name]))
        if found:
            self._loose[kind] = found
        else:
            del self._loose[kind]
        return bool(found)

    def _is_loose(self, hint: Any) -> bool:
        if hint in (Any, object, tuple, frozenset):
            return True
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            return self._find_loose(hint)
        # The parts of a dictionary or a list are somebody else's: messages hold tuples.
        if typing.get_origin(hint) in (typing.Union, types.UnionType, tuple):
            return any(self._is_loose(part) for part in typing.get_args(hint))
        return False

    def _freeze(self, message: Any) -> None:
        for name in self._loose.get(type(message), ()):
            value = getattr(message, name)
            # Most values need no second look, and this is the inner loop of a node that reads.
            if type(value) not in _ATOMS:
                msgspec.structs.force_setattr(message, name, self._frozen(value))

    def _frozen(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple([self._frozen(item) for item in value])
        if isinstance(value, msgspec.Struct):
            self._freeze(value)
        return value


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """First words of who was connected to."""

    version: int
    nonce: bytes


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """First words of who connects."""

    version: int
    run: str
    endpoint: int
    size: int
    nonce: bytes
    proof: bytes
    signature: bytes = b""


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Proof of who was connected to; frames may follow."""

    proof: bytes
    signature: bytes = b""


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Why the connection is dropped."""

    reason: str


_greeting_encoder = msgspec.msgpack.Encoder()
_greeting_decoder = msgspec.msgpack.Decoder(Challenge | Hello | Welcome | Refusal)


def greeting(words: Challenge | Hello | Welcome | Refusal) -> bytes:
    """Return a frame of the handshake."""
    return framed(_greeting_encoder.encode(words))


def read_greeting(body: bytes) -> Challenge | Hello | Welcome | Refusal:
    """Return what a frame of the handshake says; raises HostileFrameError."""
    try:
        words: Challenge | Hello | Welcome | Refusal = _greeting_decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise HostileFrameError("garbage", str(error)[:200]) from error
    if isinstance(words, Challenge | Hello) and words.version != VERSION:
        raise HostileFrameError("version", f"{words.version}, this is {VERSION}")
    return words


def fresh_nonce() -> bytes:
    """Return 16 bytes that were never seen before."""
    return secrets.token_bytes(_NONCE_BYTES)


class EndpointSigner:
    """Signs handshakes for an endpoint with the key of its first node, and checks those of others.

    Parameters
    ----------
    signatures : Signatures
    homes : mapping
        Endpoint to its nodes.
    """

    def __init__(self, signatures: Signatures, homes: typing.Mapping[int, frozenset[int]]) -> None:
        self._signatures = signatures
        self._homes = homes

    def sign(self, endpoint: int, proof: bytes) -> bytes:
        """Return the signature of an endpoint under a proof that was made for one connection."""
        return self._signatures.sign(min(self._homes[endpoint]), b"wavetank handshake" + proof)

    def check(self, endpoint: int, signature: bytes, proof: bytes) -> None:
        """Raise HostileFrameError unless the endpoint signed the proof, UnknownKeyError while its key is not known."""
        nodes = self._homes.get(endpoint)
        if not nodes:
            raise HostileFrameError("wrong-sender", f"endpoint {endpoint}")
        if not self._signatures.knows(min(nodes)):
            raise UnknownKeyError
        if not self._signatures.valid(min(nodes), signature, b"wavetank handshake" + proof):
            raise HostileFrameError("forged", f"signature of endpoint {endpoint}")


class UnknownKeyError(Exception):
    """A peer was faster than the launcher, which sends the keys of all to everybody: it will come again."""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What all endpoints of one run share.

    Parameters
    ----------
    run : str
        Name of the run.
    secret : bytes
        Known to its processes alone.
    size : int
        Nodes.
    """

    run: str
    secret: bytes
    size: int

    def __post_init__(self) -> None:
        if len(self.secret) < 16:
            raise BadValueError("The secret of a run is too short.", given=f"{len(self.secret)} bytes", allowed="16+")

    def proof(self, purpose: str, endpoint: int, challenge: bytes, nonce: bytes, *, target: int) -> bytes:
        """Return 32 bytes that only somebody with the secret can make for this connection and purpose.

        Parameters
        ----------
        purpose : str
            No proof made for one purpose is worth anything for another.
        endpoint : int
            Who connects.
        challenge, nonce : bytes
            Fresh numbers of who is connected to and of who connects.
        target : int
            Who is connected to: nobody else can pass the proof on.
        """
        parts = (purpose.encode(), self.run.encode(), b"%d %d %d" % (endpoint, target, self.size), challenge, nonce)
        text = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
        return hmac.digest(self.secret, text, "sha256")

    def hello(
        self, endpoint: int, challenge: Challenge, nonce: bytes, *, target: int, signer: EndpointSigner | None = None
    ) -> Hello:
        """Return the answer to a challenge; with a signer it is signed."""
        proof = self.proof("hello", endpoint, challenge.nonce, nonce, target=target)
        signature = b"" if signer is None else signer.sign(endpoint, proof)
        return Hello(VERSION, self.run, endpoint, self.size, nonce, proof, signature)

    def check_hello(self, hello: Hello, challenge: bytes, *, target: int, signer: EndpointSigner | None = None) -> None:
        """Raise HostileFrameError unless the hello belongs to this run and target and answers this challenge.

        With a signer it must be signed by who it says it is: every process of a run knows the secret.
        """
        if (hello.run, hello.size) != (self.run, self.size):
            raise HostileFrameError("wrong-run", f"run {hello.run[:64]!r} of {hello.size} nodes")
        if len(hello.nonce) != _NONCE_BYTES:
            raise HostileFrameError("garbage", "nonce")
        proof = self.proof("hello", hello.endpoint, challenge, hello.nonce, target=target)
        if not hmac.compare_digest(proof, hello.proof):
            raise HostileFrameError("forged", "hello")
        if signer is not None:
            signer.check(hello.endpoint, hello.signature, proof)

    def welcome(self, hello: Hello, challenge: bytes, *, target: int, signer: EndpointSigner | None = None) -> Welcome:
        """Return the answer to a hello; with a signer it is signed."""
        proof = self.proof("welcome", hello.endpoint, challenge, hello.nonce, target=target)
        return Welcome(proof, b"" if signer is None else signer.sign(target, proof))

    def check_welcome(
        self,
        welcome: Welcome,
        endpoint: int,
        challenge: bytes,
        nonce: bytes,
        *,
        target: int,
        signer: EndpointSigner | None = None,
    ) -> None:
        """Raise HostileFrameError unless the other end knows the secret, too, and is the target."""
        expected = self.proof("welcome", endpoint, challenge, nonce, target=target)
        if not hmac.compare_digest(expected, welcome.proof):
            raise HostileFrameError("forged", "welcome")
        if signer is not None:
            signer.check(target, welcome.signature, expected)

    def session(self, endpoint: int, challenge: bytes, nonce: bytes, *, target: int) -> bytes:
        """Return the key of the frames of one connection."""
        return self.proof("session", endpoint, challenge, nonce, target=target)

    def datagram_key(self) -> bytes:
        """Return the key of the datagrams of a run."""
        return self.proof("datagrams", -1, b"", b"", target=-1)


class Stamp:
    """The keyed checksum of one session; keying once and copying is cheaper than keying for each frame."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._keyed = hashlib.blake2b(key=key, digest_size=_TAG_BYTES)

    def __call__(self, counter: bytes, text: bytes | memoryview) -> bytes:
        """Return 16 bytes that only a holder of the key can make for this counter and text."""
        stamp = self._keyed.copy()
        stamp.update(counter)
        stamp.update(text)
        return stamp.digest()


class FrameWriter:
    """Makes the frames of one connection.

    Parameters
    ----------
    codec : MessageCodec
    key : bytes
        Of the session.
    limit : int
        Greatest length of a frame in bytes.
    signatures : Signatures, optional
        Signs each frame for the node that sent what is in it.
    """

    def __init__(
        self,
        codec: MessageCodec,
        key: bytes,
        *,
        limit: int = LARGEST_FRAME_BYTES,
        signatures: Signatures | None = None,
    ) -> None:
        self._codec = codec
        self._stamp = Stamp(key)
        self._limit = limit
        self._signatures = signatures
        self._count = 0
        self._fits = BATCH_MESSAGES

    def frames(self, batch: Sequence[Envelope]) -> list[bytes]:
        """Return a batch as parts of frames, to be written one after another.

        Raises
        ------
        UnsendableError
            If a message alone is longer than a frame may be, or cannot be encoded; nothing counts as sent then.
        """
        before = self._count
        try:
            if self._signatures is None:
                return self._split(batch, -1)
            return [piece for sender, part in by_sender(batch) for piece in self._split(part, sender)]
        except UnsendableError:
            self._count = before
            raise

    def filled(self, batch: Sequence[Envelope], most_bytes: int) -> tuple[list[bytes], int]:
        """Return the first messages of a batch as :meth:`frames` does, and how many they are.

        Parameters
        ----------
        batch : sequence of (int, int, Message)
        most_bytes : int
            Of all frames together; a message that is longer comes alone.

        Raises
        ------
        UnsendableError
            As :meth:`frames` does.
        """
        count = min(len(batch), self._fits)
        while True:
            before = self._count
            parts = self.frames(batch[:count])
            length = sum(map(len, parts))
            if length <= most_bytes or count == 1:
                # The next messages are likely to be as long.
                self._fits = min(2 * count, BATCH_MESSAGES) if 2 * length <= most_bytes else count
                return parts, count
            self._count = before
            count = max(count * most_bytes // (2 * length), 1)

    def _split(self, batch: Sequence[Envelope], signer: int) -> list[bytes]:
        if len(batch) > BATCH_MESSAGES:
            parts = (batch[at : at + BATCH_MESSAGES] for at in range(0, len(batch), BATCH_MESSAGES))
            return [frame for part in parts for frame in self._split(part, signer)]
        body = encoded(self._codec, batch)
        if len(body) > self._limit - 128:
            if len(batch) == 1:
                raise too_large(batch[0], len(body), self._limit)
            middle = len(batch) // 2
            return self._split(batch[:middle], signer) + self._split(batch[middle:], signer)
        counter = _COUNTER.pack(self._count)
        self._count += 1
        if self._signatures is not None:
            body = _signed(self._signatures, self._stamp.key, counter, body, signer)
        return [_LENGTH.pack(_COUNTER.size + _TAG_BYTES + len(body)), counter, self._stamp(counter, body), body]


def _signed(signatures: Signatures, key: bytes, counter: bytes, body: bytes, signer: int) -> bytes:
    """Return a body behind the node that sent it and its signature."""
    sender = _SENDER.pack(signer)
    text = b"".join((b"wavetank frame", key, counter, sender, body))
    return sender + signatures.sign(signer, text) + body


def by_sender(batch: Iterable[Envelope]) -> list[tuple[int, list[Envelope]]]:
    """Return the envelopes of each sender, in their order."""
    found: dict[int, list[Envelope]] = {}
    for envelope in batch:
        found.setdefault(envelope[0], []).append(envelope)
    return list(found.items())


def encoded(codec: MessageCodec, batch: Sequence[Envelope]) -> bytes:
    """Return a batch as bytes; an envelope that cannot be encoded is named in an UnsendableError."""
    try:
        return codec.encode(batch)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        for sender, to, message in batch:
            try:
                codec.encode([(0, 0, message)])
            except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
                found = UnsendableError(
                    "A message cannot be sent.", given=f"{message!r:.200} ({error})", where=f"node {sender}"
                )
                found.envelope = (sender, to, message)
                raise found from error
        raise


def too_large(envelope: Envelope, length: int, limit: int) -> UnsendableError:
    """Return the error about a message that no frame or datagram holds."""
    found = UnsendableError(
        "A message is larger than what is sent at once.",
        given=f"{type(envelope[2]).__name__} of {length} bytes",
        allowed=f"up to {limit} bytes",
        where=f"node {envelope[0]}",
    )
    found.envelope = envelope
    return found


class FrameReader:
    """Reads the frames of one connection.

    Parameters
    ----------
    codec : MessageCodec
    key : bytes
        Of the session.
    senders : frozenset of int
        The nodes at the other end.
    signatures : Signatures, optional
    """

    def __init__(
        self,
        codec: MessageCodec,
        key: bytes,
        *,
        senders: frozenset[int],
        signatures: Signatures | None = None,
    ) -> None:
        self._codec = codec
        self._stamp = Stamp(key)
        self._senders = senders
        self._signatures = signatures
        self._count = 0

    def batch(self, frame: bytes) -> list[Envelope]:
        """Return what is in a frame; raises HostileFrameError."""
        view = memoryview(frame)
        counter, tag, body = _parts(view, 0)
        if not hmac.compare_digest(self._stamp(counter, body), tag):
            raise HostileFrameError("forged", "checksum")
        (count,) = _COUNTER.unpack(counter)
        if count != self._count:
            raise HostileFrameError("replayed", f"frame {count}, expected {self._count}")
        self._count += 1
        return _opened(self._codec, self._stamp.key, counter, body, self._senders, self._signatures)


def _parts(view: memoryview, at: int) -> tuple[bytes, bytes, memoryview]:
    start = at + _COUNTER.size + _TAG_BYTES
    if len(view) < start:
        raise HostileFrameError("garbage", "no room for counter and checksum")
    return bytes(view[at : at + _COUNTER.size]), bytes(view[at + _COUNTER.size : start]), view[start:]


def _opened(
    codec: MessageCodec,
    key: bytes,
    counter: bytes,
    body: memoryview,
    senders: frozenset[int],
    signatures: Signatures | None,
) -> list[Envelope]:
    signer = -1
    if signatures is not None:
        start = _SENDER.size + _SIGNATURE_BYTES
        if len(body) < start:
            raise HostileFrameError("garbage", "no room for a signature")
        sender, signature, body = bytes(body[: _SENDER.size]), bytes(body[_SENDER.size : start]), body[start:]
        (signer,) = _SENDER.unpack(sender)
        if signer not in senders:
            raise HostileFrameError("wrong-sender", f"node {signer}")
        if not signatures.valid(signer, signature, b"".join((b"wavetank frame", key, counter, sender, body))):
            raise HostileFrameError("forged", "signature")
    batch = codec.decode(body)
    for envelope in batch:
        sender_id = envelope[0]
        if sender_id not in senders or (signatures is not None and sender_id != signer):
            raise HostileFrameError("wrong-sender", f"node {sender_id}")
    return batch


class DatagramWriter:
    """Makes the datagrams of one endpoint; each stands for itself.

    Parameters
    ----------
    codec : MessageCodec
    identity : RunIdentity
    endpoint : int
        Who sends.
    incarnation : int
        How often it was started before.
    filled_bytes : int
        Messages are put together up to this length.
    limit : int
        Greatest length in bytes.
    signatures : Signatures, optional
    """

    def __init__(
        self,
        codec: MessageCodec,
        identity: RunIdentity,
        endpoint: int,
        incarnation: int,
        *,
        filled_bytes: int = FILLED_DATAGRAM_BYTES,
        limit: int = LARGEST_DATAGRAM_BYTES,
        signatures: Signatures | None = None,
    ) -> None:
        self._codec = codec
        self._endpoint = endpoint
        self._incarnation = incarnation
        self._filled = filled_bytes
        self._limit = limit
        self._signatures = signatures
        self._stamp = Stamp(identity.datagram_key())
        self._count = 0

    def datagrams(self, batch: Sequence[Envelope], to_incarnation: int = 0, *, target: int = 0) -> list[bytes]:
        """Return a batch to one endpoint as datagrams.

        Parameters
        ----------
        batch : sequence of (int, int, Message)
        to_incarnation : int
            How often the receiving endpoint was started before.
        target : int
            Which endpoint that is; no other takes them.

        Raises
        ------
        UnsendableError
            As :meth:`FrameWriter.frames` does.
        """
        if self._signatures is None:
            return list(self._filled_up(batch, (to_incarnation, target), -1))
        return [
            each
            for sender, part in by_sender(batch)
            for each in self._filled_up(part, (to_incarnation, target), sender)
        ]

    def _filled_up(self, batch: Sequence[Envelope], to: tuple[int, int], signer: int) -> Iterator[bytes]:
        overhead = _DATAGRAM.size + _TAG_BYTES + 3 + (_SENDER.size + _SIGNATURE_BYTES) * (signer >= 0)
        parts: list[bytes] = []
        length = overhead
        for envelope in batch:
            # A batch of one is its envelope behind one byte that says so.
            part = encoded(self._codec, [envelope])[1:]
            if overhead + len(part) > self._limit:
                raise too_large(envelope, len(part), self._limit - overhead)
            if parts and length + len(part) > self._filled:
                yield self._datagram(parts, to, signer)
                parts, length = [], overhead
            parts.append(part)
            length += len(part)
        if parts:
            yield self._datagram(parts, to, signer)

    def _datagram(self, parts: list[bytes], to: tuple[int, int], signer: int) -> bytes:
        count = len(parts)
        head = bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
        body = head + b"".join(parts)
        to_incarnation, target = to
        start = _DATAGRAM.pack(VERSION, self._endpoint, self._incarnation, to_incarnation, self._count)
        # Not sent: who reads knows who it is.
        stamped = start + _SENDER.pack(target)
        self._count += 1
        if self._signatures is not None:
            body = _signed(self._signatures, self._stamp.key, stamped, body, signer)
        return start + self._stamp(stamped, body) + body


class DatagramReader:
    """Reads the datagrams that come to one endpoint.

    Parameters
    ----------
    codec : MessageCodec
    identity : RunIdentity
    senders : mapping
        Endpoint to its nodes.
    incarnation : int
        How often the endpoint that reads was started before.
    endpoint : int
        Which one it is.
    signatures : Signatures, optional
    """

    def __init__(
        self,
        codec: MessageCodec,
        identity: RunIdentity,
        *,
        senders: typing.Mapping[int, frozenset[int]],
        incarnation: int = 0,
        endpoint: int = 0,
        signatures: Signatures | None = None,
    ) -> None:
        self._codec = codec
        self._senders = senders
        self._incarnation = incarnation
        self._number = _SENDER.pack(endpoint)
        self._signatures = signatures
        self._stamp = Stamp(identity.datagram_key())
        # Endpoint to [incarnation, highest counter seen, one bit for each of the last counters].
        self._windows: dict[int, list[int]] = {endpoint: [0, -1, 0] for endpoint in senders}

    def expect(self, endpoint: int, incarnation: int) -> None:
        """Refuse what was sent before the endpoint's latest start."""
        window = self._windows[endpoint]
        if incarnation > window[0]:
            window[:] = [incarnation, -1, 0]

    def batch(self, datagram: bytes) -> list[Envelope]:
        """Return what is in a datagram; raises HostileFrameError."""
        view = memoryview(datagram)
        if len(view) < _DATAGRAM.size + _TAG_BYTES:
            raise HostileFrameError("truncated", f"{len(view)} bytes")
        start = bytes(view[: _DATAGRAM.size])
        version, endpoint, incarnation, meant_for, count = _DATAGRAM.unpack(start)
        if version != VERSION:
            raise HostileFrameError("version", f"{version}, this is {VERSION}")
        tag, body = bytes(view[_DATAGRAM.size : _DATAGRAM.size + _TAG_BYTES]), view[_DATAGRAM.size + _TAG_BYTES :]
        stamped = start + self._number
        if not hmac.compare_digest(self._stamp(stamped, body), tag):
            raise HostileFrameError("forged", "checksum")
        if endpoint not in self._windows:
            raise HostileFrameError("wrong-sender", f"endpoint {endpoint}")
        if meant_for != self._incarnation:
            raise HostileFrameError("replayed", f"for incarnation {meant_for}, this is {self._incarnation}")
        batch = _opened(self._codec, self._stamp.key, stamped, body, self._senders[endpoint], self._signatures)
        # Last: what another endpoint forged must not move the window of this one.
        self._admit(endpoint, incarnation, count)
        return batch

    def _admit(self, endpoint: int, incarnation: int, count: int) -> None:
        window = self._windows[endpoint]
        if incarnation > window[0]:
            window[:] = [incarnation, -1, 0]
        known, highest, seen = window
        ahead = count - highest
        if incarnation < known or ahead <= -_WINDOW or (ahead <= 0 and seen >> -ahead & 1):
            raise HostileFrameError("replayed", f"datagram {count} of incarnation {incarnation}")
        if ahead > 0:
            window[1] = count
            window[2] = 1 if ahead >= _WINDOW else ((seen << ahead) | 1) & _ALL_SEEN
        else:
            window[2] |= 1 << -ahead
