"""Diagnosis: what is wrong in a trace, a log or a history, where, and with which evidence.

* :mod:`~wavetank.diagnosis.findings` - what an analyser takes and answers, and the verifier of its evidence.
* :mod:`~wavetank.diagnosis.peers` - how far a node is from its peers, robustly.
* :mod:`~wavetank.diagnosis.scoreboard` - how good diagnoses are: labels, alarms, risk against coverage.
"""
