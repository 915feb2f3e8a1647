"""Errors in OpenAI's form."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("aiohttp")

from wavetank.serving.proxy.refusals import RequestError, error_body


def test_an_error_has_openais_four_fields_whatever_its_text_holds() -> None:
    found = json.loads(error_body(404, 'no "m"\r\n\0', "invalid_request_error", None))
    assert found == {
        "error": {"message": 'no "m"\r\n\0', "type": "invalid_request_error", "param": None, "code": "404"}
    }
    assert json.loads(error_body(429, "", "rate_limit_error", "pool_full"))["error"]["code"] == "pool_full"


def test_an_error_carries_what_its_answer_needs() -> None:
    error = RequestError(503, "No backend.", kind="server_error", code="no_backend")
    assert (error.status, error.kind, error.code, str(error)) == (503, "server_error", "no_backend", "No backend.")
