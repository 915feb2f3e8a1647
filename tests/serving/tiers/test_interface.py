"""Plans: what fits, and what is refused."""

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.tiers.interface import BOTH, DECODE, PREFILL, Group, Tier, Unit, check_plan, plan_of


def test_units_become_groups_in_one_order():
    split, both = Unit(1, 2, 1, 2, 5.0), Unit(0, 1, 0, 0, 1.0)
    assert split.gpus == 6 and both.gpus == 1
    assert plan_of([split, both]) == plan_of([both, split])
    assert plan_of([split, both]) == (
        Group(0, 1, BOTH), Group(1, 2, PREFILL), Group(1, 2, DECODE), Group(1, 2, DECODE),
    )  # fmt: skip


def test_a_degree_above_the_kv_heads_is_refused():
    check_plan((Group(0, 8),), 16, 8)
    with pytest.raises(BadValueError, match="KV heads"):
        check_plan((Group(0, 16),), 16, 8)


@pytest.mark.parametrize(
    "plan",
    [(), (Group(0, 4), Group(0, 8)), (Group(0, 3),), (Group(0, 2, PREFILL),), (Group(0, 2, DECODE),)],
)  # fmt: skip
def test_plans_that_cannot_run_are_refused(plan):
    with pytest.raises(BadValueError):
        check_plan(plan, 8, 8)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_an_objective_is_a_positive_number(wrong):
    with pytest.raises(BadValueError, match="tpot_s"):
        Tier(name="x", ttft_s=1.0, tpot_s=wrong, prompt_tokens=10, output_tokens=10)
