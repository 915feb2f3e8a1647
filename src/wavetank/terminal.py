"""What all verbs share about the terminal: its width, colour, errors, JSON."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
from typing import IO, Any

import click

from wavetank.errors import WavetankError


def width() -> int:
    """Return the width of the terminal, 80 where there is none; long lines are hard to read, so 100 at most."""
    return min(shutil.get_terminal_size((80, 24)).columns, 100)


def is_terminal(stream: IO[str] | None) -> bool:
    """Return whether a stream shows on a terminal that can move its cursor."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def style(text: str, *, err: bool = False, **how: Any) -> str:
    """Return text with colour or weight, where the stream shows it and NO_COLOR is not set."""
    stream = sys.stderr if err else sys.stdout
    return click.style(text, **how) if is_terminal(stream) and not os.environ.get("NO_COLOR") else text


def say(text: str = "", *, err: bool = False) -> None:
    """Write one or more lines; what cannot be written to standard error is lost, and ends nothing."""
    if not err:
        click.echo(text)
        return
    try:
        click.echo(text, err=True)
    except OSError:
        # A full disk or a reader that is gone: without this an error's own exit code would be lost as well.
        forget(sys.stderr)


def forget(stream: IO[str] | None) -> None:
    """Let a stream write nowhere: the interpreter flushes it once more at its end, and must not complain again."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)


def say_wrapped(text: str, *, first: str = "", rest: str | None = None, err: bool = False) -> None:
    """Write a paragraph, wrapped to the width of the terminal; commands and paths stay whole."""
    say(wrapped(text, first=first, rest=rest), err=err)


def wrapped(text: str, *, first: str = "", rest: str | None = None) -> str:
    """Return a paragraph wrapped to the width of the terminal."""
    return textwrap.fill(
        " ".join(text.split()),
        width(),
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def say_heading(text: str) -> None:
    """Write the heading of a section, after an empty line."""
    say()
    say(style(text, bold=True))


def say_json(value: Any) -> None:
    """Write one JSON document."""
    say(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1))


def say_error(error: WavetankError) -> None:
    """Write what is wrong and what to do next, one part a line, to standard error."""
    for label, text in error.lines():
        if not label:
            say(style(wrapped(text, rest="  "), err=True, fg="red", bold=True), err=True)
        elif label in ("allowed", "given", "nearest"):
            say_wrapped(text, first=f"  {label}: ", rest="    ", err=True)
        else:
            # Paths and commands are for copying: never broken.
            say(f"  {label}: {text}", err=True)


def say_warning(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    """Write a warning as a note; takes the arguments of :func:`warnings.showwarning`."""
    first, *parts = str(message).splitlines() or [""]
    say_wrapped(f"note: {first}", rest="      ", err=True)
    for part in parts:
        if part.strip().startswith(("where: ", "next: ")):
            # As in an error, paths and commands are for copying: never broken.
            say(f"      {part.strip()}", err=True)
        else:
            say_wrapped(part, first="      ", rest="        ", err=True)


def say_interrupted() -> None:
    """Write that Ctrl-C ended a command that keeps nothing."""
    say("Interrupted.", err=True)


def say_defect(error: Exception, *, trace: bool) -> None:
    """Write that Wavetank is at fault, and where the trace is."""
    import tempfile
    import traceback

    what = str(error).splitlines()[0] if str(error) else "no message"
    say(style(f"This is a defect of Wavetank: {type(error).__name__}: {what}", err=True, fg="red", bold=True), err=True)
    text = "".join(traceback.format_exception(error))
    if trace:
        say(text.rstrip(), err=True)
        return
    try:
        with tempfile.NamedTemporaryFile("w", prefix="wavetank-", suffix=".log", delete=False) as file:
            file.write(text)
    except OSError:
        say("  next: repeat the command with --trace to see where it happened", err=True)
        return
    say(f"  where: {file.name}", err=True)
    say("  next: report it with that file; --trace prints it", err=True)
