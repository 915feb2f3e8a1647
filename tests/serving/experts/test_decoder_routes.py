"""Words are numbered by their frequency, routes are the decoder's own, and those that are kept are read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.experts.decoder_routes import DecoderRoutes, library_modules, routes_of, tokens_of, vocabulary

torch = pytest.importorskip("torch")

from wavetank.kernels.decoder import DecoderWeights, forward  # noqa: E402

TEXTS = [f"def f{n}(self):\n    return self.value + {n}\n".encode() * 12 for n in range(8)]
SMALL = DecoderRoutes(requests=6, tokens=16, layers=2, experts=4, per_token=2, vocabulary=300, steps=2)


def test_words_are_numbered_by_how_often_they_came_and_others_are_bytes() -> None:
    words = vocabulary([b"bb aaa bb ccc bb aaa  x"], 259)
    assert {word: words[word] for word in (b"bb", b"aaa")} == {b"bb": 256, b"aaa": 257}
    assert b"  " in words
    assert b"ccc" not in words
    assert tokens_of(b"bb ccc", words).tolist() == [256, 32, 99, 99, 99]
    assert vocabulary([b"bb bb"], 256) == {bytes([each]): each for each in range(256)}


def test_routes_are_those_of_each_request_alone() -> None:
    weights = DecoderWeights.made(SMALL.config, 3)
    reads = np.random.default_rng(0).integers(0, 300, (18, 16))
    found = routes_of(weights, reads)
    assert found.shape == (2, 18 * 16, 2)
    alone = forward(weights, reads[17], np.arange(16)).routing
    for layer in range(2):
        routing = alone[layer]
        assert routing is not None
        assert np.array_equal(found[layer, 17 * 16 :], routing.experts.numpy())


def test_renumbering_experts_renumbers_routes_and_changes_no_answer() -> None:
    weights = DecoderWeights.made(SMALL.config, 1).cast("float64")
    order = np.array([2, 0, 3, 1])
    tensors = dict(weights.tensors)
    for name, each in tensors.items():
        if name.endswith(".router"):
            tensors[name] = each[..., order]
        elif each.ndim == 3:
            tensors[name] = each[order]
    moved = DecoderWeights(weights.config, tensors)
    reads = np.random.default_rng(0).integers(0, 300, (1, 16))
    one, other = (forward(each, reads, np.arange(16)) for each in (weights, moved))
    # Gates are divided by a sum whose order is another one.
    assert torch.allclose(one.logits, other.logits, rtol=0, atol=1e-12)
    assert np.array_equal(order[routes_of(moved, reads)], routes_of(weights, reads))
    assert not np.array_equal(routes_of(moved, reads), routes_of(weights, reads))


def test_routes_are_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = SMALL.trace(TEXTS, tmp_path)
    (file,) = tmp_path.iterdir()
    assert (first.requests, first.layers, first.experts, first.vocabulary) == (6, 2, 4, 300)
    assert (first.prompts == 12).all()
    words = vocabulary(TEXTS[::2], 300)
    texts = [tokens_of(text, words) for text in TEXTS[1::2]]
    judged = {tuple(each[at : at + 16]) for each in texts for at in range(0, len(each) - 15, 16)}
    assert {tuple(first.tokens[begin : begin + 16]) for begin in first.starts[:-1]} <= judged
    monkeypatch.setattr("wavetank.serving.experts.decoder_routes.train", None)
    again = SMALL.trace(TEXTS, tmp_path)
    assert np.array_equal(again.routes, first.routes)
    file.write_bytes(b"damaged")
    with pytest.raises(TypeError):
        SMALL.trace(TEXTS, tmp_path)


def test_what_is_read_was_neither_trained_on_nor_counted_for_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [(b"trained " if number % 2 == 0 else b"judged ") * 60 for number in range(4)]
    learned: list[np.ndarray] = []

    def train(weights: DecoderWeights, text: np.ndarray, *_: int, **__: int) -> DecoderWeights:
        learned.append(text)
        return weights

    monkeypatch.setattr("wavetank.serving.experts.decoder_routes.train", train)
    trace = SMALL.trace(texts, tmp_path)
    words = vocabulary(texts[::2], 300)
    assert b"trained" in words
    assert b"judged" not in words
    assert np.array_equal(learned[0], np.concatenate([tokens_of(each, words) for each in texts[::2]]))
    # The word that was not counted is read as its bytes.
    assert set(trace.tokens.tolist()) == {*b"judged "}


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="too little text"):
        DecoderRoutes(requests=10_000, tokens=16, vocabulary=300).trace(TEXTS, tmp_path)


def test_the_library_has_modules() -> None:
    assert len(library_modules()) > 50
