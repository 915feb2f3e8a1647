"""Axes, labels and colours of the charts."""

from __future__ import annotations

import itertools
import math
import re
from importlib.resources import files

import numpy as np
import pytest

from wavetank import html_page
from wavetank.report import canvas
from wavetank.report.canvas import DASHES, MARKERS, PALETTE, Span, Style, finish, label_ends, label_points, plot_area

DARK_BEGINS = "@media screen and (prefers-color-scheme: dark)"
CSS = files("wavetank.report").joinpath("page.css").read_text(encoding="utf-8")
# What all pages share, and what the report adds.
LIGHT, DARK = map("\n".join, zip(html_page.STYLE.split(DARK_BEGINS), CSS.split(DARK_BEGINS), strict=True))


def colours(css: str) -> list[str]:
    return [re.search(rf"--series-{number}: (#\w+)", css)[1] for number in range(len(PALETTE))]


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def test_the_page_s_light_colours_are_the_drawings_own() -> None:
    assert colours(LIGHT) == list(PALETTE)


@pytest.mark.parametrize("css", [LIGHT, DARK])
def test_colours_stand_out_from_the_page(css: str) -> None:
    page, text, muted = (re.search(rf"--{name}: (#\w+)", css)[1] for name in ("bg", "text", "muted"))
    assert min(contrast(colour, page) for colour in colours(css)) >= 3
    assert contrast(text, page) >= 7
    assert contrast(muted, page) >= 4.5
    for verdict in ("holds", "part", "fails", "open"):
        badge = [re.search(rf"--{verdict}{end}: (#\w+)", css)[1] for end in ("", "-bg")]
        assert contrast(*badge) >= 4.5


# Machado, Oliveira and Fernandes (2009), severity 1.
VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("css", [LIGHT, DARK])
def test_colours_stay_apart_for_every_eye(css: str, vision: str) -> None:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])

    def lab(colour: str) -> np.ndarray:
        seen = np.clip(np.array(VISION[vision]) @ linear(colour), 0, 1)
        x, y, z = np.cbrt(to_xyz @ seen / [0.9505, 1, 1.089])
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    distances = [np.linalg.norm(lab(one) - lab(other)) for one, other in itertools.combinations(colours(css), 2)]
    assert min(distances) > 10


def test_every_series_has_its_own_marker_and_dash() -> None:
    assert len(set(MARKERS)) == len(PALETTE)
    assert len(set(DASHES)) == len(DASHES)
    for marker in MARKERS:
        assert 'aria-hidden="true"' in Style(1, 1, marker, (4, 2)).swatch()
    assert "var(--rest, " in Style(12, -1, "s", ()).swatch()


def test_a_linear_span_begins_at_zero_where_that_wastes_little() -> None:
    assert Span.over([2, 10], False, zero=True).low == 0
    assert Span.over([9, 10], False, zero=True).low == 0
    assert Span.over([9, 10], False, zero=True, waste=0.6).low > 8
    assert Span.over([2, 10], False, zero=True, waste=0.6).low == 0
    assert Span.over([-10, -2], False, zero=True).high == 0
    assert Span.over([0, 0], False, zero=True) == Span(0.0, 1.0, False)


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, 1e300]])
def test_a_span_of_nothing_is_still_an_axis(values: list[float]) -> None:
    assert Span.over(values, True) == Span(0.0, 1.0, False)


def test_a_log_span_needs_something_above_zero() -> None:
    assert not Span.over([0.0, -1.0], True).log
    span = Span.over([0.0, 1.0, 1000.0], True)
    assert span.log
    assert not span.holds(0.0)
    assert span.holds(1.0)
    assert [text for _, text in span.ticks(300, across=True)] == ["1", "10", "100", "1,000"]


@pytest.mark.parametrize("span", [Span.over([3.0, 3.0], True), Span.over([1e-9, 1e12], True), Span.over([7, 8], False)])
def test_an_axis_has_a_readable_number_of_ticks(span: Span) -> None:
    assert 2 <= len(span.ticks(300, across=False)) <= 12
    assert all(len(text) <= 9 for _, text in span.ticks(300, across=False))


def test_texts_of_an_axis_never_touch() -> None:
    spans = [Span.over([low, low * factor], log, zero=zero) for low in (1e-9, 0.93, 7, 123_456, 1e8)
             for factor in (1.001, 1.5, 9, 1e3, 1e9) for log in (False, True) for zero in (False, True)]  # fmt: skip
    for span, length in itertools.product(spans, (60, 150, 400)):
        ticks = sorted((span.share_of(place) * length, canvas.wide(text)) for place, text in
                       span.ticks(length, across=True))  # fmt: skip
        assert ticks
        for (one, wide), (other, next_wide) in itertools.pairwise(ticks):
            assert other - one > (wide + next_wide) / 2


@pytest.mark.parametrize(
    ("value", "text"), [(1e8, "10⁸"), (-1e8, "-10⁸"), (2.5e9, "2.5×10⁹"), (1e-9, "10⁻⁹"), (240_000, "240,000")]
)
def test_large_and_small_ticks_are_powers_of_ten(value: float, text: str) -> None:
    assert canvas._tick(value) == text


def test_nines_are_counted_from_the_right() -> None:
    span = Span.over([0.5, 0.1, 0.01, 0.0], True, nines=True)
    assert [text for _, text in span.ticks(300, across=True)] == ["50 %", "90 %", "99 %"]
    _, axes = plot_area(40, 10, 100)
    span.put(axes, "x")
    assert axes.get_xlim()[0] > axes.get_xlim()[1]


def boxes(axes: object) -> list[tuple[float, float, float, float]]:
    """Where names lie, by the drawing's own estimate of their width."""
    found = []
    for text in axes.texts:  # type: ignore[attr-defined]
        if not text.get_text():
            continue
        x, y = text.get_position() if text.xyann is None else text.xyann
        wide = canvas.wide(text.get_text())
        left = x - wide if text.get_ha() == "right" else x
        found.append((left, y - canvas.SIZE / 2, left + wide, y + canvas.SIZE / 2))
    return found


@pytest.mark.parametrize("count", [1, 7, 20, 40])
def test_names_of_crowded_points_do_not_cover_each_other(count: int) -> None:
    with canvas.steady():
        _, axes = plot_area(40, 20, 290)
        axes.set_xlim(0, 10)
        axes.set_ylim(0, 10)
        spots = {index: (4 + 0.12 * index, 5 + 0.1 * math.sin(index)) for index in range(count)}
        label_points(axes, {index: f"system-{index}" for index in spots}, spots, [((9, 9), (9, 9))])
    found = boxes(axes)
    assert len(found) == count
    assert not any(canvas._overlap(one, other) for one, other in itertools.combinations(found, 2))


def test_names_at_the_ends_of_curves_are_moved_apart() -> None:
    with canvas.steady():
        _, axes = plot_area(40, 90, 250)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        label_ends(axes, {index: f"s{index}" for index in range(6)}, dict.fromkeys(range(6), (1.0, 0.98)))
    heights = sorted(text.xy[1] for text in axes.texts)
    assert all(after - before >= canvas.SIZE for before, after in itertools.pairwise(heights))
    assert heights[-1] <= axes.get_window_extent().y1 + 5


def test_a_finished_drawing_belongs_to_a_page() -> None:
    def drawn() -> str:
        with canvas.steady():
            figure, axes = plot_area(40, 20, 100)
            Span(0, 1, False).put(axes, "x")
            axes.plot([0, 1], [0, 1 / 3], color=Style(3, 3, "o", ()).ink, marker="o", gid="series-3-line")
            axes.annotate("<b> & $x$", (0.5, 0.1))
            return finish(figure, "p1", 'A "title"', "Up & <up>")

    svg = drawn()
    assert svg == drawn()
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg" viewBox="')
    assert 'role="img"' in svg
    assert '<title id="p1-title">A &quot;title&quot;</title>' in svg
    assert '<desc id="p1-desc">Up &amp; &lt;up&gt;</desc>' in svg
    assert '<g class="series" data-series="3">' in svg
    assert "&lt;b&gt; &amp; $x$</text>" in svg
    assert f"stroke: var(--series-3, {PALETTE[3]})" in svg
    assert "currentColor" in svg
    assert not re.search(r"#f[de]00|DejaVu|metadata|\d\.\d{3,}[ \"]", svg.replace("stroke-miterlimit: 10000", ""))
    assert all(name.startswith("p1-") for name in re.findall(r' id="([^"]*)"', svg))


def test_a_user_s_own_matplotlib_settings_change_nothing() -> None:
    import matplotlib

    def drawn() -> str:
        with canvas.steady():
            figure, axes = plot_area(40, 20, 100)
            axes.plot([0, 1], [0, 1])
            return finish(figure, "p", "t", "d")

    plain = drawn()
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True, "svg.fonttype": "path", "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        assert drawn() == plain
        assert dict(matplotlib.rcParams) == before
