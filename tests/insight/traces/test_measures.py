"""Quantities of traces with planted intervals are the numbers that were planted; order and shift change nothing."""

import json
import random

import pytest

from wavetank.errors import BadTraceError, UnknownNameError
from wavetank.insight.traces.measures import QUANTITIES, SHARES, TooLittleError, TraceSource, files_of


def kernel(name, begin, took, stream=7, **args):
    return {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": took, "pid": 0, "tid": stream,
            "args": {"stream": stream, **args}}  # fmt: skip


def step(number, begin, took):
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": begin, "dur": took}


def job(folder, events, name="rank.json", **info):
    (folder / name).write_text(json.dumps({"distributedInfo": info, "traceEvents": events}), encoding="utf-8")
    return folder / name


# Computes 0 to 40 and 60 to 100, communicates 30 to 70, copies 90 to 110, idles 110 to 120, computes 120 to 200.
PLANTED = [
    kernel("gemm", 0, 40), kernel("gemm", 60, 40), kernel("ncclDevKernel_AllReduce", 30, 40, 9), kernel("add", 120, 80),
    {**kernel("Memcpy HtoD", 90, 20, 11), "cat": "gpu_memcpy"}, step(4, 0, 100), step(5, 100, 100),
]  # fmt: skip
EXPECTED = {
    "idle_share": 10 / 200,
    "communication_share": 40 / (100 + 80),
    "hidden_communication_share": 20 / 40,
    "exposed_communication_share": 20 / 200,
    "exposed_copy_share": 10 / 200,
    "short_kernel_share": 0.0,
    "largest_kernel_share": 80 / 160,
    "span_s": 200e-6,
    "step_s": 100e-6,
}


@pytest.mark.parametrize(("name", "value"), EXPECTED.items())
def test_planted_shares_come_out(tmp_path, name, value):
    assert TraceSource(job(tmp_path, PLANTED)).quantity(name, rank=0) == pytest.approx(value, rel=1e-12)


def test_order_and_shift_of_time_change_nothing(tmp_path):
    events = [{**each, "ts": each["ts"] + 1_735_632_360_000_000} for each in PLANTED]
    random.Random(3).shuffle(events)
    source = TraceSource(job(tmp_path, events))
    for name, value in EXPECTED.items():
        assert source.quantity(name, rank=0) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("start", "hidden"), [(0, 1.0), (50, 0.5), (100, 0.0), (25, 0.75)])
def test_overlap_of_none_half_and_all_is_exactly_that(tmp_path, start, hidden):
    source = TraceSource(job(tmp_path, [kernel("gemm", 0, 100), kernel("nccl", start, 100, 9)]))
    assert source.quantity("hidden_communication_share", rank=0) == hidden


def call(correlation, begin, took):
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin, "dur": took,
            "args": {"correlation": correlation}}  # fmt: skip


def test_idle_time_is_the_hosts_until_the_call_that_ends_it_is_over(tmp_path):
    # A gap from 10 to 30, whose kernel was started from 15 to 20: 10 of 20.  One from 40 to 50, started before: 0.
    events = [
        kernel("a", 0, 10, correlation=1),
        kernel("b", 30, 10, correlation=2),
        kernel("c", 50, 10, correlation=3),
        call(1, -5, 1),
        call(2, 15, 5),
        call(3, 16, 20),
    ]
    assert TraceSource(job(tmp_path, events)).quantity("host_bound_share", rank=0) == pytest.approx(10 / 30)
    later = [*events[:-1], call(3, 35, 100)]
    assert TraceSource(job(tmp_path, later, "b.json")).quantity("host_bound_share", rank=0) == pytest.approx(20 / 30)
    with pytest.raises(TooLittleError, match="names the call"):
        TraceSource(job(tmp_path, [*events[:3], call(77, 0, 1)], "c.json")).quantity("host_bound_share", rank=0)
    with pytest.raises(TooLittleError, match="no call of the runtime"):
        TraceSource(job(tmp_path, events[:3], "d.json")).quantity("host_bound_share", rank=0)


def test_parts_are_steps_where_there_are_some_and_eighths_elsewhere(tmp_path):
    source = TraceSource(job(tmp_path, PLANTED))
    assert source.parts(0) == [(0, 100_000), (100_000, 200_000)]
    # Idle: 0 of the first step, a tenth of the second.
    for least, share in ((0.1, 0.5), (0.11, 0.0), (0.0, 1.0)):
        assert source.quantity("holds_share", rank=0, share="idle_share", least=least) == share
    bare = TraceSource(job(tmp_path, PLANTED[:5], "bare.json"))
    assert len(bare.parts(0)) == 8
    # From 30 to 70 of eighths of 25: 20 of 25 busy in the second and in the third, nothing elsewhere.
    assert bare.quantity("holds_share", rank=0, share="communication_share", least=0.75) == 2 / 8
    with pytest.raises(UnknownNameError):
        source.quantity("holds_share", rank=0, share="span_s", least=0.1)


def ranks(folder, durations, world=3):
    for rank, row in enumerate(durations):
        events = [
            kernel("gemm", 0, 100),
            *(kernel("ncclAllReduce", 200 * (i + 1), took, 9) for i, took in enumerate(row)),
        ]
        job(folder, events, f"r{rank}.json", rank=rank, world_size=world)
    return folder


def test_the_rank_that_the_others_wait_for_has_the_shortest_collectives(tmp_path):
    source = TraceSource(ranks(tmp_path, [(50, 60, 50), (10, 70, 10), (50, 10, 60)]))
    assert source.quantity("last_rank") == 1
    assert source.quantity("last_share") == pytest.approx(2 / 3)
    assert source.quantity("waiting_share", rank=0) == pytest.approx((40 + 50 + 40) / (600 + 50))
    assert source.quantity("least_communication_share") == pytest.approx(30 / ((160 + 90 + 120) / 3))


def test_ranks_that_ran_other_collectives_are_not_compared(tmp_path):
    source = TraceSource(ranks(tmp_path, [(50, 60), (10, 70, 10)]))
    with pytest.raises(TooLittleError, match="the same collectives"):
        source.quantity("last_rank")
    with pytest.raises(TooLittleError, match="One rank"):
        TraceSource(tmp_path / "r0.json").quantity("last_share")


def test_a_trace_without_device_events_has_too_little(tmp_path):
    source = TraceSource(job(tmp_path, [{"ph": "X", "cat": "cpu_op", "name": "add", "ts": 0, "dur": 1}]))
    assert source.quantity("events", rank=0) == 1
    for name in ("idle_share", "kernels", "span_s"):
        with pytest.raises(TooLittleError, match="no kernel or copy"):
            source.quantity(name, rank=0)
    copies = TraceSource(job(tmp_path, [{**kernel("Memcpy", 0, 5), "cat": "gpu_memcpy"}], "copies.json"))
    for name in ("communication_share", "hidden_communication_share", "largest_kernel", "short_kernel_share"):
        with pytest.raises(TooLittleError):
            copies.quantity(name, rank=0)


def test_folders_have_one_file_a_rank(tmp_path):
    ranks(tmp_path, [(1,), (2,)])
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "a_config.json").write_text('{"layers": 3}')
    assert [each.name for each in files_of(tmp_path)] == ["a_config.json", "r0.json", "r1.json"]
    assert TraceSource(tmp_path).quantity("ranks") == 2
    assert TraceSource(tmp_path).quantity("other_files") == 1
    assert TraceSource(tmp_path / "r0.json").quantity("other_files") == 0
    job(tmp_path, PLANTED, "again.json", rank=1)
    with pytest.raises(BadTraceError, match="the same rank"):
        TraceSource(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadTraceError, match="no trace"):
        TraceSource(tmp_path / "empty")


def test_an_unknown_quantity_or_rank_is_refused(tmp_path):
    source = TraceSource(job(tmp_path, PLANTED))
    with pytest.raises(UnknownNameError):
        source.quantity("idle", rank=0)
    with pytest.raises(BadTraceError, match="no trace of this rank"):
        source.quantity("idle_share", rank=1)


def test_every_quantity_says_how_it_is_read():
    source = TraceSource.__new__(TraceSource)
    assert all(source.how(name) and not source.how(name).endswith(".") for name in QUANTITIES)
    assert set(SHARES) < set(QUANTITIES)
