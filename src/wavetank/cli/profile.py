"""``wavetank profile``: what this machine can do, measured when you ask for it, shown and deleted."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from wavetank import units
from wavetank.cli.exits import USAGE
from wavetank.cli.terminal import is_terminal, say, say_error, say_heading, say_json, say_wrapped, style
from wavetank.errors import BadValueError, WavetankError
from wavetank.machine import profiles

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("machine", "products", "solvers", "gpu-products")
DTYPES = ("float32", "float64")
# Tensor cores take these, and the others are torch's as well.
_GPU_DTYPES = ("float16", "bfloat16", "float32", "float64")


@click.command("profile")
@click.option("--show", is_flag=True, help="Show what is kept, and measure nothing.")
@click.option("--delete", is_flag=True, help="Delete what is kept.")
@click.option("--only", type=click.Choice(KINDS), help="Measure, show or delete this kind alone.")
@click.option("--threads", type=click.IntRange(1, 1024), multiple=True, help="Of products; by default 1 and all.")
@click.option("--dtype", type=click.Choice(DTYPES), multiple=True, help="Of products; by default both.")
@click.option("--json", "as_json", is_flag=True, help="With --show: print one JSON object.")
def command(
    show: bool, delete: bool, only: str | None, threads: tuple[int, ...], dtype: tuple[str, ...], as_json: bool
) -> int:
    """Measure this machine: its limits, what products cost by which library, its solvers' devices, and its GPU if any.

    Takes some minutes and wants the machine for itself: a profile that was disturbed is refused, and what was kept
    before stays.  Without a profile, products go by what ships for the family of processors.
    """
    if show and delete:
        raise BadValueError("Show or delete, not both.", given="--show --delete", allowed="one of them")
    if as_json and not show:
        raise BadValueError("--json is for --show.", given="--json", hint="wavetank profile --show --json")
    if delete:
        return _delete(only)
    if show:
        return _show(only, as_json)
    return _measure(only, threads, dtype)


def _delete(only: str | None) -> int:
    try:
        removed = profiles.delete(only or "")
    except OSError as error:
        raise WavetankError("A profile cannot be deleted.", given=str(error), where=str(profiles.folder())) from None
    say(f"{_count(len(removed))} deleted from {profiles.folder()}")
    return 0


def _count(number: int) -> str:
    return "1 profile" if number == 1 else f"{number} profiles"


# --- measuring ----------------------------------------------------------------------------------------------------


def _measure(only: str | None, threads: tuple[int, ...], dtypes: tuple[str, ...]) -> int:
    from wavetank.kernels.cuda import found_gpu

    steps: list[tuple[str, Callable[[], tuple[Path | None, str]]]] = []
    if only in (None, "machine"):
        steps.append(("limits of this machine", _machine))
    if only in (None, "products"):
        _load_libraries()
        for count in _counts(threads):
            for kind in dtypes or DTYPES:
                steps.append((f"products, {kind}, {count} thread(s)", _products_step(kind, count)))
    if only in (None, "solvers"):
        steps.append(("devices of solvers", _solvers))
    if only == "gpu-products" or (only is None and found_gpu()):
        steps += [(f"products on the GPU, {kind}", _gpu_step(kind)) for kind in _GPU_DTYPES]
    refused = 0
    with _alone():
        for name, step in steps:
            say(f"measuring: {name}", err=True)
            try:
                path, told = step()
            except BadValueError as error:
                # What was kept before stays, and so does what the other steps keep.
                say_error(error)
                refused += 1
            else:
                say(f"{style(name, bold=True)}: {'kept' if path is not None else 'not kept'}")
                say_wrapped(told, first="  ")
    return USAGE if refused else 0


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    with profiles.locked("profile", wait_s=0.0) as held:
        if not held:
            raise WavetankError(
                "Another process is measuring this machine; two at once would disturb each other.",
                hint="wait until it is done, then wavetank profile --show",
            )
        yield


def _counts(threads: tuple[int, ...]) -> tuple[int, ...]:
    from wavetank.machine.threads import allowed_threads

    most = allowed_threads()
    too_many = [count for count in threads if count > most]
    if too_many:
        raise BadValueError(
            "The program may not use so many threads.", given=too_many[0], allowed=f"1 to {most}",
            where="wavetank profile --threads", hint="limits: affinity, quotas, OMP_NUM_THREADS",
        )  # fmt: skip
    return tuple(dict.fromkeys(threads or (1, most)))


def _load_libraries() -> None:
    """Load every library that there is, so that it is measured; one that cannot be loaded is told."""
    from wavetank.kernels.products import libraries

    for name in libraries.present():
        try:
            libraries.load(name)
        except WavetankError as error:
            say(f"left out: {name}: {error.problem} {error.given or ''}".rstrip(), err=True)


def _machine() -> tuple[Path | None, str]:
    from wavetank.kernels import machine

    found = machine.measure(quick=False)
    return machine.keep(found), found.note()


def _solvers() -> tuple[Path | None, str]:
    from wavetank.kernels.solvers import rates

    found = rates.measure(told=_progress if is_terminal(sys.stderr) else _quiet)
    return rates.keep(found), found.note()


def _products_step(dtype: str, threads: int) -> Callable[[], tuple[Path | None, str]]:
    def step() -> tuple[Path | None, str]:
        from wavetank.kernels.products import profile

        found = profile.measure(dtype, threads, told=_progress if is_terminal(sys.stderr) else _quiet)
        return profile.keep(found), _of_products(found)

    return step


def _quiet(_: str) -> None:
    """Say nothing: off a terminal each step is one line."""


def _progress(text: str) -> None:
    click.echo(f"\r  {text:<60}", nl=False, err=True)


def _gpu_step(dtype: str) -> Callable[[], tuple[Path | None, str]]:
    def step() -> tuple[Path | None, str]:
        from wavetank.kernels.cuda import require_cuda
        from wavetank.kernels.products import gpu, gpu_profile

        torch = require_cuda("A profile of a GPU", "cuda", "wavetank profile --only products measures the processor")
        device = torch.device("cuda", torch.cuda.current_device())
        tf32 = gpu.rounds_to_tf32(torch.empty(0, dtype=getattr(torch, dtype)))
        found = gpu_profile.measure(device, dtype, tf32)
        return gpu_profile.keep(found), _rates(found.rates, found.device)

    return step


# --- showing ------------------------------------------------------------------------------------------------------


def _show(only: str | None, as_json: bool) -> int:
    good, bad = profiles.kept(only or "")
    if as_json:
        say_json({
            "folder": str(profiles.folder()),
            "profiles": [
                {"kind": each.kind, "version": each.version, "measured": each.measured, "path": str(each.path),
                 "conditions": dict(each.conditions), "content": dict(each.content)} for each in good
            ],
            "unusable": [{"path": str(path), "why": why} for path, why in bad],
        })  # fmt: skip
        return 0
    say(f"{_count(len(good))} in {profiles.folder()}")
    for each in good:
        say()
        say_heading(each.kind)
        say_wrapped(f"measured {each.measured}", first="  ")
        say_wrapped(", ".join(f"{key} {value}" for key, value in each.conditions.items()), first="  for ", rest="    ")
        say_wrapped(_told(each), first="  ", rest="    ")
    for path, why in bad:
        say()
        say_wrapped(f"{path} is not used: {why}.")
    from wavetank.kernels.products import priors

    prior = priors.here()
    say()
    say_wrapped(f"Where no profile holds, products go by what ships for {prior.name} ({prior.basis}).")
    return 0


def _told(found: profiles.Profile) -> str:
    """Return the figures of a profile in a line or two; why it is not used where it is none."""
    from wavetank.kernels import machine
    from wavetank.kernels.products import gpu_profile, profile
    from wavetank.kernels.solvers import rates as solvers

    told = None
    if found.kind == "machine" and found.version == machine.PROFILE_VERSION:
        limits = machine.profile_of(found)
        told = None if limits is None else limits.note()
    elif found.kind == "solvers" and found.version == solvers.PROFILE_VERSION:
        devices = solvers.profile_of(found)
        told = None if devices is None else devices.note()
    elif found.kind == "gpu-products" and found.version == gpu_profile.PROFILE_VERSION:
        rates = gpu_profile.profile_of(found)
        told = None if rates is None else _rates(rates.rates, rates.device)
    elif found.kind.startswith("products-") and found.version == profile.PROFILE_VERSION:
        products = profile.profile_of(found)
        told = None if products is None else _of_products(products)
    return told or f"version {found.version}: this version of Wavetank does not use it"


def _of_products(found: Any) -> str:
    return f"{_rates(found.rates, '')}; rounds differed by up to {found.spread:.1%}"


def _rates(rates: Any, where: str) -> str:
    """Return the speed of each way on the largest shape of its grid."""
    largest = ", ".join(
        f"{way} {units.show(float(table[-1][-1][-1]), 'flops')}/s" for way, table in sorted(rates.items())
    )
    return f"{where}: {largest}" if where else f"largest product: {largest}"
