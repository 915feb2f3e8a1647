"""Studies: what a question to several systems is made of, and the records it leaves.

* :mod:`~wavetank.study.study` - :class:`Study`, :class:`Metric`, :class:`Chart`: one question put to several systems on
  the same workload and platform;
* :mod:`~wavetank.study.timing` - the same for questions whose answer is a time: clocks, gains, shares of a limit;
* :mod:`~wavetank.study.records` - one measured row, and a table of them on disk;
* :mod:`~wavetank.study.summary` - medians, intervals and paired ratios of records.
"""
