"""StepWatch: planted coefficients, planted slow groups, lengths that change, layers that move, damaged input."""

from __future__ import annotations

import numpy as np
import pytest
from tests.training.reshaping.streams import COST, LAYERS, observations

from wavetank.errors import BadValueError
from wavetank.training.reshaping.step_watch import Alarm, StepWatch
from wavetank.training.reshaping.telemetry import Noise

REAL = Noise(chunk=0.02, spikes=0.01, spike=0.5)


def watched(seen, **words):
    watch = StepWatch(**words).start(0.0, 1e-4)
    return watch, [watch.step(each) for each in seen]


def test_planted_coefficients_are_recovered_within_a_percent():
    watch, alarms = watched(observations(40, fixed=False))
    assert alarms == [None] * 40
    for stage in range(len(LAYERS)):
        assert watch.coefficients[:, stage] == pytest.approx(list(COST), rel=0.01)


def test_steps_are_predicted_within_a_percent_without_noise_and_five_with_it():
    for noise, limit in ((Noise(0.0, 0.0, 0.0), 0.01), (REAL, 0.05)):
        watch = StepWatch().start(0.0, 1e-4)
        errors = []
        for seen in observations(120, noise=noise):
            watch.step(seen)
            errors.append(abs(watch.predicted_s / seen.step_s - 1))
        assert np.isnan(errors[:5]).all()
        assert np.nanmean(errors) < limit
        assert np.isfinite(errors[20:]).all()


def test_long_sequences_are_no_alarm():
    for long in (0.0, 1.0):
        seen = [*observations(100, noise=REAL), *observations(200, seed=1, noise=REAL, long=long)]
        assert [each for each in watched(seen)[1] if each] == []


@pytest.mark.parametrize(("factor", "within"), [(1.11, 8), (1.33, 5), (2.0, 5)])
@pytest.mark.parametrize("place", [(0, 0), (1, 2), (2, 1)])
def test_a_slow_group_is_named_soon_after_its_onset(factor, within, place):
    seen = observations(120, slow=(*place, factor), begin=80, noise=REAL)
    alarms = watched(seen)[1]
    first = next(number for number, alarm in enumerate(alarms) if alarm)
    assert 80 <= first < 80 + within
    assert (alarms[first].replica, alarms[first].stage) == place
    assert alarms[first].excess == pytest.approx(factor - 1, abs=0.1)


def test_it_goes_on_to_alarm_until_it_is_reset_and_does_not_take_a_slow_group_for_normal():
    watch, alarms = watched(observations(300, slow=(0, 1, 1.5), begin=80, noise=REAL))
    assert all(alarms[90:])
    watch.reset()
    assert watch.step(observations(1)[0]) is None
    with pytest.raises(BadValueError, match="fitted"):
        _ = watch.coefficients


def test_one_of_two_groups_is_named_although_half_of_all_are_slow():
    def two(seen):
        return seen._replace(
            tokens=seen.tokens[:2], squares=seen.squares[:2], busy_s=seen.busy_s[:2, :1], layers=seen.layers[:1]
        )

    seen = [two(each) for each in observations(80, slow=(1, 0, 3.0), begin=60, noise=REAL)]
    alarms = watched(seen)[1]
    assert alarms[:60] == [None] * 60
    assert (alarms[65].replica, alarms[65].stage) == (1, 0)


def test_one_delayed_step_is_no_alarm():
    seen = observations(60)
    seen[40] = seen[40]._replace(step_s=3 * seen[40].step_s, busy_s=3 * seen[40].busy_s)
    assert watched(seen)[1] == [None] * 60


def test_a_step_that_is_slow_although_no_group_is_names_nobody():
    seen = observations(80)
    seen[50:] = [each._replace(step_s=1.3 * each.step_s) for each in seen[50:]]
    alarms = watched(seen)[1]
    assert alarms[:50] == [None] * 50
    assert alarms[52] == Alarm(-1, -1, pytest.approx(0.3, abs=0.02))


def test_layers_that_move_are_no_alarm_and_slow_groups_are_found_after_it():
    after = observations(60, seed=1, noise=REAL, layers=(2, 2, 4), slow=(2, 0, 1.5), begin=40)
    alarms = watched([*observations(60, noise=REAL), *after])[1]
    assert alarms[:100] == [None] * 100
    assert (alarms[105].replica, alarms[105].stage) == (2, 0)


def test_a_replica_that_leaves_is_no_alarm_and_the_others_are_watched_on():
    after = observations(60, seed=1, noise=REAL, slow=(1, 0, 1.5), begin=40, replicas=2)
    alarms = watched([*observations(60, noise=REAL), *after])[1]
    assert alarms[:100] == [None] * 100
    assert (alarms[105].replica, alarms[105].stage) == (1, 0)


def test_replicas_may_have_fewer_micro_batches_than_others():
    kept = ((1, 1, 1, 1), (1, 1, 0, 0), (1, 1, 1, 0))
    watch, alarms = watched(observations(40, kept=kept))
    assert alarms == [None] * 40
    assert watch.predicted_s == pytest.approx(observations(40, kept=kept)[-1].step_s, rel=0.01)
    for stage in range(len(LAYERS)):
        token_s, square_s, batch_s = watch.coefficients[:, stage]
        assert square_s == pytest.approx(COST.square_s, rel=1e-6)
        # Under a fixed budget only the sum of these two is known.
        assert token_s * 8192 + batch_s == pytest.approx(COST.token_s * 8192 + COST.batch_s, rel=1e-6)


def test_another_number_of_stages_begins_anew():
    alarms = watched([*observations(30), *observations(30, layers=(4, 4))])[1]
    assert alarms == [None] * 60


def test_by_steps_alone_a_slow_group_off_the_critical_path_is_not_found():
    seen = observations(120, slow=(0, 1, 1.12), begin=60)
    assert watched(seen)[1][100] is not None
    assert watched(seen, by_group=False)[1][60:] == [None] * 60


def test_without_squares_long_sequences_are_alarms():
    seen = [*observations(60, long=0.0), *observations(60, seed=1, long=1.0)]
    assert any(watched(seen, quadratic=False)[1])
    assert not any(watched(seen)[1])


@pytest.mark.parametrize(
    "wrong",
    [{"step_s": float("nan")}, {"step_s": 0.0}, {"step_s": float("inf")}, {"busy_s": np.full((3, 3), np.nan)},
     {"tokens": np.full((3, 4), -1.0)}, {"squares": np.full((3, 4), np.inf)}, {"squares": np.ones((3, 5))},
     {"busy_s": np.ones((2, 3))}, {"busy_s": np.ones(3)}, {"layers": (3, 5)}, {"layers": (8, 0, 0)},
     {"tokens": np.ones((0, 4)), "squares": np.ones((0, 4)), "busy_s": np.ones((0, 3))}],
)  # fmt: skip
def test_steps_that_cannot_be_are_refused(wrong):
    watch = StepWatch().start(0.0, 0.0)
    with pytest.raises(BadValueError):
        watch.step(observations(1)[0]._replace(**wrong))
    with pytest.raises(BadValueError, match="boundary"):
        StepWatch().start(0.0, float("nan"))
