"""Profiles: kernels by name, runs drawn for each kernel on its own, means over what is there."""

import numpy as np
import pytest

from wavetank.errors import BadValueError, DataUnavailableError
from wavetank.insight.kernels.interface import Profiles, profiles_of
from wavetank.sim.rng import stream
from wavetank.workloads import datasets
from wavetank.workloads.topdown import SHARES, KernelTable, read_kernels

O3 = ("g++-10.3.1", "O3", "Base_Seq", "library", "8388608.000000")


def made(shares, flops=None, rates=None):
    values = np.array(list(shares.values()), np.float64)
    # The backend is core and memory, where a test does not say otherwise.
    if values.shape[-1] == 9:
        values = np.concatenate((values, values[..., 3:5].sum(-1, keepdims=True)), axis=-1)
    count, runs, _ = values.shape
    return Profiles(
        names=tuple(shares), shares=values,
        flops_per_byte=np.array(flops if flops is not None else [1.0] * count),
        bytes_per_s=np.array(rates if rates is not None else np.ones((count, runs))),
        seconds=np.ones((count, runs)), time_s=np.ones(count),
    )  # fmt: skip


def real():
    try:
        path = datasets.find("rajaperf-topdown", "cpu_topdown_gcc.csv.gz")
    except DataUnavailableError:
        pytest.skip("needs the data set rajaperf-topdown")
    return profiles_of(read_kernels(path), O3)


def of_rows(*rows):
    """Rows of kernel, optimisation, share of retiring, seconds, bytes, operations."""
    names, opts, shares, seconds, moved, flops = zip(*rows, strict=True)
    return KernelTable(
        kernels=names, runs=tuple(map(str, range(len(rows)))), settings=tuple(("", opt, "", "", "") for opt in opts),
        values={"retiring": np.array(shares), "time.duration": np.array(seconds), "Bytes/Rep": np.array(moved),
                "Flops/Rep": np.array(flops), "Reps": np.full(len(rows), 2.0)},
    )  # fmt: skip


def test_a_table_becomes_profiles_sorted_by_name():
    found = profiles_of(of_rows(("B", "O3", 0.5, 4.0, 8.0, 2.0), ("A", "O3", 0.1, 2.0, 8.0, 4.0),
                                ("B", "O3", 0.7, 2.0, 8.0, 2.0)))  # fmt: skip
    assert found.names == ("A", "B")
    assert found.shares[1, :, 0].tolist() == [0.5, 0.7]
    assert np.isnan(found.shares[0, 1]).all()
    assert np.isnan(found.shares[1, :, SHARES.index("core_bound")]).all()
    assert found.seconds[1].tolist() == [2, 1]
    assert found.bytes_per_s[1].tolist() == [4, 8]
    assert found.flops_per_byte.tolist() == [0.5, 0.25]
    assert found.time_s.tolist() == [2, 3]


def test_rows_of_one_setting_are_taken_alone():
    table = of_rows(("A", "O3", 0.5, 1.0, 1.0, 1.0), ("A", "O0", 0.9, 1.0, 1.0, 1.0))
    assert profiles_of(table, ("", "O0", "", "", "")).shares[0, :, 0].tolist() == [0.9]
    with pytest.raises(BadValueError, match="No row"):
        profiles_of(table, ("", "O7", "", "", ""))


def test_a_mean_leaves_gaps_out_and_chosen_runs_keep_their_order():
    profiles = made({"A": [[0.2] * 9, [np.nan] * 9, [0.4] * 9]}, rates=[[1.0, 2.0, 9.0]])
    assert profiles.mean().shares[0, 0] == pytest.approx([0.3] * 9 + [0.6])
    assert profiles.mean().bytes_per_s.tolist() == [[4.0]]
    assert profiles.of_runs(np.array([2, 0])).bytes_per_s.tolist() == [[9.0, 1.0]]
    assert np.isnan(made({"A": [[np.nan] * 9]}).mean().shares).all()


def test_kernels_are_chosen_with_all_that_belongs_to_them():
    profiles = made({"A": [[0.2] * 9], "B": [[0.4] * 9]}, flops=[1.0, 2.0], rates=[[1.0], [2.0]])
    one = profiles.of_kernels([1])
    assert one.names == ("B",)
    assert (one.shares[0, 0, 0], one.flops_per_byte[0], one.bytes_per_s[0, 0]) == (0.4, 2.0, 2.0)


def test_gaps_are_never_drawn_and_narrow_no_interval():
    whole = [[0.1] * 9, [0.5] * 9, [0.3] * 9]
    gap = [np.nan] * 9
    few = made({"A": [gap] * 7 + whole, "B": [gap] * 10}, rates=[[np.nan] * 7 + [1.0, 2.0, 3.0], [1.0] * 10])
    alone = made({"A": whole})
    drawn = np.array([few.drawn(stream(seed, "t")).shares[:, 0, 0] for seed in range(400)])
    assert not np.isnan(drawn[:, 0]).any()
    assert np.isnan(drawn[:, 1]).all()
    plain = [alone.drawn(stream(seed, "u")).shares[0, 0, 0] for seed in range(400)]
    assert drawn[:, 0].std() == pytest.approx(np.std(plain), rel=0.15)
    assert drawn[:, 0].mean() == pytest.approx(0.3, abs=0.02)


def test_runs_are_drawn_for_each_kernel_on_its_own():
    runs = [[float(at)] * 9 for at in range(8)]
    profiles = made({"A": runs, "B": runs})
    drawn = [profiles.drawn(stream(seed, "t")).shares[:, 0, 0] for seed in range(20)]
    assert any(a != b for a, b in drawn)
    assert np.mean(drawn) == pytest.approx(3.5, abs=0.7)
