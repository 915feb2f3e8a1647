"""What a replica keeps up, and which templates are superfluous."""

import dataclasses

import numpy as np
import pytest
from tests.serving.fleet.conftest import CHAT, LARGE, template

from wavetank.platforms.prices import Offer
from wavetank.serving.fleet.interface import Service
from wavetank.serving.fleet.templates import (
    Engine,
    Strategy,
    needed_requests,
    pruned,
    requests_of,
    serve,
    share_within,
    sustained_per_s,
    templates_of,
)

H100 = Strategy(engine=Engine(device="H100-SXM", tensor_parallel=1, budget_tokens=512))
# Short answers, so that what is long enough to be steady is short to simulate.
SHORT = Service(model="Llama-3.1-8B", prompt_tokens=300, output_tokens=20, slo_ttft_s=1.0, slo_tpot_s=0.05)


def test_a_replica_keeps_up_its_rate_and_not_one_a_tenth_above_on_other_requests():
    rate = sustained_per_s(H100, SHORT)
    for factor, within in ((0.9, True), (1.1, False)):
        n = needed_requests(SHORT, factor * rate)
        run = serve(H100, SHORT, requests_of(SHORT, n, 77, factor * rate))
        assert (share_within(run, SHORT) >= SHORT.share) is within


def test_what_is_kept_up_depends_on_no_length_of_a_trace(monkeypatch):
    from wavetank.serving.fleet import templates

    rate = sustained_per_s(H100, SHORT)
    monkeypatch.setattr(templates, "SPANS", 2 * templates.SPANS)
    assert sustained_per_s(H100, SHORT) == pytest.approx(rate, rel=0.05)


def test_two_workers_keep_up_at_least_twice_what_one_does():
    rate = sustained_per_s(H100, SHORT)
    run = serve(H100, SHORT, requests_of(SHORT, needed_requests(SHORT, 2 * rate), 5, 2 * rate), replicas=2)
    assert share_within(run, SHORT) >= SHORT.share - 0.005


def test_a_model_that_does_not_fit_and_objectives_that_no_step_meets_give_no_template():
    assert sustained_per_s(H100, LARGE) == 0.0
    assert sustained_per_s(H100, dataclasses.replace(SHORT, slo_tpot_s=1e-3)) == 0.0
    assert sustained_per_s(H100, dataclasses.replace(SHORT, slo_ttft_s=1e-3)) == 0.0


def test_templates_use_the_offered_devices_in_nodes_that_are_offered():
    offers = (
        Offer(name="a", device="H100-SXM", gpus=2, usd_per_hour=8.0),
        Offer(name="b", device="A10", gpus=1, usd_per_hour=0.7),
    )
    made = templates_of(SHORT, offers)
    assert {node for each in made for node in each.nodes} == {("H100-SXM", 1), ("H100-SXM", 2), ("A10", 1)}
    assert len({each.nodes for each in made}) == len(made)
    assert any(len(each.nodes) > 1 for each in made)
    assert all(len(each.nodes) == 1 for each in templates_of(SHORT, offers, split=False))


def test_a_template_is_superfluous_where_copies_of_another_keep_up_as_much():
    small, same, better = (template(CHAT, rate, ("A10", 2)) for rate in (1.9, 2.0, 2.1))
    one = template(CHAT, 1.0, ("A10", 1))
    other_device, other_model = template(CHAT, 1.0, ("L4", 2)), template(LARGE, 1.0, ("A10", 2))
    assert pruned((small, one)) == (one,)
    assert pruned((same, one)) == (one,)
    assert set(pruned((better, one, other_device, other_model))) == {better, one, other_device, other_model}
    # Two nodes of one do not take the place of one node of two, nor the other way round of three nodes.
    pair, wide = template(CHAT, 2.0, ("A10", 1), ("A10", 1)), template(CHAT, 2.5, ("A10", 2))
    assert set(pruned((pair, wide))) == {pair, wide}


def test_requests_have_the_means_that_are_asked_for():
    requests = requests_of(CHAT, 40_000, 3, 7.0)
    assert requests.rate_per_s == pytest.approx(7.0, rel=0.03)
    assert np.mean(requests.prompt_tokens) == pytest.approx(CHAT.prompt_tokens, rel=0.03)
    assert np.mean(requests.output_tokens) == pytest.approx(CHAT.output_tokens, rel=0.03)
