"""What is seen of a step: costs as planted, the slowest pipeline, and delays by something else."""

from __future__ import annotations

import numpy as np
import pytest
from tests.training.reshaping.streams import COST, LAYERS, observations

from wavetank.training.reshaping.pipeline_clock import slowest_ps
from wavetank.training.reshaping.telemetry import Noise, step_time_s


def test_groups_compute_what_was_planted():
    (seen,) = observations(1, slow=(1, 2, 2.0))
    want = (2e-6 * seen.tokens + 3e-10 * seen.squares + 4e-3).sum(axis=1)[:, None] * np.array(LAYERS)
    want[1, 2] *= 2
    assert np.allclose(seen.busy_s, want, rtol=1e-12)
    assert seen.layers == LAYERS


def test_a_step_lasts_as_long_as_its_slowest_pipeline():
    (seen,) = observations(1)
    chunk = COST.of(seen.tokens, seen.squares)[:, None, :] * np.array(LAYERS)[None, :, None]
    ends = [slowest_ps(np.rint(each * 1e12).astype(np.int64)[None], 10**8) for each in chunk]
    assert step_time_s(chunk, 1e-4) == max(ends) / 1e12
    # What follows takes 5 ms, a few per cent more or less.
    assert 0.004 < seen.step_s - max(ends) / 1e12 < 0.006


def test_a_slow_group_slows_the_step_and_nothing_else_changes():
    (well,), (sick,) = observations(1), observations(1, slow=(0, 0, 3.0))
    assert sick.step_s > 1.5 * well.step_s
    assert (sick.tokens == well.tokens).all() and (sick.squares == well.squares).all()


def test_some_steps_are_delayed_by_something_else():
    plain, delayed = observations(40), observations(40, noise=Noise(chunk=0.0, spikes=0.5, spike=1.0))
    ratios = np.array([b.step_s / a.step_s for a, b in zip(plain, delayed, strict=True)])
    assert 8 <= (ratios > 1.001).sum() <= 32 and ratios.max() < 2
    assert all((a.busy_s == b.busy_s).all() for a, b in zip(plain, delayed, strict=True))


def test_noise_spreads_passes_as_much_as_is_said():
    noisy, plain = observations(200, noise=Noise(chunk=0.1, spikes=0.0, spike=0.0)), observations(200)
    ratios = np.array([a.busy_s / b.busy_s for a, b in zip(noisy, plain, strict=True)])
    # Other draws follow in a noisy stream, so that lengths differ: compare the first step alone.
    assert ratios[0].std() == pytest.approx(0.05, abs=0.03)
