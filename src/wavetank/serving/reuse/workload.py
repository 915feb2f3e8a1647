"""Prompts that come back changed: real agents, a trace of prefix blocks, generated agents, and files of the user."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.errors import BadFileError, BadValueError
from wavetank.serving.reuse.interface import Prompt, Workload
from wavetank.serving.reuse.segments import Tokens
from wavetank.sim.rng import stream
from wavetank.workloads import agent_sessions, datasets
from wavetank.workloads.load import read_trace

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_MOST_LINES, _MOST_TOKENS = 1_000_000, 500_000_000


@dataclass(frozen=True, kw_only=True)
class Edits:
    """What is inserted into prompts, as time stamps and notes are.

    Parameters
    ----------
    tokens : int
        New ones per prompt, which stand nowhere else; 0: none.
    share : float
        Further ones, as a share of the prompt.
    at : float
        Where they are inserted, as a share of the prompt.
    """

    tokens: int = 0
    share: float = 0.0
    at: float = 0.5


class _Ids:
    """Numbers for words."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def of(self, words: Sequence[str]) -> Tokens:
        known = self.known
        return np.fromiter((known.setdefault(each, len(known)) for each in words), np.uint32, len(words))


def agent_prompts(*, observations: int) -> Workload:
    """Return the prompts of the conversations of a real agent, one conversation after another.

    Parameters
    ----------
    observations : int
        Newest observations that stay in a prompt; 0: all of them.

    Raises
    ------
    DataUnavailableError
        If they are not on this machine.
    """
    ids = _Ids()
    path = datasets.find(agent_sessions.NAME, agent_sessions.FILE)
    conversations = agent_sessions.read_prompts(path, observations=observations)
    return Workload(
        [
            Prompt(ids.of(tokens), len(tokens), session)
            for session, (_, prompts) in enumerate(conversations)
            for tokens in prompts
        ]
    )


def trace_prompts(name: str) -> Workload:
    """Return the prompts of a trace that names the blocks of its prefixes.

    Parameters
    ----------
    name : str
        Of a trace, or a file.

    Raises
    ------
    DataUnavailableError
        If a real trace is not on this machine.
    BadFileError
        If the trace names no blocks.
    """
    trace = read_trace(name)
    if trace.block_ids is None or trace.block_offsets is None:
        raise BadFileError("The trace names no blocks.", allowed="a column block_ids or hash_ids", where=name)
    ids = np.unique(trace.block_ids, return_inverse=True)[1].astype(np.uint32)
    pieces = np.split(ids, trace.block_offsets[1:-1])
    return Workload(
        [Prompt(each, int(tokens), 0) for each, tokens in zip(pieces, trace.prompt_tokens, strict=True)],
        unit=trace.block_tokens, only_prefixes=True,
    )  # fmt: skip


def generated_prompts(seed: int, *, sessions: int, turns: int, observations: int) -> Workload:
    """Return the prompts of agents that never were: an opening that all share, actions, observations.

    Observations older than the newest ones, but the first, are a note of 12 tokens.  Lengths are lognormal; words of
    an observation are drawn anew, so that nothing repeats by chance.

    Parameters
    ----------
    seed : int
    sessions, turns : int
    observations : int
        Newest observations that stay in a prompt; 0: all of them.
    """
    draws, vocabulary = stream(seed, "generated agents"), 50_000
    note, opening = draws.integers(0, vocabulary, 12), draws.integers(0, vocabulary, 1_500)
    prompts = []
    for session in range(sessions):
        task = draws.integers(0, vocabulary, int(draws.lognormal(5.0, 0.5)) + 1)
        actions: list[Any] = []
        seen: list[Any] = []
        for _ in range(turns):
            old = set(range(1, len(seen) - observations)) if observations else set()
            parts = [opening, task]
            for number, (action, observation) in enumerate(zip(actions, seen, strict=True)):
                parts += [action, note if number in old else observation]
            ids = np.concatenate(parts).astype(np.uint32)
            prompts.append(Prompt(ids, len(ids), session))
            actions.append(draws.integers(0, vocabulary, int(draws.lognormal(4.0, 0.6)) + 1))
            seen.append(draws.integers(0, vocabulary, int(draws.lognormal(5.5, 1.0)) + 1))
    return Workload(prompts)


def same_prompts(seed: int, *, sessions: int, turns: int, tokens: int) -> Workload:
    """Return prompts that come back as they were: what changes is left to edits.

    Parameters
    ----------
    seed : int
    sessions : int
        Prompts.
    turns : int
        How often each comes, one after another.
    tokens : int
        Of each.
    """
    draws = stream(seed, "same prompts")
    prompts = [draws.integers(0, 50_000, tokens).astype(np.uint32) for _ in range(sessions)]
    return Workload([Prompt(each, tokens, session) for session, each in enumerate(prompts) for _ in range(turns)])


def file_prompts(path: str | Path) -> Workload:
    """Return the prompts of a file with one JSON object per line.

    Parameters
    ----------
    path : str or Path
        ``.jsonl`` or ``.jsonl.gz``.  An object has ``tokens``, a list of whole numbers from 0 to 2**32 - 1, or
        ``messages``, a list of objects with ``role`` and ``content``, which are cut into words and signs; and, if it
        belongs to a conversation, ``session``.

    Raises
    ------
    BadFileError
        If the file cannot be read or a line is something else; it names the line.
    """
    ids, sessions, prompts, total = _Ids(), dict[str, int](), list[Prompt](), 0
    for where, line in _lines(Path(path)):
        tokens = _tokens(line, ids, where)
        total += len(tokens)
        if total > _MOST_TOKENS or len(prompts) >= _MOST_LINES:
            raise BadFileError("The file has more than can be replayed.", given=f"{total} tokens by {where}",
                               allowed=f"{_MOST_LINES} prompts of {_MOST_TOKENS} tokens together")  # fmt: skip
        name = json.dumps(line.get("session"))
        prompts.append(Prompt(tokens, len(tokens), sessions.setdefault(name, len(sessions))))
    if not prompts:
        raise BadFileError("The file has no prompts.", where=str(path))
    return Workload(prompts)


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadFileError("The prompts cannot be read.", given=str(error), where=str(path)) from error
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}, line {number}"
        if line.strip():
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadFileError("This line is no JSON.", given=str(error)[:200], where=where) from error
            if not isinstance(found, dict):
                raise BadFileError("This line is no JSON object.", given=type(found).__name__, where=where)
            yield where, found


def _tokens(line: dict[str, Any], ids: _Ids, where: str) -> Tokens:
    if isinstance(tokens := line.get("tokens"), list):
        if not all(type(each) is int and 0 <= each < 1 << 32 for each in tokens):
            raise BadFileError("A token is no whole number from 0 to 2**32 - 1.", where=where)
        found = np.array(tokens, np.uint32)
    elif isinstance(messages := line.get("messages"), list):
        words: list[str] = []
        for each in messages:
            content = each.get("content") if isinstance(each, dict) else None
            if not isinstance(content, str) or not isinstance(each.get("role"), str):
                raise BadFileError("A message has no role or no text.", allowed="role and content, two texts",
                                   where=where)  # fmt: skip
            words += [f"<{each['role']}>", *_TOKEN.findall(content)]
        found = ids.of(words)
    else:
        raise BadFileError("This is no prompt.", allowed="tokens or messages, a list", where=where)
    if not len(found):
        raise BadFileError("This prompt is empty.", where=where)
    return found


def edited(workload: Workload, edits: Edits, seed: int) -> Workload:
    """Return prompts into each of which new tokens are inserted.

    Parameters
    ----------
    workload : Workload
    edits : Edits
    seed : int
        Draws where, within a twentieth of the prompt around ``edits.at``.

    Raises
    ------
    BadValueError
        If the workload is one of prefix blocks, whose tokens are not known.
    """
    if not edits.tokens and not edits.share:
        return workload
    if workload.only_prefixes:
        raise BadValueError("Nothing can be inserted into prompts whose tokens are not known.",
                            allowed="a workload of tokens", where="edit_tokens")  # fmt: skip
    draws, prompts = stream(seed, "edits"), []
    # Numbers that no prompt has, counted down from the largest.
    new = 1 << 32
    for prompt in workload.prompts:
        at = round(len(prompt.ids) * float(np.clip(edits.at + draws.uniform(-0.025, 0.025), 0, 1)))
        count = edits.tokens + round(edits.share * len(prompt.ids))
        new -= count
        inserted = np.arange(new, new + count, dtype=np.uint32)
        ids = np.concatenate([prompt.ids[:at], inserted, prompt.ids[at:]])
        prompts.append(prompt._replace(ids=ids, tokens=len(ids)))
    return workload._replace(prompts=prompts)
