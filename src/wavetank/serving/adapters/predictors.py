"""Ways to predict what a GPU with many LoRA adapters gives: fitted costs, published ones, none, a twin's outputs.

A predictor is given a recorded configuration (model, slots, adapters, rates, ranks, KV cache) and a seed for the
requests, and returns the figures that the run would have reported, or none where it knows none.

Costs of a step are fitted to recorded runs of one set and judged on another; those of known models ship with the
package (:mod:`wavetank.serving.adapters.lora_models`).  The published costs (also in arXiv 2508.08343) run in
Wavetank's simulator here; what the authors' own simulator makes of them is :class:`PublishedTwin`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wavetank.serving.adapters.lora_fidelity import Configuration, costs_of, feasible, predict
from wavetank.serving.adapters.lora_models import Costs
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class FittedCosts:
    """The simulator with adapters, its step time fitted to the runs of the other set."""

    simulates: ClassVar[bool] = True

    def predict(self, configuration: Configuration, seed: int) -> dict[str, float]:
        """Return the figures of :data:`wavetank.serving.adapters.lora_fidelity.METRICS`."""
        return predict(configuration, seed, costs_of(configuration))

    def starts(self, configuration: Configuration) -> bool | None:
        """Say whether the engine has memory enough to start; None where the model's longest context is not known."""
        return feasible(configuration)


@dataclass(frozen=True, kw_only=True)
class PublishedCosts:
    """The simulator with adapters and the authors' constants: nothing is fitted here."""

    simulates: ClassVar[bool] = True

    def predict(self, configuration: Configuration, seed: int) -> dict[str, float]:
        """Return the figures, none for a model of which nothing was published."""
        published = configuration.model.published
        return {} if published is None else predict(configuration, seed, published)


@dataclass(frozen=True, kw_only=True)
class BlindToAdapters:
    """The simulator without adapters: every batch costs what one of ``adapters`` costs, and slots do not count."""

    simulates: ClassVar[bool] = True

    adapters: int = setting(
        8, unit="adapters", says="Distinct adapters that are assumed in every batch", low=0, high=10_000
    )

    def predict(self, configuration: Configuration, seed: int) -> dict[str, float]:
        """Return the figures of :data:`wavetank.serving.adapters.lora_fidelity.METRICS`."""
        fitted = costs_of(configuration)
        each_s = fitted.per_adapter_s + fitted.per_adapter_s_per_rank * configuration.max_rank
        factor = 1 + fitted.percent_per_adapter * self.adapters / 100
        costs = Costs(
            overhead_s=fitted.overhead_s * factor + each_s * self.adapters,
            per_request_s=fitted.per_request_s * factor,
            per_context_token_s=fitted.per_context_token_s * factor,
            per_prefill_token_s=fitted.per_prefill_token_s * factor,
            percent_per_adapter=0.0,
            per_adapter_s=0.0,
            per_adapter_s_per_rank=0.0,
            first_load_s_per_rank=0.0,
            per_arrival_s=fitted.per_arrival_s,
        )
        return predict(configuration, seed, costs, adapters=False)


@dataclass(frozen=True, kw_only=True)
class PublishedTwin:
    """What the authors' digital twin said of the same configurations; nothing is simulated here."""

    def predict(self, configuration: Configuration, seed: int) -> dict[str, float]:
        """Return throughput, inter-token latency and time to first token; nothing where the twin was not run."""
        return dict(configuration.twin)
