"""Counterexamples: a list of actions from the start to what must not be, replayed, shortened and shown.

Replaying runs the same handlers on the same actions and knows nothing of the search that found them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wavetank.check.explore.parts import ACT, Action, Kind
from wavetank.check.explore.system import System
from wavetank.errors import BadValueError, nearest_of
from wavetank.sim.node import Snapshot

MOST_REPLAYED = 200_000


@dataclass(frozen=True)
class Step:
    """One action of a run, and what came of it.

    Parameters
    ----------
    action : Action
    sent : tuple of (int, message)
        Receivers and messages, in the order sent.
    decided : tuple of (instance, value)
        New decisions of the node.
    replied : tuple of (int, object)
        Requests answered for the first time, and the results.
    lost : bool
        A message that arrived at a node that is down.
    broken : str
        What the node did that no node may do.
    """

    action: Action
    sent: tuple[tuple[int, Any], ...] = ()
    decided: tuple[tuple[Any, Any], ...] = ()
    replied: tuple[tuple[int, Any], ...] = ()
    lost: bool = False
    broken: str = ""


@dataclass(frozen=True)
class Path:
    """A run through the states of a system.

    Parameters
    ----------
    system : System
    steps : tuple of Step
    started : tuple of (int, int, message)
        Sender, receiver and message of all that was sent at the start.
    rows : tuple of tuple of int
        The states, one more than there are steps.
    """

    system: System
    steps: tuple[Step, ...]
    started: tuple[tuple[int, int, Any], ...]
    rows: tuple[tuple[int, ...], ...]

    @property
    def actions(self) -> list[Action]:
        """Return the actions; :func:`follow` takes them."""
        return [step.action for step in self.steps]

    @property
    def reads_time(self) -> bool:
        """Return whether a node read the time on the way while there was no clock."""
        system = self.system
        if system.starts_timed:
            return True
        steps = zip(self.rows, self.actions, strict=False)
        numbers = [(row, system.step(action)) for row, action in steps]
        return any(
            found is not None and (row[action.node], found[1]) in system.timed
            for (row, found), action in zip(numbers, self.actions, strict=True)
            if found is not None and found[0] == ACT
        )

    def snapshot(self, at: int = -1) -> Snapshot:
        """Return the state after that number of steps; the last by default."""
        return self.system.snapshot(self.rows[at])


def follow(system: System, actions: Sequence[Action], *, skip: bool = False) -> Path:
    """Replay actions from the first state.

    Parameters
    ----------
    system : System
    actions : sequence of Action
    skip : bool
        Leave out what cannot happen where it stands, in place of refusing it.

    Raises
    ------
    BadValueError
        For an action that cannot happen where it stands.
    """
    row = system.initial
    rows, steps = [row], []
    for at, action in enumerate(actions):
        numbers = system.step(action)
        possible = system.actions(row)
        if numbers not in possible or numbers is None:
            if skip:
                continue
            names = [str(system.action(each)) for each in possible]
            raise BadValueError(
                "The action cannot happen here.",
                given=str(action),
                allowed=names[:12] or "nothing, the run is at its end",
                nearest=nearest_of(str(action), names),
                where=f"action {at + 1} of {len(actions)}",
            )
        after = system.after(row, numbers)
        steps.append(_step_of(system, row, numbers, after))
        rows.append(after)
        row = after
    started = tuple(
        (event.sender, event.node, event.what)
        for event in (system.events[number] for number in system.network_of(system.initial))
    )
    return Path(system, tuple(steps), started, tuple(rows))


def _step_of(system: System, row: tuple[int, ...], numbers: tuple[int, int], after: tuple[int, ...]) -> Step:
    how, number = numbers
    action, event = system.action(numbers), system.events[number]
    if how != ACT or event.kind == Kind.TICK:
        return Step(action)
    before, now = system.locals[row[event.node]], system.locals[after[event.node]]
    step = system.transition(row[event.node], number)
    sent = tuple((each.node, each.what) for each in (system.events[each] for each in step.sends))
    decided = tuple((key, value) for key, value in now.decisions.items() if key not in before.decisions)
    known = system.replies[row[system.fixed_width - 1]]
    replied = tuple((key, value) for key, value in system.replies[step.replies].items() if key not in known)
    lost = event.kind == Kind.RECEIVE and not before.up
    return Step(action, sent, decided, replied, lost, now.broken if now.broken != before.broken else "")


def shortened(system: System, actions: Sequence[Action], bad: Callable[[Path], bool]) -> list[Action]:
    """Return a part of ``actions`` that is still bad and of which nothing can be left out.

    Parameters
    ----------
    system : System
    actions : sequence of Action
        A bad run.
    bad : callable
        Whether a run shows what is looked for.

    Notes
    -----
    Very long runs are only shortened as far as :data:`MOST_REPLAYED` actions go.
    """
    kept = list(actions)
    width = max(len(kept) // 2, 1)
    replayed = 0
    while True:
        at, shorter = 0, False
        while at < len(kept):
            replayed += len(kept)
            if replayed > MOST_REPLAYED:
                return kept
            path = follow(system, kept[:at] + kept[at + width :], skip=True)
            if bad(path) and len(path.steps) < len(kept):
                kept, shorter = path.actions, True
            else:
                at += width
        if width == 1 and not shorter:
            return kept
        width = max(width // 2, 1)
