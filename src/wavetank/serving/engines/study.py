"""Study ``real-engines``: profile a real engine, predict a trace from the profile, launch it, compare policy by policy.

Two processes of an engine that nobody here wrote, each on a core of its own, answer through the launched router.  First
probes measure its step times (:mod:`wavetank.serving.engines.profile`).  Then a trace with shared prefixes is simulated
with them behind every policy, and sent for real, at its own times, through a launched router with that policy.  Both
runs are accounted for by the same code.  The probes are none of the trace's requests: nothing of the run goes into its
prediction.

The load generator and the router run on the cores of the engines.  Probes go the same way, so that a step is measured
with them beside it; how much of the machine they take in the run is among the figures.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wavetank.errors import BadValueError, WavetankError
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Study, Trial, turned
from wavetank.units import show

if TYPE_CHECKING:
    from wavetank.serving.engines.profile import Plan, Profile
    from wavetank.serving.engines.running import Running
    from wavetank.serving.engines.servers import Server
    from wavetank.serving.proxy.replay import Replay
    from wavetank.serving.simulator.simulate import ServingRun
    from wavetank.workloads.requests import RequestTrace

FIGURES = ("mean", "p50", "p99")
LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "e2e": "last token - arrival",
}
# Of two policies, how much better one must be in both lives for the order to count.
APART = 0.05
BLOCK_TOKENS = 64
FEWEST_REQUESTS, MOST_REQUESTS = 20, 20_000
# The context of a slot of llama.cpp's; Transformers' cache holds many of them.
LONGEST_REQUEST_TOKENS = 2048
# Requests whose simulation gives the saturation rate, and sequences of the step that shows a drift of the machine.
_BACKLOG, _DRIFT_SEQUENCES = 400, 8


def _metrics() -> tuple[Metric, ...]:
    made = []
    for name, says in LATENCIES.items():
        for figure in FIGURES:
            of, stem = f"{says}, {figure} of requests", f"{name}_{figure}"
            made += [
                Metric(f"{stem}_s", "s", "lower", "measured", of, stem in ("ttft_mean", "e2e_mean"),
                       words=f"{figure} {'time to first token' if name == 'ttft' else name.upper()}"),
                Metric(f"{stem}_predicted_s", "s", "", "simulated",
                       f"{of}, simulated from the profile: median over phases of the refresh, and request_s", False),
                Metric(f"{stem}_error", "", "lower", "measured", f"|predicted / measured - 1|: {of}", figure == "mean"),
            ]  # fmt: skip
    tokens = "output tokens of requests finished between the warm-up and the last arrival, per second of it"
    return (
        *made,
        Metric("throughput_tokens_per_s", "tokens/s", "higher", "measured", tokens, False),
        Metric("throughput_predicted_tokens_per_s", "tokens/s", "", "simulated", f"{tokens}, as latencies", False),
        Metric("throughput_error", "", "lower", "measured", f"|predicted / measured - 1|: {tokens}"),
        Metric("opposed_pairs", "", "lower", "measured",
               f"other policies of the trial that are on the other side by mean time to first token, by more than "
               f"{APART:.0%} in both lives: the simulation chose the wrong one", words="opposed pairs"),
        Metric("same_order_share", "", "higher", "measured",
               "other policies of the trial on the same side by mean time to first token in both lives", False),
        Metric("cached_share", "", "higher", "counted",
               "prompt tokens that engines took from their prefix caches, as they say; none where they say nothing"),
        Metric("cached_predicted_share", "", "", "simulated", "the same of the simulation", False),
        Metric("short_answers", "", "lower", "counted", "answers of fewer tokens than the trace says", False),
        Metric("offered_per_s", "requests/s", "", "measured", "arrival rate of the trace as served", False),
        Metric("requests", "", "", "counted", "requests of the trace, every one answered", False),
        Metric("beside_cores", "", "lower", "measured",
               "processor time of the router and the load generator / wall time: they share the engines' cores"),
        Metric("engine_cores", "", "", "measured", "processor time of the engines / wall time", False),
        Metric("sent_late_s", "s", "lower", "measured", "wall time by which requests were sent late, mean", False),
        Metric("drift", "", "", "measured",
               f"time of a step that decodes {_DRIFT_SEQUENCES} sequences, in this trial / in the profile: far from 1, "
               "something else used the machine"),
        Metric("request_s", "s", "lower", "measured", "what a request takes beside its steps: connections, router, "
                                                      "client; of the profile", False),
        Metric("step_s", "s", "", "measured", "step of the profile that decodes, at coordinates sequences and "
                                              "context_tokens; medians", False),
        Metric("prompt_s", "s", "", "measured", "step of the profile that computes a prompt alone, at coordinates "
                                                "chunk_tokens and before_tokens; medians", False),
        Metric("profile_s", "s", "lower", "measured", "how long the probes took", False),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RealEngines(Study):
    """Two engine processes, pinned to a core each, behind the launched router; requests share prefixes, and come at a
    share of the rate at which the profile says that the engines are full.
    """

    name = "real-engines"
    by_name = True
    baseline = "round-robin"
    primary = "ttft_mean_s"
    secondary = ("e2e_mean_s", "ttft_mean_error", "e2e_mean_error")
    default_seeds = 3
    # The engines take the whole machine.
    in_process = True
    metrics = _metrics()
    charts = (
        Chart("bars", "Time to first token, measured", y="ttft_mean_s", says="Shorter is better."),
        Chart("bars", "Time to first token, predicted from the profile", y="ttft_mean_predicted_s",
              says="A choice of policy needs the same order as measured, planning the same height."),
        Chart("bars", "How far off the predicted time to first token is", y="ttft_mean_error", says="0 is exact."),
        Chart("pareto", "Prefix caching against time to first token", x="cached_share", y="ttft_mean_s",
              says="Policies that send what begins alike to the same engine are on the right."),
    )  # fmt: skip

    engine: str = setting(
        "llamacpp",
        says="Engine: llama.cpp's own server, or Transformers' with continuous batching",
        choices=("llamacpp", "transformers"),
    )
    workers: int = setting(2, unit="workers", says="Engine processes, one per core where there are as many",
                           low=1, high=64)  # fmt: skip
    trace: str = setting(
        "generated", says="Workload: generated, or a CSV, JSONL or Parquet file, such as a router's recording"
    )
    duration_s: float = setting(6.0, unit="s", says="How long requests arrive", low=1.0, high=3600.0)
    load: float = setting(0.5, says="Arrival rate as a share of the predicted saturation rate; 0: a file's own",
                          low=0.0, high=3.0)  # fmt: skip
    shared_prefix: float = setting(0.8, says="Share of requests that begin with a shared prefix", low=0.0, high=1.0)
    groups: int = setting(12, says="Number of different prefixes", low=1, high=1000)
    prefix_tokens: int = setting(384, unit="tokens", says="Length of a shared prefix", low=BLOCK_TOKENS, high=1024)
    refresh_s: float = setting(
        0.1, unit="s", says="Time between two refreshes of the router's view", low=0.001, high=60.0
    )
    phases: int = setting(4, says="Number of phases of the refresh that are simulated", low=1, high=100)
    repeats: int = setting(2, says="Repetitions of every probe", low=1, high=100)
    layers: int = setting(8, says="Layers of the model; 8 are 4.5 million parameters", low=1, high=64)

    def check(self) -> None:
        """Refuse engines that are not installed, and make their model, before any process is started."""
        import importlib.util

        from wavetank.errors import missing_extra

        needed = {"llamacpp": ("xllamacpp", "gguf"), "transformers": ("transformers", "fastapi", "uvicorn")}
        for package in (*needed[self.engine], "aiohttp"):
            if importlib.util.find_spec(package) is None:
                raise missing_extra(package, "engines", needed_for=f"the study {self.name} with engine={self.engine}")
        if not self.load and self.trace == "generated":
            raise BadValueError("Generated requests have no rate of their own.", given="load=0", allowed="above 0")
        self.requests_of(0, 1.0)

    def assumed(self) -> str:
        """Return one sentence on what the figures are of."""
        if self.trace == "generated":
            what = (
                f"{self.shared_prefix:.0%} of the requests begin with one of {self.groups} prefixes of "
                f"{self.prefix_tokens} tokens"
            )
        else:
            what = f"requests of {self.trace}"
        pace = f"at {self.load:g} of the predicted saturation rate" if self.load else "at their own times"
        return (
            f"{self.workers} processes of {_TITLES[self.engine]} with a made model of {self.layers} layers; arrivals "
            f"for {show(self.duration_s, 's')} {pace}; {what}. Change with --set engine=, load=, trace=."
        )

    def opening(self) -> tuple[str, ...]:
        """Return what a user must know before any figure."""
        return (f"Assumed: {self.assumed()}",)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Figures of time belong to this machine and moment. The router and the load generator share the engines' "
            "cores; the probes of the profile went the same way, so that their share is in the step times.",
            "The profile is measured once per run, on processes of its own; drift says how a step in a trial compares "
            "with it.",
            f"{_CACHES[self.engine]} The simulator's cache keeps whole blocks of {BLOCK_TOKENS} tokens and drops what "
            "was used least recently.",
            "The model's weights are random, so answers mean nothing; greedy ones never end by themselves and are as "
            "long as the trace says.",
        )

    def server(self) -> Server:
        """Return the engine."""
        from wavetank.serving.engines.servers import LlamaCpp, TransformersServe

        kind = LlamaCpp if self.engine == "llamacpp" else TransformersServe
        return kind(layers=self.layers)

    def plan(self) -> Plan:
        """Return what is probed."""
        from wavetank.serving.engines.profile import Plan

        if self.engine == "llamacpp":
            return Plan(
                sequences=(1, 2, 4, 8, 16), contexts=(64, 384, 768), chunks=(8, 64, 256, 768), before_tokens=384,
                cached=True, batch_tokens=2048, beside=4, repeats=self.repeats,
            )  # fmt: skip
        return Plan(
            sequences=(1, 2, 4, 8, 16), contexts=(64, 384), chunks=(8, 64, 128, 240), before_tokens=252, cached=False,
            batch_tokens=256, beside=4, repeats=self.repeats,
        )  # fmt: skip

    def requests_of(self, seed: int, rate_per_s: float, n: int = 0) -> RequestTrace:
        """Return a seed's requests.

        Parameters
        ----------
        seed : int
        rate_per_s : float
        n : int
            How many; by default those of the study's duration.
        """
        from wavetank.workloads.generate import LogNormalLengths, SharedPrefix, generate_requests

        if self.trace != "generated":
            recorded = self.recorded()
            if n:
                return recorded.head(n)
            paced = recorded.at_rate(rate_per_s) if rate_per_s else recorded
            within = paced.arrival_s - paced.arrival_s[0] <= self.duration_s
            return paced.head(min(int(within.sum()), MOST_REQUESTS))
        wanted = n or round(rate_per_s * self.duration_s)
        return generate_requests(
            rate_per_s=rate_per_s,
            n_requests=min(max(wanted, FEWEST_REQUESTS), MOST_REQUESTS),
            lengths=LogNormalLengths(
                prompt_mean=480.0, prompt_median=448.0, output_mean=40.0, output_median=32.0, prompt_max=1024,
                output_max=128, rank_correlation=0.0,
            ),
            seed=seed,
            shared_prefix=SharedPrefix(
                share=self.shared_prefix, groups=self.groups, prefix_tokens=self.prefix_tokens,
                block_tokens=BLOCK_TOKENS,
            ),
        )  # fmt: skip

    def recorded(self) -> RequestTrace:
        """Return the requests of the file, as they can be sent to the engine.

        Raises
        ------
        WavetankError
            If the file cannot be read, or a request has no room in the engine's context.
        """
        from wavetank.workloads.load import read_trace

        found = read_trace(self.trace, bad_rows="drop")
        longest = int((found.prompt_tokens + found.output_tokens).max())
        if longest > LONGEST_REQUEST_TOKENS:
            raise BadValueError(
                "A request of the trace has no room in the engine's context.",
                given=f"{longest} tokens", allowed=f"up to {LONGEST_REQUEST_TOKENS} of prompt and answer",
                where=f"trace {self.trace}",
            )  # fmt: skip
        return found

    def data(self) -> Mapping[str, str]:
        """Return the checksum of a file's requests."""
        return {} if self.trace == "generated" else {self.trace: self.recorded().checksum}

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return one trial per seed: its policies run on the same processes, another one first each time."""
        return [Trial(systems=turned(systems, turn), seed=seed) for turn, seed in enumerate(seeds)]

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Run the policies of a trial one after the other, and compare their orders."""
        from wavetank.live.processes import own_cores
        from wavetank.serving.engines.running import running

        profile, saturation_per_s = _profiled(self)
        trace = self.requests_of(trial.seed, self.load * saturation_per_s)
        found = {}
        with running(self.server(), self.workers, cores=own_cores()) as engines:
            drift = _drift(self, engines, profile)
            for number, name in enumerate(trial.systems):
                system = built[name]
                if getattr(system, "learns_lengths", False):
                    # The past is another trace of the same kind.
                    system = system.fitted_to(self.requests_of(trial.seed + 1_000_000, 1.0, 1000))
                predicted = self.predicted(trace, system, profile)
                found[name] = self.served(trace, name, system, engines, number + 1, trial.seed)
                _compare(found[name], predicted, profile.request_s)
                found[name].put("drift", drift)
        _order(found)
        for figures in found.values():
            _put_profile(figures, profile)
            figures.put("offered_per_s", trace.rate_per_s)
            figures.put("requests", len(trace))
        return [record for name, figures in found.items() for record in self.stamp(name, trial.seed, figures)]

    def predicted(self, trace: RequestTrace, system: Any, profile: Profile) -> list[ServingRun]:
        """Return the simulated runs of a trace, one per phase of the refresh."""
        from wavetank.serving.proxy.study_parity import delayed
        from wavetank.serving.simulator.simulate import simulate

        cluster = self.server().cluster(self.workers, profile.step_time, self.refresh_s)
        by_s = self.refresh_s / self.phases
        return [simulate(delayed(trace, by_s * phase), cluster, system) for phase in range(self.phases)]

    def served(
        self, trace: RequestTrace, name: str, system: Any, engines: Sequence[Running], prompts: int, seed: int
    ) -> Measurements:
        """Send the trace through a launched router to the engines, and return what was measured.

        Parameters
        ----------
        trace : RequestTrace
        name : str
            Of the policy in the catalog.
        system : object
            The policy.
        engines : sequence of Running
        prompts : int
            Seed of the prompts: of its own for each policy, so that no cache knows them.
        seed : int
            For messages.
        """
        from wavetank.serving.proxy.configuration import ReplayOptions
        from wavetank.serving.proxy.fleet import Policy, routed, router_settings
        from wavetank.serving.proxy.study_parity import check_launched

        server = self.server()
        cluster = server.cluster(self.workers, _any_step_time(), self.refresh_s)
        policy = Policy(name, {field.name: getattr(system, field.name) for field in dataclasses.fields(system)})
        processes = [engine.process for engine in engines]
        settings = router_settings(cluster, 1.0, trace.block_tokens)
        with routed(policy, settings, [engine.url for engine in engines], processes) as live:
            check_launched(live.policy(), name, system)
            router = live.processes[-1]
            start_s, beside_s = time.monotonic(), router.cpu_s() + time.process_time()
            engine_s = sum(process.cpu_s() for process in processes)
            options = ReplayOptions(url=live.url, as_text=server.as_text, prompt_seed=prompts, check=False)
            replayed = _replayed(trace, options)
            wall_s = time.monotonic() - start_s
            beside_s = router.cpu_s() + time.process_time() - beside_s
            engine_s = sum(process.cpu_s() for process in processes) - engine_s
            fallbacks = live.fallbacks()
        where = f"{name}, seed {seed}"
        if fallbacks:
            raise WavetankError(
                "The launched router did not decide by itself: the fewest-requests rule stood in for it.",
                given=f"{fallbacks} decisions of {len(trace)} requests", allowed="0", where=where,
            )  # fmt: skip
        if replayed.failures:
            dead = [process for process in processes if not process.running]
            raise WavetankError(
                f"{sum(replayed.failures.values())} of {len(trace)} requests got no whole answer"
                + (f": {dead[0].name} ended with code {dead[0].returncode}." if dead else "."),
                given=dead[0].output()[-2000:].strip() if dead else replayed.why_not(),
                where=where,
            )
        figures = replayed.run().metrics()
        found = Measurements({
            "short_answers": len(replayed.short), "sent_late_s": replayed.sending_late_s,
            "beside_cores": beside_s / wall_s, "engine_cores": engine_s / wall_s,
            "throughput_tokens_per_s": figures["throughput_tokens_per_s"],
        })  # fmt: skip
        if server.reports_cached:
            found.put("cached_share", figures["prefix_hit_share"])
        for latency in LATENCIES:
            for figure in FIGURES:
                found.put(f"{latency}_{figure}_s", figures[f"{latency}_{figure}_s"])
        return found


_TITLES = {"llamacpp": "llama.cpp's server", "transformers": "Transformers' server"}
_CACHES = {
    "llamacpp": "llama.cpp keeps the last context of each slot, and reuses it for a prompt where that slot is free.",
    "transformers": "Transformers shares blocks of prompts that begin alike, and does not report how many.",
}


def _any_step_time() -> Any:
    from wavetank.platforms.step_time import FittedStepTime

    return FittedStepTime(overhead_s=1e-3)


def _replayed(trace: RequestTrace, options: Any) -> Replay:
    from wavetank.live.loops import fastest_loop
    from wavetank.serving.proxy.replay import replay

    with asyncio.Runner(loop_factory=fastest_loop) as runner:
        found = runner.run(replay(trace, options))
    if found.interrupted:
        raise KeyboardInterrupt
    return found


@lru_cache(maxsize=8)
def _profiled(study: RealEngines) -> tuple[Profile, float]:
    """Measure a study's engine once per process; return the profile and the saturation rate that it predicts."""
    from wavetank.live.processes import own_cores
    from wavetank.serving.engines.running import running

    with running(study.server(), study.workers, cores=own_cores()) as engines:
        profile = _measured(study, engines, study.plan())
    return profile, saturation_per_s(study, profile)


def _measured(study: RealEngines, engines: Sequence[Running], plan: Plan, seed: int = 0) -> Profile:
    from wavetank.live.loops import fastest_loop
    from wavetank.serving.engines.profile import measure
    from wavetank.serving.proxy.fleet import Policy, routed, router_settings

    server = study.server()
    settings = router_settings(server.cluster(study.workers, _any_step_time(), study.refresh_s), 1.0, BLOCK_TOKENS)
    processes = [engine.process for engine in engines]
    with (
        routed(Policy("round-robin"), settings, [engine.url for engine in engines], processes) as live,
        asyncio.Runner(loop_factory=fastest_loop) as runner,
    ):
        return runner.run(
            measure(live.url, plan, engines=study.workers, text=server.as_text, name=study.engine, seed=seed)
        )


def _drift(study: RealEngines, engines: Sequence[Running], profile: Profile) -> float:
    """Return how long a step takes on these processes, as a share of what the profile says."""
    plan = dataclasses.replace(
        study.plan(), sequences=(1, _DRIFT_SEQUENCES), chunks=(8, 64), beside=1, repeats=1,
    )  # fmt: skip
    again = _measured(study, engines, plan, seed=1)
    ratios = [seconds / profile.step_time.seconds(n, n * context) for (n, context), seconds in again.decode_s.items()
              if n == _DRIFT_SEQUENCES]  # fmt: skip
    return float(np.median(ratios))


def saturation_per_s(study: RealEngines, profile: Profile) -> float:
    """Return the requests per second that the simulated engines finish while they are full.

    Parameters
    ----------
    study : RealEngines
    profile : Profile
        Of its engine.
    """
    from wavetank.serving.routing.baselines import RoundRobin
    from wavetank.serving.simulator.simulate import simulate

    trace = study.requests_of(0, 1.0, _BACKLOG)
    backlog = dataclasses.replace(trace, arrival_s=np.zeros(len(trace)))
    cluster = study.server().cluster(study.workers, profile.step_time, study.refresh_s)
    done = np.sort(simulate(backlog, cluster, RoundRobin()).finish_s)
    # Filling and draining are no saturation.
    low, high = len(done) // 10, len(done) * 8 // 10
    if done[high] <= done[low]:
        raise BadValueError("The engines are never full with these requests.", given=f"{len(done)} requests at once")
    return float((high - low) / (done[high] - done[low]))


def _compare(found: Measurements, predicted: Sequence[ServingRun], request_s: float) -> None:
    """Add what was predicted, and how far off it is."""
    theirs = [run.metrics() for run in predicted]
    ours = {metric: value for metric, value, _ in found.rows}

    def median(key: str) -> float:
        return float(np.median([figures[key] for figures in theirs]))

    for latency in LATENCIES:
        for figure in FIGURES:
            stem = f"{latency}_{figure}"
            value = median(f"{stem}_s") + (0.0 if latency == "tpot" else request_s)
            found.put(f"{stem}_predicted_s", value)
            found.put(f"{stem}_error", abs(value / ours[f"{stem}_s"] - 1.0))
    value = median("throughput_tokens_per_s")
    found.put("throughput_predicted_tokens_per_s", value)
    found.put("throughput_error", abs(value / ours["throughput_tokens_per_s"] - 1.0))
    found.put("cached_predicted_share", median("prefix_hit_share"))


def _order(found: Mapping[str, Measurements]) -> None:
    """Add, for each policy, whether it stands to the others as predicted."""
    value = {name: {metric: each for metric, each, _ in figures.rows} for name, figures in found.items()}
    for name, figures in found.items():
        ours = value[name]
        logs = [
            tuple(math.log(ours[metric] / value[other][metric]) for metric in ("ttft_mean_s", "ttft_mean_predicted_s"))
            for other in found
            if other != name
        ]
        if logs:
            apart = math.log1p(APART)
            figures.put("opposed_pairs", sum(a * b < 0 and min(abs(a), abs(b)) > apart for a, b in logs))
            figures.put("same_order_share", sum(a * b > 0 for a, b in logs) / len(logs))


def _put_profile(found: Measurements, profile: Profile) -> None:
    for (sequences, context), seconds in profile.decode_s.items():
        found.put("step_s", seconds, sequences=sequences, context_tokens=context)
    for (chunk, before), seconds in profile.prefill_s.items():
        found.put("prompt_s", seconds, chunk_tokens=chunk, before_tokens=before)
    found.put("request_s", profile.request_s)
    found.put("profile_s", profile.took_s)
