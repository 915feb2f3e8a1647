"""``wavetank check`` for instance files: a protocol, how many nodes, what may go wrong; every interleaving is explored.

A file says ``[instance]`` (protocol, size, requests, properties, order), ``[parameters]`` of the protocol,
``[environment]``, ``[clock]``, ``[[faults]]`` and ``[budget]``; every table but the first may be left out.  Time passes
where there is a table ``[clock]``, be it empty, or with ``--set clock=discrete``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from wavetank import html_page
from wavetank.check.explore.clock import Clock
from wavetank.check.explore.environment import Environment
from wavetank.check.explore.explorer import ORDERS, Exploration, SearchBudget, explore
from wavetank.check.explore.verdicts import Judgement, limits_in_words
from wavetank.check.explore.views import Predicate
from wavetank.check.report import Budget, CheckReport, Verdict
from wavetank.errors import BadFileError, WavetankError, nearest_of
from wavetank.files import read_text
from wavetank.ledger import catalog
from wavetank.settings import check_parameters, setting
from wavetank.sim.faults import FAULTS, Fault
from wavetank.sim.node import Algorithm, Snapshot
from wavetank.sim.simulation import Request
from wavetank.svg import escape

_TABLES = ("instance", "parameters", "environment", "clock", "faults", "budget")
_CLOCKS = ("", "none", "discrete")
_PROPERTIES = ("answered", "decided")
# Text of a terminal of 80 columns, less the indent of evidence.
_WIDTH = 66
_LARGEST_BYTES = 2**20
_MOST_DEPTH = 32


@dataclass(frozen=True, kw_only=True)
class _Instance:
    protocol: str = setting("", says="Name of the protocol in the catalog")
    size: int = setting(3, says="Number of nodes", low=1, high=64)
    requests: tuple[Any, ...] = setting((), says="Requests of clients: tables of node, command and at")
    eventually: tuple[str, ...] = setting((), says="Conditions that must hold eventually", choices=_PROPERTIES)
    order: str = setting("breadth-first", says="Order of the search", choices=ORDERS)
    symmetry: bool = setting(False, says="Whether states that differ by a renaming of nodes count as one")
    exact: bool = setting(False, says="Whether full states are compared, beyond their fingerprints")
    seed: int = setting(0, says="Seed of the nodes' random numbers", low=0, high=2**31)


@dataclass(frozen=True, kw_only=True)
class _Request:
    node: int = setting(0, says="Node that the client asks", low=0)
    command: object = setting(None, says="Command of the request")
    at: float = setting(0.0, says="Position among the requests of one node", low=0)


@dataclass(frozen=True, kw_only=True)
class _Budget:
    states: int = setting(20_000_000, says="Most distinct states", low=1)
    seconds: float = setting(0.0, unit="s", says="Wall time; 0: the limit of the command line", low=0)
    memory_bytes: int = setting(0, unit="bytes", says="Memory; 0: the limit of the command line", low=0)
    depth: int = setting(0, says="Most actions from the start; 0: no bound", low=0)


@dataclass(frozen=True, kw_only=True)
class InstanceCheck:
    """Explores every interleaving of a small instance of a protocol of the catalog."""

    order: str = setting("", says="Order of the search, in place of the file's order", choices=("", *ORDERS))
    states: int = setting(0, says="Budget of states, in place of the file's budget; 0: the file's", low=0)
    clock: str = setting("", says="Whether time passes, in place of the table [clock] of the file", choices=_CLOCKS)

    def check(self, path: Path, budget: Budget) -> CheckReport:
        """Read an instance file and explore it.

        Parameters
        ----------
        path : Path
        budget : Budget
            The smaller of this and the file's own counts.

        Raises
        ------
        BadFileError
            For a file that is no TOML, or says what is unknown or makes no sense, with its line.
        """
        text = read_text(path, largest_bytes=_LARGEST_BYTES)
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"\(at (line \d+, column \d+)\)", str(error))
            where = f"{path}, {place[1]}" if place else f"{path}, at its end"
            raise BadFileError("The file is not TOML.", given=str(error), where=where) from error
        except RecursionError as error:
            raise _too_deep(path) from error
        if _depth(tables) > _MOST_DEPTH:
            raise _too_deep(path)
        file = _File(path, text)
        for name in tables:
            if name not in _TABLES:
                file.refuse("There is no such table.", "", name, allowed=_TABLES, nearest=nearest_of(name, _TABLES))
        instance = _Instance(**file.table(_Instance, tables, "instance"))
        algorithm = file.protocol(instance.protocol, tables)
        limits = _Budget(**file.table(_Budget, tables, "budget"))
        environment = file.made(Environment, file.table(Environment, tables, "environment"), "environment")
        clock = file.made(Clock, file.table(Clock, tables, "clock"), "clock")
        timed = "clock" in tables if not self.clock else self.clock == "discrete"
        faults = file.faults(tables, instance.size)
        requests = file.requests(instance)
        spend = SearchBudget(
            states=self.states or limits.states,
            seconds=min(limits.seconds or budget.seconds, budget.seconds),
            memory_bytes=min(limits.memory_bytes or budget.memory_bytes, budget.memory_bytes),
            depth=limits.depth or None,
        )
        try:
            found = explore(
                algorithm,
                instance.size,
                requests=requests,
                environment=environment,
                faults=faults,
                order=self.order or instance.order,
                symmetry=instance.symmetry,
                exact=instance.exact,
                eventually={name: _property(name, len(requests)) for name in instance.eventually},
                budget=spend,
                seed=instance.seed,
                clock=clock if timed else None,
            )
        except WavetankError as error:
            raise _located(error, f"{path}, [instance]") from error
        return _report(path, instance, found, _more_than_it_tolerates(algorithm, instance.size, faults, environment))


class _File:
    """An instance file: its tables checked, complaints with the line they are about."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines = text.splitlines()

    def where(self, table: str, key: str) -> str:
        """Return file and line of a key."""
        inside = not table
        for number, line in enumerate(self.lines, 1):
            header = re.match(r"\s*\[\[?\s*([\w.-]+)\s*\]\]?", line)
            if header:
                inside = header[1] == (table or key)
                if inside and (not key or not table):
                    return f"{self.path}, line {number}"
            elif inside and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
                return f"{self.path}, line {number}"
        return f"{self.path}, [{table}]" if table else str(self.path)

    def refuse(self, problem: str, table: str, key: str, **details: Any) -> NoReturn:
        """Raise the error about a key."""
        raise BadFileError(problem, given=details.pop("given", key), where=self.where(table, key), **details)

    def table(self, kind: type, tables: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return a table's values, converted to the types of a dataclass."""
        given = tables.get(name, {})
        if not isinstance(given, dict):
            self.refuse("This must be a table.", "", name, allowed=f"[{name}]")
        return self.values(kind, given, name)

    def values(self, kind: type, given: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return the values of one table, key by key, so that a complaint knows its line."""
        found: dict[str, Any] = {}
        for key, value in given.items():
            try:
                found |= check_parameters(kind, {key: value}, where=f"[{name}]", what="key")
            except WavetankError as error:
                raise _located(error, self.where(name, key)) from error
        return found

    def made(self, kind: type[Any], values: Mapping[str, Any], name: str) -> Any:
        """Build a dataclass that checks its values together."""
        try:
            return kind(**values)
        except WavetankError as error:
            raise _located(error, self.where(name, error.where or "")) from error

    def protocol(self, name: str, tables: Mapping[str, Any]) -> Algorithm:
        """Return the protocol with its parameters."""
        entries = {entry.name: entry for entry in catalog.everything() if entry.shape == "node"}
        if name in entries and explorable(entries[name]):
            self.refuse(
                f"{name} cannot be explored: {explorable(entries[name])}.",
                "instance",
                "protocol",
                given=name,
                hint=f"wavetank show {name} says how it runs",
            )
        if name not in entries:
            nodes = sorted(each for each, entry in entries.items() if not explorable(entry))
            problem = f"There is no protocol named {name!r}." if name else "The file names no protocol."
            self.refuse(problem, "instance", "protocol", given=name, allowed=nodes, nearest=nearest_of(name, nodes))
        entry = entries[name]
        given = tables.get("parameters", {})
        if not isinstance(given, dict):
            self.refuse("This must be a table.", "", "parameters", allowed="[parameters]")
        values = {**entry.parameters, **self.values(entry.load(), given, "parameters")}
        found: Algorithm = self.made(entry.load(), values, "parameters")
        return found

    def faults(self, tables: Mapping[str, Any], size: int) -> list[Fault]:
        """Return the faults."""
        given = tables.get("faults", [])
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            self.refuse("Faults are a list of tables.", "", "faults", allowed="[[faults]]")
        found = []
        for one in given:
            kind = str(one.get("kind", ""))
            if kind not in FAULTS:
                problem = f"There is no fault named {kind!r}."
                self.refuse(
                    problem, "faults", "kind", given=kind, allowed=list(FAULTS), nearest=nearest_of(kind, FAULTS)
                )
            values = self.values(FAULTS[kind], {key: item for key, item in one.items() if key != "kind"}, "faults")
            members = values.get("members", ())
            if not members or not all(isinstance(each, int) and 0 <= each < size for each in members):
                self.refuse("A fault has members.", "faults", "members", given=members, allowed=f"ids 0 to {size - 1}")
            found.append(self.made(FAULTS[kind], values, "faults"))
        return found

    def requests(self, instance: _Instance) -> list[Request]:
        """Return the requests."""
        found = []
        for one in instance.requests:
            if not isinstance(one, dict):
                self.refuse("A request is a table.", "instance", "requests", given=repr(one), allowed="{node, command}")
            try:
                values = check_parameters(_Request, one, where="requests", what="key")
            except WavetankError as error:
                raise _located(error, self.where("instance", "requests")) from error
            request = _Request(**values)
            if request.node >= instance.size:
                allowed = f"nodes 0 to {instance.size - 1}"
                self.refuse("A request must name an existing node.", "instance", "requests", given=one, allowed=allowed)
            found.append(Request(at=request.at, node=request.node, command=_fixed(request.command)))
        return found


def explorable(entry: catalog.SystemEntry) -> str:
    """Return why a system of the catalog cannot be explored, "" when it can."""
    reasons = {
        "algorithm": "",
        "population-protocol": "its agents meet in pairs and exchange no messages",
    }
    default = "it runs programs of others, and makes no nodes that exchange messages"
    if entry.shape != "node" or entry.interface == "proxy":
        default = "it does not make nodes that exchange messages"
    return reasons.get(entry.interface, default)


def _depth(tables: Mapping[str, Any]) -> int:
    """Return how many tables and lists stand inside each other, at most; without recursion."""
    level: list[Any] = [tables]
    depth = 0
    while level:
        depth += 1
        inner = [list(each.values()) if isinstance(each, dict) else each for each in level]
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
    return depth


def _too_deep(path: Path) -> BadFileError:
    return BadFileError(
        "The file is nested too deeply for an instance.",
        allowed=f"up to {_MOST_DEPTH} tables and lists inside each other",
        where=str(path),
    )


def _located(error: WavetankError, where: str) -> BadFileError:
    """Return the error as one about a place in the file."""
    hint = None if (error.hint or "").startswith("wavetank show") else error.hint
    return BadFileError(
        error.problem, given=error.given, allowed=error.allowed, nearest=error.nearest, where=where, hint=hint
    )


def _fixed(value: Any) -> Any:
    """Return a value of TOML in which nothing can change."""
    if isinstance(value, list):
        return tuple(_fixed(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _fixed(item)) for key, item in sorted(value.items()))
    return value


def _property(name: str, requests: int) -> Predicate:
    def answered(snapshot: Snapshot) -> bool:
        return len(snapshot.replies) == requests

    def decided(snapshot: Snapshot) -> bool:
        return {node for node, _ in snapshot.decisions} >= snapshot.correct

    return answered if name == "answered" else decided


def _more_than_it_tolerates(algorithm: Algorithm, size: int, faults: Sequence[Fault], environment: Environment) -> str:
    """Return a remark where more nodes may fail than the protocol tolerates."""
    faulty = len({member for fault in faults for member in fault.members})
    crashes = size if environment.crashes == "unlimited" else int(environment.crashes)
    tolerated = algorithm.max_faults(size)
    if faulty + crashes <= tolerated:
        return ""
    return f"up to {faulty + crashes} faulty nodes; the protocol tolerates {tolerated} of {size}"


def _report(path: Path, instance: _Instance, found: Exploration, remark: str) -> CheckReport:
    limits = limits_in_words(found.system)
    covered = "all" + (f" {limits}" if limits else "") if found.complete else f"not all: {found.stopped_by}"
    if found.beyond_horizon:
        covered = f"not all: {found.beyond_horizon:,} at the horizon of the clock"
    facts = [
        ("protocol", f"{instance.protocol}, {instance.size} nodes"),
        ("states", f"{found.states:,} ({covered}), {found.transitions:,} steps, {found.terminal_states:,} ends"),
        ("speed", f"{found.states_per_s:,.0f} states per second; handlers ran {found.handler_calls:,} times"),
    ]
    if remark:
        facts.append(("beyond its promise", remark))
    verdicts = [
        Verdict(
            name=each.name,
            outcome=each.outcome,
            says=each.says,
            by=found.order,
            evidence=each.example.chart(_WIDTH) if each.example is not None and each.outcome != "holds" else "",
        )
        for each in found.judgements
    ]
    return CheckReport(
        subject=path.stem,
        kind="instance",
        facts=facts,
        verdicts=verdicts,
        page=_page(path.stem, facts, found.judgements),
    )


def _page(subject: str, facts: Sequence[tuple[str, str]], judgements: Sequence[Judgement]) -> str:
    drawn = [each for each in judgements if each.example is not None and each.outcome != "holds"]
    if not drawn:
        return ""
    charts = [
        f"<h2>{escape(each.name)}: {each.outcome}</h2>\n{each.example.svg()}"
        for each in drawn
        if each.example is not None
    ]
    return html_page.findings(subject, html_page.table(facts), *(f"<section>{chart}</section>" for chart in charts))
