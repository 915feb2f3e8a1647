"""How much of which model is asked for: a day that drifts, made from a seed, or a file of the user's."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from wavetank.errors import BadFileError, WavetankError
from wavetank.files import read_text
from wavetank.platforms.prices import Offer
from wavetank.serving.fleet.interface import Service
from wavetank.sim.rng import stream

_LARGEST_BYTES = 10_000_000
_REQUIRED = ("model", "requests_per_s")
_OPTIONAL = ("prompt_tokens", "output_tokens", "slo_ttft_s", "slo_tpot_s", "share")

# Lengths of Azure's chat and code requests of 2023.
_CHAT = {"prompt_tokens": 1155.0, "output_tokens": 211.0}
_CODE = {"prompt_tokens": 2048.0, "output_tokens": 28.0}
GENERATED: tuple[tuple[Service, float], ...] = (
    (Service(model="Llama-3.1-8B", **_CHAT), 40.0),
    (Service(model="Qwen3-30B-A3B", **_CODE), 30.0),
    (Service(model="Llama-2-7B", **_CHAT), 8.0),
    (Service(model="Qwen3-32B", **_CHAT), 12.0),
    (Service(model="Llama-3.1-70B", **_CHAT), 6.0),
    (Service(model="Llama-2-70B", **_CODE), 3.0),
)
"""Six models with the requests per second of a busy hour: popular ones are small."""


def read_demand(path: str | Path) -> dict[Service, float]:
    """Read a demand from a CSV file: a row per model, with the requests per second of its busiest hour.

    Parameters
    ----------
    path : str or Path
        Columns ``model``, ``requests_per_s`` and, with the defaults of :class:`Service`, ``prompt_tokens``,
        ``output_tokens``, ``slo_ttft_s``, ``slo_tpot_s`` and ``share``.

    Raises
    ------
    BadFileError
        If the file cannot be read, lacks a column or has no rows, or a row is no number; the error names the line.
    WavetankError
        If a model is not known or a number out of its range, with the line.
    """
    rows = csv.DictReader(io.StringIO(read_text(Path(path), largest_bytes=_LARGEST_BYTES)), skipinitialspace=True)
    names = [name.strip() for name in rows.fieldnames or ()]
    rows.fieldnames = names
    missing = [name for name in _REQUIRED if name not in names]
    unknown = [name for name in names if name not in (*_REQUIRED, *_OPTIONAL)]
    if missing or unknown:
        raise BadFileError(
            f"Columns are missing: {', '.join(missing)}." if missing else f"Unknown columns: {', '.join(unknown)}.",
            given=", ".join(names) or "an empty file", allowed=", ".join((*_REQUIRED, *_OPTIONAL)), where=str(path),
        )  # fmt: skip
    if len(set(names)) < len(names):
        raise BadFileError("A column stands here twice.", given=", ".join(names), where=str(path))
    found: dict[Service, float] = {}
    for number, row in enumerate(rows, start=2):
        where = f"{path}, line {number}"
        if None in row:
            raise BadFileError("This row has more cells than there are columns.", where=where,
                               hint="decimals are written with a point")  # fmt: skip
        try:
            rate = float(row["requests_per_s"])
            asked = {name: float(row[name]) for name in _OPTIONAL if (row.get(name) or "").strip()}
        except (TypeError, ValueError) as error:
            raise BadFileError("This row holds something that is no number.", given=row, where=where) from error
        if not 0 < rate < math.inf:
            raise BadFileError("The demand must be above 0.", given=rate, allowed="requests per second", where=where)
        try:
            service = Service(model=(row["model"] or "").strip(), **asked)
        except WavetankError as error:
            error.where = where
            raise
        if service in found:
            raise BadFileError("This model stands here twice with equal objectives.", given=service.model, where=where)
        found[service] = rate
    if not found:
        raise BadFileError("The demand has no rows.", given=str(path), allowed="a row per model")
    return found


def day(busiest: Mapping[Service, float], hours: Sequence[float], seed: int) -> list[dict[Service, float]]:
    """Return the demand at each hour: its course over the day, drifting popularity, and one model that comes into use.

    Parameters
    ----------
    busiest : mapping of Service to float
        Requests per second of a busy hour.
    hours : sequence of float
        Hours of the day, ascending.
    seed : int
    """
    rng = stream(seed, "fleet demand")
    services = list(busiest)
    # Users of a model are of one part of the world: each has its own busy hour, within six hours of the others.
    phase = rng.uniform(-3.0, 3.0, len(services))
    drift = np.cumsum(rng.normal(0.0, 0.12, (len(hours), len(services))), axis=0)
    hyped, since = int(rng.integers(len(services))), int(rng.integers(len(hours)))
    found = []
    for i, hour in enumerate(hours):
        course = 0.65 + 0.35 * np.cos((hour - 15.0 - phase) * math.tau / 24.0)
        rates = np.array(list(busiest.values())) * course * np.exp(drift[i])
        if i >= since:
            rates[hyped] *= 1.8
        found.append(dict(zip(services, rates.tolist(), strict=True)))
    return found


def availability(offers: Sequence[Offer], most: int, periods: int, seed: int) -> list[tuple[Offer, ...]]:
    """Return the offers of each period, of which between half and all of ``most`` instances can be had.

    Parameters
    ----------
    offers : sequence of Offer
        With a bound of their own, that is the most.
    most : int
        Instances of each offer.
    periods, seed : int
    """
    rng = stream(seed, "fleet availability")
    share = np.full(len(offers), 0.75)
    found = []
    for _ in range(periods):
        share = np.clip(share + rng.normal(0.0, 0.1, len(offers)), 0.5, 1.0)
        found.append(
            tuple(
                dataclasses.replace(offer, available=int(part * (most if offer.available is None else offer.available)))
                for offer, part in zip(offers, share.tolist(), strict=True)
            )
        )
    return found
