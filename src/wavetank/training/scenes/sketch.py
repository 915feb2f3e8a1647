"""A scene within a budget of bytes: what the past says, and the broadest features of the rest.

The receiver's picture without any byte is the median of the place's past.  A sketch may first spend some bytes on
fitting past scenes to the scene; what is left goes into the coefficients of a cosine transform of the difference, the
broadest first.  The transform keeps lengths, and a coefficient is kept only as a value nearer to it than zero is, so
that each one more brings the picture nearer.  A sketch can be cut: every beginning of its coefficients is a sketch
too, and nothing needs to be encoded anew for a slower link.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.errors import BadFileError, BadValueError
from wavetank.settings import setting
from wavetank.sim.compiled import compiled
from wavetank.training.scenes.earth_compression import fitted
from wavetank.training.scenes.interface import Archive, Floats, Ints, Scene, Values
from wavetank.training.scenes.prior import Prior
from wavetank.training.scenes.range_coder import (
    CODE,
    PLACE,
    RANGE,
    decode_interval,
    encode_interval,
    finish,
    new_state,
    reading_state,
)

HEAD_BYTES = 4
_VERSION = 0xE2
# A byte says how many quarters of an octave a step is larger than that of the prior.
_STEPS = 96
_MOST_PLANES = 4
_SYMBOLS = 66
_ESCAPE = _SYMBOLS - 1
# A level beyond the symbols follows as it is, in 16 bits.
_LARGE = 1 << 16
_CONTEXTS = 12


@functools.lru_cache(maxsize=8)
def _order(rows: int, columns: int) -> Ints:
    """Return the coefficients of a transform from the broadest to the finest, as places in the flat table."""
    up, aside = np.mgrid[:rows, :columns]
    broad = (up * columns) ** 2 + (aside * rows) ** 2
    return np.argsort(broad.ravel(), kind="stable").astype(np.int64)


@compiled
def _context(levels, at, columns):  # type: ignore[no-untyped-def]
    """Return the context of a coefficient: how large those before it in both directions are, and how fine it is."""
    row, column = at // columns, at % columns
    near = 0
    if row > 0:
        near += 2 * min(abs(levels[at - columns]), 4)
        if row > 1:
            near += min(abs(levels[at - 2 * columns]), 4)
    if column > 0:
        near += 2 * min(abs(levels[at - 1]), 4)
        if column > 1:
            near += min(abs(levels[at - 2]), 4)
    if near == 0:
        size = 0
    elif near <= 2:
        size = 1
    elif near <= 5:
        size = 2
    else:
        size = 3
    return 3 * size + (0 if row + column < 6 else (1 if row + column < 24 else 2))


@compiled
def _initial_counts():  # type: ignore[no-untyped-def]
    """Return counts with which small levels are likely before any is seen, the more the finer they are."""
    counts = np.ones((_CONTEXTS, _SYMBOLS), np.int64)
    for context in range(_CONTEXTS):
        size, fine = context // 3, context % 3
        counts[context, 0] = 100 * (1 + fine) if size == 0 else 64
        counts[context, 1] = 32
        counts[context, 2] = 32
        if size >= 2:
            for symbol in range(3, 7):
                counts[context, symbol] = 20
    return counts


@compiled
def _symbol_of(level):  # type: ignore[no-untyped-def]
    """Return the symbol of a level: zero, then plus and minus one, two and so on."""
    if level == 0:
        return 0
    return min(2 * abs(level) - (1 if level > 0 else 0), _ESCAPE)


@compiled
def _encode_levels(levels, order, count, columns, out):  # type: ignore[no-untyped-def]
    """Encode the first levels in order; larger ones than there are symbols for are cut to the largest."""
    state = new_state()
    counts = _initial_counts()
    for place in range(count):
        at = order[place]
        context = _context(levels, at, columns)
        symbol = _symbol_of(levels[at])
        low, total = np.int64(0), np.int64(0)
        for each in range(_SYMBOLS):
            if each < symbol:
                low += counts[context, each]
            total += counts[context, each]
        encode_interval(state, out, low, counts[context, symbol], total)
        counts[context, symbol] += 40
        if symbol == _ESCAPE:
            encode_interval(state, out, levels[at] + _LARGE // 2, 1, _LARGE)
    return finish(state, out)


@compiled
def _ends(state, data, total):  # type: ignore[no-untyped-def]
    """Return the least and the largest number below ``total`` that the bytes allow, whatever stood behind them."""
    step = state[RANGE] // np.uint64(total)
    code = state[CODE]
    missing = np.int64(state[PLACE]) - data.size
    if missing >= 8:
        return np.int64(0), np.int64(total)
    unknown = np.uint64(0)
    if missing > 0:
        unknown = (np.uint64(1) << np.uint64(8 * missing)) - np.uint64(1)
    if code > ~unknown:
        return np.int64(0), np.int64(total)
    return np.int64(code // step), np.int64((code + unknown) // step)


@compiled
def _decode_levels(data, order, count, columns, levels):  # type: ignore[no-untyped-def]
    """Decode levels as far as the bytes decide them, whatever might have stood behind; return how many."""
    state = reading_state(data)
    counts = _initial_counts()
    for place in range(count):
        at = order[place]
        context = _context(levels, at, columns)
        total = counts[context].sum()
        first, last = _ends(state, data, total)
        low, symbol = np.int64(0), 0
        while symbol < _ESCAPE and low + counts[context, symbol] <= first:
            low += counts[context, symbol]
            symbol += 1
        if last >= low + counts[context, symbol]:
            return place
        decode_interval(state, data, low, counts[context, symbol], total)
        counts[context, symbol] += 40
        if symbol < _ESCAPE:
            levels[at] = (symbol + 1) // 2 if symbol % 2 else -(symbol // 2)
        else:
            first, last = _ends(state, data, _LARGE)
            if last != first or first >= _LARGE:
                return place
            decode_interval(state, data, first, 1, _LARGE)
            levels[at] = first - _LARGE // 2
    return count


def _transform(values: Floats) -> Floats:
    from scipy.fft import dctn

    found: Floats = dctn(values, norm="ortho")
    return found


def _restored(values: Floats) -> Floats:
    from scipy.fft import idctn

    found: Floats = idctn(values, norm="ortho")
    return found


def _step(code: int, prior: Prior) -> float:
    return float(prior.step * 2.0 ** (code / 4))


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """Codec of scenes within a budget of bytes."""

    history: str = setting("own", says="Past of this place, or none but the mean", choices=("own", "none"))

    def fit(self, archive: Archive) -> Prior:
        """Return the prior of an archive; without a past, one that holds nothing but the mean and the shape.

        Parameters
        ----------
        archive : Archive
        """
        prior = Prior.fit(archive)
        if self.history == "own":
            return prior
        return Prior(np.full_like(prior.whole[:1], int(np.rint(prior.whole.mean()))), prior.step)

    def guess(self, prior: Prior) -> Values:
        """Return what the receiver has without any byte.

        Parameters
        ----------
        prior : Prior
        """
        return prior.planes[0].astype(np.float32)

    def encode(self, scene: Scene, prior: Prior, budget: int) -> bytes:
        """Return the sketch of at most ``budget`` bytes whose clear values have the least squared error of those tried.

        Parameters
        ----------
        scene : Scene
            What clouds hide is sketched as if it were as before; the mask is not sent.
        prior : Prior
        budget : int
            At least the 4 bytes of the head.

        Raises
        ------
        BadValueError
            If the budget does not hold the head, or the shape is not the prior's.
        """
        if prior.shape != scene.values.shape:
            raise BadValueError("The prior is of a place of another shape.", given=str(scene.values.shape),
                                allowed=str(prior.shape))  # fmt: skip
        if budget < HEAD_BYTES:
            raise BadValueError("The budget does not hold the head of a sketch.", given=budget,
                                allowed=f"{HEAD_BYTES} bytes or more")  # fmt: skip
        best, least = _sealed(b"", prior), np.inf
        for fit in _fits(scene, prior):
            side, picture = _side(fit), _picture(fit, prior)
            room = budget - HEAD_BYTES - len(side) - 1
            error = np.where(scene.clear, scene.values - picture, 0.0)
            if fit is None and (error**2).sum() < least:
                least = float((error**2).sum())
            if room < 0:
                continue
            wanted, nearest = _transform(error), np.inf
            for code in range(_STEPS - 1, -1, -1):
                # A step that leaves everything zero is none, and one of which few levels fit is too fine.
                top = float(np.abs(wanted).max()) / _step(code, prior)
                if top < 0.6 or top > _LARGE // 2 - 1:
                    continue
                data, kept = _levels_within(wanted, _step(code, prior), room)
                left = float((wanted**2).sum()) - kept
                if left < least:
                    best, least = _sealed(side + bytes([code]) + data, prior), left
                nearest = min(nearest, left)
                if left > 1.5 * nearest:
                    break
        return best

    def decode(self, stream: bytes, prior: Prior) -> Scene:
        """Return the scene of a sketch, whole or cut; all pixels are clear.

        Parameters
        ----------
        stream : bytes
        prior : Prior

        Raises
        ------
        BadFileError
            If the sketch is foreign, damaged, or of another prior.
        """
        body = _opened(stream, prior)
        picture = _picture(None, prior)
        if body:
            fit, place = _read_side(body, prior)
            picture = _picture(fit, prior)
            if place < len(body):
                levels = np.zeros(picture.size, np.int64)
                data = np.frombuffer(body[place + 1 :], np.uint8).copy()
                _decode_levels(data, _order(*prior.shape), levels.size, prior.shape[1], levels)
                scaled: Floats = levels.reshape(prior.shape).astype(np.float64) * _step(body[place], prior)
                picture = picture + _restored(scaled)
        return Scene(picture.astype(np.float32), np.ones(prior.shape, np.bool_))


@dataclass(frozen=True, kw_only=True)
class Guess(Sketch):
    """Codec that sends the head of a sketch and no more: the receiver sees the median of the place's past."""

    def encode(self, scene: Scene, prior: Prior, budget: int) -> bytes:
        """Return the head.

        Parameters
        ----------
        scene : Scene
        prior : Prior
        budget : int
        """
        return super().encode(scene, prior, min(budget, HEAD_BYTES))


def cut(stream: bytes, prior: Prior, budget: int) -> bytes:
    """Return the beginning of a sketch that fits a smaller budget; it is not encoded anew.

    Parameters
    ----------
    stream : bytes
    prior : Prior
    budget : int
        At least the 4 bytes of the head.

    Raises
    ------
    BadValueError
        If the budget does not hold the head.
    """
    if budget < HEAD_BYTES:
        raise BadValueError("The budget does not hold the head of a sketch.", given=budget,
                            allowed=f"{HEAD_BYTES} bytes or more")  # fmt: skip
    body = _opened(stream, prior)
    kept = body[: budget - HEAD_BYTES]
    # Side information that is cut in two says nothing.
    if kept and len(kept) < 1 + (body[0] + 2 * (body[0] + 1) if body[0] else 0):
        kept = b""
    return _sealed(kept, prior)


def _sealed(body: bytes, prior: Prior) -> bytes:
    """Return a sketch with its head: version, a byte of the prior's identity, and 16 bits of a checksum of both."""
    check = zlib.crc32(prior.identity + body) & 0xFFFF
    return bytes([_VERSION, prior.identity[0]]) + check.to_bytes(2, "little") + body


def _opened(stream: bytes, prior: Prior) -> bytes:
    if len(stream) < HEAD_BYTES or stream[0] != _VERSION:
        raise BadFileError("This is no sketch of a scene, or one of another version.", given=str(stream[:1]))
    body = stream[HEAD_BYTES:]
    if stream != _sealed(body, prior):
        raise BadFileError(
            "The sketch is damaged or cut off, or it is of another prior.", given=f"{len(stream)} bytes",
            hint="cut sketches with wavetank.training.scenes.sketch.cut",
        )  # fmt: skip
    return body


# Planes and weights, or None for the median as it is.
Fit = Any


def _fits(scene: Scene, prior: Prior) -> list[Fit]:
    """Return the fits that are tried: the median as it is, and the median and up to three scenes fitted."""
    return [None, *(fitted(scene, prior, most) for most in range(min(_MOST_PLANES, len(prior.planes) - 1)))]


def _side(fit: Fit) -> bytes:
    if fit is None:
        return b"\0"
    chosen, weights = fit
    return bytes([len(chosen), *chosen]) + weights.astype("<f2").tobytes()


def _read_side(body: bytes, prior: Prior) -> tuple[Fit, int]:
    count = body[0]
    end = 1 + (count + 2 * (count + 1) if count else 0)
    if count > _MOST_PLANES or end > len(body):
        raise BadFileError("The sketch has impossible side information.", given=count)
    if not count:
        return None, end
    chosen = list(body[1 : 1 + count])
    weights = np.frombuffer(body[1 + count : end], "<f2").astype(np.float64)
    if max(chosen) >= len(prior.planes) or not np.isfinite(weights).all():
        raise BadFileError("The sketch has impossible side information.", given=str(chosen))
    return (chosen, weights), end


def _picture(fit: Fit, prior: Prior) -> Floats:
    if fit is None:
        found: Floats = prior.planes[0]
        return found
    chosen, weights = fit
    picture = np.full(prior.shape, weights[0])
    for weight, each in zip(weights[1:], chosen, strict=True):
        picture = picture + weight * prior.planes[each]
    return picture


def _levels_within(wanted: Floats, step: float, room: int) -> tuple[bytes, float]:
    """Return the first bytes of the levels of a step, and by how much what they decide lowers the squared error."""
    levels = (np.sign(wanted) * np.floor(np.abs(wanted) / step + 0.4)).astype(np.int64).ravel()
    order = _order(*wanted.shape)
    # Long runs of zeros take less than a hundredth of a bit each, but no more than these are worth looking at.
    count = min(levels.size, 64 + 400 * room)
    out = np.zeros(64 + 4 * count, np.uint8)
    size = min(_encode_levels(levels, order, count, wanted.shape[1], out), room)
    sent = np.zeros(levels.size, np.int64)
    _decode_levels(out[:size].copy(), order, levels.size, wanted.shape[1], sent)
    flat = wanted.ravel()
    return out[:size].tobytes(), float((flat**2 - (flat - sent * step) ** 2).sum())
