"""Files of decisions: what is written is read, and nothing else is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadFileError
from wavetank.insight.series import histories
from wavetank.insight.series.decisions import decided, read_decisions, write_decisions
from wavetank.insight.series.decompose import decompose
from wavetank.insight.series.interface import Decisions


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
        st.builds(
            Decisions,
            periods=st.none() | st.tuples(st.floats(2.1, 1e6), st.floats(2.1, 1e6)),
            changes=st.none() | st.tuples(st.integers(-(2**62), 2**62)),
            why=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        ),
        max_size=3,
    )
)
def test_decisions_come_back_as_they_were(tmp_path_factory, decisions):
    path = tmp_path_factory.mktemp("decisions") / "d.toml"
    write_decisions(path, decisions)
    assert read_decisions(path) == decisions


def test_a_decomposition_repeats_exactly_from_its_decisions(tmp_path):
    series = histories.planted(2).series
    write_decisions(tmp_path / "d.toml", {series.name: decided(decompose(series), "as found")})
    fixed = read_decisions(tmp_path / "d.toml")[series.name]
    assert fixed.why == "as found"
    first, second = (decompose(series, decisions=fixed) for _ in range(2))
    assert np.array_equal(first.remainder, second.remainder, equal_nan=True)
    assert first.changes == decompose(series).changes
    assert set(first.cycles) == set(decompose(series).cycles)


@pytest.mark.parametrize(
    "text",
    ["version = 2", "version = 1\nother = 3", "version = 1\n[series.a]\nperiods = ['x']", "version = 1\nseries = 4",
     "version = 1\n[series.a]\nchanges_ns = [1.5]", "version = 1\n[series.a]\nperiods = [nan]", "no toml",
     "version = 1\n[series.a]\nwhy = 3", "version = 1\n[series.a]\nperiod = [7.0]",
     "version = 1\n[series.a]\nchanges_ns = [true]", ""],
)  # fmt: skip
def test_what_says_something_else_is_refused(tmp_path, text):
    (tmp_path / "d.toml").write_text(text)
    with pytest.raises(BadFileError):
        read_decisions(tmp_path / "d.toml")


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(BadFileError):
        write_decisions(tmp_path / "none" / "d.toml", {})
