"""Coding whole numbers on a grid pixel by pixel, each under a mixture of regressions on neighbours and on the prior.

Every expert predicts a pixel from what is decoded: one is the median predictor of JPEG-LS, the others fit weights to
a window of decoded pixels around it, on neighbours alone or on neighbours and planes of a prior, of which the pixels
not yet decoded are known too.  Around its prediction an expert has a Student distribution with four degrees of
freedom, in several widths of the errors that it made nearby.  Experts and widths are mixed by how well they did, with
a share that keeps all of them in play; the mixture is the distribution under which the range coder codes the pixel.

The decoder repeats every step.  So that it finds the same numbers on other processors, only the four operations and
square roots take part, in one order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wavetank.sim.compiled import compiled
from wavetank.training.scenes.interface import Flags, Floats, Ints
from wavetank.training.scenes.range_coder import (
    TOTAL,
    decode_interval,
    decode_target,
    encode_interval,
    finish,
    new_state,
    reading_state,
)

# Features of a pixel: eight of decoded neighbours, then one for each plane.
WEST, NORTH, NORTH_WEST, NORTH_EAST, WEST_2, NORTH_2, KNIGHT, CONSTANT, PLANES = range(9)

_LEAST = 1e-9


class Mixture(NamedTuple):
    """What a mixture is made of; encoder and decoder must have the same.

    Parameters
    ----------
    experts : int64 array (experts, features)
        Features of each expert, filled up with -1; an expert without any is the median predictor.
    radius : int
        Of the window that weights are fitted to, in pixels.
    ridge : float
        What keeps weights small, in squared quantisation steps.
    widths : float64 array (widths,)
        Multiples of an expert's mean error nearby.
    share : float
        Weight that is dealt out anew, equally, after each pixel.
    """

    experts: Ints
    radius: int
    ridge: float
    widths: Floats
    share: float


def mixture(planes: int, *, own: int = 0, radius: int = 10, ridge: float = 1.0) -> Mixture:
    """Return the mixture for a number of planes of the prior.

    Parameters
    ----------
    planes : int
        All planes; 0 without a prior.
    own : int
        How many of the last planes only the largest expert has.
    radius, ridge : int, float
        As for :class:`Mixture`.
    """
    neighbours = list(range(CONSTANT + 1))
    few = [WEST, NORTH, NORTH_WEST, NORTH_EAST, CONSTANT]
    lists: list[list[int]] = [[], few, neighbours]
    if planes:
        shared = [PLANES + each for each in range(planes - own)]
        lists += [[*few, *shared], [*neighbours, *shared, *range(PLANES + planes - own, PLANES + planes)]]
    experts = np.full((len(lists), max(map(len, lists))), -1, np.int64)
    for row, each in zip(experts, lists, strict=True):
        row[: len(each)] = each
    return Mixture(experts, radius, ridge, np.array([0.4, 0.7, 1.0, 1.5]), 0.005)


@compiled
def _features(values, planes, row, column, found):  # type: ignore[no-untyped-def]
    """Fill in the features of a pixel from the rows above and what stands left of it."""
    columns = values.shape[1]
    if column > 0:
        west = values[row, column - 1]
    elif row > 0:
        west = values[row - 1, 0]
    elif planes.shape[0] > 0:
        west = planes[0, 0, 0]
    else:
        west = 0.0
    north = values[row - 1, column] if row > 0 else west
    found[WEST] = west
    found[NORTH] = north
    found[NORTH_WEST] = values[row - 1, column - 1] if row > 0 and column > 0 else north
    found[NORTH_EAST] = values[row - 1, column + 1] if row > 0 and column + 1 < columns else north
    found[WEST_2] = values[row, column - 2] if column > 1 else west
    found[NORTH_2] = values[row - 2, column] if row > 1 else north
    found[KNIGHT] = values[row - 2, column + 1] if row > 1 and column + 1 < columns else found[NORTH_2]
    found[CONSTANT] = 1.0
    for each in range(planes.shape[0]):
        found[PLANES + each] = planes[each, row, column]


@compiled
def _solve(matrix, right, size, found):  # type: ignore[no-untyped-def]
    """Solve by Cholesky's method in place; the matrix is symmetric and has a ridge."""
    for row in range(size):
        for column in range(row + 1):
            left = matrix[row, column]
            for each in range(column):
                left -= matrix[row, each] * matrix[column, each]
            if row == column:
                matrix[row, row] = np.sqrt(max(left, _LEAST))
            else:
                matrix[row, column] = left / matrix[column, column]
    for row in range(size):
        left = right[row]
        for each in range(row):
            left -= matrix[row, each] * found[each]
        found[row] = left / matrix[row, row]
    for row in range(size - 1, -1, -1):
        left = found[row]
        for each in range(row + 1, size):
            left -= matrix[each, row] * found[each]
        found[row] = left / matrix[row, row]


@compiled
def median_of_jpegls(west, north, north_west):  # type: ignore[no-untyped-def]
    """Return the prediction of JPEG-LS: the median of west, north and the plane through the three."""
    high, low = max(west, north), min(west, north)
    if north_west >= high:
        return low
    if north_west <= low:
        return high
    return west + north - north_west


@compiled
def _fitted(values, features, known, row, column, experts, expert, radius, ridge, matrix, right, line, found):  # type: ignore[no-untyped-def]
    """Return an expert's prediction from weights that fit the window; neighbours and planes count from a middle."""
    size = 0
    while size < experts.shape[1] and experts[expert, size] >= 0:
        size += 1
    for one in range(size):
        right[one] = 0.0
        for other in range(one + 1):
            matrix[one, other] = 0.0
        matrix[one, one] = ridge
    for up in range(radius + 1):
        if up > row:
            break
        for aside in range(-radius, radius + 1):
            if up == 0 and aside >= 0:
                break
            at = column + aside
            if at < 0 or at >= values.shape[1] or not known[row - up, at]:
                continue
            weight = 1.0 / np.sqrt(np.float64(up * up + aside * aside))
            other_features = features[row - up, at]
            middle = (other_features[WEST] + other_features[NORTH]) * 0.5
            for one in range(size):
                which = experts[expert, one]
                line[one] = 1.0 if which == CONSTANT else other_features[which] - middle
            target = values[row - up, at] - middle
            for one in range(size):
                scaled = line[one] * weight
                right[one] += scaled * target
                for other in range(one + 1):
                    matrix[one, other] += scaled * line[other]
    _solve(matrix, right, size, found)
    own = features[row, column]
    middle = (own[WEST] + own[NORTH]) * 0.5
    predicted = middle
    for one in range(size):
        which = experts[expert, one]
        predicted += found[one] * (1.0 if which == CONSTANT else own[which] - middle)
    return predicted


@compiled
def _nearby(errors, known, row, column):  # type: ignore[no-untyped-def]
    """Return the mean error of an expert on decoded pixels nearby, near ones counting more."""
    total, weights = 0.6, 2.0
    for up in range(4):
        if up > row:
            break
        for aside in range(-3, 4):
            if up == 0 and aside >= 0:
                break
            at = column + aside
            if at < 0 or at >= errors.shape[1] or not known[row - up, at]:
                continue
            weight = 1.0 / (up * up + aside * aside)
            total += weight * errors[row - up, at]
            weights += weight
    return total / weights + 0.05


@compiled
def _below(value, centres, scales, widths, weights):  # type: ignore[no-untyped-def]
    """Return the probability that the mixture gives to what is smaller than ``value``."""
    total = 0.0
    for expert in range(centres.size):
        for width in range(widths.size):
            part = (value - centres[expert]) / (2.0 * scales[expert] * widths[width])
            part = part / np.sqrt(1.0 + part * part)
            total += weights[expert, width] * (0.5 + 0.75 * part - 0.25 * part * part * part)
    return total


@compiled
def _counts_below(symbol, low, alphabet, centres, scales, widths, weights):  # type: ignore[no-untyped-def]
    """Return the counts below a symbol: the mixture's share of the total, and two for each symbol whatever it says."""
    if symbol == 0:
        return np.int64(0)
    if symbol == alphabet:
        return np.int64(TOTAL)
    share = _below(low + symbol - 0.5, centres, scales, widths, weights)
    share = min(max(share, 0.0), 1.0)
    return 2 * symbol + np.int64(share * (TOTAL - 2 * alphabet))


@compiled
def _learn(value, centres, scales, widths, weights, share):  # type: ignore[no-untyped-def]
    """Weigh experts and widths by the probability that each gave to what came."""
    total = 0.0
    for expert in range(centres.size):
        for width in range(widths.size):
            unit = 2.0 * scales[expert] * widths[width]
            high = (value + 0.5 - centres[expert]) / unit
            high = high / np.sqrt(1.0 + high * high)
            low = (value - 0.5 - centres[expert]) / unit
            low = low / np.sqrt(1.0 + low * low)
            given = 0.75 * (high - low) - 0.25 * (high * high * high - low * low * low)
            weights[expert, width] *= given + 1e-6
            total += weights[expert, width]
    for expert in range(centres.size):
        for width in range(widths.size):
            weights[expert, width] = (1.0 - share) * weights[expert, width] / total + share / weights.size


@compiled
def _code(values, clear, low, alphabet, planes, experts, radius, ridge, widths, share, state, data, decoding):  # type: ignore[no-untyped-def]
    """Encode the values into ``data``, or decode them from it into ``values``."""
    rows, columns = values.shape
    size = PLANES + planes.shape[0]
    count = experts.shape[0]
    features = np.zeros((rows, columns, size))
    known = np.zeros((rows, columns), np.bool_)
    errors = np.zeros((count, rows, columns))
    weights = np.full((count, widths.size), 1.0 / (count * widths.size))
    centres, scales = np.zeros(count), np.zeros(count)
    matrix, right, line, found = np.zeros((size, size)), np.zeros(size), np.zeros(size), np.zeros(size)
    for row in range(rows):
        for column in range(columns):
            own = features[row, column]
            _features(values, planes, row, column, own)
            if not clear[row, column]:
                # Hidden pixels are neighbours of others: they get what is expected of them.
                if planes.shape[0] > 0:
                    values[row, column] = planes[0, row, column]
                else:
                    values[row, column] = (own[WEST] + own[NORTH]) * 0.5
                continue
            for expert in range(count):
                if experts[expert, 0] < 0:
                    centres[expert] = median_of_jpegls(own[WEST], own[NORTH], own[NORTH_WEST])
                else:
                    centres[expert] = _fitted(
                        values, features, known, row, column, experts, expert, radius, ridge, matrix, right, line, found
                    )
                scales[expert] = _nearby(errors[expert], known, row, column)
            if decoding:
                target = decode_target(state, TOTAL)
                symbol, above = np.int64(0), np.int64(alphabet)
                while above - symbol > 1:
                    middle = (symbol + above) // 2
                    if _counts_below(middle, low, alphabet, centres, scales, widths, weights) <= target:
                        symbol = middle
                    else:
                        above = middle
            else:
                symbol = np.int64(values[row, column]) - low
            begin = _counts_below(symbol, low, alphabet, centres, scales, widths, weights)
            end = _counts_below(symbol + 1, low, alphabet, centres, scales, widths, weights)
            if decoding:
                decode_interval(state, data, begin, end - begin, TOTAL)
                values[row, column] = symbol + low
            else:
                encode_interval(state, data, begin, end - begin, TOTAL)
            known[row, column] = True
            for expert in range(count):
                errors[expert, row, column] = abs(values[row, column] - centres[expert])
            _learn(values[row, column], centres, scales, widths, weights, share)


@compiled
def _code_mask(clear, state, data, decoding):  # type: ignore[no-untyped-def]
    """Code which pixels are clear, each in the context of four that came before."""
    rows, columns = clear.shape
    counts = np.full((16, 2), 1, np.int64)
    for row in range(rows):
        for column in range(columns):
            context = 0
            if column > 0 and clear[row, column - 1]:
                context += 1
            if row > 0:
                if clear[row - 1, column]:
                    context += 2
                if column > 0 and clear[row - 1, column - 1]:
                    context += 4
                if column + 1 < columns and clear[row - 1, column + 1]:
                    context += 8
            hidden, shown = counts[context]
            if decoding:
                bit = decode_target(state, hidden + shown) >= hidden
                clear[row, column] = bit
            else:
                bit = clear[row, column]
            if bit:
                begin, length = hidden, shown
            else:
                begin, length = np.int64(0), hidden
            if decoding:
                decode_interval(state, data, begin, length, hidden + shown)
            else:
                encode_interval(state, data, begin, length, hidden + shown)
            counts[context, np.int64(bit)] += 16
            if counts[context].sum() > 1 << 16:
                counts[context] = (counts[context] + 1) // 2


def encode_mask(clear: Flags) -> bytes:
    """Return the bytes of a mask.

    Parameters
    ----------
    clear : bool array (rows, columns)
    """
    state, data = new_state(), np.zeros(64 + 4 * clear.size, np.uint8)
    _code_mask(clear.copy(), state, data, False)
    return data[: finish(state, data)].tobytes()


def decode_mask(data: bytes, shape: tuple[int, int]) -> Flags:
    """Return the mask of what :func:`encode_mask` made.

    Parameters
    ----------
    data : bytes
    shape : tuple of int
    """
    read = np.frombuffer(data, np.uint8).copy()
    clear = np.ones(shape, np.bool_)
    _code_mask(clear, reading_state(read), read, True)
    return clear


def encode_grid(whole: Ints, clear: Flags, low: int, alphabet: int, planes: Floats, made: Mixture) -> bytes:
    """Return the bytes of whole numbers on a grid.

    Parameters
    ----------
    whole : int64 array (rows, columns)
        From ``low`` up to and without ``low + alphabet`` wherever ``clear``.
    clear : bool array (rows, columns)
        Which pixels are coded; the mask itself is coded if any is not.
    low, alphabet : int
    planes : float64 array (planes, rows, columns)
        In quantisation steps.
    made : Mixture
    """
    state = new_state()
    data = np.zeros(64 + 5 * whole.size, np.uint8)
    if not clear.all():
        _code_mask(clear.copy(), state, data, False)
    _code(whole.astype(np.float64), clear, low, alphabet, planes, *made, state, data, False)
    return data[: finish(state, data)].tobytes()


def decode_grid(
    data: bytes, shape: tuple[int, int], masked: bool, low: int, alphabet: int, planes: Floats, made: Mixture
) -> tuple[Floats, Flags]:
    """Return whole numbers, as floats, and the mask of what :func:`encode_grid` made; what is hidden is NaN.

    Parameters
    ----------
    data : bytes
    shape : tuple of int
    masked : bool
        Whether a mask is there.
    low, alphabet, planes, made
        As given to the encoder.
    """
    read = np.frombuffer(data, np.uint8).copy()
    state = reading_state(read)
    clear = np.ones(shape, np.bool_)
    if masked:
        _code_mask(clear, state, read, True)
    values = np.zeros(shape)
    _code(values, clear, low, alphabet, planes, *made, state, read, True)
    values[~clear] = np.nan
    return values, clear
