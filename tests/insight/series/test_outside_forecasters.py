"""Forecasters of another environment: histories go there on their scale, answers come back and are checked."""

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.insight.series import outside_forecasters
from wavetank.insight.series.outside_forecasters import OutsideForecaster
from wavetank.insight.series.study import SeriesForecast
from wavetank.workloads.series import regular


def answering(monkeypatch, said):
    kept = []

    def ask(words, question, *, name, timeout_s):
        kept.append((words, question, name, timeout_s))
        return said(question) if callable(said) else said

    monkeypatch.setattr(outside_forecasters, "ask", ask)
    return kept


def last_of_each(question):
    last = [[v for v in each["values"] if v is not None][-1] for each in question["histories"]]
    return {"forecasts": [[value] * question["steps"] for value in last], "seconds": [0.25] * len(last)}


def test_positive_histories_travel_as_logarithms_and_come_back(monkeypatch):
    kept = answering(monkeypatch, last_of_each)
    one, other = regular(np.array([1.0, np.nan, 8.0])), regular(np.array([-1.0, 0.0, np.nan]), start_ns=5, step_ns=7)
    said, took = OutsideForecaster(model="prophet", limit_s=9.0).forecasts([one, other], 2, "python")
    assert np.allclose(said, [[8.0, 8.0], [0.0, 0.0]])
    assert took == [0.25, 0.25]
    ((words, question, name, limit_s),) = kept
    assert (words[0], name, limit_s, question["model"]) == ("python", "prophet", 9.0, "prophet")
    assert question["histories"][0]["values"] == [0.0, None, pytest.approx(np.log(8.0))]
    assert question["histories"][1] == {"values": [-1.0, 0.0, None], "start_ns": 5, "step_ns": 7}


@pytest.mark.parametrize("said", [
    {}, [], None, {"forecasts": [[1.0]], "seconds": [1.0]}, {"forecasts": [[1.0, 2.0]], "seconds": []},
    {"forecasts": [[1.0, float("nan")]], "seconds": [1.0]}, {"forecasts": "soon", "seconds": [1.0]},
])  # fmt: skip
def test_an_answer_that_is_none_is_refused(monkeypatch, said):
    answering(monkeypatch, said)
    with pytest.raises(WavetankError, match="mstl answered"):
        OutsideForecaster().forecasts([regular(np.array([1.0, 2.0]))], 2, "python")
    with pytest.raises(BadValueError, match="without any value"):
        OutsideForecaster().forecasts([regular(np.array([np.nan]))], 2, "python")


def test_the_study_asks_once_a_seed_and_leaves_out_who_is_not_here(monkeypatch):
    kept = answering(monkeypatch, last_of_each)
    study = SeriesForecast(history="generated", stride=120, outside="/nowhere/python")
    assert not study.measure(OutsideForecaster(), 0).rows
    assert not kept
    monkeypatch.setattr("wavetank.insight.series.study.outside_python", lambda named: named)
    found = {name: value for name, value, at in study.measure(OutsideForecaster(), 0).rows if not at}
    assert len(kept) == 1
    assert len(kept[0][1]["histories"]) == 16
    assert found["forecast_ms"] == 250.0
    from wavetank.insight.series.rivals import LastValue

    beside = {name: value for name, value, at in study.measure(LastValue(), 0).rows if not at}
    assert found["mape_90"] == pytest.approx(beside["mape_90"])
