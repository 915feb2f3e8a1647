"""The diagnosis of service metrics: what departs is named with figures that recompute, what is as far in normal
operation is not, and without normal operation nothing is said."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wavetank.diagnosis.findings import unsupported
from wavetank.errors import BadFileError, BadValueError, DataUnavailableError, WavetankError
from wavetank.insight.repair.diagnose import ServiceDiagnosis
from wavetank.workloads import datasets

SERVICES = ("site", "search", "table")


def written(path, rows):
    """Write latency and availability of three services."""
    head = [
        "microservice," + ",".join(each for each in SERVICES for _ in range(2)),
        "metric," + ",".join(["latency", "availability"] * 3), "statistic," + ",".join(["Average"] * 6),
        "unix_timestamp" + "," * 6,
    ]  # fmt: skip
    lines = [f"{300.0 * at}," + ",".join("" if each is None else str(each) for each in row)
             for at, row in enumerate(rows)]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*head, *lines]) + "\n")
    return path


@pytest.fixture
def incident(tmp_path):
    draws = np.random.default_rng(3)
    calm = [[float(each) for pair in zip(draws.normal(1, 0.05, 3), [100.0] * 3, strict=True) for each in pair]
            for _ in range(60)]  # fmt: skip
    # Once in an hour the table is slow, which is normal.
    for row in calm[5::12]:
        row[4] = 3.0
    written(tmp_path / "noissue" / "metrics.csv", calm)
    (tmp_path / "graph.csv").write_text(",site,search,table\nsite,0,1,1\nsearch,0,0,1\ntable,0,0,0\n")
    rows = [list(row) for row in calm[:4]]
    rows[2][2], rows[3][2] = 9.0, 9.5
    rows[3][1] = 80.0
    rows[1][4] = 2.9
    return written(tmp_path / "train" / "issue_0" / "metrics.csv", rows)


def diagnosed(path, **given):
    analyser = ServiceDiagnosis(**given)
    found = analyser.diagnose(path)
    assert unsupported(found, analyser.source(path)) == []
    return found


def test_services_that_depart_are_named_and_those_that_are_as_far_in_normal_operation_are_not(incident):
    found = diagnosed(incident)
    assert [each.where for each in found.findings] == ["search", "site"]
    search, site = ({each.name: each.value for each in finding.evidence} for finding in found.findings)
    assert (search["metric"], search["worst"], search["departing_share"]) == ("latency", 9.5, 0.5)
    assert (search["calls"], search["departing_callees"], search["normal_share"]) == (1, 0, 0.0)
    assert (site["metric"], site["worst"], site["usual"]) == ("availability", 80.0, 100.0)
    assert (site["calls"], site["departing_callees"]) == (2, 1)
    assert site["departure"] == pytest.approx(20.0)
    facts = {each.name: each.value for each in found.facts}
    assert (facts["services"], facts["normal_windows"]) == (3, 60)
    assert facts["normal_operation"].endswith("noissue/metrics.csv")
    assert "search" in found.page and "<svg" in found.page
    # The table is beyond the limit in five of sixty normal windows.
    assert [each.where for each in diagnosed(incident, usual=0.1).findings] == ["search", "table", "site"]


def test_a_folder_is_diagnosed_by_its_table_and_the_command_takes_it(incident, call):
    assert diagnosed(incident.parent).findings == diagnosed(incident).findings
    with pytest.raises(BadFileError, match="no table"):
        ServiceDiagnosis().diagnose(incident.parents[2])
    said = call("diagnose", str(incident.parent))
    assert (said.code, "service-metrics" in said.out) == (1, True)


def test_calm_windows_give_no_finding(incident):
    normal = incident.parents[2] / "noissue" / "metrics.csv"
    lines = normal.read_text().splitlines()
    calm = incident.with_name("calm.csv")
    calm.write_text("\n".join(lines[:10]) + "\n")
    found = diagnosed(calm)
    assert (found.findings, found.too_little) == ((), ())


def test_without_normal_operation_there_is_too_little_to_say(tmp_path, incident):
    alone = written(tmp_path / "far" / "a" / "b" / "metrics.csv", [[1.0, 100.0] * 3])
    found = diagnosed(alone)
    assert found.findings == ()
    assert "normal" in found.too_little[0]
    # Normal operation is not judged by itself.
    assert "normal" in diagnosed(incident.parents[2] / "noissue" / "metrics.csv").too_little[0]
    # An hour of it is needed, and values here.
    short = written(tmp_path / "s" / "metrics.csv", [[1.0, 100.0] * 3] * 11)
    for path, normal in ((incident, short), (written(tmp_path / "c" / "metrics.csv", [[None] * 6]), incident)):
        found = diagnosed(path, normal=str(normal))
        assert found.findings == ()
        assert "No service" in found.too_little[0]
    # What is nought and never moves has no scale; others are judged.
    still = written(tmp_path / "n" / "metrics.csv", [[0.0, None, 1.0, 100.0, 1.0, 100.0]] * 12)
    moved = written(tmp_path / "m" / "metrics.csv", [[1e-9, None, 1.0, 100.0, 1.0, 100.0]])
    assert "1 of 3 services" in diagnosed(moved, normal=str(still)).too_little[0]


def test_other_tables_are_not_taken_and_damaged_ones_refused(tmp_path, incident):
    takes = ServiceDiagnosis.takes
    assert takes(incident, incident.read_bytes()[:4096])
    assert not takes(incident, b"time,value\n1,2\n")
    assert not takes(incident, b"")
    broken = tmp_path / "broken.csv"
    broken.write_text("microservice,a\nmetric,latency\n")
    with pytest.raises(BadFileError):
        ServiceDiagnosis().diagnose(broken)
    with pytest.raises(BadValueError):
        ServiceDiagnosis(far=float("nan"))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([b"", b"1e308", b"-1e308", b"nan", b"\xff", b",", b"\n", b"9"]))
def test_hostile_tables_are_diagnosed_or_refused_and_nothing_else(incident, at, word):
    raw = incident.read_bytes()
    path = incident.with_name("hostile.csv")
    path.write_bytes(raw[: at % len(raw)] + word + raw[at % len(raw) + 3 :])
    try:
        diagnosed(path)
    except WavetankError as error:
        assert str(path) in str(error)


def test_a_quantity_that_nobody_has_is_refused(incident):
    source = ServiceDiagnosis().source(incident)
    for question in ({"name": "nothing"}, {"name": "departure", "service": "nobody"}, {"name": "departure"}):
        with pytest.raises(BadValueError):
            source.quantity(**question)


def test_a_real_incident_is_explained():
    try:
        folder = datasets.find("petshop-rca")
    except DataUnavailableError:
        pytest.skip("the data set petshop-rca is not here")
    found = diagnosed(folder / "low_traffic" / "train" / "issue_0")
    assert found.findings[0].where == "PetSearch_AWS::ECS::Fargate"
