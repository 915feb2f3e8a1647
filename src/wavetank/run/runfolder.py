"""Run folders: one run of a study on disk, written so that nothing finished is ever lost.

``runs/STUDY/TIME/`` holds

=================  ==================================================================================
study.toml         the study, its settings, systems and seeds: ``wavetank compare study.toml`` repeats it
records.jsonl      one line a finished trial, appended while the study runs
records.parquet    the records, once the study is through
run.json           provenance: versions, machine, seeds, data checksums, commit, wall time
report.html        the report
=================  ==================================================================================
"""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from wavetank import units
from wavetank.errors import BadFileError, BadValueError, RunFolderError
from wavetank.files import write_atomic
from wavetank.ledger import catalog
from wavetank.run import own
from wavetank.run.own import OwnSystem

FORMAT = 1
_AGAIN = ", with --policy for each system under [own]"
# Of one run, and the largest of them; more than anybody can run, and than the streams of a seed take.
MOST_SEEDS, LARGEST_SEED = 1_000_000, 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be run: everything that decides the records.

    Attributes
    ----------
    study : str
    settings : dict
        Every setting of the study with its value.
    systems : tuple of str
    parameters : dict
        System name to constructor arguments that differ from the catalog's.
    seeds : tuple of int
    own : dict
        Name to system, of the systems that are code of the user's own.
    """

    study: str
    settings: dict[str, Any]
    systems: tuple[str, ...]
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    own: dict[str, OwnSystem] = field(default_factory=dict)

    @property
    def of_catalog(self) -> tuple[str, ...]:
        """Return the systems that the catalog has."""
        return tuple(name for name in self.systems if name not in self.own)


def create(root: Path, plan: Plan) -> Path:
    """Create the folder of a new run under ``root`` and write its ``study.toml``.

    Parameters
    ----------
    root : Path
        The folder of all runs; made when it is not there.
    plan : Plan
    """
    text = dump_plan(plan)
    now = datetime.datetime.now().strftime("%Y-%m-%d_%H%M%S")
    base = root / plan.study
    try:
        base.mkdir(parents=True, exist_ok=True)
        folder = base / now
        number = 1
        while True:
            try:
                folder.mkdir()
                break
            except FileExistsError:
                number += 1
                folder = base / f"{now}_{number}"
        write_atomic(folder / "study.toml", text)
    except OSError as error:
        raise RunFolderError(
            f"The run's folder cannot be created: {error.strerror or error}.",
            where=str(base),
            hint="choose another place with --out FOLDER",
        ) from error
    return folder


def latest(root: Path, study: str) -> Path:
    """Return the folder of the newest run of ``study`` under ``root``.

    Parameters
    ----------
    root : Path
        The folder of all runs.
    study : str
        The study's name.
    """
    runs = sorted(path.parent for path in (root / study).glob("*/study.toml"))
    if not runs:
        raise RunFolderError(
            f"There is no run of {study!r} to go on with.", where=str(root / study), hint=f"wavetank compare {study}"
        )
    return max(runs, key=lambda path: (path / "study.toml").stat().st_mtime_ns)


def dump_plan(plan: Plan) -> str:
    """Return the plan as TOML that :func:`load_plan` reads back unchanged, but for None, which becomes ``"none"``."""
    lines = [
        f"# Repeat this run exactly: wavetank compare PATH/OF/THIS/study.toml{_AGAIN if plan.own else ''}",
        f"format = {FORMAT}",
        f"study = {_toml(plan.study)}",
        f"systems = {_toml(list(plan.systems))}",
        f"seeds = {_toml(list(plan.seeds))}",
        "",
        "[settings]",
        *(f"{name} = {_toml(value)}" for name, value in plan.settings.items()),
    ]
    for system, values in plan.parameters.items():
        lines += ["", f"[parameters.{_toml(system)}]", *(f"{name} = {_toml(value)}" for name, value in values.items())]
    for system, each in plan.own.items():
        lines += ["", f"[own.{_toml(system)}]", f"from = {_toml(each.reference)}", f"code = {_toml(each.code)}"]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if value is None:
        # TOML has no null; settings and parameters read this word as "no value".
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise BadValueError("A text that is not valid Unicode cannot be kept in a study file.", given=ascii(value))
        # JSON's escapes of control characters are TOML's too; DEL alone must be escaped besides.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    raise TypeError(f"A setting of type {type(value).__name__} cannot be written.")


def load_plan(path: Path) -> Plan:
    """Read a ``study.toml``.

    Raises
    ------
    BadFileError
        If the file is missing, is not TOML, or is of a later format.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFileError(f"The study file cannot be read: {error.strerror or error}.", where=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFileError(f"The study file is not valid TOML: {error}", where=str(path)) from error
    except RecursionError as error:
        raise BadFileError("The study file is nested too deeply.", where=str(path)) from error
    if table.get("format", FORMAT) != FORMAT:
        raise BadFileError(
            "The study file has a format this version does not read.",
            given=table["format"],
            allowed=str(FORMAT),
            where=str(path),
            hint="upgrade wavetank",
        )
    allowed = {"format", "study", "systems", "seeds", "settings", "parameters", "own"}
    if not isinstance(table.get("study"), str) or set(table) - allowed:
        raise BadFileError(
            "The study file needs a study and may hold only the known keys.",
            given=", ".join(table),
            allowed=sorted(allowed),
            where=str(path),
        )
    try:
        seeds = msgspec.convert(table.get("seeds", []), int | list[int])
        check_seeds(seeds, str(path))
        plan = Plan(
            study=table["study"],
            settings=msgspec.convert(table.get("settings", {}), dict[str, Any]),
            systems=msgspec.convert(table.get("systems", []), tuple[str, ...]),
            parameters=msgspec.convert(table.get("parameters", {}), dict[str, dict[str, Any]]),
            seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(dict.fromkeys(seeds)),
            own=_own_systems(msgspec.convert(table.get("own", {}), dict[str, dict[str, str]]), str(path)),
        )
    except msgspec.ValidationError as error:
        raise BadFileError(f"The study file holds a value of another kind: {error}", where=str(path)) from error
    if "seeds" in table and (not plan.seeds or min(plan.seeds) < 0):
        raise BadFileError(
            "The study file's seeds must be one or more numbers from 0.", given=table["seeds"], where=str(path)
        )
    return plan


def _own_systems(table: dict[str, dict[str, str]], where: str) -> dict[str, OwnSystem]:
    """Return the systems of a user's own as the file names them; nothing is loaded for it."""
    for name, values in table.items():
        if set(values) != {"from", "code"}:
            raise BadFileError(
                f"The system {name!r} of the user's own has other keys than it must have.",
                given=", ".join(values), allowed=("from", "code"), where=f"{where}, own",
            )  # fmt: skip
        if not catalog.NAME.fullmatch(name):
            raise BadFileError("This is no name of a system.", given=name, where=f"{where}, own")
    return {name: OwnSystem(name, values["from"], values["code"]) for name, values in table.items()}


def check_seeds(seeds: int | Sequence[int], where: str) -> None:
    """Refuse more seeds than anybody can run, before a list of them is made, and seeds that no record can hold.

    Parameters
    ----------
    seeds : int or sequence of int
        How many, or which.
    where : str
        Where they were given.
    """
    count = seeds if isinstance(seeds, int) else len(seeds)
    if count > MOST_SEEDS:
        raise BadValueError(
            "There are too many seeds.", given=f"{count:,}", allowed=f"up to {MOST_SEEDS:,}", where=where,
            hint="a list of single seeds is given as 0,3,7",
        )  # fmt: skip
    largest = 0 if isinstance(seeds, int) else max(seeds, default=0)
    if largest > LARGEST_SEED:
        raise BadValueError("A seed is too large.", given=largest, allowed=f"0 to {LARGEST_SEED:,}", where=where)


def command_of(plan: Plan) -> str:
    """Return the command line that repeats the run."""
    import shlex

    from wavetank.study.study import settings_of

    kind = catalog.study(plan.study).load()
    default = settings_of(kind())
    words = ["wavetank", "compare", plan.study]
    for name, value in plan.settings.items():
        if _plain(value) != _plain(default.get(name)):
            words += ["--set", f"{name}={units.typed(value)}"]
    for system, values in plan.parameters.items():
        for name, value in values.items():
            words += ["--set", f"{system}.{name}={units.typed(value)}"]
    listed = plan.of_catalog
    if not listed or plan.systems != (*listed, *plan.own):
        # What --policy adds comes last, unless it is listed.
        listed = plan.systems
    if listed != catalog.everything().plain_run(plan.study):
        words += ["--systems", ",".join(listed)]
    words += own.options(plan.own.values())
    if plan.seeds != tuple(range(len(plan.seeds))):
        # A list of one needs its comma, or it would read as a count.
        words += ["--seeds", ",".join(map(str, plan.seeds)) + ("," if len(plan.seeds) == 1 else "")]
    elif len(plan.seeds) != kind.default_seeds:
        words += ["--seeds", str(len(plan.seeds))]
    return shlex.join(words)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
