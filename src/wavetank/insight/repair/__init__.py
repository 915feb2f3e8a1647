"""Which repair a failing service needs, and when nobody should touch it.

Grey failures (a busy neighbour, a leak, a congested network) look alike: slower, fewer, later.  Agents see one
window of telemetry and act, or hand the case on.  :mod:`~wavetank.insight.repair.simulated_service` draws cases whose
cause is planted, :mod:`~wavetank.insight.repair.networks` has exact inference on causal graphs,
:mod:`~wavetank.insight.repair.aurora` the agent with two gates, :mod:`~wavetank.insight.repair.rivals` the others, and
:mod:`~wavetank.insight.repair.scoring` says what a destructive action is.  Study ``grey-failures``.
:mod:`~wavetank.insight.repair.live` strikes a real service with real faults (study ``grey-failures-live``),
:mod:`~wavetank.insight.repair.inference` times exact inference (study ``blanket-speed``), and
:mod:`~wavetank.insight.repair.causes` ranks services of a real shop (study ``service-causes``).
"""
