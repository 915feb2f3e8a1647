"""The study of forms: sizes are those of the streams, and a wrong decoder is noticed."""

import numpy as np
import pytest

from wavetank.training.rollouts.delta import bytes_per_element
from wavetank.training.rollouts.forms import DeltaForm
from wavetank.training.rollouts.study_sync import WeightSync

pytest.importorskip("torch")

STUDY = WeightSync(rates=(1e-6, 1e-3), steps=2, updates=1, shares=(0.05, 0.5), weights=50_000)


def figures(system, seed=0):
    return {(name, *at.values()): value for name, value, at in STUDY.measure(system, seed).rows}


def test_sizes_are_those_of_real_streams():
    found = {form: figures(DeltaForm(form=form)) for form in ("dense", "coo", "bitmap", "gap")}
    for form, each in found.items():
        assert each["wrong_weights",] == 0
        for share in STUDY.shares:
            # A stream begins with 36 bytes.
            assert each["bytes_by_share", share] == pytest.approx(bytes_per_element(form, share), abs=0.003)
        assert each["transfer_s", 1e-6] == pytest.approx(each["bytes_per_weight", 1e-6] * 32.8e9 / 2.5e9)
        assert each["coding_ns", 1e-3] > 0
    few, many = found["coo"]["changed_share", 1e-6], found["coo"]["changed_share", 1e-3]
    assert few < 0.05 < 0.3 < many
    assert found["coo"]["bytes_per_weight", 1e-6] == pytest.approx(6 * few, abs=0.001)
    assert found["gap"]["bytes_per_weight", 1e-6] < found["coo"]["bytes_per_weight", 1e-6] < 2


def test_a_known_share_of_random_weights_changes():
    before, after = STUDY.changed(0.05, 1)
    assert (before != after).sum() == 2500
    assert set(np.unique((after - before)[before != after])) == {1, 2}
    assert (STUDY.changed(0.05, 1)[1] == after).all()


def test_wrong_weights_are_counted():
    class Forgetful(DeltaForm):
        def decode(self, data, before):
            return before.copy()

    found = figures(Forgetful(form="gap"))
    assert found["wrong_weights",] > 2500
