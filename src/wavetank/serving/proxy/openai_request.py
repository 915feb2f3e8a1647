"""What a client asks of an OpenAI-compatible server, read strictly: the tokens of its prompt, the length of its answer.

A prompt given as token ids counts as many tokens as there are ids.  Text counts one token for every four bytes begun,
which needs no tokenizer and is the same for everybody.

Source: the OpenAI API reference (completions, chat completions, errors), and the fields that vLLM adds to it.

Differs from the source:

1. One prompt and one choice per request; more are refused, not ignored.
2. What steers sampling (temperature and the like) is accepted and has no effect.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

BYTES_PER_TOKEN = 4
_MOST_TOKEN_ID = 2**31 - 1


class Refusal(Exception):  # noqa: N818  (an answer, not a fault of ours)
    """An HTTP error in OpenAI's form.

    Parameters
    ----------
    status : int
        HTTP status.
    message : str
        What is wrong and what is allowed.
    code : str
        OpenAI's word for it, as in ``context_length_exceeded``.
    param : str, optional
        The offending field.
    """

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    def body(self) -> bytes:
        """Return the JSON text of the answer."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Common(msgspec.Struct, kw_only=True):
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: int | None = 1
    best_of: int | None = 1
    user: str | None = None


class _Completion(_Common):
    prompt: str | list[Any]
    echo: bool | None = False


class _Part(msgspec.Struct):
    type: str = "text"
    text: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _Chat(_Common):
    messages: list[_Message]


_COMPLETION = msgspec.json.Decoder(_Completion)
_CHAT = msgspec.json.Decoder(_Chat)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request, checked.

    Attributes
    ----------
    chat : bool
        Whether the answer has the form of a chat completion.
    model : str or None
        The model that was asked for.
    content : list of int or bytes
        The prompt: token ids, or text.
    prompt_tokens : int
        At least 1.
    max_tokens : int or None
        Most tokens of the answer; None when nothing was said.
    min_tokens : int
    ignore_eos : bool
        Whether the answer has exactly ``max_tokens``.
    stream, include_usage : bool
        Whether the answer comes token by token, and whether usage is reported at its end.
    user : str or None
        Who asks, in the client's words.
    """

    chat: bool
    model: str | None
    content: list[int] | bytes
    prompt_tokens: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    user: str | None


def read_request(body: bytes, *, chat: bool) -> Asked:
    """Read the body of a completion or chat completion request.

    Parameters
    ----------
    body : bytes
        JSON text.
    chat : bool
        Whether it was sent to ``/v1/chat/completions``.

    Raises
    ------
    Refusal
        With status 400, when the body is not JSON or asks for what is not there.
    """
    try:
        found: _Chat | _Completion = _CHAT.decode(body) if chat else _COMPLETION.decode(body)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        raise Refusal(400, f"{message}.", "invalid_type", place.strip(".`") or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"The body is not JSON: {error}.", "invalid_json") from None
    for name in ("n", "best_of"):
        if getattr(found, name) not in (1, None):
            raise Refusal(400, f"{name} must be 1: one answer per request.", "unsupported_value", name)
    if getattr(found, "echo", False):
        raise Refusal(400, "echo must be false: prompts are not repeated.", "unsupported_value", "echo")
    max_tokens = found.max_tokens if found.max_completion_tokens is None else found.max_completion_tokens
    if max_tokens is not None and max_tokens < 1:
        raise Refusal(400, f"max_tokens must be at least 1, not {max_tokens}.", "invalid_value", "max_tokens")
    if found.min_tokens < 0 or (max_tokens is not None and found.min_tokens > max_tokens):
        raise Refusal(
            400, f"min_tokens must be from 0 to max_tokens, not {found.min_tokens}.", "invalid_value", "min_tokens"
        )
    content = _said(found.messages) if isinstance(found, _Chat) else _prompt(found.prompt)
    tokens = len(content) if isinstance(content, list) else -(-len(content) // BYTES_PER_TOKEN)
    if not tokens:
        field = "messages" if chat else "prompt"
        raise Refusal(400, f"{field} must hold at least one token.", "invalid_value", field)
    return Asked(
        chat=chat,
        model=found.model,
        content=content,
        prompt_tokens=tokens,
        max_tokens=max_tokens,
        min_tokens=found.min_tokens,
        ignore_eos=found.ignore_eos,
        stream=found.stream,
        include_usage=found.stream_options is not None and found.stream_options.include_usage,
        user=found.user,
    )


def _said(messages: list[_Message]) -> bytes:
    texts = []
    for message in messages:
        if isinstance(message.content, list):
            if any(part.type != "text" for part in message.content):
                raise Refusal(400, "Only text is understood in messages.", "unsupported_value", "messages")
            texts += [part.text for part in message.content]
        else:
            texts.append(message.content or "")
    return "".join(texts).encode()


def _prompt(prompt: str | list[Any]) -> list[int] | bytes:
    if isinstance(prompt, str):
        return prompt.encode()
    if len(prompt) == 1 and isinstance(prompt[0], str | list):
        return _prompt(prompt[0])
    if any(isinstance(item, str | list) for item in prompt):
        raise Refusal(400, "prompt must be one prompt: text or a list of token ids.", "unsupported_value", "prompt")
    if not all(type(token) is int and 0 <= token <= _MOST_TOKEN_ID for token in prompt):
        raise Refusal(400, f"Token ids are whole numbers from 0 to {_MOST_TOKEN_ID}.", "invalid_value", "prompt")
    return prompt


def prefix_blocks(content: list[int] | bytes, block_tokens: int) -> list[int]:
    """Return the identities of a prompt's full prefix blocks.

    Parameters
    ----------
    content : list of int or bytes
        Token ids or text.
    block_tokens : int
        Tokens of a block.

    Returns
    -------
    list of int
        Equal numbers mean equal content up to and including that block.
    """
    data, width = (array("l", content).tobytes(), array("l").itemsize) if isinstance(content, list) else (
        content, BYTES_PER_TOKEN
    )  # fmt: skip
    size = width * block_tokens
    digest = blake2b(digest_size=8)
    ids = []
    for start in range(0, len(data) - size + 1, size):
        digest.update(data[start : start + size])
        ids.append(int.from_bytes(digest.digest(), "little"))
    return ids
