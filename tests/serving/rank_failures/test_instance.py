"""Instances of real ranks: killed, stopped, let go on again; the answers are those of one process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.rank_failures.instance import Answer, Instance
from wavetank.serving.rank_failures.interface import InfeasibleError
from wavetank.serving.rank_failures.small_model import Shape
from wavetank.serving.rank_failures.trials import IN_REPAIRS, IN_STEPS, expected

SHAPE = Shape(hidden=16, inner=32, experts=4)
LIMIT_S = 60.0


def asked(instance: Instance, count: int = 40, requests: int = 6) -> list[Answer]:
    return [instance.submit([number, 3 * number + 1], count) for number in range(requests)]


def check(instance: Instance, answers: list[Answer]) -> None:
    assert instance.pump(LIMIT_S, lambda: all(each.done for each in answers))
    for each in answers:
        assert tuple(each.said) == expected(instance.shape, tuple(each.prompt), each.count)


def segments() -> set[str]:
    # Others use the place, too; what these processes left would have their numbers or this name.
    names = {each.name for each in Path("/dev/shm").iterdir()} if Path("/dev/shm").is_dir() else set()
    return {name for name in names if "wavetank" in name}


def test_a_rank_that_is_killed_while_it_serves_changes_no_answer_and_leaves_nothing() -> None:
    before = segments()
    with Instance(SHAPE, ranks=3, replicas=1, rejoin=False) as instance:
        answers = asked(instance)
        assert instance.pump(LIMIT_S, lambda: all(len(each.said) > 3 for each in answers))
        pids = [instance.ranks.pid(rank) for rank in range(3)]
        instance.strike(1)
        check(instance, answers)
        assert instance.members() == (0, 2)
        last = [each for each in instance.changes if each.epoch == instance.changes[-1].epoch]
        # Experts 1, 4 and 7 were rank 1's alone; both survivors made the same map, in the same place.
        assert len({each.expert_of for each in last}) == 1 and last[0].sources == ("host",) * 3
        for rank in (0, 2):
            assert len({each.addresses for each in instance.changes if each.rank == rank}) == 1
        for each in instance.changes:
            live = {slot // instance.slots for slot, expert in enumerate(each.expert_of) if expert >= 0}
            assert live <= set(each.members) and set(each.expert_of) - {-1} == set(range(8))
        with pytest.raises(BadValueError):
            instance.submit([], 3)
        with pytest.raises(BadValueError):
            instance.submit([256], 3)
    assert segments() == before
    left = [each.name for each in Path("/dev/shm").iterdir()] if Path("/dev/shm").is_dir() else []
    assert not [name for name in left if any(str(pid) in name for pid in pids)]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("given", [{"repair": "prayer"}, {"timeout_s": 0.0}, {"replicas": 5}, {"slots": 1}])
def test_instances_that_cannot_be_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        Instance(SHAPE, ranks=4, **given)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "second"), [(IN_STEPS[place % 4], each) for place, each in enumerate(IN_REPAIRS)])
def test_a_second_fault_in_the_repair_of_the_first_changes_no_answer(point: str, second: str) -> None:
    with Instance(SHAPE, ranks=4, replicas=1) as instance:
        answers = asked(instance)
        instance.strike(1, point)
        instance.strike(0, second)
        check(instance, answers)
        instance.replacement_faults += ["join"]
        assert instance.pump(LIMIT_S, lambda: instance.members() == (0, 1, 2, 3))
        check(instance, asked(instance))


@pytest.mark.slow
def test_one_rank_of_four_goes_on_alone_and_all_of_them_begin_anew() -> None:
    with Instance(SHAPE, ranks=4, replicas=1, rejoin=False) as instance:
        answers = asked(instance, 80)
        assert instance.pump(LIMIT_S, lambda: all(len(each.said) > 3 for each in answers))
        for rank in (0, 1, 3):
            instance.strike(rank)
        check(instance, answers)
        assert instance.members() == (2,)
        answers = asked(instance)
        instance.strike(2)
        check(instance, answers)
        assert instance.members() == (0, 1, 2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("point", IN_STEPS)
def test_a_late_rank_that_goes_on_after_it_was_masked_out_spoils_nothing(point: str) -> None:
    with Instance(SHAPE, ranks=4, replicas=1, timeout_s=0.3, kill_fenced=False, rejoin=False) as instance:
        answers = asked(instance, 4000, 4)
        instance.strike(1, point, "stop")
        assert instance.pump(LIMIT_S, lambda: instance.members() == (0, 2, 3))
        seen = [len(each.said) for each in answers]
        assert instance.pump(LIMIT_S, lambda: all(len(answers[place].said) > seen[place] for place in range(4)))
        instance.ranks.resume(1)
        # It sees its fence and ends by itself.
        assert instance.pump(LIMIT_S, lambda: 1 not in instance.ranks.running)
        seen = [len(each.said) for each in answers]
        assert instance.pump(LIMIT_S, lambda: all(len(answers[place].said) > seen[place] + 9 for place in range(4)))
        for each in answers:
            said = len(each.said)
            assert tuple(each.said) == expected(SHAPE, tuple(each.prompt), said)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"host": False, "disk": False}, {"slots": 2}])
def test_experts_that_nobody_has_any_more_end_the_answers_with_their_names(given: dict[str, Any]) -> None:
    with Instance(SHAPE, ranks=4, replicas=1, **given) as instance:
        answers = asked(instance)
        assert instance.pump(LIMIT_S, lambda: all(len(each.said) > 3 for each in answers))
        instance.strike(3)
        begin_s = time.monotonic()
        with pytest.raises(InfeasibleError) as found:
            instance.pump(LIMIT_S, lambda: all(each.done for each in answers))
        assert time.monotonic() - begin_s < LIMIT_S / 2
        assert set(found.value.experts) <= {3, 7} and found.value.experts
        assert all(each.error is not None or len(each.said) == each.count for each in answers)


@pytest.mark.slow
def test_a_last_rank_that_stands_still_is_ended_and_answers_go_on() -> None:
    with Instance(SHAPE, ranks=2, replicas=1, timeout_s=0.3) as instance:
        answers = asked(instance, 400)
        assert instance.pump(LIMIT_S, lambda: all(len(each.said) > 3 for each in answers))
        # Nobody is left who could miss it.
        instance.strike(1, kind="stop")
        instance.strike(0)
        check(instance, answers)


@pytest.mark.slow
@pytest.mark.parametrize("repair", ["restart", "group", "experts"])
def test_every_other_way_answers_right_too(repair: str) -> None:
    with Instance(SHAPE, ranks=3, replicas=1, repair=repair) as instance:
        answers = asked(instance)
        assert instance.pump(LIMIT_S, lambda: all(len(each.said) > 3 for each in answers))
        instance.strike(0)
        check(instance, answers)


@pytest.mark.slow
def test_fewer_experts_than_ranks_and_all_tokens_to_one_expert_are_served() -> None:
    with Instance(Shape(hidden=16, inner=32, layers=1, experts=1, choices=1), ranks=4, replicas=1) as instance:
        answers = asked(instance)
        assert instance.pump(LIMIT_S, lambda: all(len(each.said) > 3 for each in answers))
        instance.strike(0)
        check(instance, answers)


@pytest.mark.slow
def test_tokens_of_experts_that_nobody_has_make_answers_wrong_where_that_is_let_pass() -> None:
    with Instance(SHAPE, ranks=4, replicas=1, repair="nothing", rejoin=False) as instance:
        answers = asked(instance)
        assert instance.pump(LIMIT_S, lambda: all(len(each.said) > 3 for each in answers))
        instance.strike(0)
        assert instance.pump(LIMIT_S, lambda: all(each.done for each in answers))
        assert any(tuple(each.said) != expected(SHAPE, tuple(each.prompt), each.count) for each in answers)
        assert instance.changes[-1].missing == 2


def test_a_token_counts_only_from_the_process_that_has_the_request_and_once() -> None:
    instance = Instance(SHAPE, ranks=2)
    answer = instance.answers[0] = Answer(0, [1], 9, rank=1, incarnation=0)
    for rank, incarnation, index in [(0, 0, 0), (1, 1, 0), (1, 0, 1), (1, 0, 0), (1, 0, 0)]:
        instance._hear(rank, ["tokens", incarnation, 1, [[0, index, 10 * rank + index], [5, 0, 3]]])
    assert answer.said == [10]
    instance.fenced[1] = 1
    instance._hear(1, ["tokens", 0, 1, [[0, 1, 77]]])
    assert answer.said == [10]
