"""The study layout-gather: its gathers, its records, and what it refuses."""

import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.layouts.conversion import LinearLayouts
from wavetank.kernels.layouts.study_gather import KINDS, LayoutGather, executed, gathers_of
from wavetank.run.comparison import compare
from wavetank.study.study import build_study


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return compare("layout-gather", side=32, random_gathers=4, seeds=2, out=tmp_path_factory.mktemp("runs"), on="here")


@pytest.fixture(scope="module")
def figures(result):
    """Return (system, seed, metric, kind) to value."""
    found = {(r.system, r.seed, r.metric, r.at["kind"]): r.value for r in result.records}
    assert len(found) == len(result.records)
    return found


def test_every_gather_is_right(result, figures):
    assert result.failures == ()
    assert {value for (_, _, metric, _), value in figures.items() if metric == "correct_share"} == {1.0}


def test_linear_layouts_need_the_fewest_wavefronts_of_every_kind(figures):
    for (system, seed, metric, kind), value in figures.items():
        if metric == "wavefronts":
            # Which index comes is chance: a twentieth is allowed.
            assert figures["linear-layouts", seed, metric, kind] <= 1.05 * value, (system, kind)
    # Within a thread no trip is needed at all.
    assert figures["linear-layouts", 0, "wavefronts", "thread"] == 1.0
    assert ("linear-layouts", 0, "gain_max", "thread") not in figures


def test_padded_rows_gain_nothing_over_themselves(figures):
    for kind in (*KINDS, "all"):
        assert figures["padded-shared", 0, "gain_mean", kind] == pytest.approx(1.0)
        assert figures["padded-shared", 0, "gain_max", kind] == 1.0


@pytest.mark.parametrize(
    ("kind", "ways"),
    [
        ("thread", {"registers"}),
        ("lanes", {"shuffles"}),
        ("warp", {"shuffles", "shared memory"}),
        ("fragment", {"shuffles", "shared memory"}),
        ("across", {"shared memory"}),
    ],
)
def test_kinds_are_what_they_say(kind, ways):
    assert {LinearLayouts().plan_gather(*each).kind for each in gathers_of(kind, 64, 1, 0)} == ways


def test_the_index_follows_from_the_seed():
    [gather, *_] = gathers_of("across", 32, 1, 0)
    first, again, other = (executed(LinearLayouts(), gather, seed)[1] for seed in (1, 1, 2))
    assert first == again != other
    assert gathers_of("random", 32, 3, 7) == gathers_of("random", 32, 3, 7) != gathers_of("random", 32, 3, 8)


def test_bad_settings_are_refused():
    for side in ("16", 48):
        with pytest.raises(BadValueError, match="not one of the allowed numbers"):
            build_study(LayoutGather, {"side": side})
    with pytest.raises(BadValueError):
        build_study(LayoutGather, {"kinds": "lane"})
