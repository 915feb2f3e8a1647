from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from wavetank.study.answer import (
    BETTER,
    EQUAL,
    SHARED,
    SOLE,
    UNDECIDED,
    WORSE,
    Answer,
    Figures,
    Who,
    _amount,
    answer,
    outcome_of,
    standings,
)
from wavetank.study.effects import effect
from wavetank.study.records import Record
from wavetank.study.study import Metric, Study

METRIC = Metric("time", "s", "lower")


@dataclass(frozen=True, kw_only=True)
class Race(Study):
    """A race."""

    name: ClassVar[str] = "race"
    baseline: ClassVar[str] = "base"
    primary: ClassVar[str] = "time"
    secondary: ClassVar[tuple[str, ...]] = ("cost",)
    must_be_zero: ClassVar[tuple[str, ...]] = ("wrong",)
    metrics: ClassVar[tuple[Metric, ...]] = (
        METRIC,
        Metric("cost", "", "lower"),
        Metric("wrong", "", "lower", "counted"),
    )


@dataclass(frozen=True, kw_only=True)
class Cases(Race):
    """A race over several courses."""

    cases_by: ClassVar[str] = "course"


@dataclass(frozen=True, kw_only=True)
class Fixed(Race):
    """A race without chance."""

    exact: ClassVar[bool] = True


def records(metric: str = "time", at: Mapping[str, Any] | None = None, **values: Sequence[float]) -> list[Record]:
    return [
        Record("race", system, seed, metric, value, "s", "simulated", dict(at or {}))
        for system, figures in values.items()
        for seed, value in enumerate(figures)
    ]


def who(*names: str, **special: tuple[str, str]) -> dict[str, Who]:
    return {name: Who("baseline" if name == "base" else "system", name) for name in names} | {
        name: Who(*about) for name, about in special.items()
    }


def noisy(centre: float, count: int = 6, seed: int = 0) -> list[float]:
    """Return values that share a large noise by seed and have a small one of their own."""
    shared = np.exp(0.2 * np.random.default_rng(1).standard_normal(count))
    own = np.exp(0.005 * np.random.default_rng(seed + 2).standard_normal(count))
    return list(centre * shared * own)


def answered(found: Sequence[Record], systems: Mapping[str, Who], study: Study | None = None) -> Answer:
    result = answer(study or Race(), found, systems)
    assert result is not None
    return result


def test_a_small_paired_gain_is_seen_through_a_large_common_noise() -> None:
    found = answered(records(base=noisy(1.0), fast=noisy(0.95, seed=1)), who("base", "fast"))
    assert found.best == "fast"
    assert found.sentence.startswith("fast has 5.1 % less time than base (-6 %")
    assert "at 95 % over 6 pairs" in found.sentence
    assert found.replicates == 6


def test_equal_systems_have_no_winner() -> None:
    found = answered(records(base=noisy(1.0), other=noisy(1.0, seed=1)), who("base", "other"))
    assert found.best == ""
    assert found.sentence.startswith("Undecided: no system differs from base on time")


def test_the_strongest_rival_is_named_with_its_outcome() -> None:
    data = records(base=noisy(1.0), fast=noisy(0.8, seed=1), near=noisy(0.9, seed=2), slow=noisy(1.5, seed=3))
    found = answered(data, who("base", "fast", "near", "slow"))
    assert "and 11 % less time than the strongest rival, near (" in found.sentence
    assert found.caveats[0] == "Also better than base: near (10 % less)."
    (against,) = [each for each in found.comparisons if each.versus == "near"]
    assert (against.system, against.outcome) == ("fast", BETTER)


def test_variants_of_an_idea_are_no_rivals_of_it_and_an_oracle_never_wins() -> None:
    data = records(base=noisy(1.0), fast=noisy(0.8, seed=1), fast0=noisy(0.81, seed=2), knows=noisy(0.1, seed=3))
    found = answered(data, who("base", fast=("system", "idea"), fast0=("system", "idea"), knows=("oracle", "knows")))
    assert found.best == "fast"
    assert "rival" not in found.sentence
    assert "knows" not in str(found)


def test_a_part_of_others_is_the_answer_only_where_nothing_else_competes() -> None:
    data = records(base=noisy(1.0), part=noisy(0.5, seed=1), whole=noisy(0.9, seed=2))
    assert answered(data, who("base", "whole", part=("mechanism", "part"))).best == "whole"
    assert answered(data[:12], who("base", part=("mechanism", "part"))).best == "part"


def test_what_is_wrong_cannot_be_the_answer() -> None:
    data = records(base=noisy(1.0), fast=noisy(0.5, seed=1), right=noisy(0.9, seed=2))
    data += records("wrong", base=[0] * 6, fast=[0, 0, 1, 0, 0, 0], right=[0] * 6)
    found = answered(data, who("base", "fast", "right"))
    assert found.best == "right"
    assert found.caveats == ("fast is left out: its wrong are not zero.",)
    assert "fast" not in found.sentence


def test_the_price_is_named() -> None:
    data = records(base=noisy(1.0), fast=noisy(0.8, seed=1))
    data += records("cost", base=noisy(1.0, seed=4), fast=noisy(1.3, seed=5))
    (price, *_) = answered(data, who("base", "fast")).caveats
    assert price.startswith("At the same time, fast has 29 % more cost (+")


def test_where_all_are_equal_the_next_metric_decides() -> None:
    data = records(base=[1.0] * 6, fast=[1.0] * 6) + records("cost", base=noisy(1.0), fast=noisy(0.5, seed=1))
    found = answered(data, who("base", "fast"))
    assert found.sentence.startswith("Equal on time. fast has 0.5")
    assert found.metric == "cost"
    assert answered(data[:12], who("base", "fast")).sentence == "All systems equal base on time."


def test_cases_are_counted() -> None:
    data = []
    for course, factor in (("flat", 0.5), ("steep", 0.8), ("wet", 1.5)):
        data += records(at={"course": course}, base=noisy(1.0), fast=noisy(factor, seed=1))
    found = answered(data, who("base", "fast"), Cases())
    assert found.sentence.startswith("fast has 0.5")
    assert "times the time of base in 2 of 3 cases (worse: wet)." in found.sentence


def test_it_says_where_the_lead_turns() -> None:
    data = records(base=noisy(1.0), fast=noisy(0.8, seed=1))
    for load, factor in ((0.5, 1.2), (0.8, 0.9), (1.1, 0.7)):
        data += records(at={"load": load}, base=noisy(1.0), fast=noisy(factor, seed=1))
    found = answered(data, who("base", "fast"))
    assert "Along load it is better at 0.8 and 1.1, worse at 0.5, elsewhere undecided or equal." in found.caveats


def test_few_seeds_say_so() -> None:
    one = answered(records(base=[1.0], fast=[0.5]), who("base", "fast"))
    assert one.sentence == "No answer yet on time: 1 of the 3 pairs needed (--seeds 6 gives intervals)."
    three = answered(records(base=noisy(1.0, 3), fast=noisy(0.5, 3, seed=1)), who("base", "fast"))
    assert three.best == "fast"
    assert "95 %" not in three.sentence
    assert three.caveats[-1] == "3 pairs carry no 95 % interval; --seeds 6 gives intervals."


def test_a_study_without_chance_needs_one_run() -> None:
    found = answered(records(base=[1.0], fast=[0.5]), who("base", "fast"), Fixed())
    assert found.sentence == "fast has 0.5 times the time of base."
    assert found.caveats == ()


def test_there_is_no_answer_without_a_rival_or_a_baseline() -> None:
    assert answer(Race(), records(base=[1.0]), who("base")) is None
    assert answer(Race(), records(fast=[1.0], slow=[2.0]), who("fast", "slow")) is None
    assert answer(Race(), [], who("base", "fast")) is None


def test_the_json_has_the_documented_keys() -> None:
    found = answered(records(base=[1.0] * 3, fast=[0.0] * 3), who("base", "fast")).as_json()
    assert list(found) == ["sentence", "caveats", "metric", "baseline", "best", "replicates", "comparisons"]
    assert found["comparisons"][0]["ratio"] == 0.0


@pytest.mark.parametrize(("values", "outcome"), [
    ([0.9, 0.91, 0.92], BETTER), ([1.1, 1.11, 1.12], WORSE), ([0.8, 1.0, 1.2], UNDECIDED), ([1.0, 1.0, 1.0], EQUAL),
    ([1.001, 1.0, 1.0005], EQUAL), ([0.9], UNDECIDED),
])  # fmt: skip
def test_outcomes(values: list[float], outcome: str) -> None:
    assert outcome_of(effect(values), "lower") == outcome


def leads(count: int = 6, **factors: float) -> dict[str, str]:
    data = records(**{name: noisy(factor, count, seed=number) for number, (name, factor) in enumerate(factors.items())})
    return standings(Figures(data), METRIC, {}, who(*factors), columns=1)


def test_a_star_is_for_one_that_beats_all_others_pair_by_pair() -> None:
    assert leads(a=0.9, b=1.0, c=1.1) == {"a": SOLE}
    assert leads(a=1.0, b=1.0, c=1.5) == {"a": SHARED, "b": SHARED}
    assert leads(a=1.0, b=1.0) == {}


def test_there_is_no_star_below_six_pairs() -> None:
    assert leads(5, a=0.5, b=1.0) == {}
    assert leads(6, a=0.5, b=1.0) == {"a": SOLE}


def test_variants_share_a_star_and_an_oracle_has_none() -> None:
    data = records(a=noisy(1.0), a2=noisy(1.0, seed=1), b=noisy(1.5, seed=2), knows=noisy(0.1, seed=3))
    systems = who("b", a=("system", "idea"), a2=("system", "idea"), knows=("oracle", "knows"))
    assert standings(Figures(data), METRIC, {}, systems, columns=1) == {"a": SOLE, "a2": SOLE}


# Logarithms with mean 0 and standard deviation 1: six paired ratios at a chosen distance from 1.
SPREAD = np.array([-1.2, -0.8, -0.2, 0.2, 0.8, 1.2]) / np.std([-1.2, -0.8, -0.2, 0.2, 0.8, 1.2], ddof=1)


def at_t(t: float, sign: float = -1.0) -> list[float]:
    """Return six values that are ``t`` standard errors below 1 (above, for ``sign`` 1): 2.57 alone decide."""
    return list(np.exp(0.02 * (sign * t / np.sqrt(6) + SPREAD)))


@dataclass(frozen=True, kw_only=True)
class Priced(Cases):
    """A race with two prices."""

    secondary: ClassVar[tuple[str, ...]] = ("cost", "wear")
    must_be_zero: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[tuple[Metric, ...]] = (*Race.metrics, Metric("wear", "", "lower"))


def test_what_is_measured_is_never_exact() -> None:
    times_s = {"base": 1.0, "fast": 0.5}
    one = [Record("race", name, 0, "time", value, "s", "measured", {}) for name, value in times_s.items()]

    @dataclass(frozen=True, kw_only=True)
    class Measured(Fixed):
        metrics: ClassVar[tuple[Metric, ...]] = (Metric("time", "s", "lower", "measured"), *Race.metrics[1:])

    assert answered(one, who("base", "fast"), Measured()).sentence.startswith("No answer yet on time")


def test_every_place_and_price_that_is_looked_at_widens_the_intervals() -> None:
    courses = ("a", "b", "c")
    data = [
        each for course in courses
        for each in records(at={"course": course}, base=[1.0] * 6, fast=[0.5] * 6, rival=at_t(40.0, 1.0))
    ]  # fmt: skip
    found = answered(data, who("base", "fast", "rival"), Cases())
    rivals = [each for each in found.comparisons if each.versus == "rival"]
    ratios = [0.5 / value for value in at_t(40.0, 1.0)]
    assert {each.found.low for each in rivals} == {effect(ratios, comparisons=3).low}
    # 3.0 standard errors are enough for one comparison, not for the six of two prices in three places.
    for metric in ("cost", "wear"):
        for course in courses:
            data += records(metric, {"course": course}, base=[1.0] * 6, fast=at_t(3.0, 1.0), rival=[1.0] * 6)
    assert not any("cost" in each for each in answered(data, who("base", "fast", "rival"), Priced()).caveats)
    # Nor for the three points of a sweep.
    sweep = records(base=[1.0] * 6, fast=[0.5] * 6)
    for load in (1.0, 2.0, 3.0):
        sweep += records(at={"load": load}, base=[1.0] * 6, fast=at_t(3.0 if load > 1 else 30.0))
    assert "Along load it is better at 1, elsewhere undecided or equal." in answered(sweep, who("base", "fast")).caveats


def test_a_part_of_others_is_no_strongest_rival() -> None:
    data = records(base=noisy(1.0), fast=noisy(0.8, seed=1), part=noisy(0.7, seed=2), rival=noisy(0.9, seed=3))
    found = answered(data, who("base", "fast", "rival", part=("mechanism", "part")))
    assert "the strongest rival, rival" in found.sentence


def test_only_what_would_have_been_better_is_said_to_be_left_out() -> None:
    data = records(base=noisy(1.0), fast=noisy(0.8, seed=1), slow=noisy(1.5, seed=2))
    data += records("wrong", base=[0.0] * 6, fast=[0.0] * 6, slow=[1.0] * 6)
    assert not any("left out" in each for each in answered(data, who("base", "fast", "slow")).caveats)


def test_the_best_wins_most_places_net_and_then_by_most() -> None:
    courses = {"a": (0.5, 0.9), "b": (0.5, 1.0), "c": (2.0, 1.0)}
    data = [
        each for course, (wild, steady) in courses.items()
        for each in records(at={"course": course}, base=[1.0] * 6, wild=[wild] * 6, steady=[steady] * 6)
    ]  # fmt: skip
    # wild: better twice, worse once; steady: better once.  By how much decides between equal counts.
    assert answered(data, who("base", "steady", "wild"), Cases()).best == "wild"
    data += records(at={"course": "d"}, base=[1.0] * 6, wild=[2.0] * 6, steady=[1.0] * 6)
    assert answered(data, who("base", "wild", "steady"), Cases()).best == "steady"
    pair = records(base=[1.0] * 6, slower=[0.9] * 6, faster=[0.5] * 6)
    assert answered(pair, who("base", "slower", "faster")).best == "faster"


def test_a_price_that_is_lower_in_some_cases_only_is_no_gain() -> None:
    data: list[Record] = []
    for course, cost in (("a", 0.5), ("b", 1.0)):
        data += records(at={"course": course}, base=[1.0] * 6, fast=[0.5] * 6)
        data += records("cost", {"course": course}, base=[1.0] * 6, fast=[cost] * 6)
    assert answered(data, who("base", "fast"), Cases()).caveats == ()


def test_what_is_unsound_is_not_among_those_that_are_better_in_some_cases() -> None:
    data: list[Record] = []
    for course, factor in (("a", 0.5), ("b", 2.0)):
        data += records(at={"course": course}, base=[1.0] * 6, mixed=[factor] * 6, liar=[factor] * 6)
        data += records("wrong", {"course": course}, base=[0.0] * 6, mixed=[0.0] * 6, liar=[1.0] * 6)
    caveats = answered(data, who("base", "mixed", "liar"), Cases()).caveats
    assert "Better in some cases, worse in as many: mixed." in caveats


def test_what_is_undecided_is_not_equal() -> None:
    data = records(base=[1.0] * 6, fast=at_t(1.0)) + records("cost", base=[1.0] * 6, fast=[0.5] * 6)
    found = answered(data, who("base", "fast"))
    assert (found.metric, found.best) == ("time", "")
    assert found.sentence.startswith("Undecided:")


def test_values_that_are_missing_are_no_values() -> None:
    found = Figures(records(base=[1.0, float("nan"), 3.0]))
    assert found.values("time", {}) == {"base": {0: 1.0, 2: 3.0}}


def test_one_system_with_few_pairs_takes_the_star_from_all() -> None:
    data = records(a=noisy(0.5), b=noisy(1.0, seed=1), c=noisy(1.0, 3, seed=2))
    assert standings(Figures(data), METRIC, {}, who("a", "b", "c"), columns=1) == {}


def test_infinitely_more_in_one_case_is_said() -> None:
    assert _amount([2.0, float("inf")], "losses", "base") == "infinitely more losses than base"


def test_what_the_other_has_nothing_of_is_said_without_a_multiple() -> None:
    assert _amount([float("inf")], "savings", "base") == "savings, of which base has none"
    assert _amount([float("inf"), float("inf")], "savings") == "savings"
    assert _amount([float("inf")]) == "infinitely more"


def test_nobody_is_said_to_be_beaten_only_where_it_is_decided() -> None:
    slow = [1.5, 1.51, 1.52, 1.5, 1.49, 1.5]
    base = [1.0] * 6
    decided = answered(records(base=base, slow=slow), who("base", "slow"))
    assert str(decided).splitlines()[:2] == ["No system beats base on time.", "Worse than base: slow."]
    # The interval of the one that is ahead holds 1: nobody knows yet.
    data = records(base=base, slow=slow, ahead=at_t(2.0), less=at_t(1.0), behind=at_t(1.0, 1.0))
    found = answered(data, who("base", "slow", "ahead", "less", "behind"))
    assert found.best == ""
    assert found.sentence.startswith("No system is shown to beat base on time; undecided: ahead, 1.6 % less (")
    assert found.caveats == (
        "Worse than base: slow.",
        "Ahead by less than these runs vary: ahead and less (more seeds narrow the intervals).",
    )
    # What is behind in the middle is not named.
    found = answered(records(base=base, slow=slow, behind=at_t(1.0, 1.0)), who("base", "slow", "behind"))
    assert str(found).splitlines() == ["No system is shown to beat base on time.", "Worse than base: slow."]


def test_an_undecided_case_is_named_with_its_system() -> None:
    data = [
        each for course, figures in {"dry": at_t(2.0), "wet": [1.5, 1.51, 1.52, 1.5, 1.49, 1.5]}.items()
        for each in records(at={"course": course}, base=[1.0] * 6, other=figures)
    ]  # fmt: skip
    sentence = answered(data, who("base", "other"), Cases()).sentence
    assert sentence.startswith("No system is shown to beat base on time; undecided: other, dry, 1.6 % less (")


def test_an_unsound_system_is_no_open_question() -> None:
    data = records(base=[1.0] * 6, slow=[1.5] * 6, ahead=at_t(2.0)) + records("wrong", ahead=[1.0] * 6)
    found = answered(data, who("base", "slow", "ahead"))
    assert str(found).splitlines() == ["No system beats base on time.", "Worse than base: slow."]


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_a_loss_beside_a_baseline_of_zero_is_an_answer_too(better: str) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Signed(Race):
        """A race whose times may be below zero."""

        metrics: ClassVar[tuple[Metric, ...]] = (Metric("time", "s", better), *Race.metrics[1:])

    data = records(base=[0.0] * 6, gain=[1.0] * 6, loss=[-1.0, -2.0, -1.0, -1.0, -1.0, -1.0])
    found = answered(data, who("base", "gain", "loss"), Signed())
    assert (found.best == "gain") == (better == "higher")
    only = answered(records(base=[0.0] * 6, loss=[-1.0, 0.0, -1.0, 0.0, 2.0, -1.0]), who("base", "loss"), Signed())
    assert only.sentence.startswith("Undecided:")
