"""What a router learns from the bodies of requests and replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.serving.proxy.prompt_size import (
    MOST_BLOCKS,
    BodyError,
    BytesPerToken,
    Tail,
    read_last_usage,
    read_prompt,
    read_usage,
)


def chat(*contents: Any, **more: Any) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


class TestPrompts:
    @pytest.mark.parametrize(
        ("body", "text_bytes", "token_ids"),
        [
            (chat("hello"), 4 + 5, 0),
            (chat("h\u00e4llo", "w"), 4 + 6 + 4 + 1, 0),
            (chat(None), 4, 0),
            (chat([{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "x" * 999}}]), 9, 0),
            (b'{"model":"m","prompt":"hello"}', 5, 0),
            (b'{"model":"m","prompt":["hello","you"]}', 8, 0),
            (b'{"model":"m","prompt":[1,2,3]}', 0, 3),
            (b'{"model":"m","prompt":[[1,2],[3,4,5]]}', 0, 5),
            (b'{"model":"m","prompt":[]}', 0, 0),
            (b'{"model":"m"}', 0, 0),
        ],
    )
    def test_a_prompt_is_as_long_as_its_text_or_its_ids(self, body: bytes, text_bytes: int, token_ids: int) -> None:
        prompt = read_prompt(body)
        assert (prompt.model, prompt.text_bytes, prompt.token_ids) == ("m", text_bytes, token_ids)

    def test_model_kind_and_streaming_are_read(self) -> None:
        prompt = read_prompt(chat("x", stream=True))
        assert (prompt.model, prompt.stream, prompt.chat) == ("m", True, True)
        prompt = read_prompt(b'{"prompt":"x","stream":null}')
        assert (prompt.model, prompt.stream, prompt.chat) == (None, False, False)

    @pytest.mark.parametrize(
        "more", ['"messages":"odd"', '"messages":[7]', '"stream":"yes"', '"prompt":[1,"a"]', '"prompt":[[1],2]',
                 '"prompt":{"a":1}', '"prompt":[true]', '"prompt":[1e30]', '"prompt":[99999999999999999999]'],
    )  # fmt: skip
    def test_unusual_shapes_count_whole_and_are_left_to_the_backend(self, more: str) -> None:
        body = f'{{"model":"m",{more}}}'.encode()
        prompt = read_prompt(body)
        assert (prompt.model, prompt.text_bytes, prompt.token_ids) == ("m", len(body), 0)

    @pytest.mark.parametrize(
        "body", [b"", b"[]", b"7", b'"x"', b"null", b"{", b'{"model":"m"}x', b"\xff", b'{"a":' * 100_000,
                 b'{"stream":"yes","a":' + b"[" * 100_000],
    )  # fmt: skip
    def test_what_is_no_json_object_is_refused(self, body: bytes) -> None:
        with pytest.raises(BodyError):
            read_prompt(body)

    @given(body=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: chat(text)))
    def test_any_body_is_read_or_refused(self, body: bytes) -> None:
        try:
            prompt = read_prompt(body)
        except BodyError:
            return
        assert prompt.text_bytes >= 0
        prompt.blocks(1, 4.0, b"k")


class TestBlocks:
    def test_equal_beginnings_have_equal_blocks(self) -> None:
        one, other = (read_prompt(chat("a" * 100, text)).blocks(4, 4.0, b"") for text in ("b" * 50, "c" * 50))
        shared = (4 + 1 + 100 + 1 + 4 + 1) // 16
        assert one[:shared] == other[:shared]
        assert not set(one[shared:]) & set(other[shared:])

    def test_a_block_counts_what_comes_before_it(self) -> None:
        one = read_prompt(chat("x" * 100)).blocks(4, 4.0, b"")
        assert len(set(one)) == len(one) == -(-(4 + 1 + 100) // 16)

    def test_token_ids_make_exact_blocks(self) -> None:
        ids = list(range(10))
        whole = read_prompt(json.dumps({"model": "m", "prompt": ids}).encode()).blocks(4, 4.0, b"")
        part = read_prompt(json.dumps({"model": "m", "prompt": ids[:8]}).encode()).blocks(4, 4.0, b"")
        assert len(whole) == 3
        assert whole[:2] == part

    def test_model_and_key_matter(self) -> None:
        body = chat("x" * 100)
        mine = read_prompt(body).blocks(4, 4.0, b"mine")
        assert read_prompt(body).blocks(4, 4.0, b"mine") == mine
        assert not set(read_prompt(body).blocks(4, 4.0, b"other")) & set(mine)
        assert not set(read_prompt(body.replace(b'"m"', b'"n"')).blocks(4, 4.0, b"mine")) & set(mine)
        assert all(0 <= block < 2**63 for block in mine)

    def test_a_monstrous_prompt_has_a_bounded_number(self) -> None:
        assert len(read_prompt(chat("x" * 100_000)).blocks(1, 1.0, b"")) == MOST_BLOCKS

    def test_the_text_can_be_let_go(self) -> None:
        prompt = read_prompt(chat("x" * 100))
        prompt.forget_text()
        assert prompt.text_bytes == 104
        assert prompt.blocks(4, 4.0, b"") == []


class TestUsage:
    def test_a_reply_reports_its_usage(self) -> None:
        assert read_usage(b'{"id":"x","usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}') == (7, 3)

    @pytest.mark.parametrize(
        "reply", [b"", b"{}", b"[]", b'{"usage":null}', b'{"usage":{"prompt_tokens":7}}',
                  b'{"usage":{"input_tokens":7}}', b'{"usage":{"input_tokens":-1,"output_tokens":1}}', b'{"usage":[]}',
                  b'{"usage":{"prompt_tokens":0,"completion_tokens":1}}',
                  b'{"usage":{"prompt_tokens":-7,"completion_tokens":1}}',
                  b'{"usage":{"prompt_tokens":7,"completion_tokens":1e99}}', b"[" * 100_000],
    )  # fmt: skip
    def test_nonsense_reports_none(self, reply: bytes) -> None:
        assert read_usage(reply) is None

    def test_the_last_event_with_a_usage_counts(self) -> None:
        events = [
            b'data: {"usage":{"prompt_tokens":7,"completion_tokens":2}}',
            b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}',
            b"data: [DONE]",
        ]
        tail = b"\n\n".join([*events, b""])
        assert read_last_usage(tail) == (7, 3)
        assert read_last_usage(tail[10:]) == (7, 3)
        assert read_last_usage(tail.replace(b"\n", b"\r\n")) == (7, 3)
        assert read_last_usage(b'data: {"usage":null}\n\ndata: [DONE]\n\n') is None

    @pytest.mark.parametrize(
        ("usage", "found"),
        [({"input_tokens": 7, "output_tokens": 3}, (7, 3)), ({"prompt_tokens": 7, "total_tokens": 7}, (7, 0)),
         ({"output_tokens": 3}, (0, 3)),
         ({"prompt_tokens": 7, "completion_tokens": 3, "output_tokens": 9}, (7, 3)),
         ({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}, (7, 3))],
    )  # fmt: skip
    def test_every_endpoints_words_are_read(self, usage: dict[str, Any], found: tuple[int, int]) -> None:
        body = json.dumps({"content": "x", "usage": usage}).encode()
        assert read_usage(body) == found
        assert read_last_usage(body) == found
        response = {"text": "y" * 50_000, "usage": usage, "user": None}
        nested = json.dumps({"type": "response.completed", "response": response})
        stream = b"event: response.completed\ndata: " + nested.encode() + b"\n\n"
        assert read_last_usage(stream[-1000:]) == found

    @given(st.text(), st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(0, 40))
    def test_no_text_hides_or_forges_the_usage_behind_it(self, text: str, prompt: int, output: int, cut: int) -> None:
        said = text + '"usage":{"prompt_tokens":1,"completion_tokens":1}' + text
        usage = {"prompt_tokens": prompt, "completion_tokens": output}
        body = json.dumps({"text": said, "usage": usage, "more": said}).encode()
        assert read_last_usage(body[cut:]) == (prompt, output)

    @given(st.binary(max_size=200))
    def test_any_bytes_have_an_end(self, data: bytes) -> None:
        read_last_usage(data + b'"usage":{' + data)
        read_last_usage(b'"usage"' + data)

    def test_a_text_about_usage_is_no_usage(self) -> None:
        said = json.dumps({"choices": [{"delta": {"content": '"usage":{"prompt_tokens":1,"completion_tokens":1}'}}]})
        assert read_last_usage(b"data: " + said.encode() + b"\n\ndata: [DONE]\n\n") is None


@given(st.lists(st.binary(max_size=9), max_size=60), st.integers(1, 40))
def test_a_tail_is_the_end_of_what_came_in_whatever_pieces(pieces: list[bytes], most: int) -> None:
    tail = Tail(most)
    for piece in pieces:
        tail.add(piece)
    assert tail.joined() == b"".join(pieces)[-most:]


class TestBytesPerToken:
    def test_it_starts_as_given_and_learns_what_is_reported(self) -> None:
        ratio = BytesPerToken(4.0)
        assert (ratio.ratio, ratio.tokens(400), ratio.tokens(0)) == (4.0, 100, 1)
        for _ in range(2000):
            ratio.learn(3000, 1000)
        assert ratio.ratio == pytest.approx(3.0, rel=0.001)
        assert ratio.tokens(3000) == 1000

    def test_lies_teach_nothing(self) -> None:
        ratio = BytesPerToken(4.0)
        for size, tokens in ((10, 1_000_000), (1_000_000, 1), (0, 5), (100, 0), (100, -3)):
            ratio.learn(size, tokens)
        assert ratio.ratio == 4.0
