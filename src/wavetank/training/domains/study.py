"""Study ``domain-parallel``: a training step on one sample that several processes share."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wavetank.errors import BadValueError, missing_extra
from wavetank.live.ranks import run_ranks
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Measurements, Metric, Study, Trial
from wavetank.training.domains.fields import CHANNELS, DATA, ROWS, Floats, sample, uneven_cuts
from wavetank.training.domains.interface import Alone, Layout, even_sizes
from wavetank.workloads import datasets

# As in the network, which is not imported here: it needs torch.
PATCH, WINDOWS = 4, (3, 5)
_LIMIT_S = 600.0
_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class OneSample(Study):
    """Processes of this machine share one sample, winds and geopotential of a month on three levels, and predict coarse
    fields of another month: two convolutions, a norm over the whole, patches, attention among all of them.  Rows are
    cut unevenly, as drawn.  Every way runs the same step with the same weights; ways take turns.  Bytes are what the
    kernel says others have received; memory is the growth of a process to its peak, its part of the sample included.
    """

    name: ClassVar[str] = "domain-parallel"
    baseline: ClassVar[str] = "one-process"
    primary: ClassVar[str] = "peak_bytes"
    secondary: ClassVar[tuple[str, ...]] = ("step_s", "sent_bytes")
    in_process: ClassVar[bool] = True
    default_seeds: ClassVar[int] = 5
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("peak_bytes", "bytes", "lower", "measured", "growth of the largest process to its peak during a step, "
               "its part of the sample included, with most processes", words="memory of a process"),
        Metric("step_s", "s", "lower", "measured", "forward and backward pass, until the last process is done, median "
               "of turns, with most processes", words="time of a step"),
        Metric("sent_bytes", "bytes", "lower", "measured", "bytes that a process sends in a step, mean, acknowledged "
               "by the receiver's kernel, with most processes", words="bytes sent"),
        Metric("error", "", "lower", "counted", "largest difference of output, the sample's gradient or a weight's "
               "gradient from those of one process, over the largest of its kind (all weights are one); over all "
               "numbers of processes"),
        Metric("rows_at_memory", "rows", "higher", "measured", "rows of the largest sample, in steps of a quarter of "
               "memory_rows, whose peak in no process is above that of memory_rows in one process by more than 2 %; "
               "evenly cut, at most as many times memory_rows as there are processes; with most processes",
               words="rows in the same memory"),
        Metric("halo_over_formula", "", "lower", "counted", "bytes of strips that processes count in a step / 2 h x "
               "columns x channels x 8 for each convolution and boundary, both ways; of ways that fetch strips"),
        Metric("fallbacks", "", "lower", "counted", "layers or operations that all of several processes compute whole"),
        Metric("peak_bytes_by_processes", "bytes", "lower", "measured", "the same by number of processes", table=False,
               words="memory of a process"),
        Metric("memory_over_share", "", "lower", "measured", "peak of the largest process / (peak of one process alone "
               "x (rows of the largest part + half a window of 5 on either side) / all rows), by number of processes",
               table=False, words="memory over its share"),
        Metric("step_s_by_processes", "s", "lower", "measured", "the same by number of processes", table=False,
               words="time of a step"),
        Metric("rows_at_memory_by_processes", "rows", "higher", "measured", "the same by number of processes",
               table=False, words="rows in the same memory"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("sweep", "Memory of a process", y="peak_bytes_by_processes", by="processes", log="y",
              says="What is gathered does not get smaller with more processes."),
        Chart("sweep", "Rows in the memory of one process", y="rows_at_memory_by_processes", by="processes",
              says="Parts let a sample grow with the number of processes."),
        Chart("sweep", "Time of a step", y="step_s_by_processes", by="processes", log="y",
              says="Two processors: more processes than that share them."),
    )  # fmt: skip

    fields: str = setting("era-interim", says="Recorded fields, or drawn waves", choices=("era-interim", "waves"))
    processes: tuple[int, ...] = setting((1, 2, 4), says="Numbers of processes, rising", low=1, high=8)
    rows: int = setting(96, unit="rows", says="Of the sample, a multiple of 4", low=8, high=ROWS)
    columns: int = setting(96, unit="columns", says="Of the sample, a multiple of 4", low=8, high=480)
    channels: int = setting(16, says="Of inner layers", low=2, high=256)
    heads: int = setting(4, unit="heads", says="Of attention; they divide the channels", low=1, high=64)
    cut: str = setting("uneven", says="How rows are cut: as drawn, or evenly", choices=("uneven", "even"))
    turns: int = setting(2, says="Timed steps of each way", low=1, high=1000)
    memory_rows: int = setting(
        48,
        unit="rows",
        says="Of the sample whose memory in one process is the limit",
        low=4,
        high=ROWS,
    )

    def check(self) -> None:
        """Refuse what processes cannot share, and fields that are not here."""
        if importlib.util.find_spec("torch") is None:
            raise missing_extra("torch", "torch", needed_for="A step that processes share")
        wrong = [each for each in (self.rows, self.columns, self.memory_rows) if each % PATCH]
        if wrong or self.channels % self.heads:
            raise BadValueError(
                "Patches and heads are whole.", given=wrong or (self.channels, self.heads),
                allowed=f"rows and columns in multiples of {PATCH}, channels in multiples of heads",
            )  # fmt: skip
        numbers = list(self.processes)
        if not numbers or numbers != sorted(set(numbers)) or self.rows // PATCH < numbers[-1]:
            raise BadValueError("Numbers of processes rise, and each process has a patch.", given=numbers,
                                allowed=f"rising, at most {self.rows // PATCH}", where="processes")  # fmt: skip
        if self.fields == "era-interim":
            datasets.find(DATA)

    def data(self) -> Mapping[str, str]:
        """Return the data set, if it is read."""
        return {DATA: datasets.entry(DATA).home} if self.fields == "era-interim" else {}

    def trials(self, systems: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
        """Return one trial for each seed: all ways run in the same processes."""
        return [Trial(systems=tuple(systems), seed=seed) for seed in seeds]

    def cuts(self, seed: int, processes: int) -> tuple[int, ...]:
        """Return the rows of each process.

        Parameters
        ----------
        seed, processes : int
        """
        if self.cut == "even":
            return tuple(PATCH * each for each in even_sizes(self.rows // PATCH, processes))
        return uneven_cuts(seed, self.rows, processes, PATCH)

    def halo_formula(self, processes: int) -> int:
        """Return the bytes of strips of a step, forward and backward, over all boundaries.

        Parameters
        ----------
        processes : int
        """
        channels = (CHANNELS, self.channels)
        strips = sum(2 * (window // 2) * each for window, each in zip(WINDOWS, channels, strict=True))
        return 2 * strips * self.columns * _BYTES * (processes - 1)

    def share(self, sizes: Sequence[int]) -> float:
        """Return which part of a sample the largest of its parts is, with the widest strips beside it.

        Parameters
        ----------
        sizes : sequence of int
        """
        return min(1.0, (max(sizes) + 2 * (max(WINDOWS) // 2)) / sum(sizes))

    def run(self, trial: Trial, built: Mapping[str, Any]) -> list[Record]:
        """Run one trial: all ways, on all numbers of processes."""
        from wavetank.training.domains.run import described, run_ways

        given, aim = sample(self.fields, trial.seed, self.rows, self.columns, PATCH)
        shape = {"fields": CHANNELS, "channels": self.channels, "heads": self.heads, "seed": trial.seed}
        arguments = {
            "systems": {name: described(built[name]) for name in trial.systems}, "network": shape,
            "sample": given, "target": aim, "turns": self.turns, "memory_rows": self.memory_rows,
            "cuts": {str(each): list(self.cuts(trial.seed, each)) for each in self.processes},
        }  # fmt: skip
        ranks = run_ranks(run_ways, self.processes[-1], arguments=arguments, timeout_s=_LIMIT_S)
        wanted = reference(shape, given, aim)
        records: list[Record] = []
        for name in trial.systems:
            ways = {each: [rank[str(each)][name] for rank in ranks[:each]] for each in self.processes}
            records += self.stamp(name, trial.seed, self._found(ways, wanted, ranks[0]["plain"]["peak_bytes"]))
        return records

    def _found(self, ways: Mapping[int, Sequence[Mapping[str, Any]]], wanted: Any, alone_bytes: int) -> Measurements:
        found, errors = Measurements(), []
        for processes, parts in ways.items():
            peak = max(each["peak_bytes"] for each in parts)
            step_s = float(np.median(np.max([each["time_s"] for each in parts], 0)))
            share = self.share(parts[0]["sizes"])
            errors.append(error(parts, wanted))
            found.put("peak_bytes_by_processes", peak, processes=processes)
            found.put("memory_over_share", peak / (alone_bytes * share), processes=processes)
            found.put("step_s_by_processes", step_s, processes=processes)
            if "most_rows" in parts[0]:
                found.put("rows_at_memory_by_processes", parts[0]["most_rows"], processes=processes)
        found.put("peak_bytes", peak)
        found.put("step_s", step_s)
        found.put("rows_at_memory", parts[0]["most_rows"])
        found.put("sent_bytes", float(np.mean([each["acknowledged_bytes"] for each in parts])))
        found.put("error", max(errors))
        found.put("fallbacks", max(each["fallbacks"] for each in parts))
        halo = sum(each["halo_bytes"] for each in parts)
        if halo:
            found.put("halo_over_formula", halo / self.halo_formula(processes))
        return found


def reference(shape: Mapping[str, int], given: Floats, aim: Floats) -> dict[str, Any]:
    """Return output and gradients of the step in this process alone.

    Parameters
    ----------
    shape : mapping of str to int
        Arguments of :func:`wavetank.training.domains.network.network`.
    given, aim : float64 array
    """
    import torch

    from wavetank.training.domains.network import network
    from wavetank.training.domains.rivals import OneProcess

    model = network(**shape)
    whole = torch.from_numpy(given)
    found = OneProcess().step(Alone(), model, whole, torch.from_numpy(aim), Layout(2, (given.shape[2],)))
    return {
        "loss": found.loss, "out": found.out.numpy(), "grad": found.grad.numpy(),
        "weights": [each.grad.numpy() for each in model.parameters()],
    }  # fmt: skip


def error(parts: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]) -> float:
    """Return the largest difference of what processes computed from what one process did.

    Parameters
    ----------
    parts : sequence of mapping
        By process, as of :func:`wavetank.training.domains.run.run_ways`.
    wanted : mapping
        As of :func:`reference`.
    """
    worst, outs, grads = 0.0, 0, 0
    # Together: a bias before a norm has no gradient but rounding.
    slopes = np.concatenate([each.ravel() for each in wanted["weights"]])
    for part in parts:
        if part["out"] is None:
            continue
        for name, begin in (("out", part["out_begin"]), ("grad", part["grad_begin"])):
            whole = wanted[name]
            own = whole[:, :, begin : begin + part[name].shape[2]]
            worst = max(worst, _far(part[name], own, whole))
        outs, grads = outs + part["out"].shape[2], grads + part["grad"].shape[2]
        for one, other in zip(part["weights"], wanted["weights"], strict=True):
            worst = max(worst, _far(one, other, slopes))
    # Parts that overlap or leave rows out would hide what is wrong.
    if (outs, grads) != (wanted["out"].shape[2], wanted["grad"].shape[2]):
        return float("inf")
    return worst


def _far(one: Any, other: Floats, scale: Floats) -> float:
    if one is None or one.shape != other.shape or not np.isfinite(one).all():
        return float("inf")
    return float(np.abs(one - other).max(initial=0.0) / np.abs(scale).max())
