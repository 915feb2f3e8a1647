"""Where every command line begins: the group of verbs, and what becomes of every error."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from wavetank import __version__
from wavetank.errors import BadFileError, BadValueError, UnknownNameError, WavetankError, nearest_of
from wavetank.exits import DEFECT, INTERRUPTED, NO_READER, USAGE
from wavetank.terminal import forget, say_defect, say_error, say_interrupted, say_warning

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Verb -> (what help says, its module); help must not import the verbs.  Catalogs name further ones.
VERBS = {
    "advise": ("Advise on a problem in your own words, or on a trace", "wavetank.cli.advise"),
    "list": ("List the systems by problem, or what a few words find", "wavetank.cli.list"),
    "show": ("Show a system, a study or a paper", "wavetank.cli.show"),
    "compare": ("Compare the systems of a study: one table, one report", "wavetank.cli.compare"),
    "claims": ("Show what the sources claim, what was measured, and the verdicts", "wavetank.cli.claims"),
    "report": ("Print a finished run again, or write its page", "wavetank.cli.report"),
    "diff": ("Show what differs between two runs of a study", "wavetank.cli.diff"),
    "serve": ("Browse runs, ledger and catalog on a page of this machine", "wavetank.cli.serve"),
    "profile": ("Measure this machine, show or delete the profile", "wavetank.cli.profile"),
    "data": ("List, fetch, locate or verify the real data sets", "wavetank.cli.data"),
    "launch": ("Run a system for real: a router, an engine, a cluster", "wavetank.cli.launch"),
    "check": ("Verify a model, a history, a protocol, an instance of a protocol", "wavetank.cli.check"),
    "diagnose": ("Explain a trace or a log: what is wrong, where, and the evidence", "wavetank.cli.diagnose"),
    "generate": ("Generate programs of a protocol, or traces that may be shared", "wavetank.cli.generate"),
    "new": ("Write the files of a new system or study", "wavetank.cli.new"),
}

# What shells set to ask for completions, or a user to get the shell's script.
COMPLETE = "_WAVETANK_COMPLETE"

_TRACE = "wavetank.trace"


def _described() -> dict[str, str]:
    """Return every verb, those of the catalogs last, with what help says of it."""
    from wavetank.ledger import catalog

    found = {verb: text for verb, (text, _) in VERBS.items()}
    for name, entry in catalog.commands("verb").items():
        if name in VERBS:
            what = f"The verb {name!r} is there already; the entry is left out.\n  where: {entry.where}"
            warnings.warn(what, catalog.CatalogWarning, stacklevel=2)
        else:
            found[name] = entry.says
    return found


class _Verbs(click.Group):
    """A group that knows its verbs by name and imports one when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_described())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in VERBS:
            command: click.Command = importlib.import_module(VERBS[cmd_name][1]).command
        else:
            from wavetank.cli.commands import loaded
            from wavetank.ledger import catalog

            entries = catalog.commands("verb")
            if cmd_name not in entries:
                return None
            command = loaded(entries[cmd_name])
        for each in (command, *getattr(command, "commands", {}).values()):
            add_trace_option(each)
        if os.environ.get(COMPLETE):
            from wavetank.cli.completion import add_completion

            add_completion(cmd_name, command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        # Names alone: click's own way would import every verb.
        found = [CompletionItem(verb, help=says) for verb, says in _described().items() if verb.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_described().items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write_dl(
                [
                    ('wavetank advise "tail latency"', "which studies are about it"),
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
        help="Print the full traceback of a defect.",
    )


def add_trace_option(command: click.Command) -> None:
    """Let a command take ``--trace``, too, without naming it in its help."""
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
    """Run one command line and return its exit code; every error is printed, none escapes."""
    trace = False
    try:
        if instruction := os.environ.get(COMPLETE):
            from wavetank.cli.completion import answer_shell

            with warnings.catch_warnings(action="ignore"):
                # A note about a package has no place on the line that is being typed.
                return answer_shell(verbs, COMPLETE, instruction)
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
            say_error(WavetankError("The data cannot be written: the disk is full.", hint="make room"))
            return USAGE
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            say_error(BadFileError("The name of a file is too long.", given=str(error.filename or "")))
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
        # --trace works after every verb, but only the group lists it.
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
    # Where in the code a warning arose is of no use to the user of a command.
    warnings.showwarning = say_warning
    sys.exit(run(sys.argv[1:]))
