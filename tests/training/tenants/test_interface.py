"""What is no machine and no task is refused, and parts of accelerators are slower in proportion."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.training.tenants.jobs import plain

from wavetank.errors import BadValueError
from wavetank.training.tenants.interface import Constants, Machine, Outcome, Rules, check_rules, utilisation


def constants(**words):
    return Constants(*(int(each) for each in Machine(**words).constants()))


def test_accelerators_divide_what_grows_with_answers_and_not_the_step():
    one, four = constants(generating=1.0, training=1.0), constants(generating=4.0, training=2.0)
    assert (four.step_ns, four.sequence_ns, four.kv_ns) == (one.step_ns, one.sequence_ns // 4, one.kv_ns // 4)
    assert (four.most_running, four.kv_tokens) == (4 * one.most_running, 4 * one.kv_tokens)
    assert four.train_token_ps == one.train_token_ps // 2


def test_a_part_of_an_accelerator_is_slower_in_all_it_does():
    one, part = constants(generating=1.0, training=1.0), constants(generating=0.25, training=0.5)
    assert (part.step_ns, part.sequence_ns, part.kv_ns) == (4 * one.step_ns, 4 * one.sequence_ns, 4 * one.kv_ns)
    assert (part.most_running, part.kv_tokens) == (one.most_running // 4, one.kv_tokens // 4)
    assert part.train_token_ps == 2 * one.train_token_ps


@pytest.mark.parametrize("words", [
    {"generating": 0.0}, {"training": float("nan")}, {"generating": float("inf")}, {"step_ns": 0}, {"kv_ns": -1},
    {"swap_ps": -1}, {"most_running": 0}, {"adapter_permille": -1},
])  # fmt: skip
def test_what_is_no_machine_is_refused(words):
    with pytest.raises(BadValueError):
        Machine(**words)


@pytest.mark.parametrize("change", [
    {"first_answer": np.array([0])}, {"first_answer": np.array([0, 1, 3])}, {"groups": 3}, {"group": 0},
    {"turn_tokens": np.zeros(4, np.int64)}, {"delay_ps": np.full(4, -1)}, {"weight": np.array([1.0, 1.0])},
    {"tool_workers": np.array([0, 1])}, {"kv_quota": np.array([1])}, {"prompt_tokens": np.full(4, 1 << 62)},
    {"first_turn": np.array([0, 1, 1, 2, 4])},
])  # fmt: skip
def test_what_is_no_task_is_refused(change):
    with pytest.raises(BadValueError):
        dataclasses.replace(plain(2, 2), **change)


def test_one_task_by_itself_has_its_own_answers():
    tasks = plain(3, 2, groups=2, turns=2)
    tasks = dataclasses.replace(tasks, turn_tokens=np.arange(1, 25), prompt_tokens=np.arange(12))
    second = tasks.one(1)
    assert second.turn_tokens.tolist() == list(range(9, 17))
    assert second.prompt_tokens.tolist() == [4, 5, 6, 7]
    assert second.answer_tokens.tolist() == [4 + 9 + 10, 5 + 11 + 12, 6 + 13 + 14, 7 + 15 + 16]
    assert (second.tasks, second.updates.tolist()) == (1, [2])


def test_utilisation_weighs_engines_by_their_accelerators():
    run = Outcome(time_ps=100, generating_ps=50, training_ps=10, generating_share=0.5, training_share=0.1, stale=(1,),
                  done_ps=(100,), adapters=1.0, most_running=1, most_kv_tokens=1, most_tools=(1,), steps=1)  # fmt: skip
    assert utilisation(run, Machine(generating=3.0, training=1.0)) == pytest.approx((3 * 0.5 + 0.1) / 4)


def test_rules_that_contradict_each_other_are_refused():
    for rules in (
        Rules(at_once=-1),
        Rules(adapters=-1),
        Rules(barrier=True, at_once=2),
        Rules(barrier=True, divided=True),
    ):
        with pytest.raises(BadValueError):
            check_rules(rules)
    check_rules(Rules(s_max=4, at_once=3, adapters=1))
