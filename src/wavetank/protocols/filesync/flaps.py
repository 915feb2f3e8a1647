"""What a node believes about a link that comes and goes: by silence, or by the state of the link's token.

With a time-out a link counts as up as long as something was heard recently, so every flap is learnt late and a slow
answer is taken for a cut.  With a token nothing is believed between transfers: a link is known to work at the moment a
hand-over is acknowledged, known to be in doubt while one is under way, and nothing is claimed in between.

Source: P. Borrill, "Why iCloud Fails: The Category Mistake of Cloud Synchronization", arXiv 2602.19433, 2026, on link
flapping; T. Chandra, S. Toueg, "Unreliable Failure Detectors for Reliable Distributed Systems", JACM 43(2), 1996.
"""

from __future__ import annotations

from typing import NamedTuple

from wavetank.sim.rng import Draws, stream_key

_STEP_ROUNDS = 0.05
# In steps: the delay of a message, the time between two heartbeats, the silence after which a link counts as down, and
# the pause between two hand-overs.
_DELAY, _HEARTBEAT, _TIMEOUT, _PAUSE = 2, 20, 60, 20


class Beliefs(NamedTuple):
    """Claims about a link, and how many were wrong.

    Parameters
    ----------
    claimed : int
        Instants at which the node claimed that the link is up or down.
    wrong : int
        Those at which it was not so.
    instants : int
        All instants looked at.
    """

    claimed: int
    wrong: int
    instants: int

    @property
    def wrong_share(self) -> float:
        """Return the share of all instants at which a wrong claim stood."""
        return self.wrong / self.instants


def flapping(period_rounds: float, rounds: float, seed: int) -> list[bool]:
    """Return whether the link is up, instant by instant; up and down times are exponential with that mean.

    Parameters
    ----------
    period_rounds : float
        Mean time between two changes.
    rounds : float
    seed : int
    """
    draws = Draws(stream_key(seed, "flapping"))
    up, left, found = True, draws.exponential(period_rounds), []
    for _ in range(int(rounds / _STEP_ROUNDS)):
        left -= _STEP_ROUNDS
        if left <= 0:
            up = not up
            left = draws.exponential(period_rounds)
        found.append(up)
    return found


def beliefs_by_timeout(link: list[bool]) -> Beliefs:
    """Return how often a node that goes by heartbeats and silence is wrong.

    Parameters
    ----------
    link : list of bool
        As :func:`flapping` gives it.
    """
    heard, wrong = 0, 0
    for now, up in enumerate(link):
        sent = now - _DELAY
        if sent >= 0 and sent % _HEARTBEAT == 0 and link[sent]:
            heard = now
        wrong += (now - heard <= _TIMEOUT) != up
    return Beliefs(len(link), wrong, len(link))


def beliefs_by_token(link: list[bool]) -> Beliefs:
    """Return how often a node that goes by the state of the link's token is wrong.

    The four messages of a hand-over follow each other; the ends claim that the link is up from the moment a message of
    the transfer arrives until the next one is due, and claim nothing while they wait for one that is overdue.
    """
    claimed = wrong = 0
    known_until = due = -1
    idle_until = 0
    step = 0
    for now, up in enumerate(link):
        if now == due:
            if link[now - _DELAY] and up:
                known_until, step = now + _DELAY, step + 1
            if step == 4:
                step, idle_until, due = 0, now + _PAUSE, -1
            else:
                due = now + _DELAY
        elif due < 0 and now >= idle_until:
            due = now + _DELAY
        if now < known_until:
            claimed += 1
            wrong += not up
    return Beliefs(claimed, wrong, len(link))
