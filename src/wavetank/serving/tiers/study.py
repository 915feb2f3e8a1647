"""Study ``tiered-slo``: several service levels on the same GPUs while the mix of requests drifts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import as_model
from wavetank.serving.fidelity.shipped_fit import shipped_fit
from wavetank.serving.tiers.fleet import Served, serve
from wavetank.serving.tiers.interface import Floats, Policy, Problem, Tier, Unit
from wavetank.serving.tiers.measured import Profile, best_alone
from wavetank.serving.tiers.nitsum import Nitsum
from wavetank.serving.tiers.profile import Hardware, units_of
from wavetank.serving.tiers.rivals import BestStatic, FixedPlan
from wavetank.serving.tiers.traffic import SOURCES, Drift, TieredRequests, drifting, lengths_of, mean_lengths
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.units import show
from wavetank.workloads.load import read_trace

NAMES = ("tight", "normal", "relaxed")
# At the beginning everybody has an idle fleet.
_WARM_UP_S = 10.0
# A clairvoyant plan that gains less is none to measure shares of.
_GAIN = 1.02
# What is served and what rivals are tuned on; settings were chosen on the seeds below.
_SERVED, _PAST = 1 << 33, 1 << 32


@dataclass(frozen=True, kw_only=True)
class TieredSlo(Study):
    """Requests of three tiers arrive at a fleet: chat with a tight objective per token, completion of code, long
    documents that can wait.  Their shares swing, a third of a period apart, around means at which each tier needs a
    third of the GPUs.  A request counts where both its objectives hold.  Rivals that stay are tuned on other requests
    of the same drift.
    """

    name: ClassVar[str] = "tiered-slo"
    baseline: ClassVar[str] = "uniform-degree"
    primary: ClassVar[str] = "goodput_per_s"
    secondary: ClassVar[tuple[str, ...]] = ("within_share", "worst_tier_share")
    must_be_zero: ClassVar[tuple[str, ...]] = ("misplaced",)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("goodput_per_s", "requests/s", "higher", "simulated",
               "requests per second that keep both objectives, of those that arrive after the first 10 s; what is not "
               "done a minute after the last arrival has not kept them", words="goodput"),
        Metric("within_share", "", "higher", "simulated", "share of these requests that keep both objectives",
               words="share within the objectives"),
        Metric("worst_tier_share", "", "higher", "simulated", "the same share in the tier where it is lowest",
               words="share within the objectives in the worst tier"),
        Metric("share_of_gain", "", "higher", "simulated",
               "goodput above that of best-static, over the clairvoyant plan's; where that gains 2 % or more",
               words="share of the clairvoyant plan's gain"),
        Metric("switches", "plans", "", "counted", "changes of the plan"),
        Metric("paused_share", "", "lower", "simulated", "share of the GPUs' time in which groups were paused"),
        Metric("moved_bytes", "bytes", "lower", "simulated", "keys and values that changed GPUs at switches"),
        Metric("misplaced", "requests", "lower", "counted",
               "requests lost or duplicated: in no list or in two, or done with other tokens than asked"),
        Metric("decision_s", "s", "lower", "measured", "time of one decision on this machine; median"),
        Metric("tier_share", "", "higher", "simulated", "share of requests that keep both objectives, by tier",
               table=False),
        Metric("goodput_by_pause_per_s", "requests/s", "higher", "simulated",
               "goodput where a switch pauses its groups for so long", table=False, words="goodput by pause"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Goodput", y="goodput_per_s", says="Longer is better."),
        Chart("bars", "Requests within both objectives, by tier", y="tier_share", by="tier",
              says="A plan may buy one tier's requests with another's."),
        Chart("sweep", "Goodput as a switch takes longer", y="goodput_by_pause_per_s", by="pause_s",
              says="Plans that stay are level lines; where a falling line crosses them, switching stops paying."),
    )  # fmt: skip

    lengths: str = setting(
        "generated", says="Lengths: generated, or drawn from the traces of Azure and Mooncake",
        choices=("generated", "traces"),
    )  # fmt: skip
    load: float = setting(
        0.8, says="Arrivals over what each tier would get through with a third of the GPUs", low=0.01, high=10.0
    )
    period_s: float = setting(60.0, unit="s", says="Period of the swing", low=1.0, high=1e5)
    amplitude: float = setting(0.5, says="Share of its mean by which a tier's arrivals swing", low=0.0, high=1.0)
    burst: float = setting(1.0, says="Factor of bursts of 5 s; 1: none", low=1.0, high=100.0)
    bursts_per_minute: float = setting(1.0, says="Bursts, each of one tier", low=0.0, high=100.0)
    duration_s: float = setting(180.0, unit="s", says="Time in which requests arrive", low=20.0, high=1e5)
    pause_s: float = setting(
        0.1, unit="s", says="Pause of groups whose degree changes, beside the transfer of caches", low=0.0, high=1e4
    )
    pauses_s: tuple[float, ...] = setting(
        (0.0, 0.025, 0.5, 5.0, 30.0), unit="s", says="Further pauses, for goodput alone", low=0.0, high=1e4
    )
    window_s: float = setting(1.0, unit="s", says="Time between decisions", low=0.05, high=1e4)
    ttft_s: tuple[float, ...] = setting(
        (0.5, 2.0, 30.0), unit="s", says="Objectives for the time to first token, by tier", low=1e-3, high=1e4
    )
    tpot_s: tuple[float, ...] = setting(
        (0.015, 0.1, 0.3), unit="s", says="Objectives for the time per further token, by tier", low=1e-4, high=100.0
    )
    device: str = setting("H100-SXM", says="Device")
    model: str = setting("Qwen3-14B", says="Language model")
    gpus: int = setting(8, unit="GPUs", says="All of them; a power of two", low=1, high=64)
    degrees: tuple[int, ...] = setting((1, 2, 4, 8), says="Tensor-parallel degrees to choose from", low=1, high=64)

    def check(self) -> None:
        """Refuse objectives that do not match the tiers, and what nothing can serve."""
        for name in ("ttft_s", "tpot_s"):
            if len(getattr(self, name)) != len(NAMES):
                raise BadValueError(
                    f"{name} needs one objective for each tier.", given=f"{len(getattr(self, name))} values",
                    allowed=f"{len(NAMES)}: {', '.join(NAMES)}", where=f"study {self.name}, {name}",
                )  # fmt: skip
        hardware, tiers = self.hardware(), self.tiers()
        for degree in hardware.degrees:
            hardware.room_tokens(degree, full_copy=True)
        units = units_of(hardware.rates(tiers, full_copy=True), self.gpus)
        for index, tier in enumerate(tiers):
            if not any(unit.per_s > 0 for unit in units if unit.tier == index):
                raise BadValueError(
                    f"No group keeps the objectives of the tier {tier.name!r}.",
                    given=f"{show(tier.ttft_s, 's')} to the first token and {show(tier.tpot_s, 's')} per token",
                    where=f"study {self.name}", hint="loosen them, or allow higher degrees",
                )  # fmt: skip

    def data(self) -> Mapping[str, str]:
        """Return the checksums of the traces."""
        return {name: read_trace(name).checksum for name, _ in SOURCES} if self.lengths == "traces" else {}

    def opening(self) -> tuple[str, ...]:
        """Return what arrives, and what serves it."""
        asked = ", ".join(
            f"{tier.name} {show(tier.ttft_s, 's')} and {show(tier.tpot_s, 's')} per token" for tier in self.tiers()
        )
        return (
            f"{self.model} on {self.gpus} x {self.device}; objectives: {asked}.",
            f"Shares swing by {self.amplitude:.0%} in {show(self.period_s, 's')}; a switch pauses its groups for "
            f"{show(self.pause_s, 's')}.",
        )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        weights = as_model(self.model).parameters * 2 / 1e9
        return (
            shipped_fit().said_of_roofline(self.device, calibrated=True),
            f"Systems that switch keep a full copy of the weights ({weights:.1f} GB) on every GPU, the others their "
            "slices alone.",
            "The tight objective per token is near the 10 ms in which one GPU reads all weights: the degree matters.",
            "best-static and uniform-degree are tuned on other requests of the same drift; Nitsum's settings are its "
            "defaults, chosen on seeds that no kept run has.",
        )  # fmt: skip

    def hardware(self) -> Hardware:
        """Return the GPUs and the model."""
        return Hardware(device=self.device, model=self.model, gpus=self.gpus, degrees=self.degrees)

    def tiers(self) -> tuple[Tier, ...]:
        """Return the three tiers with the mean lengths of what arrives."""
        return _tiers(self.lengths, self.ttft_s, self.tpot_s)

    def problem(self, pause_s: float | None = None) -> Problem:
        """Return what policies know beforehand.

        Parameters
        ----------
        pause_s : float, optional
            In place of the setting.
        """
        units, sliced = (_units(self.hardware(), self.tiers(), self.lengths, full) for full in (True, False))
        each = tuple(self.load * best_alone(sliced, tier, self.gpus) / len(NAMES) for tier in range(len(NAMES)))
        pause = self.pause_s if pause_s is None else pause_s
        return Problem(self.tiers(), units, sliced, self.gpus, self.window_s, pause, each)

    def requests(self, seed: int, past: bool = False) -> TieredRequests:
        """Return what arrives, or what arrived before: other requests of the same drift.

        Parameters
        ----------
        seed : int
        past : bool
        """
        drift = Drift(self.period_s, self.amplitude, self.burst, self.bursts_per_minute)
        return drifting(
            self.problem().expected_per_s,
            drift,
            self.duration_s,
            lengths_of(self.lengths),
            seed + (_PAST if past else _SERVED),
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Serve the same requests under one policy."""
        requests = self.requests(seed)
        if hasattr(system, "hindsight"):
            found = self._figures(self._best_in_hindsight(system, requests, seed))
            for pause in self.pauses_s:
                found.put("goodput_by_pause_per_s", found.rows[0][1], pause_s=pause)
            return found
        policy = self.tuned(system, seed)
        timed = _Timed(policy)
        served = serve(requests, timed, self.problem(), self.hardware())
        found = self._figures(served)
        found.put("decision_s", float(np.median(timed.seconds)))
        for pause in self.pauses_s:
            stays = isinstance(policy, FixedPlan)
            value = found.rows[0][1] if stays else self.goodput(policy, requests, pause)
            found.put("goodput_by_pause_per_s", value, pause_s=pause)
        return found

    def _best_in_hindsight(self, system: Any, requests: TieredRequests, seed: int) -> Served:
        """Return the run with most goodput, of policies that know what arrives, where a switch takes no time.

        A policy that would do as well without knowing is tried with every pause, so that it cannot do better alone; so
        is the plan that stays which other requests chose.
        """
        runs = []
        known = system.hindsight(self.problem(0.0), self._arrived(requests))
        for policy in [*known, self.tuned(BestStatic(), seed)]:
            pauses = (0.0, self.pause_s, *self.pauses_s) if isinstance(policy, Nitsum) else (0.0,)
            for pause in sorted(set(pauses)):
                runs.append(serve(requests, policy, self.problem(pause), self.hardware()))
        return max(runs, key=lambda served: served.good_per_s(_WARM_UP_S, self.duration_s))

    def _figures(self, served: Served) -> Measurements:
        """Return the figures of one run, goodput first."""
        found = Measurements()
        shares = served.shares(_WARM_UP_S, self.duration_s)
        counted = served.requests.arrival_s >= _WARM_UP_S
        found.put("goodput_per_s", served.good_per_s(_WARM_UP_S, self.duration_s))
        found.put("within_share", float(served.good()[counted].mean()))
        found.put("worst_tier_share", min(shares))
        found.put("switches", len(served.plans) - 1)
        found.put("paused_share", served.paused_gpu_s / (self.gpus * self.duration_s))
        found.put("moved_bytes", served.moved_bytes)
        found.put("misplaced", served.misplaced)
        for name, share in zip(NAMES, shares, strict=True):
            found.put("tier_share", share, tier=name)
        return found

    def conclude(self, records: Sequence[Record]) -> list[Record]:
        """Return what share of the clairvoyant plan's gain over the best plan that stays each system has, by seed."""
        goodputs: dict[int, dict[str, float]] = {}
        for record in records:
            if record.metric == "goodput_per_s":
                goodputs.setdefault(record.seed, {})[record.system] = record.value
        found = []
        for seed, of in goodputs.items():
            stays, knows = of.get("best-static"), of.get("clairvoyant")
            if stays is None or knows is None or knows < _GAIN * stays:
                continue
            for system, value in of.items():
                share = (value - stays) / (knows - stays)
                found.append(Record(self.name, system, seed, "share_of_gain", share, "", "simulated", {}))
        return found

    def goodput(self, policy: Policy, requests: TieredRequests, pause_s: float) -> float:
        """Return the goodput of a policy where a switch takes ``pause_s``."""
        served = serve(requests, policy, self.problem(pause_s), self.hardware())
        return served.good_per_s(_WARM_UP_S, self.duration_s)

    def tuned(self, system: Any, seed: int) -> Policy:
        """Return a system's best candidate on other requests of the same drift, or the system that has none.

        Parameters
        ----------
        system : object
            A policy, or one with ``candidates(problem, arrived_per_s)``.
        seed : int

        Raises
        ------
        BadValueError
            If the GPUs cannot be divided as the system does.
        """
        if not hasattr(system, "candidates"):
            policy: Policy = system
            return policy
        past = self.requests(seed, past=True)
        tried = system.candidates(self.problem(), self._arrived(past))
        if not tried:
            raise BadValueError(
                f"{type(system).__name__} has no plan for so few groups.", given=f"{self.gpus} GPUs",
                allowed="one group or more for each tier and for each role", where=f"study {self.name}",
                hint="give more GPUs or lower degrees, or leave this system out",
            )  # fmt: skip
        ends = self.duration_s

        def goodput(policy: Policy) -> float:
            return self._served(past, policy).good_per_s(_WARM_UP_S, ends)

        best: Policy = max(tried, key=goodput)
        return best

    def _served(self, requests: TieredRequests, policy: Policy) -> Served:
        return serve(requests, policy, self.problem(), self.hardware())

    def _arrived(self, requests: TieredRequests) -> Floats:
        """Return arrivals per second, float64 of shape (windows, tiers)."""
        windows = int(np.ceil(self.duration_s / self.window_s))
        found = np.zeros((windows, len(NAMES)))
        np.add.at(found, ((requests.arrival_s / self.window_s).astype(np.int64), requests.tier), 1.0 / self.window_s)
        return found


class _Timed:
    """A policy whose decisions are timed."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.rules, self.begin = policy, policy.rules, policy.begin
        self.seconds: list[float] = []

    def decide(self, view: Any, state: Any) -> Any:
        """Return what the policy decides."""
        began = time.perf_counter()
        plan = self.policy.decide(view, state)
        self.seconds.append(time.perf_counter() - began)
        return plan


@lru_cache(maxsize=16)
def _tiers(lengths: str, ttft_s: tuple[float, ...], tpot_s: tuple[float, ...]) -> tuple[Tier, ...]:
    found = []
    for name, first, further, kind in zip(NAMES, ttft_s, tpot_s, lengths_of(lengths), strict=True):
        prompt, output = mean_lengths(kind)
        found.append(Tier(name=name, ttft_s=first, tpot_s=further, prompt_tokens=prompt, output_tokens=output))
    return tuple(found)


@lru_cache(maxsize=16)
def _units(hardware: Hardware, tiers: tuple[Tier, ...], lengths: str, full_copy: bool) -> tuple[Unit, ...]:
    return Profile(hardware=hardware, tiers=tiers, lengths=lengths_of(lengths)).units(full_copy)
