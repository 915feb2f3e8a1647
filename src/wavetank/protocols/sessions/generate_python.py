"""Writes a protocol as a Python module: one class a role, ready to run over TCP with asyncio.

The twin of what :mod:`wavetank.protocols.sessions.generate_erlang` writes: the same states, the same tags, the same
verdict on every message.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping

from wavetank.errors import BadValueError
from wavetank.protocols.sessions.generate_erlang import rendered
from wavetank.protocols.sessions.machines import Machine, Transition


def python_files(machines: Mapping[str, Machine], *, source: str) -> dict[str, str]:
    """Return the file name and content of the module.

    Parameters
    ----------
    machines : mapping
        Role to machine, all of one protocol.
    source : str
        Name of the protocol file, for the heading.

    Raises
    ------
    BadValueError
        When two roles would get the same class name.
    """
    protocol = next(iter(machines.values())).protocol if machines else "protocol"
    classes: dict[str, Machine] = {}
    for role, machine in machines.items():
        if class_name(role) in classes:
            raise BadValueError("Two roles have the same name as Python classes.", given=role)
        classes[class_name(role)] = machine
    facts = {"protocol": protocol, "source": source, "classes": classes}
    text = rendered("roles.py.jinja", facts, repr=repr, word=_word, written=_transition, messages=_messages)
    return {f"{module_name(protocol)}.py": text}


def module_name(protocol: str) -> str:
    """Return the name of the module of a protocol.

    Examples
    --------
    >>> module_name("ThirdParty")
    'third_party'
    """
    return _word(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", protocol).lower())


def class_name(role: str) -> str:
    """Return the name of the class of a role.

    Examples
    --------
    >>> class_name("loginsvc"), class_name("P1")
    ('Loginsvc', 'P1')
    """
    name = _word(role)
    return name[:1].upper() + name[1:]


def _word(name: str) -> str:
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    word = word if word[:1].isalpha() else f"p{word}"
    return f"{word}_" if keyword.iskeyword(word) else word


def _messages(machine: Machine) -> list[tuple[tuple[str, str], tuple[str, ...]]]:
    """Return the messages that a role sends, as partner and label with what they carry."""
    sends: dict[tuple[str, str], tuple[str, ...]] = {}
    for _, each in machine.transitions():
        if each.sends:
            sends.setdefault((each.partner, each.label), each.payload)
    return sorted(sends.items())


def _transition(each: Transition) -> str:
    parts = [
        f"sends={each.sends}",
        f"partner={each.partner!r}",
        f"label={each.label!r}",
        f"payload={each.payload!r}",
        f"target={each.target}",
    ]
    if each.settles is not None:
        parts.append(f"settles={each.settles!r}")
    if each.through:
        parts.append(f"through={each.through!r}")
    if each.irreversible:
        parts.append("irreversible=True")
    return f"Transition({', '.join(parts)})"
