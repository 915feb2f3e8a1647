"""Study ``shifting-mix``: where the encoder of a multimodal job runs, while the share of images changes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import device
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.sections.lssp import Layer, encoded
from wavetank.training.sections.placement import Job, Placer, draw_job, regrouped

_PS = 1e12
_ERROR = 1e-9
_WIDTH, _HEADS, _DIM = 6, 4, 3


@dataclass(frozen=True, kw_only=True)
class ShiftingMix(Study):
    """A model's pipeline trains on packed micro-batches whose share of image tokens changes from step to step, over
    all shares of the study.  All placers have the same GPUs and images, which a group of replicas deals among its
    micro-batches by their work; what was planned once was planned for the middle share.
    """

    name: ClassVar[str] = "shifting-mix"
    baseline: ClassVar[str] = "encoder-in-stage-0"
    primary: ClassVar[str] = "tokens_per_s"
    secondary: ClassVar[tuple[str, ...]] = ("worst_of_oracle", "encoder_bytes", "planning_s")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("tokens_per_s", "tokens/s", "higher", "simulated",
               "tokens of all steps, one for each share of images / their time", words="tokens per second"),
        Metric("of_oracle", "", "higher", "simulated",
               "work of encoder and model over all GPUs / time, all steps", words="share of what the GPUs could do"),
        Metric("worst_of_oracle", "", "higher", "simulated",
               "the least of it over the shares of images", words="worst share of what the GPUs could do"),
        Metric("held", "microbatches", "lower", "counted",
               "the most micro-batches of a replica whose encoder outputs are in memory at once",
               words="micro-batches in memory"),
        Metric("encoder_bytes", "bytes", "lower", "modelled",
               "micro-batches in memory * what the encoder keeps of one for its backward pass, without computing it "
               "again / GPUs that the encoder is spread over; most of the shares",
               words="memory of the encoder on a GPU"),
        Metric("imbalance", "", "lower", "counted",
               "encoder work of a micro-batch as the placer has it: max / mean - 1, largest over the shares; of "
               "placers that deal images", words="imbalance of micro-batches"),
        Metric("lssp_error", "", "lower", "counted",
               "largest difference of outputs and gradients of a small encoder from one rank's, in float64, when four "
               "ranks share samples above a threshold; of placers that share long images",
               words="error of the encoder"),
        Metric("planning_s", "s", "lower", "measured",
               "placing and simulating a step on this machine, mean over the steps", words="time to place"),
        Metric("tokens_per_s_by_images", "tokens/s", "higher", "simulated",
               "tokens per second by share of tokens that come from images", table=False, words="tokens per second"),
        Metric("of_oracle_by_images", "", "higher", "simulated",
               "share of what the GPUs could do by share of tokens that come from images", table=False,
               words="share of what the GPUs could do"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("sweep", "Tokens per second by share of images", y="tokens_per_s_by_images", by="images",
              says="An encoder that is spread over all GPUs makes all stages slower alike."),
        Chart("sweep", "Share of what the GPUs could do", y="of_oracle_by_images", by="images",
              says="What is missing to 1 is waiting."),
        Chart("bars", "Micro-batches of the encoder in memory", y="held", log="y", says="Shorter is better."),
    )  # fmt: skip

    shape: str = setting("B", says="Encoder and model: the source's workloads", choices=("A", "B", "C", "D"))
    images: tuple[float, ...] = setting(
        (0.1, 0.3, 0.5, 0.7, 0.9), says="Shares of the model's tokens that come from images", low=0.0, high=0.99
    )
    replicas: int = setting(4, unit="replicas", says="Data-parallel replicas", low=1, high=64)
    microbatches: int = setting(128, says="Micro-batches of a replica in a step", low=1, high=1024)
    stages: int = setting(8, says="Pipeline stages", low=2, high=32)
    stage_gpus: int = setting(8, unit="GPUs", says="GPUs of a stage, which are a node", low=1, high=16)
    skew: float = setting(
        0.3, says="Standard deviation of the logarithm of how many images come to a replica's loader", low=0.0, high=3.0
    )
    device: str = setting("H100-SXM", says="Device")
    share: float = setting(0.4, says="Share of a device's peak that is reached", low=0.01, high=1.0)

    def check(self) -> None:
        """Refuse studies without a share of images, devices that there are not and stages of unequal layers."""
        if not self.images:
            raise BadValueError("A study has shares of images.", given=self.images)
        self.job(0, self.images[0])

    def job(self, seed: int, images: float) -> Job:
        """Return a step.

        Parameters
        ----------
        seed : int
        images : float
        """
        return draw_job(
            seed, name=self.shape, images=images, replicas=self.replicas, microbatches=self.microbatches,
            stages=self.stages, stage_gpus=self.stage_gpus, device=device(self.device), share=self.share,
            skew=self.skew,
        )  # fmt: skip

    @property
    def middle(self) -> float:
        """The share of images that is planned for by what is planned once."""
        return float(np.median(self.images))

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        ratios = []
        for images in self.images:
            job = self.job(0, images)
            stage = 3 * job.layers * job.layer_ps // job.stages
            ratios.append(3 * float(job.work_ps.mean()) / job.stage_gpus / stage)
        gpus = self.replicas * self.stages * self.stage_gpus
        return (
            f"{gpus} GPUs: {self.replicas} replicas of {self.stages} stages of {self.stage_gpus}, "
            f"{self.microbatches} micro-batches of a replica.",
            f"Encoder work of a micro-batch over that of a stage of the model, by share of images: "
            f"{', '.join(f'{each:.2f}' for each in ratios)}.",
            "What stages send is free, and memory is counted in micro-batches alone: nobody runs out of it.",
            "Images have 256 to 4096 patches, four of which make a token; rivals spread any image evenly over the GPUs "
            "of their encoder.",
        )

    def measure(self, system: Placer, seed: int) -> Measurements:
        """Run a step of each mix."""
        found = Measurements()
        planned = self.job(seed, self.middle)
        # The first step of a process waits for compiled functions.
        system.step(self.job(seed, self.images[0]), planned)
        tokens, total_s, oracle_s, planning_s, held, uneven, kept = 0, 0.0, 0.0, 0.0, 0, 0.0, 0.0
        shares = []
        for images in self.images:
            job = self.job(seed, images)
            began = time.perf_counter()
            took_ps, most, gpus = system.step(job, planned)
            planning_s += time.perf_counter() - began
            if took_ps < job.oracle_ps * (1 - _ERROR):
                raise BadValueError("The step does less than its work.", given=f"{took_ps} ps",
                                    allowed=f"{job.oracle_ps} ps or more")  # fmt: skip
            tokens += job.tokens
            total_s += took_ps / _PS
            oracle_s += job.oracle_ps / _PS
            held = max(held, most)
            if gpus:
                kept = max(kept, most * float(job.image_bytes.sum()) / (job.replicas * job.microbatches) / gpus)
            shares.append(job.oracle_ps / took_ps)
            if job.image_ps.size:
                group = min(getattr(system, "group", 1), job.replicas)
                dealt = regrouped(job, group) if getattr(system, "balanced", True) else job
                uneven = max(uneven, float(dealt.work_ps.max() / dealt.work_ps.mean()) - 1)
            found.put("tokens_per_s_by_images", job.tokens / took_ps * _PS, images=images)
            found.put("of_oracle_by_images", shares[-1], images=images)
        found.put("tokens_per_s", tokens / total_s)
        found.put("of_oracle", oracle_s / total_s)
        found.put("worst_of_oracle", min(shares))
        found.put("held", held)
        found.put("encoder_bytes", kept)
        if hasattr(system, "group"):
            found.put("imbalance", uneven)
        if getattr(system, "shared", False):
            found.put("lssp_error", lssp_error(seed))
        found.put("planning_s", planning_s / len(self.images))
        return found


def lssp_error(seed: int) -> float:
    """Return how far four ranks that share long samples are from one that computes all, over several thresholds.

    Parameters
    ----------
    seed : int
    """
    draws = stream(seed, "long and short samples")
    samples = [draws.normal(size=(int(rows), _WIDTH)) for rows in draws.integers(1, 40, 7)]
    grads = [draws.normal(size=each.shape) for each in samples]
    layer = Layer(qkv=draws.normal(size=(3, _WIDTH, _HEADS, _DIM)), out=draws.normal(size=(_HEADS, _DIM, _WIDTH)))
    whole = encoded(samples, grads, layer, 1, np.inf)
    worst = 0.0
    for threshold in (0.0, 10.0, 25.0, np.inf):
        found = encoded(samples, grads, layer, 4, threshold)
        for one, other in zip([*found[0], *found[1], *found[2:]], [*whole[0], *whole[1], *whole[2:]], strict=True):
            worst = max(worst, float(np.abs(one - other).max()))
    return worst
