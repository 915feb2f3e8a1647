"""Applications: lengths that are expected, templates and shapes in turn, stages of a kind alike."""

from __future__ import annotations

import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.serving.workflows.applications import TEMPLATES, applications, on_shape
from wavetank.workloads.workflows import Workflow


def test_expected_lengths_are_wrong_by_the_error_alone():
    exact, unsure = applications("agents", 3, 1), applications("agents", 3, 1, error=0.5)
    for one, other in zip(exact, unsure, strict=True):
        assert [each.output_tokens for each in one.stages] == [each.output_tokens for each in other.stages]
        assert [each.expected_tokens for each in one.stages] == [float(each.output_tokens) for each in one.stages]
        assert [each.expected_tokens for each in one.stages] != [each.expected_tokens for each in other.stages]


def test_every_template_comes_once_before_one_comes_again():
    names = [each.workflow.name for each in applications("agents", 2 * len(TEMPLATES), 5)]
    assert len(set(names[: len(TEMPLATES)])) == len(TEMPLATES)
    assert sorted(names[: len(TEMPLATES)]) == sorted(names[len(TEMPLATES) :])


def test_tasks_of_a_kind_get_one_model_and_one_prefix():
    shape = Workflow(name="w", tasks=tuple("abcdef"), parents=((), (0,), (0,), (0,), (0,), (1, 2, 3, 4)),
                     kinds=("s", "m", "m", "m", "m", "e"))  # fmt: skip
    made = on_shape(shape, 3)
    assert len({(each.model, each.prefix, each.prefix_tokens) for each in made.stages[1:5]}) == 1
    assert len({each.prefix for each in made.stages}) == 3
    assert made == on_shape(shape, 3)
    assert made != on_shape(shape, 4)


@pytest.mark.parametrize(
    "wrong", [{"count": 0}, {"rate_per_s": 0.0}, {"rate_per_s": -1.0}, {"rate_per_s": float("nan")},
              {"error": float("nan")}, {"error": -0.1}]
)  # fmt: skip
def test_counts_rates_and_errors_out_of_range_are_refused(wrong):
    with pytest.raises(BadValueError):
        applications("agents", **{"count": 2, "seed": 0, **wrong})


def test_an_unknown_mix_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="mixed"):
        applications("mixd", 1, 0)
