"""Workflows of language-model calls: which device computes which stage, and when.

An application is a directed acyclic graph of stages (:mod:`~wavetank.workloads.workflows`), each a call of one model
with a prompt that may begin with a prefix others have computed.  Devices differ; each keeps some models and prefixes,
the least recently used ones go first (:mod:`~wavetank.serving.workflows.caches`).  A scheduler sees a view
(:mod:`~wavetank.serving.workflows.interface`) at every arrival and completion and dispatches ready stages to idle
devices.  One book-keeping (:mod:`~wavetank.serving.workflows.dispatcher`) drives it in the simulator and in front of
real processes; the study ``workflow-scheduling`` compares schedulers, ``wavetank launch workflow`` runs one.
"""
