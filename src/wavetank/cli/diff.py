"""``wavetank diff``: two runs of a study beside each other."""

from __future__ import annotations

from pathlib import Path

import click

from wavetank.run import comparison
from wavetank.run.difference import difference, in_words
from wavetank.terminal import say, say_heading, say_json, say_wrapped


@click.command()
@click.argument("before", metavar="RUN")
@click.argument("after", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(before: str, after: str, as_json: bool) -> int:
    """Show what differs between two run folders of one study: settings, answers, figures."""
    first, second = comparison.load(Path(before)), comparison.load(Path(after))
    found = difference(first, second)
    if as_json:
        say_json({"before": before, "after": after, **found.as_json()})
        return 0
    for name, result in (("before", first), ("after", second)):
        answer = result.answer.sentence if result.answer else "no answer: nothing competes in this study"
        say_wrapped(answer, first=f"{name.ljust(6)}  ", rest=" " * 8)
    if found.settings:
        say_heading("Settings")
        for setting, old, new in found.settings:
            say_wrapped(f"{setting}: {old or 'none'} to {new or 'none'}", first="  ", rest="    ")
    for name, systems in (("Before only", found.only_before), ("After only", found.only_after)):
        if systems:
            say_heading(name)
            say_wrapped(", ".join(systems), first="  ")
    say_heading("Figures")
    place = None
    for each in found.figures:
        if (each.system, each.place) != place:
            place = (each.system, each.place)
            say(f"  {each.system}" + (f", {each.place}" if each.place else ""))
        say_wrapped(f"{each.metric}: {in_words(each)}", first="    ", rest="      ")
    if not found.figures:
        say_wrapped("The runs have no figure in common.", first="  ")
    return 0
