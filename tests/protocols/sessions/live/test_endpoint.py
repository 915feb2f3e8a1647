import asyncio
import struct

import msgspec
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.wire import VERSION, Challenge, Refusal, RunIdentity, Welcome, greeting, read_greeting
from wavetank.protocols.sessions.examples import example
from wavetank.protocols.sessions.live import endpoint
from wavetank.protocols.sessions.live.endpoint import (
    LARGEST_FRAME_BYTES,
    SECRET_VARIABLE,
    Endpoint,
    Frame,
    _Sender,
    new_secret,
    role_number,
)
from wavetank.protocols.sessions.mixed_choice import MixedChoice

WAIT_S = 20.0
SECRET = new_secret()
RUN = '["Race",""]'


def run(name, story, **options):
    """Run ``story(endpoints)`` with one started and connected endpoint a role."""

    async def main():
        machines = MixedChoice().machines(example(name))
        ends = {
            role: Endpoint(machine, **{"secret": SECRET, **options.get(role, {})}) for role, machine in machines.items()
        }
        try:
            for end in ends.values():
                await end.start()
            for role, end in ends.items():
                partners = machines[role].partners()
                end.connect({other: ends[other].address for other in partners})
            return await story(ends)
        finally:
            for end in ends.values():
                await end.close()

    return asyncio.run(main())


def test_an_interrupt_that_crosses_the_data_wins_over_tcp():
    noticed = []

    async def story(ends):
        await asyncio.gather(ends["p"].send("q", "data", (7,)), ends["q"].send("p", "stop"))
        taken = await ends["p"].receive(WAIT_S)
        while not noticed:
            await asyncio.sleep(0.01)
        return taken.label, ends["p"].role_session.tag == ends["q"].role_session.tag

    options = {"q": {"noticed": noticed.append}}
    assert run("race", story, **options) == ("stop", True)
    assert [(each.what, each.label, each.payload) for each in noticed] == [("dropped", "data", (7,))]


def test_an_arbiter_interrupts_when_nothing_comes():
    async def story(ends):
        taken = await ends["p"].receive(WAIT_S)
        await ends["q"].wait_ended(WAIT_S)
        return taken.label, taken.payload

    assert run("stream", lambda ends: _stopped(ends), reader={"interrupts": {"item": (0.05, "stop", ("late",))}}) == (
        "stop",
        ("late",),
        3,
    )
    assert run("race", story, q={"interrupts": {"race": (0.02, "stop", ())}}) == ("stop", ())


async def _stopped(ends):
    for number in range(3):
        await ends["writer"].send("reader", "item", (b"x" * number,))
    taken = await ends["writer"].receive(WAIT_S)
    items = [await ends["reader"].receive(WAIT_S) for _ in range(3)]
    await ends["writer"].send("reader", "stopped", (3,))
    await ends["reader"].wait_ended(WAIT_S)
    return taken.label, taken.payload, len(items)


def test_amqp_connections_closed_from_both_ends_at_once_reach_closed():
    async def story(ends):
        client, broker = ends["client"], ends["broker"]
        for one, other, label in [
            (broker, client, "connection_start"),
            (client, broker, "connection_start_ok"),
            (broker, client, "connection_tune"),
            (client, broker, "connection_tune_ok"),
            (client, broker, "connection_open"),
            (broker, client, "connection_open_ok"),
        ]:
            # The other end may have to take something first.
            await one.send("broker" if one is client else "client", label)
            await other.receive(WAIT_S)
        await asyncio.gather(client.send("broker", "connection_close"), broker.send("client", "connection_close"))
        assert (await client.receive(WAIT_S)).label == "connection_close"
        await client.send("broker", "connection_close_ok")
        await broker.wait_ended(WAIT_S)
        return client.ended, broker.ended, client.faults, broker.faults

    assert run("amqp_client", story) == (True, True, 0, 0)


class Stranger:
    """A connection to a role from somebody who does as they please."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def at(cls, address):
        found = cls(*await asyncio.open_connection(*address))
        found.challenge = await found.hear()
        return found

    async def hear(self):
        (length,) = struct.unpack(">I", await asyncio.wait_for(self.reader.readexactly(4), WAIT_S))
        return read_greeting(await asyncio.wait_for(self.reader.readexactly(length), WAIT_S))

    async def introduce(self, secret=SECRET, run=RUN, role="p", target="q", nonce=b"n" * 16):
        """Say hello; return the sender of stamped frames when welcomed, the reason when refused."""
        identity = RunIdentity(run=run, secret=secret, size=0)
        number, to = role_number(role), role_number(target)
        self.writer.write(greeting(identity.hello(number, self.challenge, nonce, target=to)))
        answer = await self.hear()
        if isinstance(answer, Refusal):
            return answer.reason
        identity.check_welcome(answer, number, self.challenge.nonce, nonce, target=to)
        return _Sender(self.writer, identity.session(number, self.challenge.nonce, nonce, target=to))

    async def closed(self):
        """Whether the other end hangs up."""
        await asyncio.wait_for(self.reader.read(), WAIT_S)
        self.writer.close()
        return True


def framed(body):
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        # As long as a frame may be, and too long for somebody who has proven nothing.
        struct.pack(">I", 2000),
        framed(b"garbage"),
        framed(msgspec.msgpack.encode(["Metering", "", "station"])),
        framed(msgspec.msgpack.encode(["stop", ["FORGED"], []])),
    ],
)
def test_who_does_not_prove_the_secret_is_dropped_and_drives_nothing(data):
    async def story(ends):
        stranger = await Stranger.at(ends["q"].address)
        stranger.writer.write(data)
        assert await stranger.closed()
        await ends["p"].send("q", "data", (1,))
        taken = await ends["q"].receive(WAIT_S)
        return taken.label, taken.payload, ends["q"].faults

    assert run("race", story) == ("data", (1,), 1)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"secret": new_secret()}, "forged"),
        ({"run": '["Race","other session"]'}, "wrong-run"),
        ({"run": '["Other",""]'}, "wrong-run"),
        ({"role": "stranger"}, "wrong-sender"),
        # A proof made for another role is worth nothing here.
        ({"target": "p"}, "forged"),
    ],
)
def test_a_proof_that_fits_not_is_refused_with_its_reason(wrong, reason):
    async def story(ends):
        assert await (await Stranger.at(ends["q"].address)).introduce(**wrong) == reason
        await ends["p"].send("q", "data", (1,))
        return (await ends["q"].receive(WAIT_S)).label, ends["q"].faults

    assert run("race", story) == ("data", 1)


def test_a_recorded_connection_is_worth_nothing():
    async def story(ends):
        first = await Stranger.at(ends["q"].address)
        assert isinstance(await first.introduce(), _Sender)
        first.writer.close()
        while ends["q"]._heard:
            await asyncio.sleep(0.01)
        again = await Stranger.at(ends["q"].address)
        assert again.challenge.nonce != first.challenge.nonce
        again.challenge = first.challenge
        return await again.introduce()

    assert run("race", story) == "forged"


def test_a_role_is_connected_once():
    async def story(ends):
        first = await Stranger.at(ends["q"].address)
        sender = await first.introduce()
        assert await (await Stranger.at(ends["q"].address)).introduce() == "crowded"
        with pytest.raises(WavetankError, match="is not 'q' of this session") as caught:
            await ends["p"].send("q", "data", (1,))
        assert "crowded" in caught.value.given
        sender.send(msgspec.msgpack.encode(Frame("data", [1], [(1, 1, 1, False)])))
        return (await ends["q"].receive(WAIT_S)).payload

    assert run("race", story) == (1,)


@pytest.mark.parametrize(
    "body",
    [
        b"\x93\xa4data\x90",
        msgspec.msgpack.encode(Frame("data", [], [(99, 1, 1, False)])),
        msgspec.msgpack.encode(Frame("data", [], [(1, 5, 1, False)])),
    ],
)
def test_hostile_frames_of_a_partner_close_their_connection_and_nothing_else(body):
    async def story(ends):
        partner = await Stranger.at(ends["q"].address)
        (await partner.introduce()).send(body)
        assert await partner.closed()
        await ends["p"].send("q", "data", (1,))
        return (await ends["q"].receive(WAIT_S)).label, ends["q"].faults

    assert run("race", story) == ("data", 1)


@pytest.mark.parametrize("change", ["replayed", "changed", "left out", "too long"])
def test_frames_that_were_tampered_with_are_refused(change):
    async def story(ends):
        partner = await Stranger.at(ends["q"].address)
        sender = await partner.introduce()
        sent = []
        sender.writer = type("Kept", (), {"write": lambda self, data: sent.append(data)})()
        body = msgspec.msgpack.encode(Frame("data", [1], [(1, 1, 1, False)]))
        sender.send(body)
        sender.send(body)
        first, second = sent
        frames = {
            "replayed": [first, first],
            "changed": [first[:-1] + bytes([first[-1] ^ 1])],
            "left out": [second],
            "too long": [struct.pack(">I", LARGEST_FRAME_BYTES + 1)],
        }
        for frame in frames[change]:
            partner.writer.write(frame)
        assert await partner.closed()
        taken = ends["q"]._taken.qsize()
        return ends["q"].faults, taken == (change == "replayed")

    assert run("race", story) == (1, True)


def test_silent_strangers_are_few_small_and_not_for_long(monkeypatch):
    monkeypatch.setattr(endpoint, "HELLO_TIMEOUT_S", 0.3)

    async def story(ends):
        most = ends["q"]._strangers.most
        crowd = [await Stranger.at(ends["q"].address) for _ in range(3 * most)]
        assert len(ends["q"]._strangers) == most
        # A megabyte is announced and sent, all but its last byte: of that nothing is kept.
        for each in crowd[-most:]:
            each.writer.write(struct.pack(">I", LARGEST_FRAME_BYTES) + bytes(100_000))
        await ends["p"].send("q", "data", (1,))
        assert (await ends["q"].receive(WAIT_S)).label == "data"
        for _ in range(500):
            if not len(ends["q"]._strangers):
                break
            await asyncio.sleep(0.01)
        assert ends["q"].faults == 3 * most
        for each in crowd:
            each.writer.close()
        return len(ends["q"]._strangers)

    assert run("race", story) == 0


def test_a_listener_that_does_not_know_the_secret_is_not_believed():
    async def story(ends):
        async def impostor(reader, writer):
            writer.write(greeting(Challenge(VERSION, b"c" * 16)))
            hello = read_greeting((await reader.read(4096))[4:])
            # It says back what it heard.
            writer.write(greeting(Welcome(hello.proof)))

        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        async with server:
            ends["p"].connect({"q": server.sockets[0].getsockname()[:2]})
            with pytest.raises(WavetankError, match="is not 'q' of this session"):
                await ends["p"].send("q", "data", (1,))
        return ends["p"].role_session.can_send("q", "data")

    assert run("race", story)


def test_roles_without_a_secret_do_not_start(monkeypatch):
    machine = MixedChoice().machines(example("race"))["p"]
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    with pytest.raises(BadValueError, match="share a secret"):
        Endpoint(machine)
    monkeypatch.setenv(SECRET_VARIABLE, "not hexadecimal")
    with pytest.raises(BadValueError, match="share a secret"):
        Endpoint(machine)
    monkeypatch.setenv(SECRET_VARIABLE, "ab" * 4)
    with pytest.raises(BadValueError, match="too short"):
        Endpoint(machine)
    monkeypatch.setenv(SECRET_VARIABLE, SECRET.hex())
    Endpoint(machine)


def test_closing_with_open_connections_logs_nothing(caplog):
    async def story(ends):
        await ends["p"].send("q", "data", (1,))
        await ends["q"].receive(WAIT_S)
        await Stranger.at(ends["q"].address)

    run("race", story)
    assert caplog.records == []


def test_a_truncated_frame_is_the_end_of_a_connection():
    async def story(ends):
        stranger = await Stranger.at(ends["q"].address)
        stranger.writer.write(struct.pack(">I", 100) + b"half")
        stranger.writer.close()
        await ends["p"].send("q", "data", (1,))
        return (await ends["q"].receive(WAIT_S)).label

    assert run("race", story) == "data"


def test_what_cannot_be_sent_leaves_the_session_where_it_was():
    async def story(ends):
        for payload, problem in (((object(),), "cannot be sent"), ((b"x" * LARGEST_FRAME_BYTES,), "too large")):
            with pytest.raises(BadValueError, match=problem):
                await ends["p"].send("q", "data", payload)
        with pytest.raises(BadValueError, match="may not send this now"):
            await ends["p"].send("q", "nonsense")
        await ends["p"].send("q", "data", (1,))
        return (await ends["q"].receive(WAIT_S)).payload

    assert run("race", story) == (1,)


def test_a_role_that_does_not_listen_is_reported():
    async def story(ends):
        address = ends["q"].address
        await ends["q"].close()
        with pytest.raises(WavetankError, match="'q' cannot be reached") as caught:
            await ends["p"].send("q", "data")
        with pytest.raises(BadValueError, match="has not been started"):
            _ = ends["q"].address
        return caught.value.given == f"{address[0]}:{address[1]}"

    assert run("race", story)


def test_an_interrupt_that_cannot_be_sent_is_raised_where_the_end_is_awaited():
    async def story(ends):
        await ends["p"].close()
        with pytest.raises(WavetankError, match="'p' cannot be reached"):
            await ends["q"].wait_ended(WAIT_S)

    run("race", story, q={"interrupts": {"race": (0.1, "stop", ())}})


def test_waiting_has_an_end():
    async def story(ends):
        with pytest.raises(WavetankError, match="took nothing for"):
            await ends["p"].receive(0.01)
        with pytest.raises(WavetankError, match="has not ended after"):
            await ends["p"].wait_ended(0.01)

    run("race", story)


def test_wrong_addresses_are_reported():
    async def story(ends):
        with pytest.raises(BadValueError, match="exchanges nothing with 'r'"):
            ends["p"].connect({"r": ("127.0.0.1", 1)})
        lonely = Endpoint(ends["p"]._machine, secret=SECRET)
        with pytest.raises(BadValueError, match="The address of 'q' is not known"):
            await lonely.send("q", "data")
        taken = Endpoint(ends["p"]._machine, secret=SECRET, port=ends["q"].address[1])
        with pytest.raises(WavetankError, match="cannot listen"):
            await taken.start()

    run("race", story)
