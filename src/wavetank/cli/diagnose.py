"""``wavetank diagnose``: explains a log or a trace; holds nothing in this version and says so."""

from __future__ import annotations

import click

from wavetank.errors import NothingHereYetError


# Any arguments are taken, so that what is said is not hidden behind a usage error.
@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Explain a log or a trace.  Nothing here yet."""
    raise NothingHereYetError(
        "`wavetank diagnose` holds nothing in this version. The insight area is coming: analysers of job logs and "
        "traces. Today `wavetank compare` writes a report that explains its own figures.",
        hint="wavetank list --studies",
    )
