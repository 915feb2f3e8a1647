"""The study: one job for all, figures of all shares, and settings that cannot be run."""

import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.training.sections.omni import MegaScaleOmni
from wavetank.training.sections.placement import Placed
from wavetank.training.sections.placement_rivals import BubbleFilling, FirstStage, Pool
from wavetank.training.sections.study_shifting import ShiftingMix, lssp_error

STUDY = ShiftingMix(images=(0.1, 0.6, 0.9), replicas=2, microbatches=48, stages=4, stage_gpus=4)


def figures(system, seed=0, study=STUDY):
    return {name: value for name, value, at in study.measure(system, seed).rows if not at}


def by_images(system, metric):
    return {at["images"]: value for name, value, at in STUDY.measure(system, 0).rows if name == metric}


def test_equal_seeds_give_equal_figures_but_for_the_time():
    one, same, other = (figures(MegaScaleOmni(), seed) for seed in (1, 1, 2))
    for each in (one, same, other):
        assert each.pop("planning_s") > 0
    assert one == same != other


def test_every_share_has_a_figure_and_the_worst_is_the_least():
    shares = by_images(MegaScaleOmni(), "of_oracle_by_images")
    assert list(shares) == [0.1, 0.6, 0.9]
    found = figures(MegaScaleOmni())
    assert found["worst_of_oracle"] == min(shares.values()) <= found["of_oracle"] <= max(shares.values())
    assert (
        by_images(FirstStage(), "tokens_per_s_by_images")[0.9]
        < 0.8 * by_images(MegaScaleOmni(), "tokens_per_s_by_images")[0.9]
    )


def test_what_is_planned_once_is_planned_for_the_middle():
    assert STUDY.middle == 0.6
    once, best = (by_images(Pool(split=each), "tokens_per_s_by_images") for each in ("once", "best"))
    assert once[0.6] == best[0.6]
    assert once[0.1] < best[0.1]
    assert once[0.9] <= best[0.9]


def test_all_bubbles_hold_all_micro_batches_in_memory():
    ours, bubbles = figures(MegaScaleOmni()), figures(BubbleFilling())
    assert ours["held"] <= 8 < bubbles["held"] == 48
    ratio = ours["encoder_bytes"] / bubbles["encoder_bytes"]
    assert ratio == pytest.approx(ours["held"] / 48, rel=0.01)


def test_shared_samples_are_exact_and_only_asked_of_what_shares_them():
    assert 0 < lssp_error(0) < 1e-12
    assert figures(MegaScaleOmni())["lssp_error"] < 1e-12
    assert "lssp_error" not in figures(FirstStage())
    assert "lssp_error" not in figures(MegaScaleOmni(shared=False))


def test_dealing_evens_micro_batches_out():
    assert figures(MegaScaleOmni())["imbalance"] < 0.1 < figures(MegaScaleOmni(balanced=False))["imbalance"]


def test_a_placer_that_leaves_work_out_is_found():
    class Lazy:
        def step(self, job, planned):
            return Placed(job.oracle_ps // 2, 1, 1)

    with pytest.raises(BadValueError, match="less than its work"):
        STUDY.measure(Lazy(), 0)


def test_what_cannot_be_run_is_refused():
    for words in ({"images": ()}, {"stages": 7}):
        with pytest.raises(BadValueError):
            ShiftingMix(**words).check()
    with pytest.raises(UnknownNameError):
        ShiftingMix(device="H1").check()
    ShiftingMix().check()


def test_notes_give_the_work_of_the_encoder():
    notes = STUDY.notes()
    assert "32 GPUs: 2 replicas of 4 stages of 4" in notes[0]
    assert notes[1].count(",") == 3
