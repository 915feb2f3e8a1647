"""MegaScale-Omni: the encoder's work of every micro-batch is spread over the GPUs of all pipeline stages.

An encoder in one stage holds all others up as the share of images grows; GPUs of its own are too many or too few
whenever the mix changes.  Spread over all stages, more images make all of them slower alike, and nothing has to be
planned again.  Short images go to one GPU each, long ones are shared by those of a stage, which exchange heads for
patches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wavetank.settings import setting
from wavetank.sim.compiled import compiled
from wavetank.training.sections.joint import run_pipeline
from wavetank.training.sections.placement import Ints, Job, Placed, regrouped


@dataclass(frozen=True, kw_only=True)
class MegaScaleOmni:
    """Placer that multiplexes encoder and model on all GPUs."""

    balanced: bool = setting(True, says="Whether images are dealt to micro-batches by their work, within a group")
    shared: bool = setting(True, says="Whether long images are shared by the GPUs of a stage")
    group: int = setting(4, unit="replicas", says="Replicas that deal images among each other", low=1, high=1024)

    def step(self, job: Job, planned: Job) -> Placed:
        """Return how a step runs; nothing is planned ahead.

        Parameters
        ----------
        job, planned : Job
        """
        if self.balanced:
            job = regrouped(job, min(self.group, job.replicas))
        chunks = encoder_chunks(job, self.shared)
        each = np.full((job.stages, job.microbatches), job.layers // job.stages * job.layer_ps, np.int64)
        ran = [run_pipeline("joint", each, 2 * each, chunk, 2 * chunk) for chunk in chunks]
        gpus = job.stages * job.stage_gpus
        return Placed(max(one.time_ps for one in ran), max(one.held for one in ran), gpus)


def encoder_chunks(job: Job, shared: bool = True) -> Ints:
    """Return what the encoder's forward pass of each micro-batch takes on each stage of each replica.

    An image is long if it takes more on one GPU than the mean of all GPUs of the replica.  The longest come first, each
    to the stage or the GPU that is done first with what it has of this micro-batch, of these to the one with least of
    all so far.

    Parameters
    ----------
    job : Job
    shared : bool
        Whether long images are shared by the GPUs of a stage.

    Returns
    -------
    int64 array (replicas, stages, microbatches)
    """
    order = np.lexsort((np.arange(job.bin.size), -job.image_ps, job.bin))
    bins = job.replicas * job.microbatches
    ends = np.searchsorted(job.bin[order], np.arange(bins), side="right").astype(np.int64)
    flat = _chunks(
        job.image_ps[order], job.exchange_ps[order], ends, job.microbatches, job.stages, job.stage_gpus, shared
    )
    found: Ints = np.ascontiguousarray(flat.reshape(job.replicas, job.microbatches, job.stages).transpose(0, 2, 1))
    return found


@compiled
def _chunks(times, exchanges, ends, microbatches, stages, gpus, shared):  # type: ignore[no-untyped-def]
    bins = ends.size
    found = np.zeros((bins, stages), np.int64)
    total = np.zeros(stages, np.int64)
    begin = 0
    for b in range(bins):
        if b % microbatches == 0:
            total[:] = 0
        loads = np.zeros((stages, gpus), np.int64)
        mean = times[begin : ends[b]].sum() // (stages * gpus)
        for i in range(begin, ends[b]):
            part = times[i] // gpus + exchanges[i]
            if shared and times[i] > mean and part < times[i]:
                best = 0
                for s in range(1, stages):
                    here, there = loads[s].max() + total[s], loads[best].max() + total[best]
                    if here < there:
                        best = s
                loads[best, :] = loads[best].max() + part
            else:
                best, gpu = 0, 0
                for s in range(stages):
                    for g in range(gpus):
                        here, there = loads[s, g], loads[best, gpu]
                        if here < there or (here == there and total[s] < total[best]):
                            best, gpu = s, g
                loads[best, gpu] += times[i]
        for s in range(stages):
            found[b, s] = loads[s].max()
            total[s] += found[b, s]
        begin = ends[b]
    return found
