"""Controllers: HAF's agent with a critic, and its rivals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.live.language_model import opened
from wavetank.serving.sharing.agents import MOST_MOVES, Agent, Asked, AtRandom, Scripted
from wavetank.serving.sharing.critics import Fluid, Fulfilment, Learned, gain, per_node, value_of
from wavetank.serving.sharing.interface import Controller, Move, View
from wavetank.serving.sharing.nodes import RULES
from wavetank.serving.sharing.traffic import Scene
from wavetank.settings import setting

_CRITICS: dict[str, type[Fulfilment]] = {"learned": Learned, "fluid": Fluid}


@dataclass(frozen=True, kw_only=True)
class AgentAndCritic:
    """An agent proposes, a critic lets through what wins more than its interruption loses."""

    agent: str = setting(
        "scripted", says="scripted, random, or a language model: http://HOST:PORT/v1#MODEL or recorded:FILE"
    )
    critic: str = setting("learned", says="What judges moves", choices=(*_CRITICS, "none"))
    threshold: float = setting(0.0, unit="s", says="Seconds of one service's fulfilment that a move must win", low=0.0)
    rule: str = setting("closed-form", says="How nodes divide what they have", choices=RULES)

    def controller(self, seed: int, scene: Scene) -> Controller:
        """Return a controller for one run.

        Parameters
        ----------
        seed : int
            Of an agent that draws.
        scene : Scene
            Not used.
        """
        agent: Agent
        if self.agent == "scripted":
            agent = Scripted()
        elif self.agent == "random":
            agent = AtRandom(seed)
        else:
            agent = Asked(opened(self.agent))
        return _Proposed(agent, None if self.critic == "none" else _CRITICS[self.critic](), self.threshold)


class _Proposed:
    def __init__(self, agent: Agent, fulfilment: Fulfilment | None, threshold: float) -> None:
        self._agent, self._fulfilment, self._threshold = agent, fulfilment, threshold

    def decide(self, view: View) -> list[Move]:
        found: list[Move] = []
        for move in self._agent.propose(view)[:MOST_MOVES]:
            try:
                after = view.after(move)
            except (BadValueError, UnknownNameError):
                continue
            if self._fulfilment is None or gain(view, move, self._fulfilment) > self._threshold:
                found.append(move)
                view = after
        return found


@dataclass(frozen=True, kw_only=True)
class GreedyMoves:
    """The best move of all, as a critic sees it, again and again while one wins: no agent at all."""

    critic: str = setting("fluid", says="What judges moves", choices=tuple(_CRITICS))
    threshold: float = setting(0.0, unit="s", says="Seconds of one service's fulfilment that a move must win", low=0.0)
    rule: str = setting("closed-form", says="How nodes divide what they have", choices=RULES)

    def controller(self, seed: int, scene: Scene) -> Controller:
        """Return a controller for one run.

        Parameters
        ----------
        seed : int
            Not used.
        scene : Scene
            Not used.
        """
        return _Greedy(_CRITICS[self.critic](), self.threshold)


class _Greedy:
    def __init__(self, fulfilment: Fulfilment, threshold: float) -> None:
        self._fulfilment, self._threshold = fulfilment, threshold

    def decide(self, view: View) -> list[Move]:
        found: list[Move] = []
        while len(found) < MOST_MOVES:
            now = value_of(view, self._fulfilment.of(view))
            wins = [(gain(view, move, self._fulfilment, now=now), move) for move in possible_moves(view)]
            best = max(wins, key=lambda each: each[0], default=None)
            if best is None or best[0] <= self._threshold:
                break
            found.append(best[1])
            view = view.after(best[1])
            view = _moving(view, best[1])
        return found


@dataclass(frozen=True, kw_only=True)
class LoadBalancing:
    """Moves an AI service from the node with most of its GPU in use to the one with least, if that evens them out."""

    gap: float = setting(0.2, says="Difference of use from which a service moves", low=0.0, high=100.0)
    when_late: float = setting(
        1.0, says="A service moves only where one fulfils less than this; 1: always", low=0.0, high=1.0
    )
    rule: str = setting("closed-form", says="How nodes divide what they have", choices=RULES)

    def controller(self, seed: int, scene: Scene) -> Controller:
        """Return a controller for one run.

        Parameters
        ----------
        seed : int
            Not used.
        scene : Scene
            Not used.
        """
        return _Balancing(self.gap, self.when_late)


class _Balancing:
    def __init__(self, gap: float, when_late: float) -> None:
        self._gap, self._when_late = gap, when_late

    def decide(self, view: View) -> list[Move]:
        worst = min((load.fulfilled for load, each in zip(view.loads, view.services, strict=True) if not each.radio),
                    default=1.0)  # fmt: skip
        if self._when_late < 1 and worst >= self._when_late:
            return []
        left, asked = per_node(view)
        use = asked[:, 0] / np.maximum(left[:, 0], 1e-6)
        full, empty = int(np.argmax(use)), int(np.argmin(use))
        if use[full] - use[empty] < self._gap:
            return []
        best, least = None, max(use[full], use[empty])
        for move in possible_moves(view):
            service = view.service(move.service)
            if view.placement[service] != full or view.node(move.to) != empty:
                continue
            work = view.loads[service].rate_per_s * view.loads[service].gpu_s
            after = max((asked[full, 0] - work) / left[full, 0], (asked[empty, 0] + work) / max(left[empty, 0], 1e-6))
            if after < least:
                best, least = move, after
        return [best] if best is not None else []


@dataclass(frozen=True, kw_only=True)
class Still:
    """Nothing ever moves."""

    rule: str = setting("closed-form", says="How nodes divide what they have", choices=RULES)

    def controller(self, seed: int, scene: Scene) -> Controller | None:
        """Return no controller.

        Parameters
        ----------
        seed : int
            Not used.
        scene : Scene
            Not used.
        """
        return None


def possible_moves(view: View) -> list[Move]:
    """Return all moves of AI services that can be made.

    Parameters
    ----------
    view : View
    """
    found = []
    free = [view.free_gb(node) for node in range(len(view.nodes))]
    for i, service in enumerate(view.services):
        if service.radio or view.moving[i]:
            continue
        for node, machine in enumerate(view.nodes):
            if node != view.placement[i] and service.memory_gb <= free[node]:
                found.append(Move(service=service.name, to=machine.name))
    return found


def _moving(view: View, move: Move) -> View:
    moved = view.service(move.service)
    return replace(view, moving=tuple(each or i == moved for i, each in enumerate(view.moving)))
