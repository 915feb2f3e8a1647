"""What a worker's cache keeps of prompts, what of a prompt it then need not compute, and what it fetches.

A *policy* cuts every prompt into *units* and says how they are found again.  A unit is stored under its identity.  One
that names all before it, as prefix blocks do, is found only behind the units that it followed; a free one wherever it
stands.  A unit may also have a name, that of its own content: where its identity is not in the cache, the unit that had
this name is taken, and counts as moved.  Free units count as moved, too.

Prompts of different models or adapters share no units and no names, whatever the policy says.

A worker keeps units as long as its KV cache has room, the least recently used out first, and answers for a request
what is reused as it is, what is recomputed although it was found, and how many bytes come from other workers.
Prefix caching (:class:`PrefixReuse`) is the policy whose units are prefix blocks, none of them named or moved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import PS_PER_S
from wavetank.settings import check_ranges, setting

if TYPE_CHECKING:
    from wavetank.workloads.requests import RequestTrace

# A day: what takes longer is a unit mistaken.
LONGEST_FETCH_S = 86_400.0
# As long as all fetches of one step take at most: their sum stays a number of 64 bits.
MOST_FETCH_PS = 86_400 * 10**12
# What a worker keeps track of, over all workers and units.
MOST_ENTRIES = 2**30


class Units(NamedTuple):
    """What the prompts of a trace consist of, as far as it can be found again.

    Attributes
    ----------
    ids : int64 array (units,)
        Which unit, from 0, all requests one after the other.
    offsets : int64 array (requests + 1,)
        Request ``i`` has the units from ``offsets[i]`` up to ``offsets[i + 1]``, in the order of its prompt; those that
        are no free ones from its start on.  The rest of a prompt is in no unit.
    tokens : int64 array (distinct units,)
        Of each.
    free : bool array (distinct units,), optional
        Whether it is found wherever it stands; none is by default.
    names : int64 array (units,), optional
        Equal names mean equal content; -1: none.  Of units that are not free.
    resident : bool array (workers, distinct units), optional
        What a worker has all the time, in a store of its own beside its KV cache; nothing by default.
    """

    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    tokens: NDArray[np.int64]
    free: NDArray[np.bool_] | None = None
    names: NDArray[np.int64] | None = None
    resident: NDArray[np.bool_] | None = None


class Match(NamedTuple):
    """What a worker has of a prompt; the rest of its tokens is computed.

    Attributes
    ----------
    reused : int
        Tokens taken as they are.
    recomputed : int
        Tokens that were found and are computed again nevertheless.
    fetched_bytes : float
        That come from other workers.
    """

    reused: int
    recomputed: int
    fetched_bytes: float


@dataclass(frozen=True, kw_only=True)
class ReuseRule:
    """What is done with units that were found."""

    again_tokens: int = setting(0, unit="tokens", says="First tokens of each moved run that are computed again", low=0,
                                high=2**31 - 1)  # fmt: skip
    again_share: float = setting(0.0, says="Other moved tokens that are computed again, as a share", low=0.0, high=1.0)
    store_tokens: int = setting(0, unit="tokens", says="Most that a worker keeps for reuse alone; 0: as many as its KV "
                                "cache has room for", low=0, high=2**31 - 1)  # fmt: skip
    fetch: bool = setting(False, says="Whether a worker fetches units that another one had at the last refresh")
    overlapped: bool = setting(False, says="Whether a step computes while it fetches; else it does so afterwards")
    bytes_per_token: float = setting(131_072.0, unit="bytes", says="State of a token; the default is Llama-3.1-8B's",
                                     low=0.0, high=1e12)  # fmt: skip
    link_bytes_per_s: float = setting(50e9, unit="bytes/s", says="Bandwidth of a fetch", low=1.0, high=1e18)
    fetch_latency_s: float = setting(1e-3, unit="s", says="Start-up time of a request's fetch", low=0.0, high=1e3)

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def again_millionths(self) -> int:
        """The share of moved tokens that is computed again, in millionths."""
        return round(self.again_share * 1_000_000)

    @property
    def fetch_token_ps(self) -> int:
        """What the state of a token takes on the link, in ps."""
        return round(self.bytes_per_token / self.link_bytes_per_s * PS_PER_S)

    @property
    def fetch_latency_ps(self) -> int:
        """What a fetch takes besides, in ps."""
        return round(self.fetch_latency_s * PS_PER_S)

    def again(self, firsts: int, moved: int) -> int:
        """Return how many moved tokens are computed again.

        Parameters
        ----------
        firsts : int
            Of these, tokens at the beginning of a run.
        moved : int
        """
        return firsts + -(-(moved - firsts) * self.again_millionths // 1_000_000)


@runtime_checkable
class ReusePolicy(Protocol):
    """Decides what workers keep of prompts and how they find it again."""

    def units(self, requests: RequestTrace) -> Units:
        """Return what the prompts of a trace consist of.

        Parameters
        ----------
        requests : RequestTrace
        """
        ...

    def rule(self) -> ReuseRule:
        """Return what is done with units that were found."""
        ...


@dataclass(frozen=True, kw_only=True)
class PrefixReuse:
    """The full prefix blocks that a trace names, each found behind those before it: what prefix caching is."""

    how: ReuseRule = field(default_factory=ReuseRule, metadata={"says": "what is done with units that were found"})

    def units(self, requests: RequestTrace) -> Units:
        """Return the full blocks; none of a trace that names none.

        Parameters
        ----------
        requests : RequestTrace
        """
        return _full_blocks(requests, free=False)

    def rule(self) -> ReuseRule:
        """Return what is done with blocks that were found."""
        return self.how


@dataclass(frozen=True, kw_only=True)
class ContentReuse:
    """The full blocks that a trace names, as names of their own content: each is found wherever it stands."""

    how: ReuseRule = field(default_factory=ReuseRule, metadata={"says": "what is done with units that were found"})

    def units(self, requests: RequestTrace) -> Units:
        """Return the full blocks; none of a trace that names none.

        Parameters
        ----------
        requests : RequestTrace
        """
        return _full_blocks(requests, free=True)

    def rule(self) -> ReuseRule:
        """Return what is done with blocks that were found."""
        return self.how


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenUnits:
    """Units that somebody else cut, for the one trace that they are of.

    Parameters
    ----------
    given : Units
    how : ReuseRule
    """

    given: Units
    how: ReuseRule = field(default_factory=ReuseRule, metadata={"says": "what is done with units that were found"})

    def units(self, requests: RequestTrace) -> Units:
        """Return the units.

        Parameters
        ----------
        requests : RequestTrace
            As many as the units are of.
        """
        return self.given

    def rule(self) -> ReuseRule:
        """Return what is done with units that were found."""
        return self.how


def no_units(requests: int) -> Units:
    """Return what prompts consist of that nobody keeps.

    Parameters
    ----------
    requests : int
    """
    return Units(np.zeros(0, np.int64), np.zeros(requests + 1, np.int64), np.zeros(0, np.int64))


def _full_blocks(requests: RequestTrace, *, free: bool) -> Units:
    if requests.block_ids is None or requests.block_offsets is None:
        return no_units(len(requests))
    counts = np.diff(requests.block_offsets)
    full = np.minimum(counts, requests.prompt_tokens // requests.block_tokens)
    number = np.arange(requests.block_ids.size) - np.repeat(requests.block_offsets[:-1], counts)
    distinct = requests.n_blocks
    return Units(
        ids=requests.block_ids[number < np.repeat(full, counts)],
        offsets=np.concatenate(([0], np.cumsum(full))).astype(np.int64),
        tokens=np.full(distinct, requests.block_tokens, np.int64),
        free=np.ones(distinct, bool) if free else None,
    )


def parents(units: Units) -> NDArray[np.int64]:
    """Return the unit before each in its prompt, -1 for the first ones.

    Parameters
    ----------
    units : Units

    Raises
    ------
    BadValueError
        If a unit that is no free one follows different units: it does not name all before it.
    """
    before = np.concatenate(([-1], units.ids[:-1])) if units.ids.size else units.ids.copy()
    before[units.offsets[:-1][np.diff(units.offsets) > 0]] = -1
    found = np.full(units.tokens.size, -1, np.int64)
    found[units.ids] = before
    wrong = found[units.ids] != before
    if units.free is not None:
        wrong &= ~np.asarray(units.free, bool)[units.ids]
    if wrong.any():
        unit = int(units.ids[np.flatnonzero(wrong)[0]])
        raise BadValueError(
            "A unit follows different units, although it is said to name all before it.", given=f"unit {unit}",
            allowed="free units, or an identity for each place", where="ids",
        )  # fmt: skip
    return found


def units_of(policy: ReusePolicy, requests: RequestTrace, workers: int) -> Units:
    """Return the units of a policy, checked and as the simulators take them: apart for each model and adapter.

    Parameters
    ----------
    policy : ReusePolicy
    requests : RequestTrace
    workers : int

    Raises
    ------
    BadValueError
        If they cannot be those of the trace, or its workers.
    """
    given = policy.units(requests)
    ids, offsets, tokens = (np.ascontiguousarray(each, np.int64) for each in given[:3])
    n, distinct = len(requests), tokens.size
    if offsets.shape != (n + 1,) or offsets[0] != 0 or offsets[-1] != ids.size or (np.diff(offsets) < 0).any():
        _refuse("The units do not divide among the requests.", f"{offsets.size} offsets, {ids.size} units",
                f"{n + 1} offsets from 0 to the number of units", "offsets")  # fmt: skip
    if ids.size and not 0 <= ids.min() <= ids.max() < distinct:
        _refuse("A unit has no number of tokens.", f"unit {ids.min()} to {ids.max()}", f"0 to {distinct - 1}", "ids")
    if distinct and tokens.min() < 1:
        _refuse("A unit has no tokens.", int(tokens.min()), ">= 1", "tokens")
    sums = np.concatenate(([0], np.cumsum(tokens[ids])))
    longer = np.flatnonzero(np.diff(sums[offsets]) > requests.prompt_tokens)
    if longer.size or (distinct and tokens.max() >= 2**31):
        _refuse("A prompt has fewer tokens than its units.", f"row {longer[0] + 1}" if longer.size else tokens.max(),
                "units that are parts of the prompt", "tokens")  # fmt: skip
    free = None if given.free is None or not np.any(given.free) else np.ascontiguousarray(given.free, np.int8)
    names = None if given.names is None else np.ascontiguousarray(given.names, np.int64)
    resident = None if given.resident is None else np.ascontiguousarray(given.resident, np.int8)
    for what, array, shape in (("free", free, (distinct,)), ("names", names, ids.shape),
                               ("resident", resident, (workers, distinct))):  # fmt: skip
        if array is not None and array.shape != shape:
            _refuse("An array of units has another shape.", array.shape, shape, what)
    if names is not None and names.size:
        if names.min() < -1 or names.max() >= 2**31 - 1:
            _refuse("A name is no number.", f"{names.min()} to {names.max()}", "-1, or from 0 on", "names")
        if free is not None and (names[free[ids] != 0] >= 0).any():
            _refuse("A free unit has its content as its identity.", "a name", "-1", "names")
    found = _apart(Units(ids, offsets, tokens, free, names, resident), requests.weights)  # type: ignore[arg-type]
    entries = workers * (found.tokens.size + (0 if found.names is None else int(found.names.max(initial=-1)) + 1))
    if entries > MOST_ENTRIES:
        _refuse("There are too many units to keep track of.", f"{entries:,} of all workers", f"{MOST_ENTRIES:,}", "ids")
    return found


def _apart(units: Units, weights: NDArray[np.int64]) -> Units:
    """Return units with identities and names of their own for each model and adapter: others have other rows."""
    each = np.repeat(weights, np.diff(units.offsets))
    found = units
    pairs, ids = np.unique(np.stack((units.ids, each)), axis=1, return_inverse=True)
    of = pairs[0]
    several = of[1:][of[1:] == of[:-1]]
    if several.size:
        if units.resident is not None and units.resident[:, several].any():
            _refuse("A unit that workers have all the time is of one model and adapter.",
                    f"unit {several[units.resident[:, several].any(0)][0]} in prompts of several",
                    "an identity for each of them", "resident")  # fmt: skip
        found = units._replace(
            ids=ids.reshape(-1).astype(np.int64), tokens=units.tokens[of],
            free=None if units.free is None else units.free[of],
            resident=None if units.resident is None else np.ascontiguousarray(units.resident[:, of]),
        )  # fmt: skip
    if units.names is None or not weights.any():
        return found
    named = units.names >= 0
    names = np.full(len(named), -1, np.int64)
    names[named] = np.unique(np.stack((units.names, each))[:, named], axis=1, return_inverse=True)[1].reshape(-1)
    return found._replace(names=names)


def check_rule(rule: ReuseRule, longest_prompt: int) -> None:
    """Refuse a link on which a prompt takes longer than can be simulated.

    Parameters
    ----------
    rule : ReuseRule
    longest_prompt : int
        Tokens.

    Raises
    ------
    BadValueError
        If it does.
    """
    took_s = longest_prompt * rule.bytes_per_token / rule.link_bytes_per_s
    if rule.fetch and took_s > LONGEST_FETCH_S:
        _refuse("A prompt takes longer on the link than can be simulated.", f"{took_s:g} s", f"{LONGEST_FETCH_S:g} s",
                "link_bytes_per_s")  # fmt: skip


def _refuse(says: str, given: object, allowed: object, where: str) -> None:
    hint = "see wavetank.serving.simulator.reuse"
    raise BadValueError(says, given=given, allowed=str(allowed), where=where, hint=hint)
