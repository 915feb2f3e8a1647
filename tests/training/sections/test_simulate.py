"""The compiled simulator against a walk moment by moment, bounds that nothing breaks, and damaged input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.sections.by_the_clock import walked

from wavetank.errors import BadValueError
from wavetank.training.sections.flow_shop import makespan
from wavetank.training.sections.simulate import UNBOUNDED, Flow, run


def random_flow(seed, count=7, sections=1, queue=UNBOUNDED, shared=True, images=0.5, frozen=False):
    draws = np.random.default_rng(seed)
    has = draws.random((sections, count)) < images
    forward = np.where(has, draws.integers(1, 9, (sections, count)), 0)
    backward = np.zeros_like(forward) if frozen else np.where(has, draws.integers(1, 15, (sections, count)), 0)
    critical = draws.integers(1, 12, count)
    return Flow(forward_ps=forward, critical_ps=critical, backward_ps=backward, queue=queue, shared=shared)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6), count=st.integers(1, 12), sections=st.integers(1, 3), queue=st.integers(0, 4),
    shared=st.booleans(), images=st.sampled_from([0.0, 0.3, 0.7, 1.0]), frozen=st.booleans(),
)  # fmt: skip
def test_it_ends_when_a_walk_moment_by_moment_ends(seed, count, sections, queue, shared, images, frozen):
    flow = random_flow(seed, count, sections, queue, shared, images, frozen)
    order = np.random.default_rng(seed + 1).permutation(count)
    wanted = walked(
        flow.forward_ps.tolist(), flow.critical_ps.tolist(), flow.backward_ps.tolist(), order.tolist(), queue, shared
    )
    found = run(flow, order)
    assert found.makespan_ps == wanted
    assert found.makespan_ps >= flow.bound_ps
    assert found.critical_end_ps >= int(flow.critical_ps.sum())


def test_without_queues_and_shared_gpus_it_is_a_flow_shop_of_three_machines():
    for seed in range(40):
        flow = random_flow(seed, 9, shared=False)
        order = np.random.default_rng(seed).permutation(9)
        times = np.stack([flow.forward_ps[0], flow.critical_ps, flow.backward_ps[0]], 1)
        assert run(flow, order).makespan_ps == makespan(times, order)
        both = Flow(forward_ps=flow.forward_ps, critical_ps=flow.critical_ps, backward_ps=flow.backward_ps)
        assert run(both, order).makespan_ps >= makespan(times, order)


def test_texts_alone_take_what_the_critical_section_takes():
    none = np.zeros((2, 5), np.int64)
    flow = Flow(forward_ps=none, critical_ps=np.arange(1, 6), backward_ps=none, queue=1)
    found = run(flow, np.array([4, 2, 0, 1, 3]))
    assert (found.makespan_ps, found.critical_end_ps, flow.bound_ps) == (15, 15, 15)


def test_a_shorter_queue_keeps_the_encoder_from_working_ahead():
    forward = np.array([[2, 2, 2, 2]])
    words = {"forward_ps": forward, "critical_ps": np.array([10, 1, 1, 1]), "backward_ps": 0 * forward}
    ends = [run(Flow(**words, queue=queue), np.arange(4)).makespan_ps for queue in (1, 2, 0)]
    # One output may wait: the next forward pass begins when it is taken.
    assert ends == [17, 15, 15]


def test_some_samples_may_be_left_out_but_none_may_come_twice():
    flow = random_flow(3)
    assert run(flow, np.array([2])).makespan_ps == int(flow.forward_ps[0, 2] + flow.critical_ps[2]) + int(
        flow.backward_ps[0, 2]
    )
    assert run(flow, np.array([], np.int64)).makespan_ps == 0
    for wrong in ([0, 0], [7], [-1]):
        with pytest.raises(BadValueError, match="each once"):
            run(flow, np.array(wrong))


@pytest.mark.parametrize(
    "change",
    [
        {"critical_ps": np.ones(3)}, {"forward_ps": np.ones((1, 2), np.int64)}, {"backward_ps": -np.ones((1, 3), int)},
        {"critical_ps": np.full(3, 2**60)}, {"queue": -1}, {"queue": 1.5}, {"queue": True},
    ],
)  # fmt: skip
def test_damaged_times_and_queues_are_refused(change):
    whole = np.ones((1, 3), np.int64)
    words = {"forward_ps": whole, "critical_ps": np.ones(3, np.int64), "backward_ps": whole}
    with pytest.raises(BadValueError):
        Flow(**(words | change))
