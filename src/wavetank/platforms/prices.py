"""What accelerators cost: instances of a cloud with their devices and their price per hour.

A list ships with Wavetank (``prices.toml``, with its source); :func:`read_offers` reads one of the user's own.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.files import read_text
from wavetank.platforms.catalog import as_device

_LARGEST_BYTES = 10_000_000
_COLUMNS = ("instance", "device", "gpus", "usd_per_hour")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """An instance that can be rented.

    Parameters
    ----------
    name : str
    device : str
        A shipped device, by name.
    gpus : int
        Devices of the instance; they share one node.
    usd_per_hour : float
        Price of the whole instance.
    available : int, optional
        How many can be had at most; None for any number.

    Raises
    ------
    UnknownNameError
        If there is no such device.
    BadValueError
        If a number is not positive.
    """

    name: str
    device: str
    gpus: int
    usd_per_hour: float
    available: int | None = None

    def __post_init__(self) -> None:
        as_device(self.device)
        for name, value, least in (("gpus", self.gpus, 1), ("available", self.available, 0)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise BadValueError(
                    f"{name} of the instance {self.name!r} is out of range.", given=value, allowed=f">= {least}"
                )
        if not 0 < self.usd_per_hour < math.inf:
            raise BadValueError(
                f"The price of the instance {self.name!r} is out of range.", given=self.usd_per_hour,
                allowed="a number above 0, USD per hour",
            )  # fmt: skip


@functools.cache
def shipped_offers() -> tuple[Offer, ...]:
    """Return the offers that ship with Wavetank, in the order of their list."""
    table = tomllib.loads(Path(__file__).with_name("prices.toml").read_text(encoding="utf-8"))
    return tuple(Offer(name=name, **values) for name, values in table["instances"].items())


def read_offers(path: str | Path) -> tuple[Offer, ...]:
    """Read offers from a CSV file.

    Parameters
    ----------
    path : str or Path
        Columns ``instance``, ``device``, ``gpus``, ``usd_per_hour`` and, if there are bounds, ``available`` (empty: any
        number).

    Raises
    ------
    BadFileError
        If the file cannot be read, has no rows, or a row is wrong; the error names the line.
    """
    text = read_text(Path(path), largest_bytes=_LARGEST_BYTES)
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), skipinitialspace=True)
    missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise BadFileError(
            f"Columns are missing: {', '.join(missing)}.", given=rows.fieldnames or "an empty file",
            allowed=f"{', '.join(_COLUMNS)}, available", where=str(path),
        )  # fmt: skip
    found: dict[str, Offer] = {}
    for number, row in enumerate(rows, start=2):
        where = f"{path}, line {number}"
        if None in row:
            raise BadFileError("This row has more cells than there are columns.", where=where,
                               hint="decimals are written with a point")  # fmt: skip
        try:
            offer = Offer(
                name=(row["instance"] or "").strip(),
                device=(row["device"] or "").strip(),
                gpus=int(row["gpus"] or ""),
                usd_per_hour=float(row["usd_per_hour"] or ""),
                available=int(row["available"]) if (row.get("available") or "").strip() else None,
            )
        except ValueError as error:
            raise BadFileError("This row has no whole number of GPUs or no price.", given=row, where=where) from error
        except WavetankError as error:
            error.where = where
            raise
        if not offer.name or offer.name in found:
            raise BadFileError("Every instance needs a name of its own.", given=offer.name, where=where)
        found[offer.name] = offer
    if not found:
        raise BadFileError("The price list is empty.", given=str(path), allowed="at least one row")
    return tuple(found.values())
