"""The study stencil: its records, what it derives, and what it refuses."""

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.stencils import study as module
from wavetank.kernels.stencils.row_blocks import column_and_row
from wavetank.kernels.stencils.study import COPIES, StencilStudy, _squares, pattern_of
from wavetank.ledger import catalog
from wavetank.machine import limits as machine
from wavetank.run.comparison import compare
from wavetank.study.study import Trial, build_study

LEFT_OUT = {"devito", "torch-conv2d", "opencv"}
SYSTEMS = tuple(name for name in catalog.built_in().plain_run("stencil") if name not in LEFT_OUT)
CASES = ("star-1", "box-1")
ROUNDS = 2


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    given = {"side": 128, "steps": 3, "stencils": CASES, "rounds": ROUNDS}
    return compare("stencil", seeds=1, systems=SYSTEMS, out=folder, on="here", **given)


def figures(result, metric):
    found = {
        (r.system, r.seed, r.at.get("stencil") or (r.at["shape"], r.at["flops_per_byte"])): r.value
        for r in result.records
        if r.metric == metric
    }
    assert found
    return found


def test_every_system_has_a_time_for_every_case_and_round(result):
    assert result.failures == ()
    wanted = {(name, number, case) for name in SYSTEMS for number in range(ROUNDS) for case in CASES}
    assert set(figures(result, "time_s")) == wanted
    assert {record.kind for record in result.records} == {"measured"}


def once(times, number, case):
    return min(part * times[copy, number, case] for copy, part in COPIES.items())


def test_the_share_of_the_bound_is_steps_times_the_fastest_copy_over_the_time(result):
    times = figures(result, "time_s")
    for (system, number, case), value in figures(result, "share_of_bound").items():
        assert system not in COPIES
        assert value == pytest.approx(3 * once(times, number, case) / times[system, number, case])


def test_no_copy_beats_the_bound(result):
    times = figures(result, "time_s")
    for number in range(ROUNDS):
        for case in CASES:
            assert once(times, number, case) <= min(times[name, number, case] for name in ("grid-copy", "grid-stream"))


def test_the_share_of_the_roofline_counts_arithmetic_where_that_takes_longer(monkeypatch):
    times = dict.fromkeys(COPIES, 0.5) | {"stencil-sweep": 4.0}
    for weights, flops in (("random", 161), ("separable", 34), ("equal", 34)):
        study = StencilStudy(side=100, steps=1, weights=weights)
        for peak, least in ((1e12, 0.5 * 2 / 3), (1e6, 1e4 * flops / 1e6)):
            monkeypatch.setattr(StencilStudy, "_peak_flops_per_s", lambda self, peak=peak: peak)
            found = study.figures_of_case(study.case("box-4", 0), "stencil-sweep", times, {})
            rows = {metric: value for metric, value, _ in found.rows}
            assert rows["share_of_roofline"] == pytest.approx(max(least, 0.5 * 2 / 3) / 4.0)


def test_updates_are_cells_times_steps_over_the_time(result):
    times = figures(result, "time_s")
    for key, value in figures(result, "updates_per_s").items():
        assert value == pytest.approx(3 * 128**2 / times[key])


def test_the_lead_is_over_the_fastest_library(result):
    times = figures(result, "time_s")
    found = figures(result, "ahead_of_best_peer")
    assert {key[0] for key in found} == {"stencil-sweep", "plain-sweep"}
    for (system, number, case), value in found.items():
        best = min(times[peer, number, case] for peer in SYSTEMS if peer not in (*module.OWN, *COPIES))
        assert value == pytest.approx(best / times[system, number, case])


def test_the_roofline_has_a_point_for_every_system_and_pattern(result):
    found = figures(result, "flops_per_s")
    assert {key[2] for key in found} == {("star", 9 / 8), ("box", 17 / 8)}
    assert {key[0] for key in found} == set(SYSTEMS) - {"grid-stream", "grid-triad"}


def test_the_roof_is_the_copys_and_at_most_the_peak(monkeypatch):
    study = StencilStudy(side=100, steps=2)
    for peak, roof in ((1e12, 9e4 / 0.5), (1e4, 1e4)):
        monkeypatch.setattr(StencilStudy, "_peak_flops_per_s", lambda self, peak=peak: peak)
        times = {"grid-copy": 0.5, "stencil-sweep": 0.25, "devito": 1.0}
        case, place = study.case("star-1", 0), {"flops_per_byte": 1.125, "shape": "star"}
        copied = study.figures_of_case(case, "grid-copy", times, {}).rows
        assert copied == [("time_s", 0.5, {"stencil": "star-1"}), ("flops_per_s", roof, place)]
        rows = {metric: value for metric, value, _ in study.figures_of_case(case, "stencil-sweep", times, {}).rows}
        assert not {"share_of_bound", "share_of_roofline"} & set(rows)
        assert rows["ahead_of_best_peer"] == 4.0
        assert rows["updates_per_s"] == 80_000
        assert rows["share_of_peak"] == pytest.approx(720_000 / peak)
        times |= {"grid-stream": 0.25, "grid-triad": 0.75}
        rows = {metric: value for metric, value, _ in study.figures_of_case(case, "stencil-sweep", times, {}).rows}
        assert rows["share_of_bound"] == 2.0


def test_random_weights_leave_no_shortcut_and_follow_the_seed():
    pattern = pattern_of("box-2", "random", 3)
    assert pattern.shape == "box"
    assert sum(pattern.coefficients) == pytest.approx(1.0)
    assert len(set(pattern.coefficients)) == 25
    assert pattern == pattern_of("box-2", "random", 3) != pattern_of("box-2", "random", 4)
    assert pattern_of("box-2", "equal", 3) == pattern_of("box-2", "equal", 4)
    assert column_and_row(pattern) is None
    assert StencilStudy().weights == "random"


def test_separable_weights_are_a_column_times_a_row_for_boxes_alone():
    assert column_and_row(pattern_of("box-3", "separable", 1)) is not None
    assert pattern_of("star-3", "separable", 1) == pattern_of("star-3", "random", 1)


@pytest.mark.parametrize("weights", ["equal", "random", "separable"])
@pytest.mark.parametrize("bits", [32, 64])
def test_other_settings_run(weights, bits, tmp_path):
    found = compare(
        "stencil", side=64, stencils=("box-2",), rounds=1, weights=weights, float_bits=bits,
        systems=("stencil-sweep", "grid-copy", "numpy-slices"), out=tmp_path, on="here",
    )  # fmt: skip
    assert found.failures == ()


def test_checked_squares_lie_in_corners_edges_and_middle():
    squares = list(_squares((500, 400), 10))
    assert len(squares) == 9
    cells = np.arange(500 * 400).reshape(500, 400)
    seen = [cells[square][inner] for square, inner in squares]
    assert {part.shape for part in seen} == {(48, 48)}
    assert seen[0][0, 0] == 0
    assert seen[8][-1, -1] == 500 * 400 - 1
    assert cells[squares[4][0]].shape == (68, 68)


class Broken:
    """A system that gets one cell wrong."""

    def __init__(self, at):
        self.at = at

    def prepare(self, grid, pattern, steps, boundary):
        from wavetank.kernels.stencils.reference import reference_sweep

        found = reference_sweep(grid, pattern, steps)
        found[self.at] += 0.01
        return lambda: found


@pytest.mark.parametrize("at", [(0, 0), (1, 126), (64, 64), (127, 3)])
def test_a_system_with_a_wrong_cell_is_refused(at):
    study = StencilStudy(side=128, rounds=1, stencils=("star-2",))
    with pytest.raises(WavetankError, match="broken did not sweep star-2 right"):
        study.run(Trial(systems=("broken",), seed=0), {"broken": Broken(at)})


def test_a_copy_that_copies_something_else_is_refused():
    study = StencilStudy(side=128)
    case = study.case("star-1", 0)
    for name, factor in (("grid-copy", 1), ("grid-stream", 1), ("grid-triad", 4)):
        wrong = factor * case.data.grid
        wrong[127, 127] *= 1.001
        with pytest.raises(WavetankError, match="did not copy"):
            study.verify(case, name, wrong)
        assert study.verify(case, name, factor * case.data.grid) is None


def test_wrong_settings_are_refused(monkeypatch, tmp_path):
    with pytest.raises(BadValueError, match="not one of the allowed numbers"):
        compare("stencil", float_bits=48, out=tmp_path, on="here")
    with pytest.raises(BadValueError) as caught:
        build_study(StencilStudy, {"stencils": ("star-5",)})
    assert caught.value.nearest in ("star-1", "star-2", "star-3", "star-4")
    monkeypatch.setattr(machine, "available_bytes", lambda: 100_000_000)
    with pytest.raises(BadValueError, match="stencil needs more memory than is available"):
        compare("stencil", out=tmp_path, on="here")


def test_cases_are_named_without_making_any(monkeypatch):
    monkeypatch.setattr(module, "stream", None)
    assert StencilStudy(stencils=("box-3",)).case_names(0) == ("box-3",)


def test_notes_say_against_what_shares_are_held():
    assert any("copy of the grid" in note for note in StencilStudy().notes())
