"""Real runs: every way of cutting has the gradients of one process, and a formula never promises too much room."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.traces.measures import TraceSource
from wavetank.live.short_runs import (
    HEADS,
    LAYERS,
    RANKS,
    SEQUENCES,
    TOKENS,
    WIDTH,
    Cut,
    cuts,
    gradients,
    predicted_bytes,
    run_cuts,
    sequences,
    weights,
)

torch = pytest.importorskip("torch", reason="needs the library torch")


def in_one_process():
    """The same layers as one model, written once more."""
    parts = [[torch.tensor(each, requires_grad=True) for each in weights(layer)] for layer in range(LAYERS)]
    rows, wanted = (torch.tensor(each) for each in sequences())
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    for qkv, mixed, up, down in parts:
        normed = torch.nn.functional.layer_norm(rows, (WIDTH,))
        q, k, v = (torch.einsum("btd,dk->btk", normed, each).unflatten(2, (HEADS, -1)).transpose(1, 2) for each in qkv)
        heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        rows = rows + heads.transpose(1, 2).flatten(2) @ mixed
        rows = rows + torch.relu(torch.nn.functional.layer_norm(rows, (WIDTH,)) @ up) @ down
    torch.nn.functional.mse_loss(rows, wanted).backward()
    return np.concatenate([each.grad.numpy().ravel() for layer in parts for each in layer])


@pytest.mark.parametrize(
    "cut",
    [
        Cut(2, 2, 2, 8, 1),
        *(pytest.param(each, marks=pytest.mark.slow) for each in (Cut(1, 4, 4, 4, 0), Cut(4, 1, 8, 2, 0))),
        pytest.param(Cut(1, 2, 1, 8, 1), marks=pytest.mark.slow),
    ],
)
def test_every_way_of_cutting_has_the_gradients_of_one_process(cut):
    assert cut in cuts()
    assert np.abs(gradients(cut) - in_one_process()).max() < 1e-12


def test_ways_of_cutting_use_all_processes_and_all_sequences_once():
    assert len(set(cuts())) == len(cuts()) == 46
    for cut in cuts():
        assert cut.tensor * cut.pipeline * cut.data == RANKS
        assert cut.micro * cut.accumulation * cut.data == SEQUENCES


def test_what_ranks_hold_is_a_little_less_than_the_formula_says():
    some = [cut for cut in cuts() if cut.micro in (2, 8) and cut.tensor < 4]
    found = run_cuts(some, steps=1)
    for cut, ran in zip(some, found, strict=True):
        assert 0.75 * predicted_bytes(cut) < ran.held_bytes <= predicted_bytes(cut)
        assert len(ran.seconds) == 1
        assert ran.seconds[0] > 0


def test_a_way_that_is_none_is_refused_before_any_process_starts():
    with pytest.raises(BadValueError, match="no way"):
        run_cuts([Cut(3, 1, 1, 8, 0)])


@pytest.mark.slow
def test_recorded_steps_leave_a_trace_of_each_process(tmp_path):
    cut = Cut(2, 2, 8, 2, 0)
    (ran,) = run_cuts([cut], steps=1, watch=[tmp_path / "a"])
    assert len(ran.seconds) == 1
    source = TraceSource(tmp_path / "a")
    assert sorted(source.traces) == list(range(RANKS))
    for trace in source.traces.values():
        assert [number for number, _, _ in trace.steps] == [0, 1]
        assert any(name.startswith("gloo:") for name in trace.names)
    with pytest.raises(BadValueError, match="folder"):
        run_cuts([cut], watch=[])
