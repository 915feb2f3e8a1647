"""Study ``ranked-steps``: whether predicted training steps stand in the order of measured ones, on GPUs of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.steps.gpu_rows import DATA_SET, FILE, GpuRow, read_gpu_rows
from wavetank.workloads import datasets

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RankedSteps(Study):
    """Predictors say how long the steps of the rows should take, from a row's configuration alone; ranks of what they
    say are compared with ranks of what was measured.  No bar is set: these steps reach 2 to 9 % of the devices' peak,
    so that most of their time is software's, which no predictor here knows.

    Rows that differ in the library of collectives or the version of software alone have one prediction.  The interval
    is that of a bootstrap over configurations, each with all of its rows.
    """

    name: ClassVar[str] = "ranked-steps"
    baseline: ClassVar[str] = "flops-over-peak"
    primary: ClassVar[str] = "misordered"
    exact: ClassVar[bool] = True
    default_seeds: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("misordered", "", "lower", "simulated", "share of pairs of rows that are predicted in the other order "
               "than they were measured in; equal predictions count half", words="pairs in the wrong order"),
        Metric("rank_correlation", "", "higher", "simulated", "Spearman's correlation of predicted and measured ranks; "
               "equal ones have their mean rank; over all rows, and over those of each model"),
        Metric("rank_correlation_low", "", "", "simulated", "2.5 % point of its bootstrap over configurations",
               table=False),
        Metric("rank_correlation_high", "", "", "simulated", "97.5 % point of its bootstrap over configurations",
               table=False),
        Metric("measured_over_predicted", "", "", "simulated", "median over rows of measured / predicted time"),
        Metric("rows", "", "", "counted", "rows that were ranked", table=False),
        Metric("configurations", "", "", "counted", "of these rows", table=False),
        Metric("predicted_s", "s", "", "simulated", "time of a step, by row", table=False),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Correlation of ranks", y="rank_correlation", by="model", says="1: the same order."),
        Chart("bars", "Predicted time of a step", y="predicted_s", by="row", log="x",
              says="Shorter is faster; measured steps take many times as long."),
    )

    resamples: int = setting(2000, says="Draws of the bootstrap", low=100, high=1_000_000)

    def check(self) -> None:
        """Refuse a machine without the rows."""
        datasets.find(DATA_SET, FILE)

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the rows."""
        return {DATA_SET: next(file.sha256 for file in datasets.entry(DATA_SET).files if file.path == FILE)}

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "The figures of rows are those of CCL-Bench, whose repository states no licence; measured times are not "
            "kept in records.",
            "No number was fitted to the rows, but their times were known when the rules were written.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Predict the rows, and rank them."""
        rows = read_gpu_rows()
        predicted = np.array([system.seconds(row) for row in rows])
        found = Measurements()
        self.rank(rows, predicted, seed, found)
        for of in dict.fromkeys(row.model for row in rows):
            own = [i for i, row in enumerate(rows) if row.model == of]
            if len({rows[i].configuration for i in own}) > 2:
                self.rank([rows[i] for i in own], predicted[own], seed, found, model=of)
        for row, took_s in zip(rows, predicted, strict=True):
            found.put("predicted_s", float(took_s), row=row.name)
        return found

    def rank(self, rows: Sequence[GpuRow], predicted: Floats, seed: int, found: Measurements, **at: str) -> None:
        """Put what the order of some rows says.

        Parameters
        ----------
        rows : sequence of GpuRow
        predicted : float64 array (rows,)
            Seconds.
        seed : int
            Of the bootstrap.
        found : Measurements
        **at : str
            Which rows they are.
        """
        measured = np.array([row.step_s for row in rows])
        found.put("misordered", misordered(predicted, measured), **at)
        found.put("measured_over_predicted", float(np.median(measured / predicted)), **at)
        found.put("rows", float(len(rows)), **at)
        of: dict[tuple[object, ...], list[int]] = {}
        for i, row in enumerate(rows):
            of.setdefault(row.configuration, []).append(i)
        found.put("configurations", float(len(of)), **at)
        correlation = rank_correlation(predicted, measured)
        if not np.isfinite(correlation):
            # All predictions are equal: there is no order.
            return
        found.put("rank_correlation", correlation, **at)
        groups, draws = list(of.values()), stream(seed, "bootstrap of configurations")
        again = []
        for _ in range(self.resamples):
            drawn = [i for group in draws.integers(0, len(groups), len(groups)) for i in groups[group]]
            again.append(rank_correlation(predicted[drawn], measured[drawn]))
        low, high = np.nanquantile(again, [0.025, 0.975])
        found.put("rank_correlation_low", float(low), **at)
        found.put("rank_correlation_high", float(high), **at)


def rank_correlation(one: Floats, other: Floats) -> float:
    """Return Spearman's correlation of ranks; nan where one of them has no order.

    Parameters
    ----------
    one, other : float64 array (n,)
    """
    ranks = [rankdata(each) - (each.size + 1) / 2 for each in (one, other)]
    norm = float(np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
    return float((ranks[0] * ranks[1]).sum()) / norm if norm > 0 else float("nan")


def misordered(predicted: Floats, measured: Floats) -> float:
    """Return the share of pairs in the wrong order; of equal predictions half, pairs of equal measurements are none.

    Parameters
    ----------
    predicted, measured : float64 array (n,)
    """
    one, other = (np.sign(each[:, None] - each[None, :]) for each in (predicted, measured))
    pairs = other > 0
    return float((1.0 - one[pairs]).sum() / (2.0 * max(int(pairs.sum()), 1)))
