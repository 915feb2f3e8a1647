"""Streams ask anew when they are answered, and what they get together is counted."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="streams ask over HTTP")

from wavetank.errors import WavetankError
from wavetank.serving.engines import study_batching as module
from wavetank.serving.engines.servers import LlamaCpp
from wavetank.serving.engines.study_batching import EngineBatching

needs_llamacpp = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("xllamacpp", "gguf")),
    reason="llama.cpp's server needs xllamacpp and gguf (the extra engines)",
)


class Counted:
    """Probes that take a second each, on a clock of their own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.most = self.at_once = self.sent = 0

    def prompt(self, tokens: int) -> list[int]:
        return [1] * tokens

    async def together(self, prompts: Any, tokens: int) -> None:
        self.sent += len(prompts)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        # Those at once share the second.
        self.now += 1.0 / self.most

    async def ended(self, tasks: Any) -> Any:
        return await asyncio.gather(*tasks)


def test_as_many_streams_ask_at_once_and_each_as_often_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    study = EngineBatching(streams=5, rounds=3, output_tokens=10)
    for streams in (1, 5):
        counted = Counted()
        monkeypatch.setattr(module.time, "monotonic", lambda counted=counted: counted.now)
        rate = asyncio.run(study._tokens_per_s(counted, streams))
        monkeypatch.undo()
        assert (counted.most, counted.sent) == (streams, streams * 3)
        assert rate == pytest.approx(streams * 3 * 10 / counted.now)


def test_every_engine_is_the_first_of_some_seed() -> None:
    trials = EngineBatching().trials(["a", "b"], [0, 1])
    assert [(trial.systems, trial.seed) for trial in trials] == [(("a",), 0), (("b",), 0), (("b",), 1), (("a",), 1)]


@needs_llamacpp
def test_a_real_engine_is_asked_and_answers() -> None:
    found = EngineBatching(streams=4, rounds=1, output_tokens=8, layers=1).measure(LlamaCpp(), 0)
    values = {metric: value for metric, value, _ in found.rows}
    assert set(values) == {"one_tokens_per_s", "many_tokens_per_s", "gain"}
    assert values["gain"] == values["many_tokens_per_s"] / values["one_tokens_per_s"] > 0


def test_an_engine_that_does_not_start_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    from wavetank.serving.engines import servers

    monkeypatch.setattr(servers.LlamaCpp, "command", lambda self, port, folder: servers.Command(["/nowhere/engine"]))
    with pytest.raises(WavetankError, match="no such program"):
        EngineBatching().measure(LlamaCpp(), 0)
