"""A streamed answer is the same however it is cut into pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("aiohttp", reason="tokens of the stand-in engine, which needs aiohttp")

from wavetank.serving.proxy.answer_stream import AnswerStream, BadAnswer

# As llama.cpp and Transformers send them: the latter has no mark of the end, and a last event without a choice's text.
LLAMACPP = (
    b'data: {"choices":[{"text":" avs","index":0,"finish_reason":null}],"system_fingerprint":"b0"}\n\n'
    b'data: {"choices":[{"text":" ysf","index":0,"finish_reason":null}],"system_fingerprint":"b0"}\n\n'
    b'data: {"choices":[{"text":"","index":0,"finish_reason":"length"}],"usage":{"completion_tokens":2,'
    b'"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}},"timings":{"cache_n":4}}\n\ndata: [DONE]\n\n'
)
TRANSFORMERS = (
    b'data: {"id":"1","choices":[{"delta":{"role":"assistant"},"index":0}],"system_fingerprint":""}\n\n'
    b'data: {"id":"1","choices":[{"delta":{"content":" hxs"},"index":0}]}\n\n'
    b'data: {"id":"1","choices":[{"delta":{},"index":0,"finish_reason":"stop"}],"usage":{"completion_tokens":1,'
    b'"prompt_tokens":9}}\n\n'
)


@given(st.sampled_from([LLAMACPP, TRANSFORMERS]), st.lists(st.integers(0, 600), max_size=8))
def test_pieces_of_any_size_give_the_same_answer(answer: bytes, cuts: list[int]) -> None:
    stream = AnswerStream("r")
    places = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    for number, (start, stop) in enumerate(itertools.pairwise(places)):
        stream.feed(answer[start:stop], float(number))
    stream.close(99.0)
    assert stream.usage is not None
    if answer is LLAMACPP:
        assert (stream.tokens, stream.reason, stream.ended, stream.worker) == (2, "length", True, "b0")
        assert stream.usage.prompt_tokens_details.cached_tokens == 4
    else:
        assert (stream.tokens, stream.reason, stream.ended, stream.worker) == (1, "stop", False, "")
    assert stream.times_s == sorted(stream.times_s)
    assert (stream.first_s, stream.last_s) == (stream.times_s[0], stream.times_s[-1])


def test_a_last_event_without_a_line_end_counts_when_the_body_ends() -> None:
    stream = AnswerStream("r")
    stream.feed(TRANSFORMERS.rstrip(), 1.0)
    assert stream.reason == ""
    stream.close(2.0)
    assert stream.reason == "stop"


@pytest.mark.parametrize("half", [b'data: {"choices": [', b"data: \xff\xfe"])
def test_half_an_event_at_the_end_is_no_answer(half: bytes) -> None:
    stream = AnswerStream("r")
    stream.feed(half, 1.0)
    with pytest.raises(BadAnswer) as caught:
        stream.close(2.0)
    assert caught.value.failure == "malformed"
