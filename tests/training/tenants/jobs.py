"""Tasks with round numbers, and tasks of all kinds."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from wavetank.training.tenants.interface import PS, Machine, Rules, Tenants


def plain(
    tasks=1, updates=1, groups=1, group=1, *, tokens=1000, delay_s=30.0, turns=1, prompt=0, tools=64, weight=None
):
    """Return tasks whose turns are all alike."""
    answers = tasks * updates * groups * group
    return Tenants(
        first_answer=np.arange(tasks + 1) * updates * groups * group,
        first_turn=np.arange(answers + 1) * turns,
        prompt_tokens=np.full(answers, prompt),
        turn_tokens=np.full(answers * turns, tokens),
        delay_ps=np.full(answers * turns, round(delay_s * PS)),
        groups=groups,
        group=group,
        weight=np.ones(tasks, np.int64) if weight is None else np.array(weight),
        tool_workers=np.full(tasks, tools),
        kv_quota=np.full(tasks, 1 << 60),
    )


def round_machine(*, train_s=10.0, permille=0, **more):
    """Return a machine whose steps take 60 ms, and an update on 1000 tokens ``train_s``."""
    return Machine(
        generating=1.0, training=1.0, step_ns=60_000_000, sequence_ns=0, kv_ns=0, adapter_permille=permille, load_ps=0,
        train_token_ps=round(train_s * PS / 1000), swap_ps=0, **more,
    )  # fmt: skip


ALL_RULES = (
    Rules(at_once=1),
    Rules(at_once=1, s_max=1),
    Rules(at_once=2, s_max=2, adapters=1),
    Rules(barrier=True),
    Rules(barrier=True, adapters=1),
    Rules(),
    Rules(adapters=1),
    Rules(s_max=1),
    Rules(s_max=3),
    Rules(s_max=2, adapters=2),
    Rules(s_max=1, adapters=1),
)


@st.composite
def tenants(draw):
    """Draw small tasks: few tokens, delays of the size of a step, or none, so that much happens at once."""
    tasks, groups, group = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    updates = draw(st.lists(st.integers(1, 4), min_size=tasks, max_size=tasks))
    first_answer = np.concatenate(([0], np.cumsum(np.array(updates) * groups * group)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    counts = rng.integers(1, 4, first_answer[-1])
    unit_ps = draw(st.sampled_from([1, 10**9, 50 * 10**9]))
    return Tenants(
        first_answer=first_answer,
        first_turn=np.concatenate(([0], np.cumsum(counts))),
        prompt_tokens=rng.integers(0, 5, first_answer[-1]),
        turn_tokens=rng.integers(1, 7, counts.sum()),
        delay_ps=rng.integers(0, 8, counts.sum()) * unit_ps,
        groups=groups,
        group=group,
        weight=rng.integers(1, 4, tasks),
        tool_workers=rng.integers(1, 4, tasks),
        kv_quota=rng.integers(30, 60, tasks),
    )


@st.composite
def machines(draw):
    """Draw machines that hold at least one of these answers."""
    return Machine(
        generating=draw(st.sampled_from([0.5, 1.0, 2.0])),
        training=draw(st.sampled_from([0.5, 1.0, 4.0])),
        step_ns=draw(st.sampled_from([1, 1_000_000, 20_000_000])),
        sequence_ns=draw(st.sampled_from([0, 100_000])),
        kv_ns=draw(st.sampled_from([0, 400])),
        adapter_permille=draw(st.sampled_from([0, 20, 100])),
        load_ps=draw(st.sampled_from([0, 4 * 10**9])),
        train_token_ps=draw(st.sampled_from([1, 4 * 10**8])),
        swap_ps=draw(st.sampled_from([0, 10**10])),
        most_running=draw(st.integers(2, 8)),
        kv_tokens=draw(st.sampled_from([60, 100, 1000])),
        read_token_ps=draw(st.sampled_from([0, 0, 10**8])),
    )
