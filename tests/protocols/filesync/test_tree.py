"""Trees: paths stay inside, changes say what they expect, conflict copies have names of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.filesync.tree import (
    Clock,
    Incoming,
    MemoryTree,
    TreeError,
    changed_at_once,
    checked_path,
    conflict_name,
    group_of,
    group_roots,
    is_conflict,
    is_lock,
    original_name,
    package_of,
)


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/./b", ".wavetank-sync/x", "a\x00b", "x" * 256,
             "/".join(["y" * 200] * 6), "\udcff"],
)  # fmt: skip
def test_a_path_that_leaves_the_tree_is_refused(path: str) -> None:
    with pytest.raises(BadValueError) as caught:
        checked_path(path)
    assert "relative path" in str(caught.value)


@pytest.mark.parametrize("path", ["a", "a/b.txt", "a/..b", "empty/", "repo/.git/refs/heads/main", "ä/ö"])
def test_an_ordinary_path_is_taken_as_it_is(path: str) -> None:
    assert checked_path(path) == path


def put(tree: MemoryTree, path: str, content: bytes, mtime: float = 0.0) -> None:
    assert tree.write(path, content, mtime=mtime, access=False, expected=tree.entry(path)) is not None


def test_what_is_not_as_expected_is_not_replaced() -> None:
    tree = MemoryTree()
    put(tree, "a", b"one")
    old = tree.entry("a")
    put(tree, "a", b"two")
    assert old is not None
    assert tree.write("a", b"three", mtime=0.0, access=False, expected=old) is None
    assert tree.write("a", b"three", mtime=0.0, access=False, expected=None) is None
    assert not tree.remove("a", old)
    assert tree.read("a") == b"two"


def test_a_full_device_keeps_what_it_has() -> None:
    tree = MemoryTree(capacity_bytes=10)
    put(tree, "a", b"12345678")
    with pytest.raises(TreeError, match="full"):
        put(tree, "b", b"123")
    with pytest.raises(TreeError, match="full"):
        tree.change_group("g", {"g/x": Incoming(b"123", 0.0, False)}, {})
    assert tree.listing().keys() == {"a"}
    put(tree, "a", b"1234567890")
    assert tree.free_bytes() == 0


def test_a_group_is_added_whole_or_not_at_all() -> None:
    tree = MemoryTree()
    put(tree, "g/x", b"mine")
    assert tree.change_group("g", {"g/y": Incoming(b"", 0.0, False)}, {}) is None
    assert tree.listing().keys() == {"g/x"}


def test_an_evicted_file_keeps_its_entry_and_has_no_content() -> None:
    tree = MemoryTree()
    put(tree, "a", b"content")
    entry = tree.entry("a")
    assert entry is not None
    assert tree.evict("a", entry)
    after = tree.entry("a")
    assert after is not None
    assert after.dataless
    assert (after.size_bytes, after.stamp) == (entry.size_bytes, entry.stamp)
    with pytest.raises(TreeError, match="in the cloud alone"):
        tree.read("a")


def test_a_clock_is_off_and_jumps() -> None:
    clock = Clock(2.0, ((10.0, -5.0),))
    assert [clock.at(0.0), clock.at(9.0), clock.at(10.0)] == [2.0, 11.0, 7.0]


def test_repositories_packages_and_marked_folders_are_groups() -> None:
    paths = ["notes/a", "repo/.git/HEAD", "repo/src/x", "app/.keep-together", "app/src/y", "d/l.bundle/part", ".git/x"]
    roots = group_roots(paths)
    assert roots == {"repo", "app", "d/l.bundle"}
    assert [group_of(path, roots) for path in paths] == [
        "notes/a", "repo", "repo", "app", "app", "d/l.bundle", ".git/x",
    ]  # fmt: skip
    assert package_of("d/l (conflict of 2, 00000000).bundle/part") == "d/l (conflict of 2, 00000000).bundle"


@given(
    st.from_regex(r"\A([a-z]{1,8}/){0,2}[a-z.]{1,260}\Z").filter(lambda path: path.split("/")[-1].strip(".")),
    st.integers(0, 99),
    st.binary(min_size=16, max_size=16),
)
def test_a_conflict_copy_has_a_valid_name_that_tells_its_original(path: str, device: int, digest: bytes) -> None:
    name = conflict_name(path, device, digest)
    assert checked_path(name) == name
    assert is_conflict(name)
    assert conflict_name(path, device, digest) == name
    if len(path.split("/")[-1]) < 200:
        assert original_name(name) == path
        assert not is_conflict(original_name(name))


def test_syncthings_conflict_copies_are_known() -> None:
    assert original_name("a.sync-conflict-20261122-030405-ABCDEF2.txt") == "a.txt"


def test_gits_locks_are_known() -> None:
    paths = ["r/.git/index.lock", "r/.git/gc.pid", "r/.git/refs/heads/main.lock", "r/yarn.lock", "r/.git/index"]
    assert [is_lock(path) for path in paths] == [True, True, True, False, False]


def test_a_group_changes_at_once_or_not_at_all() -> None:
    tree = MemoryTree(capacity_bytes=10)
    tree.change_group("g", {"g/a": Incoming(b"12345", 0.0, False), "g/b": Incoming(b"12345", 0.0, False)}, {})
    expected = tree.listing()
    with pytest.raises(TreeError, match="full"):
        tree.change_group("g", {"g/c": Incoming(b"1", 0.0, False)}, expected)
    assert tree.change_group("g", {"g/c": Incoming(b"1", 0.0, False), "g/b": None}, expected) is not None
    assert tree.listing().keys() == {"g/a", "g/c"}
    assert tree.change_group("g", {"g/a": None}, expected) is None


def test_repositories_change_in_their_git_folder_and_packages_whole() -> None:
    assert changed_at_once("r/.git/x", "r") == "r/.git"
    assert changed_at_once("r/src/x", "r") == ""
    assert changed_at_once("l.bundle/x", "l.bundle") == "l.bundle"
    assert changed_at_once("app/x", "app") == ""
