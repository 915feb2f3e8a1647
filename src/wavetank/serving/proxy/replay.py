"""Send a request trace to an OpenAI-compatible server at the trace's own times, and measure what comes back.

The load is open: a request is sent when the trace says, however slow the server is, and its time counts from then on,
not from when this process got around to it (otherwise a stalled server would look fast).  The figures are those of a
simulated run, computed by the same code (:class:`wavetank.serving.simulator.simulate.ServingRun`).

Prompts carry no meaning but their length and their beginning: requests that share prefix blocks in the trace share the
tokens, so that prefix caches and prefix routers see what the trace says.  Prompts are exactly as long where a server
takes token ids, answers where it takes ``ignore_eos``.  That is no field of OpenAI's: it goes only to servers that are
known to take it, since others refuse what they do not know.  Where an answer is shorter than the trace says, that is
counted (:attr:`Replay.short`).

Source: B. Schroeder, A. Wierman, M. Harchol-Balter, "Open Versus Closed: A Cautionary Tale", NSDI 2006.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError, missing_extra, unknown_name
from wavetank.serving.proxy.answer_stream import AnswerStream, BadAnswer, Usage
from wavetank.serving.proxy.configuration import ReplayOptions
from wavetank.serving.proxy.wakeups import Wakeup
from wavetank.serving.simulator.simulate import ServingRun
from wavetank.workloads.requests import RequestTrace

try:
    import aiohttp
except ImportError as error:
    raise missing_extra(str(error.name), "serving", needed_for="wavetank launch replay") from None

# Token ids from here on are plain text in the vocabularies of all common models.
_FIRST_ID, _IDS = 1000, 16_000
_SHARED, _OWN = 998, 999
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
_CONNECT_TIMEOUT_S = 10.0
# The first request is sent this long after everything is ready, in s.
_LEAD_S = 0.2
# Who servers say that their models are owned by (``/v1/models``), of those that take more than OpenAI's fields.
_TAKES_LENGTHS = frozenset({"vllm", "sglang", "llamacpp", "wavetank"})


class Outcome(msgspec.Struct, kw_only=True):
    """What became of one request; times are seconds of the trace's own clock, null where nothing came.

    Attributes
    ----------
    number : int
        Row of the trace, from 0.
    arrival_s, sent_s, first_token_s, finish_s : float
        When it was due, when it was sent, when its first and its last token came.
    prompt_tokens, output_tokens : int
        As the server counted them, else as the trace says and as they came.
    asked_tokens : int
        Output tokens that were asked for.
    cached_tokens : int
        Prompt tokens that the server had in its prefix cache, where it reports them.
    worker : str
        Who answered (``system_fingerprint``).
    failure : str
        Empty for a whole answer, else one of: ``unreachable``, ``timeout``, ``http-<status>``, ``cut off`` (no end of
        the stream), ``error event``, ``malformed``, ``wrong answer`` (tokens lost, doubled or of another request),
        ``interrupted``.
    detail : str
        More about the failure.
    """

    number: int
    arrival_s: float
    sent_s: float = math.nan
    first_token_s: float = math.nan
    finish_s: float = math.nan
    prompt_tokens: int = 0
    output_tokens: int = 0
    asked_tokens: int = 0
    cached_tokens: int = 0
    worker: str = ""
    failure: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Replay:
    """What a replay found.

    Attributes
    ----------
    outcomes : tuple of Outcome
        One per request, in order of arrival.
    interrupted : bool
        Whether it ended before the trace did.
    checked : bool
        Whether every token was checked.
    lengths_asked : bool
        Whether the server was asked, beyond OpenAI's fields, for exactly as many tokens.
    """

    outcomes: tuple[Outcome, ...]
    interrupted: bool
    checked: bool
    lengths_asked: bool = False

    @cached_property
    def finished(self) -> tuple[Outcome, ...]:
        """The requests with a whole answer."""
        return tuple(outcome for outcome in self.outcomes if not outcome.failure)

    @cached_property
    def failures(self) -> Counter[str]:
        """How many requests failed, by kind."""
        return Counter(outcome.failure for outcome in self.outcomes if outcome.failure)

    @cached_property
    def short(self) -> tuple[Outcome, ...]:
        """The whole answers of fewer tokens than the trace says: the model ended them."""
        return tuple(outcome for outcome in self.finished if outcome.output_tokens < outcome.asked_tokens)

    @cached_property
    def workers(self) -> tuple[str, ...]:
        """Who answered, in alphabetical order."""
        return tuple(sorted({outcome.worker for outcome in self.finished}))

    def run(self) -> ServingRun:
        """Return the finished requests as a run, whose figures are defined as a simulated run's are.

        ``worker`` indexes :attr:`workers`; what only a simulation knows (steps, the cluster's time) is 0 or NaN.

        Raises
        ------
        WavetankError
            If no request finished.
        """
        done = self.finished
        if not done:
            raise WavetankError("No request got a whole answer.", given=self.why_not() or None)
        number_of = {name: number for number, name in enumerate(self.workers)}
        none = np.zeros(0)
        return ServingRun(
            arrival_s=_column(done, "arrival_s"),
            first_token_s=_column(done, "first_token_s"),
            finish_s=_column(done, "finish_s"),
            prompt_tokens=_column(done, "prompt_tokens").astype(np.int64),
            output_tokens=_column(done, "output_tokens").astype(np.int64),
            worker=np.array([number_of[outcome.worker] for outcome in done], np.int32),
            preemptions=np.zeros(len(done), np.int32),
            matched_tokens=_column(done, "cached_tokens").astype(np.int32),
            steps=0,
            decisions=0,
            refreshes=0,
            lock_s=0.0,
            work_s=0.0,
            prefill_steps=0,
            mixed_s=0.0,
            adapter_loads=0,
            imbalance_tokens=math.nan,
            probe_s=none,
            probe_tokens=none.reshape(0, 0),
            probe_running=np.zeros((0, 0), np.int64),
        )

    @property
    def sending_late_s(self) -> float:
        """By how much requests were sent late on average, in s of the trace's clock; NaN when none was sent."""
        late = _column(self.outcomes, "sent_s") - _column(self.outcomes, "arrival_s")
        return float(np.nanmean(late)) if not np.isnan(late).all() else math.nan

    def why_not(self) -> str:
        """Return the first failure of each kind in one line; empty when all went well."""
        first = {outcome.failure: outcome for outcome in reversed(self.outcomes) if outcome.failure}
        return "; ".join(
            f"{count} x {kind}" + (f" ({first[kind].detail})" if first[kind].detail else "")
            for kind, count in self.failures.most_common()
        )

    def write(self, path: Path) -> None:
        """Write one row per request: JSON Lines, or Parquet where the name ends so.

        The columns are those of :class:`Outcome`; the file is a trace that ``wavetank compare`` reads.

        Raises
        ------
        WavetankError
            If the file cannot be written.
        """
        lines = b"".join(msgspec.json.encode(outcome) + b"\n" for outcome in self.outcomes)
        parquet = path.name.lower().endswith(".parquet")
        rows = path.with_name(path.name + ".rows.jsonl") if parquet else path
        try:
            rows.write_bytes(lines)
            if parquet:
                _to_parquet(rows, path)
        except OSError as error:
            raise WavetankError(
                f"The records cannot be written: {error.strerror or error}.", where=str(path)
            ) from error
        finally:
            if parquet:
                rows.unlink(missing_ok=True)


def _column(outcomes: Sequence[Outcome], name: str) -> NDArray[np.float64]:
    return np.array([getattr(outcome, name) for outcome in outcomes], np.float64)


_TYPES = {"number": "BIGINT", "prompt_tokens": "BIGINT", "output_tokens": "BIGINT", "asked_tokens": "BIGINT",
          "cached_tokens": "BIGINT", "worker": "VARCHAR", "failure": "VARCHAR", "detail": "VARCHAR"}  # fmt: skip


def _to_parquet(rows: Path, path: Path) -> None:
    import duckdb

    types = {name: _TYPES.get(name, "DOUBLE") for name in Outcome.__struct_fields__}
    try:
        with duckdb.connect() as connection:
            table = connection.read_json(str(rows), columns=types, format="newline_delimited")
            table.write_parquet(str(path), compression="zstd")
    except duckdb.Error as error:
        raise WavetankError(
            f"The records cannot be written as Parquet: {str(error).splitlines()[0]}", where=str(path)
        ) from error


def prompt_ids(trace: RequestTrace, number: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the token ids of a request's prompt.

    Parameters
    ----------
    trace : RequestTrace
    number : int
        Row of the trace.
    seed : int
        Prompts of another seed share at most their first two tokens with these.

    Returns
    -------
    int64 array (prompt tokens,)
        Equal up to and including a prefix block exactly where the trace's block ids are; all other tokens are the
        request's own.
    """
    length = int(trace.prompt_tokens[number])
    parts = []
    if trace.block_ids is not None and trace.block_offsets is not None:
        first, stop = int(trace.block_offsets[number]), int(trace.block_offsets[number + 1])
        for block in trace.block_ids[first:stop].tolist():
            size = min(trace.block_tokens, length)
            parts.append(_content(_SHARED, block, size, seed))
            length -= size
    if length:
        parts.append(_content(_OWN, number, length, seed))
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _content(kind: int, name: int, size: int, seed: int) -> NDArray[np.int64]:
    """Return tokens that begin with a name: whose they are, in two digits and a mark."""
    if seed:
        kind = _FIRST_ID + 2 * seed + kind - _SHARED
    ids = _FIRST_ID + (name * 31 + np.arange(size)) % _IDS
    head = [_FIRST_ID + name % _IDS, _FIRST_ID + name // _IDS % _IDS, kind][:size]
    ids[: len(head)] = head
    return ids


def as_text(ids: NDArray[np.int64]) -> str:
    """Return the token ids of a prompt as words of four bytes each, a blank included; unequal ids give unequal words.

    Parameters
    ----------
    ids : int64 array
        As :func:`prompt_ids` gives them.
    """
    number = ids - _SHARED
    words = np.full((ids.size, 4), ord(" "), np.uint8)
    for place, unit in ((1, 26 * 26), (2, 26), (3, 1)):
        words[:, place] = _LETTERS[number // unit % 26]
    return words.tobytes().decode()


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


async def replay(
    trace: RequestTrace, options: ReplayOptions, *, progress: Callable[[int, int], None] | None = None
) -> Replay:
    """Send a trace and wait for all answers.

    Parameters
    ----------
    trace : RequestTrace
    options : ReplayOptions
    progress : callable, optional
        Called twice per second with how many requests were sent and how many of them are done.

    Returns
    -------
    Replay
        Also when the task is cancelled (Ctrl-C): with what was finished until then.

    Raises
    ------
    WavetankError
        If the server does not name its models, or not the one that was asked for.
    """
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=300)
    timeout = aiohttp.ClientTimeout(total=options.timeout_s, sock_connect=_CONNECT_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        model = await _model(session, options)
        check = model.owned_by == "wavetank" if options.check is None else options.check
        lengths = options.extensions == "on" or (options.extensions == "auto" and model.owned_by in _TAKES_LENGTHS)
        outcomes = [
            Outcome(number=number, arrival_s=at_s, asked_tokens=asked)
            for number, (at_s, asked) in enumerate(
                zip(trace.arrival_s.tolist(), trace.output_tokens.tolist(), strict=True)
            )
        ]
        sender = _Sender(trace, options, session, model.id, check, lengths)
        watch = None if progress is None else asyncio.create_task(_watch(outcomes, progress))
        tasks: list[asyncio.Task[None]] = []
        interrupted = False
        due = asyncio.Event()
        wakeup = Wakeup(due.set)
        try:
            for outcome in outcomes:
                body = sender.body(outcome.number)
                due.clear()
                wakeup.at(sender.due_s(outcome))
                await due.wait()
                tasks.append(asyncio.create_task(sender.send(outcome, body)))
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            interrupted = True
        finally:
            wakeup.close()
            for task in (*tasks, *([watch] if watch else [])):
                task.cancel()
            await asyncio.gather(*tasks, *([watch] if watch else []), return_exceptions=True)
    for outcome in outcomes:
        if interrupted and not outcome.failure and math.isnan(outcome.finish_s):
            outcome.failure = "interrupted"
    if progress is not None:
        progress(len(tasks), sum(map(_is_done, outcomes)))
    return Replay(tuple(outcomes), interrupted, check, lengths)


async def _model(session: aiohttp.ClientSession, options: ReplayOptions) -> _Model:
    url = f"{options.url.rstrip('/')}/v1/models"
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=_CONNECT_TIMEOUT_S)) as response:
            body = await response.read()
        if response.status != 200:
            raise WavetankError(f"The server does not list its models: HTTP {response.status}.", given=url)
        models = msgspec.json.decode(body, type=_Models).data
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise WavetankError(
            f"The server does not answer: {error or type(error).__name__}.", given=url, hint="check --url"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WavetankError(f"The server's list of models cannot be read: {error}", given=url) from error
    for model in models:
        if options.model in ("", model.id):
            return model
    if options.model:
        raise unknown_name("model", options.model, [model.id for model in models], where=url)
    raise WavetankError("The server lists no model.", given=url)


async def _watch(outcomes: Sequence[Outcome], progress: Callable[[int, int], None]) -> None:
    while True:
        await asyncio.sleep(0.5)
        progress(sum(not math.isnan(outcome.sent_s) for outcome in outcomes), sum(map(_is_done, outcomes)))


def _is_done(outcome: Outcome) -> bool:
    return bool(outcome.failure) or not math.isnan(outcome.finish_s)


class _Sender:
    """Sends requests and writes down what comes back."""

    def __init__(
        self,
        trace: RequestTrace,
        options: ReplayOptions,
        session: aiohttp.ClientSession,
        model: str,
        check: bool,
        lengths: bool,
    ) -> None:
        self.trace, self.options, self.session, self.model, self.check = trace, options, session, model, check
        self._lengths = lengths
        self._first_s = float(trace.arrival_s[0])
        self._zero_s = time.monotonic() + _LEAD_S
        self._tag = secrets.token_hex(4)
        self._url = f"{options.url.rstrip('/')}/v1/{'chat/completions' if options.as_text else 'completions'}"

    def due_s(self, outcome: Outcome) -> float:
        """Return when to send a request, on the monotonic clock."""
        return self._zero_s + (outcome.arrival_s - self._first_s) * self.options.time_scale

    def traced_s(self, now_s: float) -> float:
        """Return a time of the monotonic clock on the trace's clock."""
        return self._first_s + (now_s - self._zero_s) / self.options.time_scale

    def body(self, number: int) -> bytes:
        """Return the JSON text of a request."""
        ids, output = prompt_ids(self.trace, number, self.options.prompt_seed), int(self.trace.output_tokens[number])
        prompt: dict[str, object] = (
            {"messages": [{"role": "user", "content": as_text(ids)}]}
            if self.options.as_text
            else {"prompt": ids.tolist()}
        )
        return msgspec.json.encode(
            {
                "model": self.model,
                **prompt,
                "max_tokens": output,
                **({"min_tokens": output, "ignore_eos": True} if self._lengths else {}),
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    async def send(self, outcome: Outcome, body: bytes) -> None:
        """Send one request, read its answer and complete its outcome."""
        request_id = f"{self._tag}-{outcome.number}"
        stream = AnswerStream(request_id, self.check)
        outcome.sent_s = self.traced_s(time.monotonic())
        try:
            await self._exchange(stream, body)
            expected = outcome.asked_tokens
            if not (stream.ended or stream.reason):
                raise BadAnswer("cut off", f"after {stream.tokens} tokens")
            # An answer that nothing kept from it may be shorter, if the model ended it.
            short = stream.tokens < expected and stream.reason == "stop" and not self._lengths
            if not stream.tokens or (self.check and stream.tokens != expected and not short):
                raise BadAnswer("wrong answer", f"{stream.tokens} tokens instead of {expected}")
        except BadAnswer as bad:
            outcome.failure, outcome.detail = bad.failure, bad.detail
        except TimeoutError:
            outcome.failure = "timeout"
        except aiohttp.ClientConnectorError as error:
            outcome.failure, outcome.detail = "unreachable", str(error)
        except (aiohttp.ClientError, OSError) as error:
            outcome.failure, outcome.detail = "cut off", str(error) or type(error).__name__
        outcome.worker = stream.worker
        if stream.tokens:
            outcome.first_token_s = self.traced_s(stream.first_s)
            outcome.finish_s = self.traced_s(stream.last_s)
        usage = stream.usage or Usage()
        outcome.prompt_tokens = usage.prompt_tokens or int(self.trace.prompt_tokens[outcome.number])
        outcome.output_tokens = usage.completion_tokens or stream.tokens
        if usage.prompt_tokens_details is not None:
            outcome.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0

    async def _exchange(self, stream: AnswerStream, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "X-Request-Id": stream.request_id}
        async with self.session.post(self._url, data=body, headers=headers) as response:
            if response.status != 200:
                text = await response.content.read(500)
                raise BadAnswer(f"http-{response.status}", text.decode(errors="replace"))
            async for data in response.content.iter_any():
                stream.feed(data, time.monotonic())
            stream.close(time.monotonic())
