"""Study ``earth-tasks``: what tasks lose when a scene has a budget of bytes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.scenes.interface import Scene, Sketcher
from wavetank.training.scenes.prior import Prior
from wavetank.training.scenes.study import EarthCodec
from wavetank.training.scenes.tasks import TASKS, Known, balanced_accuracy, green

_LOSS = 0.01


@dataclass(frozen=True, kw_only=True)
class EarthTasks(Study):
    """Each scene is sketched within budgets of bytes, and what is decoded answers questions about the scene, each with
    as many right answers yes as no.  A budget is the scene's size as float32 over a factor.  Beside it stands what the
    receiver answers without a byte, from the place's past.  Scenes and pasts are those of ``earth-codec``.
    """

    name: ClassVar[str] = "earth-tasks"
    baseline: ClassVar[str] = "sketch-without-past"
    primary: ClassVar[str] = "loss_at_100"
    secondary: ClassVar[tuple[str, ...]] = ("factor_at_one_percent", "encode_s")
    must_be_zero: ClassVar[tuple[str, ...]] = ("bytes_beyond_budget",)
    default_seeds: ClassVar[int] = 7
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("loss_at_100", "", "lower", "counted", "1 - balanced accuracy, mean over three tasks, of a scene 100 "
               "times smaller than float32", words="task loss at 100 times less"),
        Metric("factor_at_one_percent", "", "higher", "counted", "how many times smaller the scene may be for a mean "
               "loss of 0.01, between budgets by the logarithm of the factor; 1 where no budget is enough",
               words="factor at 1 % task loss"),
        Metric("guess_loss", "", "lower", "counted", "the same loss without any byte", words="task loss of the guess"),
        Metric("balanced_accuracy", "", "higher", "counted", "balanced accuracy by factor, mean over the tasks",
               table=False, words="balanced accuracy"),
        Metric("accuracy_of_task", "", "higher", "counted", "balanced accuracy by task and factor; factor 0 is without "
               "a byte", table=False, words="balanced accuracy"),
        Metric("green_accuracy", "", "higher", "counted", "plain accuracy of the unbalanced question, NDVI above 0.4, "
               "by factor; factor 0 is without a byte", table=False, words="accuracy on greenness"),
        Metric("rmse_by_factor", "", "lower", "counted", "root of the mean squared error of clear values, by factor",
               table=False, words="RMSE"),
        Metric("bytes_beyond_budget", "bytes", "lower", "counted", "bytes of sketches beyond their budgets",
               words="bytes beyond budgets"),
        Metric("encode_s", "s", "lower", "measured", "encoding the scene at all budgets", words="time to encode"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("sweep", "Balanced accuracy by factor", y="balanced_accuracy", by="factor", log="x",
              says="On the right, lines end at what the receiver guesses without a byte."),
        Chart("sweep", "Error by factor", y="rmse_by_factor", by="factor", log="xy", says="Lower is better."),
        Chart("sweep", "Accuracy on greenness by factor", y="green_accuracy", by="factor", log="x",
              says="The question that a guess answers: nothing is lost at any factor."),
    )  # fmt: skip

    place: str = setting(
        "auto", says="The real place, generated ones, or the real one if its data set is here",
        choices=("auto", "observed", "generated"),
    )  # fmt: skip
    factors: tuple[float, ...] = setting(
        (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0), says="How many times smaller than float32", low=2.0,
        high=1e6,
    )  # fmt: skip
    change: float = setting(0.1, says="Share of a generated place's parcels that are replaced every year", low=0.0,
                            high=1.0)  # fmt: skip

    @property
    def scenes(self) -> EarthCodec:
        """The study whose scenes these are."""
        return EarthCodec(place=self.place, change=self.change)

    def check(self) -> None:
        """Refuse to go on where the real place is asked for and not here."""
        self.scenes.check()

    def data(self) -> Mapping[str, str]:
        """Return the checksum of the real place's scenes."""
        return self.scenes.data()

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            self.scenes.notes()[0],
            "Tasks: pixels above the scene's median, pixels above what is typical of them, fields that rose; each is "
            "right half of the time by a guess that knows nothing.",
            "At 10,000 a budget holds 4 bytes, the head of a sketch: what is decoded is the guess.",
        )

    def measure(self, system: Sketcher, seed: int) -> Measurements:
        """Sketch one scene within each budget."""
        found = Measurements()
        scene, archive = self.scenes.scene(seed, 0.02)
        prior = system.fit(archive)
        # Tasks are the same for all: they know the place's past whether or not the codec uses it.
        past = Prior.fit(archive)
        known = Known(past.planes[0], past.planes[-1], scene.clear)
        truth = scene.values.astype(np.float64)
        losses, beyond, spent = {}, 0, 0.0
        guess = _judged(found, Scene(system.guess(prior), np.ones_like(scene.clear)), truth, known, 0.0)
        found.put("guess_loss", guess)
        for factor in sorted({*self.factors, 100.0}):
            budget = int(scene.raw_bytes / factor)
            began = time.perf_counter()
            stream = system.encode(scene, prior, budget)
            spent += time.perf_counter() - began
            beyond += max(0, len(stream) - budget)
            losses[factor] = _judged(found, system.decode(stream, prior), truth, known, factor)
        found.put("loss_at_100", losses[100.0])
        found.put("factor_at_one_percent", factor_at(losses, _LOSS))
        found.put("bytes_beyond_budget", beyond)
        found.put("encode_s", spent)
        return found


def _judged(found: Measurements, decoded: Scene, truth: np.ndarray, known: Known, factor: float) -> float:
    """Put down what the tasks make of a decoded scene; return their mean loss."""
    values = np.where(known.clear, decoded.values, 0.0).astype(np.float64)
    accuracies = []
    for name, task in TASKS.items():
        accuracy = balanced_accuracy(task(values, known), task(truth, known))
        found.put("accuracy_of_task", accuracy, task=name, factor=factor)
        accuracies.append(accuracy)
    found.put("green_accuracy", float((green(values, known) == green(truth, known)).mean()), factor=factor)
    if factor:
        found.put("balanced_accuracy", float(np.mean(accuracies)), factor=factor)
        error = (values - truth)[known.clear]
        found.put("rmse_by_factor", float(np.sqrt(np.mean(error**2))), factor=factor)
    return 1.0 - float(np.mean(accuracies))


def factor_at(losses: Mapping[float, float], wanted: float) -> float:
    """Return the largest factor up to which no loss is above ``wanted``.

    Parameters
    ----------
    losses : mapping of float to float
        Loss by factor.
    wanted : float
        Between two factors, the loss is taken to rise with the logarithm of the factor; below the least one the answer
        is 1.
    """
    below, at = 0.0, 1.0
    for factor in sorted(losses):
        loss = losses[factor]
        if loss > wanted:
            if at == 1.0:
                return 1.0
            share = (wanted - below) / (loss - below)
            return float(at * (factor / at) ** share)
        below, at = loss, factor
    return at
