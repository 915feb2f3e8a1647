"""Facts about systems and studies as a reader sees them: idea, set-up, parameters, source, file.

``show``, the report and the manual are made from these.
"""

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

from wavetank import units
from wavetank.settings import range_in_words
from wavetank.text import plain


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a system or setting of a study, as a user sees it.

    Attributes
    ----------
    name, kind, unit, says : str
        ``kind`` is the type as it is written in the code.
    default : object
        None where there is no value; ``required`` says whether one must be given.
    required : bool
    choices : tuple
    low, high : float
        Infinite where there is no bound.
    """

    name: str
    kind: str
    default: Any
    required: bool
    unit: str
    says: str
    choices: tuple[Any, ...]
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
            return f"{units.typed(default) or '(none)'} {self.unit}".rstrip()
        unit = self.unit if isinstance(default, int | float) and not isinstance(default, bool) else ""
        shown = units.typed(default) or '""'
        return f"{shown} {unit}".rstrip()

    def allowed(self) -> str:
        """Return what may be given, empty when anything of the type."""
        choices = ", ".join(map(units.typed, self.choices))
        return " or ".join(filter(None, (choices, range_in_words(self.low, self.high, self.unit))))


def parameters_of(kind: type, given: Mapping[str, Any] | None = None) -> list[Parameter]:
    """Return the fields of a dataclass as parameters.

    Parameters
    ----------
    kind : type
        Fields made by :func:`wavetank.settings.setting` say everything; for others the class's docstring does.
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
    """Return the docstring of a system's module, paragraph by paragraph: the idea and the why."""
    return _paragraphs(inspect.getdoc(sys.modules[kind.__module__]) or "")


def setup_of(kind: type) -> str:
    """Return the docstring of a study, paragraph by paragraph: how it is set up; its question is in the catalog."""
    text = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
    # A dataclass without a docstring gets its signature for one.
    return "" if text.startswith(f"{kind.__name__}(") else _paragraphs(_SECTION.sub("", text).strip())


def _paragraphs(text: str) -> str:
    return "\n\n".join(plain(" ".join(paragraph.split())) for paragraph in text.split("\n\n"))


def file_of(kind: type) -> str:
    """Return where the class is written, relative to the working folder when it lies below."""
    file = Path(inspect.getsourcefile(kind) or "")
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def cited(source: Mapping[str, Any]) -> tuple[str, str]:
    """Return a source in words, and the address to read it at: empty when it has none that is safe to link."""
    address = str(source.get("url", ""))
    if "arxiv" in source:
        address = f"https://arxiv.org/abs/{source['arxiv']}"
    elif "doi" in source:
        address = f"https://doi.org/{source['doi']}"
    shown = [source.get(key, "") for key in ("authors", "title", "venue", "year")]
    if "arxiv" in source:
        shown.append(f"arXiv {source['arxiv']}")
    words = ", ".join(units.typed(part, ", ") for part in shown if part)
    return words or address, address if address.startswith(("https://", "http://")) else ""
