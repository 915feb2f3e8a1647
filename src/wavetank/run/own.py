"""Systems of a user's own in a study: a class in a file or a module, or a class or an object given in Python.

Such a system is named after its class.  What it must offer is what the systems of the study have in common, and what
another process needs to build it travels with its trials (:mod:`wavetank.run.parcels`).  A run's folder says where the
code was, for a reader: code is loaded because a user names it in this call, never because a file of a run does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import re
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from wavetank import units
from wavetank.errors import BadValueError, WavetankError, nearest_of
from wavetank.ledger import catalog, code
from wavetank.ledger.catalog import SystemEntry
from wavetank.ledger.facts import parameters_of
from wavetank.run.parcels import Parcel, from_file, imported, parcel_of
from wavetank.settings import check_parameters
from wavetank.text import plain

FORMS = "FILE.py:CLASS or package.module:CLASS"
_LONGEST_LINE = 140


@dataclass(frozen=True)
class OwnSystem:
    """A system of a user's own: what a plan keeps of it, and its code where this process has it.

    Attributes
    ----------
    name : str
        Made of the name of its class.
    reference : str
        What ``--policy`` takes, or ``module.CLASS`` of what was given in Python.
    code : str
        A checksum of its source; empty where there is none to read.
    kind : type or None
        Its class; None where a run's folder alone speaks of it.
    made : object
        The object that was given; None for a class, which every trial builds anew.
    parcel : Parcel or None
        What other processes need.
    """

    name: str
    reference: str
    code: str = ""
    kind: type | None = field(default=None, compare=False, repr=False)
    made: object = field(default=None, compare=False, repr=False)
    parcel: Parcel | None = field(default=None, compare=False, repr=False)

    @property
    def from_memory(self) -> bool:
        """Whether it was given in Python, so that no command line can name it."""
        return ":" not in self.reference

    @property
    def where(self) -> str:
        """Where it was given."""
        return "systems" if self.from_memory else f"--policy {self.reference}"


def from_reference(text: str) -> OwnSystem:
    """Load the class that a user names on a command line.

    Parameters
    ----------
    text : str
        ``FILE.py:CLASS``, or ``package.module:CLASS`` of what can be imported.

    Raises
    ------
    BadFileError
        If there is no such file or module, or it cannot be run.
    BadValueError
        If there is no such class in it.
    """
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise BadValueError("This names no class.", given=text, allowed=FORMS, where="--policy")
    where = f"--policy {text}"
    is_file = place.endswith(".py") or "/" in place or "\\" in place
    module = from_file(Path(place), where) if is_file else imported(place, where)
    kind = getattr(module, name, None)
    if not isinstance(kind, type):
        classes = [each for each, found in vars(module).items() if isinstance(found, type) and not each.startswith("_")]
        raise BadValueError(
            f"There is no class {name!r} in {place}." if kind is None else f"{name!r} in {place} is no class.",
            allowed=classes or f"{place} has no class", nearest=nearest_of(name, classes), where=where,
        )  # fmt: skip
    return OwnSystem(_short_name(kind), text, _checksum(module), kind, None, parcel_of(kind, where))


def from_memory(given: Any) -> OwnSystem:
    """Return the system of a class or an object given in Python.

    Parameters
    ----------
    given : type or object

    Raises
    ------
    BadValueError
        If it is neither, or other processes cannot have it.
    """
    kind = given if isinstance(given, type) else type(given)
    if kind.__module__ == "builtins":
        raise BadValueError(
            "A system is a name of the catalog, a class or an object of a class.",
            given=given, allowed="names (wavetank list), classes, objects", where="systems",
        )  # fmt: skip
    reference = f"{kind.__module__}.{kind.__qualname__}"
    made = None if given is kind else given
    return OwnSystem(_short_name(kind), reference, _checksum(kind), kind, made, parcel_of(given, "systems"))


def collect(systems: Iterable[Any], loaded: Iterable[OwnSystem] = ()) -> tuple[list[str], dict[str, OwnSystem]]:
    """Return the names of systems in their order, and those of a user's own by name.

    Several objects of one class are numbered.

    Parameters
    ----------
    systems : iterable
        Names, classes and objects.
    loaded : iterable of OwnSystem
        Those whose name stands among the systems, or that follow them.

    Raises
    ------
    BadValueError
        If two classes would have one name, or a system of the catalog has it.
    """
    found = {each.name: each for each in _distinct(loaded)}
    names: list[str] = []
    for given in systems:
        own = None if isinstance(given, str) else _numbered(given, found)
        if own is not None:
            found[own.name] = own
        names.append(given if own is None else own.name)
    return list(dict.fromkeys([*names, *found])), found


def _distinct(loaded: Iterable[OwnSystem]) -> Iterator[OwnSystem]:
    """Yield each system once; raise BadValueError where two of them have one name."""
    seen: dict[str, OwnSystem] = {}
    for own in loaded:
        other = seen.setdefault(own.name, own)
        if other.kind is not own.kind:
            raise _taken(own, f"the class {other.reference}")
        if other is own:
            yield own


def _numbered(given: Any, found: Mapping[str, OwnSystem]) -> OwnSystem:
    """Return the system of a class or an object, under a name that no other object of its class has."""
    own = from_memory(given)
    name, number = own.name, 1
    while name in found:
        other = found[name]
        if other.kind is not own.kind:
            raise _taken(own, f"the class {other.reference}")
        if other.made is own.made:
            return other
        number += 1
        name = f"{own.name}-{number}"
    return dataclasses.replace(own, name=name)


def _taken(own: OwnSystem, by: str) -> BadValueError:
    return BadValueError(
        f"The name {own.name!r} of the class {own.reference} is that of {by}.", where=own.where,
        hint="rename the class; a system of the catalog is given by its name",
    )  # fmt: skip


def fitted(own: OwnSystem, study: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check that a system can take part in a study, and return its parameters as they are kept.

    It is built once, from what other processes get.

    Parameters
    ----------
    own : OwnSystem
        With its code.
    study : str
        The study's name.
    given : mapping
        Constructor arguments as text, TOML values or Python values; for an object there are none to give.

    Raises
    ------
    BadValueError
        If the catalog has a system of its name, a parameter is wrong, it cannot be built, or it lacks what systems of
        the study have.
    """
    if own.kind is None or own.parcel is None:
        raise _absent(own)
    if own.name in catalog.everything().systems:
        raise _taken(own, "a system of the catalog")
    kind = catalog.study(study).load()
    if kind.by_name:
        raise BadValueError(
            f"The study {study} starts its systems by their names, which only those of the catalog have.",
            given=own.reference, where=own.where, hint="wavetank new system NAME writes what one of the catalog needs",
        )  # fmt: skip
    if own.made is not None and given:
        raise BadValueError(
            f"The system {own.name!r} is an object, which has its parameters already.", given=", ".join(given),
            where=f"system {own.name}", hint=f"build {own.kind.__name__} with them, or give the class",
        )  # fmt: skip
    form = _form(own.kind)
    values = _converted(own, form, given) if own.made is None else _kept_fields(own.made)
    try:
        built = own.parcel.build(values)
    except WavetankError:
        raise
    except (Exception, SystemExit) as error:  # what a constructor does is beyond this one's control
        raise BadValueError(
            f"{own.kind.__name__} could not be built: {catalog.said(error)}.", given=values or None, where=own.where
        ) from error
    wanted = interface_of(study)
    lacking = wanted.missing_of(built)
    if lacking:
        raise BadValueError(
            f"{own.kind.__name__} cannot take part in {study}: it lacks {lacking}.",
            allowed=wanted.in_words() + (f" (the interface {wanted.word})" if wanted.word else ""), where=own.where,
            hint=f"wavetank show {kind.baseline} --full names the code of a system that has all of it",
        )  # fmt: skip
    return values


def _absent(own: OwnSystem) -> BadValueError:
    """Return the error of a system that a run's folder names, whose code nobody gave."""
    how = f"--policy {own.reference}"
    if own.from_memory:
        how = f"--policy FILE.py:CLASS of a file with {own.reference}, or in Python among systems"
    return BadValueError(
        f"The system {own.name!r} is not in the catalog, and its code is not loaded because a file of a run names it.",
        given=own.reference, where=f"system {own.name}", hint=f"give it again: {how}",
    )  # fmt: skip


def check_same(before: Mapping[str, OwnSystem], now: Mapping[str, OwnSystem], folder: Path) -> None:
    """Raise when a run would go on with other systems, or with other code of them, than it began with.

    Parameters
    ----------
    before, now : mapping of str to OwnSystem
        As the run's folder has them, and as they were given again.
    folder : Path
        The run's folder.
    """
    for name, own in now.items():
        if name not in before:
            raise BadValueError(
                f"The run to continue has no system {name!r}.", given=own.reference, allowed=before or None,
                where=str(folder), hint="the same command without --resume begins a new run",
            )  # fmt: skip
        if own.code != before[name].code:
            raise BadValueError(
                f"The code of {name!r} is not that of the run to continue.",
                given=own.reference, where=str(folder),
                hint="the same command without --resume begins a new run with the present code",
            )  # fmt: skip


@dataclass(frozen=True)
class Interface:
    """What every system of a study has.

    Attributes
    ----------
    word : str
        What the catalog calls it; empty without a word.
    common : tuple of str
        Public methods and attributes of all of them.
    ways : tuple of tuple of str
        Methods of which each system has one group whole; empty where ``common`` is enough.
    """

    word: str
    common: tuple[str, ...]
    ways: tuple[tuple[str, ...], ...]

    def in_words(self) -> str:
        """Return the whole interface."""
        return _listed(self.common, self.ways)

    def missing_of(self, built: Any) -> str:
        """Return what a system lacks, in words; empty when it lacks nothing."""
        common = [name for name in self.common if not _has(built, name)]
        lacking = [tuple(name for name in way if not _has(built, name)) for way in self.ways]
        return _listed(common, lacking if all(lacking) else ())


def interface_of(study: str) -> Interface:
    """Return what the systems of a study's plain run have in common, of those that can be imported here.

    Parameters
    ----------
    study : str
        The study's name.
    """
    members: list[set[str]] = []
    methods: list[set[str]] = []
    words = set()
    for name in catalog.everything().plain_run(study):
        entry = catalog.system(name)
        try:
            kind = entry.load()
        except WavetankError:
            continue
        public = {each for each in dir(kind) if not each.startswith("_")}
        declared = {each for base in kind.__mro__ for each in inspect.get_annotations(base)}
        members.append(public | {each for each in declared if not each.startswith("_")})
        methods.append({each for each in public if callable(getattr(kind, each, None))})
        words.add(entry.interface)
    common = set.intersection(*members) if members else set()
    rest = {frozenset(each - common) for each in methods}
    least = sorted(sorted(each) for each in rest if not any(other < each for other in rest))
    return Interface(
        words.pop() if len(words) == 1 else "", tuple(sorted(common)), tuple(map(tuple, least)) if all(least) else ()
    )


def _has(built: Any, name: str) -> bool:
    # Without running a property; a class that makes up its attributes is asked.
    found = inspect.getattr_static(built, name, None)
    return found is not None or (hasattr(type(built), "__getattr__") and hasattr(built, name))


def _listed(names: Sequence[str], ways: Sequence[Sequence[str]]) -> str:
    """Return names, and the groups of which one is needed, as a sentence has them.

    Examples
    --------
    >>> _listed(["state", "start"], [["choose"], ["place", "pool"]])
    'state, start, and choose or (place and pool)'
    """
    groups = [f"({' and '.join(way)})" if len(way) > 1 and len(ways) > 1 else " and ".join(way) for way in ways]
    text = ", ".join(names)
    return (f"{text}, and " if text and groups else text) + " or ".join(groups)


def entry_of(own: OwnSystem, about: Mapping[str, Any]) -> SystemEntry:
    """Return what is known of a system as an entry of the catalog, without its code.

    Parameters
    ----------
    own : OwnSystem
    about : mapping
        Provenance of the run.
    """
    does = str(about.get("own", {}).get(own.name, {}).get("does", ""))
    return SystemEntry(
        name=own.name, area="", problem="", object="", shape="", does=does, runs=(), studies=(),
        source={"title": f"{own.reference}, which is not in the catalog"},
    )  # fmt: skip


def facts(own: OwnSystem, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``run.json`` says of a system, so that its report can be made without its code.

    Parameters
    ----------
    own : OwnSystem
        With its code.
    values : mapping
        Its parameters that differ from the defaults.
    """
    if own.kind is None:
        raise _absent(own)
    rows = []
    for item in parameters_of(_form(own.kind)):
        value = values.get(item.name, item.default)
        if own.made is not None:
            value = getattr(own.made, "__dict__", {}).get(item.name, value)
        rows.append(
            {
                "name": item.name, "value": _brief(value), "unit": item.unit, "says": item.says,
                "default": "" if item.required else _brief(item.default),
            }
        )  # fmt: skip
    return {"from": own.reference, "code": own.code, "does": _does(own.kind), "parameters": rows}


def notes(systems: Iterable[OwnSystem]) -> list[str]:
    """Return what a reader of a run must know of the systems that are not in the catalog."""
    found = []
    for own in systems:
        how = f"to repeat the run, give it again with --policy {own.reference}"
        if own.from_memory:
            how = "study.toml alone cannot repeat the run, give it again among the systems in Python"
        found.append(f"{own.name} is {own.reference}, which is not in the catalog: {how}.")
    return found


def options(systems: Iterable[OwnSystem]) -> list[str]:
    """Return the options of a command line that give systems again; what was given in Python needs a file first."""
    words = []
    for own in systems:
        words += ["--policy", f"FILE.py:{own.reference.rpartition('.')[2]}" if own.from_memory else own.reference]
    return words


def _short_name(kind: type) -> str:
    """Return the name of a class as names of systems are written.

    Examples
    --------
    >>> _short_name(type("LRURouter2", (), {})), _short_name(type("_My_Router", (), {}))
    ('lru-router2', 'my-router')
    """
    words = re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3-\2\4", kind.__name__)
    return re.sub(r"[\W_]+", "-", words).strip("-").lower() or "own"


def _does(kind: type) -> str:
    """Return the first line of what a class says of itself; a dataclass without a text has its signature for one."""
    text = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
    line = "" if text.startswith(f"{kind.__name__}(") else plain(text.partition("\n")[0])
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 3]}..."


def _brief(value: Any) -> str:
    text = units.typed(value, ", ")
    return text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 3]}..."


def _form(kind: type) -> type:
    """Return a dataclass with the fields that a class is built from: itself, or one made of its signature.

    The type of a parameter is the one that is written, else that of its default.
    """
    home = next((base for base in kind.__mro__ if "__init__" in vars(base)), object)
    if "__dataclass_fields__" in vars(home) and vars(home)["__dataclass_params__"].init:
        with contextlib.suppress(Exception):
            typing.get_type_hints(kind)
            return kind
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return dataclasses.make_dataclass(kind.__name__, [])
    hints: Mapping[str, Any] = {}
    with contextlib.suppress(Exception):
        hints = typing.get_type_hints(kind.__init__)  # type: ignore[misc]
    fields: list[Any] = []
    for each in parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY):
            continue
        default = each.default
        plain_kind = type(default) if isinstance(default, bool | int | float | str) else object
        hint = hints.get(each.name, plain_kind)
        if default is each.empty:
            fields.append((each.name, hint))
        else:
            fields.append((each.name, hint, field(default_factory=partial(_same, default))))
    return dataclasses.make_dataclass(kind.__name__, fields, kw_only=True)


def _same(value: Any) -> Any:
    return value


def _converted(own: OwnSystem, form: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a class with the types that it asks for, all of them such as a file can hold."""
    try:
        values = check_parameters(form, given, where=f"system {own.name}")
    except BadValueError as error:
        # The catalog knows nothing of it.
        error.hint = None
        raise
    needed = [item.name for item in parameters_of(form) if item.required and item.name not in values]
    if needed:
        raise BadValueError(
            f"{form.__name__} cannot be built without a value of: {', '.join(needed)}.", where=f"system {own.name}",
            hint=f"--set {own.name}.{needed[0]}=VALUE, or a default in the class; in Python, give an object",
        )  # fmt: skip
    for name, value in values.items():
        if not _is_writable(value):
            raise BadValueError(
                "A study file cannot hold this value.", given=value, allowed="texts, numbers, truth values, lists",
                where=f"system {own.name}, {name}", hint=f"build {form.__name__} with it, and give the object",
            )  # fmt: skip
    return values


def _kept_fields(made: Any) -> dict[str, Any]:
    """Return the fields of an object of a dataclass that differ from their defaults and that a file can hold."""
    if not dataclasses.is_dataclass(made) or _form(type(made)) is not type(made):
        return {}
    found = {}
    for item in dataclasses.fields(made):
        value = getattr(made, item.name, None)
        if item.init and value is not None and _is_writable(value):
            default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
            if type(default) is not type(value) or default != value:
                found[item.name] = value
    return found


def _is_writable(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_writable(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def _checksum(what: Any) -> str:
    """Return a checksum of what a module or a class does; empty where its text cannot be read."""
    try:
        text = textwrap.dedent(inspect.getsource(what))
    except (OSError, TypeError):
        return ""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        text = code.meaning(text)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
