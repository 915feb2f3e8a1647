"""Three networks with four exits that really run here: residual perceptrons, trained on scikit-learn's digits.

They stand for the three residual networks of the published profile: equal widths, and one, two or four blocks a stage.
Training takes seconds with torch, all exits together; the weights are kept in the user's cache, and inference is
numpy's.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wavetank.cache_folder import cache_folder
from wavetank.errors import MissingExtraError
from wavetank.extras import install_command
from wavetank.machine.threads import libraries_limited

Floats = NDArray[np.float32]
NAMES = ("small", "medium", "large")
EXITS = 4
_BLOCKS = (1, 2, 4)
_WIDTH, _EPOCHS, _BATCH = 256, 12, 128
_TRAINED_ON = 1200


@dataclass(frozen=True)
class ExitNetwork:
    """A network with an exit after each stage.

    Attributes
    ----------
    stem : float32, shape (65, width)
        With the bias as its last row, as in all of them.
    stages : tuple of tuple of float32, shape (width + 1, width)
        Blocks of each stage: ``x + max(x W + b, 0)``.
    heads : tuple of float32, shape (width + 1, 10)
    """

    stem: Floats
    stages: tuple[tuple[Floats, ...], ...]
    heads: tuple[Floats, ...]

    def labels(self, images: Floats, exit_: int) -> NDArray[np.int64]:
        """Return the digits that are seen.

        Parameters
        ----------
        images : float32, shape (n, 64)
        exit_ : int
            0 for the first.

        Returns
        -------
        int64, shape (n,)
        """
        x = _affine(images, self.stem)
        np.maximum(x, 0, out=x)
        for stage in self.stages[: exit_ + 1]:
            for weights in stage:
                y = _affine(x, weights)
                np.maximum(y, 0, out=y)
                x += y
        return _affine(x, self.heads[exit_]).argmax(axis=1)


def _affine(x: Floats, weights: Floats) -> Floats:
    y: Floats = x @ weights[:-1]
    y += weights[-1]
    return y


def digits() -> tuple[Floats, NDArray[np.int64], Floats, NDArray[np.int64]]:
    """Return the images and digits to train on, and those that are left for requests.

    Returns
    -------
    (float32, shape (1200, 64), int64, shape (1200,), float32, shape (597, 64), int64, shape (597,))
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise _missing(error) from error
    found = load_digits()
    order = np.random.default_rng(0).permutation(found.target.size)
    images, labels = (found.data[order] / 16).astype(np.float32), found.target[order].astype(np.int64)
    return images[:_TRAINED_ON], labels[:_TRAINED_ON], images[_TRAINED_ON:], labels[_TRAINED_ON:]


@cache
def networks() -> tuple[ExitNetwork, ...]:
    """Return the three networks, trained at the first call on a machine.

    Raises
    ------
    MissingExtraError
        If they are not trained yet, and torch or scikit-learn is not installed.
    """
    # Another program trains other networks.
    key = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    path = cache_folder() / f"edge-networks-{key}.npz"
    try:
        with np.load(path, allow_pickle=False) as kept:
            return tuple(_of_arrays({name: kept[name] for name in kept.files}, i) for i in range(len(NAMES)))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        # Not there, or a part of a file: made anew.
        pass
    # Matrices this small are multiplied four times as fast by one thread as by two.
    with libraries_limited(1):
        made = tuple(train(blocks, seed=i) for i, blocks in enumerate(_BLOCKS))
    arrays = {name: array for i, each in enumerate(made) for name, array in _arrays(each, i).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    Path(file.name).replace(path)
    return made


def train(blocks: int, seed: int, epochs: int = _EPOCHS) -> ExitNetwork:
    """Train one network; the losses of all exits are added up.

    Parameters
    ----------
    blocks : int
        Per stage.
    seed : int
    epochs : int

    Raises
    ------
    MissingExtraError
        If torch or scikit-learn is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise _missing(error) from error
    images, labels, _, _ = digits()
    drawn = np.random.default_rng(seed)

    def layer(rows: int, columns: int, scale: float) -> torch.Tensor:
        start = np.vstack([drawn.normal(0, scale / np.sqrt(rows), (rows, columns)), np.zeros((1, columns))])
        return torch.tensor(start, dtype=torch.float32, requires_grad=True)

    stem = layer(64, _WIDTH, 1.4)
    stages = [[layer(_WIDTH, _WIDTH, 0.5) for _ in range(blocks)] for _ in range(EXITS)]
    heads = [layer(_WIDTH, 10, 1.0) for _ in range(EXITS)]
    every = [stem, *(each for stage in stages for each in stage), *heads]
    optimizer = torch.optim.AdamW(every, lr=1e-3, weight_decay=1e-2)
    x_all, y_all = torch.from_numpy(images), torch.from_numpy(labels)
    for _ in range(epochs):
        order = drawn.permutation(labels.size)
        for first in range(0, labels.size, _BATCH):
            some = torch.from_numpy(order[first : first + _BATCH])
            x = torch.relu(x_all[some] @ stem[:-1] + stem[-1])
            loss = torch.zeros(())
            for stage, head in zip(stages, heads, strict=True):
                for weights in stage:
                    x = x + torch.relu(x @ weights[:-1] + weights[-1])
                loss = loss + torch.nn.functional.cross_entropy(x @ head[:-1] + head[-1], y_all[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def kept(weights: torch.Tensor) -> Floats:
        return weights.detach().numpy().copy()

    return ExitNetwork(
        stem=kept(stem), stages=tuple(tuple(kept(each) for each in stage) for stage in stages),
        heads=tuple(kept(each) for each in heads),
    )  # fmt: skip


def _arrays(network: ExitNetwork, number: int) -> dict[str, Floats]:
    found = {f"{number}-stem": network.stem}
    for i, (stage, head) in enumerate(zip(network.stages, network.heads, strict=True)):
        found[f"{number}-stage-{i}"] = np.stack(stage)
        found[f"{number}-head-{i}"] = head
    return found


def _of_arrays(kept: dict[str, Floats], number: int) -> ExitNetwork:
    return ExitNetwork(
        stem=kept[f"{number}-stem"],
        stages=tuple(tuple(kept[f"{number}-stage-{i}"]) for i in range(EXITS)),
        heads=tuple(kept[f"{number}-head-{i}"] for i in range(EXITS)),
    )


def _missing(error: ImportError) -> MissingExtraError:
    return MissingExtraError(
        "Networks for the edge study are trained with torch and scikit-learn, and one of them is not installed.",
        given=str(error), hint=install_command("profiling"),
    )  # fmt: skip
