"""Requests with stages: what a share of them is given, and which stages make no sense."""

import numpy as np
import pytest
from tests.serving.branches.conftest import requests_of

from wavetank.errors import BadValueError
from wavetank.serving.branches.workload import BranchingRequests, branching
from wavetank.workloads.generate import generate_requests


@pytest.fixture(scope="module")
def trace():
    return generate_requests(rate_per_s=1.0, n_requests=4000)


def test_a_share_of_the_requests_has_three_stages_and_the_others_are_as_the_trace_has_them(trace):
    found = branching(trace, 0.3, 4, 100.0, seed=1)
    stages = np.diff(found.stage_offsets)
    assert set(stages.tolist()) == {1, 3}
    assert 0.27 < (stages == 3).mean() < 0.33
    plain = stages == 1
    assert (found.trace.output_tokens[plain] == trace.output_tokens[plain]).all()
    assert (found.trace.prompt_tokens == trace.prompt_tokens).all()


def test_branches_have_the_mean_and_the_spread_that_were_asked_for_and_a_fifth_comes_before_and_after(trace):
    found = branching(trace, 1.0, 5, 100.0, seed=2)
    widths = np.diff(found.branch_offsets)
    assert widths.reshape(-1, 3).tolist() == [[1, 5, 1]] * 4000
    lengths = found.lengths.reshape(-1, 7)
    parallel = lengths[:, 1:6]
    assert abs(parallel.mean() - 100.0) < 2.0
    assert abs(np.log(parallel).std() - 0.6) < 0.02
    assert np.abs(lengths[:, 0] / lengths.sum(axis=1) - 0.2).max() < 0.01
    assert (lengths[:, 0] == lengths[:, 6]).all()


def test_no_share_gives_the_trace_itself_and_equal_seeds_give_equal_branches(trace):
    assert (branching(trace, 0.0, 8, 100.0, seed=0).trace.output_tokens == trace.output_tokens).all()
    one, same, other = (branching(trace, 0.5, 3, 50.0, seed=seed).lengths.tolist() for seed in (3, 3, 4))
    assert one == same != other


def test_a_part_has_the_stages_of_its_own_requests(trace):
    whole = branching(trace, 0.5, 3, 50.0, seed=0)
    part = whole.part(100, 50)
    assert part.trace.output_tokens.tolist() == whole.trace.output_tokens[100:150].tolist()
    assert np.diff(part.stage_offsets).tolist() == np.diff(whole.stage_offsets)[100:150].tolist()
    faster = part.at_rate(20.0)
    assert faster.trace.rate_per_s == pytest.approx(20.0)
    assert (part.at_rate(float("inf")).trace.arrival_s == 0).all()
    assert faster.lengths.tolist() == part.lengths.tolist()


@pytest.mark.parametrize(
    "answers",
    [[[[3], []]], [[[3], [0, 2]]], [[[2, 2]]]],
    ids=["a stage without branches", "an empty branch", "a first stage of two"],
)
def test_stages_that_make_no_sense_are_refused(answers):
    with pytest.raises(BadValueError):
        requests_of(answers)


def test_branches_that_do_not_add_up_to_the_answer_are_refused():
    good = requests_of([[[3], [4, 5]]])
    with pytest.raises(BadValueError, match="answer"):
        BranchingRequests(
            trace=good.trace, stage_offsets=good.stage_offsets, branch_offsets=good.branch_offsets,
            lengths=good.lengths + 1, branch_tokens=1.0,
        )  # fmt: skip
