"""Which model runs next on one edge device, with how many requests and up to which exit.

Several networks with early exits share a device in time division: one batch at a time, never interrupted.  Every model
has a queue and every request the same deadline.  A scheduler sees the queues (:mod:`~wavetank.serving.edge.interface`)
and a profile of latencies; the study is ``edge-deadlines``.
"""
