"""The load generator: what it sends, and that it sees every way in which an answer can be wrong."""

import asyncio
import json
import sys
import threading

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.live.processes import ChildProcess, free_port
from wavetank.serving.proxy.load import BROKEN, CROSSED, DOUBLED, FAILED, HUNG, LEFT, LOST, OUTCOMES, RIGHT, Load, offer
from wavetank.serving.proxy.null_backend import asked, event, token, whole_answer

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def port():
    with ChildProcess([sys.executable, "-m", "wavetank.serving.proxy.null_backend"], name="null backend") as process:
        yield json.loads(process.first_line())["ports"][0]


class Scripted:
    """A server in a thread of its own that answers every request with what ``answer(name, tokens)`` returns.

    None in the place of bytes closes the connection.
    """

    def __init__(self, answer):
        self.answer = answer
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(ready,))
        self.thread.start()
        ready.wait()

    def _run(self, ready):
        async def serve():
            server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await self.stop.wait()
            server.close()

        async def main():
            self.stop = asyncio.Event()
            await serve()

        self.loop.run_until_complete(main())

    async def _talk(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                name, _, _, tokens, _, _ = asked(await reader.readexactly(length))
                for piece in self.answer(name, tokens):
                    if piece is None:
                        writer.transport.abort()
                        return
                    writer.write(piece)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()

    def close(self):
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join()
        for task in (pending := asyncio.all_tasks(self.loop)):
            task.cancel()
        if pending:
            self.loop.run_until_complete(asyncio.wait(pending))
        self.loop.close()


@pytest.fixture
def against():
    servers = []

    def run(answer, **load):
        servers.append(Scripted(answer))
        given = {"clients": 1, "requests": 3, "tokens": (4, 4), "timeout_s": 0.5, **load}
        return offer(servers[-1].port, Load(**given))

    yield run
    for server in servers:
        server.close()


def outcomes(result):
    return [OUTCOMES[each] for each in result.outcome]


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def tokens_of(name, numbers, of=4):
    return [event(name, number, of + 1, 0) for number in numbers]


END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def test_right_answers_are_right_plain_and_streamed(port):
    result = offer(port, Load(clients=8, requests=200, tokens=(1, 40), streamed_share=0.5, seed=3))
    assert outcomes(result) == ["right"] * 200
    assert set(result.status) == {200}
    assert 60 < result.streamed.sum() < 140
    assert result.chunk_delay_s.size == result.tokens
    assert (result.chunk_delay_s >= 0).all()
    assert (result.latency_s >= result.first_s).all()
    assert result.notes == ()


def test_the_same_seed_sends_the_same_requests(port):
    loads = [Load(clients=1, requests=50, tokens=(1, 40), streamed_share=0.5, seed=seed) for seed in (1, 1, 2)]
    first, again, other = (offer(port, load) for load in loads)
    assert (first.streamed == again.streamed).all()
    assert first.tokens == again.tokens
    assert (first.streamed != other.streamed).any()


def test_delays_are_asked_for_and_taken_off_again(port):
    result = offer(port, Load(clients=4, requests=40, delay_s=0.02))
    assert ((result.asked_s >= 0.0099) & (result.asked_s <= 0.0301)).all()
    assert np.unique(result.asked_s).size > 20
    assert (result.latency_s >= 0.0099).all()
    assert result.overhead_s.size == 40
    assert (result.overhead_s < result.latency_s).all()


def test_a_load_ends_with_its_time_and_counts_what_was_answered(port):
    result = offer(port, Load(clients=2, duration_s=0.2))
    assert result.right == len(result.outcome) > 10
    assert result.duration_s >= 0.2
    assert result.requests_per_s == result.right / result.duration_s
    assert result.chunks_per_s == 0


def test_clients_leave_and_read_slowly_as_they_are_set_to_and_the_others_are_right(port):
    leaving = offer(port, Load(clients=8, requests=400, tokens=(2, 40), streamed_share=0.5, gap_s=0.001, delay_s=0.002,
                               leaving_share=0.5, seed=5))  # fmt: skip
    assert leaving.right + leaving.count(LEFT) == 400, leaving.notes
    assert 100 < leaving.count(LEFT) < 240
    assert leaving.notes == ()
    slow = offer(port, Load(clients=4, requests=8, slow_share=1.0))
    assert (slow.right, slow.count(LEFT)) == (4, 4), slow.notes
    assert (slow.latency_s > 0.25).all()


def test_what_a_leaving_client_receives_is_checked_until_it_leaves(against):
    def stream(name, tokens):
        return [STREAM, *tokens_of("other", range(4)), END]

    found = against(stream, streamed_share=1.0, leaving_share=1.0, delay_s=0.4, requests=20)
    assert found.count(CROSSED) > 0
    assert found.count(RIGHT) == 0


def test_an_answer_may_come_in_pieces_of_any_size(against):
    def one_byte_at_a_time(name, tokens):
        return [bytes([byte]) for byte in whole_answer(name, tokens)]

    def stream(name, tokens):
        whole = STREAM + b"".join(tokens_of(name, range(4))) + END
        return [whole[start : start + 7] for start in range(0, len(whole), 7)]

    assert outcomes(against(one_byte_at_a_time)) == ["right"] * 3
    assert outcomes(against(stream, streamed_share=1.0)) == ["right"] * 3


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (lambda name, tokens: [whole_answer(name, tokens - 1)], LOST),
        (lambda name, tokens: [whole_answer(name, tokens).replace(b":2:", b":1:")], DOUBLED),
        (lambda name, tokens: [whole_answer(name, tokens).replace(b":2:", b":3:")], LOST),
        (lambda name, tokens: [whole_answer("other", tokens)], CROSSED),
        # In one piece: a second answer that comes after the client has gone is nobody's.
        (lambda name, tokens: [2 * whole_answer(name, tokens)], DOUBLED),
        (lambda name, tokens: [whole_answer(name, tokens)[:-5], None], BROKEN),
        (lambda name, tokens: [whole_answer(name, tokens).split(b"\r\n\r\n")[0] + b"\r\n\r\n", None], BROKEN),
        (lambda name, tokens: [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], LOST),
        (lambda name, tokens: [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"], CROSSED),
        (lambda name, tokens: [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{", None], BROKEN),
        (lambda name, tokens: [b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}"], FAILED),
        (lambda name, tokens: [b"HTTP/1.1 502 No\r\nContent-Length: 9\r\n\r\n{}", None], FAILED),
        (lambda name, tokens: [None], LOST),
        (lambda name, tokens: [b"HTTP/1.1 200 OK\r\n"], HUNG),
        (lambda name, tokens: [b"garbage that is no answer\r\n\r\n"], CROSSED),
    ],
)
def test_a_wrong_plain_answer_is_seen(against, answer, outcome):
    assert outcomes(against(answer))[0] == OUTCOMES[outcome]


ERROR = chunk(b'data: {"error":{"message":"died"}}\n\n')


@pytest.mark.parametrize(
    ("pieces", "outcome"),
    [
        (lambda name: [*tokens_of(name, range(4)), END], RIGHT),
        (lambda name: [chunk(b": a comment\n\n"), *tokens_of(name, range(4)), END], RIGHT),
        (lambda name: [*tokens_of(name, range(3)), END], LOST),
        (lambda name: [*tokens_of(name, (0, 1, 1, 2, 3)), END], DOUBLED),
        (lambda name: [*tokens_of(name, (0, 2)), END], LOST),
        (lambda name: [*tokens_of(name, range(2)), *tokens_of("other", range(2, 4)), END], CROSSED),
        (lambda name: [*tokens_of(name, range(5), of=5), END], CROSSED),
        (lambda name: [*tokens_of(name, range(2)), None], BROKEN),
        (lambda name: [*tokens_of(name, range(4)), b"0\r\n\r\n"], LOST),
        (lambda name: [*tokens_of(name, range(4)), chunk(b"data: [DONE]\n\n"), None], BROKEN),
        (lambda name: [*tokens_of(name, range(2)), chunk(b'data: {"error":{"message":"x"}}\n\n'), END], BROKEN),
        (lambda name: [*tokens_of(name, range(4)), chunk(b"data: [DONE]\n\ndata: [DONE]\n\n"), b"0\r\n\r\n"], DOUBLED),
        (lambda name: [*tokens_of(name, range(4)), END + END], DOUBLED),
        (lambda name: [chunk(b"data: {\n\n"), b"0\r\n\r\n"], CROSSED),
        (lambda name: [chunk(b"data: {\n\n"), END], CROSSED),
        (lambda name: [chunk(b"data: {\n\n"), *tokens_of(name, range(4)), END], CROSSED),
        (lambda name: [chunk(b"data: {\n\n"), chunk(b"data: {\n\n"), END], CROSSED),
        # Half an event, and the router's word that the backend died: broken, as any stream that breaks off.
        (lambda name: [*tokens_of(name, range(2)), chunk(b'data: {"choi'), chunk(b"\n\n"), ERROR, None], BROKEN),
        (lambda name: [*tokens_of(name, range(2)), chunk(b'data: {"choi'), None], BROKEN),
        (lambda name: [chunk(b"nonsense\n\n")], CROSSED),
        (lambda name: [b"zz\r\n"], CROSSED),
        (lambda name: [b"1\r\nabc\r\n"], CROSSED),
        (lambda name: tokens_of(name, range(2)), HUNG),
    ],
)
def test_a_wrong_stream_is_seen(against, pieces, outcome):
    result = against(lambda name, tokens: [STREAM, *pieces(name)], streamed_share=1.0)
    assert outcomes(result)[0] == OUTCOMES[outcome]


def test_a_stream_that_ends_with_the_connection_needs_its_done(against):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

    def events(name):
        return [f'data: {{"choices":[{{"delta":{{"content":"{token(name, i)}"}}}}]}}\n\n'.encode() for i in range(4)]

    right = against(lambda name, tokens: [head, *events(name), b"data: [DONE]\n\n", None], streamed_share=1.0)
    # Aborting a connection may throw away what was just sent; that is seen as broken, never as lost.
    assert {"lost", "crossed", "doubled", "failed"} & set(outcomes(right)) == set()
    cut = against(lambda name, tokens: [head, *events(name)[:2], None], streamed_share=1.0)
    assert outcomes(cut) == ["broken"] * 3


def test_after_a_wrong_answer_the_client_goes_on(against):
    answered = []

    def answer(name, tokens):
        answered.append(name)
        return [None] if len(answered) == 2 else [whole_answer(name, tokens)]

    result = against(answer)
    assert outcomes(result) == ["right", "lost", "right"]
    assert answered == ["r0", "r1", "r2"]
    assert result.right == 2
    assert len(result.notes) == 1
    assert result.notes[0].startswith("r1: lost, status 0, ")


def test_a_server_that_is_not_there_is_reported():
    with pytest.raises(WavetankError, match="does not take connections"):
        offer(free_port(), Load(requests=1))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"requests": 1, "clients": 0},
        {"requests": -1},
        {"requests": 1, "tokens": (0, 1)},
        {"requests": 1, "tokens": (5, 4)},
        {"requests": 1, "name": "a b"},
        {"requests": 1, "name": "a:b"},
        {"requests": 1, "name": 'a"'},
    ],
)
def test_a_load_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(BadValueError):
        Load(**wrong)
