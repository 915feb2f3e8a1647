"""Study ``engine-batching``: what continuous batching gives on an engine that nobody here wrote.

One process of an engine, pinned to one core, answers one stream, then many at once; a stream asks anew as soon as its
answer has ended.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study

if TYPE_CHECKING:
    from wavetank.serving.engines.profile import Probes
    from wavetank.serving.engines.servers import Server


@dataclass(frozen=True, kw_only=True)
class EngineBatching(Study):
    """Every engine serves the same made model with one thread on one core; prompts share nothing."""

    name = "engine-batching"
    baseline = "transformers-sequential"
    primary = "many_tokens_per_s"
    secondary = ("one_tokens_per_s", "gain")
    default_seeds = 3
    in_process = True
    takes_turns = True
    metrics = (
        Metric("many_tokens_per_s", "tokens/s", "higher", "measured", "output tokens per second, all streams together",
               words="throughput of many streams"),
        Metric("one_tokens_per_s", "tokens/s", "higher", "measured", "output tokens per second of one stream",
               words="throughput of one stream"),
        Metric("gain", "", "higher", "measured", "throughput of all streams / throughput of one"),
    )  # fmt: skip
    charts = (
        Chart("bars", "Throughput of many streams", y="many_tokens_per_s", says="Longer is better."),
        Chart("bars", "Throughput of many streams over that of one", y="gain", says="1 is no batching."),
    )

    streams: int = setting(16, unit="requests", says="Streams at once", low=2, high=64)
    prompt_tokens: int = setting(64, unit="tokens", says="Length of every prompt", low=1, high=1024)
    output_tokens: int = setting(48, unit="tokens", says="Length of every answer", low=2, high=512)
    rounds: int = setting(3, says="Answers of every stream", low=1, high=1000)
    layers: int = setting(8, says="Layers of the model; 8 are 4.5 million parameters", low=1, high=64)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Figures of time belong to this machine and moment. The engine has one core; the client has the others, "
            "where there are any.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Start an engine and let streams ask it."""
        from wavetank.live.loops import fastest_loop
        from wavetank.live.processes import split_cores
        from wavetank.serving.engines.running import running

        server = dataclasses.replace(system, layers=self.layers)
        with (
            running(server, 1, cores=[split_cores()[0]]) as (engine,),
            asyncio.Runner(loop_factory=fastest_loop) as runner,
        ):
            return runner.run(self.asked(engine.url, server, seed))

    async def asked(self, url: str, server: Server, seed: int) -> Measurements:
        """Return what streams get of a running engine.

        Parameters
        ----------
        url : str
        server : Server
        seed : int
            Of the prompts.
        """
        import aiohttp

        from wavetank.serving.engines.profile import Probes

        # A connection for each request: engines end idle ones without a word.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120.0)) as session:
            probes = Probes(session, url, 1, server.as_text, seed)
            # What is done once is done before.
            await self._tokens_per_s(probes, 2)
            one = await self._tokens_per_s(probes, 1)
            many = await self._tokens_per_s(probes, self.streams)
        return Measurements({"one_tokens_per_s": one, "many_tokens_per_s": many, "gain": many / one})

    async def _tokens_per_s(self, probes: Probes, streams: int) -> float:
        """Return the tokens per second of streams that ask anew when they are answered."""

        async def one() -> None:
            for _ in range(self.rounds):
                await probes.together([probes.prompt(self.prompt_tokens)], self.output_tokens)

        began_s = time.monotonic()
        await probes.ended([asyncio.create_task(one()) for _ in range(streams)])
        return streams * self.rounds * self.output_tokens / (time.monotonic() - began_s)
