"""PetShop's tables: read with gaps kept, refused where they are none; the real ones where they are here."""

import gzip
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wavetank.errors import BadFileError, DataUnavailableError
from wavetank.workloads import datasets
from wavetank.workloads.petshop import read_calls, read_issue, read_metrics

TABLE = """microservice,a,a,b
metric,latency,availability,latency
statistic,Average,Average,p99
unix_timestamp,,,
0.0,0.5,100,
300.0,,99.5,2
"""


def written(folder, text, name="metrics.csv"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["metrics.csv", "metrics.csv.gz"])
def test_a_table_is_read_with_its_gaps(tmp_path, name):
    found = read_metrics(written(tmp_path, TABLE, name))
    assert found.columns == (("a", "latency", "Average"), ("a", "availability", "Average"), ("b", "latency", "p99"))
    assert found.time_s.tolist() == [0.0, 300.0]
    assert found.of("a", "availability", "Average").tolist() == [100.0, 99.5]
    assert math.isnan(found.of("a", "latency", "Average")[1])
    assert math.isnan(found.of("b", "latency", "p99")[0])
    assert np.isnan(found.of("c", "latency", "Average")).all()


@pytest.mark.parametrize(
    "text",
    ["", "a,b\n1,2\n", TABLE.replace("microservice", "service"), TABLE.replace("0.5", "half"), TABLE + "300.0,1,1,1\n",
     TABLE + "600.0,1\n", TABLE.replace("300.0", "nan"), TABLE.replace("300.0", "-300")],
)  # fmt: skip
def test_what_is_no_table_of_metrics_is_refused(tmp_path, text):
    with pytest.raises(BadFileError):
        read_metrics(written(tmp_path, text))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.one_of(st.binary(max_size=200), st.tuples(st.integers(0, len(TABLE)), st.binary(max_size=4))))
def test_damaged_files_are_refused_or_read_and_nothing_else(tmp_path, damage):
    path = tmp_path / "metrics.csv"
    if isinstance(damage, tuple):
        raw = TABLE.encode()
        damage = raw[: damage[0]] + damage[1] + raw[damage[0] + len(damage[1]) :]
    path.write_bytes(damage)
    try:
        found = read_metrics(path)
    except BadFileError as error:
        assert str(path) in str(error)
    else:
        assert found.values.shape == (len(found.time_s), len(found.columns))


def test_calls_are_named_by_caller(tmp_path):
    path = written(tmp_path, ",a,b\na,0.0,1.0\nb,0.0,0.0\n", "graph.csv")
    assert read_calls(path) == {"a": ("b",), "b": ()}
    for text in ("", ",a,b\nb,0,0\na,0,0\n", ",a,a\na,0,0\na,0,0\n", ",a\na,x\n", ",a,b\na,0\nb,0,0\n"):
        with pytest.raises(BadFileError):
            read_calls(written(tmp_path, text, "graph.csv"))


def test_an_issue_says_what_was_noticed_and_where_the_cause_is(tmp_path):
    said = {"target": {"node": "a", "metric": "latency", "timestamp": 5}, "root_cause": {"node": "b", "metric": None}}
    issue = read_issue(written(tmp_path, json.dumps(said), "target.json"))
    assert (issue.noticed, issue.metric, issue.noticed_s, issue.cause) == ("a", "latency", 5.0, "b")
    for bad in ("", "[]", "[" * 100_000, json.dumps({**said, "root_cause": {"node": 3}}), json.dumps({"target": {}})):
        with pytest.raises(BadFileError):
            read_issue(written(tmp_path, bad, "target.json"))
    with pytest.raises(BadFileError):
        read_issue(tmp_path / "nothing.json")


@pytest.mark.parametrize("name", ["metrics.csv", "metrics.csv.gz"])
def test_a_table_that_is_or_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr("wavetank.workloads.petshop._MOST_BYTES", 100)
    with pytest.raises(BadFileError, match="larger"):
        read_metrics(written(tmp_path, TABLE, name))


def test_a_table_of_nothing_but_separators_is_refused_before_it_fills_the_memory(tmp_path):
    for text in ("," * 4_000_001, "\n" * 4_000_001):
        with pytest.raises(BadFileError, match="cells"):
            read_metrics(written(tmp_path, text, "metrics.csv.gz"))


def test_any_damaged_byte_of_a_packed_table_is_an_error_of_ours(tmp_path):
    rows = "".join(f"{600.0 + 300 * at},{at * 7919 % 1000},1,\n" for at in range(40))
    raw, refused = gzip.compress((TABLE + rows).encode()), 0
    path = tmp_path / "metrics.csv.gz"
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 0x55]) + raw[at + 1 :])
        try:
            read_metrics(path)
        except BadFileError:
            refused += 1
    assert refused > 0.9 * len(raw)


@pytest.mark.parametrize("time", [float("nan"), float("inf"), 10**400], ids=["nan", "inf", "vast"])
def test_an_issue_at_no_time_is_refused(tmp_path, time):
    said = json.dumps({"target": {"node": "a", "metric": "m", "timestamp": time}, "root_cause": {"node": "b"}})
    with pytest.raises(BadFileError):
        read_issue(written(tmp_path, said, "target.json"))


def test_the_real_tables_have_what_their_source_says():
    try:
        folder = datasets.find("petshop-rca")
    except DataUnavailableError:
        pytest.skip("the data set petshop-rca is not here")
    normal = read_metrics(folder / "low_traffic" / "noissue" / "metrics.csv.gz")
    assert np.isfinite(normal.of("PetSite", "latency", "Average")).any()
    calls = read_calls(folder / "low_traffic" / "graph.csv")
    assert "PetSearch_AWS::ECS::Fargate" in calls["PetSite"]
    issue = read_issue(folder / "low_traffic" / "train" / "issue_0" / "target.json")
    assert issue.cause == "PetSearch_AWS::ECS::Fargate"
