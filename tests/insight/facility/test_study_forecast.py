"""The study of forecasts: errors are those of the definition."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import DataUnavailableError
from wavetank.insight.facility.forecasters import Persistence, Seasonal
from wavetank.insight.facility.scenes import DAY, WEEK, generated_load
from wavetank.insight.facility.study_forecast import FacilityForecast, errors

STUDY = FacilityForecast(load="generated", noises=(0.0,), training_days=8, days=3)


def test_errors_are_those_of_the_definition() -> None:
    load, first = generated_load(11 * DAY, 0.1, 7), 8 * DAY
    found = errors(Persistence(), load, first, 0)
    for ahead in (1, 6, 24):
        off, level = [], []
        for now in range(first, load.size - 60 * ahead + 1, 60):
            truth = load[now + 60 * (ahead - 1) : now + 60 * ahead].mean()
            off.append(load[now - 60 : now].mean() - truth)
            level.append(truth)
        assert found[ahead] == pytest.approx(np.sqrt(np.mean(np.square(off))) / np.mean(level))


def test_last_week_has_no_error_on_a_week_that_repeats() -> None:
    found = {(name, *at.values()): value for name, value, at in STUDY.measure(Seasonal(period_min=WEEK), 2).rows}
    assert found["error_24h", 0.0] < 1e-12 < found["error_24h",]
    assert {name for name, *_ in found} == {"error_1h", "error_6h", "error_24h"}
    assert STUDY.data() == {} and "generated" in STUDY.notes()[0]


def test_counted_requests_that_are_not_here_are_missed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataUnavailableError):
        FacilityForecast(load="counted").check()
