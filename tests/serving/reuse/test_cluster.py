"""The cluster, by hand: queues, layers that wait for rows, links that serve one transfer at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wavetank.serving.reuse.cluster import LOOKED_AT, CacheFleet, Job, PoolFleet, node, simulate
from wavetank.serving.reuse.interface import Served
from wavetank.serving.reuse.rcllm import Again, PartPools
from wavetank.serving.reuse.recommender import generated_shop
from wavetank.serving.reuse.rivals import NoReuse, RadixCache
from wavetank.serving.routing.block_affinity import BlockAffinity

NONE = np.zeros(0, np.int64)


class Fixed:
    """Workers to which everything is the same job."""

    def __init__(self, job: Job, workers: int) -> None:
        self.job, self.workers = job, workers

    def here(self, number: int) -> np.ndarray:
        return np.zeros(self.workers)

    def there(self, number: int) -> float:
        return 0.0

    def serve(self, number: int, worker: int) -> Job:
        return self.job


def test_a_worker_serves_one_at_a_time_in_the_order_of_arrival() -> None:
    takes = node().seconds(5_000, 5_000)
    job = Job(Served(0, 0, 5_000), NONE, NONE)
    found = simulate(Fixed(job, 1), None, [5_000] * 3, np.array([0.0, 0.1, 10.0]), workers=1, link_bytes_per_s=1e9)
    assert found.ttft_s.tolist() == pytest.approx([takes, 2 * takes - 0.1, takes])
    assert found.queue_s.tolist() == pytest.approx([0, takes - 0.1, 0])
    assert found.span_s == pytest.approx(10 + takes)
    two = simulate(Fixed(job, 2), BlockAffinity(), [5_000] * 3, np.array([0.0, 0.1, 0.2]), workers=2,
                   link_bytes_per_s=1e9)  # fmt: skip
    assert two.workers.tolist() == [0, 1, 0]


def test_prompts_take_operations_or_the_reading_of_weights() -> None:
    about = node()
    assert about.seconds(1_000, 1) == pytest.approx(5e-4 + about.least_s)
    # 2 x 8.03e9 operations a token at 0.7 x 312e12 a second.
    assert about.token_s == pytest.approx(2 * 8.03e9 / (0.7 * 312e12), rel=1e-3)
    assert about.seconds(8_000, 8_000) == pytest.approx(5e-4 + 8_000 * (about.token_s + 4_000 * about.pair_s))


def test_a_layer_waits_for_its_rows_and_links_serve_one_transfer_at_a_time() -> None:
    about, rate = node(), 1e9
    moving = 1_000 * about.row_bytes / rate
    takes = about.seconds(5_000, 2_000)
    job = Job(Served(3_000, 0, 2_000), np.array([1, 2]), np.array([1_000, 1_000]))
    found = simulate(Fixed(job, 3), None, [5_000], np.array([0.0]), workers=3, link_bytes_per_s=rate)
    whole = 2 * moving
    assert found.ttft_s[0] == pytest.approx(max(whole / about.layers + takes, whole + takes / about.layers))
    # The third prompt has the first one's worker, but it comes much later; the second's sources are idle again.
    both = simulate(Fixed(job, 3), None, [5_000] * 2, np.array([0.0, 1e-9]), workers=3, link_bytes_per_s=rate)
    assert both.ttft_s[1] > both.ttft_s[0]
    fast = simulate(Fixed(job, 3), None, [5_000], np.array([0.0]), workers=3, link_bytes_per_s=1e15)
    assert fast.ttft_s[0] == pytest.approx(takes, rel=1e-3)


def test_pools_are_counted_as_the_parts_of_the_prompts_are() -> None:
    shop = generated_shop(1, items=60, users=10, learned=30, asked=20, candidates=8)
    pools = PartPools().pools(shop, workers=4, node_tokens=3_000, seed=0)
    again = Again(0.15, 16)
    fleet = PoolFleet(shop, pools, again, 4)
    for number in range(30, 50):
        request = shop.asked[number - 30]
        prompt = shop.prompt(request)
        found = [len(shop.entry(each)) * 8 for each in request.history.tolist() if pools.entries[each]]
        kept = [each for each in request.candidates.tolist() if pools.items.everywhere[each]
                or pools.items.home[each] >= 0]  # fmt: skip
        found += [len(shop.items[each]) * 8 for each in kept]
        job = fleet.serve(number, 2)
        counts, lead = job.served, 24 * 8
        assert sum(counts[:3]) == prompt.tokens
        assert counts.computed == prompt.tokens - lead - sum(found)
        assert counts.recomputed == lead + again.count(np.array(found, np.int64))
        remote = sum(len(shop.items[each]) * 8 for each in kept if pools.items.home[each] not in (-1, 2))
        assert job.fetched.sum() == remote == fleet.there(number) - fleet.here(number)[2]
        assert 2 not in job.owners.tolist()
        assert job.partly == pytest.approx(LOOKED_AT / 32 * counts.reused)
    assert PoolFleet(shop, pools, Again(0.0, 0), 4).serve(30, 0).partly == 0.0
    alone = PoolFleet(shop, pools, again, 4, fetches=False)
    for number in range(30, 50):
        job, all_of_it = alone.serve(number, 2), fleet.serve(number, 2)
        assert not len(job.owners)
        assert alone.there(number) == 0
        assert job.served.reused + job.served.recomputed == fleet.here(number)[2] == alone.here(number)[2]
        assert job.served.computed - all_of_it.served.computed == all_of_it.fetched.sum()


def test_caches_keep_what_they_served_and_the_router_is_informed_of_it() -> None:
    shop = generated_shop(1, items=60, users=1, learned=1, asked=6, candidates=4)
    prompts = [shop.prompt(each) for each in (*shop.learned, *shop.asked)]
    fleet = CacheFleet(RadixCache(), prompts, workers=3, node_tokens=0, unit=8, prefixes=True)
    assert fleet.here(0).tolist() == [0, 0, 0]
    fleet.serve(0, 1)
    same = 8 * int(prompts[0].parts.ends[len(shop.learned[0].history)])
    assert fleet.here(1).tolist() == [0, same, 0]
    assert fleet.serve(1, 1).served.reused == same
    assert fleet.serve(1, 0).served.reused == 0
    small = CacheFleet(RadixCache(), prompts, workers=1, node_tokens=200, unit=8, prefixes=True)
    small.serve(0, 0)
    assert small.here(1)[0] <= 200
    nothing = CacheFleet(NoReuse(), prompts, workers=1, node_tokens=0, unit=8, prefixes=True)
    assert nothing.serve(0, 0).served.computed == prompts[0].tokens


def test_the_first_layer_waits_for_its_rows_and_what_is_looked_at_is_computed() -> None:
    about, rate = node(), 1e10
    job = Job(Served(3_000, 0, 4_000), np.array([1]), np.array([1_000]), partly=500.0)
    takes, whole = about.seconds(7_000, 4_500), 1_000 * about.row_bytes / rate
    assert whole < takes
    found = simulate(Fixed(job, 2), None, [7_000], np.array([0.0]), workers=2, link_bytes_per_s=rate)
    assert found.ttft_s[0] == pytest.approx(whole / about.layers + takes, rel=1e-12)


def test_an_item_that_is_named_twice_is_fetched_once() -> None:
    shop = generated_shop(1, items=60, users=10, learned=30, asked=20, candidates=8)
    pools = PartPools(replicas=0.0).pools(shop, workers=4, node_tokens=3_000, seed=0)
    item = int(np.flatnonzero(pools.items.home >= 0)[0])
    shop = replace(shop, asked=[shop.asked[0]._replace(candidates=np.full(8, item))])
    job = PoolFleet(shop, pools, Again(0.0, 0), 4).serve(30, (int(pools.items.home[item]) + 1) % 4)
    shop_tokens = 8 * len(shop.items[item])
    assert job.fetched.tolist() == [shop_tokens]
    assert job.served.reused >= 8 * shop_tokens
