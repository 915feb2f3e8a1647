"""What workers find in their prefix caches, against a trie of everything that they were sent."""

import numpy as np
import pytest

from wavetank.errors import DataUnavailableError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.routing.prefix_affinity import PrefixAffinity
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads import RequestTrace, SharedPrefix, generate_requests, read_trace
from wavetank.workloads.agent_sessions import agent_sessions, of_data_set

QUICK = FittedStepTime(overhead_s=1e-3, per_prefill_token_s=1e-6)


def found_by_a_trie(requests: RequestTrace, worker: np.ndarray) -> list[int]:
    """Return for each request the tokens of its full blocks that came to its worker before, in the same order."""
    tries: dict[int, dict] = {}
    found = []
    for i, w in enumerate(worker.tolist()):
        prompt = int(requests.prompt_tokens[i])
        ids = requests.block_ids[requests.block_offsets[i] : requests.block_offsets[i + 1]].tolist()
        ids = ids[: prompt // requests.block_tokens]
        node, depth = tries.setdefault(w, {}), 0
        for block in ids:
            if block not in node:
                break
            node, depth = node[block], depth + 1
        # The last token of a prompt is always computed.
        found.append(min(depth, (prompt - 1) // requests.block_tokens) * requests.block_tokens)
        node = tries[w]
        for block in ids:
            node = node.setdefault(block, {})
    return found


def trace(name):
    if name == "generated":
        return generate_requests(rate_per_s=20.0, n_requests=400, seed=1, shared_prefix=SharedPrefix(share=0.7))
    try:
        if name == "agent-transcripts":
            return agent_sessions(of_data_set(), n_requests=600, rate_per_s=10.0, seed=2)
        return read_trace(name).head(1000)
    except DataUnavailableError as error:
        pytest.skip(error.problem)


@pytest.mark.parametrize("router", [RoundRobin(), PrefixAffinity()], ids=lambda router: type(router).__name__)
@pytest.mark.parametrize(("name", "least"), [("generated", 0.1), ("mooncake-conversation", 0.05),
                                             ("agent-transcripts", 0.2)])  # fmt: skip
def test_without_evictions_a_worker_finds_exactly_what_it_was_sent_before(name, least, router):
    requests = trace(name)
    cluster = Cluster(
        workers=3, step_time=QUICK, prefix_caching=True, kv_capacity_tokens=10**9, max_batched_tokens=8192
    )
    run = simulate(requests, cluster, router)
    assert run.matched_tokens.tolist() == found_by_a_trie(requests, run.worker)
    share = run.metrics()["prefix_hit_share"]
    assert share == run.matched_tokens.sum() / requests.prompt_tokens.sum() > least


def test_a_router_that_looks_for_prefixes_finds_more_of_an_agents_turns():
    requests = trace("agent-transcripts")
    cluster = Cluster(workers=6, step_time=QUICK, prefix_caching=True, kv_capacity_tokens=10**6)
    runs = [simulate(requests, cluster, each) for each in (RoundRobin(), PrefixAffinity())]
    shares = [run.metrics()["prefix_hit_share"] for run in runs]
    # Old observations become a note, so that even a worker of its own finds half of an agent's prompts at most.
    assert 0.55 > shares[1] > 1.3 * shares[0] > 0
