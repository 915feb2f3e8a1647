"""Training models on many machines: which plan, which schedule and which recovery makes a job fast and keeps it right.

A step of training is a graph of operations (:mod:`wavetank.workloads.operations`) that ranks compute and send to each
other; :mod:`wavetank.sim.steps` says when each of them ends, on the links of :mod:`wavetank.platforms.fabric`.  The
same plans run on real processes (:mod:`wavetank.live.ranks`).
"""
