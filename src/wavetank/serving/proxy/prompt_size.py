"""How long a prompt is, and which prefix blocks it has, from the body of a request.

A router has no tokeniser: tokens are estimated from the bytes of the prompt's text, with a ratio that is learned from
the prompt lengths that servers report.  Prefix blocks are chained hashes of equal pieces of the text, so that equal
blocks mean equal text up to and including them.

Source: the OpenAI API's requests (``messages``, ``prompt``) and replies (``usage``); chained block hashes as in Qin et
al., "Mooncake", FAST 2025.

Differs from the source:

1. Blocks are pieces of text of ``block_tokens * bytes_per_token`` bytes, not of tokens, unless the request carries
   token ids.
2. Hashes are keyed, so that a recording does not let anybody test guesses of a prompt.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import msgspec

from wavetank.serving.proxy.asking import FIELDS, NOTHING_GIVEN, Given, read_given

# Beyond it a prompt's further blocks are not distinguished: hashing must stay cheap beside sending.
MOST_BLOCKS = 4096


class BodyError(Exception):
    """A request body that is no JSON object."""


_ABSENT = msgspec.Raw()
_values_of = attrgetter(*FIELDS)


class _Part(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    role: str = ""
    content: str | list[_Part] | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    messages: list[_Message] | None = None
    prompt: str | list[Any] | None = None
    # Undecoded: a backend refuses what is wrong with them.
    max_tokens: msgspec.Raw = _ABSENT
    max_completion_tokens: msgspec.Raw = _ABSENT
    max_output_tokens: msgspec.Raw = _ABSENT
    session_id: msgspec.Raw = _ABSENT
    user: msgspec.Raw = _ABSENT
    prompt_cache_key: msgspec.Raw = _ABSENT
    priority: msgspec.Raw = _ABSENT

    def given(self) -> Given:
        """Return what is asked for beside the prompt."""
        found = zip(FIELDS, _values_of(self), strict=True)
        return read_given({name: raw for name, raw in found if raw is not _ABSENT})


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    # In the words of responses and messages.
    input_tokens: int | None = None
    output_tokens: int | None = None
    # Embeddings report no other.
    total_tokens: int | None = None

    def counts(self) -> tuple[int, int] | None:
        prompt = self.input_tokens if self.prompt_tokens is None else self.prompt_tokens
        output = self.output_tokens if self.completion_tokens is None else self.completion_tokens
        if output is None and None not in (prompt, self.total_tokens):
            output = self.total_tokens - prompt  # type: ignore[operator]
        if output is None or not (0 <= output < 2**31) or (prompt is not None and not 0 < prompt < 2**31):
            return None
        return prompt or 0, output


class _Reply(msgspec.Struct):
    usage: _Usage | None = None


_body = msgspec.json.Decoder(_Body)
_object = msgspec.json.Decoder(dict[str, Any])
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_reply = msgspec.json.Decoder(_Reply)
_parser = json.JSONDecoder()
# What of an answer's end is kept: its usage stands in it.
TAIL_BYTES = 16_384


class Prompt:
    """What a router needs to know of a request's body.

    Attributes
    ----------
    model : str or None
    stream : bool
    chat : bool
        Whether it is given in messages.
    text_bytes : int
        UTF-8 bytes of the prompt's text; 0 where it is given in token ids.
    token_ids : int
        Number of token ids, where the prompt is given in them; else 0.
    given : Given
        What is asked for beside the prompt.
    """

    __slots__ = ("_parts", "chat", "given", "model", "stream", "text_bytes", "token_ids")

    def __init__(
        self,
        model: str | None,
        stream: bool,
        parts: list[str] | list[int],
        size: int,
        *,
        ids: bool = False,
        chat: bool = False,
        given: Given = NOTHING_GIVEN,
    ) -> None:
        self.model = model
        self.given = given
        self.chat = chat
        self.stream = stream
        self._parts = parts
        self.text_bytes = 0 if ids else size
        self.token_ids = size if ids else 0

    def blocks(self, block_tokens: int, bytes_per_token: float, key: bytes) -> list[int]:
        """Return the chained hashes of the prompt's blocks, the last one possibly of a part of a block.

        Parameters
        ----------
        block_tokens : int
        bytes_per_token : float
            Of the text; a block has ``block_tokens * bytes_per_token`` bytes.
        key : bytes
            At most 64.

        Returns
        -------
        list of int
            From 0 to 2**63 - 1; the first 4,096 blocks.
        """
        if self.token_ids:
            data = array("q", self._parts).tobytes()
            step = 8 * block_tokens
        else:
            data = "\0".join(self._parts).encode("utf-8", "surrogatepass")  # type: ignore[arg-type]
            step = max(int(block_tokens * bytes_per_token), 1)
        digest = blake2b((self.model or "").encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest()
        found = []
        for start in range(0, min(len(data), MOST_BLOCKS * step), step):
            digest = blake2b(digest + data[start : start + step], digest_size=8, key=key).digest()
            found.append(int.from_bytes(digest, "little") >> 1)
        return found

    def forget_text(self) -> None:
        """Let go of the text; nothing but its size is needed any more."""
        self._parts = []


def read_prompt(body: bytes) -> Prompt:
    """Read a request's body.

    Raises
    ------
    BodyError
        If it is no JSON object.  Fields of another shape than expected are left to the backend to refuse; the size
        is then that of the whole body.
    """
    try:
        found = _body.decode(body)
    except msgspec.ValidationError:
        return _unusual(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BodyError(f"The body is not valid JSON: {_reason(error)}") from None
    if found.messages is not None:
        parts: list[str] = []
        for message in found.messages:
            parts.append(message.role)
            if isinstance(message.content, str):
                parts.append(message.content)
            elif message.content is not None:
                parts.extend(part.text for part in message.content)
    elif isinstance(found.prompt, str):
        parts = [found.prompt]
    elif found.prompt:
        flat = found.prompt
        if isinstance(flat[0], list):
            if not all(isinstance(row, list) for row in flat):
                return _unusual(body)
            flat = [each for row in flat for each in row]
        if all(type(each) is int and -(2**63) <= each < 2**63 for each in flat):
            return Prompt(found.model, bool(found.stream), flat, len(flat), ids=True, given=found.given())
        if not all(isinstance(each, str) for each in flat):
            return _unusual(body)
        parts = flat
    else:
        parts = []
    chat = found.messages is not None
    return Prompt(found.model, bool(found.stream), parts, _bytes_of(parts), chat=chat, given=found.given())


def _unusual(body: bytes) -> Prompt:
    """Read what can be read of an object whose fields have unexpected shapes."""
    try:
        found = _object.decode(body)
    except msgspec.ValidationError:
        raise BodyError("The body is not a JSON object.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BodyError(f"The body is not valid JSON: {_reason(error)}") from None
    model = found.get("model")
    text = body.decode("utf-8", "replace")
    given = read_given(_fields.decode(body))
    named = model if isinstance(model, str) else None
    return Prompt(named, found.get("stream") is True, [text], len(body), given=given)


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _bytes_of(parts: list[str]) -> int:
    return sum(len(part) if part.isascii() else len(part.encode("utf-8", "surrogatepass")) for part in parts)


def read_usage(reply: bytes) -> tuple[int, int] | None:
    """Return (prompt tokens, generated tokens) that a reply reports; None where it reports none, or nonsense.

    The first is 0 where the reply speaks of generated tokens alone.
    """
    try:
        usage = _reply.decode(reply).usage
    except (msgspec.DecodeError, RecursionError):
        return None
    return None if usage is None else usage.counts()


def read_last_usage(tail: bytes) -> tuple[int, int] | None:
    """Return the last usage that the end of an answer reports, as :func:`read_usage` does; None where it reports none.

    Parameters
    ----------
    tail : bytes
        The end of an event stream, or of a long reply; may begin anywhere.
    """
    # Within a text the quotes of the name would be escaped.
    text = tail.decode("utf-8", "replace")
    at = text.rfind('"usage"')
    while at >= 0:
        begin = text.find("{", at + 7, at + 20)
        if begin >= 0 and not text[at + 7 : begin].strip(" \t\r\n:"):
            try:
                found = msgspec.convert(_parser.raw_decode(text, begin)[0], _Usage).counts()
            except (ValueError, RecursionError):
                found = None
            if found is not None:
                return found
        at = text.rfind('"usage"', 0, at)
    return None


class Tail:
    """The last bytes of an answer, whatever pieces it comes in.

    Parameters
    ----------
    most : int
        How many.
    """

    __slots__ = ("_most", "_pieces", "_size")

    def __init__(self, most: int) -> None:
        self._pieces: deque[bytes] = deque()
        self._size, self._most = 0, most

    def add(self, piece: bytes) -> None:
        """Take the next piece."""
        pieces = self._pieces
        pieces.append(piece)
        self._size += len(piece)
        while self._size - len(pieces[0]) >= self._most:
            self._size -= len(pieces.popleft())

    def joined(self) -> bytes:
        """Return them in one."""
        return b"".join(self._pieces)[-self._most :]


class BytesPerToken:
    """Bytes of text per token, learned from what servers report.

    Parameters
    ----------
    start : float
        Before anything is known; counts as much as ``start_tokens`` reported tokens.
    start_tokens : float
    keep : float
        What an earlier reply still counts after a later one.
    """

    def __init__(self, start: float = 4.0, *, start_tokens: float = 1000.0, keep: float = 0.999) -> None:
        self._bytes, self._tokens, self._keep = start * start_tokens, start_tokens, keep

    @property
    def ratio(self) -> float:
        """Bytes per token."""
        return self._bytes / self._tokens

    def tokens(self, text_bytes: int) -> int:
        """Return the estimated tokens of a text, at least 1."""
        return max(round(text_bytes * self._tokens / self._bytes), 1)

    def learn(self, text_bytes: int, tokens: int) -> None:
        """Take in a reported length; one that no tokeniser can give is left out."""
        if tokens > 0 and 0.2 <= text_bytes / tokens <= 50.0:
            self._bytes = self._bytes * self._keep + text_bytes
            self._tokens = self._tokens * self._keep + tokens
