"""Routers that look at prompts to compute, on decisions worked out by hand."""

import pytest

from wavetank.serving.routing.baselines import FewestKVTokens
from wavetank.serving.routing.prefill_aware import LeastPrefill, LMetric, SplitByPhase
from wavetank.serving.routing.study import LLMRouting
from wavetank.serving.simulator.cluster import DisaggregatedCluster
from wavetank.serving.simulator.simulate import simulate


class TestLeastPrefill:
    @pytest.mark.parametrize("field", ["waiting_tokens", "sent_tokens"])
    def test_the_fewest_prompt_tokens_decide_and_not_the_fewest_requests(self, workers, chosen, field):
        view = workers(3, waiting=[1, 10, 2], **{field: [9000.0, 1000.0, 2000.0]})
        assert chosen(LeastPrefill(), view) == [1]

    def test_where_no_prompt_waits_the_fewest_requests_decide_and_then_the_turn(self, workers, chosen):
        assert chosen(LeastPrefill(), workers(3, running=[5, 2, 3])) == [1]
        assert chosen(LeastPrefill(), workers(3), times=4) == [0, 1, 2, 0]

    def test_workers_that_take_nothing_are_left_out(self, workers, chosen):
        view = workers(3, waiting_tokens=[0.0, 5.0, 9.0], takes=[0, 1, 1])
        assert chosen(LeastPrefill(), view, times=3) == [1, 1, 1]


class TestLMetric:
    def test_tokens_to_compute_times_requests(self, workers, chosen):
        # 100 * 3, 40 * 8, 10 * 31; with one request less the second has 280.
        view = workers(3, running=[2, 7, 30], matched_tokens=[0.0, 60.0, 90.0])
        assert chosen(LMetric(), view) == [0]
        assert chosen(LMetric(), view._replace(running=view.running - [0, 1, 0])) == [1]
        assert chosen(LMetric(), view._replace(running=view.running - [0, 0, 2])) == [2]

    @pytest.mark.parametrize("field", ["running", "waiting", "sent_requests"])
    def test_all_requests_in_flight_are_load(self, workers, chosen, field):
        assert chosen(LMetric(), workers(2, **{field: [1, 0]}, matched_tokens=[49.0, 0.0])) == [1]
        assert chosen(LMetric(), workers(2, **{field: [1, 0]}, matched_tokens=[51.0, 0.0])) == [0]

    def test_of_equal_products_the_fewest_requests_have_it(self, workers, chosen):
        assert chosen(LMetric(), workers(2, running=[3, 1], matched_tokens=[50.0, 0.0])) == [1]

    def test_workers_that_lack_the_model_are_left_out(self, workers, chosen):
        assert chosen(LMetric(), workers(2, matched_tokens=[90.0, 0.0], serves=[0, 1])) == [1]


class TestSplitByPhase:
    def test_it_decodes_where_the_fewest_kv_tokens_are(self, workers, chosen):
        assert chosen(SplitByPhase(), workers(3, kv_tokens=[9.0, 2.0, 5.0], waiting_tokens=[0.0, 0.0, 1.0])) == [1]

    def test_prompts_go_by_its_prefill_router_in_the_split_layout(self):
        study = LLMRouting(layout="decode-group", requests=300, workers=3, load=0.0, shared_prefix=0.0)
        requests = study.split(0)[1].at_rate(60.0)
        run = study.serve(SplitByPhase(), requests)
        cluster = study.cluster()
        assert isinstance(cluster, DisaggregatedCluster)
        same = simulate(requests, cluster, LeastPrefill(), decode_router=FewestKVTokens())
        other = simulate(requests, cluster, FewestKVTokens(), decode_router=FewestKVTokens())
        assert run.first_token_s.tolist() == same.first_token_s.tolist() != other.first_token_s.tolist()
