"""What a checker of counter systems answers, and the interface all of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wavetank.check.deadline import Deadline
from wavetank.check.report import Outcome
from wavetank.protocols.threshold.counterexample import AbstractRun, Counterexample
from wavetank.protocols.threshold.preprocess import CounterSystem

SETTLED = "settled by preprocessing: nothing that could violate it can be reached"


@dataclass(frozen=True)
class Answer:
    """The answer to one question of reachability.

    Parameters
    ----------
    outcome : str
        ``holds``: the stages cannot be met, for any parameters; ``violated``: ``run`` meets them; ``undecided``.
    says : str
        How it was found, or why not.
    run : AbstractRun or Counterexample, optional
        Of a violation.
    by : str
        The method that decided.
    """

    outcome: Outcome
    says: str = ""
    run: AbstractRun | Counterexample | None = None
    by: str = ""


class Method(Protocol):
    """A frozen dataclass whose parameters steer the method."""

    def decide(self, system: CounterSystem, deadline: Deadline) -> Answer:
        """Return whether the system's stages can be met; "undecided" when time or memory end first."""
        ...
