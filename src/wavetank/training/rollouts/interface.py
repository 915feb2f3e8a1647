"""Whose GPUs compute rollouts, and by which rules: what a system of this room decides, and what it is simulated with.

An arrangement says how many GPUs compute rollouts, whether those that serve users take part, and who decides when
(the governor), where a turn goes (the router), how weights get there (the format) and how old they may be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError, unknown_name
from wavetank.training.rollouts.delta import SIZED, bytes_per_element

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

PS = 10**12

NONE, SLACK, PRIORITY, INTERLEAVE, FREE = range(5)
GOVERNORS = {"none": NONE, "slack": SLACK, "priority": PRIORITY, "interleave": INTERLEAVE, "free": FREE}
"""When a serving GPU computes rollouts: never; while every request keeps its slack; while it has no request; after
every step of serving, whatever becomes of it; always, as if nobody had to be served (no real system)."""

AFFINITY, AFFINITY_LEAST, LEAST, RANDOM = range(4)
ROUTERS = {"affinity": AFFINITY, "affinity-least": AFFINITY_LEAST, "least-loaded": LEAST, "random": RANDOM}
"""Where a turn goes: to the GPU that holds its prefix, else to the least loaded serving GPU, else to any; the same, but
to the least loaded of all; to the least loaded, wherever its prefix is; to any with room."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """What a system decides.

    Parameters
    ----------
    more_gpus : int
        Dedicated GPUs beside those that everybody has.
    spot_gpus : int
        GPUs that come some time after they were asked for, and are taken away again.
    taken_gpus : int
        Serving GPUs that compute rollouts alone from the first step to the last; the others serve all users.
    governor, router : str
        Of ``GOVERNORS`` and ``ROUTERS``.
    margin : float
        Share of the service level that the governor keeps free.
    format : str
        Of ``wavetank.training.rollouts.delta.SIZED``: how weights reach serving and spot GPUs.
    staleness : int
        Versions by which the weights that a trajectory began with may be older than those that learn from it; 0: every
        step waits for its last trajectory.
    """

    more_gpus: int = 0
    spot_gpus: int = 0
    taken_gpus: int = 0
    governor: str = "none"
    router: str = "affinity"
    margin: float = 0.0
    format: str = "dense"
    staleness: int = 0

    def __post_init__(self) -> None:
        for name in ("more_gpus", "spot_gpus", "taken_gpus", "staleness"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10_000:
                raise BadValueError("A whole number is needed.", given=value, allowed="0 to 10000", where=name)
        for value, known, what in (
            (self.governor, GOVERNORS, "governor"), (self.router, ROUTERS, "router"), (self.format, SIZED, "format"),
        ):  # fmt: skip
            if value not in known:
                raise unknown_name(what, value, list(known))
        if self.taken_gpus and self.spot_gpus:
            raise BadValueError("Serving GPUs are taken, or spot GPUs asked for.", allowed="one of them above 0",
                                given=f"taken_gpus={self.taken_gpus}, spot_gpus={self.spot_gpus}")  # fmt: skip
        if not 0 <= self.margin < 1:
            raise BadValueError("This is no share of a service level.", given=self.margin, allowed="0 to below 1",
                                where="margin")  # fmt: skip


class View(NamedTuple):
    """What a system arranges from.

    Attributes
    ----------
    dedicated_gpus : int
        That everybody has.
    matched_gpus : int
        Dedicated GPUs that have the GPU time which ROSE takes from serving under this seed, rounded up; 0 where it is
        not known.
    serving_gpus : int
    load : float
        Mean rate of users / the rate at which all serving GPUs together saturate.
    """

    dedicated_gpus: int
    matched_gpus: int
    serving_gpus: int
    load: float = 0.0


class Rollouts(Protocol):
    """Decides whose GPUs compute rollouts."""

    def arrange(self, view: View) -> Arrangement:
        """Return the arrangement."""
        ...


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What everything takes, the same for all systems.

    Parameters
    ----------
    serving_table, rollout_table : float64 array (13,)
        Of a roofline's step times (``RooflineStepTime.table``), of one instance.
    serving_kv_bytes, rollout_kv_bytes : int
        Of one token in the caches of an instance.
    shared_pool_bytes, own_pool_bytes : int
        For keys and values of both models, and of the rollout model alone where it has an instance for itself.
    weight_elements : int
        Of the rollout model.
    changed_share : float
        Of its weights from one step to the next, in bf16.
    link_bytes_per_s : float
        On which an instance outside gets weights; ``inner_bytes_per_s`` within the training cluster.
    coding_s : float
        What coding and decoding of a delta takes, s.
    train_flops_per_s : float
        Of all trainers together, as reached.
    ttft_s, tpot_s : float
        Service level: time to the first token, and mean time of each further one, s.
    wrong : float
        Share by which a governor's predictions are too short.
    headroom : float
        Share of a shared pool that is kept free for serving.
    stall_s : float
        After which a turn that gets no time goes elsewhere, s.
    own_cap, guest_cap : int
        Turns at a time on an instance of rollouts alone, and beside serving.
    own_chunk, guest_chunk, serving_chunk : int
        Prompt tokens of one step.
    serving_cap : int
        Requests at a time.
    answer_tokens : int
        That the environment adds to the context after each turn.
    """

    serving_table: Floats
    rollout_table: Floats
    serving_kv_bytes: int
    rollout_kv_bytes: int
    shared_pool_bytes: int
    own_pool_bytes: int
    weight_elements: int
    changed_share: float
    link_bytes_per_s: float
    inner_bytes_per_s: float
    coding_s: float
    train_flops_per_s: float
    ttft_s: float
    tpot_s: float
    wrong: float = 0.1
    headroom: float = 0.2
    stall_s: float = 2.0
    own_cap: int = 64
    guest_cap: int = 16
    own_chunk: int = 2048
    guest_chunk: int = 512
    serving_chunk: int = 2048
    serving_cap: int = 256
    answer_tokens: int = 100

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                if value.dtype != np.float64 or not np.isfinite(value).all():
                    raise BadValueError("A table holds finite numbers.", given=value.dtype, where=each.name)
            elif not 0 <= value < math.inf:
                raise BadValueError("This is no figure of a cluster.", given=value, allowed="0 or more, finite",
                                    where=each.name)  # fmt: skip
        for name in (
            "serving_kv_bytes", "rollout_kv_bytes", "shared_pool_bytes", "own_pool_bytes", "weight_elements",
            "link_bytes_per_s", "inner_bytes_per_s", "train_flops_per_s", "ttft_s", "tpot_s", "own_cap", "guest_cap",
            "own_chunk", "guest_chunk", "serving_chunk", "serving_cap",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise BadValueError("This must be above 0.", given=getattr(self, name), where=name)
        for name in ("changed_share", "headroom"):
            if getattr(self, name) > 1:
                raise BadValueError("This is no share.", given=getattr(self, name), allowed="0 to 1", where=name)

    def train_s(self, tokens: int) -> float:
        """Return what learning from a batch takes, s: 6 operations for each weight and token.

        Parameters
        ----------
        tokens : int
        """
        return 6.0 * self.weight_elements * tokens / self.train_flops_per_s

    def sync_s(self, form: str) -> float:
        """Return what new weights take to an instance outside, s.

        Parameters
        ----------
        form : str
            Of ``delta.SIZED``.
        """
        moved_s = bytes_per_element(form, self.changed_share) * self.weight_elements / self.link_bytes_per_s
        return moved_s + (self.coding_s if form != "dense" else 0.0)

    @property
    def inner_sync_s(self) -> float:
        """What new weights take to a dedicated instance, s: all of them, on the inner link."""
        return 2.0 * self.weight_elements / self.inner_bytes_per_s
