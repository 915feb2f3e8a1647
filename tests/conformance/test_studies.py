"""Rules that every study of the catalog keeps."""

from __future__ import annotations

import dataclasses
import inspect
import pickle

from wavetank import catalog
from wavetank.catalog import StudyEntry
from wavetank.cli.facts import parameters_of, question_of
from wavetank.runfolder import Plan, dump_plan
from wavetank.study import Chart, Study, TimingStudy, build_study, settings_of

CHARTS = {"bars", "pareto", "sweep", "distribution", "timeline", "scatter"}


def test_a_study_is_a_frozen_dataclass_of_keywords_named_as_in_the_catalog(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    assert issubclass(kind, Study)
    assert kind.name == study_entry.name
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert all(item.kw_only for item in dataclasses.fields(kind))


def test_its_systems_exist_and_know_it(study_entry: StudyEntry) -> None:
    kind, systems = study_entry.load(), catalog.built_in().systems
    assert kind.systems
    assert len(set(kind.systems)) == len(kind.systems)
    for name in kind.systems:
        assert study_entry.name in systems[name].studies
    assert kind.baseline in kind.systems


def test_its_settings_are_documented_and_can_be_kept(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    assert [each.name for each in parameters_of(kind) if not each.says or each.required] == []
    study = kind()
    assert build_study(kind, settings_of(study)) == study
    assert pickle.loads(pickle.dumps(study)) == study
    assert dump_plan(Plan(study=kind.name, settings=settings_of(study), systems=kind.systems))


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
    assert question_of(study_entry.load()).splitlines()[0].endswith("?")
    assert study_entry.asks.endswith("?")
    module = inspect.getmodule(study_entry.load())
    assert module is not None
    assert inspect.getdoc(module)


def test_figures_of_time_are_measured(study_entry: StudyEntry) -> None:
    kind = study_entry.load()
    if issubclass(kind, TimingStudy):
        assert kind.in_process
        assert {metric.name for metric in kind.timing_metrics} >= {"time_s", "time_ratio"}
