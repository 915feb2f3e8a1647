"""What else codes a scene within an error bound: simple predictors, image codecs and codecs of scientific fields.

Predictors say what a pixel will be, from the pixels before it, from the place's past or from both, and a range coder
with counts that follow the data codes what they miss.  Image codecs get the whole numbers of the same grid and lose
nothing of them.  Codecs of fields get the values and the bound.  Each has the setting with which its stream is
shortest, and its stream is complete: everything that its decoder needs but the prior is in it.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.errors import BadFileError, BadValueError, GaveUpError, missing_extra
from wavetank.settings import setting
from wavetank.sim.compiled import compiled
from wavetank.training.scenes.grid import LARGEST_ALPHABET, LARGEST_STEP, LEAST_STEP, from_grid, step_for, to_grid
from wavetank.training.scenes.interface import LARGEST_SIDE, Archive, Flags, Floats, Ints, Scene, Values
from wavetank.training.scenes.mixing import decode_mask, encode_mask, median_of_jpegls
from wavetank.training.scenes.prior import CLEAR_ENOUGH, IDENTITY_BYTES
from wavetank.training.scenes.range_coder import decode_counted, encode_counted
from wavetank.training.scenes.stream import Reader, opened, packed, sealed

_KIND_PREDICTED = 4
_KIND_IMAGE = 5
_KIND_FIELD = 6
_MOST_PAST = 4
# Dates with fewer clouds than this count for the climatology.
_HALF_CLEAR = 0.5


@dataclass(frozen=True, eq=False)
class Past:
    """The past of a place as simple predictors know it.

    Parameters
    ----------
    median : float32 array (rows, columns)
        Of the clear values of all dates that are less than half clouded.
    scenes : float32 array (scenes, rows, columns)
        The clear scenes, oldest first; what clouds hide has the median.
    """

    median: Values
    scenes: Values

    @classmethod
    def fit(cls, archive: Archive) -> Past:
        """Return the past that an archive holds.

        Parameters
        ----------
        archive : Archive

        Raises
        ------
        BadValueError
            If no scene is clear enough.
        """
        half, whole = archive.clouded < _HALF_CLEAR, archive.clouded <= CLEAR_ENOUGH
        if not whole.any():
            raise BadValueError("No scene of the archive is clear enough.", allowed=f"clouds over {CLEAR_ENOUGH:.0%}")
        values = np.where(archive.clear, archive.values, np.nan)[half].astype(np.float64)
        with np.errstate(all="ignore"):
            median = np.nanmedian(np.where(archive.clear[half].any(0), values, 0.0), axis=0).astype(np.float32)
        return cls(median, np.where(archive.clear[whole], archive.values[whole], median))

    @functools.cached_property
    def identity(self) -> bytes:
        """Four bytes of a checksum of all that is known."""
        return hashlib.sha256(self.median.tobytes() + self.scenes.tobytes()).digest()[:IDENTITY_BYTES]

    def to_bytes(self) -> bytes:
        """Return what a receiver must have got before the first scene."""
        return zlib.compress(self.median.tobytes() + self.scenes.tobytes(), 9)


def _shared_head(scene: Scene) -> bytes:
    """Return shape and mask, as every rival's stream begins."""
    mask = b"" if scene.clear.all() else encode_mask(scene.clear)
    return packed(*scene.values.shape, len(mask)) + mask


def _read_head(reader: Reader) -> tuple[tuple[int, int], Flags]:
    shape = (reader.number(1, LARGEST_SIDE, "side"), reader.number(1, LARGEST_SIDE, "side"))
    mask = reader.take(reader.number(0, 1 << 30, "length"))
    return shape, decode_mask(mask, shape) if mask else np.ones(shape, np.bool_)


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Codec that predicts each pixel by a fixed rule and codes what is missing, without any context."""

    past: str = setting(
        "none", says="What is known of the place: nothing, its last clear scene, the median of its past, that median "
        "fitted to the scene, or it and the four past scenes most like this one, fitted",
        choices=("none", "last", "median", "fitted-median", "fitted"),
    )  # fmt: skip
    neighbours: bool = setting(True, says="Whether the median predictor of JPEG-LS predicts what the past leaves")

    def fit(self, archive: Archive) -> Past | None:
        """Return the past; None where none is used.

        Parameters
        ----------
        archive : Archive
        """
        return None if self.past == "none" else Past.fit(archive)

    def encode(self, scene: Scene, prior: Past | None, bound: float) -> bytes:
        """Return a stream of which every clear value is decoded within the bound.

        Parameters
        ----------
        scene : Scene
        prior : Past or None
        bound : float
        """
        step = step_for(scene, bound)
        side, picture = b"", np.zeros(scene.values.shape)
        if prior is not None:
            chosen, weights = self._weights(scene, prior)
            side = prior.identity + packed(len(chosen)) + bytes(chosen) + weights.astype("<f4").tobytes()
            picture = _picture(prior, chosen, weights)
        whole = np.rint(np.where(scene.clear, scene.values - picture, 0.0) / step)
        if np.abs(whole).max(initial=0.0) >= LARGEST_ALPHABET:
            raise BadValueError("The error bound is too fine for the range of the values.", given=bound)
        missing = _median_missing(whole.astype(np.int64), scene.clear) if self.neighbours else whole.astype(np.int64)
        symbols = missing[scene.clear]
        low, alphabet = (int(symbols.min()), int(np.ptp(symbols)) + 1) if symbols.size else (0, 1)
        facts = np.float32(step).tobytes() + packed(low, alphabet)
        data = encode_counted(symbols - low, alphabet).tobytes()
        return sealed(_KIND_PREDICTED, _shared_head(scene) + side + facts + data)

    def decode(self, stream: bytes, prior: Past | None) -> Scene:
        """Return the scene of a stream.

        Parameters
        ----------
        stream : bytes
        prior : Past or None
        """
        reader = opened(stream, _KIND_PREDICTED, "a predicted scene")
        shape, clear = _read_head(reader)
        picture = np.zeros(shape)
        if prior is not None:
            if reader.take(IDENTITY_BYTES) != prior.identity or prior.median.shape != shape:
                raise BadValueError("The scene was encoded with another past.", given=f"past {prior.identity.hex()}")
            chosen = list(reader.take(reader.number(1, _MOST_PAST + 1, "number of scenes")))
            if max(chosen) > len(prior.scenes):
                raise BadFileError("The stream names a scene that the past lacks.", given=max(chosen))
            weights = np.frombuffer(reader.take(4 * (len(chosen) + 1)), "<f4").astype(np.float64)
            picture = _picture(prior, chosen, weights)
        step = reader.real(LEAST_STEP, LARGEST_STEP, "step")
        low = reader.number(-(1 << 30), 1 << 30, "lowest value")
        alphabet = reader.number(1, 2 * LARGEST_ALPHABET, "range of values")
        data = np.frombuffer(reader.rest(), np.uint8).copy()
        missing = np.zeros(shape, np.int64)
        missing[clear] = decode_counted(data, int(clear.sum()), alphabet) + low
        whole = _median_restored(missing, clear) if self.neighbours else missing
        values = (picture + whole * step).astype(np.float32)
        values[~clear] = np.nan
        return Scene(values, clear)

    def _weights(self, scene: Scene, prior: Past) -> tuple[list[int], Floats]:
        """Return which planes of the past are used (0: the median) and their weights, the constant first."""
        if self.past == "last":
            return [len(prior.scenes)], np.array([0.0, 1.0])
        if self.past == "median":
            return [0], np.array([0.0, 1.0])
        of = scene.clear
        seen = scene.values[of].astype(np.float64)
        chosen = [0]
        if self.past == "fitted" and seen.size > 1:
            with np.errstate(all="ignore"):
                like = np.nan_to_num([np.corrcoef(each[of], seen)[0, 1] for each in prior.scenes], nan=-1.0)
            chosen += [1 + int(each) for each in np.argsort(-like, kind="stable")[:_MOST_PAST]]
        planes = [_plane(prior, each)[of].astype(np.float64) for each in chosen]
        matrix = np.stack([np.ones(seen.size), *planes], 1)
        return chosen, np.linalg.lstsq(matrix, seen, rcond=1e-6)[0].astype(np.float32).astype(np.float64)


def _plane(past: Past, number: int) -> Values:
    found: Values = past.scenes[number - 1] if number else past.median
    return found


def _picture(past: Past, chosen: list[int], weights: Floats) -> Floats:
    picture = np.full(past.median.shape, weights[0])
    for weight, number in zip(weights[1:], chosen, strict=True):
        picture = picture + weight * _plane(past, number)
    return picture


@compiled
def _expected(whole, row, column):  # type: ignore[no-untyped-def]
    """Return what JPEG-LS expects of a pixel; at borders, the one neighbour that is there."""
    if row == 0:
        return whole[0, column - 1] if column > 0 else np.int64(0)
    if column == 0:
        return whole[row - 1, 0]
    return median_of_jpegls(whole[row, column - 1], whole[row - 1, column], whole[row - 1, column - 1])


@compiled
def _median_missing(whole: Ints, clear: Flags) -> Ints:
    """Return what the median predictor misses of whole numbers; a hidden pixel is what was expected of it."""
    filled = whole.copy()
    found = np.zeros_like(whole)
    for row in range(whole.shape[0]):
        for column in range(whole.shape[1]):
            expected = _expected(filled, row, column)
            if clear[row, column]:
                found[row, column] = whole[row, column] - expected
            else:
                filled[row, column] = expected
    return found


@compiled
def _median_restored(missing: Ints, clear: Flags) -> Ints:
    """Return the whole numbers of which :func:`_median_missing` gave what is missing."""
    filled = np.zeros_like(missing)
    for row in range(missing.shape[0]):
        for column in range(missing.shape[1]):
            filled[row, column] = _expected(filled, row, column)
            if clear[row, column]:
                filled[row, column] += missing[row, column]
    return filled


def images() -> Any:
    """Return the library of image codecs."""
    try:
        import imagecodecs
    except ImportError:
        raise missing_extra("imagecodecs", "codecs", needed_for="An image codec") from None
    return imagecodecs


def _best(streams: list[bytes]) -> bytes:
    return min(streams, key=len)


def _image_streams(codec: str, image: np.ndarray) -> list[bytes]:
    """Return what an image codec makes of whole numbers with each of its settings that lose nothing."""
    codecs = images()
    if codec == "jpeg-ls":
        return [codecs.jpegls_encode(image)]
    if codec == "jpeg-xl":
        return [codecs.jpegxl_encode(image, lossless=True, effort=each, usecontainer=False) for each in (7, 9, 10)]
    if codec == "jpeg-2000":
        return [
            codecs.jpeg2k_encode(image, level=0, reversible=True, codecformat="j2k", resolutions=each)
            for each in (3, 4, 5, 6)
        ]
    return [codecs.avif_encode(image, level=100, speed=each) for each in (0, 4)]


_IMAGE_DECODERS = {
    "jpeg-ls": "jpegls_decode", "jpeg-xl": "jpegxl_decode", "jpeg-2000": "jpeg2k_decode", "avif": "avif_decode",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ImageCodec:
    """Codec that gives the whole numbers of a scene to an image codec, which loses nothing of them."""

    codec: str = setting("jpeg-ls", says="Image codec", choices=tuple(_IMAGE_DECODERS))
    past: str = setting(
        "none", says="What is known of the place: nothing, or the last clear scene, of which the difference is coded",
        choices=("none", "last"),
    )  # fmt: skip

    def fit(self, archive: Archive) -> Past | None:
        """Return the past; None where none is used.

        Parameters
        ----------
        archive : Archive
        """
        return None if self.past == "none" else Past.fit(archive)

    def encode(self, scene: Scene, prior: Past | None, bound: float) -> bytes:
        """Return a stream of which every clear value is decoded within the bound.

        Parameters
        ----------
        scene : Scene
        prior : Past or None
        bound : float

        Raises
        ------
        GaveUpError
            If the bound makes more levels than the image codec has.
        """
        grid = to_grid(scene, bound)
        whole = _median_restored(np.where(scene.clear, _median_missing(grid.whole, scene.clear), 0), scene.clear)
        named = b""
        if prior is not None:
            whole = whole - np.rint(prior.scenes[-1].astype(np.float64) / grid.step).astype(np.int64)
            named = prior.identity
        low = int(whole.min())
        levels = int(whole.max()) - low + 1
        if levels > (256 if self.codec == "avif" else LARGEST_ALPHABET):
            raise GaveUpError("The image codec has fewer levels than the bound makes.", given=f"{levels} levels")
        image = (whole - low).astype(np.uint8 if levels <= 256 else np.uint16)
        data = _best(_image_streams(self.codec, np.ascontiguousarray(image)))
        facts = np.float32(grid.step).tobytes() + packed(low)
        return sealed(_KIND_IMAGE, _shared_head(scene) + named + facts + data)

    def decode(self, stream: bytes, prior: Past | None) -> Scene:
        """Return the scene of a stream.

        Parameters
        ----------
        stream : bytes
        prior : Past or None
        """
        reader = opened(stream, _KIND_IMAGE, "a scene of an image codec")
        shape, clear = _read_head(reader)
        if prior is not None and reader.take(IDENTITY_BYTES) != prior.identity:
            raise BadValueError("The scene was encoded with another past.", given=f"past {prior.identity.hex()}")
        step = reader.real(LEAST_STEP, LARGEST_STEP, "step")
        low = reader.number(-(1 << 30), 1 << 30, "lowest value")
        image = np.asarray(getattr(images(), _IMAGE_DECODERS[self.codec])(reader.rest()))
        whole = image.reshape(shape).astype(np.int64) + low
        if prior is not None:
            whole = whole + np.rint(prior.scenes[-1].astype(np.float64) / step).astype(np.int64)
        values = from_grid(whole, step)
        values[~clear] = np.nan
        return Scene(values, clear)


@dataclass(frozen=True, kw_only=True)
class FieldCodec:
    """Codec that gives a scene's values and the bound to a codec of scientific fields."""

    codec: str = setting("sz3", says="Codec of fields", choices=("sz3", "zfp", "sperr", "lerc"))

    def fit(self, archive: Archive) -> None:
        """Return None: these codecs know no past.

        Parameters
        ----------
        archive : Archive
        """

    def encode(self, scene: Scene, prior: None, bound: float) -> bytes:
        """Return a stream of which every clear value is decoded within the bound.

        Parameters
        ----------
        scene : Scene
        prior : None
        bound : float

        Raises
        ------
        GaveUpError
            If none of the codec's settings keeps the bound.
        """
        grid = to_grid(scene, bound)
        filled = from_grid(
            _median_restored(np.where(scene.clear, _median_missing(grid.whole, scene.clear), 0), scene.clear), grid.step
        )
        values = np.where(scene.clear, scene.values, filled).astype(np.float32)
        kept = []
        for name, given in _FIELD_SETTINGS[self.codec](bound):
            data = _FIELD_ENCODERS[self.codec](values, name, given)
            decoded = _FIELD_DECODERS[self.codec](data, scene.values.shape)
            if np.abs(decoded.astype(np.float64) - values)[scene.clear].max(initial=0.0) <= bound:
                kept.append(data)
        if not kept:
            raise GaveUpError(f"No setting of {self.codec} keeps the bound.", given=bound)
        return sealed(_KIND_FIELD, _shared_head(scene) + _best(kept))

    def decode(self, stream: bytes, prior: None) -> Scene:
        """Return the scene of a stream.

        Parameters
        ----------
        stream : bytes
        prior : None
        """
        reader = opened(stream, _KIND_FIELD, "a scene of a codec of fields")
        shape, clear = _read_head(reader)
        values = _FIELD_DECODERS[self.codec](reader.rest(), shape).astype(np.float32).copy()
        values[~clear] = np.nan
        return Scene(values, clear)


# Bounds are kept on float32; some codecs round once more than they count with.
_SAFE = 1 - 1e-5


def _sz3_config(shape: tuple[int, ...], algorithm: str, bound: float) -> Any:
    pysz = _pysz()
    made = pysz.szConfig(shape)
    made.errorBoundMode = pysz.szErrorBoundMode.ABS
    made.absErrorBound = bound
    made.cmprAlgo = getattr(pysz.szAlgorithm, algorithm)
    return made


def _pysz() -> Any:
    try:
        import pysz
    except ImportError:
        raise missing_extra("pysz", "codecs", needed_for="SZ3") from None
    return pysz


def _zfpy() -> Any:
    try:
        import zfpy
    except ImportError:
        raise missing_extra("zfpy", "codecs", needed_for="zfp") from None
    return zfpy


def _sz3_decode(data: bytes, shape: tuple[int, ...]) -> np.ndarray:
    found = _pysz().sz.decompress(np.frombuffer(data, np.uint8).copy(), np.float32, shape)
    return np.asarray(found[0] if isinstance(found, tuple) else found).reshape(shape)


def _settings_of_sz3(bound: float) -> list[tuple[str, float]]:
    return [(name, bound * _SAFE) for name in ("INTERP", "INTERP_LORENZO", "LORENZO_REG", "NOPRED")]


def _settings_of_zfp(bound: float) -> list[tuple[str, float]]:
    # Its tolerance is a power of two, and its errors are far below it: larger ones may keep the bound as well.
    return [("tolerance", bound * 2.0**each) for each in range(5)]


def _settings_of_others(bound: float) -> list[tuple[str, float]]:
    return [("bound", bound * each) for each in (1.0, _SAFE)]


_FIELD_SETTINGS: dict[str, Callable[[float], list[tuple[str, float]]]] = {
    "sz3": _settings_of_sz3, "zfp": _settings_of_zfp, "sperr": _settings_of_others, "lerc": _settings_of_others,
}  # fmt: skip
_FIELD_ENCODERS: dict[str, Callable[[Values, str, float], bytes]] = {
    "sz3": lambda values, name, given: bytes(_pysz().sz.compress(values, _sz3_config(values.shape, name, given))[0]),
    "zfp": lambda values, name, given: bytes(_zfpy().compress_numpy(values, tolerance=given)),
    "sperr": lambda values, name, given: bytes(images().sperr_encode(values, level=given, mode="pwe")),
    "lerc": lambda values, name, given: bytes(images().lerc_encode(values, level=given)),
}
_FIELD_DECODERS: dict[str, Callable[[bytes, tuple[int, ...]], np.ndarray]] = {
    "sz3": _sz3_decode,
    "zfp": lambda data, shape: np.asarray(_zfpy().decompress_numpy(data)).reshape(shape),
    "sperr": lambda data, shape: np.asarray(images().sperr_decode(data)).reshape(shape),
    "lerc": lambda data, shape: np.asarray(images().lerc_decode(data)).reshape(shape),
}
