"""Workflows: tasks that wait for each other, read from WfFormat files or made from parts.

A workflow is a directed acyclic graph.  Its structure is checked when it is made, so that no simulator meets a cycle,
and what one task hands to another is known in bytes for every edge.

Source: WfFormat 1.5 and 1.6, the schema and its documentation (WfCommons project).

Differs from the source:

1. Of an instance the structure, the sizes of files and what was measured of each task are kept; machines, commands and
   the author are not.
2. The bytes of an edge are those of the files that the parent writes and the child reads; a file that no task writes
   counts as input from outside.
3. Parents and children must agree, as the documentation expects and the schema cannot say.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadFileError, BadValueError, nearest_of
from wavetank.files import read_text

NAME = "wfinstances"
VERSIONS = ("1.5", "1.6")
"""Versions of WfFormat that are read; their structures are the same."""
MOST_TASKS = 200_000

_LARGEST_BYTES = 256 * 2**20
# Runtime systems append the number of a task to its name.
_NUMBER = re.compile(r"[_\-.]*(ID)?\d+$")
_PROGRAM = re.compile(r"[\w.+-]{1,64}")

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """Tasks with their parents.

    Parameters
    ----------
    name : str
    tasks : tuple of str
        Identities, each once.
    parents : tuple of tuple of int
        For each task the indices of those it waits for, each once.
    edge_bytes : tuple of tuple of float, optional
        For each task what each of its parents hands to it, bytes, in the order of ``parents``; 0 by default.
    kinds : tuple of str, optional
        What each task does: equal words for tasks that run the same program; by default its identity.
    runtime_s : tuple of float, optional
        Measured time of each task, s; NaN where it is not known, which is the default.
    input_bytes : tuple of float, optional
        What each task reads from outside of the workflow, bytes; 0 by default.
    makespan_s : float, optional
        Measured time of the whole, s, the overhead of the system that ran it included.

    Raises
    ------
    BadValueError
        If lengths differ, an identity stands twice, a parent does not exist, a number is negative, or the tasks wait
        for each other in a circle, which is named.
    """

    name: str
    tasks: tuple[str, ...]
    parents: tuple[tuple[int, ...], ...]
    edge_bytes: tuple[tuple[float, ...], ...] = ()
    kinds: tuple[str, ...] = ()
    runtime_s: tuple[float, ...] = ()
    input_bytes: tuple[float, ...] = ()
    makespan_s: float = math.nan

    def __post_init__(self) -> None:
        count = len(self.tasks)
        if not 0 < count <= MOST_TASKS:
            raise BadValueError("The workflow has no tasks, or too many.", given=count, allowed=f"1 to {MOST_TASKS}",
                                where=self.name)  # fmt: skip
        defaults: dict[str, Any] = {
            "edge_bytes": tuple((0.0,) * len(each) for each in self.parents),
            "kinds": self.tasks,
            "runtime_s": (math.nan,) * count,
            "input_bytes": (0.0,) * count,
        }
        for field, default in defaults.items():
            if not getattr(self, field):
                object.__setattr__(self, field, default)
        for field in ("parents", *defaults):
            if len(getattr(self, field)) != count:
                raise BadValueError(f"{field} must have one entry per task.", given=len(getattr(self, field)),
                                    allowed=str(count), where=self.name)  # fmt: skip
        if len(set(self.tasks)) != count:
            twice = next(each for i, each in enumerate(self.tasks) if each in self.tasks[:i])
            raise BadValueError("This task stands twice.", given=twice, where=self.name)
        for task, above, sizes in zip(self.tasks, self.parents, self.edge_bytes, strict=True):
            if any(not 0 <= each < count for each in above) or len(set(above)) != len(above):
                raise BadValueError("The parents of this task are not indices of tasks, each once.", given=list(above),
                                    allowed=f"0 to {count - 1}", where=f"{self.name}, {task}")  # fmt: skip
            if len(sizes) != len(above) or any(not 0 <= each < math.inf for each in sizes):
                raise BadValueError("Every edge needs its bytes, 0 or more.", given=list(sizes),
                                    where=f"{self.name}, {task}")  # fmt: skip
        for task, runtime, size in zip(self.tasks, self.runtime_s, self.input_bytes, strict=True):
            if runtime < 0 or math.isinf(runtime) or not 0 <= size < math.inf:
                raise BadValueError("Times and sizes are finite and not negative.", given=(runtime, size),
                                    where=f"{self.name}, {task}")  # fmt: skip
        if len(self.order) != count:
            circle = " -> ".join(self.tasks[each] for each in self._circle())
            raise BadValueError(
                "Tasks of this workflow wait for each other in a circle, so that none of them can start.", given=circle,
                allowed="a directed acyclic graph", where=self.name,
            )  # fmt: skip

    def __len__(self) -> int:
        return len(self.tasks)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """For each task the indices of those that wait for it."""
        found: list[list[int]] = [[] for _ in self.tasks]
        for task, above in enumerate(self.parents):
            for each in above:
                found[each].append(task)
        return tuple(map(tuple, found))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The tasks, parents before children; of several that could come next the first one."""
        missing = [len(each) for each in self.parents]
        ready = [task for task, count in enumerate(missing) if not count]
        found: list[int] = []
        for task in ready:
            found.append(task)
            for child in self.children[task]:
                missing[child] -= 1
                if not missing[child]:
                    ready.append(child)
        return tuple(found)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """For each task the most edges from a task without parents to it."""
        found = [0] * len(self.tasks)
        for task in self.order:
            found[task] = max((found[each] + 1 for each in self.parents[task]), default=0)
        return tuple(found)

    @property
    def width(self) -> int:
        """The most tasks of one level."""
        return int(np.bincount(self.levels).max())

    def longest_path(self, weights: Sequence[float]) -> float:
        """Return the largest sum of weights along a path.

        Parameters
        ----------
        weights : sequence of float
            One for each task.
        """
        found = [0.0] * len(self.tasks)
        for task in self.order:
            found[task] = weights[task] + max((found[each] for each in self.parents[task]), default=0.0)
        return max(found)

    def _circle(self) -> list[int]:
        """Return a circle of tasks, the first one at both ends."""
        stuck = set(range(len(self.tasks))) - set(self.order)
        walk = [min(stuck)]
        # Every task that cannot start waits for another one that cannot: going up must come back.
        while True:
            above = next(each for each in self.parents[walk[-1]] if each in stuck)
            if above in walk:
                return [above, *reversed(walk[walk.index(above) :])]
            walk.append(above)


def read_workflow(path: str | Path) -> Workflow:
    """Read a workflow from a WfFormat file, gzipped or not.

    Parameters
    ----------
    path : str or Path
        WfFormat 1.5 or 1.6.

    Raises
    ------
    BadFileError
        If the file cannot be read, is of another format or version, names tasks or files that it does not have, or its
        tasks wait for each other in a circle; the error names the task.

    References
    ----------
    WfFormat, the WfCommons JSON schema, versions 1.5 and 1.6.
    """
    where = str(path)
    text = read_text(Path(path), largest_bytes=_LARGEST_BYTES)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFileError("The file is not JSON.", given=str(error), where=where) from error
    version = _of(whole, "schemaVersion", str, where)
    if version not in VERSIONS:
        raise BadFileError(
            "This version of WfFormat is not read.", given=version, allowed=VERSIONS, where=where,
            hint="WfCommons has a tool that migrates older instances to 1.6",
        )  # fmt: skip
    workflow = _of(whole, "workflow", dict, where)
    specification = _of(workflow, "specification", dict, where)
    tasks = _of(specification, "tasks", list, where)
    if not 0 < len(tasks) <= MOST_TASKS:
        raise BadFileError("The workflow has no tasks, or too many.", given=len(tasks), allowed=f"1 to {MOST_TASKS}",
                           where=where)  # fmt: skip
    identities = _identities(tasks, where)
    sizes = _sizes(specification, where)
    execution = workflow.get("execution") or {}
    runtimes, programs = _measured(execution, identities, where)
    parents = _parents(tasks, identities, where)
    edges, outside = _bytes(tasks, parents, sizes, where)
    makespan = execution.get("makespanInSeconds", math.nan) if isinstance(execution, Mapping) else math.nan
    try:
        return Workflow(
            name=_of(whole, "name", str, where),
            tasks=tuple(identities),
            parents=parents,
            edge_bytes=edges,
            kinds=tuple(
                programs.get(identity) or _kind(str(task.get("name", "")), identity)
                for identity, task in zip(identities, tasks, strict=True)
            ),
            runtime_s=tuple(runtimes.get(each, math.nan) for each in identities),
            input_bytes=outside,
            makespan_s=_number(makespan, "makespanInSeconds", where),
        )
    except BadValueError as error:
        raise BadFileError(
            error.problem, given=error.given, allowed=error.allowed, where=f"{where}: {error.where}"
        ) from error


def read_instance(name: str) -> Workflow:
    """Read a workflow of the data set ``wfinstances``.

    Parameters
    ----------
    name : str
        As its file is called, without the ending.

    Raises
    ------
    DataUnavailableError
        If the data set is not on this machine.
    UnknownNameError
        If it has none of that name.
    """
    from wavetank.workloads.datasets import find

    return read_workflow(find(NAME, f"{name}.json.gz"))


def _of(table: Any, key: str, kind: type, where: str) -> Any:
    value = table.get(key) if isinstance(table, Mapping) else None
    if not isinstance(value, kind):
        words = {"str": "a text", "list": "a list", "dict": "an object"}[kind.__name__]
        raise BadFileError(f"This is no WfFormat: {key!r} is not {words}.", given=type(value).__name__, where=where)
    return value


def _number(value: Any, what: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or math.isinf(value):
        raise BadFileError(f"{what} is no number of 0 or more.", given=value, where=where)
    return float(value)


def _identities(tasks: Sequence[Any], where: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, task in enumerate(tasks):
        identity = _of(task, "id", str, f"{where}, task {number + 1}")
        if identity in found:
            raise BadFileError("Two tasks have this identity.", given=identity, where=where)
        found[identity] = number
    return found


def _sizes(specification: Mapping[str, Any], where: str) -> dict[str, float] | None:
    """Return the size of every file; None where the instance lists none."""
    if "files" not in specification:
        return None
    found = {}
    for number, file in enumerate(_of(specification, "files", list, where)):
        place = f"{where}, file {number + 1}"
        size = file.get("sizeInBytes") if isinstance(file, Mapping) else None
        found[_of(file, "id", str, place)] = _number(size, "sizeInBytes", place)
    return found


def _listed(task: Mapping[str, Any], key: str, where: str) -> list[str]:
    value = task.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadFileError(f"{key!r} is no list of identities.", given=value, where=where)
    return list(dict.fromkeys(value))


def _parents(tasks: Sequence[Any], identities: Mapping[str, int], where: str) -> tuple[tuple[int, ...], ...]:
    above: list[tuple[int, ...]] = []
    below: list[set[str]] = []
    for task in tasks:
        place = f"{where}, task {task['id']}"
        for key in ("parents", "children"):
            for each in _listed(task, key, place):
                if each not in identities:
                    raise BadFileError(
                        f"There is no task of this identity, which stands among the {key}.", given=each,
                        nearest=nearest_of(each, identities), where=place,
                    )  # fmt: skip
        above.append(tuple(identities[each] for each in _listed(task, "parents", place)))
        below.append(set(_listed(task, "children", place)))
    names = list(identities)
    forward = {(parent, child) for child, parents in enumerate(above) for parent in parents}
    backward = {(parent, identities[child]) for parent, children in enumerate(below) for child in children}
    if forward != backward:
        parent, child = min(forward ^ backward)
        raise BadFileError(
            "Parents and children do not agree: one of two tasks does not name the other.",
            given=f"{names[parent]} and {names[child]}", where=where,
        )  # fmt: skip
    return tuple(above)


def _bytes(
    tasks: Sequence[Any], parents: Sequence[Sequence[int]], sizes: Mapping[str, float] | None, where: str
) -> tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]:
    """Return the bytes of each edge, and what each task reads that no task writes."""
    if sizes is None:
        return (), ()
    reads: list[set[str]] = []
    writes: list[set[str]] = []
    for task in tasks:
        place = f"{where}, task {task['id']}"
        for key, into in (("inputFiles", reads), ("outputFiles", writes)):
            names = _listed(task, key, place)
            for each in names:
                if each not in sizes:
                    raise BadFileError(
                        f"There is no file of this identity, which stands among the {key}.", given=each,
                        nearest=nearest_of(each, sizes) if len(sizes) < 1000 else None, where=place,
                    )  # fmt: skip
            into.append(set(names))
    made: set[str] = set().union(*writes)
    return (
        tuple(
            tuple(sum(sizes[file] for file in sorted(reads[child] & writes[parent])) for parent in above)
            for child, above in enumerate(parents)
        ),
        tuple(sum(sizes[file] for file in sorted(each - made)) for each in reads),
    )


def _measured(execution: Any, identities: Mapping[str, int], where: str) -> tuple[dict[str, float], dict[str, str]]:
    """Return the runtime of each task that was run, and its program where that is one word."""
    runtimes: dict[str, float] = {}
    programs: dict[str, str] = {}
    if not execution:
        return runtimes, programs
    for number, task in enumerate(_of(execution, "tasks", list, where)):
        place = f"{where}, execution of task {number + 1}"
        identity = _of(task, "id", str, place)
        if identity not in identities:
            raise BadFileError("A task was run that is not specified.", given=identity,
                               nearest=nearest_of(identity, identities), where=place)  # fmt: skip
        runtimes[identity] = _number(task.get("runtimeInSeconds"), "runtimeInSeconds", place)
        command = task.get("command")
        program = command.get("program") if isinstance(command, Mapping) else None
        if isinstance(program, str) and _PROGRAM.fullmatch(program):
            programs[identity] = program
    return runtimes, programs


def _kind(name: str, identity: str) -> str:
    """Return what a task does by its name, in which its number may stand."""
    kind = _NUMBER.sub("", name or identity)
    return kind or name or identity
