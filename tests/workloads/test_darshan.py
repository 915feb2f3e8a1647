"""Darshan's logs: every record as Darshan's own library reads it, limits, damaged and hostile logs."""

import bz2
import json
import os
import random
import shutil
import struct
import subprocess
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from tests.workloads.darshan_logs import BZIP2, PLAIN, ZLIB, WrittenLog, record

from wavetank.errors import BadTraceError, BadValueError, DataUnavailableError
from wavetank.workloads import datasets
from wavetank.workloads.darshan import (
    MODULES,
    RECORD_MODULES,
    TRACE_MODULES,
    DarshanLog,
    iter_traces,
    looks_like_darshan,
    read_darshan,
)

PEERS = os.environ.get("WAVETANK_INSIGHT_PEERS", ".venv-insight-peers/bin")
LUSTRE = (1, 0, 1, 1, 0, 4096, 1, 3)
NAMES = {1165: "/scratch/out.h5", 2**64 - 3: "/home/x"}


def logs() -> list[Path]:
    """Return the real logs; skip where the data set is not here."""
    try:
        return sorted(datasets.find("darshan-logs").rglob("*.darshan"))
    except DataUnavailableError as error:
        pytest.skip(error.problem)


def real(name: str) -> DarshanLog:
    return read_darshan(next(path for path in logs() if name in path.name))


def written(tmp_path: Path, log: WrittenLog) -> Path:
    path = tmp_path / "written.darshan"
    path.write_bytes(log.written())
    return path


def stdio(order: str, version: int, files: int = 3) -> bytes:
    # Version 2 has FDOPENS as its second counter.
    numbers = range(1, 15) if version == 2 else [1, *range(3, 15)]
    return b"".join(record(order, 1165, rank, list(numbers), [0.5] * 15) for rank in range(files))


def same(found: DarshanLog, peer: dict[str, object]) -> None:
    """Hold one log against what the library says of it, value by value."""
    assert found.processes == peer["processes"]
    assert found.run_time_s == pytest.approx(peer["run_time_s"], abs=1e-6)
    assert str(peer["exe"]).startswith(found.program)
    assert {str(number): name for number, name in found.names.items()} == peer["names"]
    assert set(peer["partial"]) <= set(found.incomplete)  # type: ignore[call-overload]
    records = peer["records"]
    assert {name for name, each in found.modules.items() if len(each)} == set(records)  # type: ignore[call-overload]
    for name, rows in records.items():  # type: ignore[attr-defined]
        module = found.modules[name]
        assert module.file.tolist() == [row[0] for row in rows]
        assert module.rank.tolist() == [row[1] for row in rows]
        for values, place in ((module.counters, 2), (module.times, 3)):
            assert set(values) == set(rows[0][place])
            for counter, column in values.items():
                # Darshan's identifiers of renamed files are shown with and without a sign.
                theirs = [row[place][counter] for row in rows]
                if place == 2:
                    theirs = [value if value < 2**63 else value - 2**64 for value in theirs]
                assert np.array_equal(column, theirs, equal_nan=True), (name, counter)
    stripes = peer["stripes"]
    assert len(stripes) == (len(found.stripes) if found.stripes else 0)  # type: ignore[arg-type]
    for index, (file, rank, components, servers) in enumerate(stripes):  # type: ignore[arg-type,var-annotated]
        assert found.stripes is not None
        assert (found.stripes.file[index], found.stripes.rank[index]) == (file, rank)
        assert found.stripes.components[index].tolist() == components
        assert found.stripes.servers[index].tolist()[: len(servers)] == servers


def peer_reads(paths: list[Path]) -> list[dict[str, object]]:
    python = shutil.which("python", path=PEERS)
    script = Path(__file__).with_name("darshan_peer.py")
    if python is None:
        pytest.skip("there is no environment with the package darshan: make insight-peers")
    done = subprocess.run([python, script, *paths], capture_output=True, text=True, timeout=120, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_record_of_every_real_log_is_what_darshans_library_reads() -> None:
    paths = logs()
    found = peer_reads(paths)
    assert len(found) == len(paths) > 30
    for path, peer in zip(paths, found, strict=True):
        same(read_darshan(path), peer)


@pytest.mark.parametrize(("version", "packing"), [("3.10", ZLIB), ("3.21", PLAIN), ("3.41", ZLIB)])
@pytest.mark.parametrize("order", ["<", ">"])
def test_logs_of_this_writer_are_what_darshans_library_reads(
    tmp_path: Path, version: str, packing: int, order: str
) -> None:
    first = {"3.10": 7, "3.21": 8, "3.41": 9}[version]
    log = WrittenLog(version=version, order=order, packing=packing, names=NAMES,
                     regions={first: (1, stdio(order, 1))})  # fmt: skip
    path = written(tmp_path, log)
    (peer,) = peer_reads([path])
    same(read_darshan(path), peer)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("version", "index"), [("3.00", 7), ("3.10", 7), ("3.20", 8), ("3.21", 8), ("3.41", 9)])
def test_a_module_is_found_under_the_number_that_its_version_gave_it(
    tmp_path: Path, version: str, index: int, order: str
) -> None:
    log = WrittenLog(version=version, order=order, names=NAMES, partial=1 << index,
                     regions={index: (2, stdio(order, 2))})  # fmt: skip
    found = read_darshan(written(tmp_path, log))
    assert list(found.modules) == ["STDIO"] and found.incomplete == ("STDIO",)
    assert found.modules["STDIO"].incomplete and found.version == version
    assert found.modules["STDIO"].counters["STDIO_FDOPENS"].tolist() == [2, 2, 2]
    assert found.modules["STDIO"].rank.tolist() == [0, 1, 2] and found.names == NAMES
    assert found.library == "3.2.1" and found.program == "./program -x"
    assert found.run_time_s == (1.5 if version == "3.41" else 2.0)


def test_counters_that_an_older_version_lacks_are_minus_one(tmp_path: Path) -> None:
    found = read_darshan(written(tmp_path, WrittenLog(regions={8: (1, stdio("<", 1))}))).modules["STDIO"]
    assert found.counters["STDIO_FDOPENS"].tolist() == [-1] * 3 and found.counters["STDIO_READS"].tolist() == [3] * 3
    posix = b"".join(record("<", 1, 0, list(range(64)), [float(k) for k in range(15)]) for _ in range(2))
    old = read_darshan(written(tmp_path, WrittenLog(version="3.10", regions={1: (2, posix)}))).modules["POSIX"]
    assert old.times["POSIX_F_CLOSE_START_TIMESTAMP"].tolist() == [-1.0, -1.0]
    assert old.times["POSIX_F_VARIANCE_RANK_BYTES"].tolist() == [14.0, 14.0]
    assert old.counters["POSIX_FILENOS"].tolist() == [-1, -1] and old.counters["POSIX_READS"].tolist() == [1, 1]
    assert old.counters["POSIX_SLOWEST_RANK_BYTES"].tolist() == [63, 63]


def test_records_that_mix_posix_and_stdio_are_counted_and_left_out(tmp_path: Path) -> None:
    def row(fopens: int) -> bytes:
        return record("<", 1, 0, [1, 2, 3, 4, 5, 6, fopens, 0, 0, 0, *range(58)], [0.0] * 15)

    log = WrittenLog(version="3.00", regions={1: (1, row(0) + row(2))})
    found = read_darshan(written(tmp_path, log)).modules["POSIX"]
    assert (len(found), found.left_out) == (1, 1) and found.counters["POSIX_READS"].tolist() == [2]


def test_stripes_of_both_versions(tmp_path: Path) -> None:
    first = struct.pack("<Qq5q2q", 1165, -1, 4, 8, 0, 1 << 20, 2, 11, 12)
    found = read_darshan(written(tmp_path, WrittenLog(regions={7: (1, first)}))).stripes
    assert found is not None and found.stripe_count.tolist() == [2] and found.stripe_bytes.tolist() == [1 << 20]
    assert found.servers[0].tolist() == [11, 12]
    part = struct.pack("<7q16s", 4096, 3, 0, 0, 0, -1, 0, b"pool")
    unused = struct.pack("<7q16s", -1, 0, 0, 0, 0, 0, 0, b"")
    second = struct.pack("<Qqqq", 9, 0, 2, 3) + part + unused + struct.pack("<3q", 5, 6, 7)
    found = read_darshan(written(tmp_path, WrittenLog(version="3.41", regions={8: (2, second)}))).stripes
    assert found is not None and found.stripe_count.tolist() == [3] and found.components[0].shape == (1, 7)


def test_known_figures_of_real_logs() -> None:
    imbalanced = real("imbalanced-io")
    assert (imbalanced.processes, imbalanced.run_time_s, imbalanced.incomplete) == (496, 1479.0, ("POSIX",))
    assert len(imbalanced.modules["POSIX"]) == 2014 and imbalanced.stripes is not None
    assert imbalanced.stripes.stripe_count.max() == 1
    skew = real("skew-app")
    assert skew.processes == 65_536 and skew.modules["POSIX"].counters["POSIX_WRITES"].sum() == 41_632
    heat = real("e3sm")
    posix = heat.modules["POSIX"].counters
    assert (posix["POSIX_READS"].sum(), posix["POSIX_WRITES"].sum()) == (314_219, 306_777)
    assert set(heat.passed_over) == {"APMPI", "HEATMAP"}
    sample = real("jlbez").modules["POSIX"].counters
    assert sample["POSIX_WRITES"].sum() == 15_922
    diagonal = real("half_ranks_dxt").modules["H5D"].counters
    assert diagonal["H5D_BYTES_WRITTEN"].sum() == 5 and diagonal["H5D_WRITES"].sum() == 5
    assert real("empty_log").modules == {} and list(real("laytonjb").modules) == ["STDIO"]


def test_traces_come_in_pieces_and_agree_with_the_counters() -> None:
    path = next(each for each in logs() if "jlbez" in each.name)
    pieces = list(iter_traces(path, "DXT_POSIX", most_requests=1000))
    assert max(len(each.size_bytes) for each in pieces) <= 1000
    writes = sum(int(each.size_bytes.sum()) for each in pieces if each.writes)
    posix = read_darshan(path).modules["POSIX"]
    traced = np.isin(posix.file, [each.file for each in pieces])
    assert writes == posix.counters["POSIX_BYTES_WRITTEN"][traced].sum()
    assert sum(len(each.size_bytes) for each in pieces) == 17_525
    with pytest.raises(BadValueError):
        next(iter_traces(path, "POSIX"))
    assert list(iter_traces(next(each for each in logs() if "empty" in each.name), "DXT_MPIIO")) == []


def dxt(order: str, requests: int, *, thread: bool) -> bytes:
    head = struct.pack(f"{order}Qqq64sqq", 1165, 3, 0, b"host", requests, 0)
    row = struct.pack(f"{order}qqdd", 4096, 10, 0.5, 0.75) + (struct.pack(f"{order}Q", 1) if thread else b"")
    return head + row * requests


@pytest.mark.parametrize("order", ["<", ">"])
def test_traces_of_every_version_are_read(tmp_path: Path, order: str) -> None:
    for index, version, thread, offset in (
        (9, 1, False, 4096),
        (9, 2, True, 4096),
        (10, 1, False, -1),
        (10, 3, True, 4096),
    ):
        log = WrittenLog(order=order, regions={index: (version, dxt(order, 5, thread=thread))})
        (first, second) = iter_traces(written(tmp_path, log), TRACE_MODULES[index - 9], most_requests=3)
        assert [len(first.size_bytes), len(second.size_bytes)] == [3, 2] and first.rank == 3 and first.writes
        assert first.offset_bytes.tolist() == [offset] * 3 and second.end_s.tolist() == [0.75] * 2


def test_traces_larger_than_memory_are_passed_over_by_the_reader(tmp_path: Path) -> None:
    # Packed streams one behind another, as ranks write them: 2 GB of traces in 2 MB.
    bomb = zlib.compress(b"\0" * (1 << 26), 9) * 32
    log = WrittenLog(regions={8: (2, stdio("<", 2))}).written()
    head = bytearray(log + bomb)
    struct.pack_into("<QQ", head, 40 + 16 * 9, len(log), len(bomb))
    struct.pack_into("<I", head, 40 + 16 * 16 + 4 * 9, 1)
    path = tmp_path / "bomb.darshan"
    path.write_bytes(head)
    before_s = time.process_time()
    assert read_darshan(path).passed_over == {"DXT_POSIX": len(bomb)}
    assert time.process_time() - before_s < 1.0


@pytest.mark.parametrize("packing", [ZLIB, BZIP2])
def test_a_bomb_ends_at_the_limit(tmp_path: Path, packing: int) -> None:
    path = written(tmp_path, WrittenLog(packing=packing, regions={8: (2, b"\0" * (40 << 20))}))
    with pytest.raises(BadTraceError, match="more than is allowed"):
        read_darshan(path, largest_bytes=4 << 20)


@pytest.mark.parametrize("empty", [zlib.compress(b""), bz2.compress(b"")])
def test_empty_streams_without_end_are_refused(tmp_path: Path, empty: bytes) -> None:
    log = WrittenLog(packing=ZLIB if empty[0] == 0x78 else BZIP2, regions={8: (2, stdio("<", 2))}).written()
    head = bytearray(log + empty * 1_100_000)
    struct.pack_into("<QQ", head, 40 + 16 * 8, len(log), len(head) - len(log))
    path = tmp_path / "streams.darshan"
    path.write_bytes(head)
    with pytest.raises(BadTraceError, match="too many packed streams"):
        read_darshan(path)


@pytest.mark.parametrize("size", [131_072, 131_073, 131_330, 262_144, 131_072 * 3 - 1])
@pytest.mark.parametrize("packing", [ZLIB, BZIP2])
def test_regions_end_where_pieces_do(tmp_path: Path, packing: int, size: int) -> None:
    names = dict.fromkeys(range(size // 64), "n" * 55)
    found = read_darshan(written(tmp_path, WrittenLog(packing=packing, names=names)))
    assert found.names == names
    three = WrittenLog(packing=packing, streams=3, regions={8: (2, stdio("<", 2, files=30))})
    assert len(read_darshan(written(tmp_path, three)).modules["STDIO"]) == 30


def test_what_is_no_log_is_refused_with_a_reason(tmp_path: Path) -> None:
    good = WrittenLog(regions={8: (2, stdio("<", 2))}).written()
    assert looks_like_darshan(good) and not looks_like_darshan(good[:12]) and not looks_like_darshan(b"\0" * 64)
    path = tmp_path / "bad.darshan"
    with pytest.raises(BadTraceError, match="no such log"):
        read_darshan(path)
    for content, reason in (
        (b"", "no log of Darshan"),
        (good[:200], "ends inside its header"),
        (good[:370], "cut|missing"),
        (b"9.99\0\0\0\0" + good[8:], "version"),
        (good[:16] + b"\7" + good[17:], "packed by a method"),
        (good[:-10], "cut"),
        (WrittenLog(regions={8: (2, stdio("<", 2)[:-8])}).written(), "ends inside a record"),
        (WrittenLog(processes=0).written(), "0 processes"),
        (WrittenLog(processes=-3).written(), "-3 processes"),
        (WrittenLog(regions={7: (1, struct.pack("<Qq5q", 1, 0, 1, 1, 0, 1, 1 << 40))}).written(), "stripes"),
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(BadTraceError, match=reason):
            read_darshan(path)


def test_modules_of_unknown_versions_are_passed_over_by_name(tmp_path: Path) -> None:
    found = read_darshan(written(tmp_path, WrittenLog(regions={1: (9, b"x" * 50), 15: (1, b"y" * 50)})))
    assert set(found.passed_over) == {"POSIX", "DFS"} and not found.modules
    assert set(RECORD_MODULES) < set(MODULES)


def survives(path: Path) -> bool:
    """Return whether a log was read; anything but an error of the house is a failure of the test."""
    try:
        read_darshan(path, largest_bytes=16 << 20)
        for module in TRACE_MODULES:
            for _ in iter_traces(path, module, largest_bytes=16 << 20):
                continue
    except BadTraceError:
        return False
    return True


def fuzz(tmp_path: Path, rounds: int, seed: int) -> None:
    draws = random.Random(seed)
    path = tmp_path / "fuzzed.darshan"
    base = [
        WrittenLog(version=version, order=order, packing=packing, names=NAMES,
                   regions={place: (2, stdio(order, 2)), place - 1: (1, struct.pack(f"{order}Qq6q", *LUSTRE)),
                            place + 1: (1, dxt(order, 3, thread=False))}).written()
        for version, place in (("3.00", 7), ("3.21", 8), ("3.41", 9))
        for order in "<>"
        for packing in (ZLIB, BZIP2, PLAIN)
    ]  # fmt: skip
    for each in base:
        path.write_bytes(each)
        assert survives(path)
    slowest_s, refused = 0.0, 0
    for _ in range(rounds):
        content = bytearray(draws.choice(base))
        kind = draws.randrange(4)
        if kind == 0:
            del content[draws.randrange(len(content)) :]
        elif kind == 1:
            for _ in range(draws.randint(1, 8)):
                content[draws.randrange(len(content))] = draws.randrange(256)
        elif kind == 2:
            place = draws.randrange(0, min(1320, len(content) - 8), 4)
            value = draws.choice(
                [0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, len(content), draws.getrandbits(64)]
            )
            content[place : place + 8] = value.to_bytes(8, draws.choice(["little", "big"]))
        else:
            place = draws.randrange(len(content))
            content[place:place] = draws.randbytes(draws.randint(1, 40))
        path.write_bytes(content)
        before_s = time.process_time()
        refused += not survives(path)
        slowest_s = max(slowest_s, time.process_time() - before_s)
    assert slowest_s < 5.0 and refused > rounds // 10


def test_fuzzed_logs_are_read_or_refused(tmp_path: Path) -> None:
    fuzz(tmp_path, 3000, 1)


@pytest.mark.slow
def test_a_hundred_thousand_fuzzed_logs_are_read_or_refused(tmp_path: Path) -> None:
    fuzz(tmp_path, 100_000, 2)
