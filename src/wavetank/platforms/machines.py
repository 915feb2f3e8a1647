"""Machines: a device and the levels of the fabric that connects many of them, plain data in ``machines.toml``."""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError, BadValueError, unknown_name
from wavetank.platforms.catalog import Device, device
from wavetank.platforms.fabric import Fabric, Level


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine.

    Parameters
    ----------
    name : str
        As users write it, such as ``"Frontier"``.
    device : Device
        What every rank is.
    levels : tuple of Level
        From the lowest to the highest.
    source : str
        Where the figures come from, and which are assumed.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    source: str

    @property
    def node(self) -> int:
        """Ranks of a node."""
        return self.levels[0].size

    @property
    def nics(self) -> int:
        """Network cards of a node."""
        return self.levels[1].links if len(self.levels) > 1 else 1

    def with_latencies(self, factor: float) -> Machine:
        """Return the machine with all start-up times of messages multiplied.

        Parameters
        ----------
        factor : float
            From 0.
        """
        return replace(self, levels=tuple(replace(each, alpha_s=factor * each.alpha_s) for each in self.levels))

    def fabric(self, ranks: int) -> Fabric:
        """Return what connects the first ranks of the machine.

        Parameters
        ----------
        ranks : int
            A divisor of a unit of some level, or a multiple of whole ones below it.

        Raises
        ------
        BadValueError
            If the machine has fewer, or units of a level would be cut.

        Examples
        --------
        >>> [level.size for level in machine("Frontier").fabric(256).levels]
        [8, 16, 2]
        """
        most = math.prod(level.size for level in self.levels)
        if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= most:
            raise BadValueError(f"{self.name} has no such number of ranks.", given=ranks, allowed=f"1 to {most}")
        left, kept = ranks, []
        for level in self.levels:
            size = min(left, level.size)
            if left % size:
                raise BadValueError(
                    f"These ranks would cut a {level.name} of {self.name}.", given=ranks,
                    allowed=f"whole units of {level.size}", where="ranks",
                )  # fmt: skip
            kept.append(replace(level, size=size))
            left //= size
            if left == 1:
                break
        return Fabric(levels=tuple(kept))


def load_machines(path: str | Path) -> dict[str, Machine]:
    """Read machines from a TOML file: one table a machine with ``device``, ``levels`` and ``source``.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    BadFileError
        If the file cannot be read, or an entry has other keys or values than these.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadFileError(f"The machine file cannot be read: {error}.", where=str(path)) from error
    return {name: _machine(name, table, f"{path}, [{name}]") for name, table in tables.items()}


def _machine(name: str, table: Any, where: str) -> Machine:
    if not isinstance(table, dict) or set(table) != {"device", "levels", "source"}:
        raise BadFileError("A machine has a device, levels and a source.", given=table, where=where)
    try:
        levels = tuple(Level(**each) for each in table["levels"])
        Fabric(levels=levels)
        return Machine(name=name, device=device(table["device"]), levels=levels, source=str(table["source"]))
    except TypeError as error:
        raise BadFileError(
            "A level has a name, a size, alpha_s, bytes_per_s, and may be shared, with links.",
            given=table["levels"],
            where=where,
        ) from error


@functools.cache
def _shipped() -> dict[str, Machine]:
    return load_machines(Path(__file__).with_name("machines.toml"))


def machines() -> tuple[str, ...]:
    """Return the names of the machines that ship with Wavetank."""
    return tuple(_shipped())


def machine(name: str) -> Machine:
    """Return the machine of that name.

    Parameters
    ----------
    name : str

    Raises
    ------
    UnknownNameError
        If no machine of that name ships with Wavetank.
    """
    known = _shipped()
    if name not in known:
        raise unknown_name("machine", name, known, hint="read your own with wavetank.platforms.load_machines(path)")
    return known[name]
