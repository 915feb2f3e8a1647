"""The decoder: the same answer token by token, in chunks and at once, with either back end and with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wavetank.errors import BadValueError
from wavetank.serving.profiling.models import BACKENDS, DecoderConfig

torch = pytest.importorskip("torch", reason="torch is not installed")

from wavetank.serving.profiling.decoder import Decoder, attention_arguments, operations  # noqa: E402

SMALL = DecoderConfig(name="small", layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=50)
MIXTURE = replace(SMALL, experts=4, experts_per_token=2)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def passed(decoder: Decoder, cache: Any, pieces: list[tuple[int, list[int], int]]) -> Any:
    """Run one batch of (slot, tokens, tokens before) and return the logits."""
    tokens, positions, rows, last = [], [], [], []
    for slot, piece, past in pieces:
        rows.append((slot, len(tokens), len(piece), past))
        tokens += piece
        positions += range(past, past + len(piece))
        last.append(len(tokens) - 1)
    with torch.inference_mode():
        return decoder(torch.tensor(tokens), torch.tensor(positions), cache, torch.tensor(rows), torch.tensor(last))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("config", [SMALL, MIXTURE, replace(SMALL, qk_norm=True, qkv_bias=True)])
def test_a_prompt_gives_the_same_logits_at_once_in_chunks_and_token_by_token(
    config: DecoderConfig, backend: str
) -> None:
    decoder = Decoder(config, device="cpu", backend=backend, seed=1)
    cache = decoder.new_cache(3, 16)
    at_once = passed(decoder, cache, [(0, PROMPT, 0)])[0]
    passed(decoder, cache, [(1, PROMPT[:5], 0)])
    in_chunks = passed(decoder, cache, [(1, PROMPT[5:], 5)])[0]
    for place, token in enumerate(PROMPT):
        by_token = passed(decoder, cache, [(2, [token], place)])[0]
    assert torch.allclose(in_chunks, at_once, atol=1e-4)
    assert torch.allclose(by_token, at_once, atol=1e-4)
    # Another prompt gives something else, or the test could not fail.
    assert not torch.allclose(passed(decoder, cache, [(0, PROMPT[::-1], 0)])[0], at_once, atol=1e-2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sequences_of_one_batch_do_not_see_each_other(backend: str) -> None:
    decoder = Decoder(SMALL, device="cpu", backend=backend)
    alone, together = decoder.new_cache(4, 16), decoder.new_cache(4, 16)
    texts = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    logits = [passed(decoder, alone, [(i, text, 0)])[0] for i, text in enumerate(texts)]
    batch = passed(decoder, together, [(i, text, 0) for i, text in enumerate(texts)])
    assert torch.allclose(torch.stack(logits), batch, atol=1e-4)
    later = [passed(decoder, alone, [(i, [7], len(text))])[0] for i, text in enumerate(texts)]
    mixed = passed(decoder, together, [(0, [7], 3), (1, [7], 5), (2, [7], 1), (3, PROMPT, 0)])
    assert torch.allclose(torch.stack(later), mixed[:3], atol=1e-4)


def test_attention_is_that_of_the_definition() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(6, 4, 8), torch.randn(6, 2, 8), torch.randn(6, 2, 8)
    for backend in BACKENDS:
        rows = torch.tensor([[0, 0, 6, 0]])
        found = operations().cached_attention(q, k, v, torch.zeros(1, 2, 2, 8, 8), rows, backend)
        for head in range(4):
            scores = q[:, head] @ k[:, head // 2].T / 8**0.5
            scores = scores.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), float("-inf"))
            assert torch.allclose(found[:, head], scores.softmax(-1) @ v[:, head // 2], atol=1e-5)


def test_experts_are_those_of_the_definition() -> None:
    torch.manual_seed(0)
    x, routing = torch.randn(5, 8), torch.randn(5, 3)
    gate_up, down = torch.randn(3, 12, 8), torch.randn(3, 8, 6)
    found = operations().experts(x, routing, gate_up, down, 2)
    for token in range(5):
        weights, chosen = routing[token].softmax(-1).topk(2)
        wanted = torch.zeros(8)
        for weight, expert in zip(weights / weights.sum(), chosen, strict=True):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            wanted += weight * (down[expert] @ (torch.nn.functional.silu(gate) * up))
        assert torch.allclose(found[token], wanted, atol=1e-4)


def test_a_decoder_of_shapes_alone_allocates_nothing() -> None:
    decoder = Decoder(replace(SMALL, hidden=1 << 14, ffn=1 << 16, vocab=1 << 18))
    assert all(weight.is_meta for weight in decoder.parameters())
    assert decoder.weight_bytes() > 1 << 34


@pytest.mark.parametrize("wrong", [{"dtype": "int8"}, {"backend": "flash"}, {"tensor_parallel": 3}])
def test_what_a_decoder_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValueError):
        Decoder(SMALL, **wrong)


@pytest.mark.parametrize(
    "point",
    [
        {"chunk": 5, "past": 3, "decodes": 0, "context": 0},
        {"chunk": 0, "past": 0, "decodes": 3, "context": 7},
        {"chunk": 4, "past": 0, "decodes": 2, "context": 1},
    ],
)
def test_arguments_of_attention_are_a_batch_of_the_point(point: dict[str, int]) -> None:
    shapes = {"a": [{"t": "float32", "d": ["T", 4, 8]}, {"t": "float32", "d": ["T", 2, 8]}, None,
                    {"t": "float32", "d": ["R", 2, 2, "L", 8]}, None, "padded"]}  # fmt: skip
    q, k, v, cache, rows, backend = attention_arguments(shapes, point, "cpu", 4)
    assert q.shape == (point["chunk"] + point["decodes"], 4, 8)
    assert k.shape == v.shape == (point["chunk"] + point["decodes"], 2, 8)
    assert len(rows) == point["decodes"] + (point["chunk"] > 0)
    assert int(rows[:, 2].sum()) == len(q)
    assert cache.shape[3] >= int((rows[:, 2] + rows[:, 3]).max())
    assert operations().cached_attention(q, k, v, cache, rows, backend).isfinite().all()
