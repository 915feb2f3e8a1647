"""Study ``frame-codecs``: how fast numbers of a field become bytes and come back, and how many bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from wavetank.errors import WavetankError
from wavetank.machine.clocks import CpuClock
from wavetank.settings import setting
from wavetank.study.study import Chart, Metric
from wavetank.study.timing import SHARE_OF_COPY, Case, Seconds, TimingStudy
from wavetank.training.compression.quantise import Floats
from wavetank.training.compression.workload import FIELDS, members

WAYS = ("compress", "decompress")


class _Input(NamedTuple):
    values: Floats
    bound: float
    way: str


@dataclass(frozen=True, kw_only=True)
class FrameCodecs(TimingStudy):
    """Codecs compress the numbers of a field within a bound, and decompress what they have written.  All use one core;
    processor time counts.  Every result is held to the bound before anything is timed.
    """

    name = "frame-codecs"
    baseline = "memory-copy"
    clock = CpuClock
    primary = "bytes_per_s"
    secondary = ("ratio",)
    metrics = (
        Metric("bytes_per_s", "bytes/s", "higher", "measured", "bytes of the numbers in single precision / time",
               words="bytes per second"),
        Metric("ratio", "", "higher", "counted", "bytes of the numbers / bytes written", words="compression ratio"),
        SHARE_OF_COPY,
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Bytes per second", y="bytes_per_s", by="case", log="x", says="Longer is faster."),
        Chart("bars", "Compression ratio", y="ratio", by="case", log="x", says="Longer is better."),
    )

    fields: tuple[str, ...] = setting(("u", "z"), says="Fields", choices=FIELDS)
    relative_bound: float = setting(1e-3, says="Bound of the error, over the spread of the field", low=1e-7, high=0.5)
    rounds: int = setting(3, says="Interleaved rounds after the warm-up, in each process", low=1, high=1000)

    def case_names(self, seed: int) -> Sequence[str]:
        """Return each field, compressed and decompressed."""
        return [f"{field} {way}" for field in self.fields for way in WAYS]

    def case(self, name: str, seed: int) -> Case:
        """Return the numbers of a field, turned around the globe by the seed."""
        field, way = name.split()
        given = members(field, 1, seed)
        values = given.values[0].reshape(given.shape)
        return Case(name, _Input(values, self.relative_bound * given.spread, way), bytes_moved=2.0 * values.nbytes)

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
        """Return the call; what is decompressed was compressed before."""
        values, bound, way = case.data
        if way == "compress":
            return lambda: system.compress(values, bound)
        data = system.compress(values, bound)
        return lambda: system.decompress(data, values.shape, bound)

    def verify(self, case: Case, system: str, result: object) -> None:
        """Hold what comes back to the bound."""
        if not isinstance(result, np.ndarray):
            return
        apart = np.abs(result.astype(np.float64) - case.data.values)
        if apart.max() > case.data.bound * (1 + 1e-6) + np.spacing(np.abs(case.data.values).max()):
            raise WavetankError(f"{system} is not within the bound.", given=float(apart.max()), where=case.name,
                                allowed=f"{case.data.bound:g}")  # fmt: skip

    def result_figures(self, case: Case, name: str, system: Any, result: Any) -> dict[str, float]:
        """Return the compression ratio."""
        if case.data.way != "compress":
            return {}
        return {"ratio": case.data.values.nbytes / len(result)}

    def case_figures(self, case: Case, name: str, times: Seconds, limits: Seconds) -> dict[str, float]:
        """Return the rate."""
        return {"bytes_per_s": case.data.values.nbytes / times[name]}
