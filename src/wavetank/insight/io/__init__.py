"""What a log of Darshan says is wrong with a job's I/O, and what each issue costs.

:mod:`~wavetank.insight.io.measures` has families of files and what each issue would save,
:mod:`~wavetank.insight.io.diagnose` judges fragments of a log and merges what they show;
:mod:`~wavetank.insight.io.planted` makes labelled logs whose truth is causal, and study ``io-diagnosis`` compares.
"""
