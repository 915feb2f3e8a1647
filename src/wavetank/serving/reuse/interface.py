"""What a rule of reuse is asked: serve prompts one after another, and say what of each was there already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from wavetank.serving.reuse.segments import Ends, Tokens
from wavetank.serving.simulator.reuse import GivenUnits

INSTRUCTIONS, ENTRY, ITEM, TASK = range(4)


class Parts(NamedTuple):
    """What a prompt was put together from.

    Attributes
    ----------
    ends : int64 array (parts,)
        Where each part ends, in ids.
    kinds : int64 array (parts,)
        INSTRUCTIONS, ENTRY (of a user's history), ITEM (a candidate) or TASK (what is asked, never kept).
    """

    ends: Ends
    kinds: Ends


class Prompt(NamedTuple):
    """A prompt as a server gets it.

    Attributes
    ----------
    ids : uint32 array (ids,)
        What it consists of: tokens, or blocks of a trace that names only blocks.
    tokens : int
        How many tokens these are.
    session : int
        Which conversation it belongs to.
    parts : Parts, optional
        None where nobody says of what it consists.
    """

    ids: Tokens
    tokens: int
    session: int
    parts: Parts | None = None


class Workload(NamedTuple):
    """Prompts in the order in which they come.

    Attributes
    ----------
    prompts : sequence of Prompt
    unit : int
        Tokens that an id stands for; the last id of a prompt may stand for fewer.
    only_prefixes : bool
        Whether an id also stands for all before it, so that nothing but prefixes can come back.
    """

    prompts: Sequence[Prompt]
    unit: int = 1
    only_prefixes: bool = False


class Served(NamedTuple):
    """Tokens of a prompt, by what was done for them; the first three together are the prompt.

    Attributes
    ----------
    reused : int
        Taken from the cache as they are.
    recomputed : int
        Found in the cache and computed again nevertheless.
    computed : int
        Not found.
    moved : int
        Of those reused, how many stood elsewhere.
    """

    reused: int
    recomputed: int
    computed: int
    moved: int = 0


class Cache(Protocol):
    """What one server keeps."""

    def serve(self, prompt: Prompt) -> Served:
        """Serve a prompt and keep it.

        Parameters
        ----------
        prompt : Prompt
        """
        ...


@runtime_checkable
class SimulatedReuse(Protocol):
    """A rule that the serving simulator's workers can have, too."""

    def policy(self, workload: Workload, *, shared: bool) -> GivenUnits:
        """Return the rule as the serving simulator takes it.

        Parameters
        ----------
        workload : Workload
            What is served, in this order.
        shared : bool
            Whether conversations find what others have.
        """
        ...


class Reuse(Protocol):
    """Decides how prompts are cut, found again and kept."""

    def cache(self, *, budget_tokens: int | None, unit: int) -> Cache:
        """Return an empty cache.

        Parameters
        ----------
        budget_tokens : int, optional
            Tokens that fit; no limit when it is left out.
        unit : int
            Tokens that an id of a prompt stands for.
        """
        ...
