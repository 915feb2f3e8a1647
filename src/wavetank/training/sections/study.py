"""Study ``mixed-sections``: in which order samples pass the encoder and the model that work on them together."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import device, model
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.context.workload import document_classes
from wavetank.training.sections.graph import fewest_gpus
from wavetank.training.sections.interface import Batch, Plan, Planner, step
from wavetank.training.sections.tiny_sections import gradients, largest_difference, samples
from wavetank.training.sections.workload import disturbed, draw

_PS = 1e12


@dataclass(frozen=True, kw_only=True)
class MixedSections(Study):
    """Every step trains on texts and on texts with images, which alone need the encoder.  All shares of images are
    combined with all amounts of the encoder's work, which is given over that of one pipeline stage of the model.  All
    planners get the same samples, one rule that deals them to ranks, encoders of the same size, and one queue; a
    pipeline counts as one machine, whose filling and draining is left out for all.
    """

    name: ClassVar[str] = "mixed-sections"
    baseline: ClassVar[str] = "one-configuration"
    primary: ClassVar[str] = "tokens_per_s_per_gpu"
    secondary: ClassVar[tuple[str, ...]] = ("tokens_per_s", "time_over_bound", "planning_s")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("tokens_per_s_per_gpu", "tokens/s", "higher", "simulated",
               "tokens of all steps / (their time * GPUs, those of the encoder included), over all shares of images "
               "and amounts of encoder work", words="tokens per second and GPU"),
        Metric("tokens_per_s", "tokens/s", "higher", "simulated",
               "tokens of all steps / their time, with as many GPUs for the model", words="tokens per second"),
        Metric("time_over_bound", "", "lower", "simulated",
               "time of all steps / the least time that any order could take with the planner's sections: the work of "
               "the busiest one, or the longest sample", words="time over the least"),
        Metric("of_text_only", "", "higher", "simulated",
               "work of the model, mean over the ranks / time of the step, all steps: 1 if it never waits",
               words="share of the speed without images"),
        Metric("gradient_error", "", "lower", "counted",
               "largest difference of a gradient of a small job of three sections in the planned order from that in "
               "the order of samples, in float64", words="difference of gradients"),
        Metric("planning_s", "s", "lower", "measured", "planning one step on this machine, mean over the steps",
               words="time to plan"),
        Metric("tokens_per_s_by_work", "tokens/s", "higher", "simulated",
               "tokens per second by encoder work over that of a stage, over all shares of images", table=False,
               words="tokens per second"),
        Metric("tokens_per_s_per_gpu_by_work", "tokens/s", "higher", "simulated",
               "tokens per second and GPU by encoder work over that of a stage, over all shares of images", table=False,
               words="tokens per second and GPU"),
        Metric("of_text_only_by_work", "", "higher", "simulated",
               "share of the speed without images by encoder work", table=False,
               words="share of the speed without images"),
        Metric("tokens_per_s_by_images", "tokens/s", "higher", "simulated",
               "tokens per second by share of samples with images, over all amounts of encoder work", table=False,
               words="tokens per second"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Tokens per second and GPU", y="tokens_per_s_per_gpu", says="Longer is better."),
        Chart("sweep", "Tokens per second by the encoder's work", y="tokens_per_s_by_work", by="work",
              says="Sections that never wait are as fast as texts alone until the encoder has more work."),
        Chart("sweep", "Tokens per second by share of samples with images", y="tokens_per_s_by_images", by="images",
              says="The same work in fewer samples is harder to spread."),
    )  # fmt: skip

    images: tuple[float, ...] = setting(
        (0.1, 0.3, 0.5, 0.7, 0.9), says="Shares of samples with images", low=0.0, high=1.0
    )
    work: tuple[float, ...] = setting(
        (0.2, 0.5, 0.8, 1.0, 1.25), says="Work of the encoder over that of one stage of the model", low=0.0, high=8.0
    )
    ranks: int = setting(4, unit="ranks", says="Data-parallel ranks of the model", low=1, high=64)
    samples_per_rank: int = setting(32, unit="samples", says="Samples of a rank in a step", low=1, high=256)
    queue: int = setting(
        4, unit="samples", says="Samples that may wait between encoder and model; 0: any number", low=0, high=4096
    )
    noise: float = setting(
        0.0, says="Standard deviation of the logarithm of real over predicted times", low=0.0, high=2.0
    )
    encoder_gpus: int = setting(
        8, unit="GPUs", says="GPUs of the encoder for each rank; 0: the fewest that do not delay the model", low=0,
        high=1024,
    )  # fmt: skip
    stages: int = setting(8, says="Pipeline stages of the model", low=2, high=64)
    stage_gpus: int = setting(8, unit="GPUs", says="GPUs of a stage", low=1, high=64)
    lengths: str = setting("lognormal", says="Lengths of texts", choices=("lognormal", "documents"))
    median_tokens: float = setting(4096.0, unit="tokens", says="Median of log-normal lengths", low=64.0, high=1e6)
    sigma: float = setting(0.7, says="Standard deviation of the logarithm of lengths", low=0.0, high=3.0)
    longest_tokens: int = setting(32_768, unit="tokens", says="Longest text", low=64, high=1 << 20)
    model: str = setting("Llama-3.1-70B", says="Model")
    device: str = setting("H100-SXM", says="Device")
    share: float = setting(0.4, says="Share of a device's peak that is reached", low=0.01, high=1.0)

    def check(self) -> None:
        """Refuse models and devices that there are not, and stages that do not divide the layers."""
        if not self.images or not self.work:
            raise BadValueError("A study has shares of images and amounts of work.", given=(self.images, self.work))
        self.batch(0, self.images[0], self.work[0])

    def batch(self, seed: int, images: float, work: float) -> Batch:
        """Return the batch of a seed, with predicted times.

        Parameters
        ----------
        seed : int
        images, work : float
        """
        gpus = self.encoder_gpus or fewest_gpus(
            max(round(work * self.stage_gpus * 1000), 1), 1000, range(1, 8 * self.stage_gpus + 1)
        )
        return draw(
            seed, ranks=self.ranks, per_rank=self.samples_per_rank, images=images, work=work, model=model(self.model),
            device=device(self.device), stages=self.stages, stage_gpus=self.stage_gpus, encoder_gpus=gpus,
            queue=self.queue, median_tokens=self.median_tokens, sigma=self.sigma, lengths=self.lengths,
            longest_tokens=self.longest_tokens, share=self.share,
        )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        gpus = [self.batch(0, self.images[0], work).encoder_gpus for work in self.work]
        of = " drawn, as the data set seq-lengths is absent" if document_classes() is None else " of counted documents"
        return (
            f"{self.ranks} ranks with {self.stages} stages of {self.stage_gpus} GPUs each, and "
            f"{', '.join(map(str, sorted(set(gpus))))} GPUs for the encoder, where it has its own.",
            f"{self.model} on {self.device} at {self.share:.0%} of its peak; what encoder and model send is free."
            + (f" Lengths are{of}." if self.lengths == "documents" else ""),
            "The encoder is as fast for each GPU wherever it runs; in a pipeline's first stage that favours it.",
        )

    def measure(self, system: Planner, seed: int) -> Measurements:
        """Plan a step for each share of images and amount of work, and let it take its real times."""
        found = Measurements()
        cells: dict[tuple[float, float], tuple[float, float, float, float, float]] = {}
        planning_s = 0.0
        # The first plan of a process waits for compiled functions.
        plan = system.plan(self.batch(seed, self.images[0], self.work[0]))
        for images in self.images:
            for work in self.work:
                batch = self.batch(seed, images, work)
                began = time.perf_counter()
                plan = system.plan(batch)
                planning_s += time.perf_counter() - began
                real = disturbed(batch, seed, self.noise)
                took = step(real, plan)
                time_s = took.time_ps / _PS
                critical_s = float(real.critical_ps.sum()) / real.ranks / _PS
                cells[images, work] = (
                    float(batch.tokens.sum()),
                    time_s,
                    time_s * took.gpus,
                    took.bound_ps / _PS,
                    critical_s,
                )
        tokens, time_s, gpu_s, bound_s, critical_s = np.sum(list(cells.values()), axis=0)
        found.put("tokens_per_s_per_gpu", tokens / gpu_s)
        found.put("tokens_per_s", tokens / time_s)
        found.put("time_over_bound", time_s / bound_s)
        found.put("of_text_only", critical_s / time_s)
        found.put("gradient_error", self.gradient_error(plan, seed))
        found.put("planning_s", planning_s / len(cells))
        for work in self.work:
            tokens, time_s, gpu_s, _, critical_s = np.sum([cells[images, work] for images in self.images], axis=0)
            found.put("tokens_per_s_by_work", tokens / time_s, work=work)
            found.put("tokens_per_s_per_gpu_by_work", tokens / gpu_s, work=work)
            found.put("of_text_only_by_work", critical_s / time_s, work=work)
        for images in self.images:
            tokens, time_s, *_ = np.sum([cells[images, work] for work in self.work], axis=0)
            found.put("tokens_per_s_by_images", tokens / time_s, images=images)
        return found

    def gradient_error(self, plan: Plan, seed: int) -> float:
        """Return how far gradients in a plan's order are from those in the order of samples.

        Parameters
        ----------
        plan : Plan
        seed : int
        """
        order = np.concatenate(plan.orders)
        given = samples(seed, order.size, 0.5)
        in_turn = gradients(given, np.arange(order.size), 1)
        return largest_difference(gradients(given, order, plan.queue or order.size), in_turn)
