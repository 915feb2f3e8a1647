"""``wavetank launch``: puts a system in front of real traffic; holds nothing in this version and says so."""

from __future__ import annotations

import click

from wavetank.errors import NothingHereYetError


# Any arguments are taken, so that what is said is not hidden behind a usage error.
@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Put a system in front of real traffic: the same object that was compared.  Nothing here yet."""
    raise NothingHereYetError(
        "`wavetank launch` holds nothing in this version. The live adapters of the serving area are coming: the same "
        "routing policies, as a proxy in front of real model servers. Today `wavetank compare llm-routing --set "
        "trace=FILE` tries them on your own requests.",
        hint="wavetank list --studies",
    )
