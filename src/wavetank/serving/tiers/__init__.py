"""Several service levels on the same GPUs: which tier gets which groups of GPUs, at which tensor parallelism.

A *tier* has objectives for the time to first token and per token.  A *plan* divides the GPUs into groups, each with a
tier, a tensor-parallel degree and a role (:mod:`~wavetank.serving.tiers.interface`); what a group keeps up comes out of
step times (:mod:`~wavetank.serving.tiers.profile`).  A *policy* sees each second what arrived and may change the plan
while requests run (:mod:`~wavetank.serving.tiers.fleet` serves them, step by step).  Study ``tiered-slo``.
"""
