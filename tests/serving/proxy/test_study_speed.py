"""The study of what a proxy costs, in small."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from wavetank.errors import WavetankError
from wavetank.run.comparison import compare, make_plan
from wavetank.serving.proxy.study_speed import CASES, ONE, PACED, PLAIN, STREAMED, STREAMED_PACED, ProxySpeed


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return compare(
        "proxy-speed",
        systems=("direct", "wavetank-router"),
        rounds=2,
        window_s=0.1,
        clients=4,
        backends=2,
        paced_per_s=100.0,
        stream_tokens=8,
        out=tmp_path_factory.mktemp("runs"),
    )


def values(result, system, metric):
    found = {}
    for record in result.records:
        if (record.system, record.metric) == (system, metric):
            found.setdefault(record.at["case"], []).append(record.value)
    return found


def test_every_system_answers_everything_right_in_every_case_and_round(result):
    for system in ("direct", "wavetank-router"):
        rounds = 2 * ProxySpeed.default_seeds
        assert values(result, system, "not_right") == {case: [0.0] * rounds for case in CASES}


def test_plain_cases_have_requests_and_streams_have_tokens(result):
    for system in ("direct", "wavetank-router"):
        requests, chunks = (values(result, system, metric) for metric in ("requests_per_s", "chunks_per_s"))
        assert set(requests) == {ONE, PACED, PLAIN}
        assert set(chunks) == {STREAMED, STREAMED_PACED}
        for rates in (*requests.values(), *chunks.values()):
            assert all(0 < rate < math.inf for rate in rates)


def test_what_a_proxy_adds_is_its_latency_less_that_of_no_proxy_in_the_same_round(result):
    added = values(result, "wavetank-router", "added_latency_p50_s")
    own, base = (values(result, system, "latency_p50_s") for system in ("wavetank-router", "direct"))
    assert set(added) == {ONE, PACED, PLAIN}
    for case, rounds in added.items():
        assert rounds == pytest.approx([a - b for a, b in zip(own[case], base[case], strict=True)])
    assert values(result, "direct", "added_latency_p50_s") == {}


def test_the_proxy_takes_processor_time_and_memory_and_no_proxy_takes_none(result):
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")
    for sizes in values(result, "wavetank-router", "resident_bytes").values():
        assert min(sizes) > 1e6
    assert set(values(result, "wavetank-router", "cpu_per_request_s")) == set(CASES)
    assert values(result, "direct", "resident_bytes") == values(result, "direct", "cpu_per_request_s") == {}


def test_paced_clients_offer_at_most_what_they_are_reported(result):
    assert max(values(result, "direct", "requests_per_s")[PACED]) < 1.5 * 100.0
    study = ProxySpeed(clients=64, paced_per_s=1000.0)
    assert study.load_of(PACED, 0).delay_s == pytest.approx(0.064)
    assert study.load_of(PLAIN, 0).delay_s == 0.0
    assert study.load_of(ONE, 0).clients == 1
    assert study.load_of(STREAMED, 0).gap_s == 0.0
    assert study.load_of(STREAMED_PACED, 0).gap_s == study.gap_s


def test_the_ratio_is_to_litellm_and_is_left_out_where_it_did_not_run(result):
    assert values(result, "wavetank-router", "throughput_ratio") == {}


def test_a_system_that_is_not_installed_is_reported_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WavetankError) as caught:
        compare("proxy-speed", systems=("direct", "litellm"), out=tmp_path)
    assert caught.value.problem == "The system litellm is not installed."
    make_plan("proxy-speed", systems=("direct", "wavetank-router"))


def family(root):
    """Return the ids of all processes that descend from one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_ctrl_c_ends_the_study_with_all_that_it_started(tmp_path):
    words = [sys.executable, "-m", "wavetank", "compare", "proxy-speed", "--systems", "direct,wavetank-router"]
    words += ["--set", "window_s=60"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        children = []
        stop = time.monotonic() + 60
        while len(children) < 2 and time.monotonic() < stop:
            children = family(process.pid)
            time.sleep(0.05)
        assert len(children) >= 2
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
    # Whose parent has ended is gone when init has taken note of it.
    stop = time.monotonic() + 20
    while any(map(there, children)) and time.monotonic() < stop:
        time.sleep(0.05)
    assert not any(map(there, children))
