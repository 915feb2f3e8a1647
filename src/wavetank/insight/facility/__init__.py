"""A small data centre with its cooling: what it draws, what load comes, and who sets air and servers.

:mod:`~wavetank.insight.facility.site` has the formulas and :mod:`~wavetank.insight.facility.plant` the minutes of the
simulated site; :mod:`~wavetank.insight.facility.scenes` has weather and load.  The twin is an estimator
(:mod:`~wavetank.insight.facility.estimator`), a forecaster (:mod:`~wavetank.insight.facility.forecasters`) and a
search (:mod:`~wavetank.insight.facility.control`).  Studies ``facility-table``, ``facility-control`` and
``facility-forecast``.
"""
