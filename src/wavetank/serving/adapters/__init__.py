"""Serving many LoRA adapters: how well a simulator predicts the throughput of an engine that swaps adapters.

The study ``adapter-fidelity`` puts several predictors to published measurements
(:mod:`~wavetank.serving.adapters.lora_fidelity`).
"""
