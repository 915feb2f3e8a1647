"""What an OpenAI client asks is read strictly, and refused in OpenAI's words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.serving.proxy.openai_request import Asked, Refusal, prefix_blocks, read_request


def read(chat: bool = False, **fields: Any) -> Asked:
    if chat:
        fields.setdefault("messages", [{"role": "user", "content": "hello"}])
    else:
        fields.setdefault("prompt", [1, 2, 3])
    return read_request(json.dumps(fields).encode(), chat=chat)


def refused(body: bytes | None = None, chat: bool = False, **fields: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        if body is None:
            read(chat, **fields)
        else:
            read_request(body, chat=chat)
    assert caught.value.status == 400
    answer = json.loads(caught.value.body())["error"]
    assert (answer["message"], answer["type"]) == (caught.value.message, "invalid_request_error")
    return caught.value


def test_token_ids_are_counted_and_text_takes_a_token_for_every_four_bytes() -> None:
    assert read(prompt=[5, 6, 7]).prompt_tokens == 3
    assert [read(prompt=text).prompt_tokens for text in ("a", "abcd", "abcde", "äöü")] == [1, 1, 2, 2]
    assert read(prompt=["abcde"]).prompt_tokens == read(prompt=[[1, 2]]).prompt_tokens == 2
    parts = [{"type": "text", "text": "abcd"}, {"type": "text", "text": "e"}]
    assert read(chat=True, messages=[{"role": "system"}, {"role": "user", "content": parts}]).prompt_tokens == 2


def test_what_is_not_said_has_openais_defaults() -> None:
    asked = read()
    assert (asked.max_tokens, asked.min_tokens, asked.stream, asked.include_usage) == (None, 0, False, False)
    assert (asked.ignore_eos, asked.model, asked.user) == (False, None, None)


def test_lengths_and_streaming_are_taken_over() -> None:
    asked = read(
        chat=True, max_tokens=9, max_completion_tokens=7, min_tokens=3, ignore_eos=True, stream=True, user="u",
        stream_options={"include_usage": True}, temperature=0.3, tools=[{"deep": [[1]]}],
    )  # fmt: skip
    assert (asked.max_tokens, asked.min_tokens, asked.ignore_eos) == (7, 3, True)
    assert (asked.stream, asked.include_usage, asked.user, asked.chat) == (True, True, "u", True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [1, 2**31]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 3}, "stream_options"),
        ({"model": 3}, "model"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "user", "content": ""}], "messages"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages"),
        ([{"content": "x"}], "messages[0]"),
        ("hello", "messages"),
    ],
)
def test_a_wrong_chat_is_refused(messages: Any, param: str) -> None:
    assert refused(chat=True, messages=messages).param == param


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b'{"prompt": "\xff"}', b'{"prompt":' + b"[" * 100_000]
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    refused(body)


@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(0, 9), max_size=40), st.integers(1, 8))
def test_blocks_are_equal_exactly_as_far_as_the_content_is(one: list[int], other: list[int], size: int) -> None:
    ours, theirs = prefix_blocks(one, size), prefix_blocks(other, size)
    assert (len(ours), len(theirs)) == (len(one) // size, len(other) // size)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        assert (a == b) == (one[: (i + 1) * size] == other[: (i + 1) * size])


def test_text_has_blocks_of_four_bytes_a_token() -> None:
    assert len(prefix_blocks(b"a" * 33, 4)) == 2
    assert prefix_blocks(b"a" * 16 + b"b" * 16, 4)[:1] == prefix_blocks(b"a" * 32, 4)[:1]
