import asyncio
import struct

import msgspec
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.protocols.sessions.examples import example
from wavetank.protocols.sessions.live.endpoint import LARGEST_FRAME_BYTES, Endpoint, Frame, Greeting
from wavetank.protocols.sessions.mixed_choice import MixedChoice

WAIT_S = 20.0


def run(name, story, **options):
    """Run ``story(endpoints)`` with one started and connected endpoint a role."""

    async def main():
        machines = MixedChoice().machines(example(name))
        ends = {role: Endpoint(machine, **options.get(role, {})) for role, machine in machines.items()}
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


async def _hostile(address, *frames):
    reader, writer = await asyncio.open_connection(*address)
    for frame in frames:
        writer.write(frame)
    await writer.drain()
    assert await reader.read() == b""
    writer.close()


def framed(body):
    return struct.pack(">I", len(body)) + body


HELLO = framed(msgspec.msgpack.encode(Greeting("Race", "", "p")))


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xff\xff\xff\xff"],
        [framed(b"garbage")],
        [framed(msgspec.msgpack.encode(Greeting("Other", "", "p")))],
        [framed(msgspec.msgpack.encode(Greeting("Race", "other session", "p")))],
        [framed(msgspec.msgpack.encode(Greeting("Race", "", "stranger")))],
        [HELLO, framed(b"\x93\xa4data\x90")],
        [HELLO, framed(msgspec.msgpack.encode(Frame("data", [], [(99, 1, 1, False)])))],
        [HELLO, framed(msgspec.msgpack.encode(Frame("data", [], [(1, 5, 1, False)])))],
        [HELLO, struct.pack(">I", LARGEST_FRAME_BYTES + 1)],
    ],
)
def test_hostile_frames_close_their_connection_and_nothing_else(frames):
    async def story(ends):
        await _hostile(ends["q"].address, *frames)
        await ends["p"].send("q", "data", (1,))
        return (await ends["q"].receive(WAIT_S)).label, ends["q"].faults

    assert run("race", story) == ("data", 1)


def test_a_truncated_frame_is_the_end_of_a_connection():
    async def story(ends):
        _, writer = await asyncio.open_connection(*ends["q"].address)
        writer.write(HELLO + struct.pack(">I", 100) + b"half")
        writer.close()
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


def test_a_role_that_does_not_listen_is_told():
    async def story(ends):
        address = ends["q"].address
        await ends["q"].close()
        with pytest.raises(WavetankError, match="'q' cannot be reached") as caught:
            await ends["p"].send("q", "data")
        with pytest.raises(BadValueError, match="has not been started"):
            _ = ends["q"].address
        return caught.value.given == f"{address[0]}:{address[1]}"

    assert run("race", story)


def test_an_interrupt_that_cannot_be_sent_is_told_to_whoever_waits():
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


def test_wrong_addresses_are_told():
    async def story(ends):
        with pytest.raises(BadValueError, match="exchanges nothing with 'r'"):
            ends["p"].connect({"r": ("127.0.0.1", 1)})
        lonely = Endpoint(ends["p"]._machine)
        with pytest.raises(BadValueError, match="Nobody said where 'q' listens"):
            await lonely.send("q", "data")
        taken = Endpoint(ends["p"]._machine, port=ends["q"].address[1])
        with pytest.raises(WavetankError, match="cannot listen"):
            await taken.start()

    run("race", story)
