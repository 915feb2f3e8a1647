"""What analysers have in common: shares by the names of our metrics, and a command line each."""

from wavetank.insight.metrics.ccl_bench import CclBench
from wavetank.insight.metrics.definitions import METRICS
from wavetank.insight.metrics.interface import SHARED, Answer
from wavetank.insight.metrics.planted import planted
from wavetank.insight.metrics.rivals import HolisticTraceAnalysis, PlainJson, SummedDurations


def test_shared_shares_are_metrics_with_a_planted_truth():
    assert set(SHARED) <= set(METRICS)
    assert set(SHARED) == set(planted(0, 0).truth)


def test_every_analyser_has_a_command_line_of_its_own():
    words = [tuple(each().command("python")) for each in (CclBench, HolisticTraceAnalysis, PlainJson, SummedDurations)]
    assert len(set(words)) == 4
    assert all(words)


def test_an_answer_keeps_its_order_of_fields():
    assert Answer({"idle_fraction": 0.5}, [0.1], 7) == ({"idle_fraction": 0.5}, [0.1], 7)
