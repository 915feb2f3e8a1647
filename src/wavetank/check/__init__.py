"""Checking: verdicts on models, histories and protocols, each with a budget, a witness and "undecided".

* :mod:`~wavetank.check.report` - what every checker takes and answers;
* :mod:`~wavetank.check.deadline` - how a checker keeps to its budget;
* :mod:`~wavetank.check.consistency` - which consistency models allow a recorded history;
* :mod:`~wavetank.check.explore` - every interleaving of a small instance of a protocol.
"""
