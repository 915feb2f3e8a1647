"""The step times of a running engine, measured from outside: short probes over its OpenAI interface.

An engine that batches continuously sends the tokens of a step when the step ends.  So the tokens of answers that run
together show its steps:

1. ``n`` prompts of a length at once; while all of them generate, the mean gap between tokens is a step that decodes
   ``n`` sequences.
2. Some prompts, one after the other, beside sequences that generate: what the sequences need longer for their tokens is
   what the prompts cost the engine, reading them and answering them included.  Without such company, a step that
   computes a prompt takes what an empty step does as well: the first figure, drawn out to no sequence.
3. One prompt on an idle engine: what its first token takes beyond the second figure is no work of the engine:
   connections, the router, the client, and waking up.

From these comes a table of step times (:meth:`wavetank.platforms.table_step_time.TableStepTime.from_probes`).  No probe
is a request of the trace that is to be predicted, and nothing of that run goes into the table.

Probes are sent through a router that takes engines in turn, as many to every engine at the same time.  On a machine
whose cores the engines share with the router and the client, a step is then as slowed by them as in a run of that load.

Source: J. H. Kim et al., "Dooly: Configuration-Agnostic, Redundancy-Aware Profiling for LLM Inference Simulation",
arXiv 2605.07985, May 2026: request dimensions are swept over batch, context and prompt chunk, then a simulator is given
the times.

Differs from the source:

1. Whole steps are measured, not operations: an engine of others is not opened.
2. Times are read from the arrival of tokens; medians over repetitions.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from wavetank.errors import WavetankError, missing_extra
from wavetank.platforms.table_step_time import TableStepTime
from wavetank.serving.engines.tiny_llama import FIRST_WORD, MODEL, vocabulary
from wavetank.serving.proxy.answer_stream import AnswerStream, BadAnswer
from wavetank.serving.proxy.replay import as_text
from wavetank.sim.rng import stream

try:
    import aiohttp
except ImportError as error:
    raise missing_extra(str(error.name), "serving", needed_for="measuring an engine") from None

_T = TypeVar("_T")
# Tokens that every sequence generates while all of them do.
_TOGETHER = 20
_ANSWER_S = 60.0
# Prompts in a row whose cost is measured together, and most tokens that are generated beside them.
_PROMPTS, _MOST_TOKENS = 4, 1000
# Until an engine has noticed that clients left, s.
_SETTLE_S = 0.05
# A prompt costs something, whatever noise says.
_LEAST_S = 1e-5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is probed.

    Attributes
    ----------
    sequences : sequence of int
        That decode together, rising from 1.
    contexts : sequence of int
        Prompt lengths of these, in tokens.
    chunks : sequence of int
        Prompt lengths of the prompts alone, in tokens; none longer than a step.
    before_tokens : int
        Context in front of a chunk: cached where ``cached``, else the whole first step of a longer prompt.
    cached : bool
        Whether the engine keeps prefixes and says so.
    batch_tokens : int
        Most tokens of a step.
    beside : int
        Sequences that decode while prompts are measured, one of ``sequences``.
    repeats : int
        Of every probe.
    """

    sequences: Sequence[int]
    contexts: Sequence[int]
    chunks: Sequence[int]
    before_tokens: int
    cached: bool
    batch_tokens: int
    beside: int
    repeats: int = 3


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What probes found.

    Attributes
    ----------
    step_time : TableStepTime
    request_s : float
        What a request takes beside its steps: connections, the router, the client.
    decode_s, prefill_s : dict
        As :meth:`TableStepTime.from_probes` takes them; both share the time of an empty step.
    probes : int
        Requests that were sent.
    took_s : float
    """

    step_time: TableStepTime
    request_s: float
    decode_s: dict[tuple[int, int], float]
    prefill_s: dict[tuple[int, int], float]
    probes: int
    took_s: float


class Probes:
    """Sends probes to all engines at once and keeps the times of their tokens."""

    def __init__(self, session: aiohttp.ClientSession, url: str, engines: int, text: bool, seed: int) -> None:
        self._session, self._url, self.engines, self._text = session, url.rstrip("/"), engines, text
        self._rng = stream(seed, "probes")
        self.sent = 0
        # The longest wait for a first token so far.
        self.longest_s = 0.0

    def now_s(self) -> float:
        """Return the time on a monotonic clock."""
        return time.monotonic()

    def prompt(self, tokens: int) -> list[int]:
        """Return a prompt that nothing was sent of before."""
        return [int(each) for each in self._rng.integers(FIRST_WORD, len(vocabulary()), tokens)]

    def start(self, prompt: Sequence[int], tokens: int) -> tuple[asyncio.Task[float], AnswerStream]:
        """Send a request; returns what ends with it, with the time when it was sent, and its answer so far."""
        self.sent += 1
        answer = AnswerStream(f"probe-{self.sent}")
        return asyncio.create_task(self._send(prompt, tokens, answer)), answer

    async def together(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[tuple[float, AnswerStream]]:
        """Send requests at once; returns when each was sent, and its answer."""
        begun = []
        for prompt in prompts:
            begun.append(self.start(prompt, tokens))
            # In this order at the router, which takes the engines in turn.
            await asyncio.sleep(0)
        times = await self.ended([task for task, _ in begun])
        for sent_s, (_, answer) in zip(times, begun, strict=True):
            self.longest_s = max(self.longest_s, answer.first_s - sent_s)
        return [(sent_s, answer) for sent_s, (_, answer) in zip(times, begun, strict=True)]

    async def ended(self, tasks: Sequence[asyncio.Task[_T]]) -> list[_T]:
        """Wait for requests; none goes on where one fails or the wait is cancelled."""
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, prompt: Sequence[int], tokens: int, answer: AnswerStream) -> float:
        said: dict[str, object] = {"prompt": list(prompt)}
        if self._text:
            said = {"messages": [{"role": "user", "content": as_text(np.array(prompt, np.int64))}]}
        body = {"model": MODEL, **said, "max_tokens": tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        path = "/v1/chat/completions" if self._text else "/v1/completions"
        sent_s = self.now_s()
        try:
            async with self._session.post(
                self._url + path, data=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
            ) as response:
                if response.status != 200:
                    text = await response.content.read(300)
                    raise BadAnswer(f"HTTP {response.status}", text.decode(errors="replace"))
                async for data in response.content.iter_any():
                    answer.feed(data, self.now_s())
                answer.close(self.now_s())
        except BadAnswer as bad:
            raise WavetankError("A probe of an engine failed.", given=f"{bad.failure} {bad.detail}".strip()) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise WavetankError("A probe of an engine failed.", given=str(error) or type(error).__name__) from error
        if answer.tokens != tokens:
            raise WavetankError(
                "A probe of an engine got another number of tokens than it asked for.",
                given=f"{answer.tokens} tokens, {answer.reason or 'no reason given'}",
                allowed=f"{tokens}, one per event",
            )
        return sent_s


async def measure(url: str, plan: Plan, *, engines: int, text: bool, name: str, seed: int = 0) -> Profile:
    """Measure equal engines behind a router that takes them in turn.

    Parameters
    ----------
    url : str
        Of the router; nobody else sends requests to it.
    plan : Plan
    engines : int
        How many there are.
    text : bool
        Whether they take text alone.
    name : str
        Of the engine, for people.
    seed : int
        Of the prompts.

    Raises
    ------
    WavetankError
        If a probe fails, or comes back shorter than asked, or the engine does not keep prefixes as the plan says.
    """
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        return await probed(Probes(session, url, engines, text, seed), plan, name)


async def probed(probes: Probes, plan: Plan, name: str) -> Profile:
    """Carry out a plan.

    Parameters
    ----------
    probes : Probes
    plan : Plan
    name : str
        Of the engine, for people.
    """
    began_s = probes.now_s()
    # Connections, caches of the processor: the first requests are slower.
    await probes.together([probes.prompt(32) for _ in range(2 * probes.engines)], 4)
    decode_s = {}
    for context in plan.contexts:
        tokens = _TOGETHER + -(-max(plan.sequences) * context // plan.batch_tokens)
        for sequences in plan.sequences:
            found = [await _decoding(probes, sequences, context, tokens) for _ in range(plan.repeats)]
            decode_s[sequences, context + tokens // 2] = statistics.median(found)
    empty_s = _empty(decode_s)
    prefill_s = {key: empty_s + cost_s for key, cost_s in (await _prompts(probes, plan, decode_s)).items()}
    waits = []
    for chunk in plan.chunks:
        alone = [await _first_token(probes, chunk) for _ in range(2 * plan.repeats)]
        waits.append(statistics.median(alone) - prefill_s[chunk, 0])
    return Profile(
        step_time=TableStepTime.from_probes(name, decode_s=decode_s, prefill_s=prefill_s, shared_s=empty_s),
        request_s=max(statistics.median(waits), 0.0),
        decode_s=decode_s,
        prefill_s=prefill_s,
        probes=probes.sent,
        took_s=probes.now_s() - began_s,
    )


def _empty(decode_s: dict[tuple[int, int], float]) -> float:
    """Return what a step takes that does nothing, s: the line through the least numbers of sequences, at none."""
    context = min(context for _, context in decode_s)
    (one, one_s), (more, more_s), *_ = sorted((n, s) for (n, each), s in decode_s.items() if each == context)
    return max(one_s - one * (more_s - one_s) / (more - one), 0.0)


async def _decoding(probes: Probes, sequences: int, context: int, tokens: int) -> float:
    """Return the mean time of a step that decodes that number of sequences on each engine, s."""
    for more in (1, 2, 4):
        prompts = [probes.prompt(context) for _ in range(sequences * probes.engines)]
        answers = [answer for _, answer in await probes.together(prompts, tokens * more)]
        # Engines are taken in turn.
        of_engines = [_while_all(answers[number :: probes.engines]) for number in range(probes.engines)]
        known = [step_s for step_s in of_engines if step_s is not None]
        if known:
            return statistics.mean(known)
    raise WavetankError(
        "The sequences of a probe did not generate at the same time.",
        given=f"{sequences} sequences of {context} tokens on each engine",
        hint="the engine may run fewer at once than it was taken to, or the machine is too busy",
    )


def _while_all(answers: Sequence[AnswerStream]) -> float | None:
    """Return the mean gap between tokens while all answers of an engine get some; None where that is too short."""
    from_s, until_s = max(answer.first_s for answer in answers), min(answer.last_s for answer in answers)
    steps = []
    for answer in answers:
        inside = [at_s for at_s in answer.times_s if from_s <= at_s <= until_s]
        if len(inside) >= 3:
            steps.append((inside[-1] - inside[0]) / (len(inside) - 1))
    return statistics.mean(steps) if steps else None


async def _first_token(probes: Probes, tokens: int) -> float:
    """Return the mean time to the first token of a new prompt on each idle engine, s."""
    asked = [probes.prompt(tokens) for _ in range(probes.engines)]
    return statistics.mean(answer.first_s - sent_s for sent_s, answer in await probes.together(asked, 1))


async def _prompts(probes: Probes, plan: Plan, decode_s: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Return what a prompt chunk costs an engine, s, by its tokens and by those before it."""
    step_s = min((context, seconds) for (n, context), seconds in decode_s.items() if n == plan.beside)[1]
    context = min(plan.contexts)

    async def cost_s(tokens: int, before: int = 0) -> float:
        found = [await _beside(probes, plan.beside, context, tokens, before, step_s) for _ in range(plan.repeats)]
        return max(statistics.median(found), _LEAST_S)

    found = {(chunk, 0): await cost_s(chunk) for chunk in plan.chunks}
    first_s = 0.0 if plan.cached else await cost_s(plan.before_tokens)
    for chunk in plan.chunks:
        behind_s = (
            await cost_s(chunk, plan.before_tokens)
            if plan.cached
            else await cost_s(plan.before_tokens + chunk) - first_s
        )
        found[chunk, plan.before_tokens] = max(behind_s, found[chunk, 0])
    return found


async def _beside(probes: Probes, sequences: int, context: int, tokens: int, before: int, step_s: float) -> float:
    """Return what a prompt costs each engine beside sequences that decode, s: the mean of a few, one after the other.

    Parameters
    ----------
    probes : Probes
    sequences, context : int
        What decodes.
    tokens, before : int
        Of the prompts: new, and in the engine's prefix cache.
    step_s : float
        A step of these sequences alone.
    """
    prefix = probes.prompt(before)
    if before:
        # The same at every engine, since nobody knows which of them gets which prompt.
        await probes.together([prefix] * probes.engines, 1)
    # As many that they last: every step gives one, and prompts take steps of their own.
    lasting = _TOGETHER + _PROMPTS * 8 + round(_PROMPTS * probes.longest_s / step_s)
    begun = []
    for _ in range(sequences * probes.engines):
        begun.append(probes.start(probes.prompt(context), min(lasting, _MOST_TOKENS)))
        await asyncio.sleep(0)
    tasks = [task for task, _ in begun]
    try:
        while not all(answer.tokens >= 2 or task.done() for task, answer in begun):
            await asyncio.sleep(0.001)
        from_s = probes.now_s()
        for _ in range(_PROMPTS):
            answers = await probes.together([[*prefix, *probes.prompt(tokens)] for _ in range(probes.engines)], 1)
            if before:
                _check_cached(answers, before)
        until_s = probes.now_s()
        while not all(answer.last_s > until_s or task.done() for task, answer in begun):
            await asyncio.sleep(0.001)
        for task in tasks:
            if task.done():
                # Raises where it failed.
                task.result()
    finally:
        # Nobody needs the rest of them.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(_SETTLE_S)
    costs = []
    for _, answer in begun:
        inside = [at_s for at_s in answer.times_s if at_s >= from_s]
        behind = [number for number, at_s in enumerate(inside) if at_s > until_s]
        if behind:
            steps = behind[0]
            costs.append((inside[steps] - inside[0] - steps * step_s) / _PROMPTS)
    if len(costs) < len(begun) / 2:
        raise WavetankError(
            "The sequences of a probe had ended before the prompts beside them.",
            given=f"{sequences} sequences and prompts of {tokens} tokens on each engine",
        )
    return statistics.median(costs)


def _check_cached(answers: Sequence[tuple[float, AnswerStream]], before: int) -> None:
    for _, answer in answers:
        details = answer.usage.prompt_tokens_details if answer.usage is not None else None
        cached = (details.cached_tokens if details is not None else None) or 0
        if cached < before - 1:
            raise WavetankError(
                "The engine did not keep the beginning of a prompt that it was sent before.",
                given=f"{cached} tokens from its cache",
                allowed=f"{before}",
                hint="its prefix caching may be off, or requests did not come to the engines in turn",
            )
