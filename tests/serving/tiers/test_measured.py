"""The measured profile: at the rate that it gives a unit keeps up, and not far above."""

import pytest
from tests.serving.tiers.conftest import TIERS

from wavetank.serving.tiers.interface import Rules, Unit
from wavetank.serving.tiers.measured import Profile, best_alone
from wavetank.workloads.generate import FixedLengths


def test_a_unit_keeps_up_the_rate_of_its_profile_and_misses_above_it(hardware):
    lengths = (FixedLengths(prompt_tokens=1000, output_tokens=100), FixedLengths(prompt_tokens=2000, output_tokens=50))
    small = hardware.__class__(device="H100-SXM", model="Qwen3-14B", gpus=1, degrees=(1,))
    profile = Profile(hardware=small, tiers=TIERS, lengths=lengths)
    tight, loose = profile.units(True)
    for unit in (tight, loose):
        assert profile.within(unit, unit.per_s, Rules()) >= 0.9
        assert profile.within(unit, 1.2 * unit.per_s, Rules()) < 0.9


def test_the_most_of_one_tier_alone_is_that_of_its_own_units():
    units = (Unit(0, 1, 0, 0, 2.0), Unit(0, 2, 0, 0, 5.0), Unit(1, 1, 0, 0, 9.0))
    assert best_alone(units, 0, 3) == pytest.approx(7.0)
