"""Serving large language models: which worker takes a request, and what that costs.

A request trace (:mod:`wavetank.workloads`) arrives at a :class:`Cluster`: replicas that batch continuously with
chunked prefill, a bounded KV cache and preemption by recompute; either independent, or data-parallel groups whose
steps end in a barrier, or split into prefill and decode pools.  A router decides from a view that is as old as its
last refresh.  :func:`simulate` runs any router on any cluster, exactly (time is a whole number of picoseconds) and
fast (decode phases are jumped over in closed form), and returns one accounting for all of them.

>>> from wavetank.serving import Cluster, simulate                           # doctest: +SKIP
>>> from wavetank.serving.routing.power_of_two import PowerOfTwo             # doctest: +SKIP
>>> simulate(requests, Cluster(workers=16), PowerOfTwo()).metrics()          # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.serving.simulator.cluster import Cluster, WorkerKind
    from wavetank.serving.simulator.reuse import ContentReuse, GivenUnits, PrefixReuse, ReusePolicy, ReuseRule, Units
    from wavetank.serving.simulator.simulate import ServingRun, simulate
    from wavetank.workloads.requests import RequestTrace

__getattr__, __dir__, __all__ = lazy_names(__name__)
