"""``wavetank launch router-key``: the key is shown once, and its digest is all that is kept."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("aiohttp")

from wavetank.errors import BadValueError
from wavetank.serving.proxy.access import KeySettings, digest_of, read_keys
from wavetank.serving.proxy.command_router_key import add_key, entry_of


def test_a_key_is_printed_once_and_only_its_digest_is_kept(call: Callable[..., Any], here: Path) -> None:
    ended = call(
        "launch", "router-key", "team-a", "--requests-per-minute", "60", "--models", "m-*,n", "--weight", "2",
        "--expires", "2099-01-01T00:00:00Z", "--burst-s", "5s",
    )  # fmt: skip
    assert (ended.code, ended.err) == (0, "")
    key = ended.out.strip()
    text = (here / "keys.toml").read_text()
    assert key not in text
    assert (here / "keys.toml").stat().st_mode & 0o777 == 0o600
    [found] = read_keys(here / "keys.toml")
    assert found == KeySettings(
        name="team-a", sha256=digest_of(key), requests_per_minute=60.0, models=("m-*", "n"), weight=2.0,
        expires="2099-01-01T00:00:00Z", burst_s=5.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a b"], "no name of a key"),
        (["twice"], "There is a key of this name."),
        (["x", "--uses", "root"], "allowed"),
        (["x", "--weight", "0"], "0.001 to 1000"),
        (["x", "--expires", "tomorrow"], "no time with a zone"),
        (["x", "--file", "none/keys.toml"], "cannot be written"),
        (["x", "--file", "damaged.toml"], "not valid TOML"),
    ],
)
def test_mistakes_change_nothing(call: Callable[..., Any], here: Path, arguments: list[str], says: str) -> None:
    assert call("launch", "router-key", "twice").code == 0
    (here / "damaged.toml").write_text("keys = ")
    before = (here / "keys.toml").read_bytes()
    ended = call("launch", "router-key", *arguments)
    assert (ended.code, ended.out) == (3, "")
    assert says in " ".join(ended.err.split())
    assert (here / "keys.toml").read_bytes() == before


def test_what_an_operator_wrote_into_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("# ours\n[[keys]]\nname = 'a'\nsha256 = '" + "0" * 64 + "'")
    path.chmod(0o640)
    add_key(path, KeySettings(name="b", sha256="1" * 64))
    assert path.read_text().startswith("# ours\n")
    assert [key.name for key in read_keys(path)] == ["a", "b"]
    assert path.stat().st_mode & 0o777 == 0o640


def test_keys_that_are_made_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda at: add_key(path, KeySettings(name=f"k{at}", sha256=f"{at:064x}")), range(24)))
    assert {key.name for key in read_keys(path)} == {f"k{at}" for at in range(24)}


@given(st.lists(st.text(max_size=20), max_size=3))
def test_no_name_of_a_model_leaves_its_quotes(names: list[str]) -> None:
    import tomllib

    key = KeySettings(name="a", sha256="0" * 64, models=tuple(names))
    [table] = tomllib.loads(entry_of(key))["keys"]
    assert tuple(table.get("models", ())) == key.models


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    add_key(tmp_path / "k", KeySettings(name="a", sha256="0" * 64))
    with pytest.raises(BadValueError):
        add_key(tmp_path / "k", KeySettings(name="a", sha256="1" * 64))
