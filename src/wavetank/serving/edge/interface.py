"""What a scheduler of an edge device sees and decides, and the profile that it looks latencies up in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from wavetank.errors import BadValueError


@dataclass(frozen=True, kw_only=True)
class ExitProfile:
    """Latencies and accuracies of models with exits.

    Parameters
    ----------
    models : tuple of str
    latency_s : tuple of tuple of tuple of float
        By model, exit (the shallowest first) and number of requests, from 1 on, s.
    accuracy : tuple of tuple of float
        By model and exit, 0 to 1.

    Raises
    ------
    BadValueError
        If shapes do not agree, a latency is not a positive number, or an accuracy is no share.
    """

    models: tuple[str, ...]
    latency_s: tuple[tuple[tuple[float, ...], ...], ...]
    accuracy: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        shapes = {(len(exits), len(batches)) for exits in self.latency_s for batches in exits}
        exits = {len(each) for each in self.accuracy}
        flat = [value for each in self.latency_s for batches in each for value in batches]
        if (
            not self.models or len(shapes) != 1 or exits != {min(shapes)[0]} or min(shapes)[1] < 1
            or not len(self.models) == len(self.latency_s) == len(self.accuracy)
        ):  # fmt: skip
            raise BadValueError("The profile's tables do not agree.", given=f"{sorted(shapes)}, {sorted(exits)}",
                                allowed="as many exits for each model, as many batch sizes for each exit")  # fmt: skip
        if not all(0 < value < math.inf for value in flat):
            raise BadValueError("A latency is a positive time.", given=min(flat))
        shares = [value for each in self.accuracy for value in each]
        if not all(0 <= value <= 1 for value in shares):
            raise BadValueError("An accuracy is a share.", given=shares, allowed="0 to 1")

    @property
    def exits(self) -> int:
        """Exits of each model."""
        return len(self.accuracy[0])

    @property
    def max_batch(self) -> int:
        """Largest profiled number of requests."""
        return len(self.latency_s[0][0])

    def seconds(self, model: int, exit_: int, batch: int) -> float:
        """Return the latency of a batch up to an exit, s."""
        return self.latency_s[model][exit_][batch - 1]


class Queues(NamedTuple):
    """What waits: arrival times of each model's requests, the oldest first."""

    now_s: float
    slo_s: float
    arrived_s: Sequence[Sequence[float]]


class Decision(NamedTuple):
    """The next batch: a model's oldest requests up to an exit; ``batch`` 0 waits until ``until_s`` or an arrival."""

    model: int
    batch: int
    exit: int
    until_s: float = math.inf


class EdgeScheduler(Protocol):
    """Chooses the next batch.

    Attributes
    ----------
    drops_late : bool
        Whether requests that can no longer be served in time leave the queue unserved.
    """

    drops_late: ClassVar[bool]

    def choose(self, queues: Queues, profile: ExitProfile, turn: int) -> Decision:
        """Return the next batch; at least one queue holds a request.

        Parameters
        ----------
        queues : Queues
        profile : ExitProfile
        turn : int
            How many batches there were before.
        """
        ...


def deepest(profile: ExitProfile, model: int, batch: int, waited_s: float, slo_s: float) -> int:
    """Return the deepest exit within the deadline of a request that has waited, else the shallowest.

    Parameters
    ----------
    profile : ExitProfile
    model, batch : int
    waited_s, slo_s : float
    """
    for exit_ in range(profile.exits - 1, 0, -1):
        if waited_s + profile.seconds(model, exit_, batch) <= slo_s:
            return exit_
    return 0
