"""Study ``offload-threads``: steps of two real threads beside what the simulation says of them."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError
from wavetank.machine.threads import libraries_limited
from wavetank.serving.offload.interface import COLLECTIVE, COMPUTE, Case, Offload, Phase
from wavetank.serving.offload.live import ChunkedWeights, Link
from wavetank.serving.offload.simulate import simulate_offload
from wavetank.serving.offload.weight_files import write_blocks
from wavetank.settings import setting
from wavetank.sim.links import PS_PER_S, LinkRate, TokenBucket
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study

_MATRIX = 192


@dataclass(frozen=True, kw_only=True)
class OffloadThreads(Study):
    """One thread multiplies matrices for a fixed time a phase, and exchanges bytes over a link; another copies the
    weights of the blocks to come from files over the same link, which is a token bucket.  The simulation is given these
    times, bytes and the rate, and nothing that was measured.
    """

    name: ClassVar[str] = "offload-threads"
    baseline: ClassVar[str] = "layerwise-offload"
    primary: ClassVar[str] = "real_step_s"
    secondary: ClassVar[tuple[str, ...]] = ("prediction_error", "real_longest_wait_s")
    in_process: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("prediction_error", "", "lower", "measured",
               "|simulated / real time of a step - 1|, of the median of all real steps but the first",
               words="error of the model"),
        Metric("real_step_s", "s", "lower", "measured", "time of a step, median of all but the first",
               words="time of a real step"),
        Metric("real_longest_wait_s", "s", "lower", "measured",
               "time of a collective above that on a free link, 90th percentile of all but those of the first step",
               words="wait of real collectives"),
        Metric("predicted_step_s", "s", "lower", "simulated", "time of a step, mean of all but the first"),
        Metric("products_per_s", "products/s", "higher", "measured",
               "matrix products in a second of arithmetic: what the copying thread takes from the other one"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Real steps", y="real_step_s", says="Beside those that the simulation predicts."),
        Chart("bars", "Predicted steps", y="predicted_step_s", says="Beside the real ones."),
    )

    blocks: int = setting(3, says="Blocks of the model", low=1, high=1000)
    block_bytes: int = setting(4_000_000, unit="bytes", says="Weights of a block, in ten tensors", low=1000,
                               high=2**31 - 1)  # fmt: skip
    bytes_per_s: int = setting(30_000_000, unit="bytes/s", says="Of the link", low=1000, high=2**31 - 1)
    compute_s: float = setting(0.18, unit="s", says="Arithmetic of a block, in two phases", low=1e-3, high=100.0)
    exchange_bytes: int = setting(1_000_000, unit="bytes", says="Of each of two collectives of a block", low=0,
                                  high=2**31 - 1)  # fmt: skip
    chunk_bytes: int = setting(400_000, unit="bytes", says="Of a copy that yields", low=1, high=2**31 - 1)
    steps: int = setting(3, says="Real steps, the first of which does not count", low=2, high=1000)

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Phases multiply until their time is over: a slower processor makes fewer products, not longer steps.",
            "Whole tensors stay in memory, so that shares are rounded up to tenths.",
        )

    def case(self) -> Case:
        """Return what the simulation is given."""
        rate = LinkRate(bytes_per_s=self.bytes_per_s)
        half = Phase(COMPUTE, round(self.compute_s / 2 * PS_PER_S))
        exchange = Phase(COLLECTIVE, rate.work_ps(self.exchange_bytes))
        whole = half._replace(weight_bytes=self.block_bytes // 10 * 10)
        return Case(layers=self.blocks, phases=(whole, exchange, half, exchange), link=rate)

    def system_for(self, system: Any) -> Any:
        """Return the system with chunks of this study, where its chunks can be set.

        Parameters
        ----------
        system : Offload
        """
        if hasattr(system, "chunk_bytes"):
            return dataclasses.replace(system, chunk_bytes=self.chunk_bytes)
        return system

    def measure(self, system: Offload, seed: int) -> Measurements:
        """Run real steps and predict them.

        Parameters
        ----------
        system : Offload
        seed : int
            Draws the weights.
        """
        case = self.case()
        chosen = self.system_for(system)
        plan = chosen.plan(case)
        if len(set(plan.resident)) > 1 or plan.in_place:
            raise BadValueError("Real threads keep the same share of every block.", given=type(system).__name__)
        tenths = -(-plan.resident[0] * 10 // max(case.weight_bytes, 1))
        whole = _Whole(chosen, tenths)
        predicted_ps = simulate_offload(whole, case, steps=self.steps).step_ps
        with tempfile.TemporaryDirectory(prefix="wavetank-offload-") as folder, libraries_limited(1):
            self.write(Path(folder), seed)
            link = Link(TokenBucket(bytes_per_s=self.bytes_per_s))
            with ChunkedWeights(
                folder, resident=tenths / 10, chunk_bytes=plan.chunk_bytes, ahead=plan.slots - 1, rule=chosen, link=link
            ) as weights:
                seen = self.real_steps(weights, link)
        step_s = float(np.median(seen.steps_s[1:]))
        alone_s = case.phases[1].ps / PS_PER_S
        later = np.array(seen.exchanges_s[len(seen.exchanges_s) // self.steps :]) - alone_s
        return Measurements({
            "prediction_error": abs(predicted_ps / PS_PER_S / step_s - 1),
            "real_step_s": step_s,
            "real_longest_wait_s": max(0.0, float(np.percentile(later, 90))),
            "predicted_step_s": predicted_ps / PS_PER_S,
            "products_per_s": seen.products / (self.compute_s * self.blocks * self.steps),
        })  # fmt: skip

    def write(self, folder: Path, seed: int) -> None:
        """Write the blocks.

        Parameters
        ----------
        folder : Path
        seed : int
        """
        drawn = stream(seed, "weights")
        write_blocks(folder, [
            {f"part-{i}": drawn.integers(0, 256, self.block_bytes // 10, np.uint8) for i in range(10)}
            for _ in range(self.blocks)
        ])  # fmt: skip

    def real_steps(self, weights: ChunkedWeights, link: Link) -> _Seen:
        """Use all blocks, step after step.

        Parameters
        ----------
        weights : ChunkedWeights
        link : Link
        """
        left = np.random.default_rng(0).standard_normal((_MATRIX, _MATRIX), np.float32)
        seen = _Seen()
        for _ in range(self.steps):
            began = time.perf_counter()
            for _block in weights:
                for _half in range(2):
                    seen.products += _multiply(left, self.compute_s / 2)
                    exchange = time.perf_counter()
                    with weights.collective():
                        link.send(self.exchange_bytes)
                    seen.exchanges_s.append(time.perf_counter() - exchange)
            seen.steps_s.append(time.perf_counter() - began)
        return seen


@dataclass
class _Seen:
    """What a run of real steps took."""

    steps_s: list[float] = dataclasses.field(default_factory=list)
    exchanges_s: list[float] = dataclasses.field(default_factory=list)
    products: int = 0


@dataclass(frozen=True)
class _Whole:
    """A system whose share that stays is a number of tenths."""

    system: Any
    tenths: int

    def plan(self, case: Case) -> Any:
        kept = case.weight_bytes * self.tenths // 10
        return self.system.plan(case)._replace(resident=(kept,) * case.layers)

    def waits(self, view: Any) -> bool:
        return bool(self.system.waits(view))


def _multiply(left: npt.NDArray[np.float32], during_s: float) -> int:
    into = np.empty_like(left)
    until, products = time.perf_counter() + during_s, 0
    while time.perf_counter() < until:
        np.matmul(left, left, out=into)
        products += 1
    return products
