"""Prompts as units of the simulator: one worker that serves them one by one finds what the caches of tokens find."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.reuse.cuts import content_units, prefix_units, segment_units
from wavetank.serving.reuse.interface import Prompt, Workload
from wavetank.serving.reuse.irminsul import Irminsul
from wavetank.serving.reuse.moving_rivals import CacheBlend
from wavetank.serving.reuse.rivals import BlockPrefix, ContentSegments, FixedContent, NoReuse, RadixCache
from wavetank.serving.reuse.workload import Edits, edited, generated_prompts
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads import RequestTrace


def prompts(seed: int) -> Workload:
    """Return changed prompts, each with a last token that nobody had."""
    found = generated_prompts(seed, sessions=3, turns=5, observations=2)
    found = edited(found, Edits(tokens=7, at=0.4), seed)
    last = [np.append(each.ids, np.uint32(60_000 + k)) for k, each in enumerate(found.prompts)]
    return Workload([each._replace(ids=ids, tokens=len(ids)) for each, ids in zip(found.prompts, last, strict=True)])


@pytest.mark.parametrize(
    "rule",
    [NoReuse(), BlockPrefix(), RadixCache(), FixedContent(block=64), Irminsul(), Irminsul(again=0, most=100),
     Irminsul(again=40), ContentSegments()],
    ids=repr,
)  # fmt: skip
def test_one_worker_finds_what_the_cache_of_tokens_finds_prompt_by_prompt(rule) -> None:
    workload = prompts(3)
    cache = rule.cache(budget_tokens=None, unit=1)
    counted = [cache.serve(each) for each in workload.prompts]
    n = len(workload.prompts)
    trace = RequestTrace(
        arrival_s=100.0 * np.arange(n), prompt_tokens=[each.tokens for each in workload.prompts],
        output_tokens=np.ones(n, np.int64),
    )  # fmt: skip
    cluster = Cluster(workers=1, step_time=FittedStepTime(overhead_s=1e-3), kv_capacity_tokens=10**7,
                      reuse=rule.policy(workload, shared=True))  # fmt: skip
    run = simulate(trace, cluster, RoundRobin())
    assert run.matched_tokens.tolist() == [each.reused for each in counted]
    assert run.computed_tokens.tolist() == [each.computed for each in counted]
    again = run.recomputed_tokens.tolist() if run.recomputed_tokens.size else [0] * n
    assert again == [each.recomputed for each in counted]


def test_pieces_of_a_prefix_are_equal_where_all_before_them_is() -> None:
    ids = [np.array(each, np.uint32) for each in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 9], [7, 2, 3, 4, 5], [1])]
    workload = Workload([Prompt(each, len(each), k) for k, each in enumerate(ids)])
    units = prefix_units(workload, 2)
    assert units.offsets.tolist() == [0, 2, 4, 6, 6]
    pairs = units.ids.reshape(3, 2)
    assert (pairs[0] == pairs[1]).all()
    assert not set(pairs[2]) & set(pairs[0])
    apart = prefix_units(workload, 2, shared=False)
    assert len(set(apart.ids)) == 6
    by_content = content_units(workload, 2).ids.reshape(3, 2)
    assert by_content[2, 1] == by_content[0, 1] != by_content[2, 0]
    assert (units.tokens == 2).all()


def test_an_id_that_stands_for_fewer_tokens_than_others_is_in_no_unit() -> None:
    workload = Workload([Prompt(np.array([1, 2, 3], np.uint32), 25, 0)], unit=10, only_prefixes=True)
    units = segment_units(workload, bits=7, least=32, most=512)
    assert (units.ids.size, units.tokens.tolist()) == (2, [10, 10])


def test_the_first_segment_has_no_names_and_equal_segments_have_the_same() -> None:
    draws = np.random.default_rng(1)
    common = draws.integers(0, 1000, 400).astype(np.uint32)
    ids = [np.concatenate([draws.integers(0, 1000, 150).astype(np.uint32), common]) for _ in range(2)]
    units = segment_units(Workload([Prompt(each, 550, k) for k, each in enumerate(ids)]), bits=5, least=8, most=60)
    first, second = units.names[:550], units.names[550:]
    assert first[0] == second[0] == -1
    assert set(first[-300:]) == set(second[-300:])
    assert not set(first[first >= 0][:50]) & set(second.tolist())


def test_layers_that_cache_blend_computes_for_all_count_as_tokens_computed_again() -> None:
    assert CacheBlend(share=0.0).policy(prompts(1), shared=True).rule().again_share == pytest.approx(2 / 27)
    assert CacheBlend(share=1.0).policy(prompts(1), shared=True).rule().again_share == 1.0
