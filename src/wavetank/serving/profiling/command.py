"""``wavetank launch profile``: fill the database of operations on the machine it runs on."""

from __future__ import annotations

from pathlib import Path

import click

from wavetank.cache_folder import cache_folder
from wavetank.serving.profiling.models import BACKENDS, DTYPES, read_model
from wavetank.terminal import say, say_wrapped
from wavetank.units import show

FILE = "operations.sqlite"
# Batches whose step time is printed, as far as the grid goes: decoding sequences at a context, or one prompt.
_CONTEXT_SHARE = 4


def default_database() -> Path:
    """Return where operations are kept unless another file is named."""
    return cache_folder() / "profiles" / FILE


@click.command()
@click.option("--model", required=True, metavar="MODEL", help="A config.json, its folder, or a name of the zoo.")
@click.option(
    "--database", type=click.Path(path_type=Path), default=None,
    help="SQLite file of measured operations; by default one in the user's cache folder.",
)  # fmt: skip
@click.option(
    "--device", default="cpu", show_default=True, help="Where to measure, as torch names it: cpu, cuda, cuda:1."
)
@click.option(
    "--dtype", type=click.Choice(DTYPES), default="float32", show_default=True, help="Of weights and activations."
)
@click.option(
    "--backend", type=click.Choice(BACKENDS), default="per-sequence", show_default=True,
    help="How attention over the KV cache is computed.",
)  # fmt: skip
@click.option(
    "--tensor-parallel", type=int, default=1, show_default=True,
    help="Devices that share the model: the part of one of them is measured, collectives are noted.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(0, 4096), default=0, help="Threads of torch; 0 for all that are allowed."
)
@click.option("--max-tokens", type=int, default=512, show_default=True, help="Largest step.")
@click.option("--max-requests", type=int, default=16, show_default=True, help="Largest batch.")
@click.option("--max-context", type=int, default=2048, show_default=True, help="Longest request, prompt and answer.")
@click.option("--dry-run", is_flag=True, help="Trace, and print what would be measured.")
@click.option("-v", "--verbose", is_flag=True, help="Print every operation that is measured.")
def command(
    model: str,
    database: Path | None,
    device: str,
    dtype: str,
    backend: str,
    tensor_parallel: int,
    threads: int,
    max_tokens: int,
    max_requests: int,
    max_context: int,
    dry_run: bool,
    verbose: bool,
) -> int:
    """Measure the operations of a model that no profile has yet, and keep them for all models.

    The model is traced by its shape; no weights are read.  A second model measures only what the first did not have.
    Ctrl-C keeps every operation that is done.
    """
    from wavetank.errors import BadValueError
    from wavetank.machine.cuda import require_cuda
    from wavetank.machine.threads import allowed_threads
    from wavetank.serving.profiling.database import OperationDatabase
    from wavetank.serving.profiling.measuring import Grid, device_conditions
    from wavetank.serving.profiling.profiled import Variant, profile, step_time, traced

    config = read_model(model)
    config.check_parallel(tensor_parallel)
    try:
        torch = require_cuda("Profiling on a GPU", device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise BadValueError("torch cannot use this device.", given=why, where="--device") from error
    grid = Grid.up_to(max_tokens, max_requests, max_context)
    variant = Variant(dtype=dtype, backend=backend, device=device, tensor_parallel=tensor_parallel, threads=threads)
    path = database or default_database()
    with OperationDatabase(path) as kept:
        if dry_run:
            conditions = device_conditions(device, allowed_threads(threads or None))
            operations = traced(config, variant).counts
            missing = {each: kept.missing(each, conditions, grid.points(each)) for each in operations}
            for operation, points in missing.items():
                say(f"{len(points):6d} points  {operation.words()}")
            total = sum(len(grid.points(each)) for each in operations)
            say_wrapped(f"{sum(map(len, missing.values()))} of {total} points would be measured.")
            return 0
        done = profile(config, kept, variant=variant, grid=grid, said=say if verbose else lambda text: None)
        swept, counts = done.swept, done.model.counts
        say_wrapped(
            f"{config.name}: {sum(counts.values())} operations in a forward pass, {len(counts)} of them distinct; "
            f"measured {len(swept.measured)} ({swept.points_measured} points in {show(swept.spent_s, 's')}), "
            f"reused {len(swept.reused)} ({swept.points_reused} points)."
        )
        if swept.disturbed:
            say_wrapped(
                f"The machine was busy while {len(swept.disturbed)} operations were measured; they serve until the "
                "next profile measures them again."
            )
        if not done.calibrated:
            say_wrapped("What a step takes beside its operations was not measured, and counts as nothing.")
        say(f"database  {path}")
        if done.model.collectives:
            say_wrapped(f"{sum(done.model.collectives.values())} collectives per step; a link gives their time.")
            return 0
        table = step_time(kept, done)
        context = max_context // _CONTEXT_SHARE
        for decodes in sorted({1, max_requests}):
            step = show(table.seconds(decodes, decodes * context), "s")
            say(f"{step:>10}  a step of {decodes} sequence{'s' * (decodes != 1)} at {context} tokens")
        prompt = min(max_tokens, max_context)
        step = show(table.seconds(0, 0, prompt, prompt * (prompt + 1) // 2), "s")
        say(f"{step:>10}  a step of one prompt of {prompt} tokens")
    return 0
