"""Training models on many machines: which plan, which schedule and which recovery makes a job fast and keeps it right.

Steps are simulated in whole picoseconds (:mod:`wavetank.training.steps`), and jobs run on real processes
(:mod:`wavetank.live.ranks`).
"""
