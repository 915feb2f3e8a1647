"""What codecs of scenes take and return: a scene, the archive of its place, and the three calls of a codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError

Floats = npt.NDArray[np.float64]
Values = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LARGEST_SIDE = 65_535
LARGEST_PIXELS = 1 << 26


@dataclass(frozen=True, eq=False)
class Scene:
    """One band of a place on one date.

    Parameters
    ----------
    values : float32 array (rows, columns)
        Finite wherever the scene is clear; what clouds hide may be anything.
    clear : bool array (rows, columns)
        False under clouds: not coded, not judged, NaN after decoding.

    Raises
    ------
    BadValueError
        If the arrays have other shapes or a clear value is not finite.
    """

    values: Values
    clear: Flags

    def __post_init__(self) -> None:
        values, clear = self.values, self.clear
        shape = np.shape(values)
        if len(shape) != 2 or np.shape(clear) != shape or not 0 < int(np.prod(shape)) <= LARGEST_PIXELS:
            raise BadValueError(
                "A scene is a table of pixels, and its mask has the same shape.",
                given=f"values {shape}, mask {np.shape(clear)}",
                allowed=f"rows and columns, {LARGEST_PIXELS:,} pixels at most",
            )  # fmt: skip
        if max(shape) > LARGEST_SIDE:
            raise BadValueError("A side of the scene is too long.", given=max(shape), allowed=f"up to {LARGEST_SIDE:,}")
        if np.asarray(values).dtype != np.float32 or np.asarray(clear).dtype != np.bool_:
            raise BadValueError(
                "A scene has float32 values and a mask of bool.",
                given=f"{np.asarray(values).dtype}, {np.asarray(clear).dtype}",
            )
        bad = ~np.isfinite(values) & clear
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise BadValueError(
                "A clear pixel must have a finite value.", given=float(values[row, column]),
                where=f"row {row}, column {column}", hint="mark it as not clear",
            )  # fmt: skip

    @property
    def raw_bytes(self) -> int:
        """Size of the clear values as float32, in bytes."""
        return 4 * int(self.clear.sum())


@dataclass(frozen=True, eq=False)
class Archive:
    """What was observed of one place, in time.

    Parameters
    ----------
    values : float32 array (dates, rows, columns)
    clear : bool array (dates, rows, columns)
    days : int64 array (dates,)
        Day of each date, never falling.

    Raises
    ------
    BadValueError
        If shapes differ, days fall or a clear value is not finite.
    """

    values: Values
    clear: Flags
    days: Ints

    def __post_init__(self) -> None:
        if np.ndim(self.values) != 3 or np.shape(self.clear) != np.shape(self.values):
            raise BadValueError(
                "An archive is a stack of scenes, and its masks have the same shape.",
                given=f"values {np.shape(self.values)}, masks {np.shape(self.clear)}",
            )
        if np.shape(self.days) != (len(self.values),) or (np.diff(self.days) < 0).any():
            raise BadValueError(
                "An archive has a day for each scene, and they never fall.", given=f"{len(self.days)} days",
                allowed=f"{len(self.values)} days in order",
            )  # fmt: skip
        for place in range(len(self.values)):
            self.scene(place)

    def scene(self, place: int) -> Scene:
        """Return one scene.

        Parameters
        ----------
        place : int
            Its number in time.
        """
        return Scene(self.values[place], self.clear[place])

    def before(self, day: int) -> Archive:
        """Return the scenes of earlier days alone.

        Parameters
        ----------
        day : int
        """
        of = self.days < day
        return Archive(self.values[of], self.clear[of], self.days[of])

    @property
    def clouded(self) -> Floats:
        """Share of each scene's pixels that are not clear, (dates,)."""
        found: Floats = 1 - self.clear.mean((1, 2))
        return found


class Codec(Protocol):
    """Compresses scenes of a place, with or without a prior.

    fit returns the prior of an archive, None where the codec knows no past.

    encode returns a stream of which every clear value is decoded within the bound.

    decode returns the scene; it needs the stream and the prior, and nothing else.
    """

    def fit(self, archive: Archive) -> Any: ...

    def encode(self, scene: Scene, prior: Any, bound: float) -> bytes: ...

    def decode(self, stream: bytes, prior: Any) -> Scene: ...


class Sketcher(Protocol):
    """Compresses scenes of a place within a budget of bytes.

    fit returns the prior of an archive.

    guess returns what the receiver has without any byte.

    encode returns a stream of at most ``budget`` bytes.

    decode returns the scene, all pixels clear.
    """

    def fit(self, archive: Archive) -> Any: ...

    def guess(self, prior: Any) -> Values: ...

    def encode(self, scene: Scene, prior: Any, budget: int) -> bytes: ...

    def decode(self, stream: bytes, prior: Any) -> Scene: ...
