"""The engine that is predicted: its tokens are those of a plain loop, and its schedule is the simulator's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.profiling.models import DecoderConfig
from wavetank.serving.simulator.cluster import Cluster
from wavetank.workloads.requests import RequestTrace

torch = pytest.importorskip("torch", reason="torch is not installed")

from wavetank.serving.profiling.decoder import Decoder  # noqa: E402
from wavetank.serving.profiling.served import DecoderEngine, MeasuredRun  # noqa: E402
from wavetank.sim.rng import stream  # noqa: E402

SMALL = DecoderConfig(name="small", layers=1, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=50)
DECODER = Decoder(SMALL, device="cpu", seed=3)
PROMPTS, OUTPUTS = [5, 12, 3, 9, 7], [6, 4, 8, 1, 5]


def requests(arrival_s: list[float] | None = None) -> RequestTrace:
    return RequestTrace(
        arrival_s=np.array(arrival_s or [0.0] * 5), prompt_tokens=np.array(PROMPTS), output_tokens=np.array(OUTPUTS)
    )


def served(**limits: Any) -> MeasuredRun:
    given: dict[str, Any] = {"workers": 1, "max_running": 3, "max_batched_tokens": 8, "kv_capacity_tokens": 200}
    return DecoderEngine(DECODER, Cluster(**{**given, **limits}), 32, "processor").serve(requests(), seed=4)


def alone(number: int) -> tuple[int, ...]:
    """Return what a request gets that is computed by itself, from the beginning for every token."""
    draw = stream(4, "prompts")
    text = [draw.integers(0, SMALL.vocab, n).tolist() for n in PROMPTS][number]
    for _ in range(OUTPUTS[number]):
        with torch.inference_mode():
            logits = DECODER(
                torch.tensor(text), torch.arange(len(text)), DECODER.new_cache(1, 32),
                torch.tensor([[0, 0, len(text), 0]]), torch.tensor([len(text) - 1]),
            )  # fmt: skip
        text.append(int(logits.argmax()))
    return tuple(text[PROMPTS[number] :])


@pytest.mark.parametrize("limits", [{}, {"max_running": 1, "max_batched_tokens": 4}, {"kv_capacity_tokens": 24}])
def test_every_request_gets_the_tokens_it_would_get_alone(limits: dict[str, int]) -> None:
    run = served(**limits)
    assert run.tokens == tuple(alone(number) for number in range(5))


def test_steps_are_what_the_scheduler_planned() -> None:
    run = served()
    assert sum(step.prefill_tokens for step in run.steps) == sum(PROMPTS)
    assert sum(step.decode_requests for step in run.steps) == sum(OUTPUTS) - len(OUTPUTS)
    assert all(step.seconds > 0 and step.decode_requests + step.prefill_tokens <= 8 for step in run.steps)
    assert all(step.decode_requests <= 3 for step in run.steps)


def test_latencies_are_those_of_the_steps() -> None:
    run = served(max_running=5, max_batched_tokens=64)
    took = np.cumsum([step.seconds for step in run.steps])
    assert run.ttft_s == pytest.approx(np.full(5, took[0]), rel=1e-6)
    later = [(took[n - 1] - took[0]) / (n - 1) if n > 1 else np.nan for n in OUTPUTS]
    assert run.tpot_s == pytest.approx(np.array(later), rel=1e-6, nan_ok=True)


def test_nothing_waits_for_arrivals() -> None:
    engine = DecoderEngine(DECODER, Cluster(workers=1, max_running=3, kv_capacity_tokens=200), 32)
    run = engine.serve(requests([0.0, 1e3, 2e3, 3e3, 4e3]))
    assert (run.ttft_s < 100).all()
    assert len(run.steps) == sum(OUTPUTS)


@pytest.mark.parametrize("wrong", [{"workers": 2}, {"prefix_caching": True}])
def test_a_cluster_that_no_decoder_can_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        DecoderEngine(DECODER, Cluster(**{"workers": 1, **wrong}), 32)
