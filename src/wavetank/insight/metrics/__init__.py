"""What a profiler's trace and a workload card say of a run: metrics that are functions of both, and what uses them.

:mod:`~wavetank.insight.metrics.cards` has the card of a run, :mod:`~wavetank.insight.metrics.definitions` the metrics:
each takes a card and traces and gives a figure, or none with the reason.  A new metric needs no new run.
:mod:`~wavetank.insight.metrics.search` has a tuner that looks at such metrics, and
:mod:`~wavetank.insight.metrics.board` keeps real runs with trace, card and script.
"""
