"""A service of many tenants under given rules, simulated exactly: the generating engine, tools and the trainer.

*Generating.*  Every step gives each running answer one token, and answers join and leave at the ends of steps.  Between
two events the batch stays as it is, and m steps with R answers that hold C tokens take
``(m * (step + sequence * R + kv * C) + kv * R * m * (m - 1) / 2) * (1 + share * (adapters - 1))``: whole numbers, so
that it does not matter where a span is cut.  Turns are admitted from the task that was served least for its weight,
the oldest answer first; what does not fit holds up the others.  Where prefixes are not kept, the engine first reads
what comes before the turns that it admits.

*Tools.*  After a turn a tool of the task works for the turn's delay, or the answer waits for one, first come first
served.  Tokens of tools, and the prefix of an answer that waits, take no place meanwhile.

*Training.*  A task with version v may have asked for ``(v + s_max + 1) * groups`` groups.  An update takes the oldest
whole groups, when there are enough and what it leaves behind still fits into the updates for which it is young enough.
The trainer takes the ready task with the largest product of wait and weight.

:mod:`wavetank.training.tenants.reference` does the same token by token, in plain Python.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from wavetank.errors import BadValueError, WavetankError
from wavetank.sim.borrowed import BORROWED
from wavetank.sim.compiled import compiled
from wavetank.training.tenants.interface import (
    LONGEST_PS,
    Constants,
    Ints,
    Machine,
    Outcome,
    Rules,
    Tenants,
    check_rules,
)

_NEVER = (1 << 63) - 1
_LATEST_PS = 1 << 61
_NOBODY = -1


class _State(NamedTuple):
    """By task, then by group (version, answers left, used), by answer, what is under way, and single numbers."""

    version: Ints
    issued: Ints
    oldest: Ints
    whole: Ints
    ready_ps: Ints
    runnable: Ints  # (tasks, places): a heap of answers
    runnable_size: Ints
    waiting: Ints  # (tasks, places): a ring of answers that wait for a tool
    waiting_first: Ints
    waiting_size: Ints
    tools: Ints
    served: Ints
    running: Ints
    held: Ints
    cold: Ints
    done_ps: Ints
    most_tools: Ints
    group_version: Ints
    group_left: Ints
    group_used: Ints
    turn: Ints
    context: Ints
    tool_ps: Ints  # a heap of when tools answer, with
    tool_answer: Ints  # the answers that wait for them
    leaves: Ints  # a heap of the steps after which turns end, with answers in the lower bits
    one: Ints


# Places of single numbers.
_TRAINS, _TRAIN_END, _LAST_TRAINED, _TRAIN_PHASE, _NEXT_TASK, _FINISHED, _TRAINING_PS, _TOOLS = range(8)
_ANSWER_BITS = 28


@njit(forceinline=True, **BORROWED)
def _push(heap: Ints, size: int, value: int) -> None:
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if heap[above] <= value:
            break
        heap[place] = heap[above]
        place = above
    heap[place] = value


@njit(forceinline=True, **BORROWED)
def _pop(heap: Ints, size: int) -> int:
    """Take the least of ``size`` values away and return it."""
    least, value, place = heap[0], heap[size - 1], 0
    while True:
        below = 2 * place + 1
        if below >= size - 1:
            break
        if below + 1 < size - 1 and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= value:
            break
        heap[place] = heap[below]
        place = below
    heap[place] = value
    return int(least)


@njit(forceinline=True, **BORROWED)
def _push_tool(s: _State, end_ps: int, answer: int) -> None:
    times, answers, place = s.tool_ps, s.tool_answer, s.one[_TOOLS]
    s.one[_TOOLS] += 1
    while place > 0:
        above = (place - 1) >> 1
        if times[above] < end_ps or (times[above] == end_ps and answers[above] < answer):
            break
        times[place], answers[place] = times[above], answers[above]
        place = above
    times[place], answers[place] = end_ps, answer


@njit(forceinline=True, **BORROWED)
def _pop_tool(s: _State) -> None:
    """Take the first tool away."""
    times, answers = s.tool_ps, s.tool_answer
    s.one[_TOOLS] -= 1
    size = s.one[_TOOLS]
    end_ps, answer, place = times[size], answers[size], 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (
            times[other] < times[below] or (times[other] == times[below] and answers[other] < answers[below])
        ):
            below = other
        if times[below] > end_ps or (times[below] == end_ps and answers[below] > answer):
            break
        times[place], answers[place] = times[below], answers[below]
        place = below
    times[place], answers[place] = end_ps, answer


@njit(forceinline=True, **BORROWED)
def _issue(s: _State, given: Any, task: int) -> None:
    """Ask for as many groups as the age of answers allows."""
    batch = given.groups * given.group
    first = given.first_answer[task]
    updates = (given.first_answer[task + 1] - first) // batch
    most = min(s.version[task] + given.rules.s_max + 1, updates) * given.groups
    while s.issued[task] < most:
        place = first // given.group + s.issued[task]
        s.group_version[place] = s.version[task]
        s.group_left[place] = given.group
        for answer in range(place * given.group, (place + 1) * given.group):
            s.turn[answer] = given.first_turn[answer]
            s.context[answer] = given.prompt_tokens[answer]
            _push(s.runnable[task], s.runnable_size[task], answer)
            s.runnable_size[task] += 1
        s.issued[task] += 1


@njit(forceinline=True, **BORROWED)
def _see_whether_ready(s: _State, given: Any, task: int, now_ps: int) -> None:
    if s.one[_TRAINS] == task or s.ready_ps[task] != _NEVER or s.whole[task] < given.groups:
        return
    base = given.first_answer[task] // given.group
    version, place, last = s.version[task], base + s.oldest[task], base + s.issued[task]
    left, taken = 0, 0
    while place < last:
        if not s.group_used[place]:
            left += 1
            if s.group_left[place] == 0 and taken < given.groups:
                taken += 1
                left -= 1
        # What is left of this version and older ones must fit into the updates that may still take it.
        updates = s.group_version[place] + given.rules.s_max - version
        if left > updates * given.groups and (place + 1 == last or s.group_version[place + 1] > s.group_version[place]):
            return
        place += 1
    s.ready_ps[task] = now_ps


@njit(forceinline=True, **BORROWED)
def _train(s: _State, given: Any, now_ps: int, stale: Ints) -> None:
    """Let an idle trainer begin with the task that has waited longest for its weight."""
    tasks = given.first_answer.size - 1
    if s.one[_TRAINS] != _NOBODY:
        return
    best, most = _NOBODY, -1
    ready = 0
    for task in range(tasks):
        if s.ready_ps[task] != _NEVER:
            ready += 1
            wait = (now_ps - s.ready_ps[task]) // 1_000_000 * given.weight[task]
            if wait > most:
                best, most = task, wait
    if given.rules.barrier and ready == tasks - s.one[_FINISHED]:
        s.one[_TRAIN_PHASE] = 1
    if best == _NOBODY or (given.rules.barrier and not s.one[_TRAIN_PHASE]):
        return
    base = given.first_answer[best] // given.group
    taken, tokens, place = 0, 0, base + s.oldest[best]
    while taken < given.groups:
        if s.group_left[place] == 0 and not s.group_used[place]:
            s.group_used[place] = 1
            stale[s.version[best] - s.group_version[place]] += given.group
            for answer in range(place * given.group, (place + 1) * given.group):
                tokens += given.answer_tokens[answer]
            taken += 1
        place += 1
    s.whole[best] -= given.groups
    while s.oldest[best] < s.issued[best] and s.group_used[base + s.oldest[best]]:
        s.oldest[best] += 1
    took = tokens * given.machine.train_token_ps
    if s.one[_LAST_TRAINED] != best:
        took += given.machine.swap_ps
    s.ready_ps[best] = _NEVER
    s.one[_TRAINS], s.one[_LAST_TRAINED] = best, best
    s.one[_TRAIN_END] = now_ps + took
    s.one[_TRAINING_PS] += took


@njit(forceinline=True, **BORROWED)
def _trained(s: _State, given: Any, stale: Ints) -> None:
    """Publish the adapter of the task that the trainer is done with, and go on."""
    task, now_ps = s.one[_TRAINS], s.one[_TRAIN_END]
    tasks = given.first_answer.size - 1
    s.one[_TRAINS], s.one[_TRAIN_END] = _NOBODY, _NEVER
    s.version[task] += 1
    s.cold[task] = 1
    if s.version[task] * given.groups * given.group == given.first_answer[task + 1] - given.first_answer[task]:
        s.done_ps[task] = now_ps
        s.one[_FINISHED] += 1
        if s.one[_NEXT_TASK] < tasks:
            _issue(s, given, s.one[_NEXT_TASK])
            s.one[_NEXT_TASK] += 1
    elif not given.rules.barrier:
        _issue(s, given, task)
        _see_whether_ready(s, given, task, now_ps)
    if given.rules.barrier:
        for other in range(tasks):
            if s.ready_ps[other] != _NEVER:
                break
        else:
            s.one[_TRAIN_PHASE] = 0
            for other in range(tasks):
                _issue(s, given, other)
    _train(s, given, now_ps, stale)


@njit(forceinline=True, **BORROWED)
def _use_tool(s: _State, given: Any, task: int, answer: int, now_ps: int) -> None:
    s.tools[task] += 1
    s.most_tools[task] = max(s.most_tools[task], s.tools[task])
    _push_tool(s, now_ps + given.delay_ps[s.turn[answer]], answer)


@njit(forceinline=True, **BORROWED)
def _tool_answered(s: _State, given: Any, stale: Ints) -> None:
    now_ps, answer = s.tool_ps[0], s.tool_answer[0]
    task = given.task_of[answer]
    _pop_tool(s)
    s.tools[task] -= 1
    if s.waiting_size[task]:
        places = s.waiting.shape[1]
        follower = s.waiting[task, s.waiting_first[task]]
        s.waiting_first[task] = (s.waiting_first[task] + 1) % places
        s.waiting_size[task] -= 1
        _use_tool(s, given, task, follower, now_ps)
    s.turn[answer] += 1
    if s.turn[answer] < given.first_turn[answer + 1]:
        _push(s.runnable[task], s.runnable_size[task], answer)
        s.runnable_size[task] += 1
        return
    place = answer // given.group
    s.group_left[place] -= 1
    if s.group_left[place] == 0:
        s.whole[task] += 1
        _see_whether_ready(s, given, task, now_ps)
        _train(s, given, now_ps, stale)


@njit(forceinline=True, **BORROWED)
def _next_event(s: _State) -> int:
    """Return when the next tool answers or the trainer ends."""
    tool_ps = s.tool_ps[0] if s.one[_TOOLS] else _NEVER
    return int(min(tool_ps, s.one[_TRAIN_END]))


@njit(forceinline=True, **BORROWED)
def _until(s: _State, given: Any, now_ps: int, stale: Ints) -> None:
    """Handle what tools and the trainer have done by now, in order; of equal times tools come first."""
    while _next_event(s) <= now_ps:
        if s.one[_TOOLS] and s.tool_ps[0] <= s.one[_TRAIN_END]:
            _tool_answered(s, given, stale)
        else:
            _trained(s, given, stale)


@njit(forceinline=True, **BORROWED)
def _admitted(s: _State, given: Any, adapters: int) -> int:
    """Return the task whose turn is admitted next, or nobody."""
    best = _NOBODY
    for task in range(given.first_answer.size - 1):
        if not s.runnable_size[task]:
            continue
        if given.rules.adapters and not s.running[task] and adapters >= given.rules.adapters:
            continue
        answer = s.runnable[task, 0]
        asked = s.context[answer] + given.turn_tokens[s.turn[answer]]
        if s.held[task] + asked > given.kv_quota[task]:
            continue
        if best == _NOBODY or s.served[task] * given.weight[best] < s.served[best] * given.weight[task]:
            best = task
    return best


@njit(forceinline=True, **BORROWED)
def _span_ps(many: int, first_ns: int, more_ns: int, permille: int) -> int:
    return (many * first_ns + more_ns * (many * (many - 1) // 2)) * permille


@njit(forceinline=True, **BORROWED)
def _steps_until(most: int, left_ps: int, first_ns: int, more_ns: int, permille: int) -> int:
    """Return the fewest steps, at most ``most``, that take the time that is left or longer."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if _span_ps(middle, first_ns, more_ns, permille) >= left_ps:
            high = middle
        else:
            low = middle + 1
    return low


class _Given(NamedTuple):
    first_answer: Ints
    first_turn: Ints
    prompt_tokens: Ints
    turn_tokens: Ints
    delay_ps: Ints
    answer_tokens: Ints
    task_of: Ints
    weight: Ints
    tool_workers: Ints
    kv_quota: Ints
    groups: int
    group: int
    rules: Rules
    machine: Constants


@compiled(nogil=True, **BORROWED)
def _run(s: _State, given: Any, stale: Ints, found: Ints) -> bool:
    """Run until all tasks are done; return whether they are."""
    m = given.machine
    tasks = given.first_answer.size - 1
    now, step, running, tokens, reserved, adapters = 0, 0, 0, 0, 0, 0
    busy, adapter_steps, most_running, most_held = 0, 0, 0, 0
    for task in range(given.rules.at_once if 0 < given.rules.at_once < tasks else tasks):
        _issue(s, given, task)
        s.one[_NEXT_TASK] = task + 1
    while s.one[_FINISHED] < tasks and now <= _LATEST_PS:
        _until(s, given, now, stale)
        loads, read = 0, 0
        while running < m.most_running:
            task = _admitted(s, given, adapters)
            if task == _NOBODY:
                break
            answer = s.runnable[task, 0]
            length = given.turn_tokens[s.turn[answer]]
            asked = s.context[answer] + length
            if reserved + asked > m.kv_tokens:
                break
            _pop(s.runnable[task], s.runnable_size[task])
            s.runnable_size[task] -= 1
            s.served[task] += length
            loads += s.cold[task]
            s.cold[task] = 0
            adapters += s.running[task] == 0
            s.running[task] += 1
            s.held[task] += asked
            _push(s.leaves, running, ((step + length) << _ANSWER_BITS) | answer)
            running, reserved, tokens = running + 1, reserved + asked, tokens + s.context[answer]
            most_running, most_held = max(most_running, running), max(most_held, reserved)
            read += s.context[answer]
        waits_ps = loads * m.load_ps + read * m.read_token_ps
        if loads or waits_ps:
            now += waits_ps
            busy += waits_ps
            continue
        event_ps = _next_event(s)
        if running == 0:
            if event_ps == _NEVER:
                break
            now = event_ps
            continue
        first_ns, more_ns = m.step_ns + m.sequence_ns * running + m.kv_ns * tokens, m.kv_ns * running
        permille = 1000 + m.adapter_permille * (adapters - 1)
        many = (s.leaves[0] >> _ANSWER_BITS) - step
        if event_ps != _NEVER and _span_ps(many, first_ns, more_ns, permille) > event_ps - now:
            many = _steps_until(many, event_ps - now, first_ns, more_ns, permille)
        span = _span_ps(many, first_ns, more_ns, permille)
        now, busy, step = now + span, busy + span, step + many
        tokens += running * many
        adapter_steps += adapters * many
        _until(s, given, now, stale)
        while running and s.leaves[0] >> _ANSWER_BITS == step:
            answer = _pop(s.leaves, running) & ((1 << _ANSWER_BITS) - 1)
            task = given.task_of[answer]
            length = given.turn_tokens[s.turn[answer]]
            s.context[answer] += length
            asked = s.context[answer]
            running, reserved, tokens = running - 1, reserved - asked, tokens - asked
            s.held[task] -= asked
            s.running[task] -= 1
            adapters -= s.running[task] == 0
            if s.tools[task] < given.tool_workers[task]:
                _use_tool(s, given, task, answer, now)
            else:
                places = s.waiting.shape[1]
                s.waiting[task, (s.waiting_first[task] + s.waiting_size[task]) % places] = answer
                s.waiting_size[task] += 1
    found[0], found[1], found[2], found[3], found[4] = busy, step, adapter_steps, most_running, most_held
    found[5] = now
    return bool(s.one[_FINISHED] == tasks)


def _new_state(tenants: Tenants, places: int) -> _State:
    """Return the state before anything was asked for, with room for ``places`` answers of a task at the same time."""
    tasks, answers = tenants.tasks, len(tenants.prompt_tokens)
    groups = answers // tenants.group

    def zeros(*shape: int) -> Ints:
        return np.zeros(shape, np.int64)

    return _State(
        version=zeros(tasks), issued=zeros(tasks), oldest=zeros(tasks), whole=zeros(tasks),
        ready_ps=np.full(tasks, _NEVER), runnable=zeros(tasks, places), runnable_size=zeros(tasks),
        waiting=zeros(tasks, places), waiting_first=zeros(tasks), waiting_size=zeros(tasks), tools=zeros(tasks),
        served=zeros(tasks), running=zeros(tasks), held=zeros(tasks), cold=np.ones(tasks, np.int64),
        done_ps=zeros(tasks), most_tools=zeros(tasks), group_version=zeros(groups), group_left=zeros(groups),
        group_used=zeros(groups), turn=zeros(answers), context=zeros(answers), tool_ps=zeros(tasks * places),
        tool_answer=zeros(tasks * places), leaves=zeros(tasks * places),
        one=np.array([_NOBODY, _NEVER, _NOBODY, 0, 0, 0, 0, 0]),
    )  # fmt: skip


def check_fits(tenants: Tenants, constants: Constants) -> None:
    """Refuse answers that the engine, or their task's quota, can never hold, and turns that take too long to count.

    Parameters
    ----------
    tenants : Tenants
    constants : Constants

    Raises
    ------
    BadValueError
    """
    longest = int(tenants.answer_tokens.max())
    if longest > constants.kv_tokens:
        raise BadValueError("An answer is longer than what the generating engine holds.", given=longest,
                            allowed=f"at most {constants.kv_tokens} tokens",
                            hint="give the engine more accelerators, or shorten the answers")  # fmt: skip
    for task in range(tenants.tasks):
        answers = tenants.answer_tokens[tenants.first_answer[task] : tenants.first_answer[task + 1]]
        if answers.max() > tenants.kv_quota[task]:
            raise BadValueError("An answer is longer than its task's quota.", given=int(answers.max()),
                                allowed=f"at most {tenants.kv_quota[task]} tokens", where=f"task {task}")  # fmt: skip
    factor = 1000.0 + constants.adapter_permille * tenants.tasks
    fullest_ns = constants.step_ns + float(constants.sequence_ns) * constants.most_running
    fullest_ns += float(constants.kv_ns) * constants.kv_tokens
    longest_ps = max(
        float(tenants.turn_tokens.max()) * fullest_ns * factor,
        float(longest) * tenants.groups * tenants.group * constants.train_token_ps + constants.swap_ps,
        float(constants.load_ps) * tenants.tasks + float(constants.kv_tokens) * constants.read_token_ps,
    )
    if len(tenants.prompt_tokens) >= 1 << _ANSWER_BITS or tenants.turn_tokens.sum() >= 1 << (62 - _ANSWER_BITS):
        raise BadValueError(
            "These are more answers or tokens than a simulation can count.",
            given=f"{len(tenants.prompt_tokens)} answers, {tenants.turn_tokens.sum()} tokens",
            allowed=f"fewer than {1 << _ANSWER_BITS} answers and {1 << (62 - _ANSWER_BITS)} tokens",
        )
    if longest_ps > LONGEST_PS:
        raise BadValueError("A turn or an update takes longer than a simulation can count.",
                            given=f"{longest_ps / 1e12:.3g} s", allowed=f"{LONGEST_PS / 1e12:.3g} s")  # fmt: skip


def simulate(tenants: Tenants, machine: Machine, rules: Rules) -> Outcome:
    """Return when the tasks are done, and how busy the engines were.

    Parameters
    ----------
    tenants : Tenants
    machine : Machine
    rules : Rules

    Raises
    ------
    BadValueError
        For rules that contradict each other, and answers that do not fit.
    """
    check_rules(rules)
    if rules.divided:
        return _divided(tenants, machine, rules)
    constants = Constants(*(int(each) for each in machine.constants()))
    check_fits(tenants, constants)
    tasks = tenants.tasks
    state = _new_state(tenants, (rules.s_max + 1) * tenants.groups * tenants.group)
    given = _Given(
        tenants.first_answer, tenants.first_turn, tenants.prompt_tokens, tenants.turn_tokens, tenants.delay_ps,
        tenants.answer_tokens, np.repeat(np.arange(tasks), np.diff(tenants.first_answer)), tenants.weight,
        tenants.tool_workers, tenants.kv_quota, tenants.groups, tenants.group, rules, constants,
    )  # fmt: skip
    stale, found = np.zeros(rules.s_max + 1, np.int64), np.zeros(6, np.int64)
    done = _run(state, given, stale, found)
    if found[5] > _LATEST_PS:
        raise BadValueError(
            "These tasks take longer than a simulation can count.", given=str(rules),
            allowed=f"{_LATEST_PS / 1e12:.3g} s", hint="fewer tasks, updates or shorter delays",
        )  # fmt: skip
    if not done:
        raise WavetankError("The simulation stopped before its tasks were done.", given=str(rules))
    return outcome_of(state.done_ps, int(state.one[_TRAINING_PS]), stale, state.most_tools, found)


def outcome_of(done_ps: Ints, training_ps: int, stale: Ints, most_tools: Ints, found: Ints) -> Outcome:
    """Return the outcome of a run.

    Parameters
    ----------
    done_ps, stale, most_tools : ndarray of int64
    training_ps : int
    found : ndarray of int64, shape (5,) or more
        Busy time of the generating engine, its steps, adapters summed over them, most answers and tokens held.
    """
    time_ps = int(done_ps.max())
    busy, steps, adapter_steps, most_running, most_held = (int(each) for each in found[:5])
    return Outcome(
        time_ps=time_ps, generating_ps=busy, training_ps=training_ps, generating_share=busy / time_ps,
        training_share=training_ps / time_ps, done_ps=tuple(map(int, done_ps)), stale=tuple(map(int, stale)),
        adapters=adapter_steps / steps, most_running=most_running, most_kv_tokens=most_held,
        most_tools=tuple(map(int, most_tools)), steps=steps,
    )  # fmt: skip


def _divided(tenants: Tenants, machine: Machine, rules: Rules) -> Outcome:
    """Run every task on a part of its own, as if it were alone."""
    import dataclasses

    many = tenants.tasks
    part = dataclasses.replace(machine, generating=machine.generating / many, training=machine.training / many)
    alone = rules._replace(divided=False)
    each = [simulate(tenants.one(task), part, alone) for task in range(many)]
    time_ps = max(one.time_ps for one in each)
    generating_ps, training_ps = sum(one.generating_ps for one in each), sum(one.training_ps for one in each)
    return Outcome(
        time_ps=time_ps, generating_ps=generating_ps, training_ps=training_ps,
        generating_share=generating_ps / (many * time_ps), training_share=training_ps / (many * time_ps),
        done_ps=tuple(one.done_ps[0] for one in each),
        stale=tuple(int(total) for total in np.sum([one.stale for one in each], axis=0)), adapters=1.0,
        most_running=sum(one.most_running for one in each), most_kv_tokens=sum(one.most_kv_tokens for one in each),
        most_tools=tuple(one.most_tools[0] for one in each), steps=sum(one.steps for one in each),
    )  # fmt: skip
