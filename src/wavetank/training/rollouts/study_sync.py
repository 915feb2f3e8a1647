"""Study ``weight-sync``: how many bytes new weights take, by learning rate and by what share of them changes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.rollouts.delta import Words
from wavetank.training.rollouts.sparsity import trained


@dataclass(frozen=True, kw_only=True)
class WeightSync(Study):
    """A small transformer is trained with several learning rates, and its bf16 weights before and after a step are
    coded and decoded; so are random weights of which a known share changes.  Sizes are those of real streams.
    """

    name: ClassVar[str] = "weight-sync"
    baseline: ClassVar[str] = "dense-weights"
    primary: ClassVar[str] = "bytes_per_weight"
    secondary: ClassVar[tuple[str, ...]] = ("coding_ns",)
    must_be_zero: ClassVar[tuple[str, ...]] = ("wrong_weights",)
    cases_by: ClassVar[str] = "rate"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("bytes_per_weight", "bytes", "lower", "counted",
               "bytes of the stream / weights of the transformer, by learning rate", words="bytes of a weight"),
        Metric("changed_share", "", "", "counted", "bf16 weights that the step changed / all, by learning rate",
               words="share of changed weights"),
        Metric("transfer_s", "s", "lower", "modelled", "bytes of a weight * weights of the model / link",
               words="time on the link"),
        Metric("coding_ns", "ns", "lower", "measured", "time to encode and decode / weights, on this machine, one core",
               words="time to code"),
        Metric("wrong_weights", "weights", "lower", "counted", "decoded weights that are not the sender's"),
        Metric("bytes_by_share", "bytes", "lower", "counted",
               "bytes of the stream / weights, where a share changes at random places", table=False,
               words="bytes of a weight"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("sweep", "Bytes of a weight as more of them change", y="bytes_by_share", by="share", log="xy",
              says="Gaps are the smallest where few change, bits where many do."),
        Chart("sweep", "Changed bf16 weights of a step by learning rate", y="changed_share", by="rate", log="xy",
              says="A small step is rounded away."),
    )  # fmt: skip

    rates: tuple[float, ...] = setting((1e-6, 1e-5, 1e-4, 1e-3), says="Learning rates of AdamW", low=1e-12, high=1.0)
    steps: int = setting(11, says="Steps; the last one counts", low=1, high=10_000)
    updates: int = setting(4, says="Optimiser updates of a step", low=1, high=10_000)
    shares: tuple[float, ...] = setting((0.001, 0.01, 0.03, 0.05, 0.1, 0.2, 0.33, 0.5, 0.9),
                                        says="Shares of random weights that change", low=0.0, high=1.0)  # fmt: skip
    weights: int = setting(1_000_000, says="Random weights", low=1, high=2**32)
    model_weights: float = setting(32.8e9, says="Weights of the model whose transfer is modelled", low=1.0, high=1e15)
    link_gbit_s: float = setting(20.0, unit="Gbit/s", says="Link to a server", low=0.01, high=1e5)

    def measure(self, system: Any, seed: int) -> Measurements:
        """Return the figures of one form under one seed.

        Parameters
        ----------
        system : DeltaForm
        seed : int
        """
        found = Measurements()
        wrong = 0
        for rate in self.rates:
            before, after = trained(rate, self.steps, self.updates, seed)
            begin_s = time.perf_counter()
            data = system.encode(before, after)
            decoded = system.decode(data, before)
            spent_s = time.perf_counter() - begin_s
            wrong += int((decoded != after).sum())
            size = len(data) / before.size
            found.put("bytes_per_weight", size, rate=rate)
            found.put("changed_share", float((before != after).mean()), rate=rate)
            found.put("transfer_s", size * self.model_weights / (self.link_gbit_s * 1e9 / 8), rate=rate)
            found.put("coding_ns", spent_s / before.size * 1e9, rate=rate)
        for share in self.shares:
            before, after = self.changed(share, seed)
            data = system.encode(before, after)
            wrong += int((system.decode(data, before) != after).sum())
            found.put("bytes_by_share", len(data) / before.size, share=share)
        found.put("wrong_weights", float(wrong))
        return found

    def changed(self, share: float, seed: int) -> tuple[Words, Words]:
        """Return random weights, and others that differ from them in a share of random places.

        Parameters
        ----------
        share : float
        seed : int
        """
        draws = stream(seed, "changed weights")
        before = draws.integers(0, 2**16, self.weights, dtype=np.uint16)
        after = before.copy()
        places = draws.choice(self.weights, round(share * self.weights), replace=False)
        # A small step: the next or the second next bf16 number.
        after[places] += draws.integers(1, 3, places.size, dtype=np.uint16)
        return before, after
