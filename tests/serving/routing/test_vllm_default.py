"""vLLM's rule for data-parallel engines."""

import pytest

from wavetank.serving.routing.vllm_default import VLLMDefault


@pytest.mark.parametrize(
    ("running", "waiting", "engine"),
    [
        ([5, 3, 4], [0, 0, 0], 1),
        ([0, 5, 9], [2, 0, 0], 1),  # 8, 5, 9
        ([3, 0, 0], [0, 1, 1], 0),  # 3, 4, 4
        ([4, 0], [0, 1], 0),  # 4, 4: the first
        ([5, 1], [0, 1], 0),  # 5, 5: the first
        ([2, 2, 2], [1, 1, 1], 0),
        ([7, 6, 6], [0, 0, 0], 1),
    ],
)
def test_the_least_of_four_waiting_plus_running_is_taken_and_the_first_of_equals(
    workers, chosen, running, waiting, engine
):
    assert chosen(VLLMDefault(), workers(len(running), running=running, waiting=waiting)) == [engine]


def test_equals_do_not_rotate(workers, chosen):
    assert chosen(VLLMDefault(), workers(3), 4) == [0, 0, 0, 0]


def test_what_was_sent_since_the_refresh_counts_as_waiting(workers, chosen):
    assert chosen(VLLMDefault(), workers(2, running=[0, 3], sent_requests=[1, 0])) == [1]
    assert chosen(VLLMDefault(), workers(2, running=[0, 4], sent_requests=[1, 0])) == [0]


def test_a_burst_between_two_refreshes_spreads_over_idle_engines(workers, chosen):
    view = workers(3)
    engines = []
    for _ in range(6):
        (engine,) = chosen(VLLMDefault(), view)
        view.sent_requests[engine] += 1
        engines.append(engine)
    assert engines == [0, 1, 2, 0, 1, 2]


def test_the_weight_of_waiting_requests_is_a_parameter(workers, chosen):
    view = workers(2, running=[0, 3], waiting=[1, 0])
    assert chosen(VLLMDefault(waiting_weight=4.0), view) == [1]
    assert chosen(VLLMDefault(waiting_weight=2.0), view) == [0]


def test_tokens_do_not_count(workers, chosen):
    assert chosen(VLLMDefault(), workers(2, kv_tokens=[1e6, 0.0], waiting_tokens=[1e6, 0.0])) == [0]
