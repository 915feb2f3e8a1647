"""Drishti's rules: the program itself on real logs, thresholds, fitting."""

import csv
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.insight.io.jobs import log_of, phase, real

from wavetank.errors import BadValueError
from wavetank.insight.io.drishti import KIND_OF, Drishti
from wavetank.insight.io.labels import KINDS
from wavetank.insight.io.planted import make_traces
from wavetank.workloads.darshan import read_darshan

PEERS = os.environ.get("WAVETANK_INSIGHT_PEERS", ".venv-insight-peers/bin")


def program_says(path: Path, folder: Path) -> set[str]:
    """Return the codes that Drishti itself exports for a log, of those that name an issue."""
    program = shutil.which("drishti", path=PEERS)
    if program is None:
        pytest.skip("there is no environment with drishti-io: make insight-peers")
    subprocess.run([program, "--csv", "--export_dir", folder, path], check=True, capture_output=True, timeout=120)
    (written,) = folder.glob("*.csv")
    with written.open() as file:
        codes, flags = csv.reader(file)
    return {code for code, flag in zip(codes, flags, strict=True) if flag == "True"} & set(KIND_OF)


def test_the_rules_say_what_the_program_says(tmp_path: Path) -> None:
    path = real("skew-app")
    assert Drishti().codes(read_darshan(path)) == program_says(path, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["e3sm", "jlbez", "skew-autobench", "ior-POSIX", "ior-HDF5", "ior-PNETCDF", "mpi-io-test", "half_ranks_dxt",
             "2110365", "2110483", "diagonal_write_only", "opens_only"],
)  # fmt: skip
def test_the_rules_say_what_the_program_says_of_other_logs(name: str, tmp_path: Path) -> None:
    path = real(name)
    assert Drishti().codes(read_darshan(path)) == program_says(path, tmp_path)


@pytest.mark.parametrize(
    ("code", "change"),
    [("P06", {"size_bytes": 4096, "requests": 2000, "pattern": "strided"}),
     ("P16", {"size_bytes": 4096, "requests": 2000, "pattern": "strided"}),
     ("P05", {"size_bytes": 4096, "requests": 2000, "writes": False}),
     ("P08", {"shift_bytes": 512}),
     ("P11", {"size_bytes": 65_536, "requests": 500, "pattern": "random", "writes": False}),
     ("M01", {}), ("M03", {"size_bytes": 65_536, "requests": 500, "interface": "independent"}),
     ("S01", {"interface": "stdio"}), ("P17", {"calls": 10**7}), ("P18", {"skew": 0.9}), ("P19", {"skew": 0.9})],
)  # fmt: skip
def test_each_rule_fires_where_its_issue_is(code: str, change: dict[str, object]) -> None:
    assert code in Drishti().codes(log_of(phase(**change)))
    healthy = log_of(phase(interface="collective", pattern="strided"))
    assert code not in Drishti().codes(healthy)


def test_ranks_of_one_file_with_unequal_bytes() -> None:
    log = log_of(phase(ranks=4, skew=0.9))
    assert "P21" in Drishti().codes(log) and "P22" not in Drishti().codes(log)


def test_repeated_reads_as_shipped_and_turned_round() -> None:
    read = log_of(phase(writes=False, again=4, interface="collective", pattern="strided"))
    assert "P09" not in Drishti().codes(read) and "P09" in Drishti(redundant=1.5).codes(read)


def test_fitting_finds_better_thresholds_and_only_where_it_is_asked_to() -> None:
    traces, _ = make_traces(100, tuning=30, held_out=10)
    logs, kinds = [each.log for each in traces], [each.kinds for each in traces]
    assert Drishti().fitted(logs, kinds) == Drishti()
    fitted = Drishti(fits=True).fitted(logs, kinds)

    def right(rules: Drishti) -> float:
        said = [rules.said(log) for log in logs]
        both = sum(len(true & heard) for true, heard in zip(kinds, said, strict=True))
        return 2 * both / (sum(map(len, said)) + sum(map(len, kinds)))

    assert right(fitted) > right(Drishti()) + 0.1
    assert set(KIND_OF.values()) | {"SLIM"} == set(KINDS)
    with pytest.raises(BadValueError):
        Drishti(small=float("inf"))
