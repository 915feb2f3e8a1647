"""How a training job goes on when replicas of its model die.

Every step must sum the gradients of the same microbatches, however many replicas are left.
:mod:`~wavetank.training.failures.quotas` divides microbatches among the living, and
:mod:`~wavetank.training.failures.trainer` carries out steps that survive the death of a replica in the middle of a
reduction.  The replicas are ranks of :mod:`wavetank.live.ranks`.

What that is worth on many GPUs is simulated: a *job* says what steps, checkpoints and restarts take, *failures* come by
steps, in time or as recorded (:mod:`~wavetank.training.failures.failure_times`), and a *recovery* plans before a run
and answers when a replica has died (:mod:`~wavetank.training.failures.interface`).  Study ``training-faults``.
"""
