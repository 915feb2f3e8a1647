"""The page of a cluster: the oddest of each column of time, and the node that was found first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.insight.cluster.saved_range import saved

from wavetank.insight.cluster.diagnose import PrometheusDiagnosis
from wavetank.insight.cluster.node_page import columns_of


def test_columns_of_the_map_hold_the_largest_of_their_times() -> None:
    values = np.arange(10.0).reshape(1, 10)
    assert columns_of(values, 3).tolist() == [[2.0, 5.0, 9.0]] and columns_of(values, 50).tolist() == values.tolist()


def test_the_page_draws_nodes_that_were_found_first_and_bars_where_they_are_odd(tmp_path: Path) -> None:
    def change(values) -> None:
        values["temp"][4, 50:100] += 25.0

    page = PrometheusDiagnosis().diagnose(saved(tmp_path, change=change)).page
    assert page.index(">n4<") < page.index(">n0<") and 'class="fill-warm"' in page
    assert "odd-metric, n4" in page and "http://" not in page.replace("http://www.w3.org", "")
    calm = PrometheusDiagnosis().diagnose(saved(tmp_path)).page
    assert calm.count('class="fill-warm"') < page.count('class="fill-warm"')
