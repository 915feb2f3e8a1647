"""Lossy image codecs within a budget of bytes, with the best quality that fits.

The scene becomes an image of 16 bits between its least and its largest value, which the stream names; what does not
fit into the budget is sent as the scene's mean, and what has no room for that as nothing.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

import numpy as np

from wavetank.errors import BadFileError
from wavetank.settings import setting
from wavetank.training.scenes.interface import Archive, Scene, Values
from wavetank.training.scenes.prior import Prior
from wavetank.training.scenes.rivals import images
from wavetank.training.scenes.sketch import Sketch

_ENDS = struct.Struct("<ff")
_TOP = 65_535
_DISTANCES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 15.0, 20.0, 25.0)
_DECIBELS = (90, 80, 70, 65, 60, 56, 52, 48, 45, 42, 39, 36, 33, 30, 27, 24, 21, 18, 15, 12)


@functools.lru_cache(maxsize=2)
def _streams(codec: str, pixels: bytes, shape: tuple[int, int]) -> tuple[bytes, ...]:
    """Return what an image codec makes of an image with each of its qualities; the budgets of a scene share them."""
    image, codecs = np.frombuffer(pixels, np.uint16).reshape(shape), images()
    if codec == "jpeg-xl":
        return tuple(
            codecs.jpegxl_encode(image, distance=each, effort=9, usecontainer=False, lossless=False)
            for each in _DISTANCES
        )
    return tuple(
        codecs.jpeg2k_encode(image, level=each, codecformat="j2k", reversible=False, resolutions=6)
        for each in _DECIBELS
    )


@dataclass(frozen=True, kw_only=True)
class ImageWithin:
    """Codec that gives a scene to a lossy image codec and keeps the best quality that fits the budget."""

    codec: str = setting("jpeg-xl", says="Image codec", choices=("jpeg-xl", "jpeg-2000"))

    def fit(self, archive: Archive) -> Prior:
        """Return what the receiver has: the mean of the place's past, no more.

        Parameters
        ----------
        archive : Archive
        """
        return Sketch(history="none").fit(archive)

    def guess(self, prior: Prior) -> Values:
        """Return the mean of the place's past, at every pixel.

        Parameters
        ----------
        prior : Prior
        """
        return prior.planes[0].astype(np.float32)

    def encode(self, scene: Scene, prior: Prior, budget: int) -> bytes:
        """Return the stream of at most ``budget`` bytes with the least squared error of those tried.

        Parameters
        ----------
        scene : Scene
        prior : Prior
        budget : int
        """
        seen = scene.values[scene.clear].astype(np.float64)
        if budget < _ENDS.size or not seen.size:
            return b""
        mean = float(seen.mean())
        best, least = _ENDS.pack(mean, mean), float(((seen - np.float32(mean)) ** 2).sum())
        ends = _ENDS.pack(float(seen.min()), float(seen.max()))
        low, high = _ENDS.unpack(ends)
        filled = np.where(scene.clear, scene.values, mean).astype(np.float64)
        image = np.rint(np.clip((filled - low) / max(high - low, 1e-30), 0, 1) * _TOP).astype(np.uint16)
        for data in _streams(self.codec, image.tobytes(), image.shape):
            if len(data) + len(ends) <= budget:
                error = float(((self.decode(ends + data, prior).values[scene.clear] - seen) ** 2).sum())
                if error < least:
                    best, least = ends + data, error
        return best

    def decode(self, stream: bytes, prior: Prior) -> Scene:
        """Return the scene of a stream; all pixels are clear.

        Parameters
        ----------
        stream : bytes
        prior : Prior

        Raises
        ------
        BadFileError
            If the image in the stream has another shape.
        """
        clear = np.ones(prior.shape, np.bool_)
        if not stream:
            return Scene(self.guess(prior), clear)
        low, high = _ENDS.unpack(stream[: _ENDS.size])
        if len(stream) == _ENDS.size:
            return Scene(np.full(prior.shape, low, np.float32), clear)
        decode = images().jpegxl_decode if self.codec == "jpeg-xl" else images().jpeg2k_decode
        image = np.asarray(decode(stream[_ENDS.size :]))
        if image.shape != prior.shape:
            raise BadFileError("The image in the stream has another shape.", given=str(image.shape))
        return Scene((low + image.astype(np.float64) / _TOP * (high - low)).astype(np.float32), clear)
