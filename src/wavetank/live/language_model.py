"""A port to language models: an endpoint that speaks OpenAI's chat completions, recorded answers, or a function.

A caller gets text that is not trusted, or :class:`NoAnswerError` in the time that was given.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.files import read_text

_LARGEST_BYTES = 1_000_000
KEY = "WAVETANK_LANGUAGE_MODEL_KEY"
"""Environment variable with the key that is sent to an endpoint."""


class NoAnswerError(WavetankError):
    """A language model did not answer in time, or not in the form that is agreed."""


class LanguageModel(Protocol):
    """Answers a question with text."""

    def ask(self, question: str) -> str:
        """Return the answer.

        Raises
        ------
        NoAnswerError
        """
        ...


class Endpoint:
    """A server with ``POST /chat/completions`` below its address.

    Parameters
    ----------
    address : str
        ``http`` or ``https``, as far as ``/v1``.
    model : str
    timeout_s : float
        Of every wait on the connection, and until the last piece of the answer.
    most_tokens : int
        Of an answer.
    """

    def __init__(self, address: str, model: str, *, timeout_s: float = 20.0, most_tokens: int = 400) -> None:
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or not model:
            raise BadValueError(
                "This is no address of a language model.", given=f"{address}#{model}",
                allowed="http://HOST:PORT/v1#MODEL", where="language model",
            )  # fmt: skip
        if not 0 < timeout_s <= 3600 or most_tokens < 1:
            raise BadValueError("Time or tokens are out of range.", given=(timeout_s, most_tokens))
        self.address, self.model = address.rstrip("/"), model
        self.timeout_s, self.most_tokens = timeout_s, most_tokens

    def ask(self, question: str) -> str:
        """See :class:`LanguageModel`."""
        body = {
            "model": self.model, "messages": [{"role": "user", "content": question}], "temperature": 0,
            "max_tokens": self.most_tokens,
        }  # fmt: skip
        headers = {"Content-Type": "application/json"}
        if os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {os.environ[KEY]}"
        request = urllib.request.Request(
            f"{self.address}/chat/completions", json.dumps(body).encode(), headers, method="POST"
        )
        opener = urllib.request.build_opener(_NoRedirect)
        until_s = time.monotonic() + self.timeout_s
        try:
            with opener.open(request, timeout=self.timeout_s) as answer:
                raw = b""
                # Piece by piece, so that a server that drips cannot hold the caller for ever.
                while len(raw) <= _LARGEST_BYTES and (piece := answer.read1(65_536)):
                    raw += piece
                    if time.monotonic() > until_s:
                        raise TimeoutError("the answer took too long")
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise NoAnswerError(f"The language model did not answer: {error}", where=self.address) from error
        if len(raw) > _LARGEST_BYTES:
            raise NoAnswerError("The answer is too long.", where=self.address)
        try:
            found: Any = json.loads(raw)
            text = found["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise NoAnswerError("The answer is no chat completion.", given=raw[:80], where=self.address) from error
        if not isinstance(text, str):
            raise NoAnswerError("The answer has no text.", given=raw[:80], where=self.address)
        return text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: a key must not go to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Recorded:
    """Answers of a file, one JSON string per line, in their order; then none."""

    def __init__(self, path: str) -> None:
        lines = read_text(Path(path).expanduser(), largest_bytes=_LARGEST_BYTES).splitlines()
        self._answers: list[str] = []
        for number, line in enumerate(lines, start=1):
            try:
                answer = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError) as error:
                raise BadFileError(f"This line is no JSON: {error}", where=f"{path}, line {number}") from error
            if answer is not None and not isinstance(answer, str):
                raise BadFileError("An answer is a JSON string.", given=line[:80], where=f"{path}, line {number}")
            if answer is not None:
                self._answers.append(answer)
        self._next = 0

    def ask(self, question: str) -> str:
        """See :class:`LanguageModel`.

        Parameters
        ----------
        question : str
            Not compared with the one that was recorded.
        """
        if self._next == len(self._answers):
            raise NoAnswerError("There are no more recorded answers.", given=self._next)
        self._next += 1
        return self._answers[self._next - 1]


class Function:
    """A function in the place of a language model.

    Parameters
    ----------
    answer : callable
        From a question to an answer.
    """

    def __init__(self, answer: Callable[[str], str]) -> None:
        self._answer = answer

    def ask(self, question: str) -> str:
        """See :class:`LanguageModel`."""
        return self._answer(question)


def opened(where: str) -> LanguageModel:
    """Return the language model that a setting names.

    Parameters
    ----------
    where : str
        ``http://HOST:PORT/v1#MODEL``, https likewise, or ``recorded:FILE``.

    Raises
    ------
    BadValueError
        If it is neither.
    BadFileError
        If the file cannot be read.
    """
    if where.startswith("recorded:"):
        return Recorded(where.removeprefix("recorded:"))
    address, _, model = where.partition("#")
    return Endpoint(address, model)
