"""``wavetank report``: the answer, the table and the page of a finished run, again and in other forms."""

from __future__ import annotations

import csv
import io
import webbrowser
from pathlib import Path

import click

from wavetank.errors import RunFolderError
from wavetank.run import comparison
from wavetank.run.comparison import Comparison
from wavetank.terminal import say, say_json

FORMATS = ("text", "md", "csv", "json", "html")


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="Form of the output."
)
@click.option("--open", "opened", is_flag=True, help="Open the page in the browser.")
def command(run: str, form: str, opened: bool) -> int:
    """Print the run in the folder RUN again, and write its page anew with --format html or --open."""
    folder = Path(run)
    result = comparison.load(folder)
    if not result.records:
        raise RunFolderError(
            "This run has no records yet.", where=str(folder),
            hint=f"wavetank compare {result.plan.study} --resume {run}",
        )  # fmt: skip
    if form == "json":
        say_json(result.as_json())
    elif form == "csv":
        say(_csv(result).rstrip("\n"))
    elif form == "md":
        from wavetank.report.tables import main_table

        sentence = f"{result.answer.sentence}\n\n" if result.answer else ""
        say(sentence + main_table(result).as_markdown().rstrip("\n"))
    elif form == "text":
        say("\n".join(filter(None, (str(result.answer or ""), "", result.summary()))))
    if opened or form == "html":
        page = result.report()
        say(str(page), err=form != "html")
        if opened and not webbrowser.open(page.resolve().as_uri()):
            say("No browser could be opened.", err=True)
    return 0


def _csv(result: Comparison) -> str:
    """Return the summary, one line per system, metric and place."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["system", "metric", "place", "median", "low", "high", "least", "most", "replicates", "unit", "kind"])
    for row in result.rows:
        place = ";".join(f"{name}={value}" for name, value in row.at.items())
        figures = (row.median, row.low, row.high, row.least, row.most, row.seeds)
        out.writerow([row.system, row.metric, place, *figures, row.unit, row.kind])
    return text.getvalue()
