"""The verb that holds nothing in this version: diagnose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

ARGUMENTS = {
    "diagnose": ["job.darshan", "-v", "--deep"],
}


@pytest.mark.parametrize("verb", ARGUMENTS)
def test_a_verb_without_content_says_what_is_coming_and_what_can_be_done(call: Callable[..., Any], verb: str) -> None:
    for arguments in ([], ARGUMENTS[verb]):
        told = call(verb, *arguments)
        assert (told.code, told.out) == (3, "")
        first = " ".join(told.err.split("\n  next:")[0].split())
        assert first.startswith(f"`wavetank {verb}` is not available in this version.")
        assert "planned" in first
        assert "Today `wavetank " in first
        assert "\n  next: wavetank " in told.err


@pytest.mark.parametrize("verb", ARGUMENTS)
def test_it_still_has_help(call: Callable[..., Any], verb: str) -> None:
    told = call(verb, "--help")
    assert told.code == 0
    assert "Not available yet." in " ".join(told.out.split())
