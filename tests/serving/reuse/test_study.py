"""The known answers of real workloads, larger caches, and workloads that there are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavetank.errors import UnknownNameError
from wavetank.serving.reuse.irminsul import Irminsul
from wavetank.serving.reuse.moving_rivals import FullKeyRotation
from wavetank.serving.reuse.rivals import BlockPrefix, ContentSegments, NoReuse, RadixCache
from wavetank.serving.reuse.study import KVReuse
from wavetank.study.study import Measurements
from wavetank.workloads import datasets


def value(found: Measurements, metric: str, **at: float) -> float:
    """Return the one figure of a metric at a place."""
    (only,) = (number for name, number, where in found.rows if (name, where) == (metric, at))
    return only


def test_an_unbounded_prefix_cache_reuses_what_is_known_of_mooncake() -> None:
    if datasets.status("mooncake-kv-trace").path is None:
        pytest.skip("needs the data set mooncake-kv-trace")
    study = KVReuse(workload="mooncake")
    workload = study.prompts(0)
    assert len(workload.prompts) == 12_031
    tokens = sum(prompt.tokens for prompt in workload.prompts)
    assert study.serve(RadixCache(), workload, 0).reused / tokens == pytest.approx(0.374, abs=0.0005)
    assert study.serve(RadixCache(), workload, 3_000_000).reused / tokens < 0.2


def test_prefixes_and_segments_of_real_conversations_are_the_known_ones() -> None:
    if datasets.status("agent-transcripts").path is None:
        pytest.skip("needs the data set agent-transcripts")
    for observations, share in ((0, 0.853), (5, 0.517)):
        study = KVReuse(workload="agent", shared=False, observations=observations)
        found = study.measure(RadixCache(), 0)
        assert value(found, "reused_share") == pytest.approx(share, abs=0.0005)
        assert value(found, "recovered_share") == 0
    found = KVReuse(workload="agent", shared=False).measure(ContentSegments(), 0)
    # 0.66 without the token-wise end of the prefix.
    assert value(found, "recovered_share") == pytest.approx(0.67, abs=0.02)


def test_a_larger_cache_never_reuses_less() -> None:
    study = KVReuse(sessions=3, turns=6, budgets=(1_000, 4_000, 16_000, 1_000_000))
    for rule in (RadixCache(), BlockPrefix(), ContentSegments()):
        found = study.measure(rule, 0)
        shares = [value(found, "reused_share", budget_tokens=each) for each in (1_000, 4_000, 16_000, 1_000_000)]
        assert shares == sorted(shares)
        assert shares[-1] == value(found, "reused_share") > shares[0]


def test_an_inserted_token_ends_prefixes_and_costs_segments_little() -> None:
    plain, changed = (KVReuse(sessions=3, turns=6, observations=0, edit_tokens=each, edit_at=0.2) for each in (0, 5))
    assert value(changed.measure(RadixCache(), 0), "reused_share") < 0.4
    assert value(changed.measure(ContentSegments(), 0), "reused_share") > 0.6
    assert value(plain.measure(RadixCache(), 0), "reused_share") > 0.7


def test_conversations_with_caches_of_their_own_share_no_opening() -> None:
    apart, together = (KVReuse(sessions=6, turns=3, shared=each).measure(RadixCache(), 0) for each in (False, True))
    assert value(together, "reused_share") > value(apart, "reused_share") + 0.05


def test_workloads_are_known_names_or_files(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="workload"):
        KVReuse(workload="agnt").check()
    file = tmp_path / "mine.jsonl"
    file.write_text('{"tokens": [1, 2, 3]}\n{"tokens": [1, 2, 3]}\n')
    study = KVReuse(workload=str(file))
    study.check()
    found = study.measure(RadixCache(), 0)
    assert value(found, "reused_share") == pytest.approx(2 / 6)
    assert value(found, "computed_tokens") == 2
    assert value(found, "recomputed_tokens") == 0.5
    assert study.notes()
    assert study.data() == {}


def test_times_to_first_token_are_of_real_prompts_on_workers() -> None:
    if any(datasets.status(name).path is None for name in ("agent-transcripts", "mooncake-kv-trace")):
        pytest.skip("needs the data sets agent-transcripts and mooncake-kv-trace")
    study = KVReuse(workload="agent", shared=False)
    workload = study.prompts(0)
    rules = (NoReuse(), RadixCache(), ContentSegments())
    times = [study.first_tokens(rule, workload)["ttft_mean_s"] for rule in rules]
    assert times == sorted(times, reverse=True)
    assert value(study.measure(NoReuse(), 0), "ttft_mean_s") == times[0]
    assert times[2] < 0.5 * times[1]
    assert any("2 simulated workers" in note for note in study.notes())
    generated = KVReuse(sessions=1, turns=2).measure(NoReuse(), 0)
    assert not any(name.startswith("ttft") for name, _, _ in generated.rows)


@pytest.mark.slow
def test_the_same_bytes_hold_fewer_rows_of_whole_keys() -> None:
    if datasets.status("mooncake-kv-trace").path is None:
        pytest.skip("needs the data set mooncake-kv-trace")
    study = KVReuse(workload="mooncake", replica_tokens=700_000)
    workload = study.prompts(0)
    rows, keys = (study.first_tokens(rule, workload)["ttft_mean_s"] for rule in (Irminsul(), FullKeyRotation()))
    assert rows < 0.97 * keys
