"""``wavetank generate trace``: Chakra traces that may be shared, fitted to some that may not."""

from __future__ import annotations

from pathlib import Path

import click

from wavetank import units
from wavetank.errors import BadFileError, BadValueError
from wavetank.terminal import say, say_json, say_wrapped


@click.command()
@click.argument("source", metavar="FILE|FOLDER")
@click.option("--out", required=True, metavar="FOLDER", help="Folder for the traces; created if it is missing.")
@click.option("--ranks", type=int, metavar="N", help="How many traces; by default as many as the source has.")
@click.option("--calls", type=int, metavar="N", help="Communication of each rank; by default as much as the source's.")
@click.option("--blur", type=float, default=0.0, metavar="X", help="Share by which frequent sizes are moved, 0 to 2.")
@click.option("--seed", type=int, default=0, metavar="N", help="Equal seeds give equal traces.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    source: str, out: str, ranks: int | None, calls: int | None, blur: float, seed: int, force: bool, as_json: bool
) -> None:
    """Write Chakra traces (.et, one a rank) that communicate as those of FILE or FOLDER do.

    Collectives, group sizes and bytes have the shares of the source; names, attributes and the order of calls are not
    taken over. Bytes that occur three times or more on a rank are kept as they are; --blur moves them, and what that
    costs is printed.
    """
    from wavetank.insight.replay.generator import TraceModel, generate, likeness
    from wavetank.insight.replay.reading import read_et

    traces = read_et(source)
    model = TraceModel.fitted(traces)
    made = generate(model, seed=seed, ranks=ranks, calls=calls, blur=blur)
    folder = Path(out)
    files = {f"trace.{rank}.et": trace.content() for rank, trace in enumerate(made)}
    if folder.exists() and not folder.is_dir():
        raise BadValueError("The folder to write to is a file.", given=str(folder), where="--out")
    taken = [name for name in files if (folder / name).exists()]
    if taken and not force:
        raise BadValueError("Files of these names exist; nothing was written.", given=", ".join(taken[:3]),
                            where=str(folder), hint="--force")  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise BadFileError("The folder cannot be written to.", given=error.strerror or str(error),
                           where=str(error.filename or folder), hint="choose another --out") from error  # fmt: skip
    near = likeness(traces, made)
    nodes = sum(len(trace.nodes) for trace in made)
    if as_json:
        say_json({
            "folder": str(folder), "ranks": len(made), "nodes": nodes, "seed": seed, "blur": blur,
            "chi_square": near.chi_square, "p_value": near.p_value, "ks": near.ks, "largest_ks": near.largest_ks,
            "repeats": near.repeats, "source_repeats": near.source_repeats,
        })  # fmt: skip
        return
    say(f"{folder}: {len(made)} traces, {nodes} nodes")
    say_wrapped(
        f"Mix of kinds as the source's with p = {units.show(near.p_value)} (chi-square); sizes differ by "
        f"{units.show(near.ks)} at most (Kolmogorov-Smirnov). Sizes that occur three times or more on a rank are "
        + ("moved." if blur else "those of the source; --blur moves them.")
    )
