"""A dense model on tiles: the source's figures, its rules, memory by hand, and what divides nothing."""

from dataclasses import replace
from itertools import pairwise

import pytest

from wavetank.errors import BadValueError
from wavetank.training.plans.tiles import (
    BEST,
    MODELS,
    Gpt,
    Recipe,
    Tiles,
    calibrated,
    recipes,
    strong_scaling,
    weak_scaling,
)
from wavetank.workloads.pipelines import pipeline_graph

LARGE = calibrated(MODELS["175B"], 1024)
TINY = Gpt(layers=8, hidden=64, heads=4, vocab=100, tokens=32)


def test_models_have_their_parameters():
    for name, gpt in MODELS.items():
        assert gpt.parameters == pytest.approx(float(name[:-1]) * 1e9, rel=0.02)


def test_operations_are_those_of_the_usual_formula():
    gpt, b = MODELS["175B"], 7
    s, layers, h, v = gpt.tokens, gpt.layers, gpt.hidden, gpt.vocab
    assert gpt.flops(b) == pytest.approx(96 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h)))


def test_the_best_configuration_has_the_speed_it_is_calibrated_by_and_its_bubble():
    step = LARGE.step(BEST)
    assert step.flops_per_tile == pytest.approx(57e12, rel=1e-9)
    assert 0.1 < LARGE.share < 0.3
    # 15 of 115 slots.
    assert step.bubble_s / (step.time_s - step.gradient_s) == pytest.approx(15 / 115)
    assert LARGE.replicas(BEST) == 8
    assert LARGE.fits(BEST)


def test_the_bubble_is_that_of_a_simulated_pipeline_and_chunks_divide_it():
    for chunks in (1, 2, 3):
        graph = pipeline_graph(
            schedule="interleaved" if chunks > 1 else "1f1b", stages=16, microbatches=96, chunks=chunks,
            forward_ps=1000 // chunks * 6, backward_ps=2000 // chunks * 6,
        )  # fmt: skip
        busy = 96 * chunks * (1000 // chunks * 6 + 2000 // chunks * 6)
        idle = graph.times().makespan_ps - busy
        assert idle / busy == pytest.approx(15 / 96 / chunks, rel=1e-3)
    step = LARGE.step(BEST._replace(accumulation=96))
    assert step.bubble_s / (step.time_s - step.gradient_s) == pytest.approx(15 / (96 + 15))


def test_shards_across_nodes_lose_and_as_many_stages_per_microbatch_keep_the_speed():
    best = LARGE.step(BEST).flops_per_tile
    assert LARGE.step(BEST._replace(tensor=16)).flops_per_tile < 0.7 * best
    for stages, microbatches in ((4, 25), (8, 50)):
        found = LARGE.step(BEST._replace(pipeline=stages, accumulation=microbatches)).flops_per_tile
        assert found == pytest.approx(best, rel=0.02)
    # More stages for as many microbatches do not.
    assert LARGE.step(BEST._replace(pipeline=32)).flops_per_tile < 0.95 * best


def test_more_microbatches_help_less_and_less():
    speeds = [LARGE.step(BEST._replace(accumulation=each)).flops_per_tile for each in (8, 16, 32, 64, 128)]
    gains = [b / a for a, b in pairwise(speeds)]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] > 1


def test_scaling_loses_gradients_when_weak_and_the_bubble_too_when_strong():
    weak, strong = weak_scaling(LARGE, BEST, 128), strong_scaling(LARGE, BEST, 128)
    few = replace(LARGE, tiles=128)
    alone, many = few.step(BEST), LARGE.step(BEST)
    assert alone.gradient_s == 0.0
    assert weak == pytest.approx(alone.time_s / many.time_s)
    assert strong == pytest.approx(few.step(BEST._replace(accumulation=800)).time_s / 8 / many.time_s)
    assert strong == pytest.approx(weak * (815 / 800) / (115 / 100), rel=1e-3)
    assert strong < weak < 1


def test_memory_by_hand():
    tiles = Tiles(gpt=TINY, tiles=16)
    recipe = Recipe(tensor=2, pipeline=4, micro=3, accumulation=8, shards=1)
    parameters = (12 * 2 * 64**2 + 100 * 64) // 2
    rows = 3 * 32
    kept = 2 * 4 * 2 * rows * 64
    whole = 10 * rows * 64 + (24 * rows * 64 + 5 * 4 * rows * 32) // 2
    assert tiles.held_bytes(recipe) == 4 * parameters + 12 * parameters // 2 + kept + whole
    assert tiles.held_bytes(recipe._replace(shards=0)) == 16 * parameters + kept + whole
    # Fewer microbatches than stages are all that is in flight.
    fewer = tiles.held_bytes(recipe) - tiles.held_bytes(recipe._replace(accumulation=1))
    assert fewer == 2 * 3 * 2 * rows * 64


def test_configurations_divide_tiles_layers_and_heads_each_once():
    tiles = Tiles(gpt=TINY, tiles=16)
    found = list(recipes(tiles))
    assert len(found) == len(set(found))
    # Three sizes of shards times four of stages, but for those that need more tiles than there are.
    pairs = {(each.tensor, each.pipeline) for each in found}
    assert pairs == {(t, p) for t in (1, 2, 4) for p in (1, 2, 4, 8) if t * p <= 16}
    assert len(found) == len(pairs) * 8 * 5 * 2
    for each in found:
        assert tiles.replicas(each) * each.tensor * each.pipeline == 16


@pytest.mark.parametrize("change", [{"tensor": 3}, {"pipeline": 5}, {"micro": 0}, {"shards": 3}, {"tensor": 64}])
def test_a_configuration_that_divides_nothing_is_refused(change):
    with pytest.raises(BadValueError, match="does not divide"):
        LARGE.step(BEST._replace(**change))


@pytest.mark.parametrize("change", [{"share": 0.0}, {"share": float("nan")}, {"half_rows": -1.0}, {"hidden_share": 2.0},
                                    {"memory_share": 0.0}, {"tiles": 12}])  # fmt: skip
def test_tiles_that_cannot_be_are_refused(change):
    with pytest.raises(BadValueError):
        replace(LARGE, **change)


def test_a_speed_that_no_share_reaches_is_refused():
    with pytest.raises(BadValueError, match="No share"):
        calibrated(MODELS["3.6B"], 64, half_rows=1e6)
