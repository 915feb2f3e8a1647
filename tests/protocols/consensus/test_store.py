from __future__ import annotations

from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.consensus.store import Registers, check_command


def test_registers_know_four_commands() -> None:
    registers = Registers()
    commands = [
        ("read", "x"),
        ("write", "x", 1),
        ("cas", "x", (2, 3)),
        ("cas", "x", (1, 3)),
        ("read", "x"),
        ("append", "y", 1),
        ("append", "y", 2),
        ("read", "y"),
    ]
    for command in commands:
        check_command(command)
    results = [registers.apply(number, command) for number, command in enumerate(commands)]
    assert results == [None, None, False, True, 3, None, None, (1, 2)]


def test_a_request_takes_effect_once_and_gives_the_same_again() -> None:
    registers = Registers()
    assert registers.apply(1, ("cas", "x", (None, 5))) is True
    assert registers.apply(1, ("cas", "x", (None, 5))) is True
    registers.apply(2, ("append", "y", 1))
    registers.apply(2, ("append", "y", 1))
    assert registers.values == {"x": 5, "y": (1,)}


@pytest.mark.parametrize("before", [5, "text", 0.5, True])
def test_an_append_to_what_is_no_sequence_fails_and_changes_nothing(before: Any) -> None:
    registers = Registers()
    registers.apply(0, ("write", "x", before))
    assert registers.apply(1, ("append", "x", 1)) is False
    assert registers.apply(2, ("read", "x")) == before


@pytest.mark.parametrize(
    "command", [None, "read x", ("read",), ("read", "x", 1), ("erase", "x"), ("cas", "x", 1), ("read", 5)]
)
def test_other_commands_are_refused_and_harmless(command: Any) -> None:
    with pytest.raises(BadValueError):
        check_command(command)
    registers = Registers()
    assert registers.apply(0, command) is None
    assert registers.values == {}
