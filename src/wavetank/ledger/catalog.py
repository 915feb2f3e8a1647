"""The catalog: what systems, studies and commands exist, read from ``catalog.toml`` files without importing any code.

A problem is a sub-package of an area that holds a ``catalog.toml``.  Third parties add entries through the entry-point
group ``wavetank.systems``: the entry point names a package whose ``catalog.toml`` has the same form.  Entry points are
read only when a name is not found or everything is listed.

An entry that cannot be used is left out with a warning that names its file and line; everything else goes on working.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.resources
import importlib.util
import math
import re
import shutil
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavetank.errors import BadFileError, WavetankError, unknown_name

if TYPE_CHECKING:
    from wavetank.study.study import Study

SHAPES = {
    "policy": "decides for others, as a router does: a pure function of what it sees",
    "node": "a process among others that talks by messages, or a program that takes its place",
    "kernel": "a call that computes a result from arrays, judged by its time",
    "store": "keeps data, and answers reads and writes",
    "analyser": "judges what is given to it: a model, a history, a protocol",
    "simulator": "predicts how another system would have run",
}
RUNS = {
    "executed": "the system's own code does the work, on a real machine",
    "simulated": "the system's own code decides, while time passes in an event simulator",
    "modelled": "its costs come out of a formula",
    "live": "the same object can be put in front of real processes with wavetank launch",
}
ROLES = {
    "system": "an idea of a paper, the reason why its study exists",
    "rival": "another published or obvious idea for the same problem",
    "baseline": "what a user has without any of them",
    "oracle": "a bound that knows what no real system knows; it never wins",
    "peer": "somebody else's program or library, as it is",
    "mechanism": "a part or a variant that explains the others; it is no rival",
}
LEVELS = {
    "same": "the paper's quantity, on like hardware or in a simulation like the paper's",
    "elsewhere": "the paper's quantity, on other hardware or simulated",
    "proxy": "another quantity that should follow the paper's: its direction alone is judged",
    "model": "a model against a model: its direction alone is judged",
    "goal": "a goal of ours",
}
STATUSES = {
    "not readable": "the paper's figure could not be read",
    "not applicable": "it is not about something that can be run",
    "not attempted": "it needs what there is not here",
}
# Tables of a catalog that are no systems: each holds entries by name.
COMMANDS = {
    "verb": "a command of its own: wavetank NAME",
    "launch": "puts a system to real work: wavetank launch NAME",
    "check": "a kind of file that can be verified: wavetank check FILE",
    "diagnose": "a kind of log or trace that can be explained: wavetank diagnose FILE",
    "generate": "something that is written: wavetank generate NAME",
    "profile": "a kind of profile that is measured and shown: wavetank profile --only NAME",
}
ENTRY_POINTS = "wavetank.systems"

# A name stands on command lines, in lists with commas and before the dot of a parameter.
NAME = re.compile(r"\w+(-\w+)*")
# The type of a key as the classes below write it: what to ask for, and whether a value is of it.
_TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a text", lambda value: isinstance(value, str)),
    "str | None": ("a text", lambda value: isinstance(value, str)),
    "int": ("a whole number", lambda value: type(value) is int),
    "float": ("a number", lambda value: _is_number(value)),
    "float | None": ("a number", lambda value: _is_number(value)),
    "Mapping[str, Any]": ("a table", lambda value: isinstance(value, dict)),
    "tuple[str, ...]": ("a list of texts, none of them empty", lambda value: _is_texts(value)),
    "bool | tuple[str, ...]": (
        "true, false or a list of texts",
        lambda value: isinstance(value, bool) or _is_texts(value),
    ),
}

_PACKAGE = Path(__file__).parents[1]


class CatalogWarning(UserWarning):
    """A package or an entry that cannot be used: it is left out, and everything else goes on working."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says, or a goal of ours, as a predicate over records.

    A claim has a paper's figure (``paper``), a direction alone, or a goal (``at_least``, ``at_most``), never two.

    Attributes
    ----------
    system : str
        The system it is about.
    says : str
        The claim in our words.
    study : str
        The study whose records decide it.
    metric : str
        The metric it is about; this key and those up to ``at_most`` may stand in a table ``value``.
    versus : str or None
        The system it is measured against, or ``"best"`` for the strongest rival of the run; the value is then the
        ratio system / versus, seed by seed.
    paper : float or None
        The paper's own figure (a ratio when ``versus`` is given).
    better : str
        ``"lower"`` or ``"higher"``: the direction that favours the system.
    neutral : float
        The value at which there is no effect: 1 of a ratio; it must be given with a paper's figure or direction
        without ``versus``.
    level : str
        How close the quantity is to the paper's: a word of :data:`LEVELS`; a goal needs none.
    headline : str
        The name of the paper's headline that it decides.
    at_least, at_most : float or None
        The goal: what an absolute figure (or the ratio) must reach.
    at : mapping
        Which of the metric's records: the values of their ``at`` coordinates.
    where : mapping
        The study settings under which the claim is meant.
    beside : tuple of str
        Systems that a run must have, too, before it decides: the libraries of which the best is meant, or the bounds.
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
    neutral: float = 1.0
    level: str = ""
    headline: str = ""
    at_least: float | None = None
    at_most: float | None = None
    at: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    note: str = ""

    @property
    def basis(self) -> str:
        """What the claim is judged by: ``figure``, ``direction`` or ``goal``."""
        if self.at_least is not None or self.at_most is not None:
            return "goal"
        return "direction" if self.paper is None else "figure"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One figure or statement that a paper is known by, entered before anything is run.

    Attributes
    ----------
    name : str
        What claims name it by in their key ``headline``.
    says : str
        The statement with its figure, as in the paper.
    status : str
        Why no claim decides it: a word of :data:`STATUSES`; empty where claims do.
    why : str
        The reason for the status.
    """

    name: str
    says: str
    status: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class PaperEntry:
    """One paper: the slug under which its systems, studies and claims are found.

    Attributes
    ----------
    name : str
        The slug.
    source : mapping
        Title, authors, arxiv, year and the like.
    headlines : tuple of Headline
        What the paper is known by: the whole list, also what cannot be tried here.
    where : str
        File and line of the entry.
    """

    name: str
    source: Mapping[str, Any]
    headlines: tuple[Headline, ...] = ()
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class SystemEntry:
    """One system: facts from the catalog, code on demand.

    Attributes
    ----------
    name, area, problem : str
        The area and the problem are the folders that hold the catalog.
    object : str
        The class, ``module:name``.
    shape : str
        What kind of part it is: a word of :data:`SHAPES`.
    role : str
        What it is there for: a word of :data:`ROLES`.
    interface : str
        What a launch or a study may take it as (``router``, ``algorithm``); empty where only its own problem asks.
    does : str
        One sentence of at most 140 characters.
    problems : tuple of str
        What its user suffers from, in the user's words, where that differs from the problems of its studies.
    paper : str
        Slug of the paper that it is from, an entry of a ``papers`` table, in place of a source.
    source : mapping
        Title, authors, arxiv, year and the like, where it is from no paper of the catalog.
    runs : tuple of str
        What is real: words of :data:`RUNS`.
    studies : tuple of str
        The studies that it can be tried in.
    default : bool or tuple of str
        Whether a plain run of its studies includes it, or in which of them.
    differs : tuple of str
        How it differs from the source: here and nowhere else.
    parameters : mapping
        Values in place of the class's defaults.
    launch : str
        The command line that puts it to real work; every router that runs live has one.
    needs : tuple of str
        What must be there, or a study leaves it out: a library by the name of its import, ``package:NAME`` of an
        installed package, ``program:NAME`` of a program, ``blas:NAME`` of a library for products, ``data:NAME`` of a
        data set, or ``cuda``.
    extra : str
        The extra of this package that installs what it needs.
    size : str
        Why its own files are longer than the 800 lines that a system may take.
    claims : tuple of Claim
        Tables of their own, below.
    where : str
        File and line of the entry.
    """

    name: str
    area: str
    problem: str
    object: str
    shape: str
    does: str
    runs: tuple[str, ...]
    studies: tuple[str, ...]
    source: Mapping[str, Any] = field(default_factory=dict)
    paper: str = ""
    role: str = "system"
    interface: str = ""
    default: bool | tuple[str, ...] = False
    differs: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    launch: str = ""
    needs: tuple[str, ...] = ()
    extra: str = ""
    size: str = ""
    problems: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    where: str = ""

    @property
    def room(self) -> str:
        """The folder of the package that holds the entry's problem; empty for a plug-in's."""
        return f"{self.area}/{self.problem}" if self.problem else ""

    def load(self) -> type:
        """Import and return the class behind this entry; raises BadFileError where there is none."""
        loaded: type = load_object(self.object, self.name, self.where, type)
        return loaded

    def in_plain_run_of(self, study: str) -> bool:
        """Return whether a run of ``study`` without ``--systems`` includes this system."""
        return study in self.studies and (self.default if isinstance(self.default, bool) else study in self.default)

    def lacks(self) -> str:
        """Return the first of its needs that this machine does not meet; empty when it can run.

        A need is a library by the name under which it is imported, ``package:`` and the name of an installed package
        that is not imported, ``program:`` and the name of a program (:func:`program`), ``blas:`` and the name of a
        library for products that is no package of Python, ``data:`` and the name of a data set, or ``cuda``: a device
        that torch can compute on.
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
    """One study: its question, and code on demand.

    Attributes
    ----------
    name, area, problem : str
        As for a system.
    object : str
        The class, ``module:name``.
    asks : str
        The question, in one sentence.
    problems : tuple of str
        What brings a user to the question, in the user's words, with the usual synonyms: ``wavetank advise`` and
        ``list`` find the study by them.
    where : str
        File and line of the entry.
    """

    name: str
    area: str
    problem: str
    object: str
    asks: str
    problems: tuple[str, ...] = ()
    where: str = ""

    @property
    def room(self) -> str:
        """The folder of the package that holds the entry's problem; empty for a plug-in's."""
        return f"{self.area}/{self.problem}" if self.problem else ""

    def load(self) -> type[Study]:
        """Import and return the study's class; raises BadFileError where there is none."""
        from wavetank.study.study import Study

        loaded: type[Study] = load_object(self.object, self.name, self.where, Study)
        return loaded


@dataclass(frozen=True, kw_only=True)
class CommandEntry:
    """One command that an area adds to the command line: a verb, a launch, a check, a diagnosis or a kind of profile.

    Attributes
    ----------
    name : str
        What stands on the command line.
    object : str
        ``module:name`` of a click command; of a check, of the checker's class; of a profile, of a class derived from
        ``wavetank.machine.profiles.ProfileKind``, which measures, reads and describes the profiles whose kind is NAME
        or begins with it and a hyphen.
    says : str
        What help says of it.
    order : int
        Place among the others in help and in what is tried first.
    endings : tuple of str
        Of a check or a diagnosis: the ends of the names of its files, without ``.gz``.
    files : tuple of str
        Of a check or a diagnosis: names of files for which a folder stands that holds one of them, best first.
    where : str
        File and line of the entry.
    """

    name: str
    object: str
    says: str
    order: int = 100
    endings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    where: str = ""

    def load(self) -> Any:
        """Import and return the command, or the class of the checker or of the kind of profile."""
        return load_object(self.object, self.name, self.where)


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """Everything that can be named.

    Attributes
    ----------
    systems, studies, papers : mapping of str to entry
    commands : mapping of str to mapping of str to CommandEntry
        A table of :data:`COMMANDS` to the entries in it, by name.
    problems : tuple of WavetankError
        What was left out, and why.
    """

    systems: Mapping[str, SystemEntry]
    studies: Mapping[str, StudyEntry]
    papers: Mapping[str, PaperEntry]
    commands: Mapping[str, Mapping[str, CommandEntry]]
    problems: tuple[WavetankError, ...] = ()

    def __iter__(self) -> Iterator[SystemEntry]:
        return iter(self.systems.values())

    def systems_of(self, study: str) -> tuple[str, ...]:
        """Return the names of the systems that can be tried in a study."""
        return tuple(entry.name for entry in self if study in entry.studies)

    def plain_run(self, study: str) -> tuple[str, ...]:
        """Return the names of the systems that a run of a study without ``--systems`` includes."""
        return tuple(entry.name for entry in self if entry.in_plain_run_of(study))


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


def paper(name: str) -> PaperEntry | None:
    """Return the entry of a paper by its slug or its arXiv id (with or without ``arXiv:``), None when there is none."""
    wanted = re.sub(r"^(arxiv:|https?://arxiv\.org/abs/)|v\d+$", "", name.strip(), flags=re.IGNORECASE)
    for found in (built_in(), everything()):
        for entry in found.papers.values():
            if wanted in (entry.name, entry.source.get("arxiv")):
                return entry
    return None


def commands(table: str) -> dict[str, CommandEntry]:
    """Return the entries of a table of :data:`COMMANDS`, those of other packages too, in the order of help."""
    found = everything().commands[table]
    return {entry.name: entry for entry in sorted(found.values(), key=lambda entry: (entry.order, entry.name))}


def areas() -> tuple[str, ...]:
    """Return the names of the areas that hold something, in alphabetical order."""
    return tuple(sorted({path.parts[-3] for path in _PACKAGE.glob("*/*/catalog.toml")}))


@cache
def built_in() -> Catalog:
    """Return the catalog of this package alone."""
    files = sorted(_PACKAGE.glob("*/*/catalog.toml"))
    return _merge(_read(path.read_bytes(), path.parts[-3], path.parts[-2], str(path)) for path in files)


@cache
def everything() -> Catalog:
    """Return the catalog of this package and of every installed package that registers one.

    A package or an entry that cannot be used is left out with a warning.
    """
    parts = [built_in()]
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        try:
            file = importlib.resources.files(point.value).joinpath("catalog.toml")
            parts.append(_read(file.read_bytes(), point.name, point.name, str(file)))
        except (Exception, SystemExit) as error:  # what a package does when it is imported is beyond this one's control
            problem = BadFileError(
                f"The package behind the entry point {point.name!r} could not be read: {said(error)}",
                given=point.value, where=_registered(point), hint="uninstall or repair that package",
            )  # fmt: skip
            parts.append(Catalog(systems={}, studies={}, papers={}, commands={}, problems=(problem,)))
    found = _merge(parts)
    for left_out in found.problems:
        warnings.warn(f"{left_out}", CatalogWarning, stacklevel=2)
    return found


def _registered(point: importlib.metadata.EntryPoint) -> str:
    """Return the file and the line that register an entry point, the group alone where no file of a package does."""
    line = re.compile(rf"\s*{re.escape(point.name)}\s*=\s*{re.escape(point.value)}\s*")
    folder = None if point.dist is None else Path(str(point.dist.locate_file("")))
    for file in sorted(folder.glob("*-info/entry_points.txt")) if folder is not None else ():
        for number, text in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if line.fullmatch(text):
                return f"{file}, line {number}, group {ENTRY_POINTS}"
    return f"entry-point group {ENTRY_POINTS}"


def _merge(parts: Iterable[Catalog]) -> Catalog:
    systems: dict[str, SystemEntry] = {}
    studies: dict[str, StudyEntry] = {}
    papers: dict[str, PaperEntry] = {}
    commands: dict[str, dict[str, CommandEntry]] = {table: {} for table in COMMANDS}
    problems: list[WavetankError] = []
    for part in parts:
        problems += part.problems
        pairs: list[tuple[dict[str, Any], Mapping[str, Any]]] = [
            (systems, part.systems), (studies, part.studies), (papers, part.papers)
        ]  # fmt: skip
        pairs += [(commands[table], found) for table, found in part.commands.items()]
        for into, new in pairs:
            for name, entry in new.items():
                if name in into:
                    problems.append(_twice(name, into[name].where, entry.where))
                else:
                    into[name] = entry
    for name, system in list(systems.items()):
        gone = [each for each in system.studies if each not in studies]
        if gone:
            problems.append(unknown_name("study", gone[0], studies, where=system.where, hint="correct the key studies"))
            del systems[name]
        elif system.paper and system.paper not in papers:
            problems.append(
                unknown_name("paper", system.paper, papers, where=system.where, hint="add [papers.NAME] to the catalog")
            )
            del systems[name]
        else:
            source = papers[system.paper].source if system.paper else system.source
            launch, wrong = _launch_of(system, commands["launch"])
            kept, unknown = _claims_of(system, studies)
            problems += wrong + unknown
            systems[name] = replace(system, source=source, launch=launch, claims=kept)
    return Catalog(systems=systems, studies=studies, papers=papers, commands=commands, problems=tuple(problems))


def _twice(name: str, first: str, second: str) -> BadFileError:
    return BadFileError(
        f"The name {name!r} is registered twice; the second entry is left out.", where=f"{first} and {second}"
    )


def _launch_of(system: SystemEntry, launches: Mapping[str, CommandEntry]) -> tuple[str, list[WavetankError]]:
    """Return the command line that launches a system, without a command line that no catalog has an entry for."""
    words = system.launch.split()
    if words[:2] != ["wavetank", "launch"] or (len(words) > 2 and words[2] in launches):
        return system.launch, []
    hint = "correct the key launch; the system is used without it"
    return "", [unknown_name("launch", " ".join(words[2:3]), launches, where=system.where, hint=hint)]


def _claims_of(system: SystemEntry, studies: Mapping[str, StudyEntry]) -> tuple[tuple[Claim, ...], list[WavetankError]]:
    """Return the claims of a system that a study can decide."""
    wrong: list[WavetankError] = [
        unknown_name("study", each.study, studies, where=f"{system.where}.claims", hint="correct the claim's key study")
        for each in system.claims
        if each.study not in studies
    ]
    return tuple(each for each in system.claims if each.study in studies), wrong


def _read(data: bytes, area: str, problem: str, where: str) -> Catalog:
    """Read one file; an entry that is wrong is left out and named in the problems."""
    nothing: dict[str, Any] = {"systems": {}, "studies": {}, "papers": {}, "commands": {}}
    problems: list[WavetankError] = []
    try:
        text = data.decode()
        tables = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        wrong = BadFileError(f"The catalog is not UTF-8 text: {error.reason}.", where=f"{where}, line {line}")
        return Catalog(**nothing, problems=(wrong,))
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits and tables in hundreds of tables are errors of their own.
        text, problems = _readable(text, where)
        try:
            tables = tomllib.loads(text)
        except (ValueError, RecursionError):
            problems = []
        if not problems:
            return Catalog(**nothing, problems=(BadFileError(f"The catalog is not valid TOML: {error}", where=where),))
    lines = _lines(text)

    def entries(kind: Any, table: str, **more: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        held = tables.pop(table, {})
        for name, fields in held.items() if isinstance(held, dict) else [("", held)]:
            place = _place(lines, where, f"{table}.{name}" if name else table)
            try:
                fields = _table(fields, place)
                facts: dict[str, Any] = {"name": name, **more, "where": place}
                given = fields
                if kind is PaperEntry:
                    facts["headlines"] = _headlines(fields.pop("headlines", []), place)
                    given = {"source": fields}
                found[name] = _entry(kind, given, facts, place)
            except WavetankError as error:
                problems.append(error)
        return found

    studies = entries(StudyEntry, "studies", area=area, problem=problem)
    papers = entries(PaperEntry, "papers")
    commands = {table: entries(CommandEntry, table) for table in COMMANDS}
    systems = {}
    for name, fields in tables.items():
        place = _place(lines, where, name)
        try:
            facts = {"name": name, "area": area, "problem": problem, "where": place}
            systems[name] = _system(facts, _table(fields, place), place)
        except WavetankError as error:
            problems.append(error)
    return Catalog(systems=systems, studies=studies, papers=papers, commands=commands, problems=tuple(problems))


def _readable(text: str, where: str) -> tuple[str, list[WavetankError]]:
    """Return a catalog without the entries that are no TOML and those that stand there twice; lines keep their numbers.

    An entry is its table with the tables below it, up to the header of another entry.
    """
    lines = text.splitlines(keepends=True)
    entries = [(1, "")]
    for number, line in enumerate(lines, 1):
        if header := re.match(r"""[ \t]*\[{1,2}[ \t]*["'\w][^\]\n]*""", line):
            parts = [part.strip(" \t[]\"'") for part in header[0].split(".")]
            inner = parts[0] in ("studies", "papers", *COMMANDS)
            name = ".".join(parts[: 1 + inner])
            # Of an entry that begins again: tables inside have longer names, or two brackets.
            if name != entries[-1][1] or (len(parts) == 1 + inner and "[[" not in header[0]):
                entries.append((number, name))
    problems: list[WavetankError] = []
    kept: dict[str, int] = {}
    for (first, name), (after, _) in zip(entries, [*entries[1:], (len(lines) + 1, "")], strict=True):
        place = f"{where}, line {first}, {name}" if name else where
        try:
            tomllib.loads("\n" * (first - 1) + "".join(lines[first - 1 : after - 1]))
            if name not in kept:
                kept[name] = first
                continue
            problems.append(_twice(name, f"{where}, line {kept[name]}", place))
        except (ValueError, RecursionError) as error:
            problems.append(BadFileError(f"The catalog is not valid TOML: {error}", where=place))
        lines[first - 1 : after - 1] = ["\n"] * (after - first)
    return "".join(lines), problems


def _lines(text: str) -> dict[str, int]:
    """Return the line of every header of a table, by its name without quotes."""
    found: dict[str, int] = {}
    line, last = 1, 0
    for header in re.finditer(r"^[ \t]*\[([^\[\]\n]+)\]", text, re.MULTILINE):
        line += text.count("\n", last, header.start())
        last = header.start()
        parts = (part.strip(" \t\"'") for part in header[1].split("."))
        found.setdefault(".".join(parts), line)
    return found


def _headlines(given: Any, where: str) -> tuple[Headline, ...]:
    """Return the headlines of a paper's entry."""
    headlines = []
    for raw in given if isinstance(given, list) else [given]:
        # Its name is the claims' word for it, not an entry's.
        headline: Headline = _entry(Headline, _table(raw, f"{where}.headlines"), {}, f"{where}.headlines")
        if headline.status and (headline.status not in STATUSES or not headline.why):
            raise BadFileError(
                "A headline that no claim decides has a known status and a reason.",
                given=headline.status, allowed=STATUSES, where=where,
            )  # fmt: skip
        headlines.append(headline)
    return tuple(headlines)


def _place(lines: Mapping[str, int], file: str, name: str) -> str:
    """Return the file and the line at which a table begins, and its name."""
    line = f", line {lines[name]}" if name in lines else ""
    return f"{file}{line}, {name}"


def _table(fields: Any, where: str) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise BadFileError("The catalog has a value where a table belongs.", given=fields, where=where)
    return dict(fields)


def _system(facts: Mapping[str, str], table: dict[str, Any], where: str) -> SystemEntry:
    claims = []
    given = table.pop("claims", [])
    for raw in given if isinstance(given, list) else [given]:
        fields = _table(raw, f"{where}.claims")
        value = _table(fields.pop("value", {}), f"{where}.claims, value")
        claims.append(_claim({**fields, **value}, facts["name"], f"{where}.claims"))
    entry: SystemEntry = _entry(SystemEntry, table, {**facts, "claims": tuple(claims)}, where)
    for key, word, allowed in (("shape", entry.shape, SHAPES), ("role", entry.role, ROLES)):
        if word not in allowed:
            raise BadFileError(f"The {key} is not one of the known ones.", given=word, allowed=allowed, where=where)
    if not set(entry.runs) <= set(RUNS):
        raise BadFileError("The key runs holds unknown words.", given=entry.runs, allowed=RUNS, where=where)
    if bool(entry.paper) == bool(entry.source):
        raise BadFileError("A system has either a paper or a source.", given=entry.paper or "neither", where=where)
    if isinstance(entry.default, tuple) and not set(entry.default) <= set(entry.studies):
        raise BadFileError(
            "The key default names a study that the system is not in.",
            given=entry.default, allowed=entry.studies, where=where,
        )  # fmt: skip
    return entry


def _claim(fields: dict[str, Any], system: str, where: str) -> Claim:
    """Return a claim that can get every verdict, or say what it lacks for that."""
    claim: Claim = _entry(Claim, fields, {"system": system}, where)
    if claim.better not in ("lower", "higher"):
        raise BadFileError(
            "The key better is not one of the known words.",
            given=claim.better, allowed=("lower", "higher"), where=where,
        )  # fmt: skip
    if claim.basis == "goal":
        if claim.paper is not None:
            raise BadFileError("A claim has a paper's figure or a goal, not both.", given=claim.says, where=where)
        return replace(claim, level="goal")
    if claim.level not in LEVELS or claim.level == "goal":
        raise BadFileError("A paper's claim has a level.", given=claim.level, allowed=LEVELS, where=where)
    if claim.level in ("proxy", "model") and claim.paper is not None:
        raise BadFileError(
            "A paper's figure of another quantity cannot be judged, only its direction.", given=claim.says, where=where
        )
    if claim.versus is None and "neutral" not in fields:
        raise BadFileError("A claim without versus needs the value of no effect.", given=claim.says, where=where)
    if claim.paper is not None and (claim.paper > claim.neutral) != (claim.better == "higher"):
        raise BadFileError("The paper's figure is not on the better side of neutral.", given=claim.says, where=where)
    return claim


def _entry(kind: Any, given: Mapping[str, Any], facts: Mapping[str, Any], where: str) -> Any:
    """Return an entry from what the catalog gives and what its place says of it."""
    known = {key: each for key, each in kind.__dataclass_fields__.items() if key not in facts}
    unknown = set(given) - set(known)
    if unknown:
        raise BadFileError(
            f"The catalog entry has unknown keys: {', '.join(sorted(unknown))}.",
            allowed=[*known, "claims"] if kind is SystemEntry else known, where=where,
        )  # fmt: skip
    if "name" in facts and not NAME.fullmatch(facts["name"]):
        raise BadFileError(
            "This is no name of an entry.",
            given=facts["name"], allowed="letters and digits, with hyphens between words", where=where,
        )  # fmt: skip
    fields = {}
    for key, value in given.items():
        what, is_one = _TYPES[known[key].type]
        if not is_one(value):
            raise BadFileError(f"The key {key} must be {what}.", given=value, where=where)
        fields[key] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**fields, **facts)
    except TypeError as error:
        raise BadFileError(f"The catalog entry is incomplete: {error}", where=where) from error


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each for each in value)


# Programs of others, installed by `make peers` in the folder of a checkout.
PEERS = Path(".venv-peers") / "bin"


def program(name: str) -> str:
    """Return the path of a program, beside the peers of this folder or on the search path; empty where it is not."""
    return shutil.which(str(PEERS / name)) or shutil.which(name) or ""


def _met(need: str) -> bool:
    if need.startswith("data:"):
        from wavetank.workloads import datasets

        return not datasets.status(need.removeprefix("data:")).missing
    if need.startswith("blas:"):
        # The catalog knows names; the area that they belong to is imported only when one is asked for.
        libraries = importlib.import_module("wavetank.kernels.products.libraries")
        return need.removeprefix("blas:") in libraries.present()
    if need.startswith("program:"):
        return bool(program(need.removeprefix("program:")))
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


def load_object(path: str, name: str, where: str = "", kind: type = object) -> Any:
    """Import and return what ``module:attribute`` names.

    Parameters
    ----------
    path : str
    name : str
        Of the entry, for the error.
    where : str, optional
        File and line of the entry, for the error.
    kind : type, optional
        The class that it derives from; ``type`` for any class.

    Raises
    ------
    BadFileError
        If its module cannot be imported, or nothing of that name and kind is in it.
    """
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except WavetankError:
        raise
    except (Exception, SystemExit) as error:  # what a module does when it is imported is beyond this one's control
        raise BadFileError(
            f"The object of {name!r} could not be loaded: {said(error)}",
            given=path, where=where or path, hint="repair the entry, or reinstall the package",
        ) from error  # fmt: skip
    if kind is not object and not (isinstance(found, type) and (kind is type or issubclass(found, kind))):
        what = "class" if kind is type else f"class derived from {kind.__name__}"
        raise BadFileError(f"The object of {name!r} is no {what}.", given=path, where=where or path)
    return found


def said(error: BaseException) -> str:
    """Return an exception in words, with the file and the line that raised it."""
    place, last = "", error.__traceback__
    while last is not None:
        # What asks for a module is no reason why it fails: this file, and Python's own import machinery.
        file = last.tb_frame.f_code.co_filename
        if not file.startswith(("<frozen", str(Path(importlib.__file__).parent))) and file != __file__:
            place = f" ({file}, line {last.tb_lineno})"
        last = last.tb_next
    if isinstance(error, SyntaxError):
        # The module that cannot be read has no frame; the error itself names it.
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
    return f"{kind}{error}{place}"
