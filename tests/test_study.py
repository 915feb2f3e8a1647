from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from wavetank_toys.studies import ToyNoise, ToyTiming
from wavetank_toys.systems import Plain, Shifted

from wavetank import study as study_module
from wavetank.errors import BadValueError, WavetankError
from wavetank.study import (
    Case,
    Measurements,
    Metric,
    Study,
    TimingStudy,
    Trial,
    build_study,
    settings_of,
)


@pytest.mark.parametrize(("kind", "better"), [("guessed", "lower"), ("simulated", "smaller")])
def test_a_metric_that_is_ill_defined_is_refused(kind: str, better: str) -> None:
    with pytest.raises(BadValueError) as caught:
        Metric("m", kind=kind, better=better)
    assert str(caught.value) == f"The metric 'm' is ill defined.\n  given: ({kind!r}, {better!r})"


def test_measurements_keep_their_places() -> None:
    found = Measurements({"a": 1})
    found.put("b", 2, load=3)
    assert found.rows == [("a", 1.0, {}), ("b", 2.0, {"load": 3})]


def test_records_carry_the_unit_and_kind_of_their_metric() -> None:
    (value, scatter, *parts) = ToyNoise().run(Trial(systems=("toy-plain",), seed=2), {"toy-plain": Plain()})
    assert (value.study, value.system, value.seed, value.unit, value.kind) == (
        "toy-noise",
        "toy-plain",
        2,
        "s",
        "simulated",
    )
    assert value.value == pytest.approx(scatter.value + 0.1)
    assert [part.at for part in parts] == [{"part": 1}, {"part": 2}]


def test_a_figure_that_is_no_metric_is_refused() -> None:
    with pytest.raises(WavetankError) as caught:
        ToyNoise().stamp("toy-plain", 0, Measurements({"speed": 1}))
    assert str(caught.value) == "The study 'toy-noise' measured 'speed', which is not among its metrics."


def test_every_system_runs_once_before_the_next_seed() -> None:
    keys = [trial.key for trial in ToyNoise().trials(("a", "b"), (0, 7))]
    assert keys == ["a#0", "b#0", "a#7", "b#7"]


def test_a_timing_study_keeps_the_contenders_of_a_case_in_one_trial() -> None:
    keys = [trial.key for trial in ToyTiming().trials(("a", "b"), (0, 1))]
    assert keys == ["a+b#0/100 numbers", "a+b#0/1000 numbers", "a+b#1/100 numbers", "a+b#1/1000 numbers"]


def test_settings_are_the_fields_and_build_back() -> None:
    study = build_study(ToyNoise, {"offset_s": "20 ms", "parts": "3,4"})
    assert settings_of(study) == {
        "offset_s": 0.02,
        "mode": "calm",
        "parts": (3, 4),
        "cap": "auto",
        "remark": "",
    }
    assert build_study(ToyNoise, settings_of(study)) == study


def test_a_wrong_setting_names_its_study() -> None:
    with pytest.raises(BadValueError) as caught:
        build_study(ToyNoise, {"offset": 1})
    assert str(caught.value) == (
        "There is no setting named 'offset'.\n  allowed: cap, mode, offset_s, parts, remark\n  nearest: offset_s\n"
        "  where: study toy-noise\n  next: wavetank show toy-noise"
    )


def test_a_study_that_does_not_measure_says_so() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Empty(Study):
        name: ClassVar[str] = "empty"

    with pytest.raises(WavetankError, match="does not say how to measure"):
        Empty().measure(None, 0)


@dataclass(frozen=True, kw_only=True)
class Logged(TimingStudy):
    """Writes down who was called."""

    name: ClassVar[str] = "logged"
    baseline: ClassVar[str] = "a"
    metrics: ClassVar[tuple[Metric, ...]] = TimingStudy.timing_metrics
    calls: ClassVar[list[str]] = []

    def cases(self, seed: int) -> Iterable[Case]:
        yield Case("one", None, bytes_moved=1000.0, flops=1000.0)
        yield Case("two", None)

    def contender(self, system: Any, case: Case) -> Callable[[], object]:
        def call() -> bool:
            self.calls.append(system)
            return gc.isenabled()

        return call

    def verify(self, case: Case, system: str, result: object) -> None:
        if system == "wrong":
            raise ArithmeticError("wrong answer")


def run(systems: tuple[str, ...], rounds: int = 3, seed: int = 2) -> list[Any]:
    Logged.calls.clear()
    return Logged(rounds=rounds).run(Trial(systems=systems, seed=seed), {name: name for name in systems})


def test_contenders_are_interleaved_after_a_warm_up_and_take_turns_to_be_first() -> None:
    run(("a", "b", "c"))
    warm_up, rounds = Logged.calls[:3], Logged.calls[3:12]
    assert warm_up == ["a", "b", "c"]
    assert rounds == ["a", "b", "c", "c", "b", "a", "b", "c", "a"]


def test_a_round_takes_the_place_of_the_seed() -> None:
    records = run(("a", "b"))
    assert sorted({record.seed for record in records}) == [6, 7, 8]


def test_the_baselines_ratio_to_itself_is_one_in_every_round() -> None:
    ratios = [record.value for record in run(("a", "b")) if (record.system, record.metric) == ("a", "time_ratio")]
    assert ratios == [1.0] * 6


def test_a_ratio_to_an_absent_baseline_is_no_figure() -> None:
    ratios = [record.value for record in run(("b",)) if record.metric == "time_ratio"]
    assert len(ratios) == 6
    assert all(map(math.isnan, ratios))


def test_shares_of_limits_are_given_where_they_mean_something() -> None:
    shares = {(record.metric, record.at["case"]) for record in run(("a",)) if record.metric.startswith("share")}
    assert shares == {("share_of_copy", "one"), ("share_of_peak", "one")}


def test_shares_of_limits_are_what_the_limit_would_take_over_what_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here every call takes 4 s, a copy 1 s, and the peak is 1000 operations/s: of 1000 operations that is 1 s."""
    monkeypatch.setattr(study_module, "_timed", lambda call: (call(), 4.0)[1])
    monkeypatch.setattr(study_module._Copy, "seconds", lambda self: 1.0)
    monkeypatch.setattr(study_module._Product, "flops_per_s", lambda self: 1000.0)
    found = {(record.metric, record.at["case"]): record.value for record in run(("a", "b"))}
    assert found["share_of_copy", "one"] == 0.25
    assert found["share_of_peak", "one"] == 0.25
    assert found["time_ratio", "one"] == 1.0


def test_a_ratio_is_the_contenders_time_over_the_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(call: Callable[[], object]) -> float:
        call()
        return 2.0 if Logged.calls[-1] == "a" else 3.0

    monkeypatch.setattr(study_module, "_timed", timed)
    ratios = {record.value for record in run(("a", "b")) if (record.system, record.metric) == ("b", "time_ratio")}
    assert ratios == {1.5}


def test_a_round_that_lacks_a_case_is_not_concluded_beside_one_that_has_all() -> None:
    study = Derived(rounds=2)
    one, two = by_case(study, ("a", "b"), 1)
    later = [record for record in two if record.seed == 3]
    concluded = study.conclude(one + later)
    assert {record.seed for record in concluded} == {3}
    # A contender that has only part of its cases spoils the round for all: ratios would compare unequal work.
    partial = [record for record in two if record.system == "a"]
    assert study.conclude(one + partial) == []


def test_a_fast_wrong_answer_is_no_contender() -> None:
    with pytest.raises(ArithmeticError, match="wrong answer"):
        run(("a", "wrong"))


def test_timing_leaves_the_garbage_collector_as_it_was() -> None:
    seen: list[bool] = []

    @dataclass(frozen=True, kw_only=True)
    class Watching(Logged):
        def contender(self, system: Any, case: Case) -> Callable[[], object]:
            return lambda: seen.append(gc.isenabled())

    assert gc.isenabled()
    Watching(rounds=2).run(Trial(systems=("a",), seed=0), {"a": "a"})
    assert gc.isenabled()
    assert seen == [True, False, False] * 2


def test_figures_of_a_whole_round_are_derived_from_all_its_times() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Summed(Logged):
        metrics: ClassVar[tuple[Metric, ...]] = (
            *TimingStudy.timing_metrics,
            Metric("total_s", "s", "lower", "measured"),
        )

        def derive(self, times: dict[str, dict[str, float]], copies: dict[str, float]) -> dict[str, Measurements]:
            assert set(copies) == {"one", "two"}
            return {name: Measurements({"total_s": sum(cases.values())}) for name, cases in times.items()}

    records = Summed(rounds=2).run(Trial(systems=("a",), seed=1), {"a": "a"})
    totals = {record.seed: record.value for record in records if record.metric == "total_s"}
    times = [(record.seed, record.value) for record in records if record.metric == "time_s"]
    assert totals == {seed: pytest.approx(sum(value for other, value in times if other == seed)) for seed in (2, 3)}


@dataclass(frozen=True, kw_only=True)
class Derived(Logged):
    """A study with figures of a case and figures of a whole round."""

    metrics: ClassVar[tuple[Metric, ...]] = (
        *TimingStudy.timing_metrics,
        Metric("total_s", "s", "lower", "measured"),
        Metric("copies", "", "lower", "measured"),
    )

    def derive(self, times: dict[str, dict[str, float]], copies: dict[str, float]) -> dict[str, Measurements]:
        found = {name: Measurements({"total_s": sum(cases.values())}) for name, cases in times.items()}
        for name, cases in times.items():
            for case, seconds in cases.items():
                found[name].put("copies", seconds / copies[case], case=case)
        return found


def by_case(study: TimingStudy, systems: tuple[str, ...], seed: int) -> list[list[Any]]:
    return [study.run(trial, {name: name for name in systems}) for trial in study.trials(systems, [seed])]


def figures(records: list[Any], metric: str) -> dict[Any, float]:
    return {(r.system, r.seed, r.at.get("case")): r.value for r in records if r.metric == metric}


def test_a_trial_of_one_case_runs_that_case_alone() -> None:
    Logged.calls.clear()
    one, two = by_case(Logged(rounds=2), ("a", "b"), 3)
    assert [{record.at["case"] for record in records} for records in (one, two)] == [{"one"}, {"two"}]
    assert {record.seed for record in one} == {record.seed for record in two} == {6, 7}
    assert Logged.calls == ["a", "b", "a", "b", "b", "a"] * 2


def test_figures_of_a_case_come_with_it_and_figures_of_a_round_when_all_its_cases_are_done() -> None:
    study = Derived(rounds=2)
    one, two = by_case(study, ("a", "b"), 1)
    assert figures(one + two, "total_s") == {}
    assert set(figures(one, "copies")) == {(name, number, "one") for name in "ab" for number in (2, 3)}
    assert study.conclude(one) == study.conclude(two) == study.conclude([]) == []
    concluded = study.conclude(one + two)
    times = figures(one + two, "time_s")
    assert figures(concluded, "total_s") == {
        (name, number, None): pytest.approx(times[name, number, "one"] + times[name, number, "two"])
        for name in "ab"
        for number in (2, 3)
    }
    assert {record.metric for record in concluded} == {"total_s"}


def test_figures_of_a_round_are_concluded_from_the_times_and_copies_that_were_measured() -> None:
    study = Derived(rounds=1)
    (whole,) = [study.run(Trial(systems=("a",), seed=0), {"a": "a"})]
    seen: list[Any] = []

    @dataclass(frozen=True, kw_only=True)
    class Seeing(Derived):
        def derive(self, times: dict[str, dict[str, float]], copies: dict[str, float]) -> dict[str, Measurements]:
            seen.append((times, copies))
            return {}

    assert Seeing(rounds=1).conclude(whole) == []
    ((times, copies),) = seen
    assert times == {"a": {case: figures(whole, "time_s")["a", 0, case] for case in ("one", "two")}}
    assert copies["one"] == pytest.approx(times["a"]["one"] / figures(whole, "copies")["a", 0, "one"])
    assert math.isnan(copies["two"])


def test_figures_that_a_run_of_all_cases_recorded_are_not_concluded_again() -> None:
    study = Derived(rounds=2)
    records = study.run(Trial(systems=("a",), seed=0), {"a": "a"})
    assert len(figures(records, "total_s")) == 2
    assert study.conclude(records) == []


def test_a_study_may_make_its_cases_by_name() -> None:
    made: list[str] = []

    @dataclass(frozen=True, kw_only=True)
    class Named(Logged):
        cases = TimingStudy.cases

        def case_names(self, seed: int) -> tuple[str, ...]:
            return ("x", "y")

        def case(self, name: str, seed: int) -> Case:
            made.append(name)
            return Case(name, None)

    assert [trial.case for trial in Named().trials(("a",), [0])] == ["x", "y"]
    assert made == []
    Named(rounds=1).run(Trial(systems=("a",), seed=0, case="y"), {"a": "a"})
    assert made == ["y"]
    assert [case.name for case in Named().cases(0)] == ["x", "y"]


def test_a_timing_study_without_cases_and_a_case_that_is_not_there_are_errors() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Empty(Logged):
        cases = TimingStudy.cases

    for ask in (lambda: Empty().trials(("a",), [0]), lambda: Empty().case("x", 0)):
        with pytest.raises(WavetankError, match="names no cases"):
            ask()
    with pytest.raises(WavetankError, match="has no case 'three'") as caught:
        Logged().case("three", 0)
    assert caught.value.allowed == ("one", "two")


def test_toys_see_the_same_draw_under_the_same_seed() -> None:
    study = ToyNoise()
    plain, shifted = (study.measure(toy, 3).rows[0][1] for toy in (Plain(), Shifted(share=0.25)))
    assert shifted == pytest.approx(0.75 * plain)
