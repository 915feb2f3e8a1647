"""What a long history of a figure says: level shifts, trend, cycles that come and go, outliers; and what comes next.

A *decomposition* (:mod:`~wavetank.insight.series.interface`) is the parts of a series with its gaps, which add up to
it; :func:`~wavetank.insight.series.decompose.decompose` takes a series apart by itself, or with periods and level
shifts that an analyst fixed in a file of decisions (:mod:`~wavetank.insight.series.decisions`).  A *forecaster* says
what comes after a history.  The studies are ``series-forecast``, whose forecasts are scored on real cold starts, and
``series-parts``, whose parts were planted; ``wavetank diagnose`` reads CSV and Parquet files with a column of times.
"""
