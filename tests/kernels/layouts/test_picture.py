"""Pictures of layouts: well-formed, complete, reachable from the command line."""

import re
from xml.etree import ElementTree

import pytest

from wavetank.cli.entry import run
from wavetank.errors import BadValueError
from wavetank.kernels.layouts.algebra import Layout
from wavetank.kernels.layouts.conversion import LinearLayouts
from wavetank.kernels.layouts.describe import EXAMPLES, layout_of
from wavetank.kernels.layouts.picture import draw

SVG = "{http://www.w3.org/2000/svg}"


def cells(svg):
    """Return the text of every element's cell and what it tells when pointed at."""
    root = ElementTree.fromstring(svg)
    return [
        (group.find(f"{SVG}text").text or "", group.find(f"{SVG}title").text)
        for group in root.iter(f"{SVG}g")
        if group.find(f"{SVG}title") is not None
    ]


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_element_has_a_cell(text):
    layout = layout_of(text)
    assert len(cells(layout.to_svg())) == 1 << layout.out_bits


def test_cells_tell_who_holds_them():
    found = cells(layout_of("mma-result(warps=1x1) 16x8").to_svg())
    # Row 1, column 3: lane 5, register 1.
    assert found[1 * 8 + 3] == ("L5 r1", "register 1, lane 5, warp 0")
    found = cells(layout_of("mma-result(warps=2x1) 32x8").to_svg())
    assert found[16 * 8][0] == "w1 L0 r0"


def test_memory_is_told_by_offset_and_bank():
    found = cells(layout_of("swizzled(vector=4, per_phase=1, max_phase=8, order=1x0) 16x32").to_svg())
    assert found[32] == ("36", "offset 36, bank 4")


def test_elements_held_twice_have_a_corner_and_those_held_nowhere_are_empty():
    layout = Layout({"register": [1, 0], "lane": []}, {"x": 4})
    svg = draw(layout, title="<copies & gaps>")
    assert cells(svg)[0] == ("L0 r0", "register 0, lane 0; register 2, lane 0")
    assert cells(svg)[3] == ("", "held nowhere")
    assert svg.count('fill="#666"') == 2
    assert "&lt;copies &amp; gaps&gt;" in svg


def test_warps_are_parted_by_lines():
    one = layout_of("mma-result(warps=1x1) 16x16").to_svg()
    two = layout_of("mma-result(warps=1x2) 16x16").to_svg()
    # Left and right end of each row, and one line down the middle.
    assert len(re.findall(r'<path d="M\d+,\d+ v24"', one)) == 2 * 16
    assert len(re.findall(r'<path d="M\d+,\d+ v24"', two)) == 3 * 16


def words(svg):
    """Return all text that stands beside the cells, as one line."""
    root = ElementTree.fromstring(svg)
    return " ".join(text.text or "" for text in root.findall(f"{SVG}text"))


def outlined(svg):
    """Return how many cells have a whole outline, and how many a broken one."""
    root = ElementTree.fromstring(svg)
    [group] = [each for each in root.iter(f"{SVG}g") if each.get("class") == "outlines"]
    broken = ["dashed" in str(rect.get("class")) for rect in group]
    return broken.count(False), broken.count(True)


def test_a_conversion_is_drawn_as_its_memory():
    rows = "blocked(registers=1x4, lanes=8x4, warps=2x2, order=1x0) 32x32"
    columns = "blocked(registers=4x1, lanes=4x8, warps=2x2, order=0x1) 32x32"
    svg = LinearLayouts().picture(f"{rows} -> {columns}")
    assert sorted(int(text) for text, _ in cells(svg)) == list(range(1024))
    # One phase of stores and one of loads fill the 32 banks.
    assert outlined(svg) == (32, 32)
    assert "there is none here" in words(svg)
    assert "All warps: 8 stores of vectors, then 32 loads of vectors; 64 wavefronts" in words(svg)
    with pytest.raises(BadValueError, match="no memory"):
        LinearLayouts().picture(f"{rows} -> {rows}")


def test_the_size_of_elements_is_told_at_the_end():
    rows = "blocked(registers=1x8, lanes=8x4, warps=2x1, order=1x0) 32x32"
    operand = "mma-operand(operand=1, width=2, warps=1x2) 32x32"
    svg = LinearLayouts().picture(f"{rows} -> {operand}, 2 bytes")
    assert "loads of matrices (ldmatrix)" in words(svg)
    assert outlined(svg) == (64, 64)
    with pytest.raises(BadValueError, match="number of bytes"):
        LinearLayouts().picture(f"{rows} -> {operand}, two bytes")
    with pytest.raises(BadValueError, match="elements of that size"):
        LinearLayouts().picture(f"{rows} -> {operand}, 3 bytes")


def test_the_text_of_a_picture_explains_it():
    svg = layout_of("mma-result(warps=2x1) 32x16").to_svg()
    assert "w1 L5 r3 is warp 1, lane 5 (a thread of the warp), register 3." in words(svg)
    assert "register 3 = 1 + 2 leads to (0, 1) xor (8, 0); lane 5 = 1 + 4 leads to (0, 2) xor (1, 0)" in words(svg)
    assert "element (25, 3)" in words(svg)
    assert cells(svg)[25 * 16 + 3][0] == "w1 L5 r3"
    # All eight registers of that thread.
    assert outlined(svg) == (8, 0)
    assert "Empty cells" not in words(svg)


def test_of_several_holders_the_outlined_one_is_named():
    svg = layout_of("slice(parent=mma-result(warps=2x2), axis=1) 64").to_svg()
    assert [text for text, _ in cells(svg) if text.startswith("w1 ")] == [
        "w1 L5 r0",
        "w1 L5 r1",
        "w1 L5 r2",
        "w1 L5 r3",
    ]
    assert "A grey corner" in words(svg)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(BadValueError, match="one or two dimensions"):
        draw(Layout({"register": [(1, 0, 0)]}, {"x": 2, "y": 1, "z": 1}))
    with pytest.raises(BadValueError, match="too large"):
        draw(Layout.identity(8192, "register", "x"))


def test_the_command_line_draws(tmp_path, capsys):
    target = tmp_path / "layout.svg"
    assert run(["show", "linear-layouts", "--picture", EXAMPLES[0], "--out", str(target)]) == 0
    assert len(cells(target.read_text())) == 1024
    assert run(["show", "linear-layouts", "--picture", EXAMPLES[1]]) == 0
    assert capsys.readouterr().out.count("<svg") == 1
    assert run(["show", "numpy-sort", "--picture", EXAMPLES[1]]) == 3
    assert "nothing to draw" in capsys.readouterr().err
