"""What is placed, and what a placement is."""

from dataclasses import replace

import pytest

from wavetank.errors import BadFileError, BadValueError, UnknownNameError
from wavetank.serving.placement.interface import (
    NO_DEVICE,
    Adapter,
    Gpu,
    Placement,
    PlacementProblem,
    TwinRun,
    all_resident,
    kv_tokens,
    model_named,
    outcasts,
    read_adapters,
    width_of,
)

LLAMA = "llama-3.1-8b-instruct"


@pytest.mark.parametrize("changed", [{"rank": 0}, {"rank": 2.5}, {"rate_per_s": 0.0}, {"rate_per_s": float("inf")},
                                     {"rate_per_s": float("nan")}])  # fmt: skip
def test_adapters_that_make_no_sense_are_refused(changed):
    with pytest.raises(BadValueError):
        Adapter(**({"name": "a", "rank": 8, "rate_per_s": 1.0} | changed))


@pytest.mark.parametrize("changed", [{"share": 0.0}, {"share": 1.1}, {"headroom": 0.0}, {"headroom": 3.0}, {"gpus": 0}])
def test_problems_out_of_range_are_refused(problem, changed):
    with pytest.raises(BadValueError):
        problem(1.0, **changed)


def test_no_adapters_and_names_that_stand_twice_are_refused():
    one = Adapter(name="a", rank=8, rate_per_s=1.0)
    with pytest.raises(BadValueError, match="no adapters"):
        PlacementProblem(adapters=())
    with pytest.raises(BadValueError, match="same name"):
        PlacementProblem(adapters=(one, one))


def test_an_unknown_model_gets_the_nearest_name():
    with pytest.raises(UnknownNameError, match="llama"):
        model_named("llama-3.1-8b-instrukt")


def test_the_kv_cache_shrinks_with_slots_and_ranks_as_the_recorded_ones_do():
    # Of the dossier: 305,104 tokens beside 8 slots of rank 8, 215,104 beside 64 of rank 32.
    assert kv_tokens(LLAMA, 8, 8) == pytest.approx(305_104, rel=0.02)
    assert kv_tokens(LLAMA, 64, 32) == pytest.approx(215_104, rel=0.02)
    assert kv_tokens(LLAMA, 64, 5) == kv_tokens(LLAMA, 64, 8)


def test_an_engine_without_room_for_the_longest_context_does_not_start():
    assert kv_tokens(LLAMA, 384, 64) == 0
    assert kv_tokens(LLAMA, 8, 257) == 0
    assert width_of(257) is None and width_of(9) == 16


def test_adapters_that_fit_no_slot_are_named(problem):
    assert outcasts(problem(1.0, 1.0, ranks=(8, 512))) == {"a1": NO_DEVICE}


def test_as_many_slots_as_adapters_or_the_most_there_are(problem):
    some = problem(*[0.1] * 100, ranks=(8,))
    assert all_resident(some, some.adapters) == 128
    assert all_resident(some, some.adapters[:1]) == 1
    wide = problem(*[0.1] * 300, ranks=(64,))
    assert all_resident(wide, wide.adapters) == wide.choices(64)[-1] < 300
    assert all_resident(problem(1.0, ranks=(512,)), problem(1.0, ranks=(512,)).adapters) is None


@pytest.mark.parametrize(
    ("gpus", "unplaced"),
    [
        ([("a0",)], {}),
        ([("a0", "a1"), ("a1",)], {}),
        ([("a0", "a1")], {"a1": "x"}),
        ([("a0", "a1"), ()], {}),
        ([("a0", "a1", "zz")], {}),
    ],
)
def test_a_plan_that_loses_or_doubles_an_adapter_is_refused(problem, gpus, unplaced):
    plan = Placement(gpus=tuple(Gpu(adapters=each, slots=4) for each in gpus), unplaced=unplaced)
    with pytest.raises((BadValueError, UnknownNameError)):
        plan.check(problem(1.0, 1.0))


def test_a_plan_with_slots_that_do_not_fit_or_too_many_gpus_is_refused(problem):
    two = problem(1.0, 1.0, ranks=(64,))
    with pytest.raises(BadValueError, match="no memory"):
        Placement(gpus=(Gpu(adapters=("a0", "a1"), slots=384),)).check(two)
    with pytest.raises(BadValueError, match="more GPUs"):
        each_alone = tuple(Gpu(adapters=(name,), slots=1) for name in ("a0", "a1"))
        Placement(gpus=each_alone).check(problem(1.0, 1.0, gpus=1))


def test_whether_a_gpu_keeps_up(problem):
    run = TwinRun(asked_tokens=100.0, given_tokens=90.0, itl_mean_s=0.02, ttft_p99_s=1.0, worst_share=1.0)
    assert problem(1.0).fed(run)
    assert not problem(1.0, share=0.91).fed(run)
    assert not problem(1.0, itl_target_s=0.019).fed(run)
    assert not problem(1.0).fed(replace(run, worst_share=0.5))


def test_adapters_are_read_from_a_file(tmp_path):
    (tmp_path / "a.csv").write_text("\ufeffrank,adapter,rate_per_s\n8,a,0.5\n16, b ,2\n")
    assert read_adapters(str(tmp_path / "a.csv")) == (
        Adapter(name="a", rank=8, rate_per_s=0.5), Adapter(name="b", rank=16, rate_per_s=2.0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "columns"),
        ("adapter,rank\na,8\n", "columns"),
        ("adapter,rank,rate_per_s\n", "no adapters"),
        ("adapter,rank,rate_per_s\na,8,1\na,8,1\n", "line 3"),
        ("adapter,rank,rate_per_s\n,8,1\n", "line 2"),
        ("adapter,rank,rate_per_s\na,eight,1\n", "line 2"),
        ("adapter,rank,rate_per_s\na,8\n", "line 2"),
        ("adapter,rank,rate_per_s\na,8,1,7\n", "line 2"),
        ("adapter,rank,rate_per_s\na,8,nan\n", "line 2"),
        ("adapter,rank,rate_per_s\na,8,-1\n", "line 2"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path, text, says):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(BadFileError, match=says):
        read_adapters(str(tmp_path / "a.csv"))
