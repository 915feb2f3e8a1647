"""Study ``rl-rollouts``: steps of reinforcement learning beside serving, and what users notice of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from wavetank.errors import BadValueError, GaveUpError
from wavetank.platforms.calibration import calibrated_roofline
from wavetank.platforms.catalog import device, model
from wavetank.platforms.memory import kv_capacity_tokens
from wavetank.settings import setting
from wavetank.sim.rng import stream_key
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.rollouts.core import (
    EVICTED,
    FAR,
    GUEST_PS,
    GUEST_TOKENS,
    HALVED,
    OWN_TOKENS,
    RECOMPUTED,
    REROUTED,
    SERVING_PS,
)
from wavetank.training.rollouts.interface import PS, Arrangement, Rates, Rollouts, View
from wavetank.training.rollouts.rose import Rose
from wavetank.training.rollouts.simulate import Batches, Load, Run, simulate
from wavetank.training.rollouts.workload import (
    assigned,
    bursts,
    drawn_batches,
    drawn_spot,
    kept_spot,
    saturation_per_s,
    users,
)
from wavetank.workloads import datasets

TRACES = ("azure-conv-2023", "azure-code-2023")
_DATA = "azure-llm-2023"
_SWEEPS = {"loads": "load", "bursts": "burst", "variations": "variation", "links_gbit_s": "link_gbit_s",
           "servings": "serving"}  # fmt: skip
# Users are drawn for this multiple of what the fixed pool takes, and for twice as long while rollouts take longer.
_TIMES, _MOST_TIMES = 1.2, 100.0
_FILES = dict(zip(TRACES, ("conv_first40min.csv.gz", "code_first40min.csv.gz"), strict=True))


class Users(NamedTuple):
    """What users noticed of a run, in the order in which they came.

    Attributes
    ----------
    missed : bool array (requests,)
        Of those who came until the last batch was learnt: whether the service level was missed.
    ttft_s, tpot_s : float64 array (requests,)
        Mean time of a token after the first is NaN where there is none.
    """

    missed: Any
    ttft_s: Any
    tpot_s: Any


@dataclass(frozen=True, kw_only=True)
class RLRollouts(Study):
    """A trainer, a few GPUs for rollouts, and GPUs that serve users of a recorded service under a service level.  Steps
    of reinforcement learning of an agent with turns and delays run beside it; every GPU is simulated step by step.
    Serving alone, with the same requests on the same GPUs, says which users were served in time without rollouts.
    """

    name: ClassVar[str] = "rl-rollouts"
    baseline: ClassVar[str] = "fixed-pool"
    primary: ClassVar[str] = "steps_per_h"
    secondary: ClassVar[tuple[str, ...]] = ("added_misses", "ttft_p99_ratio", "tpot_p99_ratio")
    must_be_zero: ClassVar[tuple[str, ...]] = ("added_misses",)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("added_misses", "requests", "lower", "simulated",
               "requests that miss the service level (first token, or mean time of further ones) and do not when "
               "serving is alone", words="added misses"),
        Metric("missed_share", "", "lower", "simulated", "requests that miss the service level / requests",
               words="missed requests"),
        Metric("ttft_p99_s", "s", "lower", "simulated", "time to the first token, 99 % quantile of requests",
               words="p99 time to the first token"),
        Metric("tpot_p99_s", "s", "lower", "simulated",
               "mean time of a token after the first, 99 % quantile of requests with two or more",
               words="p99 time of a token"),
        Metric("ttft_p99_ratio", "", "lower", "simulated", "its 99 % quantile / that of serving alone",
               words="growth of the time to the first token"),
        Metric("tpot_p99_ratio", "", "lower", "simulated", "its 99 % quantile / that of serving alone",
               words="growth of the time of a token"),
        Metric("steps_per_h", "/h", "higher", "simulated",
               "steps of reinforcement learning per hour: batches / time until the last is learnt",
               words="steps per hour"),
        Metric("rollout_s", "s", "lower", "simulated",
               "mean time from the weights before to the end of the batch's last trajectory", words="rollout time"),
        Metric("of_longest", "", "lower", "simulated",
               "rollout time / what the longest trajectory of a batch takes where nothing waits, mean",
               words="rollout time beside the longest trajectory"),
        Metric("sync_s", "s", "lower", "modelled", "new weights on their way to serving and spot GPUs",
               words="time of new weights"),
        Metric("added_gpus", "GPUs", "lower", "simulated",
               "GPU time beside the dedicated GPUs that everybody has / time: of serving GPUs what rollouts took, all "
               "of those handed over, of spot GPUs from asking on", words="added GPUs"),
        Metric("gain_per_gpu", "1/GPU", "higher", "simulated",
               "(steps per hour / those of the fixed pool - 1) / added GPUs", words="gain for each added GPU"),
        Metric("serving_tokens_share", "", "", "simulated", "tokens of rollouts that serving GPUs wrote / all",
               words="share written beside serving"),
        Metric("recomputed_share", "", "lower", "simulated",
               "tokens of prefixes read again / tokens written in rollouts", words="recomputed prefixes"),
        Metric("rerouted", "turns", "lower", "simulated", "turns per step that were broken off and went elsewhere"),
        Metric("stale_share", "", "lower", "simulated",
               "trajectories that began with older weights than those that learn from them",
               words="stale trajectories"),
        Metric("busy_share", "", "", "simulated", "share of their time that serving GPUs compute for users",
               table=False),
        Metric("halvings", "/step", "", "simulated", "times per step that rollouts lost half of their memory",
               table=False),
        Metric("evicted", "/step", "", "simulated", "prefixes per step that made room for others", table=False),
        *(each for field, words in (
            ("load", "share of saturation of serving"), ("burst", "rate within bursts / outside"),
            ("variation", "trajectories of the largest step / of the smallest"),
            ("link_gbit_s", "link of an instance outside of the training cluster, Gbit/s"),
            ("serving", "number of instances that serve users"),
        ) for each in (
            Metric(f"steps_by_{field}_per_h", "/h", "higher", "simulated", f"steps per hour by {words}", table=False,
                   words="steps per hour"),
            Metric(f"added_misses_by_{field}", "requests", "lower", "simulated", f"added misses by {words}",
                   table=False, words="added misses"),
        )),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Steps per hour", y="steps_per_h", says="Those with added misses do not count."),
        Chart("bars", "Users who miss the service level and would not without rollouts", y="added_misses",
              says="Zero is what serving demands."),
        Chart("sweep", "Steps per hour as serving becomes busier", y="steps_by_load_per_h", by="load",
              says="Share of the rate at which serving saturates."),
        Chart("sweep", "Added misses as serving becomes busier", y="added_misses_by_load", by="load",
              says="Share of the rate at which serving saturates."),
        Chart("sweep", "Steps per hour by bursts of users", y="steps_by_burst_per_h", by="burst",
              says="Rate within bursts of 15 s over the rate outside, at the same mean rate."),
        Chart("sweep", "Added misses by bursts of users", y="added_misses_by_burst", by="burst",
              says="Rate within bursts of 15 s over the rate outside, at the same mean rate."),
        Chart("sweep", "Steps per hour as steps differ more", y="steps_by_variation_per_h", by="variation",
              says="Trajectories of the largest step over those of the smallest, at the same mean."),
        Chart("sweep", "Steps per hour by the link of new weights", y="steps_by_link_gbit_s_per_h", by="link_gbit_s",
              log="x", says="Gbit/s to an instance outside of the training cluster."),
        Chart("sweep", "Steps per hour by GPUs that serve users", y="steps_by_serving_per_h", by="serving",
              says="All take part, at the same load of each."),
    )  # fmt: skip

    trace: str = setting(TRACES[0], choices=TRACES, says="Requests of users")
    load: float = setting(0.19, says="Rate of users / the rate at which serving saturates", low=0.001, high=1.5)
    burst: float = setting(4.2, says="Rate of users within bursts of seconds / outside", low=1.0, high=100.0)
    serving_model: str = setting("Llama-3.1-8B", says="Model that users are served with")
    rollout_model: str = setting("Llama-3.1-8B", says="Model that learns")
    device: str = setting("H100-SXM", says="GPU, by name")
    tensor: int = setting(1, unit="GPUs", says="GPUs of an instance", low=1, high=64)
    ttft_s: float = setting(0.5, unit="s", says="Service level: time to the first token", low=1e-3, high=1e4)
    tpot_s: float = setting(0.15, unit="s", says="Service level: mean time of a further token", low=1e-4, high=1e3)
    dedicated: int = setting(1, says="Instances for rollouts alone", low=1, high=256)
    serving: int = setting(4, says="Instances that serve users", low=1, high=256)
    trainers: int = setting(4, unit="GPUs", says="GPUs of the trainer", low=1, high=100_000)
    utilisation: float = setting(0.4, says="Share of their peak that trainers reach", low=0.001, high=1.0)
    steps: int = setting(4, says="Steps of a run", low=1, high=1000)
    trajectories: int = setting(512, says="Trajectories of a step, on average", low=1, high=1_000_000)
    variation: float = setting(1.0, says="Trajectories of the largest step / of the smallest", low=1.0, high=100.0)
    turn_tokens: int = setting(200, unit="tokens", says="Median of what a turn writes", low=1, high=4096)
    link_gbit_s: float = setting(20.0, unit="Gbit/s", says="Link of an instance outside of the training cluster",
                                 low=0.01, high=1e5)  # fmt: skip
    changed: float = setting(0.05, says="Share of bf16 weights that a step changes", low=0.0, high=1.0)
    wrong: float = setting(0.1, says="Share by which governors predict too short times", low=0.0, high=10.0)
    own_cap: int = setting(64, says="Turns at a time on an instance of rollouts alone", low=1, high=4096)
    guest_cap: int = setting(16, says="Turns at a time on an instance that serves users", low=1, high=4096)
    headroom: float = setting(0.2, says="Share of the memory for keys and values kept free for users", low=0.0,
                              high=0.9)  # fmt: skip
    spot_start_s: tuple[float, float] = setting((60.0, 300.0), unit="s", says="Start of a spot GPU: least and most",
                                                low=0.0, high=1e5)  # fmt: skip
    spot_life_s: float = setting(1800.0, unit="s", says="Mean life of a spot GPU", low=1.0, high=1e9)
    loads: tuple[float, ...] = setting((), says="Further loads, each a run of its own", low=0.001, high=1.5)
    bursts: tuple[float, ...] = setting((), says="Further strengths of bursts, likewise", low=1.0, high=100.0)
    variations: tuple[float, ...] = setting((), says="Further variations of steps, likewise", low=1.0, high=100.0)
    links_gbit_s: tuple[float, ...] = setting((), unit="Gbit/s", says="Further links, likewise", low=0.01, high=1e5)
    servings: tuple[int, ...] = setting((), says="Further numbers of serving instances, likewise", low=1, high=256)

    def check(self) -> None:
        """Refuse models that fit into no instance, and traces that are not here."""
        self.rates()
        datasets.find(_DATA, _FILES[self.trace])
        if self.spot_start_s[0] > self.spot_start_s[1]:
            raise BadValueError("The least start of a spot GPU is above the most.", given=self.spot_start_s,
                                where=f"study {self.name}")  # fmt: skip

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the trace."""
        (file,) = (each for each in datasets.entry(_DATA).files if each.path == _FILES[self.trace])
        return {self.trace: file.sha256}

    def rates(self) -> Rates:
        """Return what everything takes."""
        gpu, served, learnt = device(self.device), model(self.serving_model), model(self.rollout_model)
        pool = kv_capacity_tokens(gpu, learnt, self.tensor) * learnt.kv_bytes_per_token
        shared = pool - 2 * served.parameters
        if shared <= 0:
            raise BadValueError("Both models do not fit into an instance.", given=f"{self.tensor} x {self.device}",
                                hint="raise tensor", where=f"study {self.name}")  # fmt: skip
        return Rates(
            serving_table=calibrated_roofline(gpu, served, self.tensor).table,
            rollout_table=calibrated_roofline(gpu, learnt, self.tensor).table,
            serving_kv_bytes=int(served.kv_bytes_per_token), rollout_kv_bytes=int(learnt.kv_bytes_per_token),
            shared_pool_bytes=int(shared), own_pool_bytes=int(pool), weight_elements=learnt.parameters,
            changed_share=self.changed, link_bytes_per_s=self.link_gbit_s * 1e9 / 8,
            inner_bytes_per_s=gpu.network_bytes_per_s, coding_s=1.0,
            train_flops_per_s=self.trainers * gpu.bf16_flops_per_s * self.utilisation, ttft_s=self.ttft_s,
            tpot_s=self.tpot_s, wrong=self.wrong, headroom=self.headroom, own_cap=self.own_cap,
            guest_cap=self.guest_cap,
        )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        rates = self.rates()
        return (
            f"An instance is {self.tensor} {self.device}; steps are modelled, and both models take turns on a shared "
            f"one. Users come at {self.load:g} of the rate at which serving saturates, with bursts of {self.burst:g} "
            "times the rate.",
            f"Weights reach serving GPUs in {rates.sync_s('dense'):.1f} s as they are and in {rates.sync_s('coo'):.1f} "
            f"s by index and value, if {self.changed:g} of them change; that share is assumed (study weight-sync).",
        )

    def measure(self, system: Rollouts, seed: int) -> Measurements:
        """Return the figures of one system under one seed.

        Parameters
        ----------
        system : Rollouts
        seed : int
        """
        found = self._measured(system, seed)
        for several, field in _SWEEPS.items():
            for value in getattr(self, several):
                other = replace(self, **{field: value})._measured(system, seed)
                at = {name: figure for name, figure, _ in other.rows}
                found.put(f"steps_by_{field}_per_h", at["steps_per_h"], **{field: value})
                found.put(f"added_misses_by_{field}", at["added_misses"], **{field: value})
        return found

    def _measured(self, system: Rollouts, seed: int) -> Measurements:
        rates, batches = self.rates(), self.batches(seed)
        plain = self._plain()
        view = View(self.dedicated, 0, self.serving, self.load)
        if _depends_on_rose(system):
            rose = _run(plain, Rose().arrange(view), seed).run
            view = view._replace(matched_gpus=math.ceil(_added_gpus(rose)))
        arrangement = system.arrange(view)
        run, times = _run(plain, arrangement, seed)
        fixed = _run(plain, Arrangement(), seed).run
        end_ps = int(run.learnt_ps[-1])
        found = Measurements()
        guests, taken = arrangement.governor not in ("none", "free"), arrangement.taken_gpus
        alone = beside = noticed(_alone(plain, seed, times), _users(plain, seed, times), rates, end_ps)
        if guests or (taken and arrangement.governor == "none"):
            by = run if guests else _alone(plain, seed, times, taken)
            beside = noticed(by, _users(plain, seed, times, taken), rates, end_ps)
        found.put("added_misses", float((beside.missed & ~alone.missed).sum()))
        found.put("missed_share", float(beside.missed.mean()))
        for name in ("ttft", "tpot"):
            values = [float(np.nanquantile(getattr(each, f"{name}_s"), 0.99)) for each in (beside, alone)]
            found.put(f"{name}_p99_s", values[0])
            found.put(f"{name}_p99_ratio", values[0] / values[1])
        found.put("steps_per_h", _steps_per_h(run))
        begins = np.concatenate(([0], run.learnt_ps[:-1]))
        spent = (run.rollouts_ps - begins) / PS
        if not arrangement.staleness:
            found.put("rollout_s", float(spent.mean()))
            found.put("of_longest", float((spent / self.longest_s(batches, rates)).mean()))
        outside = arrangement.governor != "none" or arrangement.spot_gpus or taken
        found.put("sync_s", rates.sync_s(arrangement.format) if outside else rates.inner_sync_s)
        added = _added_gpus(run) + arrangement.more_gpus + arrangement.spot_gpus + taken
        found.put("added_gpus", added)
        if added > 0:
            found.put("gain_per_gpu", (_steps_per_h(run) / _steps_per_h(fixed) - 1) / added)
        written = run.counters[GUEST_TOKENS] + run.counters[OWN_TOKENS]
        found.put("serving_tokens_share", run.counters[GUEST_TOKENS] / written)
        found.put("recomputed_share", run.counters[RECOMPUTED] / written)
        found.put("rerouted", run.counters[REROUTED] / self.steps)
        found.put("stale_share", float((run.began_version < run.learnt_version).mean()))
        if guests:
            found.put("busy_share", run.counters[SERVING_PS] / (end_ps * (self.serving - taken)))
        found.put("halvings", run.counters[HALVED] / self.steps)
        found.put("evicted", run.counters[EVICTED] / self.steps)
        return found

    def batches(self, seed: int) -> Batches:
        """Return the trajectories of a seed.

        Parameters
        ----------
        seed : int
        """
        return drawn_batches(self.steps, self.trajectories, self.variation, self.turn_tokens, seed)

    def users(self, seed: int) -> Load:
        """Return the requests of a seed, for as long as the fixed pool takes, and a fifth longer.

        Parameters
        ----------
        seed : int
        """
        return _users(self._plain(), seed, _TIMES)

    def _plain(self) -> RLRollouts:
        """The study without its sweeps, which change nothing but its own figures."""
        return replace(self, loads=(), bursts=(), variations=(), links_gbit_s=(), servings=())

    def longest_s(self, batches: Batches, rates: Rates) -> Any:
        """Return what the longest trajectory of each batch takes on an instance that does nothing else, s.

        Parameters
        ----------
        batches : Batches
        rates : Rates
        """
        token_s = calibrated_roofline(device(self.device), model(self.rollout_model), self.tensor).seconds(1, 3000)
        least = batches.trajectories.least_s(token_s)
        return np.maximum.reduceat(least, np.concatenate(([0], batches.ends[:-1])))


def noticed(run: Run, load: Load, rates: Rates, end_ps: int) -> Users:
    """Return what users noticed who came until the end: the one accounting of service levels.

    Parameters
    ----------
    run : Run
    load : Load
    rates : Rates
    end_ps : int

    Raises
    ------
    GaveUpError
        If requests of that time were never served.
    """
    # The same order however many instances there are; equal requests of one moment stand for each other.
    rows = np.lexsort((load.output_tokens, load.prompt_tokens, load.arrival_ps))
    rows = rows[load.arrival_ps[rows] <= end_ps]
    if not rows.size or (run.last_ps[rows] >= FAR).any():
        raise GaveUpError("There are no users to ask, or some were never served.", hint="raise load, or steps")
    ttft_s = (run.first_ps[rows] - load.arrival_ps[rows]) / PS
    more = load.output_tokens[rows] - 1
    spent = (run.last_ps[rows] - run.first_ps[rows]) / PS
    tpot_s = np.divide(spent, more, out=np.full(rows.size, np.nan), where=more > 0)
    return Users((ttft_s > rates.ttft_s) | (tpot_s > rates.tpot_s), ttft_s, tpot_s)


def _depends_on_rose(system: Rollouts) -> bool:
    asked = system.arrange(View(1, 1, 1))
    return asked.more_gpus > 0 or asked.spot_gpus > 0


def _added_gpus(run: Run) -> float:
    """Serving GPUs' time that rollouts took / time."""
    return float(run.counters[GUEST_PS] / run.learnt_ps[-1])


def _steps_per_h(run: Run) -> float:
    return float(run.learnt_ps.size * 3600 * PS / run.learnt_ps[-1])


class _Ran(NamedTuple):
    """A run, and for how many times what the fixed pool takes its users were drawn."""

    run: Run
    times: float


@lru_cache(maxsize=64)
def _users(study: RLRollouts, seed: int, times: float, taken: int = 0) -> Load:
    rates = study.rates()
    trace = users(study.trace)
    rate_per_s = study.load * study.serving * saturation_per_s(trace, rates)
    horizon_s = times * _fixed_ps(study, seed) / PS
    drawn = bursts(trace.resampled(seed + 1).at_rate(rate_per_s), study.burst, seed)
    whole = drawn.replayed(max(1, math.ceil(horizon_s / drawn.span_s)))
    token_s = 1.5 * calibrated_roofline(device(study.device), model(study.serving_model), study.tensor).seconds(
        16, 20_000
    )
    some = whole.slice(0.0, horizon_s) if whole.span_s > horizon_s else whole
    return assigned(some, study.serving - taken, token_s)


@lru_cache(maxsize=64)
def _alone(study: RLRollouts, seed: int, times: float, taken: int = 0) -> Run:
    return simulate(Arrangement(), study.rates(), _users(study, seed, times, taken))


def _fixed_ps(study: RLRollouts, seed: int) -> int:
    return int(_run(study, Arrangement(), seed).run.learnt_ps[-1])


@lru_cache(maxsize=128)
def _run(study: RLRollouts, arrangement: Arrangement, seed: int) -> _Ran:
    taken = arrangement.taken_gpus
    if taken >= study.serving:
        raise BadValueError("Somebody has to serve users.", given=f"{taken} serving GPUs taken",
                            allowed=f"0 to {study.serving - 1}", where="taken_gpus")  # fmt: skip
    work, times, spot = study.batches(seed), _TIMES, kept_spot(taken) if taken else None
    asked = replace(arrangement, taken_gpus=0, spot_gpus=arrangement.spot_gpus + taken)
    while times <= _MOST_TIMES:
        load = Load(np.zeros(1, dtype=np.int64), *[np.zeros(0, dtype=np.int64)] * 3)
        if arrangement.governor != "none":
            load = _users(study, seed, times, taken)
        if arrangement.spot_gpus:
            horizon_s = 2.0 * times / _TIMES * _fixed_ps(study, seed) / PS
            spot = drawn_spot(arrangement.spot_gpus, study.spot_start_s, study.spot_life_s, horizon_s, seed)
        run = simulate(
            asked, study.rates(), load, batches=work, own=study.dedicated, spot=spot,
            seed=stream_key(seed, "rl-rollouts") >> 1,
        )  # fmt: skip
        if arrangement == Arrangement() or run.learnt_ps[-1] <= times * _fixed_ps(study, seed):
            return _Ran(run, times)
        # The last users had come before the last step: they are drawn for longer.
        times *= 2
    raise GaveUpError(f"Steps take more than {_MOST_TIMES:g} times as long as on the dedicated GPUs alone.",
                      hint="lower load, or leave the system out")  # fmt: skip
