"""What the router itself answers: errors in OpenAI's form."""

from __future__ import annotations

import json


class RequestError(Exception):
    """A request that the router itself answers.

    Attributes
    ----------
    status : int
    kind, code : str
        ``type`` and ``code`` of the OpenAI error object.
    retry_after_s : int
        When the client may ask again, where that makes sense.
    allow : str
        The method that is allowed, where another one was used.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str = "",
        retry_after_s: int = 1,
        allow: str = "",
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.code = status, kind, code
        self.retry_after_s, self.allow = retry_after_s, allow


def error_body(status: int, message: str, kind: str, code: str | None, says: str = "openai") -> bytes:
    """Return the JSON of an OpenAI error object.

    Parameters
    ----------
    status : int
    message, kind : str
    code : str or None
        By default the status.
    says : str
        ``messages`` for the object around it that Anthropic's clients expect.
    """
    error = {"message": message, "type": kind, "param": None, "code": code or str(status)}
    return json.dumps({"type": "error", "error": error} if says == "messages" else {"error": error}).encode()


def error_event(says: str, status: int, message: str, kind: str, code: str) -> bytes:
    """Return an event that ends a stream with an error, in the form that clients of an endpoint understand.

    Parameters
    ----------
    says : str
        ``openai``, ``messages`` or ``responses``.
    status : int
    message, kind, code : str
    """
    if says == "responses":
        data = json.dumps({"type": "error", "code": code, "message": message, "param": None}).encode()
    else:
        data = error_body(status, message, kind, code, says)
    return (b"" if says == "openai" else b"event: error\n") + b"data: " + data + b"\n\n"
