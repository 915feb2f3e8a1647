"""Training models on many machines: which plan, which schedule and which recovery makes a job fast and keeps it right.

The plans run on real processes (:mod:`wavetank.live.ranks`).
"""
