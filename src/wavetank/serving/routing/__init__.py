"""Routers: which worker takes an arriving request.  One module per system, one for the trivial baselines.

A router decides from a view of the workers that is as old as its last refresh
(:mod:`~wavetank.serving.routing.interface`); the study ``llm-routing`` simulates routers,
``barrier-routing`` lets them route for processes that step together, and :mod:`wavetank.serving.proxy` puts the same
objects in front of model servers.
"""
