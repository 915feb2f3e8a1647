"""What recorded runs with LoRA adapters are simulated with, model by model: data, from the package or from the runs.

``lora_models.toml`` holds what is known of models: their longest context, the lengths of the runs' requests, loading
times, and costs of a step with where they were fitted.  Of any other model the runs themselves say how long prompts and
answers are; its costs are fitted to them (:func:`wavetank.serving.adapters.lora_fidelity.costs_of`).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a step of the engine with adapters enabled takes.

    Parameters
    ----------
    overhead_s, per_request_s, per_context_token_s, per_prefill_token_s : float
        As of :class:`~wavetank.platforms.step_time.FittedStepTime`, s.
    percent_per_adapter : float
        By how many per cent of that a distinct adapter in the batch makes a step longer.
    per_adapter_s, per_adapter_s_per_rank : float
        By how many seconds besides, and by how many for every rank that a slot has room for.
    first_load_s_per_rank : float
        What reading an adapter from disk takes, at its first use, s for every rank: its file grows with the rank.
    per_arrival_s : float
        What taking in a request that has come takes, s: the steps wait for it.
    """

    overhead_s: float
    per_request_s: float
    per_context_token_s: float
    per_prefill_token_s: float
    percent_per_adapter: float
    per_adapter_s: float
    per_adapter_s_per_rank: float
    first_load_s_per_rank: float
    per_arrival_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How long the requests of the runs are: log-normal, cut as vLLM's benchmark cuts what it reads.

    Attributes
    ----------
    prompt_mean_tokens, output_mean_tokens : float
        After the cut.
    prompt_spread, output_spread : float
        Standard deviation of the logarithm.
    shortest_tokens, longest_prompt_tokens, longest_total_tokens : int
    short_share : float
        Share of answers of a few tokens, which a log-normal lacks: from the shortest to ``short_longest_tokens``, all
        logarithms equally likely.
    short_longest_tokens : int
    """

    prompt_mean_tokens: float
    output_mean_tokens: float
    prompt_spread: float
    output_spread: float
    shortest_tokens: int
    longest_prompt_tokens: int
    longest_total_tokens: int
    short_share: float
    short_longest_tokens: int

    @property
    def long_mean_tokens(self) -> float:
        """Mean of the answers that are not of a few tokens."""
        low, high = self.shortest_tokens, self.short_longest_tokens
        of_short = self.short_share * (high - low) / math.log(high / low)
        return max((self.output_mean_tokens - of_short) / (1 - self.short_share), float(low))


@dataclass(frozen=True, kw_only=True)
class LoraModel:
    """A model, and what its runs are simulated with.

    Attributes
    ----------
    name : str
        As the runs' files have it.
    lengths : Lengths
    longest_context_tokens : int or None
        None where it is not known, so that no limit of memory is predicted.
    load_s, load_s_per_rank : float
        Loading an adapter from the host's memory, s.
    costs : Costs or None
        Fitted ones that ship with the package; None for a model that was not fitted.
    published : Costs or None
        The authors' constants.
    memory : (float, float, float) or None
        KV tokens without adapters, those that a slot takes, and those that it takes for every rank.
    """

    name: str
    lengths: Lengths
    longest_context_tokens: int | None = None
    load_s: float
    load_s_per_rank: float
    costs: Costs | None = None
    published: Costs | None = None
    memory: tuple[float, float, float] | None = None


@cache
def _shipped() -> dict[str, Any]:
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    if found["format"] != _FORMAT:
        raise ValueError("lora_models.toml is of another format than this code")
    return found


def known_models() -> tuple[str, ...]:
    """Return the names of the models that something ships of."""
    return tuple(name for name, table in _shipped().items() if isinstance(table, dict) and "source" in table)


def models_with_lengths() -> tuple[str, ...]:
    """Return the names of the models whose lengths ship."""
    return tuple(name for name in known_models() if "lengths" in _shipped()[name])


def lora_model(name: str, prompt_mean_tokens: float, output_mean_tokens: float) -> LoraModel:
    """Return what a model's runs are simulated with.

    Parameters
    ----------
    name : str
        As the runs' files have it.
    prompt_mean_tokens, output_mean_tokens : float
        Of the runs' requests, for a model of which no lengths ship.
    """
    found = _shipped()
    table: Mapping[str, Any] = found[name] if name in known_models() else {}
    # Of an unknown model the loading times of the first one that is known stand: milliseconds, once an adapter.
    loading = table or found[known_models()[0]]
    means = table.get("lengths") or {
        "prompt_mean_tokens": prompt_mean_tokens, "output_mean_tokens": output_mean_tokens,
    }  # fmt: skip
    return LoraModel(
        name=name,
        lengths=Lengths(**means, **found["benchmark"]),
        longest_context_tokens=table.get("longest_context_tokens"),
        load_s=loading["load_s"],
        load_s_per_rank=loading["load_s_per_rank"],
        costs=_fitted(table["costs"]) if "costs" in table else None,
        published=_published(table["published"]) if "published" in table else None,
        memory=tuple(table["memory"]) if "memory" in table else None,
    )


def shipped_costs() -> Costs:
    """Return the costs of the first model that was fitted: where the fit of another one starts."""
    return next(_fitted(_shipped()[name]["costs"]) for name in known_models() if "costs" in _shipped()[name])


def with_memory(model: LoraModel, memory: tuple[float, float, float] | None) -> LoraModel:
    """Return the model with the plane through the KV caches of its configurations."""
    return replace(model, memory=memory)


def _fitted(table: Mapping[str, Any]) -> Costs:
    return Costs(**{name: value for name, value in table.items() if name != "fitted_to"})


def _published(table: Mapping[str, float]) -> Costs:
    factor = table["percent"] / 100
    return Costs(
        overhead_s=factor * table["step_s"],
        per_request_s=factor * table["per_request_s"],
        per_context_token_s=0.0,
        per_prefill_token_s=0.0,
        # Theirs is a share of the plain step, ours of the step with adapters.
        percent_per_adapter=table["percent_per_adapter"] / factor,
        per_adapter_s=0.0,
        per_adapter_s_per_rank=0.0,
        first_load_s_per_rank=0.0,
    )
