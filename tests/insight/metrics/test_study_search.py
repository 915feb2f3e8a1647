"""The study of searches, on a table that is made up."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.metrics import study_search
from wavetank.insight.metrics.search import PARTS, CclSearch
from wavetank.insight.metrics.study_search import PlanSearch
from wavetank.live.short_runs import Ran, cuts, predicted_bytes
from wavetank.study.tuning import random_median, untried


class InOrder:
    """Tries everything in order."""

    def propose(self, space, tried, draws):
        return untried(space, tried)[0]


@pytest.fixture
def table(monkeypatch):
    """Each plan has another speed; the first of five steps is half as long for one plan, by accident."""
    seconds = [0.1 * (1 + cut.tensor + cut.pipeline / 2 + 3 / cut.micro + cut.checkpoint / 3) for cut in cuts()]
    made = tuple(
        Ran([(0.5 if k == 3 else 1.0) * second, *[second] * 4], int(0.9 * predicted_bytes(cut)))
        for k, (cut, second) in enumerate(zip(cuts(), seconds, strict=True))
    )
    shares = tuple({PARTS[0]: 0.5, PARTS[1]: 0.2} for _ in cuts())
    monkeypatch.setattr(study_search, "measured", lambda steps, keep="": (made, shares))
    return seconds, [ran.held_bytes <= 3_600_000 for ran in made]


def figures(system, seed=0, **settings):
    return {name: value for name, value, _ in PlanSearch(**settings).measure(system, seed).rows}


def test_medians_decide_and_trials_are_counted_until_the_wanted_speed(table):
    seconds, fits = table
    speeds = [1 / second if fit else 0.0 for second, fit in zip(seconds, fits, strict=True)]
    good = [speed >= 0.95 * max(speeds) for speed in speeds]
    found = figures(InOrder())
    assert found["trials"] == good.index(True) + 1
    assert found["good"] == sum(good)
    assert found["trials_of_random_median"] == pytest.approx(found["trials"] / random_median(len(cuts()), sum(good)))
    assert found["speed_of_best"] == pytest.approx(max(speeds[:15]) / max(speeds))
    known = sorted(speed for speed in speeds if speed)
    assert found["best_over_middle"] == pytest.approx(known[-1] / known[len(known) // 2])


def test_a_tuner_sees_the_shares_of_traces(table):
    class Looks(InOrder):
        def propose(self, space, tried, draws):
            assert all(trial.figures == {PARTS[0]: 0.5, PARTS[1]: 0.2} for trial in tried)
            return super().propose(space, tried, draws)

    assert figures(Looks())["trials"] >= 1
    assert figures(CclSearch())["trials"] <= 15


def test_room_in_which_nothing_fits_is_refused():
    with pytest.raises(BadValueError, match="Nothing fits"):
        PlanSearch(room_bytes=1).check()
    PlanSearch(room_bytes=int(np.min([predicted_bytes(cut) for cut in cuts()]))).check()


@pytest.mark.slow
def test_real_plans_are_measured_once_and_kept(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs the library torch")
    few = cuts()[-2:]
    monkeypatch.setattr(study_search, "cuts", lambda: few)
    study_search.measured.cache_clear()
    ran, shares = study_search.measured(1, str(tmp_path))
    study_search.measured.cache_clear()
    assert len(ran) == len(shares) == 2
    assert all(set(each) == set(PARTS) and 0 < each[PARTS[0]] < 1 for each in shares)
    assert (tmp_path / "leaderboard.md").read_text().count("tp4-pp1-dp1") == 2
