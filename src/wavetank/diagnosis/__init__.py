"""Diagnosis: what is wrong in a trace, a log or a history, where, and with which evidence.

* :mod:`~wavetank.diagnosis.findings` - what an analyser takes and answers, and the verifier of its evidence.
"""
