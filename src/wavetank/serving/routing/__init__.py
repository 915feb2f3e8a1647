"""Routers: which worker takes an arriving request.  One module per system, one for the trivial baselines.

A router decides from a view of the workers that is as old as its last refresh
(:mod:`~wavetank.serving.routing.interface`); the study ``llm-routing`` simulates routers,
:mod:`wavetank.serving.proxy` puts the same objects in front of model servers, and ``real-engines`` compares both lives.
"""
