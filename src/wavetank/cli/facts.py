"""Facts about systems and studies that their code holds: the idea, the parameters, the file."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetank.docstrings import plain
from wavetank.settings import range_in_words

RUNS_IN_WORDS = {
    "executed": "runs for real on this machine, and is measured",
    "simulated": "runs inside an event model",
    "modelled": "is computed from formulas",
    "live": "can be put in front of real traffic, the same object",
}


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a system or setting of a study, as a user sees it.

    Attributes
    ----------
    name, kind, unit, says : str
        ``kind`` is the type as it is written in the code.
    default : object
        None where there is no value; ``required`` tells whether one must be given.
    required : bool
    choices : tuple of str
    low, high : float
        Infinite where there is no bound.
    """

    name: str
    kind: str
    default: Any
    required: bool
    unit: str
    says: str
    choices: tuple[str, ...]
    low: float
    high: float

    def as_row(self) -> dict[str, Any]:
        """Return the stable shape that ``show --json`` prints."""
        row = dataclasses.asdict(self)
        row["low"] = None if math.isinf(self.low) else self.low
        row["high"] = None if math.isinf(self.high) else self.high
        if isinstance(self.default, float) and not math.isfinite(self.default):
            row["default"] = str(self.default)
        return row

    def value(self) -> str:
        """Return the default with its unit, as one would type it."""
        if self.required:
            return "(must be given)"
        default = self.default
        if isinstance(default, tuple | list):
            return f"{','.join(map(_word, default)) or '(none)'} {self.unit}".rstrip()
        unit = self.unit if isinstance(default, int | float) and not isinstance(default, bool) else ""
        return f"{_word(default)} {unit}".rstrip()

    def allowed(self) -> str:
        """Return what may be given, empty when anything of the type."""
        return " or ".join(filter(None, (", ".join(self.choices), range_in_words(self.low, self.high, self.unit))))


def _word(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value) or '""'


def parameters_of(kind: type, given: Mapping[str, Any] | None = None) -> list[Parameter]:
    """Return the fields of a dataclass as parameters.

    Parameters
    ----------
    kind : type
        Fields made by :func:`wavetank.settings.setting` tell all; for others the class's docstring says what they are.
    given : mapping, optional
        Values that stand in place of the class's defaults: a catalog entry's own.
    """
    if not dataclasses.is_dataclass(kind):
        return []
    written = documented(kind)
    hints = typing.get_type_hints(kind)
    found = []
    for item in dataclasses.fields(kind):
        if not item.init:
            continue
        about = item.metadata
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        default = (given or {}).get(item.name, default)
        required = default is dataclasses.MISSING
        found.append(
            Parameter(
                name=item.name,
                kind=_written(hints[item.name]),
                default=None if required else default,
                required=required,
                unit=about.get("unit", ""),
                says=about.get("says") or written.get(item.name, ""),
                choices=tuple(about.get("choices", ())),
                low=about.get("low", -math.inf),
                high=about.get("high", math.inf),
            )
        )
    return found


def _written(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


_SECTION = re.compile(r"^(Parameters|Attributes)\n-{3,}\n(.*?)(?=^\S[^\n]*\n-{3,}$|\Z)", re.MULTILINE | re.DOTALL)
_NAMES = re.compile(r"^(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?$")


def documented(kind: type) -> dict[str, str]:
    """Return what the numpydoc sections of a class and its bases say of each parameter."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for _, body in _SECTION.findall(inspect.cleandoc(base.__dict__.get("__doc__") or "")):
            names: list[str] = []
            for line in body.splitlines():
                heading = _NAMES.match(line)
                if line and not line[0].isspace() and heading:
                    names = [name.strip() for name in heading[1].split(",")]
                    found.update(dict.fromkeys(names, ""))
                elif line.strip():
                    for name in names:
                        found[name] = f"{found[name]} {line.strip()}".strip()
    return {name: plain(text) for name, text in found.items()}


def idea_of(kind: type) -> str:
    """Return the first paragraphs of the docstring of a system's module, up to its source: the idea."""
    module = sys.modules[kind.__module__]
    paragraphs = (inspect.getdoc(module) or "").split("\n\n")
    idea = []
    for paragraph in paragraphs:
        if re.match(r"(Source|Sources|Differs|References?)\b", paragraph):
            break
        idea.append(plain(" ".join(paragraph.split())))
    return "\n\n".join(idea)


def question_of(kind: type) -> str:
    """Return the docstring of a study, paragraph by paragraph: its question."""
    text = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
    body = _SECTION.sub("", text).strip()
    return "\n\n".join(plain(" ".join(paragraph.split())) for paragraph in body.split("\n\n"))


def file_of(kind: type) -> str:
    """Return where the class is written, relative to the working folder when it lies below."""
    file = Path(inspect.getsourcefile(kind) or "")
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def source_lines(source: Mapping[str, Any]) -> list[str]:
    """Return a catalog entry's source as lines: what it is called, then where it is found."""
    known = dict(source)
    title = str(known.pop("title", ""))
    authors = known.pop("authors", "")
    authors = ", ".join(authors) if isinstance(authors, list) else str(authors)
    year = known.pop("year", "")
    venue = known.pop("venue", "")
    lines = [". ".join(filter(None, (authors, title, ", ".join(str(part) for part in (venue, year) if part))))]
    for key, value in known.items():
        places = {"arxiv": f"https://arxiv.org/abs/{value}", "doi": f"https://doi.org/{value}", "url": str(value)}
        lines.append(places.get(key, f"{key}: {value}"))
    return [line for line in lines if line]
