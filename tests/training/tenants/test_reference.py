"""The simulation in plain Python: what can be counted on one's fingers."""

from __future__ import annotations

from tests.training.tenants.jobs import plain, round_machine

from wavetank.training.tenants.interface import PS, Rules
from wavetank.training.tenants.reference import Reference


def test_one_answer_takes_its_tokens_its_tool_and_its_update():
    run = Reference(plain(tokens=10, delay_s=3.0), round_machine(train_s=1000.0), Rules()).run()
    assert run.time_ps == round((10 * 0.06 + 3.0 + 10.0) * PS)
    assert (run.steps, run.most_running, run.most_kv_tokens, run.stale) == (10, 1, 10, (1,))


def test_two_adapters_in_a_batch_take_a_tenth_longer_and_train_one_by_one():
    tasks = plain(2, tokens=10, delay_s=0.0)
    run = Reference(tasks, round_machine(train_s=1000.0, permille=100), Rules()).run()
    assert run.generating_ps == round(10 * 0.066 * PS)
    assert run.done_ps == (round(10.66 * PS), round(20.66 * PS))
    assert run.adapters == 2.0


def test_one_tool_serves_answers_one_by_one():
    tasks = plain(1, 1, groups=2, tokens=1, delay_s=5.0, tools=1)
    run = Reference(tasks, round_machine(train_s=0.0005), Rules()).run()
    assert run.time_ps == 60 * 10**9 + 10 * PS + 2 * 500_000
    assert run.most_tools == (1,)
