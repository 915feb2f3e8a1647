"""Launcher and processes: only who knows the token gets in, and nothing in between can be changed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError, WavetankError, unknown_name
from wavetank.live import control
from wavetank.live.control import ControlConnection, Token, admit, join, trouble_of
from wavetank.live.credentials import make_certificates
from wavetank.live.wire import VERSION, Challenge, Hello, Welcome, framed


class Listener:
    """A launcher's side: admits everybody who knows the token."""

    def __init__(self, token: Token, tls: Any = None) -> None:
        self.token = token
        self.tls = tls
        self.names: list[str | None] = []
        self.connections: list[ControlConnection] = []

    async def __aenter__(self) -> Listener:
        def made() -> ControlConnection:
            connection = ControlConnection()
            original: Callable[..., None] = connection.connection_made

            def connected(transport: Any) -> None:
                original(transport)
                # Not before: a client may leave within the handshake of TLS, and then no connection is made.
                self.connections.append(connection)
                self.task = asyncio.ensure_future(self.welcome(connection))

            connection.connection_made = connected  # type: ignore[method-assign]
            return connection

        self.server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0, ssl=self.tls)
        self.address = self.server.sockets[0].getsockname()
        return self

    async def welcome(self, connection: ControlConnection) -> None:
        self.names.append(await admit(connection, self.token))

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for connection in self.connections:
            connection.close()


def test_who_knows_the_token_gets_in_and_words_come_as_they_were_said(play: Any) -> None:
    async def story() -> None:
        token = Token.new()
        async with Listener(token) as launcher:
            process = await join(launcher.address, Token(token.text), "alpha")
            await launcher.task
            assert launcher.names == ["alpha"]
            said = control.Outputs([("decide", 1, 2.5, b"a", b"b")])
            process.say(said)
            launcher.connections[0].say(control.Freeze(1.5))
            assert await launcher.connections[0].heard(5) == said
            assert await process.heard(5) == control.Freeze(1.5)
            process.close()
            assert await launcher.connections[0].heard(5) is None

    play(story())


def test_words_that_nobody_reads_yet_wait_with_who_says_them(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_WAITING_BYTES", 2**16)
    said = control.Outputs([("decide", 1, 2.5, b"a", bytes(2**14))])

    async def story() -> None:
        token = Token.new()
        async with Listener(token) as launcher:
            process = await join(launcher.address, Token(token.text), "alpha")
            await launcher.task
            reader = launcher.connections[0]
            for _ in range(1000):
                process.say(said)
            await asyncio.sleep(0.3)
            assert reader._waiting_bytes < 2**20
            assert process.unsent_bytes > 2**20
            for _ in range(1000):
                assert await reader.heard(10) == said
            assert (reader._waiting_bytes, process.unsent_bytes) == (0, 0)
            process.close()
            assert await reader.heard(5) is None

    play(story())


def test_a_wrong_token_is_reported_and_gets_nobody_in(play: Any) -> None:
    async def story() -> None:
        async with Listener(Token.new()) as launcher:
            with pytest.raises(WavetankError, match="The token is wrong") as caught:
                await join(launcher.address, Token.new(), "alpha")
            assert caught.value.where == "WAVETANK_TOKEN or --token-file"
            await launcher.task
            assert launcher.names == [None]

    play(story())


def test_with_tls_the_token_tells_the_launcher_from_who_claims_to_be_it(play: Any) -> None:
    async def story() -> None:
        ours, others = make_certificates(2)
        token = Token.new(ours.fingerprint)
        async with Listener(token, ours.control_context()) as launcher:
            process = await join(launcher.address, token, "alpha")
            await launcher.task
            assert launcher.names == ["alpha"]
            process.close()
        async with Listener(token, others.control_context()) as impostor:
            with pytest.raises(WavetankError, match="not the launcher that issued the token"):
                await join(impostor.address, token, "alpha")

    play(story())


def test_where_nobody_listens_is_reported(play: Any) -> None:
    async def story() -> None:
        async with Listener(Token.new()) as launcher:
            address = launcher.address
        with pytest.raises(WavetankError, match="cannot be reached") as caught:
            await join(address, Token.new(), "alpha", timeout_s=5)
        assert caught.value.given == f"127.0.0.1:{address[1]}"

    play(story())


@pytest.mark.parametrize(
    ("says", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not answer|not a launcher"),
        (framed(b"\xc0"), "not a launcher"),
        (b"", "does not answer"),
    ],
)
def test_who_is_no_launcher_is_noticed(play: Any, says: bytes, error: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        await reader.read()
        writer.close()

    async def story() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            with pytest.raises(WavetankError, match=error):
                await join(server.sockets[0].getsockname(), Token.new(), "alpha", timeout_s=0.3)

    play(story())


def test_a_launcher_that_does_not_know_the_token_is_noticed(play: Any) -> None:
    class Impostor(Listener):
        async def welcome(self, connection: ControlConnection) -> None:
            connection.say(Challenge(VERSION, bytes(16)))
            await connection.heard(5)
            connection.say(Welcome(bytes(32)))

    async def story() -> None:
        async with Impostor(Token.new()) as launcher:
            with pytest.raises(WavetankError, match="does not know the token"):
                await join(launcher.address, Token.new(), "alpha")

    play(story())


@pytest.mark.parametrize("changed", ["name", "nonce", "proof", "version", "none"])
def test_a_proof_covers_who_joins_and_the_challenge(play: Any, changed: str) -> None:
    async def story() -> None:
        token, other = Token.new(), bytes(16)
        async with Listener(token) as launcher:
            address = launcher.address
            _, connection = await asyncio.get_running_loop().create_connection(ControlConnection, *address)
            challenge = await connection.heard(5)
            assert isinstance(challenge, Challenge)
            asked = Challenge(VERSION, other) if changed == "nonce" else challenge
            hello = token.identity("alpha").hello(1, asked, other, target=0)
            connection.say(
                Hello(
                    VERSION + (changed == "version"),
                    "beta" if changed == "name" else "alpha",
                    1,
                    0,
                    other,
                    bytes(32) if changed == "proof" else hello.proof,
                )
            )
            answer = await connection.heard(5)
            assert isinstance(answer, Welcome) == (changed == "none")
            connection.close()
            await launcher.task
            # Without the key of the session even a whole handshake is not enough.
            assert launcher.names == [None]

    play(story())


class Sink(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: Any) -> None:
        self.data += bytes(data)

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def pair() -> tuple[ControlConnection, ControlConnection]:
    one, other = ControlConnection(), ControlConnection()
    one.connection_made(Sink())
    other.connection_made(Sink())
    one.secure(bytes(32), launcher=True)
    other.secure(bytes(32), launcher=False)
    return one, other


@given(st.data())
def test_a_changed_control_frame_closes_the_connection(data: st.DataObject) -> None:
    one, other = pair()
    one.say(control.Freeze(1.0))
    frame = bytearray(one.transport.data)
    frame[data.draw(st.integers(4, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    other.data_received(bytes(frame))
    assert asyncio.run(other.heard(5)) is None
    assert other.closed


def test_a_control_frame_sent_again_or_back_closes_the_connection() -> None:
    one, other = pair()
    one.say(control.Freeze(1.0))
    other.data_received(one.transport.data)
    assert asyncio.run(other.heard(5)) == control.Freeze(1.0)
    other.data_received(one.transport.data)
    assert asyncio.run(other.heard(5)) is None
    assert (other.closed, other.problem) == (True, "replayed: control frame")
    one.data_received(one.transport.data)
    assert asyncio.run(one.heard(5)) is None
    assert (one.closed, one.problem) == (True, "forged: control frame")


@pytest.mark.parametrize("behind", ["hello", "welcome"])
def test_words_behind_a_greeting_in_one_segment_are_read_with_the_keys(play: Any, behind: str) -> None:
    """A program on the way, without the token, adds words to the segment that brings a true greeting."""
    forged = framed(control._encoder.encode(control.Failed(0, "forged"))) + framed(
        control._encoder.encode(control.Die())
    )

    async def story() -> None:
        async with Listener(Token.new()) as launcher:

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame_number: int) -> None:
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    for number in itertools.count(1):
                        head = await reader.readexactly(4)
                        body = await reader.readexactly(int.from_bytes(head, "big"))
                        writer.write(head + body + (forged if number == frame_number else b""))

            async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                ours, theirs = await asyncio.open_connection(*launcher.address)
                try:
                    await asyncio.gather(
                        relay(reader, theirs, 1 if behind == "hello" else 0),
                        relay(ours, writer, 2 if behind == "welcome" else 0),
                    )
                finally:
                    writer.close()
                    theirs.close()

            server = await asyncio.start_server(between, "127.0.0.1", 0)
            async with server:
                process = await join(server.sockets[0].getsockname(), launcher.token, "alpha")
                await launcher.task
                if behind == "hello":
                    assert launcher.names == [None]
                else:
                    assert await process.heard(5) is None
                    assert process.problem == "forged: control frame"
                process.close()

    play(story())


@given(st.binary(max_size=200))
def test_garbage_before_the_proof_closes_the_connection_or_waits(data: bytes) -> None:
    connection = ControlConnection()
    connection.connection_made(Sink())
    connection.data_received(data)
    if connection.closed:
        assert connection.problem


@pytest.mark.parametrize("text", ["", "short", "zz" * 16, "ab" * 16 + ".short"])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(BadValueError, match="not a token"):
        Token(text)


def test_keys_of_different_purposes_differ() -> None:
    token = Token.new()
    keys = {token.derived("a", "b"), token.derived("ab"), token.derived("a"), Token.new().derived("a", "b")}
    assert len(keys) == 4
    assert token.derived("a", b"b") == Token(token.text).derived("a", "b")


def test_an_error_travels_with_its_parts() -> None:
    found = trouble_of(unknown_name("fault", "crush", ["crash"], where="--fault", hint="look"))
    assert found.problem == "There is no fault named 'crush'."
    assert (found.given, found.hint) == (", --fault", "look")
