"""The known answers, to a tenth of a per cent."""

from __future__ import annotations

import pytest

from wavetank.errors import DataUnavailableError
from wavetank.insight.facility import scenes
from wavetank.insight.facility.plant import Action, at_rest
from wavetank.insight.facility.site import Site
from wavetank.insight.facility.study_table import KNOWN, FacilityTable
from wavetank.insight.facility.table import HourlyPolicy

real = pytest.mark.skipif(not scenes.weather_is_here(), reason="data set datacentre-load-weather is not here")


@real
@pytest.mark.parametrize("policy", KNOWN, ids=["A", "B", "C", "D", "E"])
def test_five_policies_come_to_the_known_energy_and_pue(policy: HourlyPolicy) -> None:
    rows = {(name, *at.values()): value for name, value, at in FacilityTable().measure(policy, 0).rows}
    for climate, (energy, pue) in KNOWN[policy].items():
        assert rows["year_energy", climate] == pytest.approx(energy, rel=1e-3)
        assert rows["year_pue", climate] == pytest.approx(pue, rel=1e-3)
    assert rows["off_known",] <= 0.001
    assert rows["short_hours",] == (939 if policy.servers == "last-hour" else 0)


@real
def test_all_servers_take_228619_kwh() -> None:
    weather = scenes.weather("phoenix")
    load = scenes.repeated_week()
    found = at_rest(Site(), load, weather.air_c, weather.wet_c, 0 * load + 100, Action(22.0, 100))
    assert found.servers_kwh == pytest.approx(228_619, rel=1e-5)
    assert len(FacilityTable().data()) == 3


def test_without_the_data_set_it_does_not_begin(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataUnavailableError):
        FacilityTable().check()
