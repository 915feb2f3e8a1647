"""Planted logs: counters against requests one by one, times against hand-computed ones, truth that is causal."""

from dataclasses import replace

import numpy as np
import pytest
from tests.insight.io.jobs import MIB, draws, log_of, phase

from wavetank.insight.io.labels import CODES
from wavetank.insight.io.planted import (
    TEMPLATES,
    Servers,
    contended,
    gains,
    io_time_s,
    make_trace,
    make_traces,
    offsets,
    size_class,
    took,
    without,
)
from wavetank.workloads.darshan import SIZE_BOUNDS_BYTES

SERVERS = Servers()


def one_by_one(each, rank: int, base: int = 0) -> dict[str, int]:
    """Count what one rank does, request by request, as Darshan's macros do."""
    found = dict.fromkeys(("count", "bytes", "seq", "consec", "odd", "max"), 0)
    last = 0
    for start in offsets(each, rank, draws()).tolist():
        start += base
        found["count"] += 1
        found["bytes"] += each.size_bytes
        found["seq"] += start > last
        found["consec"] += start == last + 1
        found["odd"] += start % MIB != 0
        last = start + each.size_bytes - 1
        found["max"] = max(found["max"], last)
    return found


@pytest.mark.parametrize(
    "change",
    [{}, {"pattern": "strided", "size_bytes": 5000}, {"shift_bytes": 100}, {"shared": False, "pattern": "strided"},
     {"skew": 0.5}, {"writes": False, "again": 3}],
)  # fmt: skip
def test_counters_are_those_of_the_requests_one_by_one(change: dict[str, object]) -> None:
    each = phase(**change)
    records = log_of(each).modules["POSIX"]
    word, moved = ("WRITE", "WRITTEN") if each.writes else ("READ", "READ")
    ranks = [one_by_one(each, rank) for rank in range(each.ranks)]
    for counter, key in ((f"{word}S", "count"), (f"BYTES_{moved}", "bytes"), (f"SEQ_{word}S", "seq"),
                         (f"CONSEC_{word}S", "consec"), ("FILE_NOT_ALIGNED", "odd")):  # fmt: skip
        assert records.counters[f"POSIX_{counter}"].sum() == sum(rank[key] for rank in ranks), counter
    assert records.counters[f"POSIX_MAX_BYTE_{moved}"].max() == max(rank["max"] for rank in ranks)
    in_class = records.counters[f"POSIX_SIZE_{word}_{size_class(each.size_bytes)}"].sum()
    assert in_class == sum(rank["count"] for rank in ranks)
    assert records.rank.tolist() == ([-1] if each.shared else list(range(8)))


def test_a_file_that_not_all_ranks_open_has_a_record_a_rank() -> None:
    assert log_of(phase(ranks=3)).modules["POSIX"].rank.tolist() == [0, 1, 2]


def test_slowest_and_fastest_rank_are_those_of_a_skewed_phase() -> None:
    records = log_of(phase(skew=0.6)).modules["POSIX"].counters
    assert records["POSIX_SLOWEST_RANK"][0] == 0
    assert records["POSIX_SLOWEST_RANK_BYTES"][0] > 4 * records["POSIX_FASTEST_RANK_BYTES"][0]


def test_collective_calls_reach_the_files_as_packets_of_aggregators() -> None:
    log = log_of(phase(interface="collective", pattern="strided", size_bytes=65_536, requests=640, ranks=8))
    assert log.modules["MPI-IO"].counters["MPIIO_COLL_WRITES"].sum() == 5120
    posix = log.modules["POSIX"].counters
    assert posix["POSIX_WRITES"].sum() == 5120 * 65_536 // (4 * MIB) and posix["POSIX_FILE_NOT_ALIGNED"].sum() == 0


def test_streams_are_counted_by_stdio_alone() -> None:
    log = log_of(phase(interface="stdio", shared=False, ranks=1, size_bytes=80, requests=1000))
    assert list(log.modules) == ["STDIO"] and log.modules["STDIO"].counters["STDIO_BYTES_WRITTEN"].sum() == 80_000


def test_phases_of_one_file_use_bytes_of_their_own() -> None:
    log = log_of(phase(writes=False), phase(writes=False, size_bytes=4096, requests=100, pattern="random"))
    posix = log.modules["POSIX"].counters
    assert posix["POSIX_BYTES_READ"].sum() <= posix["POSIX_MAX_BYTE_READ"].max() + 1


def test_sizes_fall_into_classes_at_darshans_bounds() -> None:
    assert [size_class(each) for each in (100, 101, 1024, 1025, SIZE_BOUNDS_BYTES[-1], SIZE_BOUNDS_BYTES[-1] + 1)] == [
        "0_100", "100_1K", "100_1K", "1K_10K", "100M_1G", "1G_PLUS",
    ]  # fmt: skip


def test_times_by_hand() -> None:
    each = phase(pattern="strided", size_bytes=MIB, requests=100)
    # 800 requests of 1 MiB on 16 servers, nothing misaligned: latency and bytes, over servers; calls of 8 ranks.
    server_s = (800 * SERVERS.request_s + 800 * MIB / SERVERS.server_bytes_per_s) / 16
    client_s = 100 * (SERVERS.client_request_s + SERVERS.round_trip_s) + 100 * MIB / SERVERS.client_bytes_per_s
    assert took(each, SERVERS).total_s == pytest.approx(max(server_s, client_s) + 2 * 8 * SERVERS.metadata_s)
    locked = replace(each, size_bytes=MIB // 2)
    assert contended(locked) and not contended(each) and not contended(replace(locked, writes=False))
    busy_s = (800 * (SERVERS.request_s + SERVERS.lock_s) + 400 * MIB / SERVERS.server_bytes_per_s) / 16
    assert took(locked, SERVERS).data_s.max() == pytest.approx(max(busy_s, 100 * (2.05e-4) + 50 * MIB / 1.5e9))


@pytest.mark.parametrize(
    ("code", "change"),
    [("SML-W", {"size_bytes": 4096, "requests": 2000, "pattern": "strided"}),
     ("MSL-W", {"size_bytes": 2 * MIB, "requests": 50, "shift_bytes": 512, "pattern": "strided"}),
     ("RMA-W", {"size_bytes": 65_536, "requests": 500, "pattern": "random"}),
     ("RDA-R", {"writes": False, "again": 4}),
     ("NC-W", {"size_bytes": 65_536, "requests": 500, "pattern": "strided", "interface": "independent"}),
     ("MPNM", {"size_bytes": 65_536, "requests": 500, "pattern": "strided"}),
     ("LLL-W", {"interface": "stdio", "shared": False}),
     ("HMD", {"calls": 2000}), ("SLIM", {"stripes": 1}), ("RLIM", {"skew": 0.9}),
     ("SHF", {"size_bytes": 65_536, "requests": 500, "pattern": "strided"})],
)  # fmt: skip
def test_removing_an_issue_saves_time_and_a_healthy_phase_has_none(code: str, change: dict[str, object]) -> None:
    assert gains([phase(**change)], 8, SERVERS)[code] > 0.05
    healthy = phase(interface="collective", pattern="strided")
    assert max(gains([healthy], 8, SERVERS).values()) < 0.05


def test_what_costs_little_is_no_issue() -> None:
    phases = [phase(interface="collective", pattern="strided", requests=200),
              phase(name="notes", ranks=1, shared=False, size_bytes=512, requests=2000)]  # fmt: skip
    assert all(gain < 0.05 for gain in gains(phases, 8, SERVERS).values())
    assert io_time_s(phases, SERVERS) > 0


def test_removing_keeps_the_bytes() -> None:
    for change in ({"size_bytes": 4096, "requests": 2000}, {"ranks": 1, "shared": False}, {"skew": 0.5}):
        each = phase(**change)
        for code in CODES:
            other = without(each, code, 8, SERVERS)
            assert other.bytes_once == pytest.approx(each.bytes_once, rel=0.01)


def test_traces_have_healthy_ones_and_decoys_and_the_same_seed_gives_the_same() -> None:
    first, second = make_traces(100)
    assert (len(first), len(second)) == (150, 50)
    assert not {each.template for each in first} & {each.template for each in second}
    every = first + second
    healthy = [each for each in every if not each.planted]
    assert 0.2 < len(healthy) / 200 < 0.4 and not any(each.truth for each in healthy if not each.decoy)
    assert 0.1 < sum(each.decoy for each in every) / 200 < 0.3
    assert sum(len(each.planted) > 1 for each in every) > 50
    # What was planted weakly often does not count, what was planted strongly often does.
    planted = [(strength, kind in each.kinds) for each in every for kind, strength in each.planted.items()]
    weak, strong = ([true for strength, true in planted if (strength > 0.3) == side] for side in (False, True))
    assert np.mean(weak) < np.mean(strong) - 0.1 and np.mean(weak) > 0 and np.mean(strong) < 1
    again = make_trace(first[7].template, 100, 7)
    assert again.truth == first[7].truth and again.log.run_time_s == first[7].log.run_time_s


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_template_is_ill_by_itself(template: str) -> None:
    for number in range(20):
        each = make_trace(template, 500, number)
        if not each.planted and not each.decoy:
            assert not each.truth
