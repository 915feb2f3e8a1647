"""Quantities of a table: planted shares come back, and what is not there is refused by name."""

import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.insight.kernels.kernel_similarity import KernelSimilarity
from wavetank.insight.kernels.source import KernelSource

HEADER = (
    "kernel,run,opt,time_ns,topdown.retiring,topdown.frontend_bound,topdown.bad_speculation,topdown.core_bound,"
    "topdown.memory_bound,topdown.l1_bound,topdown.l2_bound,topdown.l3_bound,topdown.ext_mem_bound"
)
BINDS = {
    "DRAM9": "0.1,0,0,0.1,0.8,0,0,0.2,0.6", "DRAM8": "0.12,0,0,0.1,0.78,0,0,0.2,0.58",
    "chain": "0.2,0,0.1,0.6,0.1,0.1,0,0,0", "branchy": "0.2,0.1,0.6,0.1,0,0,0,0,0",
    "calls": "0.2,0.7,0,0.1,0,0,0,0,0", "busy": "0.9,0,0,0.1,0,0,0,0,0",
}  # fmt: skip


def written(folder, kernels=BINDS, runs=4, opt="O3", name="kernels.csv", extra=()):
    rows = [HEADER]
    for at, (kernel, shares) in enumerate(kernels.items()):
        rows += [f"{kernel},{run},{opt},{1000 * (at + 1)},{shares}" for run in range(runs)]
    path = folder / name
    path.write_text("\n".join((*rows, *extra)))
    return path


def source(path, **settings):
    return KernelSource(path, KernelSimilarity().compare, rounds=20, **settings)


def test_planted_shares_are_read_back(tmp_path):
    read = source(written(tmp_path))
    assert [read.quantity("binding", kernel=name) for name in BINDS] == [
        "memory", "memory", "core", "bad speculation", "frontend", "retiring",
    ]  # fmt: skip
    assert read.quantity("bound_share", kernel="DRAM9") == pytest.approx(0.8)
    assert read.quantity("level", kernel="DRAM9") == "DRAM"
    assert read.quantity("level_share", kernel="DRAM9") == pytest.approx(0.6)
    assert read.quantity("margin", kernel="DRAM9") == pytest.approx(0.6)
    assert read.quantity("slots_share", kernel="chain", leaf="core") == pytest.approx(0.6)
    assert read.quantity("time_share", kernel="DRAM8") == pytest.approx(2 / 21)
    assert read.quantity("memory_kernels") == 2
    assert read.quantity("holds_share", kernel="chain") == 1
    assert (read.quantity("rows"), read.quantity("kernels"), read.quantity("runs", kernel="busy")) == (24, 6, 4)


def test_the_nearest_kernel_comes_with_its_interval_and_set(tmp_path):
    read = source(written(tmp_path))
    assert read.quantity("nearest", kernel="DRAM9") == "DRAM8"
    # Without bytes the composition counts alone.
    low, mid, high = (
        read.quantity(name, kernel="DRAM9") for name in ("similarity_low", "similarity", "similarity_high")
    )
    assert low <= mid <= high
    assert read.quantity("set_size", kernel="DRAM9") == 1
    assert read.quantity("set", kernel="DRAM9") == "DRAM8"


def test_twins_make_the_answer_a_set(tmp_path):
    read = source(written(tmp_path, {**BINDS, "DRAM7": BINDS["DRAM8"]}))
    assert read.quantity("set_size", kernel="DRAM9") == 2
    assert read.quantity("set", kernel="DRAM9") == "DRAM7, DRAM8"
    many = source(written(tmp_path, {**BINDS, **{f"twin{at}": BINDS["DRAM8"] for at in range(8)}}))
    assert many.quantity("set", kernel="DRAM9").endswith(" and others")


def test_what_binds_is_less_sure_where_runs_disagree(tmp_path):
    extra = [f"torn,{run},O3,1,{'0.3,0,0,0.7,0' if run % 2 else '0.7,0,0,0.31,0'},0,0,0,0" for run in range(4)]
    read = source(written(tmp_path, extra=extra))
    assert 0.2 < read.quantity("holds_share", kernel="torn") < 0.9


def test_a_suite_of_its_own_table_is_compared_with(tmp_path):
    code = written(tmp_path, {"mine": BINDS["DRAM9"]}, name="code.csv")
    read = source(code, suite=written(tmp_path))
    assert read.quantity("nearest", kernel="mine") == "DRAM9"
    assert read.quantity("similarity", kernel="mine") == pytest.approx(1)
    assert read.quantity("covered_share") == 1
    assert source(code, suite=written(tmp_path), threshold=1.0).quantity("covered_share") in (0, 1)


def test_a_setting_is_the_one_asked_for_or_that_of_most_rows(tmp_path):
    more = [f"busy,{run},O0,1,{BINDS['calls']}" for run in range(9)]
    path = written(tmp_path, extra=more)
    assert source(path).setting[1] == "O3"
    asked = source(path, wanted=("", "O0", "", "", ""))
    assert asked.quantity("binding", kernel="busy") == "frontend"
    assert (asked.quantity("settings"), asked.quantity("setting")) == (2, "O0")
    with pytest.raises(BadValueError, match="No row"):
        source(path, wanted=("", "O9", "", "", ""))


def test_kernels_with_too_few_runs_or_gaps_are_not_judged(tmp_path):
    gaps = [f"gaps,{run},O3,1,,0,0,0.5,0.5,0,0,0,0" for run in range(4)]
    read = source(written(tmp_path, extra=[*gaps, f"once,0,O3,1,{BINDS['busy']}"]))
    assert {read.profiles.names[at] for at in read.known} == set(BINDS)
    assert read.quantity("gaps") == 4
    with pytest.raises(BadValueError, match="too few runs"):
        read.quantity("nearest", kernel="once")


@pytest.mark.parametrize(("name", "of"), [("colour", {}), ("binding", {}), ("binding", {"kernel": "nobody"}),
                                          ("slots_share", {"kernel": "busy", "leaf": "L9"}),
                                          ("slots_share", {"kernel": "busy"}),
                                          ("rows", {"kernel": "busy"})])  # fmt: skip
def test_what_a_table_does_not_have_is_refused(tmp_path, name, of):
    with pytest.raises(UnknownNameError):
        source(written(tmp_path)).quantity(name, **of)


def test_every_quantity_says_how_it_is_read(tmp_path):
    read = source(written(tmp_path))
    assert "clipped" in read.how("slots_share")
    with pytest.raises(BadValueError, match="no other kernel"):
        source(written(tmp_path, {"one": BINDS["busy"]})).quantity("nearest", kernel="one")
