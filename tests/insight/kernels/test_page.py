"""The page: a bar a kernel whose parts fill it, and all that is said, as text."""

import re
from xml.etree import ElementTree

from tests.insight.kernels.test_source import BINDS, written

from wavetank.insight.kernels.diagnose import TopDownDiagnosis


def page(folder, **kernels):
    return TopDownDiagnosis(rounds=20).diagnose(written(folder, {**BINDS, **kernels})).page


def test_each_kernel_has_a_bar_whose_parts_fill_it(tmp_path):
    drawing = re.search(r"<svg.*</svg>", page(tmp_path), re.DOTALL)[0]
    rows = {}
    for each in ElementTree.fromstring(drawing).iter():
        if each.tag.endswith("rect") and each.get("height") == "13":
            rows.setdefault(each.get("y"), []).append(float(each.get("width")))
    assert len(rows) == len(BINDS)
    assert all(abs(sum(widths) - 760) < 0.1 for widths in rows.values())


def test_alike_kernels_stand_together_and_names_are_escaped(tmp_path):
    text = page(tmp_path, **{"<b>": BINDS["busy"]})
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    drawn = [word for word in re.findall(r">([^<>]+)</text>", text) if word in BINDS]
    assert abs(drawn.index("DRAM8") - drawn.index("DRAM9")) == 1


def test_findings_and_what_could_not_be_said_stand_as_text(tmp_path):
    path = written(tmp_path, extra=[f"once,0,O3,1,{BINDS['busy']}"])
    text = TopDownDiagnosis(rounds=20).diagnose(path).page
    assert "Memory takes 80 % of the slots of kernel DRAM9" in text
    assert "Could not be said: kernel once" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
