"""Two studies of toys: one from the event model of a die, one by the clock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.study.timing import SHARE_OF_COPY, Case, TimingStudy


@dataclass(frozen=True, kw_only=True)
class ToyNoise(Study):
    """Every seed draws once; all toys change the same draw."""

    name: ClassVar[str] = "toy-noise"
    baseline: ClassVar[str] = "toy-plain"
    primary: ClassVar[str] = "value_s"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("value_s", "s", "lower", "simulated", "the draw after the toy changed it"),
        Metric("scatter", "", "", "simulated", "the bare draw, between 0 and 1"),
        Metric("part_s", "s", "lower", "simulated", "a part of the value, along part", table=False),
    )
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "The value of every toy", y="value_s", says="shifted is half of plain"),
        Chart("sweep", "Parts of the value", y="part_s", by="part", says="a straight line"),
    )
    default_seeds: ClassVar[int] = 4

    offset_s: float = setting(0.1, unit="s", says="added to every draw", low=0, high=10)
    mode: str = setting("calm", says="decides nothing, but claims ask for it", choices=("calm", "rough", "odd"))
    parts: tuple[int, ...] = setting((1, 2), says="which parts are recorded", low=1, high=9)
    cap: float | str = setting("auto", unit="s", says="the largest value", choices=("auto",), low=0, high=100)
    remark: str = setting("", says="kept with the run")

    def check(self) -> None:
        """Refuse a cap below the offset."""
        if self.cap != "auto" and float(self.cap) < self.offset_s:
            raise BadValueError("The cap lies below the offset.", given=self.cap, where="study toy-noise, cap")

    def notes(self) -> tuple[str, ...]:
        """Return what a reader must know."""
        return ("These are toys.",)

    def measure(self, system: Any, seed: int) -> Measurements:
        """Draw once and let the toy change it."""
        draw = float(stream(seed, "draw").uniform())
        value = system.change(draw + self.offset_s, seed)
        found = Measurements({"value_s": value if self.cap == "auto" else min(value, float(self.cap)), "scatter": draw})
        for part in self.parts:
            found.put("part_s", value * part / 10, part=part)
        return found


@dataclass(frozen=True, kw_only=True)
class ToyTiming(TimingStudy):
    """Every toy adds the same numbers."""

    name: ClassVar[str] = "toy-timing"
    baseline: ClassVar[str] = "toy-plain"
    metrics: ClassVar[tuple[Metric, ...]] = (
        SHARE_OF_COPY,
        Metric("process", "", "", "counted", "the process that ran the case, recorded once by each", table=False),
    )

    sizes: tuple[int, ...] = setting((100, 1000), says="how many numbers", low=1, high=10**6)

    def cases(self, seed: int) -> Iterable[Case]:
        """Yield one case a size."""
        for size in self.sizes:
            yield Case(f"{size} numbers", list(range(size)), bytes_moved=8.0 * size)

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the sum of the changed numbers."""
        return lambda: sum(system.change(number, 1) for number in case.data)

    def verify(self, case: Case, system: str, result: object) -> None:
        """Hold the plain toy's sum against the formula."""
        size = len(case.data)
        if system == "toy-plain" and result != size * (size - 1) // 2:
            raise ArithmeticError("the plain toy cannot add")

    def result_figures(self, case: Case, name: str, system: Any, result: Any) -> Mapping[str, float]:
        """Return the number of this process."""
        return {"process": os.getpid()}
