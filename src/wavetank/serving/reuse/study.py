"""Study ``kv-reuse``: how much of prompts that come back changed a cache has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from wavetank.errors import unknown_name
from wavetank.serving.reuse.interface import Cache, Reuse, Served, Workload
from wavetank.serving.reuse.rivals import RadixCache
from wavetank.serving.reuse.workload import (
    Edits,
    agent_prompts,
    edited,
    file_prompts,
    generated_prompts,
    trace_prompts,
)
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import agent_sessions, datasets

_MOONCAKE, _TRACE = "mooncake-kv-trace", "mooncake-conversation"
_KINDS = ("generated", "agent", "mooncake")


@dataclass(frozen=True, kw_only=True)
class KVReuse(Study):
    """Prompts are served one after another by one cache, which keeps what it is given while there is room.  Counted are
    tokens; what a reused token's state is worth, and how long the rest takes, is not part of it.
    """

    name: ClassVar[str] = "kv-reuse"
    baseline: ClassVar[str] = "radix-cache"
    primary: ClassVar[str] = "reused_share"
    secondary: ClassVar[tuple[str, ...]] = ("recovered_share", "computed_tokens")
    in_process: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("reused_share", "", "higher", "counted",
               "tokens taken from the cache / tokens of all prompts; at budget_tokens: of a cache of that size",
               words="reuse"),
        Metric("recovered_share", "", "higher", "counted",
               "(tokens taken from the cache - those of the longest prefixes ever seen) / tokens behind these prefixes",
               words="recovery behind the prefix"),
        Metric("computed_tokens", "tokens", "lower", "counted", "computed per prompt, those computed again included",
               words="computed tokens"),
        Metric("recomputed_tokens", "tokens", "lower", "counted", "found in the cache and computed again, per prompt",
               table=False),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("sweep", "Reuse as the cache grows", y="reused_share", by="budget_tokens", log="x",
              says="The figure of the table is that of budget_tokens, or of a cache without a limit."),
        Chart("bars", "Tokens found again behind the prefix", y="recovered_share", says="Longer is better."),
    )  # fmt: skip

    workload: str = setting(
        "generated", says="generated, agent (real conversations of a coding agent), mooncake (prefix blocks of a real "
        "service), or a file: .jsonl with tokens or messages",
    )  # fmt: skip
    budget_tokens: int = setting(0, unit="tokens", says="Room of the cache; 0: no limit", low=0, high=2**31 - 1)
    budgets: tuple[int, ...] = setting((), unit="tokens", says="Further sizes", low=1, high=2**31 - 1)
    shared: bool = setting(True, says="Whether all conversations share the cache, or each has its own")
    observations: int = setting(5, says="Newest observations that an agent leaves in its prompts; 0: all", low=0,
                                high=1_000_000)  # fmt: skip
    edit_tokens: int = setting(0, unit="tokens", says="New tokens that are inserted into every prompt", low=0,
                               high=100_000)  # fmt: skip
    edit_at: float = setting(0.5, says="Where, as a share of the prompt", low=0.0, high=1.0)
    sessions: int = setting(8, says="Generated conversations", low=1, high=10_000)
    turns: int = setting(16, says="Turns of each", low=1, high=1_000)

    def check(self) -> None:
        """Refuse a workload that is neither known nor a file, and one that is not on this machine."""
        if self.workload not in _KINDS and not Path(self.workload).suffix:
            raise unknown_name("workload", self.workload, _KINDS)
        self.prompts(0)

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the real prompts, if they are those of the workload."""
        name = {"agent": agent_sessions.NAME, "mooncake": _MOONCAKE}.get(self.workload)
        if name is None:
            return {}
        return {name: next(each.sha256 for each in datasets.entry(name).files)}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        found = ["Reused are tokens whose state is kept; whether that state is right elsewhere is not counted here."]
        if self.workload != "generated" and not self.edit_tokens:
            found.append("Every seed replays the same prompts: what differs between prompts is not in the intervals.")
        if self.workload == "mooncake":
            found.append("The trace names prefixes: what comes back behind a change cannot be seen in it.")
        if self.workload == "agent":
            found.append("Eight of the ten conversations repair the same program, so that a shared cache finds more.")
        return tuple(found)

    def prompts(self, seed: int) -> Workload:
        """Return the prompts of a seed.

        Parameters
        ----------
        seed : int
            Draws generated prompts and the places of edits.
        """
        if self.workload == "generated":
            found = generated_prompts(
                seed, sessions=self.sessions, turns=self.turns, observations=self.observations
            )  # fmt: skip
        elif self.workload == "agent":
            found = agent_prompts(observations=self.observations)
        elif self.workload == "mooncake":
            found = trace_prompts(_TRACE)
        else:
            found = file_prompts(self.workload)
        return edited(found, Edits(tokens=self.edit_tokens, at=self.edit_at), seed)

    def measure(self, system: Reuse, seed: int) -> Measurements:
        """Serve all prompts with each size of the cache.

        Parameters
        ----------
        system : Reuse
        seed : int
        """
        workload, found = self.prompts(seed), Measurements()
        tokens = sum(prompt.tokens for prompt in workload.prompts)
        prefixes = self.serve(RadixCache(), workload, 0).reused
        for budget in sorted({self.budget_tokens, *self.budgets}):
            got = self.serve(system, workload, budget)
            places: list[dict[str, float]] = [{}] if budget == self.budget_tokens else []
            # A cache without a limit has no place on the axis of sizes.
            for at in [*places, {"budget_tokens": float(budget)}] if self.budgets and budget else places:
                found.put("reused_share", got.reused / tokens, **at)
                found.put("recovered_share", (got.reused - prefixes) / (tokens - prefixes), **at)
                found.put("computed_tokens", (got.computed + got.recomputed) / len(workload.prompts), **at)
                found.put("recomputed_tokens", got.recomputed / len(workload.prompts), **at)
        return found

    def serve(self, system: Reuse, workload: Workload, budget_tokens: int) -> Served:
        """Return what became of all tokens.

        Parameters
        ----------
        system : Reuse
        workload : Workload
        budget_tokens : int
            0: no limit.
        """
        caches: dict[int, Cache] = {}
        totals = [0, 0, 0]
        for prompt in workload.prompts:
            place = 0 if self.shared else prompt.session
            if place not in caches:
                caches[place] = system.cache(budget_tokens=budget_tokens or None, unit=workload.unit)
            for number, tokens in enumerate(caches[place].serve(prompt)):
                totals[number] += tokens
        return Served(*totals)
