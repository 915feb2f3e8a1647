"""The study of decode energy: what its figures are, against the model asked directly."""

import dataclasses
import math

import numpy as np
import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.platforms.power import power_table
from wavetank.serving.power.architectures import architecture
from wavetank.serving.power.clocks import PhaseAwareClocks
from wavetank.serving.power.dvfs import PowerSetting, some_gpu
from wavetank.serving.power.interface import PhaseSettings
from wavetank.serving.power.rivals import BestSettings, NoPowerLimit
from wavetank.serving.power.study import DecodeEnergy, limits, model_errors

SMALL = DecodeEnergy(
    architectures=("gqa", "mamba2"), batches=(1, 8), contexts=(4096,), engines=("captured",), other_limits=(0.2,)
)


def figures(found, **at):
    return {metric: value for metric, value, where in found.rows if where == at}


class Locked:
    """One clock for answers."""

    def __init__(self, clock_hz):
        self.given = PhaseSettings(decode=PowerSetting(clock_hz=clock_hz))

    def choose(self, bench):
        return dict.fromkeys(bench.cells, self.given)


def test_the_baseline_saves_and_loses_nothing():
    values = figures(SMALL.measure(NoPowerLimit(), 0))
    assert (values["decode_energy_share"], values["request_energy_share"], values["request_time_share"]) == (1, 1, 1)
    assert values["decode_loss_worst"] == values["over_limit_share"] == values["runs"] == 0


def test_figures_of_a_locked_clock_are_those_of_the_model():
    found = SMALL.measure(Locked(900e6), 3)
    gpu = some_gpu("H200-SXM", 3)
    energies, losses = [], []
    for name in ("gqa", "mamba2"):
        for batch in (1, 8):
            work = architecture(name).decode(batch, 4096)
            base, locked = gpu.run(work), gpu.run(work, PowerSetting(clock_hz=900e6))
            energies.append(locked.power_w / locked.tokens_per_s * base.tokens_per_s / base.power_w)
            losses.append(1 - locked.tokens_per_s / base.tokens_per_s)
    values = figures(found)
    assert values["decode_energy_share"] == pytest.approx(math.prod(energies) ** 0.25)
    assert values["decode_saved_most"] == pytest.approx(1 - min(energies))
    assert values["decode_loss_worst"] == pytest.approx(max(losses))
    assert values["over_limit_share"] == np.mean(np.array(losses) > 0.05) > 0
    one = figures(found, architecture="gqa", engine="captured")
    assert one["decode_energy_share"] == pytest.approx(math.prod(energies[:2]) ** 0.5)
    # Answers save, prompts and switches do not: less of the whole request.
    assert values["decode_energy_share"] < values["request_energy_share"] < 1


def test_the_system_saves_a_fifth_and_keeps_the_limit_and_more_loss_saves_more():
    found = SMALL.measure(PhaseAwareClocks(), 0)
    values, best = figures(found), figures(SMALL.measure(BestSettings(), 0))
    assert best["decode_energy_share"] < values["decode_energy_share"] < 0.8
    assert values["over_limit_share"] == 0
    assert figures(found, loss_limit=0.2)["energy_share_within"] < values["decode_energy_share"]
    assert 0.25 < values["rejected_share"] < 0.75


def test_equal_seeds_give_equal_figures_and_other_seeds_other_gpus():
    first, again, other = (SMALL.measure(PhaseAwareClocks(), seed).rows for seed in (1, 1, 2))
    assert first == again != other


def test_limits_are_counted_cell_by_cell():
    gpu = some_gpu("H200-SXM", 0)
    cells = SMALL.cells()
    powers = [gpu.run(cell.work("decode")).power_w for cell in cells]
    cap = sorted(powers)[1] + 0.5
    inert, dominated = limits(gpu, cells, (cap, 700.0))
    assert (inert, dominated) == (sum(power <= cap for power in powers) / len(cells), 1.0)
    assert all(math.isnan(each) for each in limits(gpu, cells, (700.0,)))


@pytest.mark.parametrize("changes", [{"caps": (700.0,)}, {"caps": ()}, {"other_limits": (0.05, 0.2, 0.2)}], ids=str)
def test_figures_are_numbers_and_each_stands_once_whatever_limits_are_tried(changes):
    rows = dataclasses.replace(SMALL, **changes).measure(NoPowerLimit(), 0).rows
    assert all(math.isfinite(value) for _, value, _ in rows)
    keys = [(metric, tuple(at.items())) for metric, _, at in rows]
    assert len(keys) == len(set(keys))
    assert ("caps_inert_share" in {row[0] for row in rows}) == ("caps" not in changes)


def test_the_error_of_the_model_is_said_beside_its_figures():
    errors = model_errors("H200-SXM")
    assert len(errors) >= 10 and np.abs(errors).max() < 0.1
    assert f"{np.abs(errors).max():.1%}" in " ".join(SMALL.notes())
    assert "No clock was ever set" in SMALL.notes()[0]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"device": "H200"}, UnknownNameError),
        ({"architectures": ("gqa", "rwkv")}, UnknownNameError),
        ({"architectures": ()}, BadValueError),
        ({"batches": ()}, BadValueError),
        ({"caps": (150.0,)}, BadValueError),
        ({"batches": (1, 8, 1)}, BadValueError),
        ({"engines": ("captured", "captured")}, BadValueError),
        ({"architectures": ("gqa", "mla", "gqa")}, BadValueError),
        ({"batches": (4096,)}, BadValueError),
    ],
)
def test_impossible_settings_are_refused_before_any_trial(changes, error):
    with pytest.raises(error):
        DecodeEnergy(**changes).check()
    DecodeEnergy().check()
    assert power_table(DecodeEnergy().device).cap_max_w == 700.0
