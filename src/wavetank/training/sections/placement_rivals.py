"""Other places for the encoder, on as many GPUs, with images dealt to micro-batches in the same way.

What a rival leaves open is chosen for the images that it is planned for.  Their encoder is spread evenly over the
GPUs that it has, however many images there are, and stages and pools may have any share of the GPUs: both favour
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wavetank.settings import setting
from wavetank.training.sections.joint import run_pipeline
from wavetank.training.sections.placement import Ints, Job, Placed, regrouped, stage_layers

_NEAR = 3


@dataclass(frozen=True, kw_only=True)
class FirstStage:
    """Placer with the encoder in the first stage."""

    layers: str = setting(
        "even", says="Layers of the first stage: as many as of others, or the best number for the mix, known for each "
        "step or once", choices=("even", "replanned", "once"),
    )  # fmt: skip
    group: int = setting(4, unit="replicas", says="Replicas that deal images among each other", low=1, high=1024)

    def step(self, job: Job, planned: Job) -> Placed:
        """Return how a step runs.

        Parameters
        ----------
        job, planned : Job
        """
        group = min(self.group, job.replicas)
        job = regrouped(job, group)
        first = job.layers // job.stages
        if self.layers != "even":
            first = self.best_first(regrouped(planned, group) if self.layers == "once" else job)
        return self.ran(job, first)

    @staticmethod
    def ran(job: Job, first: int) -> Placed:
        """Return how a step runs whose first stage has some number of layers.

        Parameters
        ----------
        job : Job
        first : int
        """
        layers = stage_layers(job, first)
        forward = np.repeat(layers[:, None] * job.layer_ps, job.microbatches, 1)
        times, held = [], []
        for work in job.work_ps:
            mine = forward.copy()
            mine[0] += work // job.stage_gpus
            ran = run_pipeline("plain", mine, 2 * mine)
            times.append(ran.time_ps)
            held.append(ran.held)
        return Placed(max(times), max(held), job.stage_gpus)

    @classmethod
    def best_first(cls, job: Job) -> int:
        """Return the layers of the first stage with which the step ends soonest.

        Of those near the number with which the slowest stage is fastest on average, each is run.

        Parameters
        ----------
        job : Job
        """
        encoder = int(job.work_ps.mean()) // job.stage_gpus

        def slowest(first: int) -> int:
            layers = stage_layers(job, first) * job.layer_ps
            return int(max(layers[0] + encoder, layers[1:].max()))

        even = job.layers // job.stages
        middle = min(range(even, -1, -1), key=slowest)
        near = range(min(middle + _NEAR, even), max(middle - _NEAR, 0) - 1, -1)
        return min(near, key=lambda first: cls.ran(job, first).time_ps)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Placer that takes GPUs from the model for an encoder of its own."""

    split: str = setting(
        "best", says="GPUs of the encoder: the best number for each step, or for the mix at the start",
        choices=("best", "once"),
    )  # fmt: skip
    group: int = setting(4, unit="replicas", says="Replicas that deal images among each other", low=1, high=1024)

    def step(self, job: Job, planned: Job) -> Placed:
        """Return how a step runs.

        Parameters
        ----------
        job, planned : Job
        """
        group = min(self.group, job.replicas)
        job = regrouped(job, group)
        return self.ran(job, self.best_gpus(regrouped(planned, group) if self.split == "once" else job))

    @staticmethod
    def ran(job: Job, gpus: int) -> Placed:
        """Return how a step runs whose encoder has some GPUs of each replica.

        Parameters
        ----------
        job : Job
        gpus : int
        """
        total = job.stages * job.stage_gpus
        stage = job.layers * job.layer_ps // job.stages * total // (total - gpus)
        times, held = [], []
        for work in job.work_ps:
            forward = np.full((job.stages + (gpus > 0), job.microbatches), stage, np.int64)
            if gpus:
                forward[0] = work // gpus
            ran = run_pipeline("plain", forward, 2 * forward)
            times.append(ran.time_ps)
            held.append(ran.held)
        return Placed(max(times), max(held), gpus)

    @classmethod
    def best_gpus(cls, job: Job) -> int:
        """Return the GPUs of the encoder for each replica with which the step ends soonest; 0 without images.

        Of those near the number with which the slower of both is fastest on average, each is run.

        Parameters
        ----------
        job : Job
        """
        total, work = job.stages * job.stage_gpus, int(job.work_ps.mean())
        if not work:
            return 0
        model = job.layers * job.layer_ps * job.stage_gpus

        def slower(gpus: int) -> float:
            return max(work * (total - gpus), model * gpus) / (gpus * (total - gpus))

        middle = min(range(1, total), key=slower)
        near = range(max(middle - _NEAR, 1), min(middle + _NEAR, total - 1) + 1)
        return min(near, key=lambda gpus: cls.ran(job, gpus).time_ps)


@dataclass(frozen=True, kw_only=True)
class BubbleFilling:
    """Placer that computes all of the encoder before and after the pipeline, most where stages wait longest."""

    group: int = setting(4, unit="replicas", says="Replicas that deal images among each other", low=1, high=1024)

    def step(self, job: Job, planned: Job) -> Placed:
        """Return how a step runs.

        Parameters
        ----------
        job, planned : Job
        """
        job = regrouped(job, min(self.group, job.replicas))
        stage = job.layers // job.stages * job.layer_ps
        each = np.full((job.stages, job.microbatches), stage, np.int64)
        times, held = [], []
        for work in job.work_ps:
            parts = filled(int(work.sum()) // job.stage_gpus, stage, job.stages)
            share = np.maximum(parts, 0) / max(parts.sum(), 1)
            chunks = (work[None, :] / job.stage_gpus * share[:, None]).astype(np.int64)
            ran = run_pipeline("static", each, 2 * each, chunks, 2 * chunks)
            times.append(ran.time_ps)
            held.append(ran.held)
        return Placed(max(times), max(held), job.stages * job.stage_gpus)


def filled(work: int, step: int, stages: int) -> Ints:
    """Return how much each stage takes of some work, if stage s waits for s steps and all are done as early as can be.

    Parameters
    ----------
    work, step, stages : int

    Examples
    --------
    >>> filled(9, 2, 3).tolist(), filled(2, 2, 3).tolist()
    ([1, 3, 5], [0, 0, 2])
    """
    waits = step * np.arange(stages)
    for used in range(1, stages + 1):
        # The last ``used`` stages begin so that they end when they are needed, or as much later as all must.
        late = (work - int(waits[stages - used :].sum())) // used
        if used == stages or late + int(waits[stages - used - 1]) <= 0:
            break
    return np.maximum(waits + late, 0)
