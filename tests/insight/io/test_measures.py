"""Families of files and what issues would save, against programs whose answer is known."""

import numpy as np
import pytest
from tests.insight.io.jobs import MIB, log_of, phase

from wavetank.insight.io.measures import IoFacts
from wavetank.workloads.darshan import DarshanLog, StripeRecords, empty_records

GOOD = {"interface": "collective", "pattern": "strided"}


def scores(*phases, processes: int = 8) -> dict[str, float]:
    return IoFacts(log_of(*phases, processes=processes)).scores()


@pytest.mark.parametrize(
    ("code", "change"),
    [("SML-W", {"size_bytes": 4096, "requests": 2000, "pattern": "strided"}),
     ("SML-R", {"size_bytes": 4096, "requests": 2000, "pattern": "strided", "writes": False}),
     ("RMA-R", {"size_bytes": 65_536, "requests": 500, "pattern": "random", "writes": False}),
     ("MSL-W", {"size_bytes": 2 * MIB, "requests": 50, "shift_bytes": 512, "pattern": "strided"}),
     ("RDA-R", {"writes": False, "again": 4}),
     ("NC-W", {"size_bytes": 65_536, "requests": 500, "pattern": "strided", "interface": "independent"}),
     ("MPNM", {"size_bytes": 65_536, "requests": 500, "pattern": "strided"}),
     ("LLL-W", {"interface": "stdio", "shared": False}), ("HMD", {"calls": 4000}),
     ("SLIM", {"stripes": 1}), ("RLIM", {"skew": 0.9}),
     ("SHF", {"size_bytes": 65_536, "requests": 500, "pattern": "strided"})],
)  # fmt: skip
def test_each_issue_scores_where_it_is_and_not_in_a_healthy_program(code: str, change: dict[str, object]) -> None:
    assert scores(phase(**change))[code] > 0.05
    assert scores(phase(**GOOD, requests=64))[code] < 0.05


def test_an_issue_weighs_as_much_as_its_files_take() -> None:
    small = {"name": "small", "size_bytes": 4096, "pattern": "strided"}
    little = scores(phase(**GOOD, requests=400), phase(**small, requests=50))["SML-W"]
    much = scores(phase(**GOOD, requests=4), phase(**small, requests=2000))["SML-W"]
    assert little < 0.05 < much


def test_files_that_differ_in_digits_are_one_family_that_takes_as_long_as_its_slowest_rank() -> None:
    facts = IoFacts(log_of(phase(shared=False, name="part")))
    (family,) = facts.families
    posix = facts.log.modules["POSIX"]
    spent = sum(posix.times[f"POSIX_F_{word}_TIME"] for word in ("READ", "WRITE", "META"))
    assert family.records == 8 and family.name == "/scratch/part.#" and not family.together
    assert family.time_s == pytest.approx(spent.max()) and facts.io_time_s == family.time_s
    assert sum(family.parts.values()) == pytest.approx(1)


def test_aggregators_are_no_imbalance_but_a_single_one_is() -> None:
    log = log_of(phase(**GOOD, ranks=64, requests=16), processes=64)
    assert IoFacts(log).scores()["RLIM"] < 0.01
    posix = log.modules["POSIX"].counters
    posix["POSIX_SLOWEST_RANK_BYTES"][:] = posix["POSIX_BYTES_WRITTEN"]
    assert IoFacts(log).scores()["RLIM"] > 0.5


def test_one_rank_with_little_on_one_server_is_in_order() -> None:
    few = phase(ranks=1, shared=False, stripes=1, requests=4)
    assert scores(few, processes=1)["SLIM"] == 0.0
    assert scores(phase(ranks=1, shared=False, stripes=1, requests=400), processes=1)["SLIM"] > 0.5


def hostile(counter: str, value: float) -> DarshanLog:
    records = empty_records("POSIX", 2)
    records.counters["POSIX_WRITES"][:] = 10
    records.counters["POSIX_BYTES_WRITTEN"][:] = 1000
    records.times["POSIX_F_WRITE_TIME"][:] = 1.0
    (records.times if counter in records.times else records.counters)[counter][0] = value
    return DarshanLog(version="3.41", processes=2, run_time_s=10.0, modules={"POSIX": records})


@pytest.mark.parametrize(
    ("counter", "value"),
    [("POSIX_WRITES", -5), ("POSIX_BYTES_WRITTEN", -(2**62)), ("POSIX_F_WRITE_TIME", np.nan),
     ("POSIX_F_META_TIME", np.inf), ("POSIX_F_WRITE_TIME", -3.0), ("POSIX_SIZE_WRITE_0_100", -1)],
)  # fmt: skip
def test_records_that_no_program_can_have_made_are_left_out(counter: str, value: float) -> None:
    facts = IoFacts(hostile(counter, value))
    assert facts.sound["POSIX"].tolist() == [False, True]
    assert facts.total("POSIX", "WRITES") == 10 and all(0 <= each <= 1 for each in facts.scores().values())


def test_extreme_counters_give_shares() -> None:
    log = hostile("POSIX_WRITES", 2**62)
    log.modules["POSIX"].counters["POSIX_FILE_NOT_ALIGNED"][:] = 2**63 - 1
    stripes = StripeRecords(version=2, incomplete=False, file=np.zeros(1, np.uint64), rank=np.zeros(1, np.int64),
                            stripe_bytes=np.array([-5]), stripe_count=np.array([2**62]))  # fmt: skip
    found = IoFacts(DarshanLog(version="3.41", processes=1 << 40, run_time_s=0.0, modules=log.modules, stripes=stripes))
    assert all(0 <= each <= 1 for each in found.scores().values())


def test_many_files_without_a_family_are_together_but_for_those_that_take_longest() -> None:
    count = 30_000
    records = empty_records("POSIX", count)
    records.file[:] = np.arange(count)
    records.rank[:] = np.arange(count) % 64
    records.times["POSIX_F_WRITE_TIME"][:] = np.arange(count) / count
    records.counters["POSIX_WRITES"][:] = 1
    names = {each: "".join("abcdefghij"[int(digit)] for digit in str(each)) for each in range(count)}
    log = DarshanLog(version="3.41", processes=64, run_time_s=1.0, names=names, modules={"POSIX": records})
    facts = IoFacts(log)
    assert len(facts.families) == 1001 and facts.families[1].name == names[count - 1]
    assert sum(each.records for each in facts.families) == count
    assert facts.families[0].name == "other files" and facts.families[0].records == count - 1000
