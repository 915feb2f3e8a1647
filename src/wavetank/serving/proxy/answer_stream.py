"""A streamed answer as a client reads it: events of OpenAI's form, their tokens, their times and their end.

It has ended well when the mark ``[DONE]`` came, or, since some servers send none, when an event gave the reason why it
ended and the body was whole.

Source: the OpenAI API reference (streaming of completions and chat completions).
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from wavetank.serving.proxy.engine import token_text

_MOST_LINE_BYTES = 1 << 20
_DONE = b"[DONE]"


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """What an answer cost, as the server says."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    id: str = ""
    choices: list[_Choice] = []
    usage: Usage | None = None
    system_fingerprint: str | None = None
    error: Any = None


_EVENT = msgspec.json.Decoder(_Event)


class BadAnswer(Exception):  # noqa: N818  (an outcome)
    """What is wrong with an answer.

    Attributes
    ----------
    failure : str
        The kind.
    detail : str
    """

    def __init__(self, failure: str, detail: str = "") -> None:
        super().__init__(failure)
        self.failure, self.detail = failure, detail


class AnswerStream:
    """Reads one streamed answer, piece by piece.

    Parameters
    ----------
    request_id : str
    check : bool
        Whether tokens must be those of a stand-in engine.

    Attributes
    ----------
    tokens : int
        Events with text so far.
    times_s : list of float
        When each came.
    worker : str
        Who answers (``system_fingerprint``).
    usage : Usage, optional
    ended : bool
        Whether the mark of the end came.
    reason : str
        Why the answer ended, as the server says; empty before.
    """

    def __init__(self, request_id: str, check: bool = False) -> None:
        self.request_id = request_id
        self.check = check
        self.tokens = 0
        self.times_s: list[float] = []
        self.worker = ""
        self.usage: Usage | None = None
        self.ended = False
        self.reason = ""
        self._rest = b""

    @property
    def first_s(self) -> float:
        """When the first token came; NaN before."""
        return self.times_s[0] if self.times_s else math.nan

    @property
    def last_s(self) -> float:
        """When the last token came so far; NaN before the first."""
        return self.times_s[-1] if self.times_s else math.nan

    def feed(self, data: bytes, now_s: float) -> None:
        """Take what came, with the time when it came.

        Parameters
        ----------
        data : bytes
        now_s : float
            On a monotonic clock.

        Raises
        ------
        BadAnswer
            If it is no event of OpenAI's form, reports an error, or has a token that cannot be.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _MOST_LINE_BYTES:
            raise BadAnswer("malformed", f"a line of more than {_MOST_LINE_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)

    def close(self, now_s: float) -> None:
        """Take in the end of the body: its last line need not have an end."""
        self.feed(b"\n", now_s)

    def _event(self, data: bytes, now_s: float) -> None:
        if data == _DONE:
            self.ended = True
            return
        try:
            event = _EVENT.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadAnswer("malformed", str(error)) from None
        if event.error is not None:
            raise BadAnswer("error event", str(event.error)[:200])
        if event.usage is not None:
            self.usage = event.usage
        if event.system_fingerprint:
            self.worker = event.system_fingerprint
        if self.check and not event.id.endswith(self.request_id):
            raise BadAnswer("wrong answer", f"part of {event.id} in the answer to {self.request_id}")
        for choice in event.choices:
            text = choice.text if choice.delta is None else choice.delta.content
            if text:
                if self.check and (self.ended or text != token_text(self.tokens)):
                    raise BadAnswer("wrong answer", f"{text!r} in the place of {token_text(self.tokens)!r}")
                self.times_s.append(now_s)
                self.tokens += 1
            self.reason = choice.finish_reason or self.reason
