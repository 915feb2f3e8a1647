"""Who gets how many rows: three laws that set the border between two devices.

The first device, the host, owns the block rows above the border, the second, the accelerator, those from it on.  A law
sees what both did since it was asked last, and answers with a new border.  It decides nothing but that number, so the
same law serves a real run and a simulated one.

Differs from the source:

1. The laws are asked after the first and second step, too, so that a wrong start costs little.
2. The host's time is multiplied by 1, not 1.2; 1.2 can be asked for.
3. The host's rows of a triangle are rounded to the nearest number, not down.
4. The power law is given watts; the source reads them from meters while it runs.
5. It counts what moving rows costs for each of the three ways.  What the columns cost that cross the link is part of
   the accelerator's time here, and a term of its own in the source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from wavetank.errors import BadValueError, unknown_name

LAWS = ("static", "runtime", "power")


class Load(NamedTuple):
    """What a law decides from.

    Work is counted in blocks: a block of the trailing matrix updated, or a block of the matrix multiplied.
    """

    blocks: int
    """Block rows in all, n."""
    first: int
    """First block row that is still worked on: k + 1 in column k of a factorisation, 0 in conjugate gradients."""
    border: int
    """First block row of the accelerator."""
    host_blocks: float
    """Blocks that the host worked on since the law was asked last."""
    host_s: float
    """Seconds it took, without waiting."""
    accelerator_blocks: float
    accelerator_s: float
    triangle: bool = True
    """Whether the host's rows form a triangle (its work grows with their square), or whole rows."""
    least: int = 0
    """Rows that the accelerator keeps at least."""
    copy_s_per_row: float = 0.0
    """Seconds it takes to move a block row."""


class SplitLaw(Protocol):
    """Sets the border."""

    @property
    def share(self) -> float:
        """Return the share of the block rows that the accelerator gets at first."""
        ...

    def due(self, step: int) -> bool:
        """Return whether the law wants to be asked before step ``step`` (an iteration, a column; from 0)."""
        ...

    def border(self, load: Load) -> int:
        """Return the first block row that the accelerator shall own."""
        ...


def first_border(share: float, blocks: int) -> int:
    """Return the border that gives the accelerator ceil(``share`` * ``blocks``) rows.

    Examples
    --------
    >>> [first_border(share, 10) for share in (0.0, 0.45, 1.0)]
    [10, 5, 0]
    """
    return blocks - math.ceil(share * blocks - 1e-9)


def host_rows(share: float, rows: int, triangle: bool) -> int:
    """Return how many of the ``rows`` rows left the host gets, so that the accelerator has ``share`` of the work.

    Of a triangle the nearest number, so that over many steps nobody gets less than his part.

    Parameters
    ----------
    share : float
        The accelerator's share of the blocks, 0 to 1.
    rows : int
    triangle : bool
        Whether the host's rows form a triangle: v rows are v (v + 1) / 2 blocks.
    """
    if not triangle:
        return rows - math.ceil(share * rows - 1e-9)
    work = (1.0 - share) * rows * (rows + 1) / 2
    return min(rows, math.floor(math.sqrt(1.0 + 8.0 * work) / 2))


def accelerator_share(load: Load, host_time_factor: float = 1.0) -> float:
    """Return the share of the blocks with which both devices would have ended at the same time."""
    host = host_time_factor * load.host_s / load.host_blocks
    accelerator = load.accelerator_s / load.accelerator_blocks
    return host / (host + accelerator) if host + accelerator > 0 else 0.5


def _balanced(load: Load, share: float) -> int:
    border = load.first + host_rows(share, load.blocks - load.first, load.triangle)
    return max(load.first, min(border, load.blocks - load.least))


def _both_worked(load: Load) -> bool:
    return load.host_blocks > 0 and load.accelerator_blocks > 0


@dataclass(frozen=True, kw_only=True)
class StaticSplit:
    """The border stays where it is.

    Parameters
    ----------
    share : float
        Share of the block rows that the accelerator owns, p.
    """

    share: float = 0.5

    def due(self, step: int) -> bool:
        """Return False."""
        return False

    def border(self, load: Load) -> int:
        """Return the border as it is."""
        return load.border


@dataclass(frozen=True, kw_only=True)
class MeasuredSplit:
    """What the laws have in common that decide from measured loads: when they are asked, and where the balance is.

    Parameters
    ----------
    share : float
        Of the block rows, for the first step.
    every : int
        Steps between two decisions, after the first two steps; 10 in the source.
    host_time_factor : float
        The host's time is multiplied by it where work is shared; 1.2 in the source.
    ignore_rows : int
        A change of as many rows or fewer is not worth moving them; 1 in the source.
    """

    share: float = 0.5
    every: int = 10
    host_time_factor: float = 1.0
    ignore_rows: int = 1

    def due(self, step: int) -> bool:
        """Return True for the steps 1 and 2 and every ``every``-th."""
        return step > 0 and (step <= 2 or step % self.every == 0)

    def balanced(self, load: Load) -> int:
        """Return the border at which both are expected to end together, or the one that is, if it is near enough."""
        border = _balanced(load, accelerator_share(load, self.host_time_factor))
        return load.border if abs(border - load.border) <= self.ignore_rows else border


@dataclass(frozen=True, kw_only=True)
class RuntimeSplit(MeasuredSplit):
    """Each device gets work in proportion to the blocks per second it has just done.

    Parameters
    ----------
    share, every, host_time_factor, ignore_rows
        As in :class:`MeasuredSplit`.
    """

    def border(self, load: Load) -> int:
        """Return the border at which both are expected to end together."""
        return self.balanced(load) if _both_worked(load) else load.border


@dataclass(frozen=True, kw_only=True)
class PowerSplit(MeasuredSplit):
    """The cheapest in joules of three: the accelerator alone, the host alone, both in balance.

    Parameters
    ----------
    host_watts, accelerator_watts : float
        While working.
    idle_watts : float
        Of the host while the accelerator works alone; 30 in the source.
    host_only_factor : float
        The host's joules are multiplied by it when it works alone; 0.8 in the source.
    share, every, host_time_factor, ignore_rows
        As in :class:`MeasuredSplit`.
    """

    host_watts: float = 150.0
    accelerator_watts: float = 300.0
    idle_watts: float = 30.0
    host_only_factor: float = 0.8

    def joules(self, load: Load) -> dict[str, float]:
        """Return the joules of one pass over the rows left: ``accelerator``, ``host`` and ``both``."""
        rows = load.blocks - load.first
        work = rows * (rows + 1) / 2 if load.triangle else rows
        host_s = load.host_s / load.host_blocks * work
        accelerator_s = load.accelerator_s / load.accelerator_blocks * work
        slowed_s = self.host_time_factor * host_s
        both_s = slowed_s * accelerator_s / (slowed_s + accelerator_s) if slowed_s + accelerator_s > 0 else 0.0
        mixed = _balanced(load, accelerator_share(load, self.host_time_factor))

        def moving_s(border: int) -> float:
            return load.copy_s_per_row * abs(border - load.border) / self.every

        both_watts = self.host_watts + self.accelerator_watts
        return {
            "accelerator": (self.accelerator_watts + self.idle_watts) * accelerator_s
            + both_watts * moving_s(load.first),
            "host": self.host_only_factor * self.host_watts * host_s + both_watts * moving_s(load.blocks),
            "both": both_watts * (both_s + moving_s(mixed)),
        }

    def border(self, load: Load) -> int:
        """Return the border of the cheapest way."""
        if not _both_worked(load):
            return load.border
        joules = self.joules(load)
        cheapest = min(joules, key=joules.__getitem__)
        return {"accelerator": load.first, "host": load.blocks, "both": self.balanced(load)}[cheapest]


def law_of(
    name: str, *, share: float, every: int = 10, host_time_factor: float = 1.0, ignore_rows: int = 1
) -> SplitLaw:
    """Return the law of that name.

    Parameters
    ----------
    name : str
        One of :data:`LAWS`.
    share : float
        Of the block rows, for the accelerator, at first.
    every, host_time_factor, ignore_rows
        See :class:`RuntimeSplit`.

    Raises
    ------
    UnknownNameError, BadValueError
    """
    if name not in LAWS:
        raise unknown_name("law of splitting", name, LAWS, where="split")
    if not 0.0 <= share <= 1.0:
        raise BadValueError("A share lies between 0 and 1.", given=share, allowed="0 to 1", where="split")
    if name == "static":
        return StaticSplit(share=share)
    kind = RuntimeSplit if name == "runtime" else PowerSplit
    return kind(share=share, every=every, host_time_factor=host_time_factor, ignore_rows=ignore_rows)
