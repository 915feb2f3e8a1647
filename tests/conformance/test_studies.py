"""Rules that every study of the catalog keeps."""

from __future__ import annotations

import dataclasses
import inspect
import pickle

from wavetank.ledger import catalog
from wavetank.ledger.catalog import StudyEntry
from wavetank.ledger.facts import parameters_of, setup_of
from wavetank.run.runfolder import Plan, dump_plan
from wavetank.study.effects import LEAST_FOR_VERDICT
from wavetank.study.study import Chart, Study, build_study, settings_of
from wavetank.study.timing import Gain, TimingStudy

CHARTS = {"bars", "pareto", "sweep", "distribution", "timeline", "scatter"}


def test_a_study_is_a_frozen_dataclass_of_keywords_named_as_in_the_catalog(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    assert issubclass(kind, Study)
    assert kind.name == study_entry.name
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert all(item.kw_only for item in dataclasses.fields(kind))


def test_a_plain_run_includes_its_baseline(study_entry: StudyEntry) -> None:
    assert study_entry.load().baseline in catalog.built_in().plain_run(study_entry.name)


def test_its_settings_are_documented_and_can_be_kept(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    assert [each.name for each in parameters_of(kind) if not each.says or each.required] == []
    study = kind()
    assert build_study(kind, settings_of(study)) == study
    assert pickle.loads(pickle.dumps(study)) == study
    assert dump_plan(Plan(study=kind.name, settings=settings_of(study), systems=(kind.baseline,)))


def test_its_defaults_lie_within_what_it_allows(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    text = {name: value for name, value in settings_of(kind()).items() if isinstance(value, str | int | float)}
    as_typed = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in text.items()}
    assert {name: getattr(build_study(kind, as_typed), name) for name in text} == text


def test_its_metrics_have_definitions(study_entry: StudyEntry) -> None:
    metrics = study_entry.load().metrics
    names = [metric.name for metric in metrics]
    assert names
    assert len(set(names)) == len(names)
    assert [metric.name for metric in metrics if not metric.of] == []
    assert any(metric.table for metric in metrics)


def test_its_charts_show_its_metrics(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    names = {metric.name for metric in kind.metrics}
    charts: tuple[Chart, ...] = kind.charts
    for chart in charts:
        assert chart.kind in CHARTS
        assert {chart.y, chart.x} - {""} <= names
        assert bool(chart.x) == (chart.kind == "pareto")
        assert chart.log in ("", "x", "y", "xy")
        assert chart.title
        assert chart.says


def test_its_question_is_asked(study_entry: StudyEntry) -> None:
    assert study_entry.asks.endswith("?")
    # The question stands in the catalog alone.
    assert "?" not in setup_of(study_entry.load()).partition("\n\n")[0]
    assert setup_of(study_entry.load())
    module = inspect.getmodule(study_entry.load())
    assert module is not None
    assert inspect.getdoc(module)


def test_figures_of_time_are_measured(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    if issubclass(kind, TimingStudy):
        assert kind.in_process
        assert [metric.name for metric in kind.metrics[:2]] == ["time_ratio", "time_s"]
        assert kind.metrics[1].of.startswith(kind.clock.measures)


def test_a_gain_is_over_and_of_systems_that_exist(study_entry: StudyEntry) -> None:
    for gain in study_entry.load().metrics:
        if isinstance(gain, Gain):
            assert {*gain.over, *gain.only, *gain.but} <= set(catalog.built_in().systems)


# Studies in which nothing competes, with the reason; none as yet.
NOTHING_COMPETES: dict[str, str] = {}


def test_its_primary_metric_decides_who_is_better(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    metrics = {metric.name: metric for metric in kind.metrics}
    if study_entry.name in NOTHING_COMPETES:
        assert kind.primary == ""
        return
    assert kind.primary in metrics
    assert metrics[kind.primary].better in ("lower", "higher")


def test_what_the_answer_costs_is_said_by_at_most_three_metrics_that_exist(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    metrics = {metric.name: metric for metric in kind.metrics}
    assert len(kind.secondary) <= 3
    assert len({kind.primary, *kind.secondary}) == 1 + len(kind.secondary)
    for name in kind.secondary:
        assert metrics[name].better in ("lower", "higher")


def test_what_no_system_may_do_is_a_metric_that_is_better_lower(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    metrics = {metric.name: metric for metric in kind.metrics}
    assert len(set(kind.must_be_zero)) == len(kind.must_be_zero)
    for name in kind.must_be_zero:
        assert metrics[name].better == "lower"


def test_a_plain_run_gives_an_answer(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    (primary,) = (metric for metric in kind.metrics if metric.name == kind.primary)
    # One run is enough where the figure is the same every time, which a measured one is not.
    assert kind.default_seeds >= (1 if kind.exact and primary.kind != "measured" else LEAST_FOR_VERDICT)


def test_rounds_of_one_process_are_one_replicate(study_entry: StudyEntry) -> None:
    study = study_entry.load()()
    rounds = getattr(study, "rounds", 1) if isinstance(study, TimingStudy) or study_entry.name == "proxy-speed" else 1
    assert study.rounds_per_replicate == rounds
