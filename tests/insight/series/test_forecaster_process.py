"""The process for statsforecast and Prophet: gaps are filled or left, and each model gets what it needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wavetank.insight.series import forecaster_process
from wavetank.insight.series.forecaster_process import filled

FAKE = {
    "statsforecast/__init__.py": "",
    "statsforecast/models.py": (
        "class Model:\n    def __init__(self, season_length): self.season = season_length\n"
        "    def forecast(self, y, h):\n        print('talks')\n"
        "        seasons = self.season if isinstance(self.season, list) else [self.season]\n"
        "        return {'mean': [float(y.sum()), float(sum(seasons)), *[0.0] * (h - 2)]}\n"
        "class MSTL(Model): pass\nclass AutoETS(Model): pass\n"
    ),
    "prophet.py": (
        "class Prophet:\n    def __init__(self, uncertainty_samples): assert uncertainty_samples == 0\n"
        "    def fit(self, frame):\n        self.missing = int(frame['y'].isna().sum())\n"
        "        self.last = frame['ds'].iloc[-1]\n"
        "    def predict(self, frame):\n"
        "        days = (frame['ds'] - self.last).dt.days\n"
        "        return {'yhat': list(days + 0.5 * self.missing)}\n"
    ),
}


def asked(folder, **question):
    for name, text in FAKE.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, str(Path(forecaster_process.__file__))], capture_output=True, text=True, timeout=60,
        check=True, input=json.dumps(question), env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def test_gaps_become_straight_lines_and_ends_stay_level():
    assert filled([None, 1.0, None, None, 4.0, None]).tolist() == [1, 1, 2, 3, 4, 4]
    assert filled([None, 7.0]).tolist() == [7, 7]


@pytest.mark.parametrize(("model", "season"), [("auto-ets", 7.0), ("mstl", 98.0)])
def test_statsforecast_gets_complete_series_and_its_periods(tmp_path, model, season):
    history = {"values": [1.0, None, 3.0] * 100, "start_ns": 0, "step_ns": 86_400 * 10**9}
    said = asked(tmp_path, model=model, steps=3, histories=[history, history])
    assert said["forecasts"] == [[pytest.approx(sum(filled(history["values"]))), season, 0.0]] * 2
    assert len(said["seconds"]) == 2
    assert min(said["seconds"]) >= 0


def test_a_period_without_two_cycles_is_not_given(tmp_path):
    history = {"values": [1.0] * 100, "start_ns": 0, "step_ns": 86_400 * 10**9}
    assert asked(tmp_path, model="mstl", steps=2, histories=[history])["forecasts"] == [[100.0, 7.0]]


def test_prophet_gets_days_with_their_gaps(tmp_path):
    history = {"values": [1.0, None, 3.0], "start_ns": 10**18, "step_ns": 86_400 * 10**9}
    assert asked(tmp_path, model="prophet", steps=2, histories=[history])["forecasts"] == [[1.5, 2.5]]


def test_it_imports_nothing_of_wavetank():
    text = Path(forecaster_process.__file__).read_text()
    assert "from wavetank" not in text
    assert "import wavetank" not in text
