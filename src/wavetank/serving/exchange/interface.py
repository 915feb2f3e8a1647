"""What an exchange is asked: bring tokens to experts and outputs back, through memory that all ranks address.

An exchange is a program of each rank that stops where it must wait, as a generator does.  What runs it decides what
happens meanwhile: real processes look at the words that they wait for, and :mod:`~wavetank.serving.exchange.together`
lets the ranks of one process go on in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, WavetankError

Floats = NDArray[Any]
Integers = NDArray[np.int64]
# Name of an area to the shape and type of its numbers; the areas of all ranks are one array.
Areas = Mapping[str, tuple[tuple[int, ...], str]]
# Number of an expert and what comes to it, (rows, hidden), to what it gives: the same shape and type.  A row's output
# depends on that row alone, to the last digit.
Experts = Callable[[int, Floats], Floats]

DTYPES = ("float32", "float64")
WIRES = ("plain", "int8")
# Two steps may be under way: the next one's tokens leave before this one's outputs are read.
BUFFERS = 2
_SCALE_BYTES = 8


class LateRankError(WavetankError):
    """A rank that did not come to a stage in time."""

    def __init__(self, message: str, *, rank: int = -1, stage: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.rank, self.stage = rank, stage


class CapacityError(WavetankError):
    """More tokens than a window has room for."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all ranks of an exchange know beforehand.

    Parameters
    ----------
    ranks : int
        1 to 64.
    slots : int
        Places for experts on each rank.
    hidden : int
        Numbers of a token's vector.
    tokens : int
        At most, of one rank and step.
    choices : int
        Experts of a token.
    dtype : str
        ``float32`` or ``float64``.
    wire : str
        How vectors travel to experts: ``plain``, or ``int8`` with a scale for each token.
    window_rows : int
        Rows of a rank's packed window; 0: enough for any routing.
    source_rows : int
        Rows that a source has at each expert in layouts of fixed capacity; 0: as many as it has tokens.

    Raises
    ------
    BadValueError
        If a number is out of its range, a vector has no whole number of eight bytes, or float64 is to be quantised.
    """

    ranks: int
    slots: int
    hidden: int
    tokens: int
    choices: int
    dtype: str = "float32"
    wire: str = "plain"
    window_rows: int = 0
    source_rows: int = 0

    def __post_init__(self) -> None:
        most = {"ranks": 64, "slots": 4096, "hidden": 1 << 20, "tokens": 1 << 20, "choices": 4096,
                "window_rows": 1 << 30, "source_rows": 1 << 30}  # fmt: skip
        for name, high in most.items():
            value, low = getattr(self, name), 0 if name.endswith("_rows") else 1
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise BadValueError("An exchange has other sizes.", given=value, allowed=f"{low} to {high}", where=name)
        for name, allowed in (("dtype", DTYPES), ("wire", WIRES)):
            if getattr(self, name) not in allowed:
                raise BadValueError("There is no such form of a vector.", given=getattr(self, name), allowed=allowed,
                                    where=name)  # fmt: skip
        if self.wire == "int8" and self.dtype != "float32":
            raise BadValueError("Only float32 is quantised on its way.", given=self.dtype, allowed="float32",
                                where="dtype")  # fmt: skip
        if self.row_bytes % 8 or (self.wire == "int8" and self.hidden % 8):
            raise BadValueError("A vector is a whole number of eight bytes.", given=self.hidden, where="hidden",
                                hint="take a multiple of 8")  # fmt: skip

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a token's vector on its way to an expert, its scale included."""
        return self.hidden + _SCALE_BYTES if self.wire == "int8" else self.output_bytes

    @property
    def output_bytes(self) -> int:
        """Return the bytes of an expert's output."""
        return self.hidden * np.dtype(self.dtype).itemsize

    @property
    def packed_rows(self) -> int:
        """Return the rows of a rank's packed window."""
        return self.window_rows or self.ranks * self.tokens * self.choices

    @property
    def fixed_rows(self) -> int:
        """Return the rows that a source has at each expert where capacities are fixed."""
        return self.source_rows or self.tokens


class Batch(NamedTuple):
    """A rank's own tokens of one step.

    Attributes
    ----------
    values : float array (tokens, hidden)
    slots : int64 array (tokens, choices)
        Where each expert of a token is: rank * slots + place; -1: nowhere, it adds nothing.
    gates : float array (tokens, choices)
        Weights of the outputs.
    """

    values: Floats
    slots: Integers
    gates: Floats


def checked(batch: Batch, task: Task) -> Batch:
    """Return a batch as contiguous arrays of the task's types.

    Raises
    ------
    BadValueError
        If it does not fit the task.
    """
    tokens = batch.values.shape[0] if batch.values.ndim == 2 else -1
    wanted = {"values": (tokens, task.hidden), "slots": (tokens, task.choices), "gates": (tokens, task.choices)}
    for name, shape in wanted.items():
        given = getattr(batch, name)
        if given.shape != shape or not 0 <= tokens <= task.tokens:
            raise BadValueError("A batch does not fit its task.", given=f"{name} {given.shape}", where=name,
                                allowed=f"at most {task.tokens} tokens, {task.hidden} numbers and {task.choices} "
                                "choices each")  # fmt: skip
        if name != "slots" and given.dtype.kind not in "fiu":
            raise BadValueError("A batch has other values than real numbers.", given=given.dtype, where=name)
    slots = batch.slots
    if slots.dtype.kind not in "iu" or (slots.size and not -1 <= slots.min() <= slots.max() < task.ranks * task.slots):
        raise BadValueError("A token goes to no slot of the task.", allowed=f"-1 to {task.ranks * task.slots - 1}",
                            given=f"{slots.min()} to {slots.max()}" if slots.size else slots.dtype)  # fmt: skip
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(batch.values, task.dtype)
    # Looked at as they travel: what is finite in float64 may not be in float32.
    if task.wire == "int8" and not np.isfinite(values).all():
        raise BadValueError("A vector that is not finite has no scale.", given="infinite or no number", where="values")
    return Batch(
        values,
        np.ascontiguousarray(slots, np.int64),
        np.ascontiguousarray(batch.gates, task.dtype),
    )


class Wait(NamedTuple):
    """What a rank cannot go on without.

    Attributes
    ----------
    stage : str
    members : tuple of int
        Ranks that must have come to the stage.
    step : int
        In this step or a later one.
    places : int64 array (members,)
        Where in the words their steps stand.
    """

    stage: str
    members: tuple[int, ...]
    step: int
    places: Integers


class Point(NamedTuple):
    """A place of a rank's program: another rank may go on first, and planned faults strike here."""

    name: str
    step: int


Result = TypeVar("Result")
Program = Generator[Wait | Point, None, Result]


class Piece(NamedTuple):
    """Rows that wait for one expert.

    Attributes
    ----------
    slot : int
        Place of the expert on this rank.
    given : int64 array (rows, words)
        Vectors as they travelled.
    output : float array (rows, hidden)
        Where the expert's outputs go.
    """

    slot: int
    given: Integers
    output: Floats


@dataclass
class Arrived:
    """What a dispatch leaves for the experts and the combine of its step.

    Parameters
    ----------
    pieces : list of Piece
    places : int64 array
        Where the combine finds what belongs to each token and choice.
    kept : mapping
        What else the exchange wants to know again.
    """

    pieces: list[Piece]
    places: Integers
    kept: dict[str, Any] = field(default_factory=dict)


@dataclass
class Traffic:
    """Bytes of vectors and outputs that a rank moved; control words are not among them.

    Parameters
    ----------
    read_bytes, written_bytes : int
        By its copies, whether the memory is its own or another's.
    far_bytes : int
        Of one side of each copy: what went between ranks.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    far_bytes: int = 0


class Exchange(Protocol):
    """How tokens and outputs travel."""

    def areas(self, task: Task) -> Areas:
        """Return the memory that all ranks need together."""

    def dispatch(self, port: Any, batch: Batch) -> Program[Arrived]:
        """Bring the rank's tokens to their experts, and wait for the tokens of others."""

    def combine(self, port: Any, batch: Batch, arrived: Arrived, output: Floats) -> Program[None]:
        """Bring outputs back and write each token's weighted sum, in the order of its choices."""


def exclusive_sums(counts: Integers) -> Integers:
    """Return for each count the sum of those before it, of all together, in the order of memory."""
    flat = counts.ravel()
    return (np.cumsum(flat) - flat).reshape(counts.shape)


def pieces_of(counts: Sequence[int] | Integers, given: Integers, output: Floats) -> list[Piece]:
    """Return the pieces of rows that stand slot after slot.

    Parameters
    ----------
    counts : sequence of int (slots,)
    given, output
        All rows.
    """
    found, begin = [], 0
    for slot, count in enumerate(counts):
        if count:
            found.append(Piece(slot, given[begin : begin + count], output[begin : begin + count]))
        begin += int(count)
    return found
