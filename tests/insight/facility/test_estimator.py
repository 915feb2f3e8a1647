"""The filter on its own plant: silent without noise, loud when the air is another, right when it has learned."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.facility import plant
from wavetank.insight.facility.estimator import IN_A_ROW, REFIT_MIN, Estimator, Readings, WeeklyRefit, refitted
from wavetank.insight.facility.plant import Action, advance, at_start
from wavetank.insight.facility.site import Site


def followed(site: Site, believed: Site, loads: list[float], *, noise: float, doubt: float = 0.005, each: int = 60):
    state, estimator, draws = at_start(site), Estimator(believed, noise=noise, doubt=doubt), np.random.default_rng(3)
    found, tables = [], []
    for load in loads:
        ones = np.ones(each)
        table = advance(site, state, Action(24.0, site.servers), load * ones, 30 * ones, 18 * ones)
        off = noise * draws.normal(size=(each, 3))
        readings = Readings(
            table[:, plant.ROOM] + 0.3 * off[:, 0], table[:, plant.SERVERS] * (1 + 0.02 * off[:, 1]),
            table[:, plant.INLET] + 0.3 / np.sqrt(10) * off[:, 2],
        )  # fmt: skip
        found.append(estimator.take(readings, load * site.servers * ones, table[:, plant.ACTIVE],
                                    table[:, plant.BOOTING], 30 * ones, 24.0, 1.0))  # fmt: skip
        tables.append(table)
    return estimator, np.concatenate(found), np.concatenate(tables)


def test_without_noise_its_own_plant_never_surprises_it() -> None:
    estimator, surprises, _ = followed(Site(), Site(), [0.3, 0.7, 0.5], noise=0.0)
    assert surprises.max() < 1e-6 and estimator.alarms == 0


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_air_that_is_another_is_an_alarm_within_ten_minutes_of_a_change_of_load(noise: float) -> None:
    site, other = Site(), Site(recirculation=0.15)
    state, estimator, draws = at_start(site), Estimator(site), np.random.default_rng(3)
    for now, load, count in ((site, 0.3, 600), (site, 0.7, 60), (other, 0.3, IN_A_ROW - 1), (other, 0.3, 1)):
        ones, off = np.ones(count), noise * draws.normal(size=(count, 3))
        table = advance(now, state, Action(24.0, 100), load * ones, 30 * ones, 18 * ones)
        readings = Readings(
            table[:, plant.ROOM] + 0.3 * off[:, 0], table[:, plant.SERVERS] * (1 + 0.02 * off[:, 1]),
            table[:, plant.INLET] + 0.095 * off[:, 2],
        )  # fmt: skip
        before = estimator.alarms
        surprises = estimator.take(readings, 100 * load * ones, table[:, plant.ACTIVE], table[:, plant.BOOTING],
                                   30 * ones, 24.0, 1.0)  # fmt: skip
        assert before == 0 and ((surprises > 3).all() if now is other else (surprises > 3).mean() < 0.05)
    assert estimator.alarms == 1


def test_after_the_alarm_it_learns_what_the_air_is() -> None:
    estimator, surprises, _ = followed(Site(recirculation=0.15), Site(), [0.3, 0.7] * 12, noise=1.0)
    assert estimator.recirculation == pytest.approx(0.15, abs=0.003)
    assert estimator.recirculation_sd < 0.003
    assert (surprises[-600:] > 3).mean() < 0.02 and estimator.alarms <= 2


def test_noise_alone_is_no_alarm() -> None:
    estimator, surprises, _ = followed(Site(), Site(), [0.3, 0.7] * 24, noise=1.0)
    assert estimator.alarms == 0 and 0.5 < np.median(surprises) < 2.0


def test_a_meter_that_is_off_is_found() -> None:
    site = Site()
    estimator, ones = Estimator(site), np.ones(300)
    table = advance(site, at_start(site), Action(24.0, 100), 0.5 * ones, 30 * ones, 18 * ones)
    readings = Readings(table[:, plant.ROOM], table[:, plant.SERVERS] + 400.0, table[:, plant.INLET])
    estimator.take(readings, 50 * ones, table[:, plant.ACTIVE], table[:, plant.BOOTING], 30 * ones, 24.0, 1.0)
    assert estimator.state[1] == pytest.approx(400.0, abs=40.0)


def test_silent_sensors_change_nothing_but_doubt() -> None:
    estimator, none, ones = Estimator(Site()), np.full(50, np.nan), np.ones(50)
    before = estimator.recirculation_sd
    found = estimator.take(Readings(none, none, none), 50 * ones, 100 * ones, 0 * ones, 30 * ones, 24.0, 1.0)
    assert (found == 0).all() and estimator.recirculation == 0.1 and estimator.recirculation_sd > before


def test_a_week_of_minutes_gives_capacity_walls_and_air_back() -> None:
    site = Site(capacity_j_per_k=3e6, walls_w_per_k=220.0, recirculation=0.13)
    _, _, table = followed(site, site, [0.2, 0.8, 0.5, 0.3], noise=0.0, each=120)
    room, air = table[:, plant.ROOM], 30.0 + 5 * np.sin(np.arange(len(table)) / 50)
    # Walls are known from air by outside temperatures that change: minutes are made with those.
    state, rows = at_start(site), []
    for now, load in enumerate(np.repeat([0.2, 0.8, 0.5, 0.3], 120)):
        rows.append(advance(site, state, Action(24.0, 100), np.array([load]), air[now : now + 1], np.array([18.0]))[0])
    table = np.array(rows)
    room = table[:, plant.ROOM]
    found = refitted(room, table[:, plant.SERVERS] + table[:, plant.FANS], table[:, plant.HEAT], air,
                     table[:, plant.INLET] - 24.0, table[:, plant.RISE])  # fmt: skip
    assert found.capacity_j_per_k == pytest.approx(3e6, rel=0.02)
    assert found.walls_w_per_k == pytest.approx(220.0, rel=0.1)
    assert found.recirculation == pytest.approx(0.13, abs=1e-9)


def test_a_week_without_a_room_sensor_changes_no_belief() -> None:
    refit, ones = WeeklyRefit(Site()), np.ones(REFIT_MIN)
    silent = Readings(np.nan * ones, np.nan * ones, np.nan * ones)
    assert refit.take(silent, 50 * ones, 100 * ones, 0 * ones, 30 * ones, 24.0, 1.0) is refit.site == Site()


def test_nothing_is_fitted_to_nothing() -> None:
    flat = np.full(100, 20.0)
    with pytest.raises(BadValueError, match="did not change"):
        refitted(flat, flat, flat, flat, flat, flat)
    with pytest.raises(BadValueError, match="an hour"):
        refitted(flat[:30], flat[:30], flat[:30], flat[:30], flat[:30], flat[:30])


@pytest.mark.parametrize("wrong", [{"noise": -1.0}, {"noise": float("nan")}, {"doubt": 0.0}, {"doubt": 2.0}])
def test_filters_that_there_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadValueError, match="filter needs"):
        Estimator(Site(), **wrong)
