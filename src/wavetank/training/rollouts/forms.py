"""The forms of new weights as systems of a study."""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.settings import setting
from wavetank.training.rollouts.delta import DENSE, FORMATS, Words, decode, encode


@dataclass(frozen=True, kw_only=True)
class DeltaForm:
    """A form of new weights.

    Studies call ``encode(before, after) -> bytes`` and ``decode(stream, before) -> after``; weights are words of 16
    bits.
    """

    form: str = setting(DENSE, says="How places and values are written", choices=tuple(FORMATS))

    def encode(self, before: Words, after: Words) -> bytes:
        """Return what makes the new weights of the old ones.

        Parameters
        ----------
        before, after : uint16 array (n,)
        """
        return encode(before, after, self.form)

    def decode(self, data: bytes, before: Words) -> Words:
        """Return the new weights.

        Parameters
        ----------
        data : bytes
        before : uint16 array (n,)
        """
        return decode(data, before)
