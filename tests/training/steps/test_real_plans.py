"""Two processes run real steps: what torch's observers say of them is what the plans are made of."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the library torch")

from wavetank.live.ranks import run_ranks
from wavetank.training.steps.real_plans import MESSAGES, PLANS, RANKS, run_plans

WIDTH, LAYERS = 32, 2
WEIGHTS = 4 * (LAYERS * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH))


@pytest.fixture(scope="module")
def found():
    arguments = {
        "plans": list(PLANS), "width": WIDTH, "layers": LAYERS, "microbatches": 2, "watched_rows": [8, 16],
        "rows": [8, 16, 12], "sizes": [1 << 12, 1 << 14], "turns": 2, "repeats": 1, "seed": 0,
    }  # fmt: skip
    return run_ranks(run_plans, RANKS, arguments=arguments, timeout_s=300.0)


def communication(found, rank, plan, rows):
    return [(call["kind"], call["n_bytes"]) for call in found[rank]["calls"][plan][str(rows)] if call["kind"]]


def test_every_plan_communicates_what_it_has_to(found):
    for rank in range(RANKS):
        gradients = communication(found, rank, "data-parallel", 8)
        assert {kind for kind, _ in gradients} == {"all-reduce"}
        assert sum(n for _, n in gradients) == WEIGHTS
        sharded = communication(found, rank, "fsdp2", 8)
        assert sum(n for kind, n in sharded if kind == "reduce-scatter") == WEIGHTS
        # Weights are gathered for the forward pass, and again for the backward one.
        assert sum(n for kind, n in sharded if kind == "all-gather") == 2 * WEIGHTS
        # A row's sum after each block, forward; backward for each block but the first, whose input needs no gradient.
        for rows in (8, 16):
            assert communication(found, rank, "tensor", rows) == [("all-reduce", 4 * rows * WIDTH)] * (2 * LAYERS - 1)
            halves = communication(found, rank, "1f1b", rows)
            assert sorted(halves) == [("receive", 2 * rows * WIDTH)] * 2 + [("send", 2 * rows * WIDTH)] * 2


def test_watched_steps_lie_within_themselves_and_others_have_lengths(found):
    for each in found:
        for plan in PLANS:
            begin, end = each["begin"][plan]["16"], each["end"][plan]["16"]
            assert begin.shape == end.shape == (2, 1 + len(each["calls"][plan]["16"]))
            assert (np.diff(begin) >= 0).all()
            assert (begin <= end).all()
            assert (end[:, 1:] <= end[:, :1]).all()
            assert set(each["steps"][plan]) == {"8", "16", "12"}
            assert (np.diff(each["steps"][plan]["12"]) > 0).all()


def test_messages_of_every_kind_take_time_and_processor_time(found):
    for each in found:
        for kind in MESSAGES:
            times = each["messages"][kind]["16384"]
            assert times.shape == (2, 3)
            assert (times > 0).all()
            assert (times[:, 0] < times[:, 1]).all()
