"""``wavetank profile``: measured when asked, refused when busy, shown, deleted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.kernels.products import gpu_profile, libraries, profile
from wavetank.kernels.products.profile import ProductProfile
from wavetank.kernels.solvers import rates
from wavetank.kernels.solvers.pair import default_devices
from wavetank.ledger import catalog
from wavetank.machine import limits as machine
from wavetank.machine import profiles

Call = Callable[..., Any]
TABLES = {way: np.full((2, 2, 2), 1e9).tolist() for way in ("own", "block", "numpy")}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the store be empty, and measuring take no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(profiles, "_said", set())
    monkeypatch.setattr(profile, "_KEPT", {})
    monkeypatch.setattr(profile, "_ANY", {})
    monkeypatch.setattr(gpu_profile, "found_gpu", lambda: False)
    monkeypatch.setattr(libraries, "present", lambda: ("numpy",))

    def products(dtype: str, threads: int, **_: Any) -> ProductProfile:
        return ProductProfile(
            dtype=dtype, threads=threads, grid=(16, 1024), rates=TABLES, term_s=1e-10, pass_s=1e-10, spread=0.01,
            versions={"numpy": np.__version__}, conditions=profile.conditions_of(threads),
        )  # fmt: skip

    def limits(quick: bool) -> machine.MachineProfile:
        names = [each.name for each in dataclasses.fields(machine.MachineProfile) if each.name.endswith("_per_s")]
        return machine.MachineProfile(
            cpu="a", cores=1, memory_bytes=1, conditions=machine.conditions_of(), **dict.fromkeys(names, 1e9)
        )

    monkeypatch.setattr(profile, "measure", products)
    monkeypatch.setattr(machine, "measure", limits)
    monkeypatch.setattr(rates, "_known", {})
    monkeypatch.setattr(
        rates, "measure",
        lambda report: rates.RatesProfile(
            rates={64: rates.Rates(1e-4, 2e-4, 1e-6, 1e-6)}, conditions=rates.conditions_of(default_devices())
        ),
    )  # fmt: skip
    return tmp_path / "cache" / "wavetank" / "profiles"


def test_what_is_measured_is_kept_shown_used_and_deleted(call: Call, store: Path) -> None:
    told = call("profile", "--threads", "1")
    assert told.code == 0
    assert told.out.count(": kept") == 4
    assert profile.kept("float32", 1) is not None
    shown = call("profile", "--show")
    assert shown.code == 0
    assert rates.kept(default_devices()) is not None
    assert shown.out.startswith(f"4 profiles in {store}")
    for words in (
        "products-float32",
        "products-float64",
        "machine",
        "rounds differed by up to 1.0%",
        "threads 1",
        "accelerator 2.62 GFLOP/s",
    ):
        assert words in " ".join(shown.out.split())
    assert "what ships for" in shown.out
    rows = json.loads(call("profile", "--show", "--json").out)
    assert [each["kind"] for each in rows["profiles"]] == [
        "machine", "products-float32", "products-float64", "solvers",
    ]  # fmt: skip
    assert call("profile", "--delete", "--only", "products").out == f"2 profiles deleted from {store}\n"
    assert call("profile", "--delete", "--only", "solvers").out == f"1 profile deleted from {store}\n"
    assert call("profile", "--delete").out == f"1 profile deleted from {store}\n"
    assert call("profile", "--show").out.startswith("0 profiles")


def test_a_busy_machine_is_told_and_what_was_kept_stays(
    call: Call, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("profile", "--threads", "1", "--only", "products")
    before = {path: path.read_text() for path in store.glob("*.json")}
    calm = profile.measure
    monkeypatch.setattr(
        profile, "measure",
        lambda dtype, threads, **more: dataclasses.replace(
            calm(dtype, threads, **more), spread=0.5 if dtype == "float32" else 0.01, term_s=2.0
        ),
    )  # fmt: skip
    told = call("profile", "--threads", "1", "--only", "products")
    assert told.code == 3
    assert "The machine was busy while products were measured: rounds differed by 50%" in told.err
    changed = {path.name for path, text in before.items() if path.read_text() != text}
    assert len(changed) == 1
    assert changed.pop().startswith("products-float64")


def test_damaged_files_are_named_and_can_be_deleted(call: Call, store: Path) -> None:
    call("profile", "--only", "machine")
    (path,) = store.glob("machine-*.json")
    path.write_text(path.read_text()[:50])
    shown = call("profile", "--show")
    assert shown.code == 0
    assert "is not used: it is damaged" in " ".join(shown.out.split())
    assert call("profile", "--delete").out.startswith("1 profile deleted")


@pytest.mark.parametrize("kind", ["sorts", "productsof", "products-float32", "machine"])
def test_a_profile_that_no_kind_here_can_read_is_shown_as_unused(call: Call, kind: str) -> None:
    profiles.keep(profiles.Profile(kind, 999, {}, {}))
    assert "version 999: this version of Wavetank does not use it" in " ".join(call("profile", "--show").out.split())


def test_where_nothing_can_be_kept_it_says_so(call: Call, store: Path) -> None:
    store.parent.mkdir(parents=True)
    store.write_text("no folder")
    with pytest.warns(RuntimeWarning, match="Nothing can be kept"):
        told = call("profile", "--only", "machine")
    assert told.code == 0
    assert "not kept" in told.out


def test_two_at_once_are_refused(call: Call) -> None:
    with profiles.locked("profile"):
        told = call("profile", "--only", "machine")
    assert told.code == 3
    assert "Another process is measuring" in told.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--show", "--delete"), "not both"), (("--json",), "--json requires --show"), (("--only", "sorts"), "machine"),
        (("--threads", "1024"), "exceeds those that the program may use"), (("--threads", "0"), "0"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(call: Call, arguments: tuple[str, ...], says: str) -> None:
    told = call("profile", *arguments)
    assert told.code == 3
    assert says in told.err


@pytest.mark.parametrize("object_", ["no_such_module:Kind", "wavetank.cli.list:command", "json:dumps"])
def test_a_kind_that_cannot_be_loaded_leaves_the_others(
    call: Call, monkeypatch: pytest.MonkeyPatch, object_: str
) -> None:
    entries = catalog.commands("profile")
    entry = catalog.CommandEntry(name="broken", object=object_, says="none", where="x/catalog.toml, line 3, broken")
    monkeypatch.setattr(catalog, "commands", lambda table: {**entries, "broken": entry, "machine": entry})
    with pytest.warns(UserWarning, match=r"x/catalog.toml, line 3, broken"):
        told = call("profile", "--show")
    assert (told.code, told.err) == (0, "")
    assert "0 profiles in" in told.out
