"""How long a training step takes: its operations on streams, collectives and links, simulated exactly and fast.

A :class:`~wavetank.workloads.operations.StepGraph` says what runs where and what waits for what; pipeline schedules and
data-parallel steps are made by :mod:`wavetank.workloads.pipelines`.  :mod:`wavetank.sim.steps` runs it in whole
picoseconds.  :mod:`~wavetank.training.steps.rivals` holds other ways to the same times behind the interface of
:mod:`~wavetank.training.steps.interface`; the study ``step-simulator-speed`` compares how fast they are, and
``step-fidelity`` how far simulated steps are from real ones, which :mod:`~wavetank.training.steps.real_plans` runs, and
collectives from the alpha-beta formula.  ``ranked-steps`` asks whether predicted steps of other people's GPUs stand in
the order of the measured ones (:mod:`~wavetank.training.steps.row_steps`, :mod:`~wavetank.training.steps.gpu_rows`).
"""
