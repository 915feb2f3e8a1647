"""A real directory: atomic, inside its own walls, and nothing of the user's is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.filesync.live import directory as module
from wavetank.protocols.filesync.live.directory import DirectoryTree
from wavetank.protocols.filesync.tree import PRIVATE, Access, Clock, Incoming, TreeError


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[DirectoryTree]:
    root = tmp_path / "device"
    root.mkdir()
    yield DirectoryTree(root)


def put(tree: DirectoryTree, path: str, content: bytes, *, access: Access = False) -> None:
    placed = tree.write(path, content, mtime=100.0, access=access, expected=tree.entry(path))
    assert placed is not None


def rescued(tree: DirectoryTree) -> list[bytes]:
    return [path.read_bytes() for path in (tree.root / PRIVATE / "rescued").iterdir()]


def staged(tree: DirectoryTree) -> list[Path]:
    return list((tree.root / PRIVATE / "staging").iterdir())


def test_files_are_listed_read_replaced_and_removed(tree: DirectoryTree) -> None:
    put(tree, "d/a", b"1", access=True)
    put(tree, "d/a", b"two")
    entry = tree.listing()["d/a"]
    assert (entry.size_bytes, entry.mtime, entry.access) == (3, 100.0, False)
    assert tree.read("d/a") == b"two"
    assert tree.remove("d/a", entry)
    assert tree.listing() == {}
    assert not (tree.root / "d").exists()
    assert staged(tree) == []


def test_folders_without_files_are_listed_and_made(tree: DirectoryTree) -> None:
    put(tree, "e/f/", b"")
    assert tree.listing().keys() == {"e/f/"}
    assert tree.read("e/f/") == b""
    entry = tree.entry("e/f/")
    assert entry is not None
    assert tree.remove("e/f/", entry)


def test_what_the_user_wrote_since_the_last_look_is_neither_replaced_nor_removed(tree: DirectoryTree) -> None:
    put(tree, "a", b"1")
    old = tree.entry("a")
    assert old is not None
    (tree.root / "a").write_bytes(b"the user's")
    assert tree.write("a", b"ours", mtime=0.0, access=False, expected=old) is None
    assert not tree.remove("a", old)
    assert tree.write("a", b"ours", mtime=0.0, access=False, expected=None) is None
    assert (tree.root / "a").read_bytes() == b"the user's"
    assert staged(tree) == []


def test_what_the_user_writes_between_the_look_and_the_exchange_comes_back(
    tree: DirectoryTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tree, "a", b"1")
    entry = tree.entry("a")
    exchange, calls = module._exchange, []

    def late(one: Path, folder: int, name: str) -> None:
        if not calls:
            new = tree.root / "new"
            new.write_bytes(b"the user's")
            new.replace(tree.root / "a")
        calls.append(name)
        exchange(one, folder, name)

    monkeypatch.setattr(module, "_exchange", late)
    assert tree.write("a", b"ours", mtime=0.0, access=False, expected=entry) is None
    assert (tree.root / "a").read_bytes() == b"the user's"
    assert len(calls) == 2


def test_without_an_exchange_in_the_system_files_are_replaced_all_the_same(
    tree: DirectoryTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_libc", object())
    put(tree, "a", b"1")
    put(tree, "a", b"2")
    assert tree.read("a") == b"2"
    assert staged(tree) == []


@pytest.mark.parametrize("path", ["../out", "/tmp/out", "a/../../out", f"{PRIVATE}/x"])
def test_a_path_that_leaves_the_tree_is_refused(tree: DirectoryTree, path: str) -> None:
    with pytest.raises(BadValueError):
        tree.write(path, b"x", mtime=0.0, access=False, expected=None)
    with pytest.raises(BadValueError):
        tree.read(path)
    with pytest.raises(BadValueError):
        tree.change_group("g", {path: Incoming(b"", 0.0, False)}, {})


def test_links_are_not_followed_out_of_the_tree(tree: DirectoryTree, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (tree.root / "link").symlink_to(outside)
    (tree.root / "file").symlink_to(outside / "secret")
    assert tree.listing() == {}
    assert set(tree.unsynced()) == {"link", "file"}
    with pytest.raises(TreeError, match="A link or a file stands"):
        tree.write("link/x", b"x", mtime=0.0, access=False, expected=None)
    with pytest.raises(TreeError):
        tree.read("file")
    assert tree.write("file", b"x", mtime=0.0, access=False, expected=None) is None
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


@pytest.mark.parametrize("which", ["", "staging", "displaced", "rescued", module._MARK, module.NOTICES])
def test_a_tree_that_brings_links_in_the_engines_own_folder_is_refused(tmp_path: Path, which: str) -> None:
    """A tree that was downloaded must not have files outside of it moved, made or opened to others."""
    outside = tmp_path / "documents"
    outside.mkdir(mode=0o755)
    (outside / "thesis.txt").write_text("years of work")
    root = tmp_path / "downloaded"
    (root / PRIVATE if which else root).mkdir(parents=True)
    target = tmp_path / "made" if which in (module._MARK, module.NOTICES) else outside
    (root / PRIVATE / which if which else root / PRIVATE).symlink_to(target)
    with pytest.raises(TreeError, match="A link stands where") as caught:
        DirectoryTree(root)
    assert PRIVATE in caught.value.given
    assert sorted(path.name for path in outside.rglob("*")) == ["thesis.txt"]
    assert outside.stat().st_mode & 0o777 == 0o755
    assert not (tmp_path / "made").exists()


def test_names_that_are_not_utf8_stay_where_they_are_and_are_told(tree: DirectoryTree) -> None:
    name = os.fsencode(tree.root) + b"/caf\xe9"
    with open(name, "wb") as file:  # noqa: PTH123
        file.write(b"x")
    put(tree, "a", b"1")
    assert tree.listing().keys() == {"a"}
    ((shown, why),) = tree.unsynced().items()
    assert shown == r"caf\xe9"
    assert "not UTF-8" in why
    assert os.path.exists(name)  # noqa: PTH110


def test_read_only_files_are_replaced_and_keep_their_neighbours(tree: DirectoryTree) -> None:
    put(tree, "a", b"1")
    (tree.root / "a").chmod(0o444)
    put(tree, "a", b"2")
    assert tree.read("a") == b"2"


def test_a_directory_that_is_gone_is_not_one_that_is_empty(tree: DirectoryTree, tmp_path: Path) -> None:
    tree.root.rename(tmp_path / "moved")
    with pytest.raises(TreeError, match="gone"):
        tree.listing()
    tree.root.mkdir()
    with pytest.raises(TreeError, match="gone"):
        tree.listing()
    with pytest.raises(TreeError, match="not there"):
        DirectoryTree(tmp_path / "none")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TreeError, match="not there"):
        DirectoryTree(tmp_path / "file")


def test_a_full_disk_leaves_everything_as_it_was(tree: DirectoryTree, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tree, "a", b"1")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TreeError, match="cannot be written") as caught:
        put(tree, "a", b"2")
    assert "No space left" in str(caught.value)
    with pytest.raises(TreeError, match="cannot be written"):
        tree.change_group("g", {"g/x": Incoming(b"1", 0.0, False)}, {})
    assert tree.listing().keys() == {"a"}
    assert tree.read("a") == b"1"
    assert staged(tree) == []


def test_a_group_appears_at_once_or_not_at_all(tree: DirectoryTree) -> None:
    files = {"g/x/y": Incoming(b"1", 5.0, True), "g/e/": Incoming(b"", 0.0, False)}
    placed = tree.change_group("g", files, {})
    assert placed is not None
    assert placed == tree.listing()
    assert tree.change_group("g", files, {}) is None
    assert staged(tree) == []
    put(tree, "file", b"1")
    assert tree.change_group("file", {"file/x": Incoming(b"1", 0.0, False)}, {}) is None
    assert tree.read("file") == b"1"


def test_what_a_crash_left_half_way_is_kept_aside(tree: DirectoryTree) -> None:
    (tree.root / PRIVATE / "staging" / "1-1").write_bytes(b"maybe the user's")
    again = DirectoryTree(tree.root)
    assert rescued(again) == [b"maybe the user's"]
    assert staged(again) == []


def test_the_clock_is_off_in_times_only(tmp_path: Path) -> None:
    tree = DirectoryTree(tmp_path, Clock(50.0), round_s=2.0)
    (tmp_path / "a").write_bytes(b"1")
    os.utime(tmp_path / "a", (200.0, 200.0))
    assert tree.listing()["a"].mtime == 150.0
    tree.write("b", b"2", mtime=150.0, access=False, expected=None)
    assert (tmp_path / "b").stat().st_mtime == 200.0
    assert tree.time(0.0) > 50.0


def test_users_find_what_they_were_told(tree: DirectoryTree) -> None:
    tree.notify("a", "kept")
    tree.notify("b", "kept too")
    lines = (tree.root / PRIVATE / "notices.jsonl").read_text().splitlines()
    assert [json.loads(line)["path"] for line in lines] == ["a", "b"]
    assert not tree.evict("a", tree.listing().get("a"))  # type: ignore[arg-type]
    assert tree.free_bytes() > 0


def test_a_group_changes_at_once_and_keeps_what_is_not_synchronised(tree: DirectoryTree) -> None:
    new = {f"g/{name}": Incoming(name.encode(), 1.0, False) for name in ("a", "b", "d/c", "d/e/f")}
    tree.change_group("g", new, {})
    (tree.root / "g" / "link").symlink_to("a")
    expected = tree.listing()
    changes = {"g/a": Incoming(b"new", 2.0, True), "g/d/c": None, "g/d/e/f": None, "g/x/y": Incoming(b"y", 2.0, False)}
    placed = tree.change_group("g", changes, expected)
    assert placed is not None
    assert {path: tree.read(path) for path in tree.listing()} == {"g/a": b"new", "g/b": b"b", "g/x/y": b"y"}
    assert tree.listing()["g/b"] == expected["g/b"]
    assert placed["g/a"] == tree.listing()["g/a"]
    assert (tree.root / "g" / "link").is_symlink()
    assert staged(tree) == []


def test_a_group_that_its_user_changed_is_left_as_it_is(tree: DirectoryTree) -> None:
    tree.change_group("g", {"g/a": Incoming(b"1", 1.0, False), "g/b": Incoming(b"1", 1.0, False)}, {})
    expected = tree.listing()
    (tree.root / "g" / "b").write_bytes(b"the user's")
    assert tree.change_group("g", {"g/a": Incoming(b"2", 2.0, False)}, expected) is None
    (tree.root / "g" / "new").write_bytes(b"the user's")
    assert tree.change_group("g", {"g/a": Incoming(b"2", 2.0, False)}, tree.listing() | expected) is None
    assert (tree.root / "g" / "a").read_bytes() == b"1"
    assert (tree.root / "g" / "b").read_bytes() == (tree.root / "g" / "new").read_bytes() == b"the user's"
    assert staged(tree) == []


def test_what_a_program_still_writes_into_an_exchanged_directory_is_kept_and_told(
    tree: DirectoryTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.change_group("g", {"g/a": Incoming(b"1", 1.0, False)}, {})
    folder = os.open(tree.root / "g", os.O_RDONLY)
    assert tree.change_group("g", {"g/a": Incoming(b"2", 2.0, False)}, tree.listing()) is not None
    late = os.open("late", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    os.write(late, b"the user's")
    os.close(late)
    os.close(folder)
    monkeypatch.setattr(module, "_DISPLACED_S", 0.0)
    tree.listing()
    assert "was written while it was replaced" in tree.unsynced()["g"]
    (kept,) = (tree.root / PRIVATE / "rescued").iterdir()
    assert (kept / "late").read_bytes() == b"the user's"


def test_an_exchanged_directory_that_rests_is_forgotten(tree: DirectoryTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.change_group("g", {"g/a": Incoming(b"1", 1.0, False)}, {})
    assert tree.change_group("g", {"g/a": Incoming(b"2", 2.0, False)}, tree.listing()) is not None
    monkeypatch.setattr(module, "_DISPLACED_S", 0.0)
    tree.listing()
    assert list((tree.root / PRIVATE / "displaced").iterdir()) == rescued(tree) == []
