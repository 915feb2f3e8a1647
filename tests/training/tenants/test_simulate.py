"""The simulation against one that goes token by token, against closed forms, and against what must always hold."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.tenants.jobs import ALL_RULES, machines, plain, round_machine, tenants

from wavetank.errors import BadValueError
from wavetank.training.tenants.interface import PS, Machine, Rules, utilisation
from wavetank.training.tenants.reference import Reference
from wavetank.training.tenants.simulate import simulate

SEQUENTIAL, OUT_OF_PHASE, MARLAAS = Rules(at_once=1), Rules(adapters=1), Rules(s_max=1)


def time_s(tasks, machine, rules):
    return simulate(tasks, machine, rules).time_ps / PS


@settings(max_examples=150, deadline=None)
@given(tasks=tenants(), machine=machines(), rules=st.sampled_from(ALL_RULES))
def test_it_is_the_reference_to_the_last_picosecond_and_no_runnable_turn_waits_for_an_idle_engine(
    tasks, machine, rules
):
    reference = Reference(tasks, machine, rules)
    assert simulate(tasks, machine, rules) == reference.run()
    assert reference.idle_with_work_ps == 0


@settings(max_examples=60, deadline=None)
@given(tasks=tenants(), machine=machines(), rules=st.sampled_from(ALL_RULES))
def test_every_answer_is_trained_on_once_young_enough_and_quotas_hold(tasks, machine, rules):
    run = simulate(tasks, machine, rules)
    assert len(run.stale) == rules.s_max + 1
    assert sum(run.stale) == len(tasks.prompt_tokens)
    assert all(most <= tools for most, tools in zip(run.most_tools, tasks.tool_workers, strict=True))
    assert run.most_running <= machine.constants()[7]
    assert run.most_kv_tokens <= machine.constants()[8]
    assert run.training_ps >= int(tasks.answer_tokens.sum()) * int(machine.constants()[5])
    assert run.generating_ps <= run.time_ps
    assert run.training_ps <= run.time_ps


@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
@pytest.mark.parametrize("updates", [1, 10])
def test_one_by_one_takes_the_sum_of_all_stages(tasks, updates):
    assert time_s(plain(tasks, updates), round_machine(), SEQUENTIAL) == 100 * tasks * updates


@pytest.mark.parametrize("tasks", [2, 3, 4])
def test_out_of_phase_comes_to_the_bottleneck(tasks):
    # Steady rounds of 60 s a task; the first answer is at 60 s, and the last one has its tool and its update after it.
    updates = 50
    took = time_s(plain(tasks, updates), round_machine(), OUT_OF_PHASE)
    assert took == 60 * tasks * updates + 30 + 10
    assert 100 * tasks * updates / took == pytest.approx(100 / 60, rel=0.02)


def test_a_batch_of_eight_adapters_in_lock_step_takes_its_stages_one_after_the_other():
    # 60 s, 6 s more for each further adapter; 30 s of tools for all at once; eight updates of 10 s.
    machine = round_machine(permille=100)
    assert time_s(plain(8, 5), machine, Rules(barrier=True)) == 5 * (102 + 30 + 80)
    assert time_s(plain(8, 5), machine, SEQUENTIAL) == 5 * 800


def test_eight_tasks_at_once_are_between_the_bottleneck_and_all_in_one_batch():
    machine, updates = round_machine(permille=100), 40
    # On-policy, eight adapters in a batch are the best that there is; with older answers the trainer is slowest.
    for rules, least in ((Rules(), 102), (MARLAAS, 80)):
        took = time_s(plain(8, updates), machine, rules) / updates
        assert least <= took <= 142 + 102 / updates, rules
    assert time_s(plain(8, updates), machine, MARLAAS) < time_s(plain(8, updates), machine, Rules(barrier=True))


def test_one_task_that_may_be_old_hides_training_and_tools_behind_generating():
    # Two groups may be asked for: the engine works on both at once, 60 s; then one by one as updates are done.
    took = time_s(plain(1, 100), round_machine(), Rules(s_max=2, at_once=1)) / 100
    assert took < 61
    assert time_s(plain(1, 100), round_machine(), SEQUENTIAL) == 100 * 100


def test_without_delays_one_task_alone_is_as_fast_by_all_rules_without_age():
    tasks, machine = plain(1, 20, delay_s=0.0), round_machine()
    assert {time_s(tasks, machine, rules) for rules in ALL_RULES if rules.s_max == 0} == {20 * 70.0}
    old = time_s(tasks, machine, MARLAAS)
    assert old <= 1.05 * 20 * 70.0


def test_busy_time_is_the_same_by_all_rules_where_no_batch_is_shared_so_that_utilisation_is_time():
    tasks, machine = plain(5, 6, turns=3, tokens=100, delay_s=7.0), round_machine()
    runs = [
        simulate(tasks, machine, rules) for rules in (SEQUENTIAL, OUT_OF_PHASE, Rules(s_max=0, at_once=2, adapters=1))
    ]
    assert len({run.generating_ps + run.training_ps for run in runs}) == 1
    first, second, _ = runs
    gained = utilisation(second, machine) / utilisation(first, machine)
    assert gained == pytest.approx(first.time_ps / second.time_ps)
    assert gained > 1.5


def test_a_divided_machine_runs_every_task_as_if_alone_on_its_part():
    tasks, machine = plain(4, 3), Machine(generating=2.0, training=2.0, most_running=64)
    whole = simulate(tasks, machine, Rules(divided=True))
    part = dataclasses.replace(machine, generating=0.5, training=0.5)
    alone = simulate(tasks.one(2), part, Rules(at_once=1))
    assert whole.time_ps == alone.time_ps
    assert whole.generating_ps == 4 * alone.generating_ps
    assert utilisation(whole, machine) == pytest.approx(utilisation(alone, part))
    # Half an accelerator takes twice as long for a step of one answer.
    one = simulate(tasks.one(0), dataclasses.replace(machine, generating=1.0, training=0.5), Rules(at_once=1))
    assert alone.generating_ps - 3 * machine.load_ps == 2 * (one.generating_ps - 3 * machine.load_ps)


def test_one_group_is_young_enough_until_the_update_that_would_make_it_too_old():
    # The first answer's tool takes 1000 s: with answers at most one update old, the second update waits for it.
    tasks = plain(1, 4, delay_s=1.0)
    delays = tasks.delay_ps.copy()
    delays[0] = 1000 * PS
    tasks = dataclasses.replace(tasks, delay_ps=delays)
    run = simulate(tasks, round_machine(), Rules(s_max=1))
    assert run.stale[1] >= 1
    assert sum(run.stale) == 4
    assert run.time_ps / PS >= 1060 + 10 + 10


def test_weights_divide_the_engine():
    machine = dataclasses.replace(round_machine(train_s=0.001), most_running=1)
    tasks = plain(2, 1, groups=30, tokens=10, delay_s=0.0, weight=[1, 2])
    light, heavy = simulate(tasks, machine, Rules()).done_ps
    # One turn in three is the light task's until the heavy one has had its thirty.
    assert heavy / light == pytest.approx(45 / 60, rel=0.05)


def test_an_adapter_is_loaded_once_after_each_update_and_the_trainer_swaps_between_tasks():
    machine = dataclasses.replace(round_machine(), load_ps=PS, swap_ps=5 * PS)
    one = simulate(plain(1, 3), machine, SEQUENTIAL)
    assert one.time_ps == (3 * (1 + 100) + 5) * PS
    two = simulate(plain(2, 3), machine, SEQUENTIAL)
    assert two.time_ps == 2 * one.time_ps


def test_what_cannot_be_simulated_is_refused():
    tasks, machine = plain(2, 2), round_machine()
    with pytest.raises(BadValueError, match="longer than what the generating engine holds"):
        simulate(tasks, dataclasses.replace(machine, kv_tokens=999), Rules())
    with pytest.raises(BadValueError, match="longer than its task's quota"):
        simulate(dataclasses.replace(tasks, kv_quota=np.array([1 << 60, 999])), machine, Rules())
    with pytest.raises(BadValueError, match="longer than a simulation can count"):
        simulate(dataclasses.replace(tasks, delay_ps=np.full(4, 1 << 60)), machine, SEQUENTIAL)
    with pytest.raises(BadValueError, match="A turn or an update takes longer"):
        simulate(tasks, dataclasses.replace(machine, step_ns=1 << 50), Rules())
    for rules in (Rules(s_max=-1), Rules(barrier=True, s_max=1), Rules(divided=True, at_once=1)):
        with pytest.raises(BadValueError):
            simulate(tasks, machine, rules)


@settings(max_examples=40, deadline=None)
@given(tasks=tenants(), machine=machines(), rules=st.sampled_from(ALL_RULES))
def test_reading_anew_takes_the_engine_what_comes_before_every_turn(tasks, machine, rules):
    # One answer at a time: as many steps, whatever they wait for.
    kept = dataclasses.replace(machine, generating=1.0, most_running=1, load_ps=0, read_token_ps=0)
    anew = dataclasses.replace(kept, read_token_ps=7)
    before = 0
    for answer, prompt in enumerate(tasks.prompt_tokens.tolist()):
        turns = tasks.turn_tokens[tasks.first_turn[answer] : tasks.first_turn[answer + 1]]
        before += prompt * len(turns) + int(np.cumsum(turns)[:-1].sum())
    if not rules.divided:
        one, other = (simulate(tasks, each, rules) for each in (kept, anew))
        assert other.generating_ps - one.generating_ps == 7 * before
