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
    """

    def __init__(self, status: int, message: str, *, kind: str = "invalid_request_error", code: str = "") -> None:
        super().__init__(message)
        self.status, self.kind, self.code = status, kind, code


def error_body(status: int, message: str, kind: str, code: str | None) -> bytes:
    """Return the JSON of an OpenAI error object."""
    error = {"message": message, "type": kind, "param": None, "code": code or str(status)}
    return json.dumps({"error": error}).encode()
