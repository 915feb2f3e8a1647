"""The same service, token by token and without any compiled code: what the fast simulation is held against.

Nothing is clever here.  Every step of the generating engine gives each running answer one token and is added up by
itself; what may happen next is searched for among all that is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wavetank.training.tenants.interface import Constants, Machine, Outcome, Rules, Tenants, check_rules
from wavetank.training.tenants.simulate import check_fits, outcome_of


@dataclass(eq=False)
class _Answer:
    number: int
    group: _Group
    prompt: int
    turns: list[tuple[int, int]]
    done: int = 0
    given: int = 0  # tokens of the turn that runs

    @property
    def before(self) -> int:
        """Tokens that it held before the turn."""
        return self.prompt + sum(tokens for tokens, _ in self.turns[: self.done])


@dataclass(eq=False)
class _Group:
    task: _Task
    version: int
    answers: list[_Answer] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return all(each.done == len(each.turns) for each in self.answers)

    @property
    def tokens(self) -> int:
        return sum(each.before for each in self.answers)


@dataclass(eq=False)
class _Task:
    number: int
    updates: int
    unasked: list[list[_Answer]]
    version: int = 0
    asked: list[_Group] = field(default_factory=list)  # and not yet trained on
    runnable: list[_Answer] = field(default_factory=list)
    waiting: list[_Answer] = field(default_factory=list)
    tools: list[tuple[int, _Answer]] = field(default_factory=list)
    ready_ps: int | None = None
    served: int = 0
    cold: bool = True
    done_ps: int | None = None
    most_tools: int = 0


class Reference:
    """One run.

    Parameters
    ----------
    tenants : Tenants
    machine : Machine
    rules : Rules
        Not divided.

    Attributes
    ----------
    idle_with_work_ps : int
        For which the generating engine stood still while an answer could have run; 0 if it conserves work.
    """

    def __init__(self, tenants: Tenants, machine: Machine, rules: Rules) -> None:
        check_rules(rules)
        self.tenants, self.rules = tenants, rules
        self.machine = Constants(*(int(each) for each in machine.constants()))
        check_fits(tenants, self.machine)
        self.tasks = [self._task(number) for number in range(tenants.tasks)]
        self.now = self.busy = self.steps = self.adapter_steps = self.training_ps = 0
        self.most_running = self.most_held = self.idle_with_work_ps = 0
        self.running: list[_Answer] = []
        self.trains: _Task | None = None
        self.train_end = 0
        self.trained_last: _Task | None = None
        self.train_phase = False
        self.stale = np.zeros(rules.s_max + 1, np.int64)

    def _task(self, number: int) -> _Task:
        given = self.tenants
        answers = []
        for answer in range(given.first_answer[number], given.first_answer[number + 1]):
            turns = range(given.first_turn[answer], given.first_turn[answer + 1])
            answers.append((answer, [(int(given.turn_tokens[turn]), int(given.delay_ps[turn])) for turn in turns]))
        unasked: list[list[_Answer]] = []
        task = _Task(number, int(given.updates[number]), unasked)
        for first in range(0, len(answers), given.group):
            group = _Group(task, 0)
            group.answers = [
                _Answer(answer, group, int(given.prompt_tokens[answer]), turns)
                for answer, turns in answers[first : first + given.group]
            ]
            unasked.append(group.answers)
        return task

    def run(self) -> Outcome:
        """Return what the fast simulation returns."""
        for task in self.tasks[: self.rules.at_once or None]:
            self._ask(task)
        while any(task.done_ps is None for task in self.tasks):
            self._events()
            loads, read = self._admit()
            if all(task.done_ps is not None for task in self.tasks):
                break
            waits_ps = loads * self.machine.load_ps + read * self.machine.read_token_ps
            if loads or waits_ps:
                self.now += waits_ps
                self.busy += waits_ps
            elif self.running:
                self._step()
            else:
                self._wait()
        done = np.array([task.done_ps for task in self.tasks])
        most_tools = np.array([task.most_tools for task in self.tasks])
        found = np.array([self.busy, self.steps, self.adapter_steps, self.most_running, self.most_held])
        return outcome_of(done, self.training_ps, self.stale, most_tools, found)

    def _ask(self, task: _Task) -> None:
        most = min(task.version + self.rules.s_max + 1, task.updates) * self.tenants.groups
        while task.updates * self.tenants.groups - len(task.unasked) < most:
            answers = task.unasked.pop(0)
            group = answers[0].group
            group.version = task.version
            task.asked.append(group)
            task.runnable += answers

    def _events(self) -> None:
        """Let tools answer and the trainer end, in order of time; of equal times tools come first, then by number."""
        while True:
            ends = [(end, answer.number, task) for task in self.tasks for end, answer in task.tools]
            tool = min(ends, key=lambda each: each[:2]) if ends else None
            train = self.train_end if self.trains else None
            if tool and tool[0] <= self.now and (train is None or tool[0] <= train):
                self._tool(*tool)
            elif train is not None and train <= self.now:
                self._trained(train)
            else:
                return

    def _tool(self, now: int, number: int, task: _Task) -> None:
        (answer,) = (each for _, each in task.tools if each.number == number)
        task.tools.remove((now, answer))
        if task.waiting:
            self._use(task, task.waiting.pop(0), now)
        answer.done += 1
        answer.given = 0
        if answer.done < len(answer.turns):
            task.runnable.append(answer)
        elif answer.group.whole:
            self._look(task, now)
            self._train(now)

    def _use(self, task: _Task, answer: _Answer, now: int) -> None:
        task.tools.append((now + answer.turns[answer.done][1], answer))
        task.most_tools = max(task.most_tools, len(task.tools))

    def _look(self, task: _Task, now: int) -> None:
        size = self.tenants.groups
        batch = [group for group in task.asked if group.whole][:size]
        left = [group for group in task.asked if group not in batch]
        for version in {group.version for group in left}:
            updates = version + self.rules.s_max - task.version
            if sum(group.version <= version for group in left) > updates * size:
                return
        if len(batch) == size and self.trains is not task and task.ready_ps is None:
            task.ready_ps = now

    def _train(self, now: int) -> None:
        ready = [task for task in self.tasks if task.ready_ps is not None]
        if self.trains is not None or not ready:
            return
        if self.rules.barrier:
            self.train_phase |= len(ready) == sum(task.done_ps is None for task in self.tasks)
            if not self.train_phase:
                return
        weight = self.tenants.weight
        task = max(ready, key=lambda one: ((now - (one.ready_ps or 0)) // 10**6 * int(weight[one.number]), -one.number))
        batch = [group for group in task.asked if group.whole][: self.tenants.groups]
        for group in batch:
            task.asked.remove(group)
            self.stale[task.version - group.version] += self.tenants.group
        took = sum(group.tokens for group in batch) * self.machine.train_token_ps
        if self.trained_last is not task:
            took += self.machine.swap_ps
        task.ready_ps, self.trains, self.trained_last = None, task, task
        self.train_end = now + took
        self.training_ps += took

    def _trained(self, now: int) -> None:
        task, self.trains = self.trains, None
        if task is None:
            return
        task.version += 1
        task.cold = True
        if task.version == task.updates:
            task.done_ps = now
            new = [each for each in self.tasks if each.version == 0 and not each.asked]
            if self.rules.at_once and new:
                self._ask(new[0])
        elif not self.rules.barrier:
            self._ask(task)
            self._look(task, now)
        if self.rules.barrier and all(each.ready_ps is None for each in self.tasks):
            self.train_phase = False
            for each in self.tasks:
                self._ask(each)
        self._train(now)

    def _held(self, task: _Task | None = None) -> int:
        return sum(
            each.before + each.turns[each.done][0] for each in self.running if task is None or each.group.task is task
        )

    def _next(self) -> _Task | None:
        there = {each.group.task.number for each in self.running}
        free = [
            task
            for task in self.tasks
            if task.runnable and (task.number in there or len(there) < (self.rules.adapters or len(self.tasks)))
        ]
        fits = []
        for task in free:
            answer = min(task.runnable, key=lambda each: each.number)
            if self._held(task) + answer.before + answer.turns[answer.done][0] <= self.tenants.kv_quota[task.number]:
                fits.append(task)
        # Least served for its weight, in whole numbers: a / x < b / y where a * y < b * x.
        best = None
        for task in fits:
            weight = self.tenants.weight
            if best is None or task.served * weight[best.number] < best.served * weight[task.number]:
                best = task
        return best

    def _admit(self) -> tuple[int, int]:
        loads = read = 0
        while len(self.running) < self.machine.most_running:
            task = self._next()
            if task is None:
                break
            answer = min(task.runnable, key=lambda each: each.number)
            length = answer.turns[answer.done][0]
            if self._held() + answer.before + length > self.machine.kv_tokens:
                break
            task.runnable.remove(answer)
            task.served += length
            loads += task.cold
            task.cold = False
            self.running.append(answer)
            self.most_running = max(self.most_running, len(self.running))
            self.most_held = max(self.most_held, self._held())
            read += answer.before
        return loads, read

    def _step(self) -> None:
        adapters = len({each.group.task.number for each in self.running})
        held = sum(each.before + each.given for each in self.running)
        m = self.machine
        plain_ns = m.step_ns + m.sequence_ns * len(self.running) + m.kv_ns * held
        took = plain_ns * (1000 + m.adapter_permille * (adapters - 1))
        self.now += took
        self.busy += took
        self.steps += 1
        self.adapter_steps += adapters
        for answer in self.running:
            answer.given += 1
        self._events()
        for answer in sorted(self.running, key=lambda each: each.number):
            if answer.given == answer.turns[answer.done][0]:
                self.running.remove(answer)
                task = answer.group.task
                if len(task.tools) < self.tenants.tool_workers[task.number]:
                    self._use(task, answer, self.now)
                else:
                    task.waiting.append(answer)

    def _wait(self) -> None:
        ends = [end for task in self.tasks for end, _ in task.tools]
        until = min(ends + ([self.train_end] if self.trains else []))
        if any(task.runnable for task in self.tasks):
            self.idle_with_work_ps += until - self.now
        self.now = until
