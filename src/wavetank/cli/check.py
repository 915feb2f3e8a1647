"""``wavetank check``: verifies a model, a history or a protocol; holds nothing in this version and says so."""

from __future__ import annotations

import click

from wavetank.errors import NothingHereYetError


# Any arguments are taken, so that what is said is not hidden behind a usage error.
@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Verify a model, a history or a protocol.  Nothing here yet."""
    raise NothingHereYetError(
        "`wavetank check` holds nothing in this version. The protocols area is coming: an explorer of all "
        "interleavings and an engine that judges histories. Today `wavetank claims --check` holds the published claims "
        "against the evidence.",
        hint="wavetank claims --check",
    )
