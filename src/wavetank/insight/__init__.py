"""Insight: given a trace, a log or a history of figures, what is wrong, where, how sure is that, and what follows.

An analyser of any kind answers with findings whose every figure is read from the file again by a verifier
(:mod:`wavetank.diagnosis`).
"""
