"""Agents that propose moves: by a script, at random, or a language model behind a port.  None of them is trusted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from wavetank.errors import BadValueError
from wavetank.live.language_model import LanguageModel, NoAnswerError
from wavetank.serving.sharing.critics import per_node
from wavetank.serving.sharing.interface import Move, View
from wavetank.sim.rng import stream

MOST_MOVES = 4
_LONGEST_ANSWER = 4_000


class Agent(Protocol):
    """Proposes moves."""

    def propose(self, view: View) -> Sequence[Move]:
        """Return moves, the most wanted first; names may be wrong and moves impossible.

        Parameters
        ----------
        view : View
        """
        ...


class Scripted:
    """Proposes to move the AI services that fulfil least, and the largest ones beside them, to nodes with most left.

    Parameters
    ----------
    below : float
        Services that fulfil less than this are to be helped.
    """

    def __init__(self, below: float = 0.97) -> None:
        self.below = below

    def propose(self, view: View) -> list[Move]:
        """See :class:`Agent`.

        Parameters
        ----------
        view : View
        """
        left, asked = per_node(view)
        slack = (left - asked).min(axis=1)
        ai = [i for i, each in enumerate(view.services) if not each.radio and not view.moving[i]]
        worst = sorted((i for i in ai if view.loads[i].fulfilled < self.below), key=lambda i: view.loads[i].fulfilled)
        found: list[Move] = []
        for i in worst:
            # The service itself may go, or the one beside it that takes most.
            beside = [j for j in ai if view.placement[j] == view.placement[i]]
            largest = max(beside, key=lambda j: view.loads[j].rate_per_s * view.loads[j].gpu_s)
            for service in dict.fromkeys((i, largest)):
                for node in np.argsort(-slack)[:2]:
                    fits = view.services[service].memory_gb <= view.free_gb(int(node))
                    if fits and int(node) != view.placement[service]:
                        found.append(Move(service=view.services[service].name, to=view.nodes[int(node)].name))
            if len(found) >= MOST_MOVES:
                break
        return found[:MOST_MOVES]


class AtRandom:
    """Proposes any AI service for any node.

    Parameters
    ----------
    seed : int
    """

    def __init__(self, seed: int = 0) -> None:
        self._draws = stream(seed, "random-agent")

    def propose(self, view: View) -> list[Move]:
        """See :class:`Agent`.

        Parameters
        ----------
        view : View
        """
        ai = [each.name for each in view.services if not each.radio]
        return [
            Move(service=ai[int(self._draws.integers(len(ai)))],
                 to=view.nodes[int(self._draws.integers(len(view.nodes)))].name)
            for _ in range(2)
        ]  # fmt: skip


class Asked:
    """A language model that is asked with a table and answers with JSON; what cannot be read proposes nothing.

    Parameters
    ----------
    model : LanguageModel

    Attributes
    ----------
    unread : int
        Answers that could not be read, or did not come.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.unread = 0

    def propose(self, view: View) -> list[Move]:
        """See :class:`Agent`.

        Parameters
        ----------
        view : View
        """
        try:
            return read_moves(self.model.ask(prompt_of(view)))
        except (NoAnswerError, BadValueError):
            self.unread += 1
            return []


def prompt_of(view: View) -> str:
    """Return the question for a language model: nodes, services, and the form of the answer.

    Parameters
    ----------
    view : View
    """
    left, asked = per_node(view)
    lines = [
        "You place services on the machines of a mobile network's edge. Moving a service stops it for its downtime.",
        "Propose at most 4 moves that raise the share of requests in time, or none.",
        'Answer with JSON alone: {"moves": [{"service": NAME, "to": NODE}]}',
        "",
        "node,gpu,gpu_left_by_radio,gpu_asked_by_ai,free_memory_gb",
    ]
    for i, node in enumerate(view.nodes):
        lines.append(f"{node.name},{node.gpu:g},{left[i, 0]:.2f},{asked[i, 0]:.2f},{view.free_gb(i):.0f}")
    lines += ["", "service,kind,node,requests_per_s,gpu_s,deadline_s,in_time,memory_gb,downtime_s"]
    for i, service in enumerate(view.services):
        load = view.loads[i]
        lines.append(
            f"{service.name},{'radio' if service.radio else 'ai'},{view.nodes[view.placement[i]].name},"
            f"{load.rate_per_s:.2f},{load.gpu_s:.4f},{service.deadline_s:.4g},{load.fulfilled:.3f},"
            f"{service.memory_gb:.1f},{service.downtime_s:.1f}"
        )
    return "\n".join(lines)


def read_moves(answer: str) -> list[Move]:
    """Return the moves of an answer.

    Parameters
    ----------
    answer : str
        JSON, alone or between other words.

    Raises
    ------
    BadValueError
        If there is no such JSON in it, or it has another form.
    """
    first, last = answer.find("{"), answer.rfind("}")
    if len(answer) > _LONGEST_ANSWER or first < 0 or last < first:
        raise BadValueError("The answer has no JSON object, or is too long.", given=answer[:80])
    try:
        found: Any = json.loads(answer[first : last + 1])
    except (ValueError, RecursionError) as error:
        raise BadValueError(f"The answer is no JSON: {error}", given=answer[:80]) from error
    moves = found.get("moves") if isinstance(found, dict) else None
    if not isinstance(moves, list):
        raise BadValueError("The answer has no list of moves.", given=answer[:80])
    read = []
    for each in moves[:MOST_MOVES]:
        service, to = (each.get("service"), each.get("to")) if isinstance(each, dict) else (None, None)
        if not isinstance(service, str) or not isinstance(to, str):
            raise BadValueError("A move names a service and a node.", given=str(each)[:80])
        read.append(Move(service=service, to=to))
    return read
