"""Comparisons made of records written down here: no simulation, no clock, no run folder."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from wavetank.ledger import catalog
from wavetank.ledger.catalog import Catalog, Claim, StudyEntry, SystemEntry
from wavetank.run.comparison import Comparison
from wavetank.run.execute import FailedTrial
from wavetank.run.runfolder import Plan
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Metric, Study, settings_of
from wavetank.study.timing import SHARE_OF_COPY, TimingStudy

ROUTERS = {
    "round-robin": 1.04,
    "random": 1.32,
    "power-of-two": 0.93,
    "fewest-requests": 0.86,
    "fewest-kv-tokens": 0.80,
    "vllm-default": 1.0,
    "prefix-affinity": 0.97,
    "balance-route-0": 0.64,
    "balance-route": 0.58,
}
SORTERS = {"numpy": 1.0, "numpy-stable": 0.82, "polars": 0.91, "radix": 0.47, "learned": 0.61, "pdq": 0.74}


@dataclass(frozen=True, kw_only=True)
class LlmRouting(Study):
    """Requests of the conversation trace arrive at a router that knows the state of its workers as of the last refresh.
    All replicas step together, so one overloaded replica idles the rest.

    Parameters
    ----------
    workers : int
    """

    name: ClassVar[str] = "llm-routing"
    baseline: ClassVar[str] = "vllm-default"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("imbalance_tokens", "tokens", "lower", of="mean over steps of (largest - mean) KV tokens of a worker"),
        Metric("idle_share", "", "lower", of="1 - mean step work / largest step work, over all steps"),
        Metric("ttft_p50_s", "s", "lower", of="arrival to first token, median over requests that finished"),
        Metric("ttft_p99_s", "s", "lower", of="arrival to first token, 99th percentile"),
        Metric("tpot_p50_s", "s", "lower", of="time per output token after the first, median"),
        Metric("tpot_p99_s", "s", "lower", of="time per output token after the first, 99th percentile"),
        Metric("e2e_p99_s", "s", "lower", of="arrival to last token, 99th percentile"),
        Metric("goodput_per_s", "requests/s", "higher", of="requests that met both deadlines / time"),
        Metric("throughput_tokens_per_s", "tokens/s", "higher", of="output tokens / time"),
        Metric("decision_time", "s", "lower", kind="measured", of="mean wall time of one decision"),
        Metric("ttft_s", "s", "lower", of="arrival to first token", table=False),
        Metric("step_imbalance_tokens", "tokens", "lower", of="largest - mean KV tokens, one step", table=False),
    )
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("pareto", "Throughput against tail latency", "ttft_p99_s", x="throughput_tokens_per_s",
              says="Down and to the right is better."),
        Chart("bars", "Imbalance", "imbalance_tokens", says="Shorter bars mean that workers carry more equal loads."),
        Chart("sweep", "Tail latency as load grows", "ttft_p99_s", by="load", log="y",
              says="Where a curve turns up, the policy has run out of room."),
        Chart("sweep", "How much stale state costs", "ttft_p99_s", by="refresh_s", log="x",
              says="Policies that look at state suffer when it is old; blind ones do not care."),
        Chart("distribution", "Time to first token, all requests", "ttft_s", by="quantile", log="xy",
              says="The tail decides what users feel."),
        Chart("timeline", "Imbalance over time", "step_imbalance_tokens", by="time_s",
              says="Bursts show how fast a policy evens out the load."),
    )  # fmt: skip
    default_seeds: ClassVar[int] = 8
    primary: ClassVar[str] = "imbalance_tokens"
    secondary: ClassVar[tuple[str, ...]] = ("ttft_p99_s", "throughput_tokens_per_s", "decision_time")

    workers: int = setting(16, unit="workers", says="data-parallel replicas behind the router", low=1)
    load: float = setting(0.85, says="offered load as a share of what the workers can serve", low=0.01, high=2)
    refresh_s: float = setting(0.05, unit="s", says="age at which the router's view of the workers is renewed")
    trace: str = setting("azure-conversation-2024", says="data set or CSV file of requests")

    def notes(self) -> tuple[str, ...]:
        return ("Times are those of an event simulation with a step-time table of one A100; no GPU was used.",)


@dataclass(frozen=True, kw_only=True)
class SortIntegers(TimingStudy):
    """Sorts of 32-bit integers."""

    name: ClassVar[str] = "sort-integers"
    baseline: ClassVar[str] = "numpy"
    cases_by: ClassVar[str] = "keys"
    metrics: ClassVar[tuple[Metric, ...]] = (SHARE_OF_COPY,)
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Time against numpy's sort", "time_ratio", says="Left of the dashed line is faster than numpy."),
        Chart(
            "pareto", "Speed and share of the copy limit", "share_of_copy", x="time_s", log="x", says="Both at once."
        ),
        Chart("bars", "Time", "time_s", log="x"),
    )


@dataclass(frozen=True, kw_only=True)
class BalanceRoute:
    """A system with parameters, for the catalog of these tests."""

    horizon_steps: int = setting(32, unit="steps", says="how far ahead decode work is counted", low=0)
    alpha: float = setting(0.5, says="weight of predicted against present load", low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class Blind:
    """A system without parameters."""


@functools.cache
def router_records() -> list[Record]:
    """Return records that look like a run of the routing study."""
    metrics = {metric.name: metric for metric in LlmRouting.metrics}
    records: list[Record] = []
    for system in ROUTERS:
        factor = ROUTERS[system]
        for seed in range(8):
            rng = random.Random(f"{system}/{seed}")
            shared = random.Random(seed).gauss(0, 0.03)

            def put(name: str, value: float, /, **at: float | str) -> None:
                noise = 1 + shared + rng.gauss(0, 0.012)  # noqa: B023  (called inside the loop only)
                metric = metrics[name]
                records.append(
                    Record("llm-routing", system, seed, name, value * noise, metric.unit, metric.kind, at)  # noqa: B023
                )

            put("imbalance_tokens", 20_800 * factor**1.4)
            put("idle_share", 0.31 * factor**1.3)
            put("ttft_p50_s", 0.118 * factor**0.4)
            put("ttft_p99_s", 1.24 * factor**1.6)
            put("tpot_p50_s", 0.0312 * factor**0.5)
            put("tpot_p99_s", 0.061 * factor)
            put("e2e_p99_s", 21.4 * factor**0.6)
            put("goodput_per_s", 41.2 * factor**-0.4)
            put("throughput_tokens_per_s", 18_900 * factor**-0.45)
            put("decision_time", 3.1e-6 * (1 + 4 * (1.4 - factor)))
            for load in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0):
                put("ttft_p99_s", 0.22 * factor**0.5 / max(0.03, 1.06 - load * factor**0.25), load=load)
            for refresh in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0):
                blind = system in ("round-robin", "random")
                put("ttft_p99_s", 1.24 * factor**1.6 * (1 if blind else 1 + 0.8 * refresh**0.7), refresh_s=refresh)
            for quantile in (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999):
                put("ttft_s", 0.1 * factor**0.5 * (1 - quantile) ** (-0.42 * factor), quantile=quantile)
            for step in range(0, 300, 3):
                burst = 1.6 if 90 <= step < 120 else 1.0
                put(
                    "step_imbalance_tokens", 17_000 * factor**1.4 * burst * (1 + 0.2 * math.sin(step / 11)), time_s=step
                )
    return records


@functools.cache
def sorter_records() -> list[Record]:
    """Return records that look like a run of the sorting study."""
    records = []
    cases = {
        "uniform": 0.061,
        "zipf": 0.047,
        "sorted": 0.004,
        "reversed": 0.006,
        "constant": 0.003,
        "two-valued": 0.011,
    }
    for case, base in cases.items():
        for system, factor in SORTERS.items():
            for number in range(21):
                rng = random.Random(f"{case}/{system}/{number}")
                ratio = 1.0 if system == "numpy" else factor * (3.1 if base < 0.01 and system == "radix" else 1)
                ratio *= 1.0 if system == "numpy" else 1 + rng.gauss(0, 0.03)
                took = base * ratio * (1 + random.Random(number).gauss(0, 0.05))
                for metric, value in (("time_ratio", ratio), ("time_s", took), ("share_of_copy", 0.0021 / took)):
                    unit = "s" if metric == "time_s" else ""
                    records.append(
                        Record("sort-integers", system, number, metric, value, unit, "measured", {"keys": case})
                    )
    return records


def _compared(
    study: Study,
    records: Sequence[Record],
    *,
    systems: Sequence[str] | None = None,
    seeds: int | None = None,
    failures: Sequence[FailedTrial] = (),
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
) -> Comparison:
    """Return a comparison as a run would."""
    plan = Plan(
        study=study.name,
        settings=settings_of(study),
        systems=tuple(systems or catalog.everything().plain_run(study.name)),
        parameters={name: dict(values) for name, values in (parameters or {}).items()},
        seeds=tuple(range(seeds if seeds is not None else study.default_seeds)),
    )
    about = {
        "command": f"wavetank compare {study.name} --set workers=32",
        "started": "2026-11-20T09:15:00+00:00",
        "on": "local",
        "commit": "0123456789ab",
        "versions": {"wavetank": "0.1.0", "python": "3.11.7", "numpy": "2.4.0", "numba": "0.68.0"},
        "machine": {
            "processor": "A processor",
            "features": ["AVX2"],
            "cores": 8,
            "memory_bytes": 33_000_000_000,
            "system": "Linux x86_64",
        },
        "data": {"azure-conversation-2024": "sha256:3f0c5a"},
        "notes": list(study.notes()),
        "wall_s": 12.4,
        "trial_wall_s": 80.9,
    }
    return Comparison(study, plan, tuple(records), about, tuple(failures), Path("runs/none"))


def _entry(name: str, **fields: Any) -> SystemEntry:
    plain: dict[str, Any] = {
        "name": name,
        "area": "serving",
        "problem": "routing",
        "object": "none:none",
        "shape": "policy",
        "does": f"Sends every request where the rule called {name} says.",
        "source": {},
        "runs": ("simulated", "live"),
        "studies": ("llm-routing",),
        "role": "baseline",
        "default": True,
    }
    return SystemEntry(**{**plain, **fields})


@pytest.fixture
def known_systems(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """Put the systems of these tests, with claims of every verdict, into the catalog."""
    claims = (
        Claim(
            system="balance-route",
            says="lower average imbalance than vLLM's default routing on the conversation trace",
            study="llm-routing",
            metric="imbalance_tokens",
            versus="vllm-default",
            paper=0.62,
            better="lower",
            level="same",
            note="The paper breaks ties at random; here the lowest worker wins, for all systems alike.",
        ),
        Claim(system="balance-route", says="a third more throughput", study="llm-routing",
              metric="throughput_tokens_per_s", versus="vllm-default", paper=1.35, better="higher", level="same"),
        Claim(system="balance-route", says="a 99th percentile of the time to first token of 600 ms",
              study="llm-routing", metric="ttft_p99_s", at_most=0.65, better="lower", level="goal"),
        Claim(system="prefix-affinity", says="more goodput than the default", study="llm-routing",
              metric="goodput_per_s", versus="vllm-default", paper=1.3, better="higher", level="same"),
        Claim(system="prefix-affinity", says="a tenth less imbalance than the default", study="llm-routing",
              metric="imbalance_tokens", versus="vllm-default", paper=0.9586, better="lower", level="same"),
        Claim(system="balance-route", says="two percent more goodput", study="llm-routing",
              metric="goodput_per_s", versus="vllm-default", paper=1.02, better="higher", level="same"),
        Claim(system="prefix-affinity", says="a shorter time to a token", study="llm-routing",
              metric="tpot_p99_s", versus="vllm-default", paper=0.8, better="lower", level="same"),
        Claim(system="balance-route", says="less idle time than the best other rule", study="llm-routing",
              metric="idle_share", versus="best", paper=0.95, better="lower", level="elsewhere"),
        Claim(system="balance-route", says="as many decisions a second as the default", study="llm-routing",
              metric="decision_time", versus="vllm-default", better="lower", level="proxy"),
        Claim(system="balance-route", says="a third or half of the default's idle time", study="llm-routing",
              metric="idle_share", versus="vllm-default", at_least=0.6, at_most=0.7, better="lower", level="goal"),
        Claim(system="balance-route", says="a shorter tail at high load", study="llm-routing", metric="ttft_p99_s",
              versus="vllm-default", paper=0.3, better="lower", at={"load": 0.95}, level="same"),
        Claim(system="balance-route", says="less energy for a token", study="llm-routing",
              metric="joules_per_token", paper=0.2, better="lower", neutral=1.0, level="same"),
    )  # fmt: skip
    entries = {name: _entry(name) for name in ROUTERS}
    entries |= {
        name: _entry(name, area="kernels", shape="kernel", runs=("executed",), studies=("sort-integers",))
        for name in SORTERS
    }
    entries["balance-route-0"] = _entry("balance-route-0", object="wavetank_test_routers:BalanceRoute")
    entries["balance-route"] = _entry(
        "balance-route",
        object="wavetank_test_routers:BalanceRoute",
        does="Assigns waiting requests to data-parallel workers so that the slowest worker wastes least decode time.",
        source={"title": "Balanced routing", "arxiv": "2605.06113", "year": 2026},
        role="system",
        differs=("The horizon is given in steps, not seconds.", "Ties go to the lowest worker, not to a random one."),
        claims=claims,
    )
    asked = {
        "llm-routing": "Which worker should a request go to, so that no data-parallel replica waits for another?",
        "sort-integers": "Which sort is fastest on 32-bit integers, for the keys you have?",
        "wide": "Does it stay small?",
        "hostile": 'What if <script>alert("question")</script> & names are hostile?',
    }
    studies = {
        name: StudyEntry(name=name, area="any", problem="any", object=f"wavetank_test_studies:{name}", asks=asks)
        for name, asks in asked.items()
    }
    found = Catalog(systems=entries, studies=studies, papers={}, commands={})
    monkeypatch.setattr(catalog, "built_in", lambda: found)
    monkeypatch.setattr(catalog, "everything", lambda: found)
    kinds: dict[str, type] = {
        "wavetank_test_routers:BalanceRoute": BalanceRoute,
        "wavetank_test_studies:llm-routing": LlmRouting,
        "wavetank_test_studies:sort-integers": SortIntegers,
    }
    load: Callable[..., type] = lambda path, name, where, *kind: kinds.get(path, Blind)  # noqa: E731
    monkeypatch.setattr(catalog, "load_object", load)
    return found


@pytest.fixture
def compared() -> Callable[..., Comparison]:
    """Build a comparison from records, as a run would."""
    return _compared


@pytest.fixture
def routing(known_systems: Catalog) -> Comparison:
    """A run of the routing study with two changed settings and a changed parameter."""
    study = LlmRouting(workers=32, load=0.9)
    return _compared(study, router_records(), parameters={"balance-route-0": {"alpha": 0.7}})


@pytest.fixture
def sorting(known_systems: Catalog) -> Comparison:
    """A run of the sorting study: six cases, seven processes of three rounds."""
    return _compared(SortIntegers(), sorter_records(), seeds=7)
