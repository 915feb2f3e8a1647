"""Other analysers are processes; one of them is here only with an environment of its own."""

from pathlib import Path

import pytest

from wavetank.errors import GaveUpError
from wavetank.insight.metrics.rivals import HolisticTraceAnalysis, PlainJson, SummedDurations
from wavetank.insight.metrics.study import answers


def test_without_its_environment_the_peer_is_not_here(tmp_path):
    assert HolisticTraceAnalysis().command("") == []
    with pytest.raises(GaveUpError, match="environment of its own"):
        answers(HolisticTraceAnalysis(), [tmp_path / "a.json"], outside="")


def test_the_peer_runs_in_its_environment_without_this_package():
    words = HolisticTraceAnalysis().command("/env/bin/python")
    assert words[0] == "/env/bin/python"
    assert Path(words[-1]).name == "hta_process.py"


def test_rivals_that_live_here_name_their_analyser():
    assert SummedDurations().command("x")[-1] == "summed"
    assert PlainJson().command("x")[-1] == "plainly"
