"""What serves the requests: replicas with their limits, alone, in lockstep groups, or split by phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.settings import check_ranges, setting

if TYPE_CHECKING:
    from wavetank.platforms.step_time import StepTime
    from wavetank.serving.simulator.adapters import Adapters, SchedulerOverhead
    from wavetank.serving.simulator.changes import Churn
    from wavetank.serving.simulator.reuse import ReusePolicy


def _default_step_time() -> StepTime:
    from wavetank.platforms.step_time import RooflineStepTime

    return RooflineStepTime(device="H100-SXM", model="Llama-3.1-8B")


# A day: what is slower is a unit mistaken.
LONGEST_TRANSFER_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class WorkerKind:
    """Some of a cluster's workers, on another device or with other limits than the rest."""

    workers: int = setting(1, unit="workers", says="Number of workers", low=1, high=100_000)
    step_time: StepTime | None = field(
        default=None, metadata={"says": "time of one engine step; without it the cluster's"}
    )
    max_running: int = setting(
        0, unit="requests", says="Most requests in the batch; 0: the cluster's", low=0, high=1_000_000
    )
    max_batched_tokens: int = setting(
        0, unit="tokens", says="Token budget of a step; 0: the cluster's", low=0, high=10**9
    )
    kv_capacity_tokens: int = setting(0, unit="tokens", says="KV cache; 0: the cluster's", low=0, high=10**12)

    def __post_init__(self) -> None:
        check_ranges(self)


# The batch whose step time is the measure of a worker's speed: answers of some length, no prompt.
_USUAL_BATCH, _USUAL_CONTEXT_TOKENS = 32, 32 * 1024


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers that batch continuously, independent or in groups whose steps end in a barrier.

    Parameters
    ----------
    kinds : tuple of WorkerKind, optional
        Workers that are not all equal: the first kind has the lowest numbers.  Their step times are of one class.
    """

    workers: int = setting(16, unit="workers", says="Number of data-parallel workers", low=1, high=100_000)
    group_size: int = setting(
        1, unit="workers", says="Workers that step together; 1 for independent replicas", low=1, high=100_000
    )
    step_time: StepTime = field(default_factory=_default_step_time, metadata={"says": "time of one engine step"})
    max_running: int = setting(128, unit="requests", says="Most requests in a worker's batch", low=1, high=1_000_000)
    max_batched_tokens: int = setting(
        2048, unit="tokens", says="Token budget of a step: decodes first, then prefill chunks", low=1, high=10**9
    )
    kv_capacity_tokens: int = setting(400_000, unit="tokens", says="KV cache of a worker", low=2, high=10**12)
    kv_watermark: float = setting(
        0.01, says="Share of the KV cache that a new request must leave free while others run", low=0.0, high=0.999
    )
    sync_s: float = setting(0.0, unit="s", says="Time added to every step: barrier and all-to-all", low=0.0, high=1e6)
    refresh_s: float = setting(
        0.1, unit="s", says="Time between two refreshes of the routers' view of the workers; 0: always fresh",
        low=0.0, high=1e6,
    )  # fmt: skip
    scheduled_ahead: bool = setting(
        False, says="Whether the batch of a step is decided while the step before it runs (asynchronous scheduling)"
    )
    prefix_caching: bool = setting(
        False, says="Whether workers keep whole prefix blocks for reuse (least recently used out)"
    )
    reuse: ReusePolicy | None = field(
        default=None,
        metadata={"says": "what workers keep of prompts and how they find it again, in place of prefix caching"},
    )
    prefix_memory_s: float = setting(
        300.0, unit="s", says="Time for which the router's own record of sent prefixes counts", low=0.0, high=1e6
    )
    routers: int = setting(
        1, says="Copies of the router, among which requests are dealt; each knows only what it sent itself",
        low=1, high=1_000,
    )  # fmt: skip
    pool_window: int = setting(512, unit="requests", says="Waiting requests that a pool router sees", low=1, high=10**6)
    max_waiting: int = setting(
        0, unit="requests", says="Queue length at which a worker refuses requests; 0: it never does",
        low=0, high=10**9,
    )  # fmt: skip
    adapters: Adapters | None = field(
        default=None, metadata={"says": "slots and costs of LoRA adapters; without it requests run as if merged"}
    )
    scheduler_overhead: SchedulerOverhead | None = field(
        default=None, metadata={"says": "what the engine's scheduler adds to every step"}
    )
    kinds: tuple[WorkerKind, ...] = field(
        default=(), metadata={"says": "kinds of workers, where they are not all equal; their numbers add up to workers"}
    )
    models: tuple[tuple[str, ...], ...] | None = field(
        default=None, metadata={"says": "the models of each worker; without it every worker has every model"}
    )

    churn: Churn | None = field(
        default=None, metadata={"says": "failures, restarts and scaling of workers; without it all run all the time"}
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.churn is not None:
            self.churn.check(self)
        if self.models is not None:
            self._check_models(self.models)
        if self.reuse is not None:
            self._check_reuse(self.reuse)
        if self.workers % self.group_size:
            raise BadValueError(
                "The workers must divide into groups of equal size.",
                given=f"{self.workers} workers in groups of {self.group_size}",
                allowed="a group size that divides the workers",
                where="group_size",
            )
        if self.max_batched_tokens < self.max_running:
            raise BadValueError(
                "The token budget of a step must have room for one token of every running request.",
                given=f"max_batched_tokens={self.max_batched_tokens}, max_running={self.max_running}",
                allowed="max_batched_tokens >= max_running",
                where="max_batched_tokens",
            )
        if self.kinds:
            self._check_kinds()

    def _check_reuse(self, policy: ReusePolicy) -> None:
        if isinstance(policy, type) or not all(callable(getattr(policy, name, None)) for name in ("units", "rule")):
            raise BadValueError(
                "This is no policy of reuse.", given=policy, allowed="an object with units and rule", where="reuse",
                hint="see wavetank.serving.simulator.reuse",
            )  # fmt: skip
        if self.prefix_caching:
            raise BadValueError(
                "Workers keep prompts by one policy.", given="prefix_caching and reuse", allowed="one of them",
                where="reuse", hint="PrefixReuse is what prefix_caching does",
            )  # fmt: skip
        if self.churn is not None and policy.rule().fetch:
            raise BadValueError(
                "Where workers come and go nothing is fetched from others.", given="churn and fetch",
                allowed="one of them", where="reuse",
            )  # fmt: skip

    def _check_kinds(self) -> None:
        count = sum(kind.workers for kind in self.kinds)
        if count != self.workers:
            raise BadValueError(
                "The kinds of workers do not add up.",
                given=f"{' + '.join(str(kind.workers) for kind in self.kinds)} = {count}, workers={self.workers}",
                allowed=f"workers={count}",
                where="kinds",
            )
        functions = {id(kind.step_time.function): type(kind.step_time).__name__ for kind in self.uniform}
        if len(functions) > 1:
            raise BadValueError(
                "The step times of a cluster's workers must be of one class.",
                given=", ".join(functions.values()),
                allowed="RooflineStepTime, FittedStepTime or TableStepTime (of one layout) for all",
                where="kinds",
            )

    @cached_property
    def uniform(self) -> tuple[Cluster, ...]:
        """The cluster in parts of equal workers, in order of their numbers: one per kind."""
        if not self.kinds:
            return (self,)
        return tuple(
            replace(
                self,
                kinds=(),
                models=None,
                churn=None,
                workers=kind.workers,
                group_size=1,
                step_time=kind.step_time or self.step_time,
                max_running=kind.max_running or self.max_running,
                max_batched_tokens=kind.max_batched_tokens or self.max_batched_tokens,
                kv_capacity_tokens=kind.kv_capacity_tokens or self.kv_capacity_tokens,
            )
            for kind in self.kinds
        )

    @property
    def slots(self) -> int:
        """Requests that can run at once, over all workers."""
        return sum(part.workers * part.max_running for part in self.uniform)

    def each_worker(self) -> tuple[Cluster, ...]:
        """Return for every worker, by number, the part of :attr:`uniform` with its limits."""
        return tuple(part for part in self.uniform for _ in range(part.workers))

    def speeds(self) -> tuple[float, ...]:
        """Return how fast each worker is, as a share of the fastest: by a step of 32 answers at 1,024 tokens each."""
        from wavetank.platforms.step_time import step_ps

        times_ps = [step_ps(part.step_time, _USUAL_BATCH, _USUAL_CONTEXT_TOKENS) for part in self.uniform]
        return tuple(
            min(times_ps) / max(time_ps, 1)
            for time_ps, part in zip(times_ps, self.uniform, strict=True)
            for _ in range(part.workers)
        )

    def _check_models(self, models: Sequence[Any]) -> None:
        if len(models) != self.workers:
            raise BadValueError(
                "Either no worker's models are given, or those of every one.",
                given=f"models of {len(models)} workers, of {self.workers}",
                allowed=f"{self.workers} tuples of names",
                where="models",
            )
        for worker, names in enumerate(models):
            if isinstance(names, str) or not names or not all(isinstance(name, str) and name for name in names):
                raise BadValueError(
                    "A worker has at least one model, each with a name.",
                    given=repr(names),
                    allowed="e.g. ('llama-8b',)",
                    where=f"models, worker {worker}",
                )


@dataclass(frozen=True, kw_only=True)
class DisaggregatedCluster:
    """Prefill and decode on workers of their own; a finished prompt's KV cache travels to a decode worker.

    A transfer starts when the decode worker has room.  Until it has ended the prefill worker keeps the KV cache, too.
    """

    prefill: Cluster = field(default_factory=Cluster, metadata={"says": "the workers that run prompts"})
    decode: Cluster = field(default_factory=Cluster, metadata={"says": "the workers that generate"})
    kv_bytes_per_token: float = setting(
        131_072.0, unit="bytes", says="KV cache of one token, by the model; the default is Llama-3.1-8B's",
        low=0.0, high=1e12,
    )  # fmt: skip
    link_bytes_per_s: float = setting(
        50e9, unit="bytes/s", says="Bandwidth of a prefill worker's link, on which its transfers follow each other",
        low=0.0, high=1e18,
    )  # fmt: skip
    transfer_latency_s: float = setting(1e-3, unit="s", says="Start-up time of a transfer", low=0.0, high=1e6)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.link_bytes_per_s == 0:
            raise BadValueError(
                "Over a link without bandwidth no KV cache ever reaches a decode worker.",
                given=0.0,
                allowed="more than 0 bytes/s",
                where="link_bytes_per_s",
                hint="give the bandwidth of the network between the workers, such as 50e9 (400 Gbit/s)",
            )

    def wire_ps(self, prompt_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how long the KV caches of prompts take on an idle link, in whole ps.

        Parameters
        ----------
        prompt_tokens : int64 array
        """
        from wavetank.platforms.step_time import PS_PER_S

        wire_s = prompt_tokens * self.kv_bytes_per_token / self.link_bytes_per_s
        if wire_s.size and wire_s.max() > LONGEST_TRANSFER_S:
            raise BadValueError(
                "A prompt's KV cache takes longer on the link than can be simulated.",
                given=f"{wire_s.max():g} s for {prompt_tokens[wire_s.argmax()]:,} tokens",
                allowed=f"{LONGEST_TRANSFER_S:g} s",
                where="link_bytes_per_s",
            )
        return np.round(wire_s * PS_PER_S).astype(np.int64)
