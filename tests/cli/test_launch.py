"""``wavetank launch``: the group, and what it imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from wavetank.ledger import catalog

LAUNCHES = list(catalog.commands("launch"))


def test_alone_it_tells_what_can_be_launched(call: Callable[..., Any]) -> None:
    told = call("launch")
    assert told.code == 0
    assert told.out == call("launch", "--help").out
    assert all(f"\n  {name} " in told.out for name in LAUNCHES)


@pytest.mark.parametrize("name", LAUNCHES)
def test_everything_has_help_that_fits_80_columns(call: Callable[..., Any], name: str) -> None:
    told = call("launch", name, "--help")
    assert told.code == 0
    assert told.out.startswith(f"Usage: wavetank launch {name}")
    assert max(map(len, told.out.splitlines())) <= 80
    assert "--trace " not in told.out


def test_a_wrong_name_is_told_with_the_nearest(call: Callable[..., Any]) -> None:
    told = call("launch", "ruoter")
    assert told.code == 3
    assert "There is no command named 'ruoter'." in told.err
    assert "\n  nearest: router\n" in told.err


def test_the_groups_help_imports_none_of_them() -> None:
    code = "from wavetank.cli import run; run(['launch']); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert not [name for name in modules if name.startswith(("wavetank.serving", "wavetank.protocols"))]
