"""Study ``kv-reuse``: how much of prompts that come back changed a cache has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from wavetank.errors import BadValueError, unknown_name
from wavetank.serving.reuse.energy import (
    MODEL_ROW,
    Cost,
    Prefill,
    default_prefill,
    grouped_row,
    model_layers,
    other_prefills,
)
from wavetank.serving.reuse.interface import Cache, Reuse, Served, SimulatedReuse, Workload
from wavetank.serving.reuse.moving_rivals import LOOKED_AT, CacheBlend, FullKeyRotation
from wavetank.serving.reuse.rcllm import RcLLM
from wavetank.serving.reuse.recommender import MOVIES
from wavetank.serving.reuse.recommending import CATALOGUES, SCHEDULERS, Field, measured, ranked
from wavetank.serving.reuse.rivals import RadixCache
from wavetank.serving.reuse.workers import arriving, in_turns, serve_on_workers
from wavetank.serving.reuse.workload import (
    Edits,
    agent_prompts,
    edited,
    file_prompts,
    generated_prompts,
    same_prompts,
    trace_prompts,
)
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import agent_sessions, datasets

_MOONCAKE, _TRACE = "mooncake-kv-trace", "mooncake-conversation"
_TIMED = ("agent", "mooncake")
_KINDS = ("generated", "same", "agent", "mooncake", "recommender")


@dataclass(frozen=True, kw_only=True)
class KVReuse(Study):
    """Prompts are served one after another by one cache, which keeps what it is given while there is room.  Counted are
    tokens.  Modelled, and apart from them, are time and energy of prompts that are not the first of their
    conversation. What a model answers when reused state stood elsewhere is the question of ``reuse-agreement``.
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
        Metric("moved_tokens", "tokens", "", "counted", "reused elsewhere than where they stood, per prompt",
               table=False),
        Metric("prefill_energy_j", "J", "lower", "modelled",
               "mean of prompts that are not the first of their conversation: DeepSeek-V2-Lite on an H200",
               words="prefill energy"),
        Metric("prefill_time_s", "s", "lower", "modelled",
               "mean of prompts that are not the first of their conversation: DeepSeek-V2-Lite on an H200",
               words="prefill time"),
        Metric("ttft_mean_s", "s", "lower", "simulated", "from arrival to the first token, mean; recommender: wait, "
               "computation and stand-still for rows; each system with the scheduler that is best for it",
               words="time to first token"),
        Metric("ttft_p99_s", "s", "lower", "simulated", "the same, 99th percentile", words="p99 time to first token"),
        Metric("queue_mean_s", "s", "lower", "simulated", "of it, until the computation began", table=False),
        Metric("utilisation", "", "", "simulated", "share of the time that workers were occupied", table=False),
        Metric("top10_overlap", "", "higher", "counted", "recommender: share of the ten best candidates that a full "
               "prefill of a trained decoder has, too", words="rankings as with a full prefill"),
        Metric("top10_true", "", "higher", "counted", "the same of the ten that are planted as best", table=False),
        Metric("top10_other_user", "", "", "counted", "the ten of a full prefill that stay where another user's "
               "history stands in the prompt: what a ranking that reads no history has of them", table=False),
        Metric("ranking_kl_nats", "nats", "lower", "counted", "divergence of the candidates' shares from those of "
               "a full prefill", table=False),
        Metric("ranking_computed_share", "", "lower", "counted", "tokens of these prompts that were computed",
               table=False),
        Metric("transferred_tokens", "tokens", "lower", "counted", "fetched from other workers, per prompt"),
        Metric("energy_share_least", "", "lower", "modelled", "energy of these prompts / without any cache, where each "
               "constant is a quarter or four times as large: least of all ways", table=False),
        Metric("energy_share_most", "", "lower", "modelled", "the same: most of all ways", table=False),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("sweep", "Reuse as the cache grows", y="reused_share", by="budget_tokens", log="x",
              says="The figure of the table is that of budget_tokens, or of a cache without a limit."),
        Chart("sweep", "What a prompt takes as more of it is new", y="prefill_time_s", by="edit_share", log="xy",
              says="Inserted tokens as a share of the prompt; modelled."),
        Chart("sweep", "Time to first token as candidates grow", y="ttft_mean_s", by="candidates", log="xy",
              says="A recommender on forty workers, all with the same arrivals."),
        Chart("sweep", "Time to first token as load grows", y="ttft_mean_s", by="load", log="y",
              says="A recommender; a load of 1 is what all workers can compute without any cache."),
        Chart("sweep", "Rankings against what is computed again", y="ranking_kl_nats", by="share", log="y",
              says="A recommender: share 1 is a full prefill."),
        Chart("pareto", "Rankings against time", x="ttft_mean_s", y="top10_overlap", says="Upper left is better."),
        Chart("bars", "Tokens found again behind the prefix", y="recovered_share", says="Longer is better."),
    )  # fmt: skip

    workload: str = setting(
        "generated", says="generated, same (prompts that come back, for edits), agent (real conversations of a coding "
        "agent), mooncake (prefix blocks of a real service), recommender (candidates and histories, on many workers), "
        "or a file: .jsonl with tokens or messages",
    )  # fmt: skip
    budget_tokens: int = setting(0, unit="tokens", says="Room of the cache; 0: no limit", low=0, high=2**31 - 1)
    budgets: tuple[int, ...] = setting((), unit="tokens", says="Further sizes", low=1, high=2**31 - 1)
    shared: bool = setting(True, says="Whether all conversations share the cache, or each has its own")
    observations: int = setting(5, says="Newest observations that an agent leaves in its prompts; 0: all", low=0,
                                high=1_000_000)  # fmt: skip
    edit_tokens: int = setting(0, unit="tokens", says="New tokens that are inserted into every prompt", low=0,
                               high=100_000)  # fmt: skip
    edit_share: float = setting(0.0, says="Further new tokens, as a share of each prompt", low=0.0, high=10.0)
    edit_shares: tuple[float, ...] = setting((), says="Further such shares", low=0.0, high=10.0)
    prompt_tokens: int = setting(8_192, unit="tokens", says="Of prompts that come back (same)", low=1, high=1_000_000)
    edit_at: float = setting(0.5, says="Where, as a share of the prompt", low=0.0, high=1.0)
    replicas: int = setting(2, unit="workers", says="agent, mooncake: simulated workers, to which prompts come as "
                            "Mooncake's requests do; 0: none", low=0, high=1_000)  # fmt: skip
    replica_tokens: int = setting(1_000_000, unit="tokens", says="KV cache of each", low=2, high=2**31 - 1)
    router: str = setting("prefix-affinity", says="What sends requests to them: a system that places them at arrival")
    speed: float = setting(1.0, says="How many times as fast requests come", low=0.001, high=1_000.0)
    sessions: int = setting(8, says="Generated conversations", low=1, high=10_000)
    turns: int = setting(16, says="Turns of each", low=1, high=1_000)
    catalogue: str = setting("generated", says="recommender: items and histories", choices=CATALOGUES)
    items: int = setting(4_000, says="recommender: items of a generated catalogue", low=1, high=1_000_000)
    users: int = setting(400, says="recommender: users of it", low=1, high=1_000_000)
    learned: int = setting(150, says="recommender: requests before those that are judged", low=1, high=1_000_000)
    asked: int = setting(300, says="recommender: requests that are judged", low=1, high=1_000_000)
    candidates: int = setting(100, says="recommender: items of a request", low=0, high=10_000)
    candidate_counts: tuple[int, ...] = setting((), says="Further numbers of them", low=0, high=10_000)
    workers: int = setting(40, says="recommender: workers", low=1, high=1_000)
    node_tokens: int = setting(131_072, unit="tokens", says="recommender: room of a worker; 0: no limit", low=0,
                               high=2**31 - 1)  # fmt: skip
    node_sizes: tuple[int, ...] = setting((), unit="tokens", says="Further rooms", low=0, high=2**31 - 1)
    link_bytes_per_s: float = setting(12.5e9, unit="bytes/s", says="recommender: into and out of a worker", low=1.0,
                                      high=1e15)  # fmt: skip
    links: tuple[float, ...] = setting((), unit="bytes/s", says="Further such rates", low=1.0, high=1e15)
    load: float = setting(0.7, says="recommender: arrivals / what all workers can serve without a cache", low=1e-6,
                          high=100.0)  # fmt: skip
    loads: tuple[float, ...] = setting((), says="Further such loads", low=1e-6, high=100.0)
    own_loads: tuple[float, ...] = setting((), says="Further loads, of what they can serve with the system itself",
                                           low=1e-6, high=100.0)  # fmt: skip
    rankings: int = setting(12, says="recommender: prompts that a trained decoder ranks; 0: none", low=0, high=10_000)
    ranking_steps: int = setting(600, says="Steps of its training", low=0, high=100_000)
    shares: tuple[float, ...] = setting((), says="Further shares that rcllm computes again, for rankings", low=0.0,
                                        high=1.0)  # fmt: skip
    scheduler: str = setting("best", says="recommender: how workers are chosen", choices=SCHEDULERS)

    def check(self) -> None:
        """Refuse a workload that is neither known nor a file, and one that is not on this machine."""
        if self.workload not in _KINDS and not Path(self.workload).suffix:
            raise unknown_name("workload", self.workload, _KINDS)
        if self.workload == "recommender":
            if self.budgets or self.budget_tokens or self.edit_tokens or self.edit_share or self.edit_shares:
                raise BadValueError(
                    "Requests of a recommender are not edited, and their workers have a room.",
                    allowed="node_tokens in place of budget_tokens; no edits", where="workload",
                )  # fmt: skip
            self.field().shop(0)
            return
        self.prompts(0)

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the real prompts, if they are those of the workload."""
        names = {"agent": [agent_sessions.NAME], "mooncake": [_MOONCAKE]}.get(self.workload, [])
        if self.workload == "agent" and self.replicas:
            names.append(_MOONCAKE)
        if self.workload == "recommender" and self.catalogue == MOVIES:
            names.append(MOVIES)
        return {name: next(each.sha256 for each in datasets.entry(name).files) for name in names}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        found = ["Reused are tokens whose state is kept; whether that state is right elsewhere is not counted here."]
        if self.workload == "recommender":
            found.append("Times are modelled: Llama-3.1-8B on A100s, one prompt at a time, no decoding beside it.")
        elif self.workload != "generated" and not self.edit_tokens:
            found.append("Every seed replays the same prompts: what differs between prompts is not in the intervals.")
        if self.workload == "mooncake":
            found.append("The trace names prefixes: what comes back behind a change cannot be seen in it.")
        if self.workload in _TIMED and self.replicas:
            found.append(f"Times to first token: {self.replicas} simulated workers (DeepSeek-V2-Lite on H200 each), "
                         f"{self.router}; turning rows that are moved takes no time there.")  # fmt: skip
        if self.workload == "agent":
            found.append("Eight of the ten conversations repair the same program, so that a shared cache finds more.")
        return tuple(found)

    def field(self) -> Field:
        """Return what requests of a recommender are served with."""
        return Field(
            catalogue=self.catalogue, items=self.items, users=self.users, learned=self.learned, asked=self.asked,
            candidates=self.candidates, workers=self.workers, node_tokens=self.node_tokens,
            link_bytes_per_s=self.link_bytes_per_s, load=self.load, scheduler=self.scheduler,
        )  # fmt: skip

    def prompts(self, seed: int, edit_share: float | None = None) -> Workload:
        """Return the prompts of a seed.

        Parameters
        ----------
        seed : int
            Draws generated prompts and the places of edits.
        edit_share : float, optional
            In place of the setting.
        """
        if self.workload == "generated":
            found = generated_prompts(
                seed, sessions=self.sessions, turns=self.turns, observations=self.observations
            )  # fmt: skip
        elif self.workload == "same":
            found = same_prompts(seed, sessions=self.sessions, turns=self.turns, tokens=self.prompt_tokens)
        elif self.workload == "agent":
            found = agent_prompts(observations=self.observations)
        elif self.workload == "mooncake":
            found = trace_prompts(_TRACE)
        else:
            found = file_prompts(self.workload)
        share = self.edit_share if edit_share is None else edit_share
        return edited(found, Edits(tokens=self.edit_tokens, share=share, at=self.edit_at), seed)

    def measure(self, system: Reuse, seed: int) -> Measurements:
        """Serve all prompts with each size of the cache, and with each share of edits.

        Parameters
        ----------
        system : Reuse
        seed : int
        """
        if self.workload == "recommender":
            sweeps: dict[str, Sequence[float]] = {
                "candidates": self.candidate_counts, "load": self.loads, "own_load": self.own_loads,
                "link_bytes_per_s": self.links, "node_tokens": self.node_sizes,
            }  # fmt: skip
            found = measured(system, self.field(), seed, sweeps)
            for name, value in ranked(system, seed, steps=self.ranking_steps, prompts=self.rankings).items():
                found.put(name, value)
            if isinstance(system, RcLLM):
                for share in self.shares:
                    ours = replace(system, share=share)
                    for name, value in ranked(ours, seed, steps=self.ranking_steps, prompts=self.rankings).items():
                        found.put(name, value, share=share)
            return found
        workload, found = self.prompts(seed), Measurements()
        prefixes = sum(each.reused for each in self.replay(RadixCache(), workload, 0))
        for budget in sorted({self.budget_tokens, *self.budgets}):
            figures = self._figures(system, workload, self.replay(system, workload, budget), prefixes)
            places: list[dict[str, float]] = [{}] if budget == self.budget_tokens else []
            # A cache without a limit has no place on the axis of sizes.
            for at in [*places, {"budget_tokens": float(budget)}] if self.budgets and budget else places:
                for name, value in figures.items():
                    found.put(name, value, **at)
        if self.replicas and self.workload in _TIMED and isinstance(system, SimulatedReuse):
            for name, value in self.first_tokens(system, workload).items():
                found.put(name, value)
        for share in self.edit_shares:
            changed = self.prompts(seed, share)
            prefixes = sum(each.reused for each in self.replay(RadixCache(), changed, 0))
            got = self.replay(system, changed, self.budget_tokens)
            for name, value in self._figures(system, changed, got, prefixes).items():
                found.put(name, value, edit_share=share)
        return found

    def first_tokens(self, system: SimulatedReuse, workload: Workload) -> dict[str, float]:
        """Return the times to first token on simulated workers, whose caches have the same bytes with every rule.

        Parameters
        ----------
        system : SimulatedReuse
        workload : Workload
        """
        workload = workload if workload.only_prefixes else in_turns(workload)
        tokens = self.replica_tokens
        if isinstance(system, FullKeyRotation):
            tokens = tokens * MODEL_ROW.numbers // grouped_row(system.key_heads).numbers
        run = serve_on_workers(
            system, workload, arriving(workload, _TRACE, self.speed), workers=self.replicas, tokens=tokens,
            shared=self.shared, router=self.router,
        )  # fmt: skip
        figures = run.metrics()
        return {"ttft_mean_s": figures["ttft_mean_s"], "ttft_p99_s": figures["ttft_p99_s"]}

    def _figures(self, system: Reuse, workload: Workload, got: Sequence[Served], prefixes: int) -> dict[str, float]:
        count, tokens = len(got), sum(prompt.tokens for prompt in workload.prompts)
        reused, recomputed, computed, moved = (sum(column) for column in zip(*got, strict=True))
        figures = {
            "reused_share": reused / tokens,
            "recovered_share": (reused - prefixes) / (tokens - prefixes) if tokens > prefixes else 0.0,
            "computed_tokens": (computed + recomputed) / count, "recomputed_tokens": recomputed / count,
            "moved_tokens": moved / count,
        }  # fmt: skip
        sessions: set[int] = set()
        later = []
        for number, prompt in enumerate(workload.prompts):
            if prompt.session in sessions:
                later.append(number)
            sessions.add(prompt.session)
        if not later:
            return figures
        counts = [(workload.prompts[each].tokens, got[each]) for each in later]
        spent = [cost_of(system, tokens, each) for tokens, each in counts]
        figures["prefill_energy_j"] = sum(each.joules for each in spent) / len(later)
        figures["prefill_time_s"] = sum(each.seconds for each in spent) / len(later)
        shares = []
        for gpu in other_prefills():
            ours = sum(cost_of(system, tokens, each, gpu).joules for tokens, each in counts)
            whole = sum(gpu.cost(tokens, Served(0, 0, tokens)).joules for tokens, _ in counts)
            shares.append(ours / whole)
        return figures | {"energy_share_least": min(shares), "energy_share_most": max(shares)}

    def serve(self, system: Reuse, workload: Workload, budget_tokens: int) -> Served:
        """Return what became of all tokens.

        Parameters
        ----------
        system : Reuse
        workload : Workload
        budget_tokens : int
            0: no limit.
        """
        return Served(*(sum(column) for column in zip(*self.replay(system, workload, budget_tokens), strict=True)))

    def replay(self, system: Reuse, workload: Workload, budget_tokens: int) -> list[Served]:
        """Return what became of the tokens of each prompt.

        Parameters
        ----------
        system : Reuse
        workload : Workload
        budget_tokens : int
            0: no limit.
        """
        caches: dict[int, Cache] = {}
        found = []
        for prompt in workload.prompts:
            place = 0 if self.shared else prompt.session
            if place not in caches:
                caches[place] = system.cache(budget_tokens=budget_tokens or None, unit=workload.unit)
            found.append(caches[place].serve(prompt))
        return found


def cost_of(system: Reuse, tokens: int, got: Served, gpu: Prefill | None = None) -> Cost:
    """Return what a prompt costs, with what a system does beside the tokens that are counted.

    Parameters
    ----------
    system : Reuse
    tokens : int
        Of the prompt.
    got : Served
        Of these.
    gpu : Prefill, optional
        That of the catalogs when it is left out.
    """
    row = grouped_row(system.key_heads) if isinstance(system, FullKeyRotation) else MODEL_ROW
    partly = LOOKED_AT / model_layers() * got.moved if isinstance(system, CacheBlend) else 0.0
    return (gpu or default_prefill()).cost(tokens, got, row=row, partly=partly)
