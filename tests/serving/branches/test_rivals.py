"""Caps: what they admit, and which are tried where none is given."""

import numpy as np
import pytest
from tests.serving.branches.conftest import line, line_step

from wavetank.serving.branches.interface import view_of
from wavetank.serving.branches.rivals import AdmittedEager, Eager, FixedCap, Off, TokenBudget


def admitted_by(controller, **columns):
    view = view_of(deadline_s=[1.0, 1.0], request=[0, 0, 0, 1], context=[10, 10, 10, 20], decodes=2, **columns)
    chosen = np.zeros(4, np.int64)
    step = line_step()
    count = controller.choose(
        view, step.function, step.table, line(), np.zeros(8), controller.parameters(), chosen
    )
    assert count == chosen.sum()
    return chosen.tolist()


def test_off_admits_nothing_and_eager_everything_that_the_batch_takes():
    assert admitted_by(Off()) == [0, 0, 0, 0]
    assert admitted_by(Eager()) == [1, 1, 1, 1]
    assert sum(admitted_by(Eager(), room=3)) == 3


@pytest.mark.parametrize(("cap", "expected"), [(1, [0, 0, 0, 0]), (2, [1, 0, 0, 1]), (3, [1, 1, 0, 1])])
def test_a_cap_counts_the_protected_branch(cap, expected):
    assert admitted_by(FixedCap(cap=cap)) == expected


def test_a_token_budget_counts_prompts_and_takes_turns():
    assert sum(admitted_by(TokenBudget(tokens=4))) == 2
    assert sum(admitted_by(TokenBudget(tokens=4), prefill_tokens=1)) == 1
    assert admitted_by(TokenBudget(tokens=3), step=0) == [1, 0, 0, 0]
    assert admitted_by(TokenBudget(tokens=3), step=3) == [0, 0, 0, 1]


@pytest.mark.parametrize(("kind", "name"), [(FixedCap, "cap"), (TokenBudget, "tokens"), (AdmittedEager, "admission")])
def test_where_no_number_is_given_a_study_has_several_to_choose_from(kind, name):
    values = [getattr(each, name) for each in kind().candidates()]
    assert len(set(values)) == len(values) > 5 and min(values) > 0
    given = kind(**{name: values[0]})
    assert given.candidates() == (given,)
