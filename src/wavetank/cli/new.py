"""``wavetank new``: writes the files that a system or a study needs, so that what is left is to fill in one of them.

Within a checkout of Wavetank the files go into its source tree and its tests; elsewhere into a plug-in package in the
working folder, which the entry-point group ``wavetank.systems`` registers.  What is written passes the tests as it is:
a router has a small policy of its own, any other system begins as a subclass of its study's baseline.
"""

from __future__ import annotations

import inspect
import json
import keyword
import re
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

import wavetank
from wavetank.cli.list import AREAS
from wavetank.errors import BadFileError, BadValueError, WavetankError, nearest_of, unknown_name
from wavetank.extras import pip_command
from wavetank.files import read_text, write_atomic
from wavetank.ledger import catalog
from wavetank.ledger.catalog import COMMANDS, ENTRY_POINTS, ROLES, SHAPES
from wavetank.terminal import say, say_heading

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PROBLEM = re.compile(r"[a-z]+/[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST_NAME, _LONGEST_TEXT, _LARGEST_BYTES = 32, 100, 10**7
# Names that the templates import: a class of the same name would hide them.
_IMPORTED = {
    "Any", "Arrival", "BadValueError", "Callable", "Case", "Chart", "ClassVar", "Exact", "Iterable", "Measurements",
    "Metric", "NDArray", "Study", "TimingStudy", "WorkersView",
}  # fmt: skip


@click.group()
def command() -> None:
    """Write the files that a new system or a new study needs."""


@command.command("system")
@click.argument("name")
@click.option("--problem", required=True, metavar="AREA/PROBLEM", help="What it is an answer to: serving/routing.")
@click.option("--shape", type=click.Choice(list(SHAPES)), help="What it is; by default as its study's baseline.")
@click.option(
    "--role", type=click.Choice(list(ROLES)), default="system", show_default=True, help="What it is there for."
)
@click.option("--study", "studies", multiple=True, metavar="STUDY", help="A study it takes part in; may be repeated.")
@click.option("--does", default="", metavar="TEXT", help="One sentence, shown by `wavetank list`.")
@click.option("--source", default="Unpublished", metavar="TEXT", help="Title of its source.")
def _system(
    name: str, problem: str, shape: str | None, role: str, studies: tuple[str, ...], does: str, source: str
) -> None:
    """Write the files of the system NAME: a module to fill in, its entry, its test."""
    area, within = _checked_problem(problem, "system")
    _check_name(name, "system")
    studies = studies or _studies_of(area, within, name)
    study = catalog.study(studies[0]).load()
    for other in studies[1:]:
        catalog.study(other)
    base = catalog.system(study.baseline)
    kind = base.load()
    router = base.interface == "router"
    does = does or (
        "Joins the worker with the fewest requests, as a start."
        if router
        else f"Answers as {base.name} does where it has no method of its own."
    )
    plan = _Plan.within(area, within)
    module = name.replace("-", "_")
    facts = {
        **_words(name, {kind.__name__}, "System"),
        "does": _checked_text(does, "does", "."),
        "source": _checked_text(source, "source").rstrip("."),
        "module": f"{plan.package}.{module}",
        "shape": shape or base.shape,
        "role": role,
        "studies": studies,
        "study_module": study.__module__,
        "base": base.name,
        "base_module": kind.__module__,
        "base_class": kind.__name__,
        "methods": _methods_of(kind),
        "launch": base.launch.replace(f" {base.name} ", f" {name} "),
        **{key: getattr(base, key) for key in ("interface", "runs", "parameters", "needs", "extra")},
    }
    if router:
        # The policy of the template has parameters of its own, and needs nothing.
        facts |= {"parameters": {}, "needs": (), "extra": ""}
    facts["object"] = f"{facts['module']}:{facts['class_name']}"
    template = "router" if router else "system"
    plan.add(plan.folder / f"{module}.py", f"{template}.py", facts)
    plan.add(plan.tests / f"test_{module}.py", f"test_{template}.py", facts)
    plan.note(f"system `{name}`")
    plan.register("system.toml", facts)
    plan.write()
    say_heading("Next")
    say(f"Fill in {plan.shown(plan.folder / f'{module}.py')}; correct does, source and differs in the catalog entry.")
    say(f"wavetank compare {studies[0]} --systems {name},{base.name}")


@command.command("study")
@click.argument("name")
@click.option("--problem", required=True, metavar="AREA/PROBLEM", help="What it asks about; made when it is new.")
@click.option("--timing", is_flag=True, help="The answer is time: systems run interleaved.")
@click.option("--shape", type=click.Choice(list(SHAPES)), help="Of its systems.")
@click.option("--asks", default="", metavar="TEXT", help="The question, in one sentence.")
def _study(name: str, problem: str, timing: bool, shape: str | None, asks: str) -> None:
    """Write the files of the study NAME: a module to fill in with its baseline, their entries, its test."""
    area, within = _checked_problem(problem, "study")
    baseline = f"{name}-baseline"
    _check_name(name, "study")
    _check_name(baseline, "system", longest=_LONGEST_NAME + len("-baseline"))
    plan = _Plan.within(area, within)
    module = f"study_{name.replace('-', '_')}"
    words = _words(name, set(), "Study")
    facts = {
        **words,
        "module": f"{plan.package}.{module}",
        "baseline": baseline,
        "baseline_class": f"{words['class_name']}Baseline",
        "shape": shape or ("kernel" if timing else "policy"),
        "asks": _checked_text(asks or f"Which system answers {name} best?", "asks", "?"),
    }
    facts["object"] = f"{facts['module']}:{facts['class_name']}"
    facts["baseline_object"] = f"{facts['module']}:{facts['baseline_class']}"
    template = "timing_study" if timing else "study"
    plan.add(plan.folder / f"{module}.py", f"{template}.py", facts)
    plan.add(plan.tests / f"test_{module}.py", f"test_{template}.py", facts)
    plan.note(f"study `{name}`")
    plan.register("study.toml", facts)
    plan.write()
    say_heading("Next")
    say(f"Fill in {plan.shown(plan.folder / f'{module}.py')}: the question, the inputs, what a system must do.")
    say(f"wavetank compare {name}")
    say(f"wavetank new system NAME --problem {problem} --study {name}")


@dataclass
class _Plan:
    """The files to write, and where; nothing is written before all of them are known to be new."""

    root: Path
    package: str
    folder: Path
    tests: Path
    area: str
    problem: str
    registered: bool
    files: dict[Path, str] = field(default_factory=dict)
    appended: dict[Path, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def within(cls, area: str, problem: str) -> _Plan:
        """Return the plan of a checkout around the working folder, or of a plug-in package in it."""
        here = Path.cwd()
        for root in (here, *here.parents):
            source = root / "src" / "wavetank"
            if not (source / "ledger" / "catalog.py").is_file():
                continue
            if source.resolve() != Path(wavetank.__file__).resolve().parent:
                raise WavetankError(
                    "The wavetank that runs is not the one of this checkout.",
                    given=str(Path(wavetank.__file__).parent), allowed=str(source),
                    where=str(root), hint=pip_command("-c", str(root / "constraints.txt"), "-e", str(root)),
                )  # fmt: skip
            folder = source / area / problem
            tests = root / "tests" / area / problem
            plan = cls(root, f"wavetank.{area}.{problem}", folder, tests, area, problem, registered=True)
            for package in (folder.parent, folder):
                if not (package / "__init__.py").exists():
                    words = _words(package.name, set(), "")
                    plan.add(package / "__init__.py", "problem.py", words)
                    if package == folder.parent:
                        plan.notes.append(f"Add wavetank.{area} to the layers of import-linter in pyproject.toml.")
            return plan
        return cls._of_a_plugin(here, area, problem)

    @classmethod
    def _of_a_plugin(cls, here: Path, area: str, problem: str) -> _Plan:
        project = here / "pyproject.toml"
        package = f"wavetank_{problem}"
        if project.exists():
            try:
                points = tomllib.loads(read_text(project, largest_bytes=_LARGEST_BYTES))
            except (ValueError, RecursionError) as error:
                raise BadFileError("The file is not valid TOML.", given=str(error), where=str(project)) from error
            entries: Any = points
            for key in ("project", "entry-points", ENTRY_POINTS):
                entries = entries.get(key) if isinstance(entries, dict) else None
            if not entries or not isinstance(entries, dict):
                raise BadFileError(
                    "The project of this folder registers no package of systems.", where=str(project),
                    hint=f'add [project.entry-points."{ENTRY_POINTS}"] with {problem} = "{package}"',
                )  # fmt: skip
            package = next(iter(entries.values()))
            if not isinstance(package, str) or not all(part.isidentifier() for part in package.split(".")):
                raise BadFileError(
                    "The entry point names no package.", given=package, allowed="a name such as wavetank_routing",
                    where=f"{project}, entry-point group {ENTRY_POINTS}",
                )  # fmt: skip
        parts = package.split(".")
        below = [home / Path(*parts) for home in (here, here / "src")]
        folder = next((each for each in below if each.is_dir()), below[0])
        plan = cls(here, package, folder, here / "tests", area, problem, registered=False)
        facts = {"package": package, "group": ENTRY_POINTS, "words": "A plug-in of Wavetank"}
        if not project.exists():
            plan.add(project, "pyproject.toml", facts)
        if not (folder / "__init__.py").exists():
            plan.add(folder / "__init__.py", "problem.py", facts)
        plan.notes.append(pip_command("-e", "."))
        return plan

    def add(self, path: Path, template: str, facts: Mapping[str, Any]) -> None:
        """Plan a new file; raises BadFileError where there is one."""
        if path.exists() or path.is_symlink():
            raise BadFileError(
                "There is a file of that name, which stays as it is.", given=self.shown(path), where=str(self.root),
                hint="choose another name",
            )  # fmt: skip
        self.files[path] = _rendered(template, facts)

    def register(self, template: str, facts: Mapping[str, Any]) -> None:
        """Plan the entry at the end of the catalog; everything that is in it stays, comments too."""
        path = self.folder / "catalog.toml"
        old = read_text(path, largest_bytes=_LARGEST_BYTES) if path.exists() else ""
        new = f"{old.rstrip()}\n\n{_rendered(template, facts)}".lstrip()
        try:
            tomllib.loads(new)
        except (ValueError, RecursionError) as error:
            raise BadFileError("Nothing can be added to this catalog.", given=str(error), where=str(path)) from error
        self.appended[path] = new

    def note(self, what: str) -> None:
        """Plan the line of what is new, at the end of the first section of a checkout's list of changes."""
        path = self.root / "CHANGELOG.md"
        if not self.registered or not path.exists():
            return
        head, mark, rest = read_text(path, largest_bytes=_LARGEST_BYTES).partition("\n## ")
        section, next_mark, older = rest.partition("\n## ")
        line = f"- `{self.area}/{self.problem}`: {what}."
        between = f"\n{next_mark}" if next_mark else ""
        self.appended[path] = f"{head}{mark}{section.rstrip()}\n{line}\n{between}{older}"

    def write(self) -> None:
        """Write all files, those that register the others last; on a failure or Ctrl-C all is as it was."""
        done: list[Path] = []
        before = {path: path.read_bytes() if path.exists() else None for path in self.appended}
        try:
            for path, text in self.files.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                done.append(path)
                write_atomic(path, text)
            for path, text in self.appended.items():
                write_atomic(path, text)
        except OSError as error:
            self._undo(done, before)
            raise WavetankError(
                f"The files cannot be written: {error.strerror or error}.", where=str(error.filename or self.root)
            ) from error
        except BaseException:
            self._undo(done, before)
            raise
        for path in (*self.files, *self.appended):
            say(self.shown(path))
        for note in self.notes:
            say(note)

    def _undo(self, done: list[Path], before: Mapping[Path, bytes | None]) -> None:
        for path in (*done, *(path for path, old in before.items() if old is None)):
            path.unlink(missing_ok=True)
        for path, old in before.items():
            if old is not None and path.read_bytes() != old:
                path.write_bytes(old)

    def shown(self, path: Path) -> str:
        """Return a path as it is seen from the root."""
        return path.relative_to(self.root).as_posix()


def _rendered(template: str, facts: Mapping[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    # Text, lists and numbers are written alike in JSON and in TOML.
    environment.filters["toml"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.get_template(f"{template}.jinja").render(facts)


def _words(name: str, taken: set[str], suffix: str) -> dict[str, str]:
    """Return the name as words and as a class that hides none of those that the templates import."""
    words = re.split(r"[-_]", name)
    class_name = "".join(map(str.capitalize, words))
    if class_name in taken | _IMPORTED or keyword.iskeyword(class_name):
        class_name += suffix
    return {"name": name, "words": " ".join(words).capitalize(), "class_name": class_name}


def _methods_of(kind: type) -> list[str]:
    """Return the public methods of a class with their parameters, as lines of a docstring."""
    lines = []
    for name, method in inspect.getmembers(kind, inspect.isroutine):
        if name.startswith("_"):
            continue
        given = [each for each in inspect.signature(method).parameters if each != "self"]
        says = (inspect.getdoc(method) or "").partition("\n")[0].replace("\\", "")
        text = f"* ``{name}({', '.join(given)})``" + (f": {says}" if says else "")
        lines.append(textwrap.fill(text, 116, initial_indent="    ", subsequent_indent="      "))
    return lines


def _check_name(name: str, what: str, longest: int = _LONGEST_NAME) -> None:
    if not _NAME.fullmatch(name) or len(name) > longest or keyword.iskeyword(name):
        raise BadValueError(
            f"This is no name of a {what}.",
            given=name,
            allowed=f"lower-case words with hyphens, {longest} characters at most, no word of Python",
            nearest=re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:longest].strip("-") or None,
        )
    everything = catalog.everything()
    for entries in (everything.systems, everything.studies):
        if name in entries:
            raise BadValueError(
                "The name is taken.", given=name, where=entries[name].where, hint=f"wavetank show {name}"
            )
    if name in (*COMMANDS, "studies", "papers"):
        raise BadValueError("The name is that of a table of catalogs.", given=name, hint="choose another name")


def _checked_problem(text: str, what: str) -> tuple[str, str]:
    """Return area and problem; a problem may be new, an area not."""
    known = {f"{entry.area}/{entry.problem}" for entry in _entries()}
    area, _, problem = text.partition("/")
    if not _PROBLEM.fullmatch(text) or keyword.iskeyword(problem):
        raise BadValueError(
            "This is no problem of an area.", given=text, allowed="AREA/PROBLEM in lower case, such as serving/routing",
            nearest=nearest_of(text, known), where=f"wavetank new {what} --problem",
        )  # fmt: skip
    if text not in known and area not in AREAS:
        raise unknown_name("area", area, AREAS, where=f"wavetank new {what} --problem", hint="wavetank list")
    return area, problem


def _entries() -> list[Any]:
    everything = catalog.everything()
    return [*everything, *everything.studies.values()]


def _studies_of(area: str, problem: str, name: str) -> tuple[str]:
    """Return the first study of a problem whose baseline is of the problem as well."""
    found = catalog.everything().studies.values()
    studies = [entry for entry in found if (entry.area, entry.problem) == (area, problem)]
    for entry in studies:
        baseline = catalog.system(entry.load().baseline)
        if (baseline.area, baseline.problem) == (area, problem):
            return (entry.name,)
    if studies:
        return (studies[0].name,)
    known = {f"{entry.area}/{entry.problem}" for entry in found}
    raise BadValueError(
        "This problem has no study yet, and every system takes part in one.",
        given=f"{area}/{problem}", nearest=nearest_of(f"{area}/{problem}", known),
        where=f"wavetank new system {name} --problem",
        hint=f"wavetank new study STUDY --problem {area}/{problem}, or name one of another problem with --study",
    )  # fmt: skip


def _checked_text(text: str, option: str, end: str = "") -> str:
    if len(text) > _LONGEST_TEXT or not text.isprintable() or set(text) & {"\\", '"'} or not text.endswith(end):
        ending = f", with a {end!r} at its end" if end else ""
        raise BadValueError(
            "This is no sentence that fits into a catalog.", given=text,
            allowed=f"{_LONGEST_TEXT} characters on one line, without quotes and backslashes{ending}",
            where=f"--{option}",
        )  # fmt: skip
    return text
