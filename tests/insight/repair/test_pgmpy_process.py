"""The process that asks pgmpy: what it hands on, and that it needs nothing of Wavetank."""

from pathlib import Path
from types import SimpleNamespace

from wavetank.insight.repair import pgmpy_process
from wavetank.insight.repair.pgmpy_process import plain


def test_levels_come_back_in_our_order():
    found = SimpleNamespace(state_names={"v3": [2, 0, 1]}, values=[0.5, 0.2, 0.3])
    assert plain(found, "v3", 3) == [0.2, 0.3, 0.5]


def test_nothing_of_ours_is_imported_where_it_is_not():
    assert "import wavetank" not in Path(pgmpy_process.__file__).read_text()
    assert "from wavetank" not in Path(pgmpy_process.__file__).read_text()
