"""Sessions of agents: the requests that a server sees of whole conversations with tools.

Every answer of a conversation is one request, whose prompt is all that was said before, so that a turn shares its
prefix with the turn before it.  An agent that keeps its prompts short breaks this: it replaces old observations by a
note, and everything behind the first replaced one must be computed again.

Source: the conversations of J. Yang et al., "SWE-agent", NeurIPS 2024, and that agent's rule for old observations.

Differs from the source:

1. A token is a run of word characters, a run of blanks or another single character, and one mark per message.
2. The conversations have no times.  A turn follows when the answer before it is written and the tool has run; sessions
   begin at Poisson times.
3. A conversation that is drawn again is another one of the same lengths: only its opening (the system's message and
   worked examples) is shared with other sessions.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.errors import BadFileError, BadValueError
from wavetank.sim.rng import stream
from wavetank.workloads.requests import FloatArray, IntArray, RequestTrace

NAME = "agent-transcripts"
FILE = "transcripts.jsonl.gz"
BLOCK_TOKENS = 64
OBSERVATIONS = 5
"""Newest observations that the agent leaves in its prompts; older ones but the first become a note."""
TOKEN_S = 0.02
"""Time per token of an answer, which a turn waits for before the tool runs: an assumption."""
TOOL_S = 4.0
"""Mean time of a tool, exponential: an assumption."""
ASSUMED = (
    f"The conversations have no times: a turn follows after {TOKEN_S * 1000:g} ms per token of the answer before it "
    f"and {TOOL_S:g} s on average for the tool; sessions begin at Poisson times, and tokens are counted by words and "
    "signs."
)

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One conversation, turn by turn.

    Parameters
    ----------
    name : str
    prompt_tokens, output_tokens : tuple of int
        One for each turn.
    block_keys : tuple of tuple of int
        For each turn, the identities of the prompt's full blocks: equal keys mean equal text up to there.
    common_blocks : int
        Blocks at the beginning of every prompt that do not depend on the task.
    """

    name: str
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    block_keys: tuple[tuple[int, ...], ...]
    common_blocks: int


def read_conversations(
    path: str | Path, *, observations: int = OBSERVATIONS, block_tokens: int = BLOCK_TOKENS
) -> tuple[Conversation, ...]:
    """Read conversations from a file with one JSON object a line.

    Parameters
    ----------
    path : str or Path
        ``.jsonl`` or ``.jsonl.gz``; objects with ``name`` and ``messages``, a list of ``role``, ``text`` and ``demo``.
    observations : int
        Newest observations that stay in a prompt; 0: all of them.
    block_tokens : int
        Tokens of a prefix block.

    Raises
    ------
    BadFileError
        If the file is damaged or holds something else; it names the line.
    BadValueError
        If a number is out of its range.
    """
    _at_least("observations", observations, 0)
    _at_least("block_tokens", block_tokens, 1)
    return tuple(
        _conversation(whole, observations, block_tokens, where=f"{path}, line {number}")
        for number, whole in _objects(Path(path))
    )


def _objects(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadFileError("The conversations cannot be read.", given=str(error), where=str(path)) from error
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise BadFileError(
                    "This line is no JSON object.", given=str(error), where=f"{path}, line {number}"
                ) from error


def read_prompts(
    path: str | Path, *, observations: int = OBSERVATIONS
) -> tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]:
    """Read the prompts of conversations, token by token.

    Parameters
    ----------
    path, observations
        As for :func:`read_conversations`.

    Returns
    -------
    tuple of (name, prompts)
        One for each conversation; each prompt is the tokens of all that is said before an answer.

    Raises
    ------
    BadFileError
        If the file is damaged or holds something else; it names the line.
    BadValueError
        If a number is out of its range.
    """
    _at_least("observations", observations, 0)
    found = []
    for number, whole in _objects(Path(path)):
        turns = _turns(whole, observations, where=f"{path}, line {number}")
        found.append((str(whole.get("name", "")), tuple(tuple(tokens) for tokens, _ in turns)))
    return tuple(found)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise BadValueError(f"{name} is outside its range.", given=value, allowed=f">= {least}", where=name)


def _turns(whole: Any, observations: int, *, where: str) -> list[tuple[list[str], int]]:
    """The tokens of each prompt of a conversation, and of its answer how many."""
    messages = whole.get("messages") if isinstance(whole, Mapping) else None
    if not isinstance(messages, list) or not all(
        isinstance(each, Mapping) and each.get("role") in _ROLES and isinstance(each.get("text"), str)
        for each in messages
    ):
        raise BadFileError(
            "This is no conversation.", allowed=f"messages with a text and a role: {', '.join(_ROLES)}", where=where
        )
    parts = [_message(each) for each in messages]
    seen = [index for index, each in enumerate(messages) if each["role"] in ("user", "tool") and not each.get("demo")]
    turns = []
    for index, each in enumerate(messages):
        if each["role"] != "assistant" or each.get("demo") or index == 0:
            continue
        before = [number for number in seen if number < index]
        old = set(before[1:-observations]) if observations else set()
        tokens = [
            token
            for number, part in enumerate(parts[:index])
            for token in (_note(messages[number]) if number in old else part)
        ]
        turns.append((tokens, max(len(parts[index]) - 1, 1)))
    if not turns:
        raise BadFileError("This conversation has no answer.", where=where)
    return turns


def _message(message: Mapping[str, Any]) -> list[str]:
    return [f"<{message['role']}>", *_TOKEN.findall(message["text"])]


def _conversation(whole: Any, observations: int, block_tokens: int, *, where: str) -> Conversation:
    turns = _turns(whole, observations, where=where)
    opening = 0
    for each in whole["messages"]:
        if each["role"] != "system" and not each.get("demo"):
            break
        opening += len(_message(each))
    return Conversation(
        name=str(whole.get("name", "")),
        prompt_tokens=tuple(len(tokens) for tokens, _ in turns),
        output_tokens=tuple(answer for _, answer in turns),
        block_keys=tuple(_block_keys(tokens, block_tokens) for tokens, _ in turns),
        common_blocks=opening // block_tokens,
    )


def _note(message: Mapping[str, Any]) -> list[str]:
    lines = len(message["text"].splitlines())
    return [f"<{message['role']}>", *_TOKEN.findall(f"Old environment output: ({lines} lines omitted)")]


def _block_keys(tokens: Sequence[str], block_tokens: int) -> tuple[int, ...]:
    digest = hashlib.blake2b(digest_size=8)
    found = []
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        digest.update("\0".join(tokens[start : start + block_tokens]).encode() + b"\0")
        found.append(int.from_bytes(digest.copy().digest(), "little") >> 2)
    return tuple(found)


def agent_sessions(
    conversations: Sequence[Conversation],
    *,
    n_requests: int,
    rate_per_s: float,
    seed: int = 0,
    block_tokens: int = BLOCK_TOKENS,
) -> RequestTrace:
    """Return requests of sessions that go on at the same time, from their middle: no session is the first.

    Parameters
    ----------
    conversations : sequence of Conversation
        Each session is one of them, drawn with equal probability.
    n_requests : int
    rate_per_s : float
        Mean rate of requests; a higher one means more sessions at a time, not quicker ones.
    seed : int
    block_tokens : int
        As the conversations were read with.

    Raises
    ------
    BadValueError
        If a number is out of its range.
    """
    for name, value in (("n_requests", n_requests), ("rate_per_s", rate_per_s), ("conversations", len(conversations))):
        if not 0 < value < np.inf:
            raise BadValueError("A number above 0 is needed.", given=value, where=name)
    turns = float(np.mean([len(each.prompt_tokens) for each in conversations]))
    # Until then the number of sessions under way still grows.
    warm_s = 2 * max(TOKEN_S * sum(each.output_tokens) + TOOL_S * len(each.output_tokens) for each in conversations)
    count = math.ceil(1.2 * (warm_s * rate_per_s + n_requests) / turns) + 10
    while True:
        starts_s = np.cumsum(stream(seed, "agent sessions", "starts").exponential(turns / rate_per_s, count))
        kinds = stream(seed, "agent sessions", "kinds").integers(len(conversations), size=count)
        end_s = float(starts_s[-1])
        times_s = _turn_times_s(conversations, starts_s, kinds, stream(seed, "agent sessions", "tools"))
        arrival_s = np.concatenate(times_s)
        if int(((arrival_s >= warm_s) & (arrival_s <= end_s)).sum()) >= n_requests:
            break
        count *= 2
    session = np.repeat(np.arange(count), [each.size for each in times_s])
    turn = np.concatenate([np.arange(each.size) for each in times_s])
    rows = np.flatnonzero(arrival_s >= warm_s)
    rows = rows[np.argsort(arrival_s[rows], kind="stable")][:n_requests]
    return _trace(conversations, kinds, session[rows], turn[rows], arrival_s[rows] - warm_s, block_tokens)


def _turn_times_s(
    conversations: Sequence[Conversation], starts_s: FloatArray, kinds: IntArray, tools: np.random.Generator
) -> list[FloatArray]:
    """Return the times of the turns of every session."""
    found = []
    for start_s, kind in zip(starts_s, kinds, strict=True):
        answers_s = TOKEN_S * np.array(conversations[kind].output_tokens[:-1], dtype=np.float64)
        gaps_s = answers_s + tools.exponential(TOOL_S, answers_s.size)
        found.append(start_s + np.concatenate(([0.0], np.cumsum(gaps_s))))
    return found


def _trace(
    conversations: Sequence[Conversation],
    kinds: IntArray,
    session: IntArray,
    turn: IntArray,
    arrival_s: FloatArray,
    block_tokens: int,
) -> RequestTrace:
    """Return the requests of turns, in their order, with blocks that only a session's own turns share."""
    common: dict[int, int] = {}
    own: list[dict[int, int]] = []
    for each in conversations:
        own.append({})
        for keys in each.block_keys:
            for key in keys[: each.common_blocks]:
                common.setdefault(key, len(common))
            for key in keys[each.common_blocks :]:
                own[-1].setdefault(key, len(own[-1]))
    most = max(map(len, own))
    ids: list[int] = []
    offsets = [0]
    for number, index in zip(session.tolist(), turn.tolist(), strict=True):
        kind = int(kinds[number])
        keys, opening = conversations[kind].block_keys[index], conversations[kind].common_blocks
        ids += [common[key] for key in keys[:opening]]
        ids += [len(common) + number * most + own[kind][key] for key in keys[opening:]]
        offsets.append(len(ids))
    of_turns = [(conversations[int(kinds[number])], int(index)) for number, index in zip(session, turn, strict=True)]
    return RequestTrace(
        arrival_s=arrival_s,
        prompt_tokens=np.array([each.prompt_tokens[index] for each, index in of_turns]),
        output_tokens=np.array([each.output_tokens[index] for each, index in of_turns]),
        block_ids=np.array(ids, dtype=np.int64),
        block_offsets=np.array(offsets, dtype=np.int64),
        block_tokens=block_tokens,
        session=session,
        name=NAME,
    )


def one_pass(conversations: Sequence[Conversation], *, seed: int = 0, block_tokens: int = BLOCK_TOKENS) -> RequestTrace:
    """Return every conversation once, all of its turns, with sessions that begin ten seconds apart on average.

    Parameters
    ----------
    conversations : sequence of Conversation
    seed : int
        Of the times.
    block_tokens : int
        As the conversations were read with.
    """
    count = len(conversations)
    starts_s = np.cumsum(stream(seed, "agent pass", "starts").exponential(10.0, count))
    times_s = _turn_times_s(conversations, starts_s, np.arange(count), stream(seed, "agent pass", "tools"))
    arrival_s = np.concatenate(times_s)
    session = np.repeat(np.arange(count), [each.size for each in times_s])
    turn = np.concatenate([np.arange(each.size) for each in times_s])
    rows = np.argsort(arrival_s, kind="stable")
    return _trace(
        conversations, np.arange(count), session[rows], turn[rows], arrival_s[rows] - arrival_s.min(), block_tokens
    )


def of_data_set() -> tuple[Conversation, ...]:
    """Return the conversations of the data set, as its agent sends them."""
    from wavetank.workloads.datasets import find

    return _kept(find(NAME, FILE))


@lru_cache(maxsize=2)
def _kept(path: Path) -> tuple[Conversation, ...]:
    return read_conversations(path)
