"""The study of what clients see while backends are killed, in small."""

import pytest

pytest.importorskip("aiohttp")

from wavetank.run.comparison import compare


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return compare("proxy-chaos", requests=1500, up_s=1.0, down_s=0.1, out=tmp_path_factory.mktemp("runs"))


def test_every_request_is_counted_once(result):
    found = {record.metric: record.value for record in result.records}
    assert found["requests"] == 1500
    outcomes = ("right", "left", "failed_cleanly", "lost", "doubled", "crossed", "hung")
    assert sum(found[outcome] for outcome in outcomes) == 1500
    assert found["lost"] == found["doubled"] == found["crossed"] == found["hung"] == 0
    assert found["left"] > 0
    assert found["right"] > 0
    assert found["kills"] > 0
    assert found["requests_per_s"] > 0


def test_a_run_with_fewer_requests_decides_no_claim(result):
    assert result.findings == []


def test_counts_are_counted_and_rates_are_measured(result):
    kinds = {record.metric: record.kind for record in result.records}
    assert kinds.pop("requests_per_s") == kinds.pop("memory_growth_bytes") == "measured"
    assert set(kinds.values()) == {"counted"}
