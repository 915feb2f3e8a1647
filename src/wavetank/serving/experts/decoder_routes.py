"""Routes of a real router: the reference decoder with experts, trained on half of the standard library's modules, reads
the other half.

Tokens are words: the most frequent runs of letters and of blanks in the modules it is trained on, and single bytes for
all others, so that a token's id says about as much as a language model's does.  A request is a piece of one module.
Training takes minutes; the routes are kept in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wavetank.cache_folder import cache_folder
from wavetank.errors import BadFileError, BadValueError, missing_extra
from wavetank.kernels.decoder import DecoderConfig, DecoderWeights, forward
from wavetank.kernels.decoder_training import train
from wavetank.serving.experts.interface import Numbers, RoutingTrace
from wavetank.serving.experts.traces import read_routes
from wavetank.sim.rng import stream

_WORD = re.compile(rb"[A-Za-z_]+|\s+|[^A-Za-z_\s]")
_BYTES = 256
# Requests that are computed together.
_TOGETHER = 16


@dataclass(frozen=True, kw_only=True)
class DecoderRoutes:
    """What is trained, and what it reads.

    Parameters
    ----------
    requests, tokens : int
        Requests, and tokens of each; three quarters are its prompt.
    layers, experts, per_token : int
        Layers, experts of each, and experts of a token.
    vocabulary : int
        Tokens: 256 bytes and the most frequent words.
    steps : int
        Of training.
    seed : int
        Of the first weights, of training and of the choice of requests.
    """

    requests: int = 600
    tokens: int = 128
    layers: int = 4
    experts: int = 32
    per_token: int = 4
    vocabulary: int = 2_048
    steps: int = 300
    seed: int = 0

    @property
    def config(self) -> DecoderConfig:
        """Return the sizes of the decoder."""
        return DecoderConfig(
            vocabulary=self.vocabulary, layers=self.layers, width=128, heads=8, head_width=16, key_heads=2,
            experts=self.experts, chosen=self.per_token, expert_hidden=64, dense_layers=0, window=max(self.tokens, 128),
        )  # fmt: skip

    def trace(self, modules: Sequence[bytes] | None = None, folder: Path | None = None) -> RoutingTrace:
        """Return the routes, from the cache folder or made now and put there.

        Parameters
        ----------
        modules : sequence of bytes, optional
            Texts, of which every other one is trained on; the standard library's when they are left out.
        folder : Path, optional
            Where routes are kept; the user's cache folder when it is left out.

        Raises
        ------
        BadValueError
            If there is too little text.
        MissingExtraError
            If torch is not installed.
        """
        texts = library_modules() if modules is None else list(modules)
        facts = [dataclasses.asdict(self), _version(), hashlib.sha256(b"\0".join(texts)).hexdigest(), _code()]
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
        path = (cache_folder() / "routes" if folder is None else folder) / f"{key}.npz"
        with contextlib.suppress(BadFileError):
            return read_routes(path)
        found = self._made(texts)
        _keep(path, found)
        return found

    def _made(self, texts: Sequence[bytes]) -> RoutingTrace:
        """Train, read, and return what was routed."""
        words = vocabulary(texts[::2], self.vocabulary)
        learned = [tokens_of(each, words) for each in texts[::2]]
        pieces = [
            piece
            for each in texts[1::2]
            for tokens in [tokens_of(each, words)]
            for piece in tokens[: len(tokens) // self.tokens * self.tokens].reshape(-1, self.tokens)
        ]
        if len(pieces) < self.requests:
            raise BadValueError("There is too little text for these requests.", given=self.requests,
                                allowed=f"at most {len(pieces)} requests of {self.tokens} tokens")  # fmt: skip
        chosen = stream(self.seed, "decoder-routes").permutation(len(pieces))[: self.requests]
        reads = np.stack([pieces[each] for each in chosen])
        weights = train(
            DecoderWeights.made(self.config, self.seed), np.concatenate(learned), self.steps, self.seed,
            length=min(128, self.tokens), batch=8,
        )  # fmt: skip
        return RoutingTrace(
            tokens=reads.ravel(), starts=np.arange(self.requests + 1) * self.tokens,
            prompts=np.full(self.requests, max(1, self.tokens * 3 // 4)), routes=routes_of(weights, reads),
            experts=self.experts, vocabulary=self.vocabulary,
        )  # fmt: skip


def library_modules() -> list[bytes]:
    """Return the sources of the standard library's modules, by name.

    Raises
    ------
    BadValueError
        If this installation has none.
    """
    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    if len(found) < 2:
        raise BadValueError("This Python has no sources of its library.", given=sysconfig.get_paths()["stdlib"])
    return found


def vocabulary(texts: Sequence[bytes], size: int) -> dict[bytes, int]:
    """Return the numbers of words: of single bytes, and of the most frequent longer ones, as many as there is room for.

    Parameters
    ----------
    texts : sequence of bytes
    size : int
        At least 256.
    """
    counts: Counter[bytes] = Counter()
    for text in texts:
        counts.update(each for each in _WORD.findall(text) if len(each) > 1)
    # Of equally frequent words the first by its bytes.
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: max(0, size - _BYTES)]
    return {bytes([byte]): byte for byte in range(_BYTES)} | {word: _BYTES + at for at, word in enumerate(frequent)}


def tokens_of(text: bytes, words: dict[bytes, int]) -> Numbers:
    """Return the tokens of a text: its words, and the bytes of words that have no number.

    Parameters
    ----------
    text : bytes
    words : dict of bytes to int
        As :func:`vocabulary` gives it.
    """
    found: list[int] = []
    for word in _WORD.findall(text):
        number = words.get(word)
        found.extend(word if number is None else (number,))
    return np.array(found, np.int64)


def routes_of(weights: DecoderWeights, reads: Numbers) -> Numbers:
    """Return the experts of each token in each layer: (layers, all tokens, experts per token).

    Parameters
    ----------
    weights : DecoderWeights
        With experts in all layers.
    reads : int64 array (requests, tokens)
    """
    parts = []
    for begin in range(0, len(reads), _TOGETHER):
        got = forward(weights, reads[begin : begin + _TOGETHER], np.arange(reads.shape[1]))
        layers = [each.experts.numpy() for each in got.routing if each is not None]
        parts.append(np.stack([each.reshape(-1, each.shape[-1]) for each in layers]))
    return np.concatenate(parts, axis=1).astype(np.int64)


def _keep(path: Path, trace: RoutingTrace) -> None:
    """Keep routes for the next process; where nothing can be written, it makes its own."""
    partial = path.with_name(f"{path.stem}.{os.getpid()}.partial.npz")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            np.savez_compressed(
                partial, tokens=trace.tokens, starts=trace.starts, prompts=trace.prompts,
                routes=trace.routes.astype(np.uint16), experts=trace.experts, vocabulary=trace.vocabulary,
            )  # fmt: skip
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _version() -> str:
    try:
        import torch
    except ImportError:
        raise missing_extra("torch", "torch", needed_for="A decoder") from None
    return str(torch.__version__)


def _code() -> str:
    """Return a checksum of what makes routes, so that others are made when it changes."""
    from wavetank.kernels import decoder, decoder_training, rotary

    names = [__file__, *(str(each.__file__) for each in (decoder, decoder_training, rotary))]
    return hashlib.sha256(b"".join(Path(name).read_bytes() for name in names)).hexdigest()
