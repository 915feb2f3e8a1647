"""Snapshots: complete or not at all; merging loses nothing and gives way to nobody silently."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadFileError
from wavetank.protocols.filesync.device import digest_of
from wavetank.protocols.filesync.snapshots import NOTHING, Graph, Leaf, changed, merge, same
from wavetank.protocols.filesync.tree import original_name


def graph() -> tuple[Graph, dict[str, Any]]:
    kept: dict[str, Any] = {}

    def save(key: str, value: bytes | None) -> None:
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = value

    return Graph(save, kept.get), kept


def leaf(made: Graph, content: bytes, mtime: float = 0.0) -> Leaf:
    return Leaf(made.put(content), False, mtime)


def test_a_snapshot_comes_back_as_it_was() -> None:
    made, kept = graph()
    files = {"a": leaf(made, b"1"), "d/b": leaf(made, b"2"), "d/e/c": leaf(made, b"3"), "empty/": leaf(made, b"")}
    commit = made.commit(files, (), 1)
    again = Graph(lambda key, value: None, kept.get)
    assert again.files(commit) == files
    assert again.is_complete(commit)
    assert made.commit(files, (), 1) == commit


def test_who_has_the_base_is_sent_only_what_changed() -> None:
    made, _ = graph()
    files = {f"d{number}/f": leaf(made, bytes([number])) for number in range(50)}
    base = made.commit(files, (), 1)
    new = made.commit({**files, "d7/f": leaf(made, b"new")}, (base,), 1)
    assert len(made.missing(new, base)) == 4
    assert len(made.missing(new, NOTHING)) == 1 + 1 + 50 + 50
    other, _ = graph()
    for content in made.missing(base, NOTHING):
        other.put(content)
    for content in made.missing(new, base):
        other.put(content)
    assert other.is_complete(new)
    assert other.files(new)["d7/f"].digest == digest_of(b"new")


def test_a_snapshot_in_part_is_seen_to_be_so() -> None:
    made, _ = graph()
    commit = made.commit({"d/a": leaf(made, b"1"), "d/b": leaf(made, b"2")}, (), 1)
    objects = made.missing(commit, NOTHING)
    for left_out in range(len(objects)):
        other, _ = graph()
        for number, content in enumerate(objects):
            if number != left_out:
                other.put(content)
        assert not other.is_complete(commit)
    with pytest.raises(BadFileError, match="missing"):
        graph()[0].object(commit)


def test_a_snapshot_that_leaves_the_tree_or_is_damaged_is_not_taken() -> None:
    made, _ = graph()
    evil = made.commit({"../../etc/x": leaf(made, b"1")}, (), 1)
    other, _ = graph()
    for content in made.missing(evil, NOTHING):
        other.put(content)
    garbage = other.put(b"\xc1garbage")
    with pytest.raises(BadFileError, match="damaged"):
        other.files(garbage)
    assert not other.is_complete(garbage)
    with pytest.raises(Exception, match="cannot be synchronised"):
        other.files(evil)


def test_what_nothing_needs_is_forgotten() -> None:
    made, kept = graph()
    old = made.commit({"a": leaf(made, b"1")}, (), 1)
    new = made.commit({"a": leaf(made, b"2")}, (old,), 1)
    made.retain([new])
    assert old not in made
    assert made.files(new)["a"].digest == digest_of(b"2")
    assert len(kept) == 3


def flat(**contents: str) -> dict[str, Leaf]:
    return {path.replace("__", "/"): Leaf(digest_of(text.encode()), False, 0.0) for path, text in contents.items()}


def test_changes_of_different_things_are_both_taken() -> None:
    found = merge(flat(a="1", b="1"), flat(a="2", b="1"), flat(a="1", b="2", c="3"), 2)
    assert found.files == flat(a="2", b="2", c="3")
    assert found.notices == ()


def test_changes_of_one_thing_are_kept_beside_each_other() -> None:
    found = merge(flat(a="1"), flat(a="2"), flat(a="3"), 2)
    assert found.files["a"] == flat(a="2")["a"]
    (copy,) = found.files.keys() - {"a"}
    assert original_name(copy) == "a"
    assert found.files[copy] == flat(a="3")["a"]
    assert found.copies == 1
    assert merge(flat(a="1"), found.files, flat(a="3"), 2).files == found.files


def test_a_group_is_taken_from_one_side() -> None:
    base = flat(r__x="1", r__y="1") | {"r/.keep-together": Leaf(digest_of(b""), False, 0.0)}
    kept, other = {**base, **flat(r__x="2")}, {**base, **flat(r__y="2")}
    found = merge(base, kept, other, 2)
    assert {path: found.files[path] for path in base} == kept
    copy = next(path for path in found.files if path.startswith("r (conflict")).split("/")[0]
    assert {path.replace(copy, "r"): leaf for path, leaf in found.files.items() if path.startswith(copy)} == other


def test_an_edit_wins_over_a_removal_and_is_told() -> None:
    for kept, other in ((flat(a="2"), {}), ({}, flat(a="2"))):
        found = merge(flat(a="1"), kept, other, 2)
        assert found.files == flat(a="2")
        assert len(found.notices) == 1


def test_a_file_gives_its_name_to_a_folder() -> None:
    found = merge({}, flat(d="file"), flat(d__x="1"), 2)
    assert "d/x" in found.files
    assert "d" not in found.files
    assert sorted(map(original_name, found.files)) == ["d", "d/x"]


FILES = st.dictionaries(
    st.sampled_from(["a", "b", "r/.git/x", "r/y", "p.key/z"]), st.sampled_from("123"), max_size=5
).map(lambda found: {path: Leaf(digest_of(text.encode()), False, 0.0) for path, text in found.items()})


@given(FILES, FILES, FILES)
def test_no_change_is_lost_in_any_merge(base: Any, kept: Any, other: Any) -> None:
    found = merge(base, kept, other, 2)
    there = {(original_name(path), leaf.digest) for path, leaf in found.files.items()}
    for side in (kept, other):
        for path in changed(base, side):
            if path in side:
                assert (path, side[path].digest) in there
    if base == kept:
        assert found.files == other
    if base == other or kept == other:
        assert found.files == kept


def test_times_are_no_part_of_equality() -> None:
    assert same(Leaf(b"x", False, 1.0), Leaf(b"x", False, 2.0))
    assert not same(Leaf(b"x", False, 1.0), Leaf(b"x", True, 1.0))
    assert same(None, None)
    assert not same(None, Leaf(b"x", False, 1.0))
