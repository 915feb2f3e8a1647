"""Whether a kernel of a benchmark suite uses the hardware as a kernel of a real code does.

Machines are bought by benchmarks, so somebody must know which benchmark stresses what the code stresses.  A score of
similarity compares two kernels by where the slots of the processor went and by the rates they reach
(:mod:`~wavetank.insight.kernels.interface`); a match comes with an interval and, where that does not decide, a set of
kernels.  The study ``kernel-matching`` asks what a match is worth: does the match's time on another machine move as the
kernel's own?  Real profiles are those of ``rajaperf-topdown``; kernels of a transport code are counted here, against
pairs that were written down before (:mod:`~wavetank.insight.kernels.expected_pairs`).  ``wavetank diagnose`` explains
tables of top-down shares.
"""
