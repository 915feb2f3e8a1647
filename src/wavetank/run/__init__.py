"""Running a study: from a plan to trials, records and a report.

* :mod:`~wavetank.run.comparison` - ``wavetank.compare``: plan, trials, records, report;
* :mod:`~wavetank.run.execute` - where trials run: in this process, in local processes, on Ray or Dask;
* :mod:`~wavetank.run.runfolder` - ``runs/STUDY/TIME``: the files of a run, and its provenance.
"""
