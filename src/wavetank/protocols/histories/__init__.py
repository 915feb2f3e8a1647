"""Histories of stores: which consistency models allow what clients saw, and which stores keep which model.

The engine is :mod:`wavetank.check.consistency`; this package has replicated stores of known consistency, the rivals of
the engine (Wing, Gong and Lowe's search, Porcupine) and the studies ``consistency-models`` and
``linearizability-speed``.
"""
