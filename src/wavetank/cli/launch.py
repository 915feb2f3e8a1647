"""``wavetank launch``: puts a system in front of real traffic, or stands in for what it needs there."""

from __future__ import annotations

import importlib

import click

from wavetank.cli.entry import add_trace_option

# what is launched -> (what help says, where it lives); help must not import them.
LAUNCHES = {
    "router": ("a routing policy, as an OpenAI-compatible proxy", "wavetank.cli.launch_router"),
    "engine": ("a stand-in model server, paced by a step-time model", "wavetank.cli.launch_engine"),
    "replay": ("a request trace, sent to a server", "wavetank.cli.launch_replay"),
    "cluster": ("a protocol, as real processes over sockets", "wavetank.cli.launch_cluster"),
}


class _Launches(click.Group):
    """A group that imports a command when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(LAUNCHES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LAUNCHES:
            return None
        command: click.Command = importlib.import_module(LAUNCHES[cmd_name][1]).command
        add_trace_option(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (text, _) in LAUNCHES.items()])


@click.group(cls=_Launches, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Put a system in front of real traffic: the same object that was compared."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return 0
