"""Trains the reference decoder on text that every installation has, so that it attends and routes as a model does.

The text is the source of Python's standard library and tokens are its bytes: every text has its tokens then, nothing
beside the weights is learned or kept, and a prompt of some kilobytes has as many tokens as a real one.  Weights are
made on the machine that asks for them, once, and kept in the user's cache folder; they are in no package.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.cache_folder import cache_folder
from wavetank.errors import BadValueError, missing_extra
from wavetank.kernels.decoder import DecoderConfig, DecoderWeights, Forward, Routing, forward, shapes
from wavetank.sim.rng import stream

Tokens = NDArray[np.int64]

BYTES = 256
_RATE, _BALANCE = 4e-3, 0.05


def tokens_of(text: str | bytes | Tokens) -> Tokens:
    """Return the tokens of a text: its bytes as UTF-8, or those that are given.

    Parameters
    ----------
    text : str, bytes or int64 array (tokens,)

    Returns
    -------
    int64 array (tokens,)
        From 0 to 255, or as given.

    Examples
    --------
    >>> tokens_of("if é").tolist()
    [105, 102, 32, 195, 169]
    """
    if isinstance(text, np.ndarray):
        return text
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return np.frombuffer(content, np.uint8).astype(np.int64)


@functools.cache
def library_text(size: int = 1_000_000) -> bytes:
    """Return source of the standard library, module after module by name, from the first one on.

    Parameters
    ----------
    size : int
        Bytes, at most; whole modules, but for the last.

    Raises
    ------
    BadValueError
        If this installation has no sources.
    """
    pieces, left = [], size
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        with contextlib.suppress(OSError):
            pieces.append(path.read_bytes()[:left])
            left -= len(pieces[-1])
        if left <= 0:
            break
    if not pieces:
        raise BadValueError("This Python has no sources of its library.", given=sysconfig.get_paths()["stdlib"],
                            hint="give another text to train on")  # fmt: skip
    return b"".join(pieces)


def train(
    weights: DecoderWeights,
    text: str | bytes | Tokens,
    steps: int,
    seed: int,
    *,
    length: int = 256,
    batch: int = 8,
    threads: int = 2,
) -> DecoderWeights:
    """Return weights that were trained to predict the next byte of a text; those given stay as they are.

    Equal arguments give equal weights on one processor: two threads are taken whatever the process had, and given
    back.

    Parameters
    ----------
    weights : DecoderWeights
        With a vocabulary of 256 or more, or one that has all tokens that are given.
    text : str, bytes or int64 array (tokens,)
        Longer than ``length``; tokens of the caller's own instead of bytes.
    steps : int
        Of AdamW; the rate rises and falls once.
    seed : int
        Draws where the sequences of each step begin.
    length, batch : int
        Tokens of a sequence, sequences of a step.
    threads : int
        Of torch, meanwhile.

    Raises
    ------
    BadValueError
        If there is too little text, or bytes have no tokens.
    """
    torch, config, tokens = _torch(), weights.config, tokens_of(text)
    needed = int(tokens.max(initial=0)) + 1 if isinstance(text, np.ndarray) else BYTES
    if config.vocabulary < needed:
        raise BadValueError("A text has bytes that are no tokens.", given=config.vocabulary, allowed=f">= {needed}",
                            where="vocabulary")  # fmt: skip
    if not (steps >= 0 and batch >= 1 and threads >= 1 and 1 <= length <= config.window and len(tokens) > length):
        raise BadValueError(
            "There is nothing to train on.", given=f"{steps} steps of {batch} x {length} tokens, {len(tokens)} of text",
            allowed=f"steps >= 0, batch and threads >= 1, 1 <= length <= {config.window}, more text than a sequence",
        )  # fmt: skip
    draws, positions = stream(seed, "decoder training"), np.arange(length)
    with _threads(threads):
        tensors = {name: each.detach().clone().requires_grad_(True) for name, each in weights.tensors.items()}
        trained = DecoderWeights(config, tensors)
        optimizer = torch.optim.AdamW(tensors.values(), lr=_RATE, betas=(0.9, 0.95), weight_decay=0.01)
        for step in range(steps):
            starts = draws.integers(0, len(tokens) - length, batch)
            pieces = torch.from_numpy(tokens[starts[:, None] + np.arange(length + 1)])
            for group in optimizer.param_groups:
                group["lr"] = _RATE * min((step + 1) / max(0.1 * steps, 1.0), 1.1 * (1.0 - step / steps))
            got = forward(trained, pieces[:, :-1], positions)
            loss = torch.nn.functional.cross_entropy(got.logits.flatten(0, 1), pieces[:, 1:].flatten())
            optimizer.zero_grad()
            (loss + _BALANCE * _uneven(got)).backward()
            torch.nn.utils.clip_grad_norm_(list(tensors.values()), 1.0)
            optimizer.step()
    return DecoderWeights(config, {name: each.detach() for name, each in tensors.items()})


def trained(
    config: DecoderConfig, *, steps: int = 300, seed: int = 0, size: int = 1_000_000, length: int = 256, batch: int = 8,
    folder: Path | None = None,
) -> DecoderWeights:  # fmt: skip
    """Return a decoder trained on the standard library: from the cache folder, or made now and put there.

    What is kept is found again by the sizes, the arguments, the text, this code and the version of torch.

    Parameters
    ----------
    config : DecoderConfig
    steps, seed, length, batch : int
        As for :func:`train`; the seed also draws the first weights.
    size : int
        Bytes of text.
    folder : Path, optional
        Where it is kept; the user's cache folder when it is left out.
    """
    text = library_text(size)
    facts = [
        dataclasses.asdict(config), steps, seed, length, batch, _torch().__version__, hashlib.sha256(text).hexdigest(),
        _code(),
    ]  # fmt: skip
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    path = (cache_folder() / "decoders" if folder is None else folder) / f"{key}.npz"
    kept = _read(path, config)
    if kept is None:
        kept = train(DecoderWeights.made(config, seed), text, steps, seed, length=length, batch=batch)
        _write(path, kept)
    return kept


def loss_of(weights: DecoderWeights, tokens: Any) -> float:
    """Return the mean cross entropy of the next token, in nats.

    Parameters
    ----------
    weights : DecoderWeights
    tokens : int array (tokens,)
        Two or more.
    """
    torch = _torch()
    with torch.no_grad():
        got = forward(weights, tokens[:-1], np.arange(len(tokens) - 1))
        return float(torch.nn.functional.cross_entropy(got.logits, torch.as_tensor(tokens[1:])))


def _uneven(got: Forward) -> Any:
    """Return how unevenly tokens are spread over experts, 1 where all have as many; else most would never learn."""
    found = [_spread(each) for each in got.routing if each is not None]
    return sum(found) / max(len(found), 1)


def _spread(routing: Routing) -> Any:
    chosen, shares = routing.experts.flatten(), routing.shares.flatten(0, -2)
    experts = shares.shape[-1]
    counts = _torch().bincount(chosen, minlength=experts) / len(chosen)
    return experts * (counts.to(shares) * shares.mean(0)).sum()


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    torch = _torch()
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _code() -> str:
    """Return a checksum of what makes weights, so that others are made when it changes."""
    here = Path(__file__).parent
    sources = [here / name for name in ("decoder.py", "decoder_training.py", "rotary.py")]
    return hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()


def _read(path: Path, config: DecoderConfig) -> DecoderWeights | None:
    """Return kept weights; None where there are none, or damaged ones."""
    torch, wanted = _torch(), shapes(config)
    try:
        with np.load(path, allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in wanted}
        return DecoderWeights(config, {name: torch.from_numpy(each) for name, each in arrays.items()})
    except Exception:  # numpy, zipfile, zlib and tokenize have kinds of their own, and damage brings out each of them
        return None


def _write(path: Path, weights: DecoderWeights) -> None:
    """Keep weights for the next process; where nothing can be written, it makes its own."""
    content = io.BytesIO()
    arrays: dict[str, Any] = {name: each.numpy() for name, each in weights.tensors.items()}
    np.savez(content, **arrays)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(content.getvalue())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise missing_extra("torch", "torch", needed_for="A decoder") from None
    return torch
