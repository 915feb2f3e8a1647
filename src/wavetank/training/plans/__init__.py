"""How a model is cut over the ranks of a machine: stages, experts, tensors, replicas, and the size of microbatches.

A *planner* chooses a plan for a job (:mod:`~wavetank.training.plans.interface`).  What a plan holds in memory
(:mod:`~wavetank.training.plans.memory`) and how long its step takes (:mod:`~wavetank.training.plans.costs`) is the same
for all; the study is ``parallel-plan``.  A *tuner* does not model: it tries configurations, some of which do not fit,
and the fewer the better (study ``plan-tuning``).
"""
