from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from wavetank_toys.studies import ToyTiming

from wavetank.errors import BadValueError, GaveUpError, WavetankError
from wavetank.machine.clocks import CpuClock, WallClock
from wavetank.study import timing
from wavetank.study.study import Measurements, Metric, Trial
from wavetank.study.timing import SHARE_OF_COPY, SHARE_OF_PEAK, Case, Gain, Repeated, TimingStudy, in_a_row


def test_a_timing_study_keeps_the_systems_of_a_case_in_one_trial() -> None:
    keys = [trial.key for trial in ToyTiming().trials(("a", "b"), (0, 1))]
    assert keys == ["a+b#0/100 numbers", "a+b#0/1000 numbers", "a+b#1/100 numbers", "a+b#1/1000 numbers"]


@dataclass(frozen=True, kw_only=True)
class Logged(TimingStudy):
    """Writes down who was called."""

    name: ClassVar[str] = "logged"
    baseline: ClassVar[str] = "a"
    metrics: ClassVar[tuple[Metric, ...]] = (SHARE_OF_COPY, SHARE_OF_PEAK)
    calls: ClassVar[list[str]] = []

    def cases(self, seed: int) -> Iterable[Case]:
        yield Case("one", None, bytes_moved=1000.0, flops=1000.0)
        yield Case("two", None)

    def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
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


def test_systems_are_interleaved_after_a_warm_up_and_take_turns_to_be_first() -> None:
    run(("a", "b", "c"))
    warm_up, rounds = Logged.calls[:3], Logged.calls[3:12]
    assert warm_up == ["a", "b", "c"]
    assert rounds == ["a", "b", "c", "c", "b", "a", "b", "c", "a"]


def test_a_system_may_be_called_once_untimed_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []
    seconds = WallClock.seconds

    def noted(clock: WallClock, call: Callable[[], object]) -> float:
        timed.append(len(Logged.calls))
        return seconds(clock, call)

    monkeypatch.setattr(Logged, "from_own_state", True)
    monkeypatch.setattr(WallClock, "seconds", noted)
    run(("a", "b"), rounds=2)
    # Of each case the warm-up, then each system twice in a row, of which the second call is timed.
    case = ["a", "b", "a", "a", "b", "b", "b", "b", "a", "a"]
    assert Logged.calls == case * 2
    assert [at for at in timed if at % 10 in (3, 5, 7, 9)] == [3, 5, 7, 9, 13, 15, 17, 19]


def test_a_round_takes_the_place_of_the_seed() -> None:
    records = run(("a", "b"))
    assert sorted({record.seed for record in records}) == [6, 7, 8]


def test_the_baselines_ratio_to_itself_is_one_in_every_round() -> None:
    ratios = [record.value for record in run(("a", "b")) if (record.system, record.metric) == ("a", "time_ratio")]
    assert ratios == [1.0] * 6


def test_without_the_baseline_there_is_no_ratio_to_it() -> None:
    records = run(("b",))
    assert {record.metric for record in records} == {"time_s", "share_of_copy", "share_of_peak"}


def test_shares_of_limits_are_given_where_they_mean_something() -> None:
    shares = {(record.metric, record.at["case"]) for record in run(("a",)) if record.metric.startswith("share")}
    assert shares == {("share_of_copy", "one"), ("share_of_peak", "one")}


def test_shares_of_limits_are_what_the_limit_would_take_over_what_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here every call takes 4 s, a copy 1 s, and the peak is 1000 operations/s: of 1000 operations that is 1 s."""

    def copy() -> None: ...

    def product() -> None: ...

    took = {copy: 1.0, product: timing._PRODUCT_FLOPS / 1000.0}
    monkeypatch.setattr(timing, "_copy", lambda moved: copy)
    monkeypatch.setattr(timing, "_product", lambda: product)
    monkeypatch.setattr(WallClock, "seconds", lambda self, call: (call(), took.get(call, 4.0))[1])
    found = {(record.metric, record.at["case"]): record.value for record in run(("a", "b"))}
    assert found["share_of_copy", "one"] == 0.25
    assert found["share_of_peak", "one"] == pytest.approx(0.25)
    assert found["time_ratio", "one"] == 1.0


def test_a_ratio_is_the_systems_time_over_the_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(self: WallClock, call: Callable[[], object]) -> float:
        call()
        return 2.0 if Logged.calls[-1] == "a" else 3.0

    monkeypatch.setattr(WallClock, "seconds", timed)
    ratios = {record.value for record in run(("a", "b")) if (record.system, record.metric) == ("b", "time_ratio")}
    assert ratios == {1.5}


def test_a_round_that_lacks_a_case_is_not_concluded_beside_one_that_has_all() -> None:
    study = Derived(rounds=2)
    one, two = by_case(study, ("a", "b"), 1)
    later = [record for record in two if record.seed == 3]
    concluded = study.conclude(one + later)
    assert {record.seed for record in concluded} == {3}
    # A system that has only part of its cases spoils the round for all: ratios would compare unequal work.
    partial = [record for record in two if record.system == "a"]
    assert study.conclude(one + partial) == []


def test_a_fast_wrong_answer_takes_no_part() -> None:
    with pytest.raises(ArithmeticError, match="wrong answer"):
        run(("a", "wrong"))


def test_timing_leaves_the_garbage_collector_as_it_was() -> None:
    seen: list[bool] = []

    @dataclass(frozen=True, kw_only=True)
    class Watching(Logged):
        def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
            return lambda: seen.append(gc.isenabled())

    assert gc.isenabled()
    Watching(rounds=2).run(Trial(systems=("a",), seed=0), {"a": "a"})
    assert gc.isenabled()
    assert seen == [True, False, False] * 2


@dataclass(frozen=True, kw_only=True)
class Derived(Logged):
    """A study with figures of a result, of a case and of a whole round."""

    metrics: ClassVar[tuple[Metric, ...]] = (
        SHARE_OF_COPY,
        SHARE_OF_PEAK,
        Metric("total_s", "s", "lower", "measured"),
        Metric("copies", "", "lower", "measured"),
        Metric("part_s", "s", "", "measured"),
        Metric("collects", "", "", "measured"),
    )

    def result_figures(self, case: Case, name: str, system: Any, result: Any) -> dict[str, float]:
        assert name == system
        return {"collects": float(result)}

    def case_figures(self, case: Case, name: str, times: Any, limits: Any) -> Measurements:
        found = Measurements()
        found.put("part_s", times[name] / 2, part="half")
        if "share_of_copy" in limits:
            found.put("copies", times[name] / limits["share_of_copy"])
        return found

    def round_figures(self, name: str, times: Any) -> dict[str, float]:
        assert set(times[name]) == {"one", "two"}
        return {"total_s": sum(times[name].values())}


def test_figures_of_a_result_are_recorded_once_and_those_of_a_case_at_their_own_place_or_the_cases() -> None:
    records = Derived(rounds=2).run(Trial(systems=("a",), seed=1), {"a": "a"})
    rows = [(record.metric, record.seed, dict(record.at)) for record in records]
    assert [row for row in rows if row[0] == "collects"] == [("collects", 2, {"case": each}) for each in ("one", "two")]
    assert [row for row in rows if row[0] == "part_s"] == [("part_s", seed, {"part": "half"}) for seed in (2, 3)] * 2
    assert [row for row in rows if row[0] == "copies"] == [("copies", seed, {"case": "one"}) for seed in (2, 3)]


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


RIVALS = {"ours": 2.0, "other": 4.0, "numpy": 6.0, "torch": 3.0}


def test_a_gain_is_the_least_time_of_the_rivals_present_over_the_systems() -> None:
    gain = Gain("gain", over=("numpy", "torch", "absent"))
    assert gain.ratio("ours", RIVALS) == 1.5
    assert gain.ratio("torch", RIVALS) == 1.0
    assert gain.ratio("ours", {"ours": 2.0, "numpy": 6.0}) == 3.0
    assert gain.ratio("ours", {"ours": 2.0}) is None
    assert gain.ratio("ours", {"numpy": 6.0}) is None
    assert (gain.better, gain.kind) == ("higher", "measured")


def test_where_less_is_better_it_is_the_systems_time_over_theirs() -> None:
    assert Gain("loss", better="lower", over=("numpy", "torch")).ratio("other", RIVALS) == 4.0 / 3.0


def test_a_gain_is_of_the_systems_it_names() -> None:
    only, but = Gain("g", over=("torch",), only=("ours",)), Gain("g", over=("torch",), but=("torch", "numpy"))
    assert [name for name in RIVALS if only.ratio(name, RIVALS) is not None] == ["ours"]
    assert [name for name in RIVALS if but.ratio(name, RIVALS) is not None] == ["ours", "other"]


def test_a_mean_is_over_the_cases_named_and_only_if_all_are_there() -> None:
    times = {"ours": {"x": 1.0, "y": 1.0, "z": 1.0}, "numpy": {"x": 2.0, "y": 8.0, "z": 0.5}}
    assert Gain("g", over=("numpy",)).mean_ratio("ours", times) is None
    assert Gain("g", over=("numpy",), mean="geometric").mean_ratio("ours", times) == pytest.approx(2.0)
    assert Gain("g", over=("numpy",), mean="least").mean_ratio("ours", times) == 0.5
    named = Gain("g", over=("numpy",), mean="geometric", cases=("x", "y"))
    assert named.mean_ratio("ours", times) == pytest.approx(4.0)
    assert Gain("g", over=("numpy",), mean="least", cases=("x", "w")).mean_ratio("ours", times) is None
    assert Gain("g", over=("torch",), mean="least").mean_ratio("ours", times) is None
    # A rival that gave up on a case has no time there.
    assert named.mean_ratio("ours", {**times, "numpy": {"x": 2.0}}) is None


@pytest.mark.parametrize(
    "wrong", [{"over": ()}, {"mean": "median"}, {"by_case": False}, {"better": ""}, {"kind": "guessed"}]
)
def test_a_gain_that_is_ill_defined_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError, match="ill defined"):
        Gain("g", **{"over": ("numpy",), **wrong})


@dataclass(frozen=True, kw_only=True)
class Gaining(Logged):
    """A study with gains; its rival gives up on the second case if asked."""

    metrics: ClassVar[tuple[Metric, ...]] = (
        SHARE_OF_COPY,
        SHARE_OF_PEAK,
        Gain("gain", over=("b",), but=("b",), mean="geometric", at={"of": "both"}),
        Gain("least_gain", over=("b",), but=("b",), by_case=False, mean="least"),
    )


def test_gains_are_recorded_by_case_and_for_the_whole_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 2.0, 8.0, 1.0])

    def timed(self: WallClock, call: Any) -> float:
        return next(clock) if call.__name__ == "call" else 1.0

    monkeypatch.setattr(WallClock, "seconds", timed)
    study = Gaining(rounds=1)
    one, two = by_case(study, ("a", "b"), 0)
    rows = [(r.system, r.metric, r.value, dict(r.at)) for r in [*one, *two, *study.conclude(one + two)]]
    assert [row for row in rows if "gain" in row[1]] == [
        ("a", "gain", 2.0, {"case": "one"}),
        ("a", "gain", 0.125, {"case": "two"}),
        ("a", "gain", pytest.approx(0.5), {"of": "both"}),
        ("a", "least_gain", 0.125, {}),
    ]


def test_every_timing_study_has_ratio_and_time_first_and_says_what_is_measured() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Burning(Logged):
        clock = CpuClock

    for kind, word in ((Logged, "wall time"), (Burning, "processor time"), (ToyTiming, "wall time")):
        ratio, seconds, *others = kind.metrics
        assert (ratio.name, seconds.name) == ("time_ratio", "time_s")
        assert ratio.of.startswith(f"time / time of {kind.baseline}")
        assert seconds.of.startswith(word)
        assert {each.name for each in others} <= {"share_of_copy", "share_of_peak", "process"}


def test_a_call_that_works_several_times_counts_with_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Often(Logged):
        def prepared_call(self, system: Any, case: Case) -> Callable[[], object]:
            return Repeated(in_a_row(super().prepared_call(system, case), 4), 4)

    monkeypatch.setattr(WallClock, "seconds", lambda self, call: (call(), 8.0)[1])
    Logged.calls.clear()
    records = Often(rounds=1).run(Trial(systems=("a",), seed=0, case="two"), {"a": "a"})
    assert [record.value for record in records if record.metric == "time_s"] == [2.0]
    assert Logged.calls == ["a"] * 8


def test_a_system_that_gives_up_has_no_time_and_the_others_have_theirs() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Marked(Logged):
        metrics: ClassVar[tuple[Metric, ...]] = (Metric("gave_up", kind="counted"), SHARE_OF_COPY, SHARE_OF_PEAK)

        def verify(self, case: Case, system: str, result: object) -> None:
            if system in ("b", "c"):
                raise GaveUpError("too hard")

    alone = Marked(rounds=2).run(Trial(systems=("b", "c"), seed=0, case="one"), {"b": "b", "c": "c"})
    assert {(record.metric, record.value) for record in alone} == {("gave_up", 1.0)}
    records = Marked(rounds=1).run(Trial(systems=("a", "b"), seed=0, case="one"), {"a": "a", "b": "b"})
    rows = {(record.system, record.metric): record.value for record in records}
    assert (rows["a", "gave_up"], rows["b", "gave_up"]) == (0.0, 1.0)
    assert {system for system, metric in rows if metric == "time_s"} == {"a"}


@pytest.mark.parametrize("key", ["over", "only", "but", "cases"])
def test_a_lone_name_is_no_tuple_of_names(key: str) -> None:
    with pytest.raises(BadValueError, match=f"{key} must be a tuple"):
        Gain("gain", of="what", **{"over": ("numpy",), key: "numpy"})  # type: ignore[arg-type]
