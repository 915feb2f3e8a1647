"""Where every command line begins: the group of verbs, and what becomes of every error."""

from __future__ import annotations

import errno
import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from wavetank import __version__
from wavetank.cli.exits import DEFECT, INTERRUPTED, NO_READER, USAGE
from wavetank.cli.terminal import forget, say_defect, say_error, say_interrupted, say_warning
from wavetank.errors import BadValueError, UnknownNameError, WavetankError, nearest_of

# verb -> (what help says, where it lives); help must not import the verbs.
VERBS = {
    "list": ("what is there: systems by area, or studies", "wavetank.cli.list"),
    "show": ("all about one system or study", "wavetank.cli.show"),
    "compare": ("put a study's question to its systems: one table, one report", "wavetank.cli.compare"),
    "claims": ("what the sources claim, what was measured, whether it held", "wavetank.cli.claims"),
    "profile": ("measure this machine, show or delete what was measured", "wavetank.cli.profile"),
    "data": ("real data sets: list, fetch, path, verify", "wavetank.cli.data"),
    "launch": ("put a system to real work: router, engine, replay, cluster", "wavetank.cli.launch"),
    "check": ("verify a model, a history, a protocol, an instance of one", "wavetank.cli.check"),
    "generate": ("turn a session protocol into programs, Erlang or Python", "wavetank.cli.generate"),
    "diagnose": ("explain a log or a trace (nothing here yet)", "wavetank.cli.diagnose"),
}

_TRACE = "wavetank.trace"


class _Verbs(click.Group):
    """A group that knows its verbs by name and imports one when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(VERBS[cmd_name][1]).command
        for each in (command, *getattr(command, "commands", {}).values()):
            add_trace_option(each)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (text, _) in VERBS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write_dl(
                [
                    ("wavetank list serving", "the systems of an area"),
                    ("wavetank show balance-route", "idea, source, parameters, claims"),
                    ("wavetank compare llm-routing", "one table, one report"),
                    ("wavetank compare llm-routing --set workers=32", "on your terms"),
                    ("wavetank claims --check", "whether the claims held"),
                ],
                col_max=60,
            )


def _keep_trace(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_TRACE] = True


def _trace_option(*, hidden: bool = False) -> click.Option:
    return click.Option(
        ["--trace"],
        is_flag=True,
        expose_value=False,
        hidden=hidden,
        callback=_keep_trace,
        help="Print the full trace of a defect.",
    )


def add_trace_option(command: click.Command) -> None:
    """Let a command take ``--trace``, too, without telling of it."""
    if not any(option.name == "trace" for option in command.params):
        command.params.append(_trace_option(hidden=True))


@click.group(cls=_Verbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def verbs(ctx: click.Context) -> int:
    """Try published distributed-systems ideas side by side on your own workload, and see which claims hold."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    return 0


verbs.params.append(_trace_option())


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every error is told, none escapes."""
    trace = False
    try:
        context = verbs.make_context("wavetank", list(arguments))
        try:
            with context:
                code: Any = verbs.invoke(context)
        finally:
            trace = _TRACE in context.meta
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code if _flushed() else NO_READER
    except click.UsageError as error:
        say_error(_as_ours(error))
        return USAGE
    except WavetankError as error:
        say_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        say_interrupted()
        return INTERRUPTED
    except BrokenPipeError:
        forget(sys.stdout)
        return NO_READER
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            forget(sys.stdout)
            say_error(WavetankError("What was to be written does not fit: the disk is full.", hint="make room"))
            return USAGE
        say_defect(error, trace=trace)
        return DEFECT
    return int(code or 0)


def _as_ours(error: click.UsageError) -> WavetankError:
    """Turn click's complaint about the command line into the form all our messages have."""
    path = error.ctx.command_path if error.ctx else "wavetank"
    hint = f"{path} --help"
    wanted: str | None = getattr(error, "command_name", None)
    if wanted is not None and error.ctx is not None and isinstance(error.ctx.command, click.Group):
        names = error.ctx.command.list_commands(error.ctx)
        return UnknownNameError(
            f"There is no command named {wanted!r}.", allowed=names, nearest=nearest_of(wanted, names), hint=hint
        )
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        # --trace works after every verb, but is told only once, by the group.
        known = [
            name
            for option in error.ctx.command.get_params(error.ctx)
            if isinstance(option, click.Option) and not option.hidden
            for name in option.opts
            if name.startswith("--")
        ]
        return UnknownNameError(
            f"There is no option named {error.option_name!r}.",
            allowed=known,
            nearest=nearest_of(error.option_name, known),
            where=path,
            hint=hint,
        )
    if isinstance(error, click.BadParameter) and error.param and isinstance(error.param.type, click.Choice):
        words = list(error.param.type.choices)
        # click's message ends with the list of words; it begins with the word that was given, in quotes.
        given = error.message.partition("'")[2].partition("'")[0]
        return BadValueError(
            "The value is not one of the allowed words.",
            given=given,
            allowed=words,
            nearest=nearest_of(given, words),
            where=f"{path} {error.param.opts[0]}",
            hint=hint,
        )
    return BadValueError(error.format_message(), where=path, hint=hint)


def _flushed() -> bool:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        forget(sys.stdout)
        return False
    return True


def main() -> NoReturn:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            # A name that the terminal's encoding lacks must not end a run.
            stream.reconfigure(errors="replace")
    # Where in the code a warning arose is of no use to whoever gave a command.
    warnings.showwarning = say_warning
    sys.exit(run(sys.argv[1:]))
