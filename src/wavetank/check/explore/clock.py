"""A discrete clock for explored instances: time passes in whole rounds, and everything that has a time keeps it.

Without a clock the explorer knows no time: any timer that is set may run out next.  With one, a timer runs out when its
time has come, a message arrives between its least and its greatest delay, and time does not pass as long as something
is due.  States hold what is left of timers and how old messages are, not when they began, so instances that repeat
themselves have finitely many states.  Only where a node reads ``context.now`` is the time itself a part of the state;
then a horizon ends the search, and what was not reached is not vouched for.

Source: L. Lamport, "Real-Time Model Checking Is Really Simple", CHARME 2005 (time as countdown timers of an ordinary
state machine, with an action that lets time pass and is held back by what is due).

Differs from the source:
1. Time passes one round at a time, and the bounds of delays and timers are whole rounds.
2. A clock that is read is explored with its value, up to a horizon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavetank.check.explore.environment import check_settings
from wavetank.errors import BadValueError
from wavetank.settings import setting

ASKED = ("any-time", "on-time")

# A step of the clock that cannot be taken: something is due now, or the horizon was reached.
DUE, HORIZON = -1, -2

# What may happen at any time and never has to.
NEVER_DUE = 2**30


class ClockWasRead(BaseException):
    """A handler read ``context.now`` while the time was no part of the states; the search begins again with it.

    No ``Exception``: a handler that catches those must not hide it.
    """


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How time passes in an explored instance; one step is one round.

    Parameters
    ----------
    least_delay : int
        Rounds before a message may arrive; 0 for in the instant in which it was sent.
    most_delay : int or "unlimited"
        Rounds after which it must have arrived: time does not pass before that.  It may be lost or doubled, where the
        environment allows that, whenever it could arrive.
    drift : float
        By which share a timer may run fast or slow: one set for ``a`` rounds runs out at a whole round within
        ``a * (1 - drift)`` and ``a * (1 + drift)``.  Each timer drifts on its own.
    offsets : tuple of int
        By how many rounds the clock of each node is ahead of the time, when the node reads it; 0 where left out.
    requests : str
        ``any-time``: a request comes at its time or at any time after it.  ``on-time``: at its time, or when its node
        is back where that is down.
    horizon : int
        Rounds that are explored where a node reads ``context.now``.  Time does not go on beyond it; when it would
        have, what was not found broken is undecided.

    Raises
    ------
    BadValueError
        For delays, drift or a horizon that make no sense.
    """

    least_delay: int = setting(1, says="Rounds before a message can arrive", low=0, high=1000)
    most_delay: int | str = setting(
        1, says="Rounds within which a message arrives", choices=("unlimited",), low=0, high=1000
    )
    drift: float = setting(0.0, says="Share by which a timer can be fast or slow", low=0.0, high=0.99)
    offsets: tuple[int, ...] = setting((), says="Rounds by which the clock of each node is ahead")
    requests: str = setting(
        "any-time", says="When requests arrive: at any time from the stated time on, or exactly then", choices=ASKED
    )
    horizon: int = setting(100, says="Rounds that are explored if a node reads the clock", low=1, high=1_000_000)

    def __post_init__(self) -> None:
        check_settings(self)
        if isinstance(self.most_delay, int) and self.most_delay < self.least_delay:
            raise BadValueError(
                "The greatest delay is below the least delay.",
                given=self.most_delay,
                allowed=f"from {self.least_delay}",
                where="most_delay",
            )

    def window(self, after: float) -> tuple[int, int]:
        """Return the first and the last round from now in which a timer set for ``after`` rounds runs out.

        Parameters
        ----------
        after : float
            More than 0, and finite; rounded up to a whole round, as in the life in rounds.
        """
        length = math.ceil(after)
        early = math.ceil(length * (1 - self.drift) - 1e-9)
        late = math.floor(length * (1 + self.drift) + 1e-9)
        return max(1, early), max(length, late)

    def older(self, age: int) -> int:
        """Return the age of a message one round later, or :data:`DUE` when it must arrive first."""
        if self.most_delay == "unlimited":
            # Beyond the least delay its age makes no difference.
            return min(age + 1, self.least_delay)
        return age + 1 if age < int(self.most_delay) else DUE

    def offset(self, node: int) -> int:
        """Return by how many rounds a node's clock is ahead."""
        return self.offsets[node] if node < len(self.offsets) else 0

    def __str__(self) -> str:
        delays = f"delays of {self.least_delay} to {self.most_delay} rounds"
        drift = f", timers that drift by {self.drift:.0%}" if self.drift else ""
        return f"a clock of whole rounds, {delays}{drift}"


def counted_down(waits: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...] | None:
    """Return what is left of timers one round later, or None when one has to run out first.

    Parameters
    ----------
    waits : tuple of (int, int)
        For each timer the rounds until it may and until it must run out.
    """
    if any(last == 0 for _, last in waits):
        return None
    return tuple((max(first - 1, 0), last if last == NEVER_DUE else last - 1) for first, last in waits)
