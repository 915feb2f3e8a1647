"""``wavetank generate``: programs of a protocol, traces to share, and what else catalogs can generate."""

from __future__ import annotations

import click

from wavetank.cli.commands import CatalogGroup

# What a file alone stands for: the first of these commands there was.
_OF_A_FILE = "programs"


class _Generate(CatalogGroup):
    """A group in which ``wavetank generate FILE`` is ``wavetank generate programs FILE``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is named, or that of a file, with its arguments."""
        if args and args[0] not in self.list_commands(ctx):
            args = [_OF_A_FILE, *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take options in front of a file for those of its command."""
        if args and args[0].startswith("-") and args[0] not in self.get_help_option_names(ctx):
            args = [_OF_A_FILE, *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Generate, table="generate", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Generate programs from a protocol, or traces that may be shared from some that may not."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return 0
