"""Trajectories: what the generator promises of its draws, sums against plain loops, and input that is none."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadTraceError, BadValueError
from wavetank.workloads.trajectories import LogNormal, Trajectories, Uniform, generate

SMALL = {
    "first_turn": [0, 2, 3],
    "prompt_tokens": [10, 20],
    "turn_tokens": [5, 7, 9],
    "delay_s": [0.5, 0.0, 2.0],
}


def test_contexts_hold_the_prompt_and_all_that_came_before():
    found = Trajectories(**SMALL)
    assert found.context_tokens(answer_tokens=100).tolist() == [10, 115, 20]
    assert found.context_tokens().tolist() == [10, 15, 20]
    assert found.turns.tolist() == [2, 1]
    assert found.written_tokens.tolist() == [12, 9]
    assert found.least_s(0.1).tolist() == pytest.approx([1.7, 2.9])
    assert len(found) == 2


@given(st.integers(1, 20), st.integers(0, 2**40), st.integers(0, 50))
def test_sums_are_those_of_a_loop_over_turns(n, seed, answer):
    found = generate(n, seed=seed, turns=Uniform(low=1, high=6))
    contexts, at = found.context_tokens(answer), 0
    for each in range(n):
        context, least_s = int(found.prompt_tokens[each]), 0.0
        for _ in range(int(found.turns[each])):
            assert contexts[at] == context
            context += int(found.turn_tokens[at]) + answer
            least_s += 0.01 * int(found.turn_tokens[at]) + float(found.delay_s[at])
            at += 1
        assert found.least_s(0.01)[each] == pytest.approx(least_s)
    assert at == found.turn_tokens.size


def test_more_trajectories_begin_with_the_same_ones_and_names_are_streams_of_their_own():
    few, many = generate(5, seed=3), generate(50, seed=3)
    assert many.part(0, 5) == few
    assert hash(many.part(0, 5)) == hash(few)
    assert generate(5, seed=3, name="other") != few
    assert generate(5, seed=4) != few
    assert pickle.loads(pickle.dumps(few)) == few


def test_a_part_keeps_the_turns_of_its_trajectories():
    whole = generate(10, seed=1)
    part = whole.part(3, 4)
    begin, end = whole.first_turn[3], whole.first_turn[7]
    assert part.turn_tokens.tolist() == whole.turn_tokens[begin:end].tolist()
    assert part.delay_s.tolist() == whole.delay_s[begin:end].tolist()
    assert part.prompt_tokens.tolist() == whole.prompt_tokens[3:7].tolist()
    for first, count in ((-1, 2), (9, 2), (0, 0)):
        with pytest.raises(BadValueError, match="no such trajectories"):
            whole.part(first, count)


def test_draws_have_the_medians_and_spreads_that_were_asked_for():
    found = generate(20_000, seed=0, turns=LogNormal(median=6.0, sigma=0.8, low=1.0, high=30.0))
    assert found.turns.min() == 1
    assert found.turns.max() == 30
    assert np.median(found.turns) == 6
    assert np.median(found.turn_tokens) == pytest.approx(200, rel=0.02)
    assert np.std(np.log(found.turn_tokens)) == pytest.approx(0.6, rel=0.02)
    assert found.delay_s.min() == 0.1
    assert found.delay_s.max() == 30.0
    flat = generate(6000, seed=0, turns=Uniform(low=2, high=4)).turns
    assert np.bincount(flat)[2:] / flat.size == pytest.approx([1 / 3] * 3, abs=0.03)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"first_turn": [0, 2, 2]}, "0 to the length"),
        ({"first_turn": [0, 3, 3]}, "trajectory 1"),
        ({"first_turn": [0, 4, 3]}, "trajectory 1"),
        ({"first_turn": [1, 2, 3]}, "first_turn"),
        ({"first_turn": [0, 3]}, "first_turn"),
        ({"first_turn": [0.5, 2, 3]}, "first_turn"),
        ({"first_turn": [0], "prompt_tokens": [], "turn_tokens": [], "delay_s": []}, "one trajectory or more"),
        ({"prompt_tokens": [10, 0]}, "prompt_tokens"),
        ({"turn_tokens": [5, math.nan, 9]}, "turn_tokens"),
        ({"turn_tokens": [5, -7, 9]}, "turn_tokens"),
        ({"turn_tokens": [[5, 7, 9]]}, "turn_tokens"),
        ({"turn_tokens": ["5", "7", "9"]}, "turn_tokens"),
        ({"turn_tokens": [5, 1e300, 9]}, "turn_tokens"),
        ({"delay_s": [0.5, math.inf, 2.0]}, "delay_s"),
        ({"delay_s": [0.5, -0.1, 2.0]}, "delay_s"),
        ({"delay_s": [0.5, 0.1]}, "first_turn"),
    ],
)
def test_what_is_no_set_of_trajectories_is_refused_by_place(change, said):
    with pytest.raises(BadTraceError, match=said):
        Trajectories(**{**SMALL, **change})


@pytest.mark.parametrize(
    "make",
    [
        lambda: LogNormal(median=0.0, sigma=1.0),
        lambda: LogNormal(median=math.inf, sigma=1.0),
        lambda: LogNormal(median=1.0, sigma=-1.0),
        lambda: LogNormal(median=1.0, sigma=math.nan),
        lambda: LogNormal(median=1.0, sigma=1.0, low=3.0, high=2.0),
        lambda: Uniform(low=5, high=4),
        lambda: Uniform(low=-1, high=4),
        lambda: generate(0, seed=1),
        lambda: generate(True, seed=1),
        lambda: generate(10, seed=1, turns=LogNormal(median=1e12, sigma=0.0)),
        lambda: generate(10, seed=1, turns=LogNormal(median=1e300, sigma=1e3)),
    ],
)
def test_settings_outside_their_range_are_refused(make):
    with np.errstate(over="ignore"), pytest.raises(BadValueError):
        make()


def test_arrays_are_copied_and_cannot_be_written_to():
    given_tokens = np.array([5, 7, 9])
    found = Trajectories(**{**SMALL, "turn_tokens": given_tokens})
    given_tokens[0] = 99
    assert found.turn_tokens[0] == 5
    with pytest.raises(ValueError, match="read-only"):
        found.turn_tokens[0] = 1
