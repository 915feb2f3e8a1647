from __future__ import annotations

import pickle

import pytest

from wavetank import errors
from wavetank.errors import BadValueError, WavetankError, missing_extra, nearest_of, unknown_name
from wavetank.extras import install_command

LEAVES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WavetankError)]


def test_a_message_has_its_five_parts_in_reading_order() -> None:
    error = BadValueError(
        "The value is wrong.", given=3, allowed=("1", "2"), nearest="2", where="study x, y", hint="wavetank show x"
    )
    assert str(error) == (
        "The value is wrong.\n  given: 3\n  allowed: 1, 2\n  nearest: 2\n  where: study x, y\n  next: wavetank show x"
    )


def test_a_message_leaves_out_what_it_does_not_know() -> None:
    assert str(WavetankError("It is wrong.")) == "It is wrong."


def test_what_was_given_is_cut_when_it_would_hide_the_rest() -> None:
    shown = dict(WavetankError("x", given="a" * 5_000_000, hint="look at the file").lines())
    assert shown["given"] == "a" * 300 + "... (5,000,000 characters in all)"
    assert shown["next"] == "look at the file"
    assert dict(WavetankError("x", given="a" * 300).lines())["given"] == "a" * 300


def test_a_given_text_is_shown_as_typed_and_a_given_value_as_python_writes_it() -> None:
    assert WavetankError("x", given="a b").lines()[1] == ("given", "a b")
    assert WavetankError("x", given=["a"]).lines()[1] == ("given", "['a']")
    assert WavetankError("x", given=0).lines()[1] == ("given", "0")


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_errors_cross_process_borders_whole(kind: type[WavetankError]) -> None:
    error = kind("p", given=1, allowed=["a"], nearest="a", where="w", hint="h")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert copy.lines() == error.lines()
    assert copy.exit_code == 3


def test_the_nearest_name_ignores_case_and_keeps_its_own() -> None:
    assert nearest_of("LLM-rooting", ["llm-Routing", "sort"]) == "llm-Routing"


def test_nothing_is_near_a_name_that_resembles_none() -> None:
    assert nearest_of("zzz", ["llm-routing", "sort"]) is None
    assert nearest_of("zzz", []) is None


def test_a_long_list_of_names_is_cut_with_its_length() -> None:
    names = [f"n{number:02}" for number in range(30)]
    error = unknown_name("system", "n3", names)
    assert error.allowed == (*names[:24], "... (30 in all)")


def test_a_missing_library_comes_with_the_command_that_installs_it() -> None:
    assert str(missing_extra("ray", "ray", needed_for="--on ray://")) == (
        f"--on ray:// needs the library 'ray', which is not installed.\n  next: {install_command('ray')}"
    )
