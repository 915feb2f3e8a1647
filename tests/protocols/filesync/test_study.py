"""The study: figures of every engine, and reasons where there are none."""

from __future__ import annotations

import math

import pytest

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.ledger import catalog
from wavetank.protocols.filesync.study import FileSync


def small(**settings: object) -> FileSync:
    return FileSync(**{"rounds": 120.0, "cuts": 2, "cut_rounds": 30.0, "devices": 2, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", catalog.built_in().plain_run(FileSync.name))
def test_every_engine_gives_every_figure_of_a_simulated_run(name: str) -> None:
    study = small()
    found = study.measure(catalog.system(name).build(), 1)
    given = {metric for metric, _, _ in found.rows}
    assert given == {metric.name for metric in study.metrics} - {"rest_s"}
    values = {metric: value for metric, value, _ in found.rows}
    assert all(value >= 0 or math.isnan(value) for value in values.values())
    assert values["writes"] > 10
    assert study.measure(catalog.system(name).build(), 1).rows == found.rows


def test_the_bilateral_engine_tears_nothing_where_the_timeline_does() -> None:
    study = FileSync(rounds=400.0, work="git", cut_rounds=50.0)
    torn = {
        name: {metric: value for metric, value, _ in study.measure(catalog.system(name).build(), 3).rows}
        for name in ("timeline-sync", "bilateral-sync")
    }
    assert torn["timeline-sync"]["torn_groups_per_look"] > 0
    assert torn["bilateral-sync"]["torn_groups_per_look"] == 0


@pytest.mark.parametrize("name", ["unison", "syncthing"])
def test_a_peer_cannot_be_simulated(name: str) -> None:
    with pytest.raises(BadValueError, match="cannot be simulated") as caught:
        small().measure(catalog.system(name).build(), 1)
    assert "life=real" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["unison", "bilateral-sync"])
def test_real_runs_give_figures_of_the_same_names(name: str) -> None:
    study = small(life="real", rounds=24.0, cuts=1, cut_rounds=10.0, work="git", skew_rounds=0.0)
    try:
        found = study.measure(catalog.system(name).build(), 1)
    except MissingExtraError as error:
        pytest.skip(str(error))
    values = {metric: value for metric, value, _ in found.rows}
    assert values["writes"] > 2
    assert values["rest_s"] >= 0
    assert ("bytes_per_write" in values) == (name == "bilateral-sync")


def test_a_cut_longer_than_the_work_is_refused() -> None:
    with pytest.raises(BadValueError, match="longer than the users' work"):
        small(cut_rounds=500.0).check()
    small().check()


def test_the_notes_say_what_is_a_model() -> None:
    assert any("no such service was run" in note for note in small().notes())
    assert len(small(life="real").notes()) > len(small().notes())
