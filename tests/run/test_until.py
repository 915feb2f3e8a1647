from __future__ import annotations

import math
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from wavetank.errors import BadValueError, RunFolderError
from wavetank.run import until
from wavetank.run.comparison import Comparison, make_plan, run_plan
from wavetank.run.runfolder import Plan, load_plan
from wavetank.run.until import MOST_SEEDS, Goal, run_until, width_of
from wavetank.study.answer import Answer
from wavetank.study.answer import Comparison as Compared
from wavetank.study.effects import Effect


@pytest.fixture
def toys(tmp_path: Path) -> Callable[..., tuple[Comparison | None, list[int], Path]]:
    """Run the toy study towards a goal; return the result, the numbers of seeds that were run, and the folder."""

    def go(goal: Goal, seeds: int = 2, stop_after: int = 99) -> tuple[Comparison | None, list[int], Path]:
        plan, study = make_plan("toy-noise", systems=["toy-plain", "toy-shifted"], seeds=seeds)
        tried: list[int] = []

        def run(plan: Plan) -> Comparison | None:
            tried.append(len(plan.seeds))
            return run_plan(plan, study, tmp_path, on="here") if len(tried) <= stop_after else None

        return run_until(plan, tmp_path, goal, run), tried, tmp_path

    return go


def test_seeds_are_added_until_the_interval_is_narrow(toys, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = iter([0.2, 0.08, 0.019])
    monkeypatch.setattr(until, "width_of", lambda result: next(widths))
    result, tried, folder = toys(Goal(width=0.02))
    assert tried[0] == 6, "an interval of 95 % needs six pairs"
    assert len(tried) == 3 and tried == sorted(set(tried))
    assert load_plan(folder / "study.toml").seeds == tuple(range(tried[-1])) == result.plan.seeds
    assert {record.seed for record in result.records} == set(range(tried[-1]))


def test_an_answer_that_is_sharp_at_once_needs_no_more(toys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until, "width_of", lambda result: 0.0)
    assert toys(Goal(width=0.02), seeds=8)[1] == [8]


def test_the_budget_ends_a_run_that_stays_wide(toys, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 6.0, 13.0, 19.9, 40.0])
    monkeypatch.setattr(until, "width_of", lambda result: math.inf)
    monkeypatch.setattr(until, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    # Six seeds in six seconds leave time for six of the next fourteen; then for six more; then for none.
    assert toys(Goal(width=0.02, budget_s=20.0))[1] == [6, 12, 18]


def test_no_run_goes_on_for_ever(toys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until, "width_of", lambda result: math.inf)
    assert toys(Goal(width=0.02))[1][-1] == MOST_SEEDS


def test_ctrl_c_ends_it_and_the_plan_on_disk_is_the_one_to_resume(toys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until, "width_of", lambda result: math.inf)
    result, tried, folder = toys(Goal(width=0.02), stop_after=1)
    assert result is None
    assert load_plan(folder / "study.toml").seeds == tuple(range(tried[-1]))


def test_chosen_seeds_are_not_counted_on_from(tmp_path: Path) -> None:
    plan, _ = make_plan("toy-noise", seeds=[3, 7])
    with pytest.raises(BadValueError, match="counts them from 0"):
        run_until(plan, tmp_path, Goal(width=0.02), lambda plan: None)


@pytest.mark.parametrize("given", [{}, {"width": 1.0}, {"width": -0.1}, {"budget_s": 0.0}, {"width": math.nan}])
def test_a_goal_that_ends_nothing_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(BadValueError):
        Goal(**given)


def test_a_plan_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    plan, _ = make_plan("toy-noise", seeds=6)
    with pytest.raises(RunFolderError, match="plan cannot be written"):
        run_until(plan, tmp_path / "missing", Goal(width=0.1), lambda plan: None)


def test_the_width_is_that_of_the_best_system_against_the_baseline(toys) -> None:
    result, _, _ = toys(Goal(width=0.9), seeds=6)
    (found,) = [each.found for each in result.answer.comparisons if each.system == "toy-shifted"]
    expected = 0.0 if found.low == found.high else math.sqrt(found.high / found.low) - 1
    assert width_of(result) == pytest.approx(expected)


def answer_of(best: str, *found: tuple[str, str, Effect]) -> Comparison:
    comparisons = tuple(Compared(system, versus, "m", "", effect, "") for system, versus, effect in found)
    given = Answer("", (), "m", "base", best, comparisons, 6)
    return types.SimpleNamespace(answer=given)  # type: ignore[return-value]


def known(low: float, high: float, count: int = 6, exact: bool = False) -> Effect:
    return Effect((low + high) / 2, low, high, low, high, count, exact)


def test_the_width_is_that_of_the_widest_place_where_enough_pairs_are_known() -> None:
    rows = [("a", "base", known(0.81, 1.21)), ("a", "base", known(0.9, 1.0)), ("b", "base", known(0.1, 10.0)),
            ("a", "b", known(0.01, 100.0))]  # fmt: skip
    # Of the best one against the baseline; without a best one, of all of them.
    assert width_of(answer_of("a", *rows)) == pytest.approx(math.sqrt(1.21 / 0.81) - 1)
    assert width_of(answer_of("", *rows)) == pytest.approx(9.0)
    assert math.isinf(width_of(answer_of("a", ("a", "base", known(0.9, 1.0, count=5)))))
    assert width_of(answer_of("a", ("a", "base", known(0.9, 0.9, count=3)))) == 0.0
    assert math.isinf(width_of(answer_of("a", ("a", "base", known(-1.0, 1.0)))))


def test_seeds_grow_with_the_square_of_the_width_and_at_most_twofold() -> None:
    assert until._wanted(10, 0.022, 0.02) == 3
    assert until._wanted(10, 0.0201, 0.02) == 2
    assert until._wanted(10, 0.5, 0.02) == 10
    assert until._wanted(10, math.inf, 0.02) == until._wanted(10, 0.5, 0.0) == 10


def test_a_run_with_failures_is_not_gone_on_with(tmp_path: Path) -> None:
    plan, _ = make_plan("toy-noise", systems=["toy-plain", "toy-shifted"], seeds=2)
    failed = types.SimpleNamespace(failures=("it",), answer=None)
    tried: list[Plan] = []
    assert run_until(plan, tmp_path, Goal(width=0.02), lambda plan: tried.append(plan) or failed) is failed  # type: ignore[func-returns-value]
    assert len(tried) == 1
