"""The catalog: what systems and studies exist, read from the areas' ``catalog.toml`` files without importing any code.

An area is a sub-package that holds a ``catalog.toml``.  Third parties add entries through the entry-point group
``wavetank.systems``: the entry point names a package whose ``catalog.toml`` has the same form.  Entry points are read
only when a name is not found or everything is listed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.resources
import importlib.util
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavetank.errors import BadFileError, WavetankError, unknown_name

if TYPE_CHECKING:
    from wavetank.study import Study

SHAPES = ("policy", "node", "kernel", "store", "analyser", "simulator")
RUNS = ("executed", "simulated", "modelled", "live")
ROLES = ("system", "baseline", "rival", "peer", "mechanism")
ENTRY_POINTS = "wavetank.systems"

_PACKAGE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a source says, as a predicate over records.

    Attributes
    ----------
    system : str
        The system it is about.
    says : str
        The claim in our words.
    study : str
        The study whose records decide it.
    metric : str
        The metric it is about.
    versus : str or None
        The system it is measured against; the value is then the ratio system / versus, seed by seed.
    paper : float or None
        The source's own figure (a ratio when ``versus`` is given), None when the source gives none that could be read.
    better : str
        ``"lower"`` or ``"higher"``: the direction that favours the system.
    at_least, at_most : float or None
        The bar an absolute figure (or the ratio) must reach.
    at : mapping
        Which of the metric's records: the values of their ``at`` coordinates.
    where : mapping
        The study settings under which the claim is meant.
    note : str
        What had to be made equal or differs, for the ledger.
    """

    system: str
    says: str
    study: str
    metric: str
    versus: str | None = None
    paper: float | None = None
    better: str = "higher"
    at_least: float | None = None
    at_most: float | None = None
    at: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class SystemEntry:
    """One system: facts from the catalog, code on demand."""

    name: str
    area: str
    object: str
    shape: str
    does: str
    source: Mapping[str, Any]
    runs: tuple[str, ...]
    studies: tuple[str, ...]
    role: str = "system"
    differs: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    launch: str = ""
    needs: tuple[str, ...] = ()
    extra: str = ""
    claims: tuple[Claim, ...] = ()

    def load(self) -> type:
        """Import and return the class behind this entry."""
        return _load_object(self.object, self.name)

    def lacks(self) -> str:
        """Return the first of its needs that this machine does not meet; empty when it can run.

        A need is a library by the name under which it is imported, ``package:`` and the name of an installed package
        that is not imported, ``blas:`` and the name of a library for products that is no package of Python, ``data:``
        and the name of a data set, or ``cuda``: a device that torch can compute on.
        """
        return next((need for need in self.needs if not _met(need)), "")

    def build(self, **overrides: Any) -> Any:
        """Return the system, built from the entry's parameters with ``overrides`` on top.

        Raises
        ------
        BadValueError
            If a parameter does not exist or has a value that is not allowed.
        """
        from wavetank.settings import check_parameters

        kind = self.load()
        given = {**self.parameters, **overrides}
        return kind(**check_parameters(kind, given, where=f"system {self.name}"))


@dataclass(frozen=True, kw_only=True)
class StudyEntry:
    """One study: its question, and code on demand."""

    name: str
    area: str
    object: str
    asks: str

    def load(self) -> type[Study]:
        """Import and return the study's class."""
        return _load_object(self.object, self.name)


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """Everything that can be named."""

    systems: Mapping[str, SystemEntry]
    studies: Mapping[str, StudyEntry]

    def __iter__(self) -> Iterator[SystemEntry]:
        return iter(self.systems.values())


def system(name: str) -> SystemEntry:
    """Return the entry of the system called ``name``.

    Raises
    ------
    UnknownNameError
        With the nearest name, when there is none.
    """
    found = built_in().systems.get(name) or everything().systems.get(name)
    if found is None:
        raise unknown_name("system", name, everything().systems, hint="wavetank list")
    return found


def study(name: str) -> StudyEntry:
    """Return the entry of the study called ``name``; raises UnknownNameError with the nearest name."""
    found = built_in().studies.get(name) or everything().studies.get(name)
    if found is None:
        raise unknown_name("study", name, everything().studies, hint="wavetank list --studies")
    return found


def areas() -> tuple[str, ...]:
    """Return the names of the areas that hold something, in alphabetical order."""
    return tuple(sorted(path.parent.name for path in _PACKAGE.glob("*/catalog.toml")))


@cache
def built_in() -> Catalog:
    """Return the catalog of this package alone."""
    return _merge(
        _read(path.read_bytes(), path.parent.name, str(path)) for path in sorted(_PACKAGE.glob("*/catalog.toml"))
    )


@cache
def everything() -> Catalog:
    """Return the catalog of this package and of every installed package that registers one."""
    parts = [built_in()]
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            file = importlib.resources.files(point.value).joinpath("catalog.toml")
            parts.append(_read(file.read_bytes(), point.name, f"{point.value}/catalog.toml"))
        except (ImportError, OSError) as error:
            raise BadFileError(
                f"The package behind the entry point {point.name!r} could not be read: {error}",
                where=f"entry-point group {ENTRY_POINTS}, {point.value}",
                hint="uninstall or repair that package",
            ) from error
    return _merge(iter(parts))


def _merge(parts: Iterator[Catalog]) -> Catalog:
    systems: dict[str, SystemEntry] = {}
    studies: dict[str, StudyEntry] = {}
    for part in parts:
        for into, new in ((systems, part.systems), (studies, part.studies)):
            for name, entry in new.items():
                if name in into:
                    raise BadFileError(
                        f"The name {name!r} is registered twice.", where=f"areas {into[name].area} and {entry.area}"
                    )
                into[name] = entry  # type: ignore[assignment]
    return Catalog(systems=systems, studies=studies)


def _read(text: bytes, area: str, where: str) -> Catalog:
    try:
        tables = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFileError(f"The catalog is not valid TOML: {error}", where=where) from error
    studies = {
        name: _entry(StudyEntry, {"name": name, "area": area, **table}, f"{where}, studies.{name}")
        for name, table in tables.pop("studies", {}).items()
    }
    return Catalog(systems={name: _system(name, area, table, where) for name, table in tables.items()}, studies=studies)


def _system(name: str, area: str, table: dict[str, Any], where: str) -> SystemEntry:
    where = f"{where}, {name}"
    table = dict(table)
    claims = []
    for raw in table.pop("claims", []):
        fields = dict(raw)
        value = fields.pop("value", {})
        claims.append(_entry(Claim, {"system": name, **fields, **value}, f"{where}.claims"))
    for key in ("runs", "studies", "differs", "needs"):
        if key in table:
            table[key] = tuple(table[key])
    entry: SystemEntry = _entry(SystemEntry, {"name": name, "area": area, **table, "claims": tuple(claims)}, where)
    for key, value, allowed in (("shape", entry.shape, SHAPES), ("role", entry.role, ROLES)):
        if value not in allowed:
            raise BadFileError(f"The {key} is not one of the known ones.", given=value, allowed=allowed, where=where)
    if not set(entry.runs) <= set(RUNS):
        raise BadFileError("The key runs holds unknown words.", given=entry.runs, allowed=RUNS, where=where)
    return entry


def _entry(kind: Any, fields: dict[str, Any], where: str) -> Any:
    unknown = set(fields) - set(kind.__dataclass_fields__)
    if unknown:
        raise BadFileError(
            f"The catalog entry has unknown keys: {', '.join(sorted(unknown))}.",
            allowed=kind.__dataclass_fields__,
            where=where,
        )
    try:
        return kind(**fields)
    except TypeError as error:
        raise BadFileError(f"The catalog entry is incomplete: {error}", where=where) from error


def _met(need: str) -> bool:
    if need.startswith("data:"):
        from wavetank.workloads import datasets

        return not datasets.status(need.removeprefix("data:")).missing
    if need.startswith("blas:"):
        # The catalog knows names; the area that they belong to is imported only when one is asked for.
        libraries = importlib.import_module("wavetank.kernels.products.libraries")
        return need.removeprefix("blas:") in libraries.present()
    if need.startswith("package:"):
        try:
            importlib.metadata.distribution(need.removeprefix("package:"))
        except importlib.metadata.PackageNotFoundError:
            return False
        return True
    if need == "cuda":
        if not _met("torch"):
            return False
        import torch

        return bool(torch.cuda.is_available())
    try:
        return importlib.util.find_spec(need) is not None
    except ImportError:
        # The package around a module is missing.
        return False


def _load_object(path: str, name: str) -> type:
    module, _, attribute = path.partition(":")
    try:
        loaded: type = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if isinstance(error, WavetankError):
            raise
        raise BadFileError(
            f"The object of {name!r} could not be loaded: {error}", where=path, hint="reinstall wavetank"
        ) from error
    return loaded
