"""What a request asks for beside its prompt: its longest answer, session, tier, deadline, model and adapter.

Policies see numbers, as in a simulation.  Models and adapters are counted in the order in which they are first seen,
sessions are hashes that every router computes alike, and tiers are ranks.  Everything is bounded, whatever clients
send: a field of another type or of an absurd size counts as not given, for refusing it is the backend's business, and
nothing of a session's name is kept.

Source: the OpenAI API reference (``max_tokens``, ``max_completion_tokens``, ``max_output_tokens``, ``user``,
``prompt_cache_key``); vLLM's ``priority``, in which smaller is more urgent, and ``parent`` in its list of models.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

SESSION_HEADER = "X-Session-Id"
DEADLINE_HEADER = "X-Deadline-S"

MOST_TOKENS = 2**31 - 1
_MOST_NAMES = 4096
_MOST_NAME_CHARACTERS = 500
_MOST_TIERS = 64
_MOST_SESSION_BYTES = 1024
# A week; a request with more time than that needs no deadline.
_LONGEST_DEADLINE_S = 604_800.0
_WHOLE = re.compile(rb"-?[0-9]{1,18}")
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")


class Given(NamedTuple):
    """What the fields of a body say.

    Attributes
    ----------
    max_tokens : int or None
        Of the answer, at least 1.
    session : str
        Its name; empty without one.
    priority : int or None
        Smaller is more urgent.
    """

    max_tokens: int | None = None
    session: str = ""
    priority: int | None = None


NOTHING_GIVEN = Given()

_LENGTHS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_SESSIONS = ("session_id", "user", "prompt_cache_key")
FIELDS = (*_LENGTHS, *_SESSIONS, "priority")


def read_given(fields: Mapping[str, msgspec.Raw]) -> Given:
    """Read the fields of a body that name a longest answer, a session and a priority, each still as JSON."""
    found = {name: bytes(raw) for name in FIELDS if (raw := fields.get(name))}
    if not found:
        return NOTHING_GIVEN
    max_tokens, session = None, ""
    for name in _LENGTHS:
        if name in found and (tokens := _whole(found[name])) is not None and 0 < tokens <= MOST_TOKENS:
            max_tokens = tokens
            break
    for name in _SESSIONS:
        if name in found and (session := _name(found[name])):
            break
    return Given(max_tokens, session, _whole(found["priority"]) if "priority" in found else None)


def _whole(raw: bytes) -> int | None:
    return int(raw) if _WHOLE.fullmatch(raw) else None


def _name(raw: bytes) -> str:
    """Return the text of a JSON string, or a number as it is written; empty for anything else, or too long."""
    if len(raw) > _MOST_SESSION_BYTES:
        return ""
    if _WHOLE.fullmatch(raw):
        return raw.decode()
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def session_code(name: str, client: str = "") -> int:
    """Return the number of a session, from 0 to 2**63 - 1, the same in every router; -1 without a name or a long one.

    Parameters
    ----------
    name : str
    client : str
        Who asks: sessions of different clients are different ones.
    """
    text = name.encode("utf-8", "surrogatepass")
    if not 0 < len(text) <= _MOST_SESSION_BYTES:
        return -1
    digest = blake2b(text, digest_size=8, key=blake2b(client.encode("utf-8", "surrogatepass"), digest_size=16).digest())
    return int.from_bytes(digest.digest(), "little") >> 1


def read_deadline(values: Sequence[str]) -> float | None:
    """Return the seconds that the headers of a deadline name; None without a header.

    Raises
    ------
    ValueError
        If there are several, or one is no number above 0 and up to a week.
    """
    if not values:
        return None
    text = values[0].strip()
    seconds = float(text) if len(values) == 1 and _SECONDS.fullmatch(text) else 0.0
    if not 0.0 < seconds <= _LONGEST_DEADLINE_S:
        raise ValueError
    return seconds


class Names:
    """Numbers of names, in the order in which they were first seen; bounded."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._codes)

    def code(self, name: str) -> int:
        """Return a name's number; -1 for none, for a very long one, and for new ones where there are too many."""
        found = self._codes.get(name)
        if found is None:
            found = -1
            if name and len(name) <= _MOST_NAME_CHARACTERS and len(self._codes) < _MOST_NAMES:
                found = self._codes[name] = len(self._codes)
        return found


class Tiers:
    """Ranks of priorities among those that were seen: 0 is the most urgent one.

    Where a more urgent one comes for the first time, the ranks behind it grow by 1.
    """

    def __init__(self) -> None:
        self._seen: list[int] = []

    def rank(self, priority: int | None) -> int:
        """Return a priority's rank; -1 where a request names none."""
        if priority is None:
            return -1
        at = bisect_left(self._seen, priority)
        new = at == len(self._seen) or self._seen[at] != priority
        if new and len(self._seen) < _MOST_TIERS:
            self._seen.insert(at, priority)
        return at
