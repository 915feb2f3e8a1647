"""Threshold automata: broadcast and consensus algorithms proved safe for every number of processes.

A file (``.ta``, ``.eta``, a subset of TLA+) becomes a
:class:`~wavetank.protocols.threshold.automaton.ThresholdAutomaton`;
:mod:`~wavetank.protocols.threshold.properties` takes its safety formulas apart;
:mod:`~wavetank.protocols.threshold.preprocess` makes the counter system that the checkers decide;
:mod:`~wavetank.protocols.threshold.smt`, :mod:`~wavetank.protocols.threshold.acs` and
:mod:`~wavetank.protocols.threshold.zero_counters` are three ways to decide it for all parameters,
:mod:`~wavetank.protocols.threshold.portfolio` runs them side by side, and
:mod:`~wavetank.protocols.threshold.explicit` is the oracle for fixed small parameters that also replays every
counterexample before a user sees it.
"""
