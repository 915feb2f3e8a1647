"""Which rank makes a collective operation slow or hang, from counters inside the collectives.

When one rank of a job stops or becomes slow, all ranks wait in their collectives and look alike.  Probes in the loop
that sends and receives count what each rank did (:mod:`~wavetank.insight.collectives.probes`), and an analyser
compares the counters of ranks, never their clocks (:mod:`~wavetank.insight.collectives.ccl_d`).  Study
``collective-faults`` plants faults in simulated jobs (:mod:`~wavetank.insight.collectives.job_model`), study
``collective-faults-live`` in real processes.
"""
