"""The study: figures of all shares and amounts, equal samples for all, and settings that cannot be run."""

import numpy as np
import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.training.sections.interface import Plan
from wavetank.training.sections.maestro import Maestro
from wavetank.training.sections.rivals import OneConfiguration, Ordered
from wavetank.training.sections.study import MixedSections

STUDY = MixedSections(images=(0.3, 0.6), work=(0.2, 1.0), ranks=2, samples_per_rank=12)


def figures(system, study=STUDY, seed=0):
    return {name: value for name, value, at in study.measure(system, seed).rows if not at}


def by(system, metric, place, study=STUDY):
    return {at[place]: value for name, value, at in study.measure(system, 0).rows if name == metric}


def test_equal_seeds_give_equal_figures_but_for_the_planning_time():
    one, same, other = (figures(Maestro(), seed=seed) for seed in (1, 1, 2))
    for each in (one, same, other):
        assert each.pop("planning_s") > 0
    assert one == same != other


def test_every_share_and_amount_has_a_figure_and_the_whole_lies_between():
    found = by(Maestro(), "tokens_per_s_by_work", "work")
    assert list(found) == [0.2, 1.0]
    assert min(found.values()) <= figures(Maestro())["tokens_per_s"] <= max(found.values())
    assert list(by(Maestro(), "tokens_per_s_by_images", "images")) == [0.3, 0.6]


def test_a_light_encoder_of_its_own_gains_its_work_and_costs_an_eighth_of_the_gpus():
    ours, one = (by(each, "tokens_per_s_by_work", "work")[0.2] for each in (Maestro(), OneConfiguration()))
    assert ours / one == pytest.approx(1.2, abs=0.05)
    ours, one = (by(each, "tokens_per_s_per_gpu_by_work", "work")[0.2] for each in (Maestro(), OneConfiguration()))
    assert ours / one == pytest.approx(1.2 / 1.125, abs=0.05)


def test_texts_alone_are_as_fast_as_the_model():
    texts = MixedSections(images=(0.0,), work=(0.5,), ranks=1, samples_per_rank=8)
    assert figures(Maestro(), texts)["of_text_only"] == 1.0
    assert figures(Maestro(), texts)["time_over_bound"] == 1.0


def test_an_encoder_of_the_fewest_gpus_is_as_large_as_its_work():
    study = MixedSections(encoder_gpus=0)
    assert [study.batch(0, 0.5, work).encoder_gpus for work in study.work] == [2, 4, 7, 8, 10]
    assert STUDY.batch(0, 0.5, 1.25).encoder_gpus == 8


def test_times_that_were_not_predicted_cost_and_gradients_stay():
    noisy = MixedSections(images=(0.3, 0.6), work=(0.2, 1.0), ranks=2, samples_per_rank=12, noise=0.3)
    found = figures(Maestro(), noisy)
    assert found["time_over_bound"] > figures(Maestro())["time_over_bound"]
    assert found["gradient_error"] < 1e-12


def test_a_planner_that_drops_samples_is_found():
    class Forgetful(Ordered):
        def plan(self, batch):
            plan = super().plan(batch)
            return Plan(orders=(plan.orders[0][1:], *plan.orders[1:]), queue=plan.queue)

    with pytest.raises(BadValueError, match="each sample once"):
        STUDY.measure(Forgetful(), 0)


def test_what_cannot_be_run_is_refused():
    for words in ({"stages": 7}, {"images": ()}, {"work": ()}):
        with pytest.raises(BadValueError):
            MixedSections(**words).check()
    with pytest.raises(UnknownNameError):
        MixedSections(model="Lama").check()
    MixedSections().check()


def test_notes_name_the_gpus_of_the_encoder():
    assert "2, 4, 7, 8, 10 GPUs for the encoder" in MixedSections(encoder_gpus=0).notes()[0]
    assert "Lengths are" in MixedSections(lengths="documents").notes()[1]
    assert np.isfinite(figures(Ordered(rule="static"))["time_over_bound"])
