"""Frames: what is written is read, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from socket_protocols import Ball, Inner, Parcel

from wavetank.errors import BadValueError
from wavetank.live.credentials import Signatures, signing_key
from wavetank.live.wire import (
    REASONS,
    VERSION,
    Challenge,
    DatagramReader,
    DatagramWriter,
    Envelope,
    FrameReader,
    FrameSplitter,
    FrameWriter,
    Hello,
    HostileFrameError,
    MessageCodec,
    Refusal,
    RunIdentity,
    UnsendableError,
    Welcome,
    framed,
    greeting,
    read_greeting,
)
from wavetank.sim.node import Message

CODEC = MessageCodec((Ball, Parcel))
KEY = bytes(range(32))
SENDERS = frozenset(range(4))
IDENTITY = RunIdentity(run="run", secret=bytes(32), size=4)

LOADS = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
MESSAGES = st.builds(Ball, hops=st.integers(0, 9), load=LOADS) | st.builds(
    Parcel, inside=st.lists(st.builds(Inner, what=LOADS), max_size=3).map(tuple), best=st.integers(0, 9)
)
BATCHES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), MESSAGES), max_size=20)


def body_of(writer: FrameWriter, batch: list[Envelope]) -> bytes:
    """The only frame of a batch, without its length."""
    [frame] = FrameSplitter().feed(b"".join(writer.frames(batch)))
    return frame


def reader(**options: Any) -> FrameReader:
    return FrameReader(CODEC, KEY, senders=SENDERS, **options)


def refused(call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(HostileFrameError) as caught:
        call(*arguments, **named)
    assert caught.value.reason in REASONS
    return caught.value.reason


class TestSplitter:
    @given(st.lists(st.binary(max_size=50), max_size=10), st.lists(st.integers(1, 20), min_size=1))
    def test_a_stream_gives_its_frames_however_it_is_cut(self, bodies: list[bytes], cuts: list[int]) -> None:
        stream = b"".join(map(framed, bodies))
        splitter, found, at, turn = FrameSplitter(), [], 0, 0
        while at < len(stream):
            step = cuts[turn % len(cuts)]
            found += splitter.feed(stream[at : at + step])
            at, turn = at + step, turn + 1
        assert found == bodies
        assert splitter.pending_bytes == 0

    def test_a_length_beyond_the_limit_is_refused_before_its_bytes_come(self) -> None:
        splitter = FrameSplitter(10)
        feed = splitter.feed(framed(b"good") + b"\x00\x00\x00\x0b")
        assert next(feed) == b"good"
        assert refused(next, feed) == "oversized"

    def test_an_unfinished_frame_is_known_to_be_pending(self) -> None:
        splitter = FrameSplitter()
        assert list(splitter.feed(framed(b"abc")[:5])) == []
        assert splitter.pending_bytes == 5

    def test_single_bytes_are_not_joined_until_the_frame_is_whole(self) -> None:
        splitter = FrameSplitter()
        stream = framed(bytes(1000))
        for place in range(len(stream) - 1):
            assert list(splitter.feed(stream[place : place + 1])) == []
        # Only the four bytes of the length were ever put together.
        assert len(splitter._parts) == 1000
        assert list(splitter.feed(stream[-1:])) == [bytes(1000)]


class TestCodec:
    @given(BATCHES)
    def test_a_batch_comes_back_as_it_was(self, batch: list[Envelope]) -> None:
        assert CODEC.decode(CODEC.encode(batch)) == batch

    def test_tuples_stay_tuples_where_a_field_may_hold_anything(self) -> None:
        message = Parcel((Inner(("write", "key", (1, (2,)))),))
        [(_, _, back)] = CODEC.decode(CODEC.encode([(0, 1, message)]))
        assert back.inside[0].what == ("write", "key", (1, (2,)))
        assert hash(back) == hash(message)

    @given(st.binary(max_size=300))
    def test_garbage_is_refused(self, data: bytes) -> None:
        try:
            batch = CODEC.decode(data)
        except HostileFrameError as error:
            assert error.reason == "garbage"
        else:
            assert all(type(message) in CODEC.kinds for _, _, message in batch)

    @pytest.mark.parametrize(
        "data",
        [
            b"\xdd\xff\xff\xff\xff",
            b"\x91" * 100_000,
            b"\x91\x93\x00\x01\x93\xa4Ball\x01" + b"\x91" * 100_000,
            b"\x91\x93\x00\x01\x93\xa4Ball\xa1x\x01",
            b"\x91\x93\x00\x01\x93\xa5Other\x01\x01",
            b"\x91\x93\x00\x01\x92\xa4Ball\x01\xc0",
            b"\x91\x93\xa1a\x01\x92\xa4Ball\x01",
            b"\x91\x93\x00\x01\x93\xa4Ball\x01\xa2\xff\xff",
        ],
        ids=["bomb", "deep", "deep field", "type", "kind", "trailing", "sender", "text"],
    )
    def test_what_is_no_message_of_the_algorithm_is_refused(self, data: bytes) -> None:
        assert refused(CODEC.decode, data) == "garbage"

    def test_kinds_that_cannot_be_distinguished_are_refused(self) -> None:
        other = type("Ball", (Message,), {"__annotations__": {"x": int}}, frozen=True)
        with pytest.raises(BadValueError, match="cannot be sent"):
            MessageCodec((Ball, other))


class TestFrames:
    @given(st.lists(BATCHES, max_size=4))
    def test_frames_are_read_in_their_order(self, batches: list[list[Envelope]]) -> None:
        writer, reading, splitter = FrameWriter(CODEC, KEY), reader(), FrameSplitter()
        stream = b"".join(b"".join(writer.frames(batch)) for batch in batches)
        found = [envelope for frame in splitter.feed(stream) for envelope in reading.batch(frame)]
        assert found == [envelope for batch in batches for envelope in batch]

    @given(BATCHES, st.data())
    def test_a_changed_or_cut_frame_is_refused(self, batch: list[Envelope], data: st.DataObject) -> None:
        frame = bytearray(body_of(FrameWriter(CODEC, KEY), batch))
        if data.draw(st.booleans()):
            frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
        else:
            del frame[data.draw(st.integers(0, len(frame) - 1)) :]
        assert refused(reader().batch, bytes(frame)) in ("forged", "garbage")

    @given(st.binary(max_size=200))
    def test_garbage_is_refused(self, data: bytes) -> None:
        assert refused(reader().batch, data) in ("forged", "garbage")

    def test_a_frame_sent_again_is_refused(self) -> None:
        frame, reading = body_of(FrameWriter(CODEC, KEY), [(0, 1, Ball(1))]), reader()
        assert reading.batch(frame) == [(0, 1, Ball(1))]
        assert refused(reading.batch, frame) == "replayed"

    def test_a_frame_that_was_left_out_is_noticed(self) -> None:
        writer, reading = FrameWriter(CODEC, KEY), reader()
        body_of(writer, [(0, 1, Ball(1))])
        assert refused(reading.batch, body_of(writer, [(0, 1, Ball(2))])) == "replayed"

    def test_a_frame_of_another_connection_is_refused(self) -> None:
        other = body_of(FrameWriter(CODEC, bytes(32)), [(0, 1, Ball(1))])
        assert refused(reader().batch, other) == "forged"

    def test_a_node_that_lives_elsewhere_cannot_be_a_sender(self) -> None:
        frame = body_of(FrameWriter(CODEC, KEY), [(0, 1, Ball(1)), (7, 1, Ball(1))])
        assert refused(reader().batch, frame) == "wrong-sender"

    def test_a_large_batch_becomes_several_frames_in_order(self) -> None:
        batch = [(0, 1, Ball(number, "x" * 50)) for number in range(3000)]
        splitter, reading = FrameSplitter(4096), reader()
        writer = FrameWriter(CODEC, KEY, limit=4096)
        frames = list(splitter.feed(b"".join(writer.frames(batch))))
        assert len(frames) > 40
        assert [envelope for frame in frames for envelope in reading.batch(frame)] == batch

    @pytest.mark.parametrize("load", ["x" * 5000, 2**80], ids=["large", "unencodable"])
    def test_a_message_that_no_frame_holds_is_named_and_costs_no_number(self, load: object) -> None:
        writer, reading = FrameWriter(CODEC, KEY, limit=4096), reader()
        with pytest.raises(UnsendableError) as caught:
            writer.frames([(0, 1, Ball(1)), (2, 3, Ball(5, load))])
        assert caught.value.envelope == (2, 3, Ball(5, load))
        assert caught.value.where == "node 2"
        assert reading.batch(body_of(writer, [(0, 1, Ball(1))])) == [(0, 1, Ball(1))]


class TestSignatures:
    @pytest.fixture
    def keys(self, tmp_path: Any) -> dict[int, tuple[bytes, bytes]]:
        return {node: signing_key(tmp_path / str(node)) for node in range(3)}

    def end(self, keys: dict[int, tuple[bytes, bytes]], *own: int) -> Signatures:
        found = Signatures({node: keys[node][0] for node in own})
        found.know({node: pair[1] for node, pair in keys.items()})
        return found

    def test_each_frame_is_signed_by_the_one_whose_messages_it_holds(self, keys: Any) -> None:
        writer = FrameWriter(CODEC, KEY, signatures=self.end(keys, 0, 1))
        batch = [(0, 2, Ball(1)), (1, 2, Ball(2)), (0, 2, Ball(3))]
        frames = list(FrameSplitter().feed(b"".join(writer.frames(batch))))
        reading = reader(signatures=self.end(keys))
        assert [reading.batch(frame) for frame in frames] == [[batch[0], batch[2]], [batch[1]]]

    def test_another_nodes_key_signs_nothing_for_it(self, keys: Any) -> None:
        liar = FrameWriter(CODEC, KEY, signatures=self.end({**keys, 0: keys[1]}, 0))
        frame = body_of(liar, [(0, 2, Ball(1))])
        assert refused(reader(signatures=self.end(keys)).batch, frame) == "forged"

    def test_a_signed_frame_cannot_carry_what_others_said(self, keys: Any) -> None:
        writer = FrameWriter(CODEC, KEY, signatures=self.end(keys, 0))
        forged = writer._split([(1, 2, Ball(1))], 0)
        [frame] = FrameSplitter().feed(b"".join(forged))
        assert refused(reader(signatures=self.end(keys)).batch, frame) == "wrong-sender"

    def test_a_frame_without_a_signature_is_refused_where_they_are_asked_for(self, keys: Any) -> None:
        frame = body_of(FrameWriter(CODEC, KEY), [(0, 1, Ball(1))])
        assert refused(reader(signatures=self.end(keys)).batch, frame) == "garbage"

    def test_signed_datagrams_are_read_and_forged_ones_are_not(self, keys: Any) -> None:
        reading = DatagramReader(CODEC, IDENTITY, senders={0: SENDERS}, signatures=self.end(keys))
        batch = [(0, 2, Ball(1)), (1, 2, Ball(2))]
        found = DatagramWriter(CODEC, IDENTITY, 0, 0, signatures=self.end(keys, 0, 1)).datagrams(batch)
        assert [reading.batch(each) for each in found] == [[batch[0]], [batch[1]]]
        liar = DatagramWriter(CODEC, IDENTITY, 0, 1, signatures=self.end({**keys, 0: keys[1]}, 0))
        assert refused(reading.batch, liar.datagrams(batch[:1])[0]) == "forged"
        # The liar's incarnation is not believed: the honest endpoint is heard as before.
        honest = DatagramWriter(CODEC, IDENTITY, 0, 0, signatures=self.end(keys, 0, 1))
        honest._count = 2
        assert reading.batch(honest.datagrams(batch[:1])[0]) == [batch[0]]

    def test_a_node_signs_for_its_own_endpoint_alone_even_when_it_says_nothing(self, keys: Any) -> None:
        senders = {0: frozenset((0,)), 1: frozenset((1,))}
        reading = DatagramReader(CODEC, IDENTITY, senders=senders, signatures=self.end(keys))
        liar = DatagramWriter(CODEC, IDENTITY, 0, 2**32 - 1, signatures=self.end(keys, 0, 1))
        assert refused(reading.batch, liar._datagram([], (0, 0), 1)) == "wrong-sender"
        [good] = DatagramWriter(CODEC, IDENTITY, 0, 0, signatures=self.end(keys, 0, 1)).datagrams([(0, 1, Ball(1))])
        assert reading.batch(good) == [(0, 1, Ball(1))]


class TestHandshake:
    NONCE, OTHER = b"n" * 16, b"o" * 16

    def hello(self, identity: RunIdentity = IDENTITY, endpoint: int = 1, target: int = 0) -> Hello:
        return identity.hello(endpoint, Challenge(VERSION, self.NONCE), self.OTHER, target=target)

    def test_both_ends_prove_the_secret_and_agree_on_a_key(self) -> None:
        hello = read_greeting(greeting(self.hello())[4:])
        assert isinstance(hello, Hello)
        IDENTITY.check_hello(hello, self.NONCE, target=0)
        welcome = IDENTITY.welcome(hello, self.NONCE, target=0)
        IDENTITY.check_welcome(welcome, 1, self.NONCE, self.OTHER, target=0)

    def test_a_proof_made_for_one_purpose_is_worth_nothing_for_another(self) -> None:
        hello = self.hello()
        welcome = IDENTITY.welcome(hello, self.NONCE, target=0)
        session = IDENTITY.session(1, self.NONCE, self.OTHER, target=0)
        # Who can only say back what it heard is no listener of this run, and what both said is no key.
        assert len({hello.proof, welcome.proof, session, IDENTITY.datagram_key()}) == 4
        for echo in (hello.proof, session):
            assert refused(IDENTITY.check_welcome, Welcome(echo), 1, self.NONCE, self.OTHER, target=0) == "forged"
        for echo in (welcome.proof, session):
            lying = Hello(VERSION, hello.run, 1, hello.size, hello.nonce, echo)
            assert refused(IDENTITY.check_hello, lying, self.NONCE, target=0) == "forged"

    def test_a_proof_names_the_endpoint_connected_to(self) -> None:
        assert refused(IDENTITY.check_hello, self.hello(target=2), self.NONCE, target=0) == "forged"
        passed_on = IDENTITY.welcome(self.hello(target=2), self.NONCE, target=2)
        assert refused(IDENTITY.check_welcome, passed_on, 1, self.NONCE, self.OTHER, target=0) == "forged"
        keys = {IDENTITY.session(1, self.NONCE, self.OTHER, target=target) for target in range(3)}
        assert len(keys) == 3

    def test_the_parts_of_a_proof_cannot_be_shifted_into_each_other(self) -> None:
        one = RunIdentity(run="a", secret=bytes(32), size=4).proof("p", 1, b"\0" * 16, b"x" * 16, target=0)
        other = RunIdentity(run="a", secret=bytes(32), size=4).proof("p", 1, b"\0" * 15, b"\0" + b"x" * 16, target=0)
        assert one != other

    def test_a_hello_that_was_recorded_is_worth_nothing(self) -> None:
        assert refused(IDENTITY.check_hello, self.hello(), b"x" * 16, target=0) == "forged"

    @pytest.mark.parametrize(
        ("run", "secret", "size", "reason"),
        [("other", 0, 4, "wrong-run"), ("run", 0, 5, "wrong-run"), ("run", 1, 4, "forged")],
    )
    def test_another_run_or_secret_is_refused(self, run: str, secret: int, size: int, reason: str) -> None:
        other = RunIdentity(run=run, secret=bytes([secret]) * 32, size=size)
        assert refused(IDENTITY.check_hello, self.hello(other), self.NONCE, target=0) == reason

    def test_the_proof_covers_who_connects(self) -> None:
        first = self.hello()
        lying = Hello(first.version, first.run, 2, first.size, first.nonce, first.proof)
        assert refused(IDENTITY.check_hello, lying, self.NONCE, target=0) == "forged"

    def test_a_listener_without_the_secret_is_noticed(self) -> None:
        echo = Welcome(bytes(32))
        assert refused(IDENTITY.check_welcome, echo, 1, self.NONCE, self.OTHER, target=0) == "forged"

    def test_another_version_is_refused(self) -> None:
        assert refused(read_greeting, greeting(Challenge(VERSION + 1, b""))[4:]) == "version"

    @given(st.binary(max_size=100))
    def test_garbage_is_refused(self, data: bytes) -> None:
        try:
            words = read_greeting(data)
        except HostileFrameError as error:
            assert error.reason in ("garbage", "version")
        else:
            assert isinstance(words, Challenge | Hello | Welcome | Refusal)

    def test_a_short_secret_is_refused(self) -> None:
        with pytest.raises(BadValueError, match="too short"):
            RunIdentity(run="run", secret=b"short", size=1)


class TestDatagrams:
    def test_a_datagram_is_worth_nothing_at_another_endpoint(self) -> None:
        writer, reading = self.pair()
        [datagram] = writer.datagrams([(0, 1, Ball(1))], target=3)
        assert refused(reading.batch, datagram) == "forged"

    def pair(self, incarnation: int = 0, **options: Any) -> tuple[DatagramWriter, DatagramReader]:
        senders = {0: SENDERS, 1: frozenset()}
        return (
            DatagramWriter(CODEC, IDENTITY, 0, incarnation, **options),
            DatagramReader(CODEC, IDENTITY, senders=senders),
        )

    @given(BATCHES, st.randoms())
    def test_datagrams_are_read_in_any_order_but_once(self, batch: list[Envelope], random: Any) -> None:
        writer, reading = self.pair(filled_bytes=60)
        found = writer.datagrams(batch)
        random.shuffle(found)
        read = [envelope for each in found for envelope in reading.batch(each)]
        assert sorted(read, key=repr) == sorted(batch, key=repr)
        for each in found:
            assert refused(reading.batch, each) == "replayed"

    def test_small_messages_share_a_datagram_up_to_its_length(self) -> None:
        writer, _ = self.pair()
        found = writer.datagrams([(0, 1, Ball(number)) for number in range(1000)])
        assert 8 <= len(found) <= 12
        assert max(map(len, found)) <= 1400
        assert len(writer.datagrams([(0, 1, Ball(0, "x" * 5000))])[0]) > 5000

    def test_a_message_that_no_datagram_holds_is_named(self) -> None:
        writer, _ = self.pair()
        with pytest.raises(UnsendableError) as caught:
            writer.datagrams([(0, 1, Ball(0, "x" * 70_000))])
        assert caught.value.envelope[2].hops == 0

    def test_a_datagram_far_behind_the_newest_is_refused(self) -> None:
        writer, reading = self.pair()
        old, *others = (writer.datagrams([(0, 1, Ball(number))])[0] for number in range(5000))
        assert reading.batch(others[-1]) == [(0, 1, Ball(4999))]
        assert refused(reading.batch, old) == "replayed"

    def test_a_datagram_of_an_earlier_life_is_refused(self) -> None:
        old, reading = self.pair(0)
        new, _ = self.pair(1)
        [first] = old.datagrams([(0, 1, Ball(1))])
        [second] = new.datagrams([(0, 1, Ball(2))])
        assert reading.batch(second) == [(0, 1, Ball(2))]
        assert refused(reading.batch, first) == "replayed"
        reading.expect(0, 2)
        assert refused(reading.batch, new.datagrams([(0, 1, Ball(3))])[0]) == "replayed"

    def test_a_datagram_from_before_the_receiver_was_started_again_is_refused(self) -> None:
        writer, before = self.pair()
        [recorded] = writer.datagrams([(0, 1, Ball(1))])
        assert before.batch(recorded) == [(0, 1, Ball(1))]
        after = DatagramReader(CODEC, IDENTITY, senders={0: SENDERS}, incarnation=1)
        assert refused(after.batch, recorded) == "replayed"
        [new] = writer.datagrams([(0, 1, Ball(2))], 1)
        assert after.batch(new) == [(0, 1, Ball(2))]

    @given(st.binary(max_size=100))
    def test_garbage_is_refused(self, data: bytes) -> None:
        assert refused(self.pair()[1].batch, data) in ("truncated", "version", "forged")

    @given(st.data())
    def test_a_changed_datagram_is_refused(self, data: st.DataObject) -> None:
        writer, reading = self.pair()
        datagram = bytearray(writer.datagrams([(0, 1, Ball(1))])[0])
        datagram[data.draw(st.integers(0, len(datagram) - 1))] ^= data.draw(st.integers(1, 255))
        assert refused(reading.batch, bytes(datagram)) in ("version", "forged")

    def test_an_endpoint_that_does_not_exist_and_a_node_of_another_are_refused(self) -> None:
        _, reading = self.pair()
        [unknown] = DatagramWriter(CODEC, IDENTITY, 9, 0).datagrams([(0, 1, Ball(1))])
        [other] = DatagramWriter(CODEC, IDENTITY, 1, 0).datagrams([(0, 1, Ball(1))])
        assert refused(reading.batch, unknown) == "wrong-sender"
        assert refused(reading.batch, other) == "wrong-sender"
