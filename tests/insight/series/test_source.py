"""Quantities of a file: each is what its words say, and unknown ones are refused."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.series.decompose import CloudDecomposition
from wavetank.insight.series.source import _HOW, SeriesSource, span_in_words


@pytest.fixture
def source(tmp_path):
    rows = [
        f"2026-01-{day:02}T00:00:00,{100 + day % 2 + 50 * (day == 20)},{day}"
        for day in range(1, 31)
        if day not in (5, 6, 9)
    ]
    (tmp_path / "m.csv").write_text("\n".join(["time,a,b", *rows]))
    return SeriesSource(tmp_path / "m.csv", CloudDecomposition())


def test_facts_are_counted_from_the_file(source):
    expected = {
        "series": 2, "series_left_out": 0, "values": 27, "begins": "2026-01-01", "ends": "2026-01-30", "step": "1 day",
        "missing_share": 0.1, "gaps": 2, "longest_gap": "2 days", "longest_period": "10 days", "middle": 101.0,
        "outliers": 1, "outlier_share": 1 / 27, "largest_outlier_at": "2026-01-20", "shifts": 0,
    }  # fmt: skip
    assert {name: source.quantity(name, series="a") for name in expected} == expected
    assert source.quantity("largest_outlier_share", series="a") == pytest.approx(0.49, abs=0.01)


def test_every_quantity_says_how_it_is_read(source):
    assert all(source.how(name) for name in _HOW)
    assert source.how("nothing") == ""


def test_what_is_not_there_is_refused(source):
    for name, of in (
        ("nothing", {}), ("values", {"series": "z"}), ("shift_at", {"series": "a", "shift": 0}),
        ("period", {"series": "a", "cycle": 0}), ("cycle_turns", {"series": "a", "cycle": -1}),
    ):  # fmt: skip
        with pytest.raises(BadValueError):
            source.quantity(name, **of)


def test_spans_are_said_in_the_largest_whole_unit():
    assert [span_in_words(each) for each in (0.5, 61, 3600, 86400 * 91.31)] == [
        "0.500 seconds", "1.02 minutes", "1 hour", "91.3 days",
    ]  # fmt: skip


def test_the_grid_is_of_series_that_are_looked_at(source):
    assert np.isnan(source.grid("b").value[4])
    assert source.parts("a") is source.parts("a")


def test_a_fine_grid_is_made_coarser_but_no_jump_of_a_clock_is_hidden(tmp_path):
    def grid_of(seconds):
        (tmp_path / "s.csv").write_text("time,x\n" + "".join(f"{each},{each % 7}\n" for each in seconds))
        return SeriesSource(tmp_path / "s.csv", CloudDecomposition()).grid("x")

    fine = grid_of(range(1_700_000_000, 1_700_025_000))
    assert (fine.step_ns, fine.value.size) == (3 * 10**9, 8334)
    inner = [np.median([each % 7 for each in range(at - 1, at + 2)]) for at in range(1_700_000_003, 1_700_024_000, 3)]
    assert fine.value[1 : 1 + len(inner)].tolist() == inner
    jumped = grid_of([1_690_000_000, *range(1_690_020_000, 1_690_020_100)])
    assert (jumped.step_ns, jumped.value.size) == (10**9, 20_100)
