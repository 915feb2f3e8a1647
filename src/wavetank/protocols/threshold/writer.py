"""Writes a threshold automaton as a ``.ta`` file that reads back as the same automaton."""

from __future__ import annotations

from wavetank.protocols.threshold.automaton import ThresholdAutomaton
from wavetank.protocols.threshold.expressions import Formula


def write_automaton(automaton: ThresholdAutomaton) -> str:
    """Return the text of a ``.ta`` file.

    Returns
    -------
    str
        ``parse_automaton(write_automaton(automaton)) == automaton``.
    """
    lines = [f"skel {automaton.name} {{"]
    for word, names in (
        ("local", automaton.local_names),
        ("shared", automaton.counters),
        ("parameters", automaton.parameters),
    ):
        if names:
            lines.append(f"  {word} {', '.join(names)};")
    lines += _section("assumptions", automaton.assumptions)
    lines += ["", f"  locations ({len(automaton.locations)}) {{"]
    values = automaton.location_values or tuple((number,) for number in range(len(automaton.locations)))
    if not automaton.location_values and automaton.local_names:
        values = ((0,) * len(automaton.local_names),) * len(automaton.locations)
    for name, numbers in zip(automaton.locations, values, strict=True):
        lines.append(f"    {name}: [{'; '.join(map(str, numbers))}];")
    lines.append("  }")
    lines += _section("inits", automaton.initial)
    lines += ["", f"  rules ({len(automaton.rules)}) {{"]
    for rule in automaton.rules:
        updates = " ".join(f"{name}' == {value};" for name, value in rule.updates)
        lines.append(f"  {rule.name}: {rule.source} -> {rule.target}")
        lines.append(f"      when ({rule.guard})")
        lines.append(f"      do {{ {updates} }};")
    lines.append("  }")
    if automaton.specifications:
        lines += ["", f"  specifications ({len(automaton.specifications)}) {{"]
        lines += [f"    {name}: {formula};" for name, formula in automaton.specifications]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _section(word: str, formulas: tuple[Formula, ...]) -> list[str]:
    if not formulas:
        return []
    return ["", f"  {word} ({len(formulas)}) {{", *(f"    {formula};" for formula in formulas), "  }"]
