"""The toolkit as a system: a process that measures, and the public rows."""

import pytest

from wavetank.errors import DataUnavailableError
from wavetank.insight.metrics.ccl_bench import CclBench
from wavetank.insight.metrics.interface import SHARED
from wavetank.insight.metrics.planted import planted
from wavetank.insight.metrics.study import answers


def test_its_process_gives_the_planted_shares(tmp_path):
    made = planted(100, 2)
    (found,) = answers(CclBench(), [made.write(tmp_path / "a.json")], outside="")
    assert set(found.shares) == set(SHARED)
    assert found.shares == pytest.approx(made.truth, abs=1e-12)


def test_rows_are_those_of_the_data_set():
    try:
        assert CclBench().rows()["more_overlap_slower"] > 2.8
    except DataUnavailableError as error:
        pytest.skip(error.problem)
