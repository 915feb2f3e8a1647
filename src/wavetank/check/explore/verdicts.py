"""What is known of a property, and what it is worth: verdicts say by what they were limited.

A verdict vouches for what was explored and no more.  What a bound, a clock or a seed kept out is named beside it, and
where the time made a difference that was not explored there is no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wavetank.check.explore.counterexample import Path
from wavetank.check.explore.environment import COUNTED
from wavetank.check.explore.parts import Action
from wavetank.check.explore.system import System
from wavetank.check.report import Outcome

if TYPE_CHECKING:
    from wavetank.check.explore.explorer import Exploration

_WORDS = {
    "drops": ("loss", "losses"),
    "duplicates": ("duplicate", "duplicates"),
    "crashes": ("crash", "crashes"),
    "recoveries": ("recovery", "recoveries"),
    "timeouts": ("time-out", "time-outs"),
}


@dataclass(frozen=True)
class Counterexample:
    """A run to a state that must not be, or one that never does what it must.

    Parameters
    ----------
    says : str
        What is wrong at its end.
    path : Path
    cycle : int
        How many of the last steps repeat for ever; 0 when the run ends.
    """

    says: str
    path: Path
    cycle: int = 0

    @property
    def actions(self) -> list[Action]:
        """Return the actions, for :func:`replay`."""
        return self.path.actions

    def chart(self, width: int = 80) -> str:
        """Return the run as a message sequence chart in text, ``width`` columns wide."""
        from wavetank.check.explore.chart import as_text

        return as_text(self.path, says=self.says, cycle=self.cycle, width=width)

    def svg(self) -> str:
        """Return the run as a message sequence chart, an SVG document that needs nothing else."""
        from wavetank.check.explore.chart import as_svg

        return as_svg(self.path, says=self.says, cycle=self.cycle)


@dataclass(frozen=True)
class Judgement:
    """What is known of one property.

    Parameters
    ----------
    name : str
    kind : str
        ``always``, ``eventually`` or ``sometimes``.
    outcome : str
        ``holds``, ``violated`` or ``undecided``.
    says : str
        What was found, or why nothing was.
    example : Counterexample or None
        Of a violation; of a ``sometimes`` that holds, the run that shows it.
    """

    name: str
    kind: str
    outcome: Outcome
    says: str = ""
    example: Counterexample | None = None


def limits_in_words(system: System) -> str:
    """Return what kept runs of an instance from being longer or different, or "" when nothing did.

    A network that loses nothing and nodes that do not crash are what was asked, and no limit.
    """
    environment = system.environment
    bounds = []
    for name in COUNTED:
        bound = getattr(environment, name)
        if bound == "unlimited" or (bound == 0 and name != "timeouts"):
            continue
        bounds.append(f"{bound} {_WORDS[name][bound != 1]}")
    if environment.timers == "never":
        bounds = [each for each in bounds if "time-out" not in each] + ["0 time-outs"]
    if not system.has_timers:
        bounds = [each for each in bounds if "time-out" not in each]
    parts = []
    if bounds:
        parts.append(f"with at most {', '.join(bounds)}")
    if system.clock is not None:
        parts.append(f"under {system.clock}")
    if system.drew:
        parts.append(f"with the random numbers of seed {system.seed}")
    return ", ".join(parts)


def on_time(judgement: Judgement, found: Exploration) -> Judgement:
    """Return a judgement without what the time may have changed.

    Without a clock, a verdict stands only when no node read the time, or when it rests on one run in which none did.
    With one, what is not violated is undecided where time went on beyond the horizon, or where nodes read clocks
    that would drift.
    """
    system = found.system
    if judgement.outcome == "undecided":
        return judgement
    shown = judgement.example is not None
    if system.clock is None:
        outside = any(context.read_outside for context in system.contexts)
        if not (system.timed or system.starts_timed or outside):
            return judgement
        if judgement.example is not None and not outside and not judgement.example.path.reads_time:
            return judgement
        who = "a predicate reads" if outside else f"{_reader(system)} reads"
        says = f"depends on time: {who} context.now, and there is no clock"
        was = f"; with time at a standstill: {judgement.says}" if judgement.outcome == "violated" else ""
        return replace(judgement, outcome="undecided", says=says + was)
    if system.absolute and system.clock.drift:
        says = "nodes read clocks, and those do not drift here: set drift = 0, or measure with timers"
        was = f"; without drift of clocks: {judgement.says}" if judgement.outcome == "violated" else ""
        return replace(judgement, outcome="undecided", says=says + was)
    if found.beyond_horizon and not shown:
        says = f"bounded by the horizon: not explored after round {system.clock.horizon}, up to there "
        was = {"holds": "it holds", "violated": "it was not seen"}[judgement.outcome]
        return replace(judgement, outcome="undecided", says=says + was)
    return judgement


def _reader(system: System) -> str:
    nodes = {system.locals[local].index for local, _ in system.timed}
    return f"node {min(nodes)}" if nodes else "a node that starts"
