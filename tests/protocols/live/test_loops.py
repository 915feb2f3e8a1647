"""Which event loop is used."""

from __future__ import annotations

import asyncio
import sys

import pytest

from wavetank.protocols.live.loops import fastest_loop


def test_uvloop_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    uvloop = pytest.importorskip("uvloop")
    loop = fastest_loop()
    assert isinstance(loop, uvloop.Loop)
    loop.close()
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = fastest_loop()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()
