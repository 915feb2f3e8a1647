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
from wavetank.training.rollouts.workload import assigned, bursts, drawn_batches, drawn_spot, saturation_per_s, users
from wavetank.workloads import datasets

TRACES = ("azure-conv-2023", "azure-code-2023")
_DATA = "azure-llm-2023"
_FILES = dict(zip(TRACES, ("conv_first40min.csv.gz", "code_first40min.csv.gz"), strict=True))


class Users(NamedTuple):
    """What users noticed of a run.

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
               "GPU time beside the dedicated GPUs that everybody has / time: of serving GPUs what rollouts took, of "
               "spot GPUs from asking on", words="added GPUs"),
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
        Metric("steps_by_load_per_h", "/h", "higher", "simulated", "steps per hour by share of saturation of serving",
               table=False, words="steps per hour"),
        Metric("added_misses_by_load", "requests", "lower", "simulated", "added misses by share of saturation",
               table=False, words="added misses"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Steps per hour", y="steps_per_h", says="Those with added misses do not count."),
        Chart("bars", "Users who miss the service level and would not without rollouts", y="added_misses",
              says="Zero is what serving demands."),
        Chart("sweep", "Steps per hour as serving becomes busier", y="steps_by_load_per_h", by="load",
              says="Share of the rate at which serving saturates."),
        Chart("sweep", "Added misses as serving becomes busier", y="added_misses_by_load", by="load",
              says="Share of the rate at which serving saturates."),
    )  # fmt: skip

    trace: str = setting(TRACES[0], choices=TRACES, says="Requests of users")
    load: float = setting(0.19, says="Rate of users / the rate at which serving saturates", low=0.0, high=1.5)
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
    loads: tuple[float, ...] = setting((), says="Further loads, each a run of its own", low=0.0, high=1.5)

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
        for load in self.loads:
            other = replace(self, load=load)._measured(system, seed)
            at = {name: value for name, value, _ in other.rows}
            found.put("steps_by_load_per_h", at["steps_per_h"], load=load)
            found.put("added_misses_by_load", at["added_misses"], load=load)
        return found

    def _measured(self, system: Rollouts, seed: int) -> Measurements:
        rates, batches = self.rates(), self.batches(seed)
        plain = replace(self, loads=())
        matched = 0
        if _depends_on_rose(system):
            matched = math.ceil(_added_gpus(_run(plain, Rose().arrange(View(self.dedicated, 0, self.serving)), seed)))
        arrangement = system.arrange(View(self.dedicated, matched, self.serving))
        run = _run(plain, arrangement, seed)
        fixed = _run(plain, Arrangement(), seed)
        end_ps = int(run.learnt_ps[-1])
        found = Measurements()
        guests = arrangement.governor not in ("none", "free")
        alone = noticed(_alone(plain, seed), self.users(seed), rates, end_ps)
        beside = noticed(run, self.users(seed), rates, end_ps) if guests else alone
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
        outside = arrangement.governor != "none" or arrangement.spot_gpus
        found.put("sync_s", rates.sync_s(arrangement.format) if outside else rates.inner_sync_s)
        added = _added_gpus(run) + arrangement.more_gpus + arrangement.spot_gpus
        found.put("added_gpus", added)
        if added > 0:
            found.put("gain_per_gpu", (_steps_per_h(run) / _steps_per_h(fixed) - 1) / added)
        written = run.counters[GUEST_TOKENS] + run.counters[OWN_TOKENS]
        found.put("serving_tokens_share", run.counters[GUEST_TOKENS] / written)
        found.put("recomputed_share", run.counters[RECOMPUTED] / written)
        found.put("rerouted", run.counters[REROUTED] / self.steps)
        found.put("stale_share", float((run.began_version < run.learnt_version).mean()))
        if guests:
            found.put("busy_share", run.counters[SERVING_PS] / (end_ps * self.serving))
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
        return _users(replace(self, loads=()), seed)

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
    rows = np.flatnonzero(load.arrival_ps <= end_ps)
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


@lru_cache(maxsize=4)
def _users(study: RLRollouts, seed: int) -> Load:
    rates = study.rates()
    trace = users(study.trace)
    rate_per_s = max(study.load, 1e-6) * study.serving * saturation_per_s(trace, rates)
    horizon_s = 1.2 * _run(study, Arrangement(), seed).learnt_ps[-1] / PS
    drawn = bursts(trace.resampled(seed + 1).at_rate(rate_per_s), study.burst, seed)
    whole = drawn.replayed(max(1, math.ceil(horizon_s / drawn.span_s)))
    token_s = 1.5 * calibrated_roofline(device(study.device), model(study.serving_model), study.tensor).seconds(
        16, 20_000
    )
    return assigned(whole.slice(0.0, horizon_s) if whole.span_s > horizon_s else whole, study.serving, token_s)


@lru_cache(maxsize=4)
def _alone(study: RLRollouts, seed: int) -> Run:
    return simulate(Arrangement(), study.rates(), study.users(seed))


@lru_cache(maxsize=8)
def _run(study: RLRollouts, arrangement: Arrangement, seed: int) -> Run:
    nobody = Load(np.zeros(1, dtype=np.int64), *[np.zeros(0, dtype=np.int64)] * 3)
    load = nobody if arrangement.governor == "none" else study.users(seed)
    spot = None
    if arrangement.spot_gpus:
        horizon_s = 2.0 * _run(study, Arrangement(), seed).learnt_ps[-1] / PS
        spot = drawn_spot(arrangement.spot_gpus, study.spot_start_s, study.spot_life_s, horizon_s, seed)
    return simulate(
        arrangement, study.rates(), load, batches=study.batches(seed), own=study.dedicated, spot=spot,
        seed=stream_key(seed, "rl-rollouts") >> 1,
    )  # fmt: skip
