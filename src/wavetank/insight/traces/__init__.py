"""What a profiler's trace of a training or serving job says: how devices spend their time, and what they wait for.

:mod:`~wavetank.insight.traces.measures` has the quantities, each a plain definition over intervals of kernels, copies
and host calls; :mod:`~wavetank.insight.traces.diagnose` judges them for ``wavetank diagnose``.
"""
