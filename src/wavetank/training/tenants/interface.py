"""What a service of many tenants is asked, what it decides, and the machine that it decides for.

Time is a whole number of picoseconds, and all constants of the machine are whole numbers, so that a simulation in
closed form and one that goes token by token agree to the last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError

PS = 10**12
NS_PS = 1000
LONGEST_PS = 1 << 60

Ints = NDArray[np.int64]


class Rules(NamedTuple):
    """Who may generate and train when.

    Attributes
    ----------
    s_max : int
        How many updates old an answer may be when it is trained on; 0 is on-policy training.
    at_once : int
        Tasks that run at the same time, the others wait in order; 0 for all.
    adapters : int
        Distinct adapters that a batch of the generating engine may hold; 0 for any number.
    barrier : bool
        Whether all tasks generate, then all train, step by step.
    divided : bool
        Whether every task has its own part of the accelerators, all equal, instead of sharing them.
    """

    s_max: int = 0
    at_once: int = 0
    adapters: int = 0
    barrier: bool = False
    divided: bool = False


class Tenancy(Protocol):
    """A way to serve tenants.

    rules() returns its :class:`Rules`.
    """

    def rules(self) -> Rules: ...


def check_rules(rules: Rules) -> None:
    """Refuse rules that contradict each other.

    Raises
    ------
    BadValueError
    """
    if min(rules.s_max, rules.at_once, rules.adapters) < 0:
        raise BadValueError("These rules count below 0.", given=str(rules), allowed="all from 0")
    if rules.barrier and (rules.s_max or rules.at_once or rules.divided):
        raise BadValueError(
            "Tasks in lock-step all run at once, on shared accelerators, without old answers.", given=str(rules),
            allowed="barrier with s_max=0, at_once=0, divided=False",
        )  # fmt: skip
    if rules.divided and rules.at_once:
        raise BadValueError("Tasks with accelerators of their own all run at once.", given=str(rules),
                            allowed="divided with at_once=0")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The engines: what a generated token and an update take.

    A step of the generating engine gives one token to every running answer.  It takes ``step_ns``, and
    ``sequence_ns`` for every answer and ``kv_ns`` for every token that they hold, each divided among the accelerators;
    all that is by ``adapter_permille`` thousandths longer for every adapter in the batch beyond the first.

    Parameters
    ----------
    generating, training : float
        Accelerators of each engine.  Less than one is a part of one, slower in proportion.
    step_ns, sequence_ns, kv_ns : int
        On one accelerator, ns.
    adapter_permille : int
    load_ps : int
        Loading an adapter that was updated, ps; the engine waits.
    train_token_ps : int
        Training on one token, on one accelerator, ps.
    swap_ps : int
        When the trainer turns to another task, ps.
    most_running : int
        Answers that one accelerator generates at the same time.
    kv_tokens : int
        Tokens that one accelerator holds.
    read_token_ps : int
        Reading one token of what comes before a turn, on one accelerator, ps; the engine waits.  0: the prefix of an
        answer is kept while its tool works.
    """

    generating: float = 4.0
    training: float = 4.0
    step_ns: int = 20_000_000
    sequence_ns: int = 100_000
    kv_ns: int = 400
    adapter_permille: int = 20
    load_ps: int = 4_194_304_000
    train_token_ps: int = 417_000_000
    swap_ps: int = PS
    most_running: int = 256
    kv_tokens: int = 400_000
    read_token_ps: int = 0

    def __post_init__(self) -> None:
        for name in ("generating", "training"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadValueError("An engine needs accelerators.", given=getattr(self, name),
                                    allowed="more than 0", where=name)  # fmt: skip
        for name in ("step_ns", "train_token_ps", "most_running", "kv_tokens"):
            if getattr(self, name) < 1:
                raise BadValueError("This is no figure of a machine.", given=getattr(self, name),
                                    allowed="a whole number from 1", where=name)  # fmt: skip
        for name in ("sequence_ns", "kv_ns", "adapter_permille", "load_ps", "swap_ps", "read_token_ps"):
            if getattr(self, name) < 0:
                raise BadValueError("This is no figure of a machine.", given=getattr(self, name),
                                    allowed="a whole number from 0", where=name)  # fmt: skip

    @property
    def accelerators(self) -> float:
        """Accelerators of both engines."""
        return self.generating + self.training

    def constants(self) -> Ints:
        """Return what the simulators read, in the order of :class:`Constants`."""
        many = max(self.generating, 1.0)
        slow = 1.0 / min(self.generating, 1.0)
        return np.array([
            round(self.step_ns * slow), round(self.sequence_ns * slow / many), round(self.kv_ns * slow / many),
            self.adapter_permille, self.load_ps, max(1, round(self.train_token_ps / self.training)), self.swap_ps,
            max(1, int(self.most_running * self.generating)), max(1, int(self.kv_tokens * self.generating)),
            round(self.read_token_ps / self.generating),
        ])  # fmt: skip


class Constants(NamedTuple):
    """What :meth:`Machine.constants` holds, in its order; times of a step in ns, others in ps."""

    step_ns: int
    sequence_ns: int
    kv_ns: int
    adapter_permille: int
    load_ps: int
    train_token_ps: int
    swap_ps: int
    most_running: int
    kv_tokens: int
    read_token_ps: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Tenants:
    """What all tasks generate: answers in turns, with the delay of a tool after each turn.

    Answers of a task are contiguous, in the order in which they are asked for; ``group`` of them share a prompt, and
    ``groups`` groups make one update.

    Parameters
    ----------
    first_answer : ndarray of int64, shape (tasks + 1,)
        Where the answers of each task begin.
    first_turn : ndarray of int64, shape (answers + 1,)
        Where the turns of each answer begin.
    prompt_tokens : ndarray of int64, shape (answers,)
    turn_tokens : ndarray of int64, shape (turns,)
        Tokens generated in each turn.
    delay_ps : ndarray of int64, shape (turns,)
        From the end of a turn until its tool has answered, ps; that of the last turn is the judge's.
    groups, group : int
    weight : ndarray of int64, shape (tasks,)
        Share of the generating engine, and urgency at the trainer, relative to the others'.
    tool_workers : ndarray of int64, shape (tasks,)
        Tools of a task that run at the same time.
    kv_quota : ndarray of int64, shape (tasks,)
        Tokens that a task may hold in the generating engine.
    """

    first_answer: Ints
    first_turn: Ints
    prompt_tokens: Ints
    turn_tokens: Ints
    delay_ps: Ints
    groups: int
    group: int
    weight: Ints
    tool_workers: Ints
    kv_quota: Ints

    def __post_init__(self) -> None:
        tasks, answers = len(self.first_answer) - 1, len(self.first_turn) - 1
        batch = self.groups * self.group
        if tasks < 1 or batch < 1 or self.first_answer[0] != 0 or self.first_answer[-1] != answers:
            raise BadValueError("These are no tasks.", given=f"{tasks} tasks of batches of {batch}",
                                allowed="one task or more, whose answers are all answers")  # fmt: skip
        sizes = np.diff(self.first_answer)
        if (sizes < batch).any() or (sizes % batch).any():
            raise BadValueError("A task has whole batches of answers.", given=sizes.tolist(),
                                allowed=f"multiples of {batch}")  # fmt: skip
        if (
            self.first_turn[0] != 0
            or self.first_turn[-1] != len(self.turn_tokens)
            or (np.diff(self.first_turn) < 1).any()
        ):
            raise BadValueError("An answer has one turn or more.", given=f"{len(self.turn_tokens)} turns",
                                allowed="first_turn that rises from 0 to their number")  # fmt: skip
        for name, size, low in (
            ("prompt_tokens", answers, 0), ("turn_tokens", len(self.turn_tokens), 1),
            ("delay_ps", len(self.turn_tokens), 0), ("weight", tasks, 1), ("tool_workers", tasks, 1),
            ("kv_quota", tasks, 1),
        ):  # fmt: skip
            values = getattr(self, name)
            if values.shape != (size,) or values.dtype != np.int64 or values.min() < low or values.max() > LONGEST_PS:
                raise BadValueError("This describes no tasks.", given=f"{values.dtype} {values.shape}", where=name,
                                    allowed=f"int64 of shape ({size},), from {low}")  # fmt: skip

    @property
    def tasks(self) -> int:
        """How many tasks there are."""
        return len(self.first_answer) - 1

    @property
    def updates(self) -> Ints:
        """Updates of each task."""
        return np.diff(self.first_answer) // (self.groups * self.group)

    @property
    def answer_tokens(self) -> Ints:
        """Tokens of each answer with its prompt: what the trainer reads."""
        return self.prompt_tokens + np.add.reduceat(self.turn_tokens, self.first_turn[:-1])

    def one(self, task: int) -> Tenants:
        """Return one task by itself.

        Parameters
        ----------
        task : int
        """
        low, high = self.first_answer[task], self.first_answer[task + 1]
        begin, end = self.first_turn[low], self.first_turn[high]
        return Tenants(
            first_answer=np.array([0, high - low]), first_turn=self.first_turn[low : high + 1] - begin,
            prompt_tokens=self.prompt_tokens[low:high], turn_tokens=self.turn_tokens[begin:end],
            delay_ps=self.delay_ps[begin:end], groups=self.groups, group=self.group,
            weight=self.weight[task : task + 1], tool_workers=self.tool_workers[task : task + 1],
            kv_quota=self.kv_quota[task : task + 1],
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a simulation found.

    Attributes
    ----------
    time_ps : int
        Until the last update.
    generating_ps, training_ps : int
        For which the engines were busy.
    generating_share, training_share : float
        Busy accelerator time of each engine over its accelerators' time.
    done_ps : tuple of int
        Last update of each task.
    stale : tuple of int
        Answers trained on, by how many updates old they were.
    adapters : float
        Distinct adapters in a batch, mean over the engine's steps.
    most_running, most_kv_tokens : int
        Answers in a batch, and tokens held, at most.
    most_tools : tuple of int
        Tools of each task that ran at the same time, at most.
    steps : int
        Of the generating engine.
    """

    time_ps: int
    generating_ps: int
    training_ps: int
    generating_share: float
    training_share: float
    done_ps: tuple[int, ...]
    stale: tuple[int, ...]
    adapters: float
    most_running: int
    most_kv_tokens: int
    most_tools: tuple[int, ...]
    steps: int


def utilisation(outcome: Outcome, machine: Machine) -> float:
    """Return the busy time of both engines over the time of the run, weighted by their accelerators.

    Parameters
    ----------
    outcome : Outcome
    machine : Machine
    """
    busy = outcome.generating_share * machine.generating + outcome.training_share * machine.training
    return busy / machine.accelerators
