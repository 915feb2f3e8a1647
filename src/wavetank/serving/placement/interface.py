"""What a planner of adapters sees and decides."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

from wavetank.errors import BadFileError, BadValueError, unknown_name
from wavetank.files import read_text
from wavetank.serving.adapters.lora_models import Costs, LoraModel, known_models, lora_model

SLOTS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384)
# Ranks that slots can be made for: vLLM's choices of max_lora_rank.
WIDTHS = (8, 16, 32, 64, 128, 256)
NO_DEVICE, TOO_MUCH, NO_GPU = "no device", "too much for one GPU", "no GPU left"
"""Why an adapter is not placed: no slot is wide enough or no KV cache is left beside it, its own requests are more than
one GPU serves, or all GPUs that may be used are full."""
_COLUMNS = ("adapter", "rank", "rate_per_s")
_LARGEST_BYTES = 16_000_000


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One LoRA adapter: its name, its rank and the requests that ask for it, per second.

    Raises
    ------
    BadValueError
        If the rank is no whole number above 0, or the rate is not above 0.
    """

    name: str
    rank: int
    rate_per_s: float

    def __post_init__(self) -> None:
        if self.rank != int(self.rank) or self.rank < 1:
            raise BadValueError("A rank is a whole number.", given=self.rank, allowed="1 or more", where=self.name)
        if not 0 < self.rate_per_s < math.inf:
            raise BadValueError(
                "An adapter needs a request rate.", given=self.rate_per_s, allowed="requests/s, above 0",
                where=self.name, hint="leave out adapters that nobody asks for",
            )  # fmt: skip


@cache
def model_named(name: str) -> tuple[LoraModel, Costs]:
    """Return a model of which memory and costs ship, with its costs: fitted ones, else the authors' constants.

    Parameters
    ----------
    name : str

    Raises
    ------
    UnknownNameError
        If nothing ships of it.
    """
    if name not in known_models():
        raise unknown_name("model with known adapter costs", name, known_models(), where="model")
    # Of a model without lengths of its own, those of the first one: the same prompts were sent to both.
    first = lora_model(known_models()[0], 1.0, 1.0).lengths
    model = lora_model(name, first.prompt_mean_tokens, first.output_mean_tokens)
    costs = model.costs or model.published
    if costs is None or model.memory is None:
        raise BadValueError(f"Costs or memory of {name} are not known.", given=name, where="model")
    return model, costs


@dataclass(frozen=True, kw_only=True)
class TwinRun:
    """What a GPU gave in the window that counts.

    Attributes
    ----------
    asked_tokens, given_tokens : float
        Output tokens of the requests that came, and of those that were finished.
    itl_mean_s, ttft_p99_s : float
        NaN where nothing was finished.
    worst_share : float
        Of the adapters with 20 requests or more: the least share of requests that came in the first nine tenths of the
        window and were finished in it.
    """

    asked_tokens: float
    given_tokens: float
    itl_mean_s: float
    ttft_p99_s: float
    worst_share: float

    @property
    def share(self) -> float:
        """Share of the tokens asked for that were given."""
        return self.given_tokens / self.asked_tokens if self.asked_tokens else 1.0


@dataclass(frozen=True, kw_only=True)
class PlacementProblem:
    """The adapters to place, and on what.

    Parameters
    ----------
    adapters : tuple of Adapter
    model : str
        The base model.
    gpus : int or None
        Most GPUs that may be used; None for any number.
    share : float
        A GPU starves where it gives less than this share of the tokens asked for, or to one of its adapters less than
        this share of its requests.
    headroom : float
        Share of what a planner believes that a GPU keeps up which it may use; above 1 where it believes too little.
    itl_target_s : float or None
        Longest mean time between tokens on a GPU, s.

    Raises
    ------
    BadValueError
        If there are no adapters, two have the same name, or a number is out of range.
    """

    adapters: tuple[Adapter, ...]
    model: str = "llama-3.1-8b-instruct"
    gpus: int | None = None
    share: float = 0.9
    headroom: float = 1.0
    itl_target_s: float | None = None

    def __post_init__(self) -> None:
        model_named(self.model)
        if not self.adapters:
            raise BadValueError("There are no adapters to place.", given="none", allowed="at least one")
        twice = [name for name, times in Counter(each.name for each in self.adapters).items() if times > 1]
        if twice:
            raise BadValueError("Two adapters have the same name.", given=", ".join(twice[:5]))
        if not (0 < self.share <= 1 and 0 < self.headroom <= 2) or (self.gpus is not None and self.gpus < 1):
            raise BadValueError(
                "Share, headroom or number of GPUs is out of range.", given=(self.share, self.headroom, self.gpus),
                allowed="0 to 1, 0 to 2, 1 or more",
            )  # fmt: skip

    @cached_property
    def by_name(self) -> Mapping[str, Adapter]:
        """The adapters by their names."""
        return {each.name: each for each in self.adapters}

    def fed(self, run: TwinRun) -> bool:
        """Return whether a GPU keeps up: with the tokens asked for, with every adapter's requests, and with the target
        for the time between tokens, where there is one.

        Parameters
        ----------
        run : TwinRun
        """
        slow = self.itl_target_s is not None and run.itl_mean_s > self.itl_target_s
        return run.share >= self.share and run.worst_share >= self.share and not slow

    def choices(self, rank: int) -> list[int]:
        """Return the numbers of slots with which an engine starts.

        Parameters
        ----------
        rank : int
            The largest among its adapters.
        """
        return [slots for slots in SLOTS if kv_tokens(self.model, slots, rank)]


def kv_tokens(model: str, slots: int, rank: int) -> int:
    """Return the KV cache beside ``slots`` for adapters up to ``rank``, in tokens; 0 where the engine cannot start.

    Parameters
    ----------
    model : str
    slots, rank : int
    """
    width = width_of(rank)
    known, _ = model_named(model)
    if width is None or known.memory is None or known.longest_context_tokens is None:
        return 0
    whole, per_slot, per_slot_rank = known.memory
    left = whole - slots * (per_slot + per_slot_rank * width)
    return int(left) if left >= known.longest_context_tokens else 0


def width_of(rank: int) -> int | None:
    """Return the narrowest slot that an adapter of this rank fits into; None where there is none.

    Parameters
    ----------
    rank : int
    """
    return next((width for width in WIDTHS if rank <= width), None)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU of a plan: the names of its adapters, and its slots."""

    adapters: tuple[str, ...]
    slots: int


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which adapter is served where.

    Attributes
    ----------
    gpus : tuple of Gpu
    unplaced : mapping of str to str
        Adapters without a GPU, with the reason.  A plan is infeasible where there are any.
    """

    gpus: tuple[Gpu, ...]
    unplaced: Mapping[str, str] = field(default_factory=dict)

    @property
    def feasible(self) -> bool:
        """Whether every adapter has a GPU."""
        return not self.unplaced

    def check(self, problem: PlacementProblem) -> None:
        """Raise unless every adapter stands in exactly one place and every engine can start.

        Parameters
        ----------
        problem : PlacementProblem

        Raises
        ------
        UnknownNameError
            If the plan names an adapter that nobody has.
        BadValueError
            If an adapter is missing or stands twice, or a GPU has no memory for its slots.
        """
        placed = [name for gpu in self.gpus for name in gpu.adapters] + list(self.unplaced)
        for name in placed:
            if name not in problem.by_name:
                raise unknown_name("adapter", name, problem.by_name, where="placement")
        wrong = [name for name, times in Counter(placed).items() if times > 1]
        wrong += sorted(problem.by_name.keys() - set(placed))
        if wrong:
            raise BadValueError("Each adapter must stand in exactly one place.", given=", ".join(wrong[:5]))
        if problem.gpus is not None and len(self.gpus) > problem.gpus:
            raise BadValueError(
                "The plan uses more GPUs than there are.", given=len(self.gpus), allowed=str(problem.gpus)
            )
        for i, gpu in enumerate(self.gpus):
            rank = max((problem.by_name[name].rank for name in gpu.adapters), default=1)
            if not gpu.adapters or not kv_tokens(problem.model, gpu.slots, rank):
                raise BadValueError(
                    "A GPU has no adapters, or no memory beside its slots.", given=f"{gpu.slots} slots of rank {rank}",
                    allowed=[str(each) for each in problem.choices(rank)], where=f"GPU {i}",
                )  # fmt: skip


class PlacementPlanner(Protocol):
    """Spreads adapters over GPUs."""

    def plan(self, problem: PlacementProblem) -> Placement:
        """Return a plan that passes :meth:`Placement.check`.

        Parameters
        ----------
        problem : PlacementProblem
        """
        ...


def outcasts(problem: PlacementProblem) -> dict[str, str]:
    """Return the adapters that no engine can hold, with the reason.

    Parameters
    ----------
    problem : PlacementProblem
    """
    return {each.name: NO_DEVICE for each in problem.adapters if not problem.choices(each.rank)}


def all_resident(problem: PlacementProblem, adapters: Sequence[Adapter]) -> int | None:
    """Return the fewest slots that hold all of some adapters, else the most that can be had; None where none can.

    Parameters
    ----------
    problem : PlacementProblem
    adapters : sequence of Adapter
    """
    choices = problem.choices(max(each.rank for each in adapters))
    return next((slots for slots in choices if slots >= len(adapters)), choices[-1]) if choices else None


def read_adapters(path: str) -> tuple[Adapter, ...]:
    """Read adapters from a CSV file with the columns adapter, rank and rate_per_s.

    Parameters
    ----------
    path : str

    Raises
    ------
    BadFileError
        That names the line.
    """
    reader = csv.DictReader(io.StringIO(read_text(Path(path).expanduser(), largest_bytes=_LARGEST_BYTES)))
    if sorted(reader.fieldnames or ()) != sorted(_COLUMNS):
        raise BadFileError(
            "The columns are not those of adapters.", given=", ".join(reader.fieldnames or ()) or "an empty file",
            allowed=", ".join(_COLUMNS), where=path,
        )  # fmt: skip
    found: dict[str, Adapter] = {}
    for number, row in enumerate(reader, start=2):
        name = (row["adapter"] or "").strip()
        if None in row:
            raise BadFileError("This row has more cells than there are columns.", where=f"{path}, line {number}")
        try:
            each = Adapter(name=name, rank=int(row["rank"]), rate_per_s=float(row["rate_per_s"]))
        except (BadValueError, TypeError, ValueError) as error:
            why = error.problem if isinstance(error, BadValueError) else "something is no number"
            raise BadFileError(
                f"This row is no adapter: {why}", given=str(row), where=f"{path}, line {number}"
            ) from error
        if not name or name in found:
            raise BadFileError("Names must differ.", given=name or "no name", where=f"{path}, line {number}")
        found[name] = each
    if not found:
        raise BadFileError("The file names no adapters.", where=path, allowed="a row per adapter")
    return tuple(found.values())
