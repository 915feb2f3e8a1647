"""Orbit events: which records of a satellite's elements follow a manoeuvre.

Detectors score every record of a history (:mod:`~wavetank.insight.orbits.interface`): rules, filters over states,
change points, trees, and a small transformer.  ``wavetank diagnose`` uses the rule that wins.
"""
