"""Exploration of state spaces: how many states an explorer visits until a small instance is decided.

The explorer is :mod:`wavetank.check.explore`; this package has its rivals
(:mod:`~wavetank.protocols.exploration.rivals`) and the study ``state-spaces``.
"""
