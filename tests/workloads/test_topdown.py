"""Tables of kernels: gaps stay gaps, foreign and hostile tables are refused by name, line and column."""

import gzip
import math
import random

import pytest

from wavetank.errors import BadFileError, BadTraceError, WavetankError
from wavetank.workloads.topdown import FIVE, looks_like_kernels, read_kernels

HEADER = (
    "run,kernel,time_ns,Reps,topdown.retiring,topdown.frontend_bound,topdown.bad_speculation,topdown.core_bound,"
    "topdown.memory_bound,topdown.l1_bound"
)
ROWS = ("r1,A,1000,2,0.5,0.1,0.1,0.1,0.2,-0.08", "r2,A,3000,2,0.5,0.1,0.1,0.1,,0.1", "r1,B,500,1,0.2,0,0,0,0.8,NaN")


def table(folder, *rows, header=HEADER, name="t.csv"):
    path = folder / name
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


def test_rows_are_read_with_gaps_and_small_negative_shares_as_they_are(tmp_path):
    read = read_kernels(table(tmp_path, *ROWS))
    assert read.kernels == ("A", "A", "B")
    assert read.runs == ("r1", "r2", "r1")
    assert read.values["l1_bound"][0] == -0.08
    assert math.isnan(read.values["memory_bound"][1])
    assert read.gaps == 2
    assert read.seconds_per_rep().tolist() == [5e-7, 1.5e-6, 5e-7]


def test_a_gzipped_table_without_prefixes_reads_alike(tmp_path):
    plain = read_kernels(table(tmp_path, *ROWS))
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress("\n".join((HEADER.replace("topdown.", ""), *ROWS)).encode()))
    again = read_kernels(packed)
    assert again.kernels == plain.kernels
    assert again.values["retiring"].tolist() == plain.values["retiring"].tolist()


def test_times_in_seconds_stand_where_there_are_none_in_nanoseconds(tmp_path):
    path = table(tmp_path, "A,,2,10", "B,4e9,,2", header="kernel,time_ns,time.duration,Reps")
    assert read_kernels(path, required=()).seconds_per_rep().tolist() == [0.2, 2.0]
    nothing = read_kernels(table(tmp_path, "A", header="kernel"), required=())
    assert math.isnan(nothing.seconds_per_rep()[0])


@pytest.mark.parametrize("name", ["kernel", *FIVE])
def test_a_foreign_table_is_refused_with_the_column_that_it_lacks(tmp_path, name):
    words = [word for word in HEADER.split(",") if word.removeprefix("topdown.") != name]
    with pytest.raises(BadFileError, match=f"no column '{name}'"):
        read_kernels(table(tmp_path, header=",".join(words)))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("r1,A,1000,2,0.5,0.1,0.1,0.1", "another number of values"),
        ("r1,A,1000,2,inf,0,0,0,0,0", "retiring makes no sense"),
        ("r1,A,1000,2,7,0,0,0,0,0", "retiring makes no sense"),
        ("r1,A,1000,2,x,0,0,0,0,0", "retiring makes no sense"),
        ("r1,A,-1,2,0,0,0,0,0,0", "time_ns makes no sense"),
        ("r1,A,1,0,0,0,0,0,0,0", "Reps makes no sense"),
        ("r1,,1,1,0,0,0,0,0,0", "names no kernel"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused_with_its_line(tmp_path, row, says):
    with pytest.raises(BadTraceError, match=says) as raised:
        read_kernels(table(tmp_path, ROWS[0].replace("A", "C"), row))
    assert raised.value.where.endswith("line 3")


def test_a_kernel_twice_in_one_run_is_refused_and_empty_tables_too(tmp_path):
    with pytest.raises(BadTraceError, match="stands twice"):
        read_kernels(table(tmp_path, ROWS[0], ROWS[0]))
    with pytest.raises(BadTraceError, match="no rows"):
        read_kernels(table(tmp_path))
    with pytest.raises(BadFileError, match="two columns 'kernel'"):
        read_kernels(table(tmp_path, header=HEADER + ",kernel"))
    with pytest.raises(BadFileError, match="no column"):
        read_kernels(table(tmp_path, header=""))


def test_a_table_is_told_by_its_header():
    assert looks_like_kernels(f"{HEADER}\n1,2".encode())
    assert not looks_like_kernels(b"kernel,time_ns\n")
    assert not looks_like_kernels(b'{"traceEvents": []}')
    assert not looks_like_kernels(b'\xff\xfe"')


def test_damaged_tables_are_read_or_refused_and_never_crash(tmp_path):
    draw = random.Random(7)
    whole = ("\n".join((HEADER, *ROWS)) + "\n").encode()
    path = tmp_path / "damaged.csv"
    ends = {"read": 0, "refused": 0}
    for _ in range(300):
        bytes_ = bytearray(whole[: len(HEADER) // 2 + draw.randrange(len(whole))])
        for _ in range(draw.randrange(2)):
            bytes_[draw.randrange(len(bytes_))] = draw.choice(b'",\n\r\x00\xffae-9.')
        path.write_bytes(bytes_)
        try:
            read_kernels(path)
            ends["read"] += 1
        except WavetankError:
            ends["refused"] += 1
    assert min(ends.values()) > 40
