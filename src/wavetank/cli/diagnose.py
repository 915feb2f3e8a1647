"""``wavetank diagnose``: explains a log or a trace with what catalogs name for it."""

from __future__ import annotations

import click

from wavetank.cli.commands import CatalogGroup
from wavetank.errors import NothingHereYetError
from wavetank.ledger import catalog


class _Diagnoses(CatalogGroup):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Before click refuses a word: that nothing is there yet says more than a usage error.
        if not catalog.commands(self.table) and not set(args) & {"-h", "--help"}:
            raise NothingHereYetError(
                "`wavetank diagnose` is not available in this version. Analysers of job logs and traces are planned. "
                "Today `wavetank compare` writes a report that explains its own figures.",
                hint="wavetank list --studies",
            )
        return super().parse_args(ctx, args)


@click.group(cls=_Diagnoses, table="diagnose", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Explain a log or a trace.  Not available yet."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return 0
