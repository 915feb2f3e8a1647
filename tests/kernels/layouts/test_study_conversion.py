"""The study layout-conversion: its pairs, its records, and what it refuses."""

import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.layouts.study_conversion import KINDS, LayoutConversion, pairs_of
from wavetank.run.comparison import compare
from wavetank.study.study import build_study


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return compare(
        "layout-conversion", side=32, random_pairs=4, seeds=2, out=tmp_path_factory.mktemp("runs"), on="here"
    )


@pytest.fixture(scope="module")
def figures(result):
    """Return (system, seed, metric, kind) to value."""
    found = {(r.system, r.seed, r.metric, r.at["kind"]): r.value for r in result.records}
    assert len(found) == len(result.records)
    return found


def test_every_system_but_the_pair_rules_converts_every_pair(result, figures):
    assert result.failures == ()
    for (system, _, metric, kind), value in figures.items():
        if metric == "correct_share" and system != "pair-rules":
            assert value == 1.0, (system, kind)
    assert figures["pair-rules", 0, "correct_share", "transpose"] == 1.0
    assert figures["pair-rules", 0, "correct_share", "random"] == 0.0
    assert 0.0 < figures["pair-rules", 0, "correct_share", "all"] < 0.5


def test_who_refuses_a_pair_has_no_mean_over_its_kind(figures):
    assert ("pair-rules", 0, "wavefronts", "transpose") in figures
    assert ("pair-rules", 0, "wavefronts", "random") not in figures
    assert ("pair-rules", 0, "plan_s", "random") not in figures


def test_linear_layouts_need_the_fewest_wavefronts_of_every_kind(figures):
    for (system, seed, metric, kind), value in figures.items():
        if metric == "wavefronts":
            assert figures["linear-layouts", seed, metric, kind] <= value * (1 + 1e-12), (system, kind)


def test_padded_rows_gain_nothing_over_themselves(figures):
    for kind in (*KINDS, "all"):
        assert figures["padded-shared", 0, "gain_mean", kind] == pytest.approx(1.0)
        assert figures["padded-shared", 0, "gain_max", kind] == 1.0


def test_counts_do_not_depend_on_the_seed_but_for_random_pairs(figures):
    for (system, seed, metric, kind), value in figures.items():
        if seed == 0 and kind not in ("random", "all") and metric not in ("plan_s", "slowest_plan_s"):
            assert figures[system, 1, metric, kind] == value
    first, again = (pairs_of("random", 32, 3, 7) for _ in range(2))
    assert first == again != pairs_of("random", 32, 3, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_about_one_tensor_each(kind):
    for source, target, _ in pairs_of(kind, 64, 2, 0):
        assert source.out_sizes == target.out_sizes
        assert source.is_surjective
        assert target.is_surjective


def test_bad_settings_are_refused():
    for side in ("16", 48):
        with pytest.raises(BadValueError, match="not one of the allowed numbers"):
            build_study(LayoutConversion, {"side": side})
    with pytest.raises(BadValueError):
        build_study(LayoutConversion, {"kinds": "transposed"})
