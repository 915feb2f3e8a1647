"""Faults of real ranks, and what became of the answers: every token is held against that of one process alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from wavetank.errors import WavetankError
from wavetank.live.rank_process import Rank
from wavetank.live.ranks import Ranks
from wavetank.serving.rank_failures.instance import Instance
from wavetank.serving.rank_failures.rank_program import RankProgram, Served, memory_of
from wavetank.serving.rank_failures.small_model import VOCABULARY, Shape, SmallModel, alone
from wavetank.sim.rng import stream
from wavetank.study.study import turned

# Where a rank may die: while tokens are on their way to experts, in them, while outputs come back, and in a repair.
IN_STEPS = ("placed", "experts", "computed", "done")
IN_REPAIRS = ("letter", "agree", "apply", "repair", "repaired")
IN_REJOINS = ("load", "join")
POINTS = IN_STEPS + IN_REPAIRS + IN_REJOINS
_LIMIT_S = 60.0
SIDES = ("table", "constant", "fixed")


@dataclass
class Outcome:
    """What became of an instance under faults.

    Parameters
    ----------
    kills : int
        Processes that died.
    at : mapping of str to int
        How many were planned at each point.
    answers, wrong, lost : int
        Requests; those with a token that one process does not say; those without all tokens.
    copied : int
        Experts that were loaded by survivors.
    pause_s : list of float
        After each fault, until a token comes that was not on its way yet.
    whole_s : list of float
        After each fault, until every request has had one more token.
    moved : int
        Tables whose place in memory changed.
    hung : int
        Times that answers did not end in time.
    """

    kills: int = 0
    at: dict[str, int] = field(default_factory=dict)
    answers: int = 0
    wrong: int = 0
    lost: int = 0
    copied: int = 0
    pause_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    moved: int = 0
    hung: int = 0


@lru_cache(maxsize=8)
def _model(shape: Shape) -> SmallModel:
    return SmallModel(shape)


@lru_cache(maxsize=4096)
def expected(shape: Shape, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return what one process says."""
    return tuple(alone(_model(shape), prompt, count))


def prompts(seed: int, count: int) -> list[tuple[int, ...]]:
    """Return some prompts of one to eight tokens.

    Parameters
    ----------
    seed, count : int
    """
    draws = stream(seed, "prompts")
    return [tuple(draws.integers(0, VOCABULARY, size=int(draws.integers(1, 9))).tolist()) for _ in range(count)]


def judged(instance: Instance, asked: Sequence[Any], outcome: Outcome) -> None:
    """Count answers that are wrong or not whole, and forget them all.

    Parameters
    ----------
    instance : Instance
    asked : sequence of Answer
    outcome : Outcome
    """
    for answer in asked:
        want = expected(instance.shape, tuple(answer.prompt), answer.count)
        outcome.answers += 1
        outcome.lost += len(answer.said) < answer.count
        outcome.wrong += tuple(answer.said) != want[: len(answer.said)]
        instance.answers.pop(answer.number, None)


def one_fault(
    settings: Mapping[str, Any], *, shape: Shape, seed: int, failed: int = 1, requests: int = 8, count: int = 120
) -> Outcome:  # fmt: skip
    """Kill some ranks of an instance at once while it serves, and measure how long it says nothing.

    Parameters
    ----------
    settings : mapping
        Of :class:`~wavetank.serving.rank_failures.instance.Instance`.
    shape : Shape
    seed : int
        Draws who dies, and the prompts.
    failed : int
        How many ranks, next to each other.
    requests, count : int
        Requests, and tokens of each answer.
    """
    outcome = Outcome()
    with Instance(shape, **settings) as instance:
        asked = [instance.submit(prompt, count) for prompt in prompts(seed, requests)]
        if not instance.pump(_LIMIT_S, lambda: all(len(each.said) >= count // 4 for each in asked)):
            raise WavetankError("The instance did not begin to answer.", given=f"{_LIMIT_S:g} s")
        first = int(stream(seed, "victim").integers(instance.size))
        died_s = time.monotonic()
        for number in range(failed):
            instance.strike((first + number) % instance.size)
        outcome.kills += failed
        before = len(instance.changes)
        if not instance.pump(_LIMIT_S, lambda: all(each.done for each in asked)):
            outcome.hung += 1
        # What was said before the fault can come after it; what is said in a new epoch cannot.
        begun_s = [each.at_s for each in instance.changes[before:]]
        if begun_s:
            said = [[moment for moment in each.said_s if moment > min(begun_s)] for each in asked]
            outcome.pause_s.append(min(each[0] for each in said if each) - died_s)
            outcome.whole_s.append(max(each[0] for each in said if each) - died_s)
        outcome.copied += max((len(each.sources) for each in instance.changes[before:]), default=0)
        judged(instance, asked, outcome)
    return outcome


def many_faults(
    settings: Mapping[str, Any], *, shape: Shape, seed: int, kills: int, requests: int = 4, count: int = 24,
    limit_s: float = 3600.0,
) -> Outcome:  # fmt: skip
    """Kill ranks at drawn points again and again, with a second fault in most repairs, until enough have died.

    Parameters
    ----------
    settings, shape, seed, requests, count
        As for :func:`one_fault`.
    kills : int
        Deaths of processes at least.
    limit_s : float
        When to give up.
    """
    outcome, draws, stop = Outcome(), stream(seed, "kills"), time.monotonic() + limit_s
    with Instance(shape, **settings) as instance:
        everybody = tuple(range(instance.size))
        places: dict[tuple[int, int, int], tuple[int, ...]] = {}
        turn = 0
        while outcome.kills < kills and time.monotonic() < stop:
            if not instance.pump(_LIMIT_S, lambda: instance.members() == everybody):
                outcome.hung += 1
                break
            asked = [instance.submit(prompt, count) for prompt in prompts(seed * 100003 + turn, requests)]
            victims = draws.permutation(instance.size)[: int(draws.integers(1, instance.size))].tolist()
            for place, victim in enumerate(victims):
                # The first dies in a step; the others then, or in what its death makes necessary.
                point = str(draws.choice(IN_STEPS if place == 0 else IN_STEPS + IN_REPAIRS))
                outcome.at[point] = outcome.at.get(point, 0) + 1
                instance.strike(victim, point)
            if draws.random() < 0.3:
                point = str(draws.choice(IN_REJOINS))
                outcome.at[point] = outcome.at.get(point, 0) + 1
                instance.replacement_faults.append(point)
            if not instance.pump(_LIMIT_S, lambda asked=asked: all(each.done for each in asked)):  # type: ignore[misc]
                outcome.hung += 1
            judged(instance, asked, outcome)
            outcome.kills = instance.deaths
            for change in instance.changes:
                outcome.copied += len(change.sources) if change.rank == change.members[0] else 0
                key = (change.start, change.rank, change.incarnation)
                outcome.moved += places.setdefault(key, change.addresses) != change.addresses
            instance.changes = instance.changes[-2 * instance.size :]
            turn += 1
    return outcome


def sides_here(rank: Rank, shape: dict[str, int], rounds: int, steps: int, requests: int, **settings: Any) -> Any:
    """Make steps of three builds in turns; return the seconds of each block.

    One has tables, one constants in their place, and one is fixed: with constants, it looks for no fault either.

    Parameters
    ----------
    rank : Rank
    shape : dict
    rounds, steps : int
        Rounds after one that is not timed; steps of a block.
    requests : int
        Of this rank.
    **settings
        Of a rank's program.
    """
    program = RankProgram(rank, Shape(**shape), **settings, constant=True)
    program.begin()
    program.settle()
    constant = program.constant
    for number, prompt in enumerate(prompts(rank.number, requests)):
        program.requests.append(Served(number, prompt, [], 10**9, program.model))
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(rounds + 1):
        for side in turned(list(SIDES), turn):
            program.fixed = side == "fixed"
            program.constant = None if side == "table" else constant
            begin_s = time.perf_counter()
            for _ in range(steps):
                program.step()
            if turn:
                found[side].append((time.perf_counter() - begin_s) / steps)
    return found


def step_times(
    shape: Shape, *, ranks: int, rounds: int, steps: int, requests: int, replicas: int
) -> dict[str, float]:  # fmt: skip
    """Return what a step takes with tables, with constants, and with fixed members: the median over rounds.

    Parameters
    ----------
    shape : Shape
    ranks, rounds, steps, requests, replicas : int
        Requests are those of each rank.
    """
    import tempfile
    from pathlib import Path

    from wavetank.serving.rank_failures.small_model import expert_weights

    slots = shape.all_experts
    with tempfile.TemporaryDirectory(prefix="wavetank-steps-") as folder:
        for expert in range(shape.all_experts):
            np.save(Path(folder) / f"expert-{expert}.npy", expert_weights(shape, expert))
        arguments = {
            "shape": {name: getattr(shape, name) for name in shape.__dataclass_fields__}, "rounds": rounds,
            "steps": steps, "requests": requests, "slots": slots, "tokens": requests, "replicas": replicas,
            "repair": "experts", "host": False, "disk": True, "timeout_s": 60.0, "incarnation": 0, "folder": folder,
        }  # fmt: skip
        size = memory_of(shape, ranks, slots, requests)
        with Ranks(sides_here, ranks, arguments=arguments, shared_bytes=size) as group:
            every = group.values(300.0)
    return {
        side: statistics.median(max(each[side][turn] for each in every) for turn in range(rounds))
        for side in SIDES
    }
