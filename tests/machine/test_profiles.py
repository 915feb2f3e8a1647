"""The store of profiles: what is kept comes back, and nothing else does."""

import errno
import hashlib
import json
import math
import multiprocessing
import os
import subprocess
import sys
import warnings

import pytest

from wavetank.machine import profiles
from wavetank.machine.profiles import Profile

MADE = Profile("products-float32", 3, {"cpu": "Abacus", "numpy": "2"}, {"rates": [1.5, 2.0], "spread": 0.01})


@pytest.fixture(autouse=True)
def warned_of_nothing(monkeypatch):
    monkeypatch.setattr(profiles, "_said", set())


def again(within, **other):
    wanted = {"kind": MADE.kind, "version": MADE.version, "conditions": MADE.conditions, **other}
    return profiles.read(**wanted, within=within)


def test_what_is_kept_comes_back_with_its_time_and_place(tmp_path):
    path = profiles.keep(MADE, tmp_path)
    found = again(tmp_path)
    assert (found.kind, found.version, found.conditions, found.content) == (
        MADE.kind, MADE.version, MADE.conditions, MADE.content,
    )  # fmt: skip
    assert found.path == path
    assert found.measured.endswith("+00:00")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("change", [{"conditions": {"cpu": "Abacus", "numpy": "3"}}, {"kind": "products-float64"}])
def test_other_conditions_or_kinds_have_no_profile_and_no_warning(tmp_path, change):
    profiles.keep(MADE, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert again(tmp_path, **change) is None
        assert again(tmp_path / "none") is None


def sealed(body):
    text = json.dumps(body, sort_keys=True)
    return json.dumps({**body, "checksum": hashlib.sha256(text.encode()).hexdigest()})


DAMAGES = {
    "empty": lambda text: b"",
    "truncated": lambda text: text[: len(text) // 2],
    "one figure changed": lambda text: text.replace(b"1.5", b"1.6"),
    "one condition changed": lambda text: text.replace(b"Abacus", b"Abacux"),
    "no checksum": lambda text: text.replace(b"checksum", b"chequesum"),
    "newer format": lambda text: text.replace(b'"format": 1', b'"format": 2'),
    "foreign": lambda text: b'{"some": "JSON"}',
    "list": lambda text: b"[1]",
    "nested": lambda text: b"[" * 200_000,
    "bytes": lambda text: bytes(range(256)),
    "huge": lambda text: b" " * (profiles.LARGEST_BYTES + 1),
    "sealed nonsense": lambda text: sealed(
        {"format": 1, "kind": MADE.kind, "version": 3, "measured": "", "conditions": [], "content": {}}
    ).encode(),
    "no figure": lambda text: sealed(
        {k: v for k, v in {**json.loads(text), "content": {"rate": float("nan")}}.items() if k != "checksum"}
    ).encode(),
    "other version": lambda text: sealed(
        {k: v for k, v in {**json.loads(text), "version": 4}.items() if k != "checksum"}
    ).encode(),
    "other kind": lambda text: sealed(
        {k: v for k, v in {**json.loads(text), "kind": "machine"}.items() if k != "checksum"}
    ).encode(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_no_good_counts_as_absent_with_one_warning(tmp_path, damage):
    path = profiles.keep(MADE, tmp_path)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.warns(RuntimeWarning, match="is not used") as caught:
        assert again(tmp_path) is None
        assert again(tmp_path) is None
    assert len(caught) == 1
    # It is replaced as soon as there is a new one.
    profiles.keep(MADE, tmp_path)
    assert again(tmp_path).content == MADE.content


def test_a_pipe_in_the_place_of_a_profile_does_not_block(tmp_path):
    os.mkfifo(profiles.path_of(MADE.kind, MADE.conditions, tmp_path))
    with pytest.warns(RuntimeWarning, match="no file"):
        assert again(tmp_path) is None


def test_a_folder_that_cannot_be_written_is_said_once_and_costs_nothing_else(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.warns(RuntimeWarning, match="serve this process alone") as caught:
        assert profiles.keep(MADE, blocked / "below") is None
        assert profiles.keep(MADE, blocked / "below") is None
    assert len(caught) == 1
    assert profiles.kept(within=blocked / "below") == ([], [])
    with profiles.locked("products", blocked / "below") as held:
        assert held


def test_a_write_that_fails_leaves_the_old_profile_and_no_litter(tmp_path, monkeypatch):
    profiles.keep(MADE, tmp_path)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profiles.os, "fsync", full)
    with pytest.warns(RuntimeWarning, match="No space"):
        assert profiles.keep(MADE, tmp_path) is None
    assert len(list(tmp_path.iterdir())) == 1
    assert again(tmp_path).content == MADE.content


@pytest.mark.parametrize("figure", [math.nan, math.inf])
def test_what_is_no_figure_is_not_kept(tmp_path, figure):
    with pytest.raises(ValueError, match="JSON"):
        profiles.keep(Profile("products", 1, {}, {"rate": figure}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_all_kept_profiles_are_listed_and_deleted_by_kind(tmp_path):
    profiles.keep(MADE, tmp_path)
    profiles.keep(Profile("machine", 1, {}, {}), tmp_path)
    (tmp_path / "products-broken.profile.json").write_text("{")
    (tmp_path / "foreign.txt").write_text("stays")
    good, bad = profiles.kept(within=tmp_path)
    assert [each.kind for each in good] == ["machine", "products-float32"]
    assert [path.name for path, _ in bad] == ["products-broken.profile.json"]
    assert len(profiles.delete("products", tmp_path)) == 2
    assert [each.kind for each in profiles.kept(within=tmp_path)[0]] == ["machine"]
    profiles.delete(within=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["foreign.txt"]


_HOLDER = """
import sys, time
from pathlib import Path
from wavetank.machine import profiles
with profiles.locked("products", Path(sys.argv[1])) as held:
    print(held, flush=True)
    time.sleep(60)
"""


def test_one_process_at_a_time_holds_the_lock_and_death_releases_it(tmp_path):
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        with profiles.locked("products", tmp_path, wait_s=0.0) as held:
            assert not held
        with profiles.locked("machine", tmp_path, wait_s=0.0) as held:
            assert held
        process.kill()
        process.wait()
    with profiles.locked("products", tmp_path, wait_s=30.0) as held:
        assert held


def _write_many(within):
    for _ in range(50):
        profiles.keep(MADE, within)


def test_readers_never_see_half_a_file_while_others_write(tmp_path):
    profiles.keep(MADE, tmp_path)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(tmp_path,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert again(tmp_path).content == MADE.content
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_the_store_lies_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert profiles.folder() == tmp_path / "wavetank" / "profiles"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_process_forked_under_the_lock_neither_keeps_nor_frees_it(tmp_path):
    read, write = os.pipe()
    with profiles.locked("products", tmp_path) as held:
        assert held
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    try:
        with profiles.locked("products", tmp_path, wait_s=0) as held:
            assert held
    finally:
        os.write(write, b".")
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_that_leaves_its_parents_lock_does_not_free_it(tmp_path):
    lock = profiles.locked("products", tmp_path)
    assert lock.__enter__()
    child = os.fork()
    if child == 0:
        lock.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    with profiles.locked("products", tmp_path, wait_s=0) as held:
        assert not held
    lock.__exit__(None, None, None)


def test_a_file_system_without_locks_stops_nobody(tmp_path, monkeypatch):
    def none_left(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(profiles.fcntl, "flock", none_left)
    with profiles.locked("products", tmp_path) as held:
        assert held


def test_a_folder_in_the_place_of_a_profile_is_no_profile_and_is_left(tmp_path):
    path = profiles.path_of(MADE.kind, MADE.conditions, tmp_path)
    path.mkdir()
    with pytest.warns(RuntimeWarning, match="it is no file"):
        assert again(tmp_path) is None
    before = os.open(os.devnull, os.O_RDONLY)
    os.close(before)
    assert again(tmp_path) is None
    after = os.open(os.devnull, os.O_RDONLY)
    os.close(after)
    assert after == before
    assert profiles.delete(within=tmp_path) == []
    assert path.is_dir()
