"""How many GPUs of which kind serve several models, for the least money.

Users ask for models at a rate, within objectives of latency; clouds offer instances with a price.  A *template* is one
way to serve a model: devices, how they share it, and the rate that this replica keeps up within the objectives, found
with the simulator (:mod:`~wavetank.serving.fleet.templates`).  A planner chooses instances and replicas
(:mod:`~wavetank.serving.fleet.interface`); the study ``gpu-mix`` lets planners follow the same day of drifting demand
and serves peaks on the simulated fleets.  ``wavetank launch plan`` writes a plan for a demand and a price list.
"""
