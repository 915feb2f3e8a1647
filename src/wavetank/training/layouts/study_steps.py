"""Study ``fsdp-steps``: what real steps take whose parameters are shared by processes of this machine."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.errors import BadValueError
from wavetank.live.ranks import run_ranks
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.layouts.rivals import Fsdp2
from wavetank.training.layouts.timed import layer_tensors, time_steps
from wavetank.training.layouts.vescale import VescaleFsdp

_LIMIT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class FsdpSteps(Study):
    """Processes of this machine share the parameters of some layers, gather each twice and scatter its gradients, all
    through torch's gloo.  There is little arithmetic.  The system and FSDP2 take turns in the same processes; FSDP2 is
    run as it is, and with sums for means of gradients, with and without explicit prefetching; where ranks do not
    divide the experts, also with experts cut along another dimension and as one matrix: its fastest one counts.
    FSDP2 itself is timed against a second FSDP2.
    """

    name: ClassVar[str] = "fsdp-steps"
    baseline: ClassVar[str] = "fsdp2"
    primary: ClassVar[str] = "time_over_fsdp2"
    secondary: ClassVar[tuple[str, ...]] = ("buffer_elements", "difference")
    cases_by: ClassVar[str] = "experts"
    in_process: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("time_over_fsdp2", "", "lower", "measured",
               "median time of a step / that of FSDP2 at its best setting, rounds interleaved in the same processes",
               words="time of a step"),
        Metric("step_s", "s", "lower", "measured", "median time of forward and backward pass, without optimiser",
               words="absolute time of a step"),
        Metric("buffer_elements", "elements", "lower", "counted", "elements of a gathered layer, padding included",
               words="gathered elements"),
        Metric("difference", "", "lower", "measured", "largest difference of a gradient from FSDP2's",
               words="difference of gradients"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Time of a step over FSDP2's", y="time_over_fsdp2", by="experts", says="Shorter is faster."),
    )

    ranks: int = setting(2, unit="ranks", says="Processes", low=2, high=8)
    layers: int = setting(6, unit="layers", says="Layers, a bucket each", low=2, high=64)
    width: int = setting(256, says="Rows and columns of every matrix", low=8, high=4096)
    experts: tuple[int, ...] = setting((2, 3), unit="experts", says="Fused experts of a layer", low=1, high=64)
    block_rows: int = setting(16, unit="rows", says="Rows of a block that must stay whole", low=1, high=4096)
    rounds: int = setting(7, says="Steps of each, after two that are not timed", low=1, high=1000)

    def check(self) -> None:
        """Refuse a run without cases."""
        if not self.experts:
            raise BadValueError("There are no numbers of experts.", given=self.experts, where="experts")

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Messages between processes of one machine are copies through its kernel; networks and memory of GPUs are "
            "faster.",
            "FSDP1 is left out: torch runs it on GPUs.",
        )

    def measure(self, system: Any, seed: int) -> Measurements:
        """Time steps of one system and of FSDP2."""
        found = Measurements()
        if not isinstance(system, VescaleFsdp | Fsdp2):
            raise BadValueError("There is no such executed system.", given=type(system).__qualname__,
                                allowed=("VescaleFsdp", "Fsdp2"))  # fmt: skip
        ours = isinstance(system, VescaleFsdp)
        arguments = {
            "contender": "ragged" if ours else "fsdp2", "layers": self.layers, "width": self.width,
            "experts": list(self.experts), "block_rows": self.block_rows, "rounds": self.rounds, "seed": seed,
        }  # fmt: skip
        every = run_ranks(time_steps, self.ranks, arguments=arguments, timeout_s=_LIMIT_S)
        for case, experts in enumerate(self.experts):
            taken = {name: statistics.median(each) for name, each in every[0][case]["seconds"].items()}
            step_s = taken.pop("ragged" if ours else "fsdp2 again")
            found.put("time_over_fsdp2", step_s / min(taken.values()), experts=experts)
            found.put("step_s", step_s, experts=experts)
            layer = layer_tensors(self.width, experts, self.block_rows)
            found.put("buffer_elements", system.shard(layer, self.ranks).slice_elements * self.ranks, experts=experts)
            if ours:
                found.put("difference", max(each[case]["difference"] for each in every), experts=experts)
        return found
