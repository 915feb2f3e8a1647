"""What is known of a place before a scene is encoded: the clear scenes of its archive, and their median.

A prior has an identity, the first bytes of a checksum of all that it holds.  Streams name it, so that a scene is
never decoded with another place's prior, or with one that has learnt more since.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadFileError, BadValueError
from wavetank.training.scenes.grid import LARGEST_ALPHABET
from wavetank.training.scenes.interface import LARGEST_PIXELS, LARGEST_SIDE, Archive, Floats
from wavetank.training.scenes.mixing import decode_grid, encode_grid, mixture
from wavetank.training.scenes.stream import opened, packed, sealed

KIND = 3
MOST_SCENES = 255
# A scene belongs to the prior if clouds hide at most this share of it.
CLEAR_ENOUGH = 0.02
IDENTITY_BYTES = 4


@dataclass(frozen=True, eq=False)
class Prior:
    """The clear scenes of a place's archive, in whole steps.

    Parameters
    ----------
    whole : int32 array (scenes, rows, columns)
        The scenes, oldest first.
    step : float
        A float32: how finely they are kept.
    """

    whole: npt.NDArray[np.int32]
    step: float

    @classmethod
    def fit(cls, archive: Archive, *, step: float = 0.005, scenes: int = 64) -> Prior:
        """Return the prior of an archive; nothing but what the archive holds goes into it.

        Parameters
        ----------
        archive : Archive
            Of the place, up to the day at which the prior is made.
        step : float
            How finely scenes are kept, in the unit of the values.
        scenes : int
            Most scenes to keep: the last ones.

        Raises
        ------
        BadValueError
            If no scene is clear enough, or the step is no positive number or too fine.
        """
        step = float(np.float32(step))
        if not (np.isfinite(step) and step > 0) or not 1 <= scenes <= MOST_SCENES:
            raise BadValueError(
                "A prior keeps some scenes in steps of a positive size.", given=f"step {step}, {scenes} scenes",
                allowed=f"1 to {MOST_SCENES} scenes",
            )  # fmt: skip
        chosen = np.flatnonzero(archive.clouded <= CLEAR_ENOUGH)[-scenes:]
        if not chosen.size:
            raise BadValueError(
                "No scene of the archive is clear enough for a prior.", given=f"{len(archive.days)} scenes",
                allowed=f"clouds over at most {CLEAR_ENOUGH:.0%}", hint="encode without a prior: prior=None",
            )  # fmt: skip
        clear = archive.clear[chosen]
        values = np.where(clear, archive.values[chosen], np.nan).astype(np.float64)
        with np.errstate(all="ignore"):
            typical = np.nanmedian(np.where(clear.any(0), values, 0.0), axis=0)
        whole = np.rint(np.where(clear, values, typical) / step)
        if np.ptp(whole) >= LARGEST_ALPHABET or np.abs(whole).max() >= 1 << 30:
            raise BadValueError(
                "The step is too fine for the range of the archive's values.", given=step,
                allowed=f"a range of less than {LARGEST_ALPHABET:,} steps",
            )  # fmt: skip
        return cls(whole.astype(np.int32), step)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (self.whole.shape[1], self.whole.shape[2])

    @functools.cached_property
    def planes(self) -> Floats:
        """The median of all scenes, then each scene, in the unit of the values: (1 + scenes, rows, columns)."""
        scenes = self.whole * self.step
        found: Floats = np.concatenate([np.median(scenes, axis=0)[None], scenes])
        return found

    @functools.cached_property
    def identity(self) -> bytes:
        """Four bytes of a checksum of all that the prior holds."""
        digest = hashlib.sha256(struct.pack("<IIIf", *self.whole.shape, self.step))
        digest.update(np.ascontiguousarray(self.whole, "<i4").tobytes())
        return digest.digest()[:IDENTITY_BYTES]

    def to_bytes(self) -> bytes:
        """Return the prior as a stream: each scene without a prior, exactly as it is kept."""
        body = struct.pack("<f", self.step) + packed(*self.whole.shape)
        empty, clear = np.zeros((0, *self.shape)), np.ones(self.shape, np.bool_)
        for each in self.whole.astype(np.int64):
            low, alphabet = int(each.min()), int(np.ptp(each)) + 1
            data = encode_grid(each, clear, low, alphabet, empty, mixture(0))
            body += packed(low, alphabet, len(data)) + data
        return sealed(KIND, body)

    @classmethod
    def from_bytes(cls, stream: bytes) -> Prior:
        """Return the prior of a stream.

        Parameters
        ----------
        stream : bytes

        Raises
        ------
        BadFileError
            If the stream is damaged, cut off or of another kind.
        """
        reader = opened(stream, KIND, "a prior")
        step = reader.real(1e-30, 1e30, "step")
        scenes = reader.number(1, MOST_SCENES, "number of scenes")
        shape = tuple(reader.number(1, LARGEST_SIDE, "side") for _ in range(2))
        if shape[0] * shape[1] > LARGEST_PIXELS:
            raise BadFileError("The stream has an impossible size.", given=f"{shape[0]} by {shape[1]}")
        whole = []
        for _ in range(scenes):
            low = reader.number(-(1 << 30), 1 << 30, "lowest value")
            alphabet = reader.number(1, LARGEST_ALPHABET, "range of values")
            data = reader.take(reader.number(0, 1 << 30, "length"))
            empty = np.zeros((0, *shape))
            values, _ = decode_grid(data, (shape[0], shape[1]), False, low, alphabet, empty, mixture(0))
            whole.append(values.astype(np.int32))
        return cls(np.stack(whole), step)
