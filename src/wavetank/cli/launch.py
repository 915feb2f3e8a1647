"""``wavetank launch``: puts a system in front of real traffic, or stands in for what it needs there."""

from __future__ import annotations

import click

from wavetank.cli.commands import CatalogGroup


@click.group(cls=CatalogGroup, table="launch", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Put a system in front of real traffic: the same object that was compared."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return 0
