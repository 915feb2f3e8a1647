"""The explorer: every interleaving of a small instance, with counterexamples.

The same node class that is simulated and launched is run here on every order of deliveries, timers, losses and crashes
that its environment allows.  :func:`explore` visits every state once, judges invariants in each and what must happen
sooner or later on all of them, and shows what is wrong as a message sequence chart that can be replayed.

>>> from wavetank.check.explore import Environment, explore                  # doctest: +SKIP
>>> print(explore(MyAlgorithm(), 3, environment=Environment(crashes=1)).outcome)  # doctest: +SKIP
"""

from wavetank.check.explore.clock import Clock
from wavetank.check.explore.environment import AnyOf, Environment, Symmetry
from wavetank.check.explore.explorer import (
    Exploration,
    SearchBudget,
    explore,
    replay,
    violation_of,
)
from wavetank.check.explore.parts import Action
from wavetank.check.explore.verdicts import Counterexample, Judgement

__all__ = [
    "Action",
    "AnyOf",
    "Clock",
    "Counterexample",
    "Environment",
    "Exploration",
    "Judgement",
    "SearchBudget",
    "Symmetry",
    "explore",
    "replay",
    "violation_of",
]
