"""Counts of own kernels: what cachegrind says by function, checked against what the loops must do."""

import pytest

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.insight.kernels import own_kernels
from wavetank.insight.kernels.expected_pairs import EXPECTED
from wavetank.insight.kernels.own_kernels import COSTS, Costs, Counted, profiles_of_counts, read_counts

EVENTS = "Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw Bc Bcm Bi Bim"
COUNTS = f"""cmd: ./kernels
events: {EVENTS}
fl=kernels.c
fn=main
10 99 0 0 9
fn=Stream_Copy
20 80 1 1 40 16 10 40 8 4 20 2 0 0
21 20
summary: 1
"""
STATED = "stream_copy 40 0 640 0\n"


def counted_here():
    if missing := own_kernels.missing_programs():
        pytest.skip(f"needs {' and '.join(missing)}")
    return own_kernels.counted()


def test_counts_are_summed_by_function():
    (one,) = read_counts(COUNTS, STATED).values()
    assert one.events["Ir"] == 100
    assert one.events["DLmr"] == 10
    assert (one.iterations, one.bytes) == (40, 640)


def test_cycles_follow_from_counts_and_costs():
    (one,) = read_counts(COUNTS, STATED.replace(" 0\n", " 30\n")).values()
    costs = Costs(issue=0.5, mispredict=10, fetch=3, load=1, store=2, near_miss=4, far_miss=20)
    assert one.cycles(costs) == {
        "retiring": 50, "frontend_bound": 3, "bad_speculation": 20, "core_bound": 0, "l1_bound": 40 + 80 - 50,
        "l2_bound": 4 * (16 + 8 - 14), "l3_bound": 0, "ext_mem_bound": 20 * 14,
    }  # fmt: skip
    assert one.cycles(Costs(issue=0.1))["core_bound"] == 20


def test_profiles_hold_shares_of_cycles_and_rates():
    events = dict.fromkeys(EVENTS.split(), 0) | {"Ir": 400, "DLmr": 10, "D1mr": 10}
    one = Counted(name="k", events=events, iterations=1, flops=64, bytes=640, chain=0)
    found = profiles_of_counts([one], Costs())
    assert found.shares[0, 0, [0, 4, 8, 9]] == pytest.approx([100 / 228, 128 / 228, 128 / 228, 128 / 228])
    assert found.flops_per_byte[0] == 0.1
    assert found.bytes_per_s[0, 0] == pytest.approx(640 / (228 / 2.1e9))


@pytest.mark.parametrize(
    ("counts", "stated", "says"),
    [
        (COUNTS.replace("events", "nothing"), STATED, "no counts"),
        (COUNTS.replace(" Bim", ""), STATED, "no counts"),
        (COUNTS, "other 1 1 1 1", "was not counted"),
        (COUNTS, "stream_copy 1 1 1", "was not counted"),
    ],
)
def test_what_is_no_count_is_refused(counts, stated, says):
    with pytest.raises(BadFileError, match=says):
        read_counts(counts, stated)


def test_what_a_kernel_states_must_be_figures():
    with pytest.raises(BadValueError, match="no figure"):
        read_counts(COUNTS, "stream_copy 1 nan 1 1")


def test_without_the_programs_counting_says_which_are_missing(monkeypatch):
    monkeypatch.setattr(own_kernels.shutil, "which", lambda name: None)
    with pytest.raises(WavetankError, match=r"(?s)no gcc and no valgrind"):
        own_kernels.counted()


def test_counted_kernels_do_what_their_loops_say(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = counted_here()
    copy, triad = found["Stream_COPY"], found["Stream_TRIAD"]
    # A read and a write of 60,000 doubles a run; every line of 8 misses, for the arrays are larger than the cache.
    assert copy.events["Dr"] == pytest.approx(copy.iterations, rel=0.01)
    assert copy.events["Dw"] == pytest.approx(copy.iterations, rel=0.01)
    assert copy.events["DLmr"] == pytest.approx(copy.iterations / 8, rel=0.01)
    assert triad.events["Dr"] == pytest.approx(2 * triad.iterations, rel=0.01)
    assert found["kripke_ltimes"].flops == 2 * found["kripke_ltimes"].iterations
    again = own_kernels.counted()
    assert {name: each.events for name, each in again.items()} == {name: each.events for name, each in found.items()}


def test_a_damaged_cache_is_counted_anew(monkeypatch, tmp_path):
    counted_here()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ran = []
    monkeypatch.setattr(own_kernels, "_count", lambda source, folder: ran.append(1) or read_counts(COUNTS, STATED))
    own_kernels.counted()
    own_kernels.counted()
    assert len(ran) == 1
    (kept,) = (tmp_path / "wavetank" / "counted-kernels").iterdir()
    kept.write_text("[{}]")
    assert list(own_kernels.counted()) == ["stream_copy"]
    assert len(ran) == 2


def test_code_and_suite_are_told_apart_and_every_code_kernel_has_an_expected_pair():
    counted_here()
    code, suite = own_kernels.own_profiles("as fixed")
    assert set(code.names) == set(EXPECTED)
    assert len(suite.names) >= 15
    assert {name for each in EXPECTED.values() for name in each.any_of} <= set(suite.names)
    cheap, dear = (own_kernels.own_profiles(name)[1].shares[:, 0, 4] for name in ("memory half", "memory twice"))
    assert (dear >= cheap).all()
    assert COSTS["memory twice"].far_miss == 4 * COSTS["memory half"].far_miss
