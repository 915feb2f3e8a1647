"""The study of the simulator's own cost."""

import math

import pytest

from wavetank.run.comparison import compare


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return compare(
        "simulator-speed",
        requests=2000,
        group_requests=1000,
        python_requests=1000,
        reference_requests=40,
        group_workers=8,
        workers=4,
        seeds=1,
        out=tmp_path_factory.mktemp("runs"),
    )


def values(result, system, metric):
    return {r.at["case"]: r.value for r in result.records if r.system == system and r.metric == metric}


def test_every_case_has_a_positive_rate(result):
    rates = values(result, "serving-simulator", "requests_per_s")
    assert len(rates) == 8 + 3 + 2 + 2
    assert all(rate > 0 and math.isfinite(rate) for rate in rates.values())


def test_the_slowest_built_in_router_is_the_least_of_the_arrival_routers(result):
    rates = values(result, "serving-simulator", "requests_per_s")
    slowest = rates.pop("slowest built-in arrival router")
    arrival = [
        rate
        for case, rate in rates.items()
        if "replicas" in case and not any(word in case for word in ("balance", "Python", "kept"))
    ]
    assert slowest == min(arrival)


def test_the_reference_is_measured_on_the_same_cases_with_fewer_requests(result):
    ours, theirs = (values(result, name, "steps_per_s") for name in ("serving-simulator", "serving-reference"))
    assert set(theirs) <= set(ours)
    assert len(theirs) == 2


def test_memory_and_start_are_recorded_once(result):
    (bytes_per_request,) = values(result, "serving-simulator", "bytes_per_request").values()
    (start_s,) = values(result, "serving-simulator", "start_s").values()
    # The table of a request alone takes 64 bytes.
    assert bytes_per_request > 64
    assert start_s > 0
