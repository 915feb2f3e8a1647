"""A scene is encoded as what the past of its place does not say.

The archive's clear scenes and their median are the prior.  Four of them that resemble the scene most are fitted to
it; the fit, 18 bytes of side information, is a first picture of the whole scene, of which every pixel's neighbours on
all sides are known before it is coded.  Pixels then go, one by one, through a mixture of regressions on decoded
neighbours and on this picture (:mod:`~wavetank.training.scenes.mixing`).  Neighbours alone cannot see an edge before
they reach it, and the past alone does not know today's light; where both err in the same direction nearby, the
regression corrects both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wavetank.errors import BadFileError, BadValueError
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream as random_stream
from wavetank.training.scenes.grid import LARGEST_ALPHABET, LARGEST_STEP, LEAST_STEP, from_grid, to_grid
from wavetank.training.scenes.interface import LARGEST_PIXELS, LARGEST_SIDE, Archive, Floats, Scene
from wavetank.training.scenes.mixing import Mixture, decode_grid, encode_grid, mixture
from wavetank.training.scenes.prior import IDENTITY_BYTES, Prior
from wavetank.training.scenes.stream import opened, packed, sealed

KIND_ALONE = 1
KIND_WITH_PRIOR = 2
MOST_PLANES = 15

# The first picture as seen from a pixel: itself, then west, north, east and south of it.
_AROUND = ((0, 0), (0, -1), (-1, 0), (0, 1), (1, 0))


@dataclass(frozen=True, kw_only=True)
class EarthCompression:
    """Codec of scenes with the place's past as its prior; without a prior it codes by neighbours alone.

    Parameters
    ----------
    history : str
        All words but ``own`` are for the control that a gain comes from this place's past.
    """

    planes: int = setting(4, says="Scenes of the past, or their median, that a scene is fitted to", low=1,
                          high=MOST_PLANES)  # fmt: skip
    step: float = setting(0.005, says="How finely the prior keeps its scenes, in the unit of the values", low=1e-6,
                          high=1e6)  # fmt: skip
    scenes: int = setting(64, unit="scenes", says="Most scenes that the prior keeps", low=1, high=255)
    history: str = setting(
        "own", says="Past of this place, none, mirrored as if of another place, or each pixel's in random order",
        choices=("own", "none", "mirrored", "shuffled"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self)

    def fit(self, archive: Archive) -> Prior | None:
        """Return the prior of an archive.

        Parameters
        ----------
        archive : Archive
            What was observed before the scenes that are to be coded.
        """
        if self.history == "none":
            return None
        prior = Prior.fit(archive, step=self.step, scenes=self.scenes)
        if self.history == "mirrored":
            return Prior(np.ascontiguousarray(prior.whole[:, :, ::-1]), prior.step)
        if self.history == "shuffled":
            return Prior(random_stream(0, "shuffled past").permuted(prior.whole, axis=0), prior.step)
        return prior

    def encode(self, scene: Scene, prior: Prior | None, bound: float) -> bytes:
        """Return a stream of which every clear value is decoded within the bound.

        Parameters
        ----------
        scene : Scene
        prior : Prior or None
            What :meth:`fit` returned.
        bound : float
            Largest error of a clear value, in the unit of the values.

        Raises
        ------
        BadValueError
            If the bound is no positive number or too fine, or the scene has another shape than the prior.
        """
        grid = to_grid(scene, bound)
        masked = not scene.clear.all()
        facts = np.float32(grid.step).tobytes() + packed(int(masked), grid.low, grid.alphabet)
        if prior is None:
            planes = np.zeros((0, *scene.values.shape))
            data = encode_grid(grid.whole, scene.clear, grid.low, grid.alphabet, planes, mixture(0))
            return sealed(KIND_ALONE, packed(*scene.values.shape) + facts + data)
        if prior.shape != scene.values.shape:
            raise BadValueError(
                "The prior is of a place of another shape.", given=f"a scene of {scene.values.shape}",
                allowed=str(prior.shape),
            )  # fmt: skip
        chosen, weights = fitted(scene, prior, self.planes)
        planes, made = _planes(prior, chosen, weights, grid.step)
        data = encode_grid(grid.whole, scene.clear, grid.low, grid.alphabet, planes, made)
        side = packed(len(chosen)) + bytes(chosen) + weights.astype("<f2").tobytes()
        return sealed(KIND_WITH_PRIOR, prior.identity + side + facts + data)

    def decode(self, stream: bytes, prior: Prior | None) -> Scene:
        """Return the scene of a stream; hidden pixels are NaN.

        Parameters
        ----------
        stream : bytes
        prior : Prior or None
            The one that the stream was encoded with.

        Raises
        ------
        BadFileError
            If the stream is foreign, of another version, damaged or cut off.
        BadValueError
            If the prior is another one.
        """
        planes, made, shape = np.zeros((0, 0, 0)), mixture(0), (0, 0)
        chosen: list[int] = []
        if prior is None:
            reader = opened(stream, KIND_ALONE, "a scene without a prior")
            shape = (reader.number(1, LARGEST_SIDE, "side"), reader.number(1, LARGEST_SIDE, "side"))
            if shape[0] * shape[1] > LARGEST_PIXELS:
                raise BadFileError("The stream has an impossible size.", given=f"{shape[0]} by {shape[1]}")
        else:
            reader = opened(stream, KIND_WITH_PRIOR, "a scene with a prior")
            named = reader.take(IDENTITY_BYTES)
            if named != prior.identity:
                raise BadValueError(
                    "The scene was encoded with another prior.", given=f"prior {prior.identity.hex()}",
                    allowed=f"prior {named.hex()}",
                    hint="fit the prior to exactly the scenes that the encoder had, with the same parameters",
                )  # fmt: skip
            shape = prior.shape
            count = reader.number(1, MOST_PLANES, "number of planes")
            chosen = [reader.take(1)[0] for _ in range(count)]
            if max(chosen) >= len(prior.planes):
                raise BadFileError("The stream names a plane that the prior lacks.", given=max(chosen))
            weights = np.frombuffer(reader.take(2 * (count + 1)), "<f2").astype(np.float64)
            if not np.isfinite(weights).all():
                raise BadFileError("The stream has weights that are no numbers.", given=str(weights))
        step = reader.real(LEAST_STEP, LARGEST_STEP, "step")
        masked = bool(reader.number(0, 1, "mask"))
        low = reader.number(-(1 << 30), 1 << 30, "lowest value")
        alphabet = reader.number(1, LARGEST_ALPHABET, "range of values")
        if prior is None:
            planes = np.zeros((0, *shape))
        else:
            planes, made = _planes(prior, chosen, weights, step)
        whole, clear = decode_grid(reader.rest(), shape, masked, low, alphabet, planes, made)
        return Scene(from_grid(whole, step), clear)


def fitted(scene: Scene, prior: Prior, most: int) -> tuple[list[int], Floats]:
    """Return the planes that resemble a scene most, and the weights (constant first) of the best fit, as float16.

    Parameters
    ----------
    scene : Scene
    prior : Prior
    most : int
        Scenes of the past beside their median, which always takes part.
    """
    of = scene.clear
    seen = scene.values[of].astype(np.float64)
    flat = prior.planes[:, of]
    if seen.size == 0:
        return [0], np.array([0.0, 1.0])
    centred = seen - seen.mean()
    around = flat - flat.mean(1, keepdims=True)
    spread = np.sqrt((around * around).sum(1) * float(centred @ centred))
    likeness = np.divide(around @ centred, spread, out=np.zeros(len(flat)), where=spread > 0)
    # The median is always there; of the scenes those that resemble this one most.
    chosen = [0, *(1 + int(each) for each in np.argsort(-likeness[1:], kind="stable")[:most])]
    matrix = np.concatenate([np.ones((1, seen.size)), flat[chosen]])
    found = np.linalg.lstsq(matrix.T, seen, rcond=1e-6)[0]
    return chosen, np.clip(found, -6e4, 6e4).astype(np.float16).astype(np.float64)


def _planes(prior: Prior, chosen: list[int], weights: Floats, step: float) -> tuple[Floats, Mixture]:
    """Return what the mixture sees of the prior, in steps: the first picture from five sides, and its parts."""
    parts = prior.planes[chosen]
    picture = np.full(prior.shape, weights[0])
    for weight, each in zip(weights[1:], parts, strict=True):
        picture = picture + weight * each
    padded = np.pad(picture, 1, mode="edge")
    rows, columns = prior.shape
    seen = [padded[1 + up : 1 + up + rows, 1 + aside : 1 + aside + columns] for up, aside in _AROUND]
    planes = np.ascontiguousarray(np.stack([*seen, *parts])) / step
    return planes, mixture(len(planes), own=len(parts))
