"""Simulation mechanism shared by the areas; it holds no policy.

* :mod:`~wavetank.sim.rng`, :mod:`~wavetank.sim.streams` - random numbers by purpose, in Python and in compiled code;
* :mod:`~wavetank.sim.compiled` - numba with a cache that is never stale;
* :mod:`~wavetank.sim.node` - what a distributed algorithm is: nodes, messages, timers, a context;
* :mod:`~wavetank.sim.simulation` - what :mod:`~wavetank.sim.rounds` and :mod:`~wavetank.sim.events` share;
* :mod:`~wavetank.sim.network`, :mod:`~wavetank.sim.faults` - delays, loss, partitions; crashes, Byzantine nodes;
* :mod:`~wavetank.sim.history` - what clients asked and were answered;
* :mod:`~wavetank.sim.steps` - the operations of a training step on streams, collectives and links;
* :mod:`~wavetank.sim.links` - transfers that share a link, copies that step aside, a bucket for real ones.
"""
