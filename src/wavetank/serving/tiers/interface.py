"""What a configurator sees and decides: tiers, groups of GPUs, plans, what groups keep up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BOTH, PREFILL, DECODE = 0, 1, 2
ROLES = ("both", "prefill", "decode")
ANY_TIER = -1


@dataclass(frozen=True, kw_only=True)
class Tier:
    """A service level: a request counts where both objectives hold.

    Parameters
    ----------
    name : str
    ttft_s : float
        Objective for the time to first token, s.
    tpot_s : float
        Objective for the mean time per further token, s.
    prompt_tokens, output_tokens : float
        Mean lengths, as profiles expect them.
    """

    name: str
    ttft_s: float
    tpot_s: float
    prompt_tokens: float
    output_tokens: float

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s", "prompt_tokens", "output_tokens"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise BadValueError(
                    f"The tier {self.name!r} has no such {name}.", given=value, allowed="a number above 0"
                )


class Group(NamedTuple):
    """GPUs that share every layer, and what they do.

    Attributes
    ----------
    tier : int
        Whose requests are at home here; ``ANY_TIER`` for all.
    tp : int
        Tensor-parallel degree: the GPUs of the group.
    role : int
        ``BOTH``, ``PREFILL`` or ``DECODE``.
    """

    tier: int
    tp: int
    role: int = BOTH


class Unit(NamedTuple):
    """What a planner adds at once: groups of one tier and one degree that together serve requests.

    Attributes
    ----------
    tier, tp : int
    prefill, decode : int
        Groups for prompts alone and for answers alone; 0 and 0: one group does both.
    per_s : float
        Requests per second of the tier that keep their objectives.
    """

    tier: int
    tp: int
    prefill: int
    decode: int
    per_s: float

    @property
    def gpus(self) -> int:
        """GPUs of all its groups."""
        return self.tp * max(1, self.prefill + self.decode)

    def groups(self) -> tuple[Group, ...]:
        """Return its groups."""
        if not self.prefill:
            return (Group(self.tier, self.tp),)
        return (Group(self.tier, self.tp, PREFILL),) * self.prefill + (Group(self.tier, self.tp, DECODE),) * self.decode


Plan = tuple[Group, ...]
"""The groups that run; equal plans are equal tuples, see :func:`plan_of`."""


def plan_of(units: Sequence[Unit]) -> Plan:
    """Return the groups of units, in one order."""
    return tuple(sorted(group for unit in units for group in unit.groups()))


def check_plan(plan: Plan, gpus: int, kv_heads: int) -> None:
    """Raise unless a plan's groups are powers of two that fit into the GPUs and divide the KV heads.

    Raises
    ------
    BadValueError
        A degree beyond the KV heads would hold heads twice, and a switch would have to copy them: it is refused.
    """
    for group in plan:
        if group.tp < 1 or group.tp & (group.tp - 1):
            raise BadValueError("A group's degree is a power of two.", given=group.tp, allowed="1, 2, 4, 8, ...")
        if group.tp > kv_heads or kv_heads % group.tp:
            raise BadValueError(
                "A tensor-parallel degree must divide the KV heads.", given=group.tp,
                allowed=f"a divisor of {kv_heads}", hint="a higher degree would hold heads twice",
            )  # fmt: skip
    needed = sum(group.tp for group in plan)
    if not plan or needed > gpus:
        raise BadValueError("The plan does not fit.", given=f"{needed} GPUs", allowed=f"1 to {gpus}")
    if not any(group.role != PREFILL for group in plan) or not any(group.role != DECODE for group in plan):
        raise BadValueError(
            "A plan needs groups for prompts and groups for answers.", given=", ".join(ROLES[g.role] for g in plan)
        )


class Problem(NamedTuple):
    """What a policy knows before the first request.

    Attributes
    ----------
    tiers : tuple of Tier
    units : tuple of Unit
        What can be added, of every tier, with a full copy of the weights on every GPU.
    sliced : tuple of Unit
        The same where every GPU holds only the slices of its degree.
    gpus : int
    window_s : float
        Time between two decisions, s.
    switch_s : float
        Pause of a group whose degree changes, s.
    expected_per_s : tuple of float
        Mean arrivals of each tier while rivals were tuned.
    """

    tiers: tuple[Tier, ...]
    units: tuple[Unit, ...]
    sliced: tuple[Unit, ...]
    gpus: int
    window_s: float
    switch_s: float
    expected_per_s: tuple[float, ...]


class WindowView(NamedTuple):
    """What a policy sees at the end of a window.

    Attributes
    ----------
    window : int
        Number of the window that begins, from 1.
    arrived : ndarray of int64, shape (tiers,)
        Requests of each tier in the window that ended.
    waiting : ndarray of int64, shape (tiers,)
        Requests that wait in time for their first token.
    good_per_s : float
        Requests per second that ended in the window within both objectives.
    plan : tuple of Group
        What runs.
    """

    window: int
    arrived: Ints
    waiting: Ints
    good_per_s: float
    plan: Plan


class Rules(NamedTuple):
    """How requests find a group and wait there.

    Attributes
    ----------
    checked : bool
        Whether a request is promised its objectives only where they can be kept, and is best effort elsewhere.
    spills : bool
        Whether best-effort requests go to groups of other tiers.
    by_deadline : bool
        Whether the earliest deadline goes first, in place of the earliest arrival.
    full_copy : bool
        Whether every GPU holds all weights, as switching needs.
    """

    checked: bool = True
    spills: bool = True
    by_deadline: bool = False
    full_copy: bool = True


class Policy(Protocol):
    """Chooses the groups, before the first request and at the end of every window."""

    @property
    def rules(self) -> Rules:
        """How requests are scheduled under it."""
        ...

    def begin(self, problem: Problem) -> tuple[Plan, Any]:
        """Return the first plan and a state of its own."""
        ...

    def decide(self, view: WindowView, state: Any) -> Plan:
        """Return the plan of the window that begins; ``view.plan`` changes nothing."""
        ...
