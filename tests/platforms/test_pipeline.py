from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.platforms import FittedStepTime, RooflineStepTime, model
from wavetank.platforms.links import Link
from wavetank.platforms.pipeline import PipelinedStepTime, pipelined
from wavetank.platforms.step_time import StepTime
from wavetank.platforms.table_step_time import TableStepTime

LINK = Link(bytes_per_s=1e9, latency_s=1e-4)
NO_LINK = Link(bytes_per_s=1e15, latency_s=0.0)


def made(
    *, stages: int, layers: int = 8, layer_s: float = 1e-3, request_s: float = 0.0, prompt_s: float = 0.0,
    rest_s: float = 0.0, link: Link = NO_LINK, sent_bytes: float = 0.0, overhead_s: float = 0.0, budget: int = 512,
) -> PipelinedStepTime:  # fmt: skip
    """Layers that take ``layer_s`` and a part per sequence and prompt token, and an output head of ``rest_s``."""
    whole, shallow = (
        FittedStepTime(
            overhead_s=n * layer_s + rest_s + overhead_s, per_request_s=n * request_s, per_prefill_token_s=n * prompt_s
        )
        for n in (layers, layers // 2)
    )
    return PipelinedStepTime(
        whole=whole, shallow=shallow, layers=layers, shallow_layers=layers // 2, stages=stages,
        micro_batch_tokens=budget, link=link, sent_bytes_per_token=sent_bytes, overhead_s=overhead_s,
    )  # fmt: skip


def simulated_round_s(
    stages_s: Sequence[Sequence[float]], sent_s: Sequence[float], back_s: float, rounds: int = 200
) -> float:
    """Let micro-batches go round through stages and links, each of them busy with one at a time; the mean round.

    ``stages_s[j][i]`` is the time of micro-batch j in stage i, ``sent_s[j]`` its time on every link.
    """
    stages, batches = len(stages_s[0]), len(stages_s)
    stage_free, link_free = [0.0] * stages, [0.0] * stages
    ready = [0.0] * batches
    ended = []
    for _ in range(rounds):
        for j in range(batches):
            now = ready[j]
            for i in range(stages):
                now = max(now, stage_free[i]) + stages_s[j][i]
                stage_free[i] = now
                if i < stages - 1:
                    now = max(now, link_free[i]) + sent_s[j]
                    link_free[i] = now
            ready[j] = now + back_s
        ended.append(max(ready))
    half = rounds // 2
    return (ended[-1] - ended[half - 1]) / (rounds - half)


def test_a_lone_sequence_waits_for_every_stage_and_every_link() -> None:
    # 8 layers of 1 ms and a head of 0.6 ms; three boundaries and the way back, 0.1 ms each, 1000 bytes in 1 us.
    step = made(stages=4, rest_s=0.6e-3, link=LINK, sent_bytes=1000)
    assert step.seconds(1, 100) == pytest.approx(8e-3 + 0.6e-3 + 3 * (0.1e-3 + 1e-6) + 0.1e-3)


def test_a_full_pipeline_waits_for_its_slowest_stage() -> None:
    # Two stages of 4 ms, the last with a head of 2 ms: two micro-batches take 2 * 6 ms, and the way only 10 ms.
    step = made(stages=2, rest_s=2e-3)
    assert step.seconds(2, 200) == pytest.approx(12e-3)
    assert step.seconds(1, 100) == pytest.approx(10e-3)


def test_layers_left_over_are_not_in_the_last_stage() -> None:
    # 11 layers in 4 stages: 3, 3, 3 and 2 with the head.
    step = made(stages=4, layers=11, rest_s=0.5e-3)
    assert step.seconds(4, 400) == pytest.approx(4 * 3e-3)
    assert made(stages=4, layers=11, rest_s=1.5e-3).seconds(4, 400) == pytest.approx(4 * 3.5e-3)


def test_sequences_are_spread_over_as_many_micro_batches_as_stages() -> None:
    step = made(stages=4, request_s=1e-4)
    # Ten sequences: the longest micro-batch has three, so that a stage of two layers takes 2 * (1 + 0.3) ms.
    assert step.seconds(10, 1000) == pytest.approx(4 * 2 * 1.3e-3)
    assert step.seconds(12, 1200) == pytest.approx(4 * 2 * 1.3e-3)


def test_prompts_go_in_chunks_of_a_micro_batch_and_only_those_are_long() -> None:
    step = made(stages=4, prompt_s=1e-5, budget=512)
    light, heavy = 2e-3, 2 * (1e-3 + 500e-5)
    assert step.seconds(8, 800, 500, 1) == pytest.approx(max(4 * heavy, 3 * light + heavy))
    assert step.seconds(8, 800, 1000, 2) == pytest.approx(max(4 * heavy, 2 * light + 2 * heavy))
    assert step.seconds(0, 0, 2000, 4) == pytest.approx(4 * heavy)


def test_every_stage_pays_what_the_engine_adds() -> None:
    step = made(stages=4, overhead_s=0.5e-3)
    assert step.seconds(1, 100) == pytest.approx(8e-3 + 4 * 0.5e-3)
    assert step.seconds(4, 400) == pytest.approx(4 * 2.5e-3)


def test_a_slow_link_is_what_a_full_pipeline_waits_for() -> None:
    step = made(stages=2, layers=2, link=Link(bytes_per_s=1e6, latency_s=1e-3), sent_bytes=1000)
    # Four tokens of a micro-batch take 1 + 4 ms on the link, and 1 ms in a stage.
    assert step.seconds(8, 800) == pytest.approx(max(2 * 5e-3, 2e-3 + 5e-3 + 1e-3))


def test_one_stage_is_no_pipeline() -> None:
    whole = FittedStepTime(overhead_s=8e-3, per_request_s=1e-4, per_context_token_s=1e-7, per_prefill_token_s=1e-5)
    half = FittedStepTime(overhead_s=4e-3, per_request_s=5e-5, per_context_token_s=5e-8, per_prefill_token_s=5e-6)
    step = PipelinedStepTime(
        whole=whole, shallow=half, layers=8, shallow_layers=4, stages=1, micro_batch_tokens=4096, link=LINK,
        sent_bytes_per_token=1e6,
    )  # fmt: skip
    for batch in ((7, 7000, 0, 0), (0, 0, 300, 45150), (5, 100, 2000, 1000), (0, 0, 0, 0)):
        assert step.seconds(*batch) == pytest.approx(whole.seconds(*batch))


@settings(max_examples=60, deadline=None)
@given(
    stages=st.integers(1, 6), layers=st.integers(2, 40), sequences=st.integers(1, 40),
    rest_s=st.sampled_from([0.0, 1e-3, 2e-2]), latency_s=st.sampled_from([0.0, 1e-4, 5e-3]),
    sent_bytes=st.sampled_from([0.0, 1e4, 1e6]),
)  # fmt: skip
def test_a_round_is_as_long_as_in_a_simulation_of_stages_and_links(
    stages: int, layers: int, sequences: int, rest_s: float, latency_s: float, sent_bytes: float
) -> None:
    stages = min(stages, layers)
    link = Link(bytes_per_s=1e9, latency_s=latency_s)
    step = made(
        stages=stages, layers=layers, request_s=1e-5, rest_s=rest_s, link=link, sent_bytes=sent_bytes
    )  # fmt: skip
    batches = min(stages, sequences)
    each = -(-sequences // batches)
    least, more = divmod(layers, stages)
    # The layers left over are in the stages before the last.
    of_stage = [least + (1 if stages - 1 - more <= i < stages - 1 else 0) for i in range(stages)]
    times = [n * (1e-3 + 1e-5 * each) for n in of_stage]
    times[-1] += rest_s
    sent = latency_s + sent_bytes * each / 1e9
    back = latency_s if stages > 1 else 0.0
    found = simulated_round_s([times] * batches, [sent] * batches, back)
    assert step.seconds(sequences, sequences * 100) == pytest.approx(found, rel=1e-3, abs=1e-11)


@settings(max_examples=40, deadline=None)
@given(stages=st.integers(2, 6), sequences=st.integers(1, 40), prompt=st.integers(1, 3000))
def test_with_prompts_a_round_is_within_a_tenth_of_the_simulation(stages: int, sequences: int, prompt: int) -> None:
    step = made(stages=stages, layers=24, request_s=1e-5, prompt_s=1e-5, budget=512)
    prompts = min(stages, -(-prompt // 512))
    batches = min(stages, max(sequences, prompts))
    each, chunk = -(-sequences // batches), -(-prompt // prompts)
    light = [24 / stages * (1e-3 + 1e-5 * each)] * stages
    heavy = [24 / stages * (1e-3 + 1e-5 * (each + chunk))] * stages
    if 24 % stages:
        return
    found = simulated_round_s([heavy] * prompts + [light] * (batches - prompts), [0.0] * batches, 0.0)
    assert step.seconds(sequences, sequences * 100, prompt, prompt) == pytest.approx(found, rel=0.1)


def test_a_roofline_in_two_stages_is_its_layers_on_two_devices() -> None:
    shape = model("Llama-3.1-70B")

    def of(shape: object) -> StepTime:
        return RooflineStepTime(device="H100-SXM", model=shape, overhead_s=0.0)  # type: ignore[arg-type]

    two = pipelined(of, shape, 2, micro_batch_tokens=2048, link=NO_LINK)
    whole = of(shape)
    assert two.seconds(1, 1000) == pytest.approx(whole.seconds(1, 1000), rel=1e-6)
    # Sixty-four sequences: two micro-batches of 32, each stage reads half of the weights for each.
    assert 1.0 < two.seconds(64, 64_000) / whole.seconds(32, 32_000) < 1.05
    assert pipelined(of, shape, 1, micro_batch_tokens=2048, link=NO_LINK) == whole


def test_experts_behind_dense_layers_are_shared_out_too() -> None:
    def of(shape: object) -> StepTime:
        return RooflineStepTime(device="H200-SXM", model=shape, tensor_parallel=8, overhead_s=0.0)  # type: ignore[arg-type]

    shape = model("DeepSeek-V3")
    found = pipelined(of, shape, 4, micro_batch_tokens=2048, link=NO_LINK)
    assert found.seconds(1, 1000) == pytest.approx(of(shape).seconds(1, 1000), rel=0.02)


def test_profiles_can_be_staged() -> None:
    whole, shallow = (profile(n) for n in (32, 16))
    step = PipelinedStepTime(
        whole=whole, shallow=shallow, layers=32, shallow_layers=16, stages=4, micro_batch_tokens=2048, link=NO_LINK,
        sent_bytes_per_token=0.0,
    )  # fmt: skip
    assert step.seconds(1, 100) == pytest.approx(whole.seconds(1, 100), rel=1e-9)
    assert step.seconds(4, 400) == pytest.approx(4 * (8 / 32 * (whole.seconds(1, 100) - 1e-3) + 1e-3), rel=1e-3)


def profile(layers: int) -> TableStepTime:
    """Layers of 1 ms, attention that grows with its tokens, a head of 1 ms."""
    ends = ((1.0, 64.0), (1.0, 256.0), (16.0, 2048.0), (0.0, 4096.0), (1.0, 256.0), (16.0, 4096.0))
    tokens, rows, chunks, prompts, decodes, contexts = ends
    values: list[float] = [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0, float("inf"), 1]
    values += [*tokens, *(layers * 1e9 for _ in tokens), *rows, *(1e9 for _ in rows)]
    values += [*chunks, *prompts, *(layers * c * 1e3 for c in chunks for _ in prompts)]
    values += [*decodes, *contexts, *(layers * d * k for d in decodes for k in contexts)]
    values += [*chunks, *prompts, *decodes, *contexts]
    values += [layers * c * 1e3 for c in chunks for _ in prompts for _ in decodes for _ in contexts]
    return TableStepTime(source="made", layout="all-layers", values=tuple(map(float, values)), context_slope_ps=-1)


@pytest.mark.parametrize(("field", "value"), [
    ("stages", 0), ("stages", 9), ("stages", True), ("layers", 1), ("shallow_layers", 8), ("micro_batch_tokens", 0),
    ("sent_bytes_per_token", -1.0), ("overhead_s", -1.0),
])  # fmt: skip
def test_a_pipeline_out_of_range_is_refused(field: str, value: object) -> None:
    given = {
        "whole": FittedStepTime(overhead_s=1.0), "shallow": FittedStepTime(overhead_s=0.5), "layers": 8,
        "shallow_layers": 4, "stages": 2, "micro_batch_tokens": 512, "link": LINK, "sent_bytes_per_token": 1.0,
    }  # fmt: skip
    with pytest.raises(BadValueError, match=field if field != "layers" else "layers"):
        PipelinedStepTime(**{**given, field: value})  # type: ignore[arg-type]


def test_two_kinds_of_step_time_make_no_pipeline() -> None:
    with pytest.raises(BadValueError, match="one kind"):
        PipelinedStepTime(
            whole=FittedStepTime(overhead_s=1.0), shallow=RooflineStepTime(device="L4", model="Llama-3.1-8B"), layers=8,
            shallow_layers=4, stages=2, micro_batch_tokens=512, link=LINK, sent_bytes_per_token=1.0,
        )  # fmt: skip


@pytest.mark.parametrize("stages", [0, 33])
def test_a_model_has_no_more_stages_than_layers(stages: int) -> None:
    with pytest.raises(BadValueError, match="stages"):
        pipelined(
            lambda shape: FittedStepTime(overhead_s=1.0), model("Llama-3.1-8B"), stages, micro_batch_tokens=512,
            link=LINK,
        )  # fmt: skip
