"""The serving simulator: a cluster of engines that batch continuously, simulated exactly and fast.

:func:`~wavetank.serving.simulator.simulate.simulate` runs any router on any
:class:`~wavetank.serving.simulator.cluster.Cluster` and defines every accounting rule (what a TTFT is);
:mod:`~wavetank.serving.simulator.core` is the compiled inner loop, :mod:`~wavetank.serving.simulator.reference` the
readable twin that it must equal in every digit.
"""
