"""TAPER's decisions: a known one, both paths alike, and what each part is for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.branches.conftest import FITTED, line, line_step

from wavetank.errors import WavetankError
from wavetank.serving.branches.interface import view_of
from wavetank.serving.branches.taper import Taper


def compiled(controller, view, predictor, step=None):
    step = step or line_step()
    admitted = np.zeros(view.request.size, np.int64)
    count = controller.choose(
        view, step.function, step.table, predictor, np.zeros(8), controller.parameters(), admitted
    )
    assert count == admitted.sum()
    return np.flatnonzero(admitted).tolist()


def batch(requests=64, tokens=1024, slo_s=0.08, **columns):
    """Return requests past their prompts whose next token is due one objective from now."""
    return view_of(
        deadline_s=np.full(requests, slo_s), tpot_slo_s=slo_s, decodes=requests, context_tokens=requests * tokens,
        **columns,
    )  # fmt: skip


def test_a_known_batch_takes_exactly_thirty_two_branches():
    # T0 = 62.4 ms, so that 14.0 ms may be spent, and a branch at 2,048 tokens costs 0.433 ms.
    view = batch(request=np.repeat(np.arange(64), 2), context=np.full(128, 2048))
    assert len(compiled(Taper(), view, line())) == 32
    assert len(Taper().plan(view, line())) == 32


def test_nothing_fits_without_slack_and_everything_with_infinite_slack():
    for columns, expected in (({"slo_s": 0.062}, 0), ({"slo_s": 1e9}, 128)):
        view = batch(request=np.repeat(np.arange(64), 2), context=np.full(128, 2048), **columns)
        assert len(compiled(Taper(), view, line())) == expected == len(Taper().plan(view, line()))
    endless = view_of(deadline_s=[np.inf], request=[0], context=[10], decodes=1)
    assert compiled(Taper(), endless, line()) == [0]
    assert compiled(Taper(rho=0.0), endless, line()) == [] == Taper(rho=0.0).plan(endless, line())


@st.composite
def views(draw):
    n = draw(st.integers(1, 12))
    request = sorted(draw(st.lists(st.integers(0, n - 1), max_size=40)))
    whole = {"min_size": len(request), "max_size": len(request)}
    rows = {"min_size": n, "max_size": n}
    return view_of(
        now_s=1.0, tpot_slo_s=draw(st.sampled_from([0.05, 0.08, 0.2])), step=draw(st.integers(0, 100)), decodes=n,
        context_tokens=draw(st.integers(0, 100_000)), prefill_tokens=draw(st.sampled_from([0, 0, 256])),
        room=draw(st.integers(0, 50)), deadline_s=draw(st.lists(st.floats(0.9, 3.0), **rows)),
        last_token_s=draw(st.lists(st.floats(0.8, 1.0), **rows)),
        steps_left=draw(st.lists(st.integers(1, 9), **rows)), width=draw(st.lists(st.integers(0, 4), **rows)),
        protected_left=draw(st.lists(st.integers(1, 90), **rows)), request=request,
        context=draw(st.lists(st.integers(1, 9000), **whole)), left=draw(st.lists(st.integers(1, 90), **whole)),
    )  # fmt: skip


CONTROLLERS = st.builds(
    Taper, rho=st.sampled_from([0.0, 0.5, 0.8, 1.0]), most_branches=st.sampled_from([1, 2, 3, 64]),
    bank_share=st.sampled_from([0.0, 0.25, 1.0]), banks=st.booleans(), budget=st.booleans(), replans=st.booleans(),
    predictor=st.sampled_from(["online", "blind"]), fill=st.sampled_from(["skip", "stop"]),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(view=views(), controller=CONTROLLERS)
def test_compiled_and_plain_decisions_are_equal(view, controller):
    assert compiled(controller, view, line()) == controller.plan(view, line())


@settings(max_examples=100, deadline=None)
@given(view=views(), rho=st.sampled_from([0.5, 0.8, 1.0]))
def test_what_is_admitted_lengthens_the_step_by_no_more_than_the_least_slack(view, rho):
    chosen = compiled(Taper(rho=rho), view, line())
    a, b, c = FITTED
    plain = a + b * view.decodes + c * view.context_tokens + 2e-4 * view.prefill_tokens
    longer = sum(b + c * view.context[i] for i in chosen)
    slack = min((view.deadline_s - 1.0) / view.steps_left - plain)
    assert longer <= rho * max(0.0, slack) + 1e-12
    assert len(chosen) <= view.room


def test_branches_that_save_most_per_second_come_first():
    # The second saves as much and reads less; the third ends soon.
    view = batch(requests=1, request=[0, 0, 0], context=[3000, 1000, 1000], left=[90, 90, 2], room=1)
    assert compiled(Taper(), view, line()) == [1]
    # A branch saves no more than the protected one still needs.
    short = view_of(
        deadline_s=[0.12, 0.12], tpot_slo_s=0.12, decodes=2, context_tokens=400_000, request=[0, 1], room=1,
        context=[100, 100], left=[90, 50], protected_left=[10, 60],
    )  # fmt: skip
    assert compiled(Taper(), short, line()) == [1] == Taper().plan(short, line())


def test_a_branch_that_does_not_fit_is_skipped_or_ends_the_search():
    view = batch(requests=1, slo_s=0.0475, request=[0, 0], context=[9000, 100], left=[5000, 1], protected_left=5000.0)
    assert compiled(Taper(), view, line()) == [1]
    assert compiled(Taper(fill="stop"), view, line()) == []


def test_ties_take_turns():
    def first(step):
        return compiled(Taper(), batch(requests=4, request=[0, 1, 2, 3], context=[50] * 4, room=1, step=step), line())

    assert [first(step) for step in range(4)] == [[0], [1], [2], [3]]


def test_a_prompt_that_is_late_stops_branches_and_one_with_time_does_not():
    def chosen(due_s, steps):
        view = view_of(
            deadline_s=[due_s, 0.2], steps_left=[steps, 1], tpot_slo_s=0.2, decodes=1, context_tokens=100,
            prefill_tokens=200, request=[1, 1], context=[100, 100],
        )  # fmt: skip
        return compiled(Taper(), view, line())

    assert chosen(5.0, 4.0) == [0, 1]
    assert chosen(0.3, 4.0) == []


def test_banked_slack_is_spent_in_parts():
    def chosen(**fields):
        view = view_of(
            deadline_s=[0.28], tpot_slo_s=0.08, decodes=1, context_tokens=1000, request=[0] * 256, context=[4096] * 256
        )
        return len(compiled(Taper(most_branches=1000, **fields), view, line()))

    spare, each = 0.28 - 0.0464, FITTED[1] + FITTED[2] * 4096
    assert chosen(bank_share=1.0) == pytest.approx(0.8 * spare / each, abs=1)
    assert chosen() == pytest.approx(0.8 * (0.08 + 0.25 * (spare - 0.08)) / each, abs=1)
    assert chosen(bank_share=0.0) == pytest.approx(0.8 * 0.08 / each, abs=1)


def test_without_banking_the_next_token_is_due_one_objective_after_the_last():
    view = view_of(
        now_s=1.0, deadline_s=[9.0], last_token_s=[0.98], tpot_slo_s=0.08, decodes=1, context_tokens=0,
        request=[0] * 40, context=[4096] * 40,
    )  # fmt: skip
    spare = 0.98 + 0.08 - 1.0 - FITTED[0] - FITTED[1]
    expected = 0.8 * spare / (FITTED[1] + FITTED[2] * 4096)
    assert len(compiled(Taper(banks=False), view, line())) == int(expected)


def test_a_width_once_decided_stays_without_replanning():
    late = view_of(deadline_s=[-1.0, -1.0], width=[3, 0], request=[0, 0, 0, 1], context=[9] * 4, decodes=2)
    assert compiled(Taper(), late, line()) == []
    assert compiled(Taper(replans=False), late, line()) == [0, 1] == Taper(replans=False).plan(late, line())


def test_exact_step_times_belong_to_simulations():
    with pytest.raises(WavetankError, match="simulation"):
        Taper(predictor="exact").plan(batch(request=[0], context=[1]), line())
