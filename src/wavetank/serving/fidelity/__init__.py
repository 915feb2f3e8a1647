"""Fidelity of predicted serving runs: how far a simulator's latencies are from those that an engine had.

The study ``serving-fidelity`` puts several predictors to recorded runs of vLLM
(:mod:`~wavetank.serving.fidelity.recorded_runs`) and reports the error of each.
"""
