"""Programs change files step by step; what must hold among them holds after every whole action."""

from __future__ import annotations

import pytest

from wavetank.protocols.filesync.applications import (
    ApplicationError,
    Build,
    GitCommit,
    GitPack,
    GitSwitch,
    Look,
    Move,
    Put,
    Remove,
    Save,
    SaveBundle,
    Seen,
    compiled,
    group_problem,
    repository_problem,
    steps_of,
    torn_groups,
)
from wavetank.sim.node import Message


class Disk:
    """Files that programs change, one step a tick."""

    def __init__(self) -> None:
        self.files: dict[str, Seen] = {}
        self.now = 0.0
        self.states: list[dict[str, Seen]] = []

    def do(self, command: Message) -> None:
        mtimes = {path: seen.mtime for path, seen in self.files.items()}
        for step in steps_of(command, mtimes, lambda path: self.files[path].content or b""):
            self.now += 1
            if step.action == "write":
                self.files[step.path] = Seen(step.content, self.now)
            elif step.action == "remove":
                del self.files[step.path]
            elif step.action == "move":
                self.files[step.to] = self.files.pop(step.path)
            self.states.append(dict(self.files))

    def inside(self, root: str) -> dict[str, Seen]:
        return {path.removeprefix(root + "/"): seen for path, seen in self.files.items() if path.startswith(root)}


def history() -> Disk:
    disk = Disk()
    for command in (
        GitCommit("repo", "a.c", b"1"), GitCommit("repo", "b.c", b"2"), GitSwitch("repo", "topic"),
        GitCommit("repo", "a.c", b"3"), GitPack("repo"), GitCommit("repo", "c.c", b"4"), GitSwitch("repo", "main"),
        GitPack("repo"),
    ):  # fmt: skip
        disk.do(command)
    return disk


def test_a_repository_is_sound_after_every_command() -> None:
    disk = Disk()
    disk.do(GitCommit("repo", "a.c", b"1"))
    assert torn_groups(disk.files) == {}
    assert torn_groups(history().files) == {}


def test_no_object_is_missing_at_any_step_of_git() -> None:
    for state in history().states:
        problem = repository_problem({path.removeprefix("repo/"): seen for path, seen in state.items()})
        assert "missing" not in problem or "branch" in problem


def test_switching_back_brings_back_the_files() -> None:
    disk = history()
    assert disk.files["repo/a.c"].content == b"1"
    assert "repo/c.c" not in disk.files
    assert sum(path.startswith("repo/.git/objects/pack/") for path in disk.files) == 1


@pytest.mark.parametrize(
    ("gone", "says"),
    [("objects/", "missing"), ("refs/heads/main", "HEAD names a branch that is missing")],
)
def test_a_repository_that_lacks_something_is_torn(gone: str, says: str) -> None:
    disk = Disk()
    disk.do(GitCommit("repo", "a.c", b"1"))
    path = next(path for path in disk.files if path.startswith(f"repo/.git/{gone}"))
    del disk.files[path]
    assert says in torn_groups(disk.files)["repo"]


def test_a_damaged_object_and_a_foreign_index_are_seen() -> None:
    disk = Disk()
    disk.do(GitCommit("repo", "a.c", b"1"))
    index = disk.files["repo/.git/index"]
    disk.do(GitCommit("repo", "a.c", b"2"))
    later = dict(disk.files)
    disk.files["repo/.git/index"] = index
    assert torn_groups(disk.files) == {"repo": "the index does not match the commit"}
    path = next(path for path in later if "/objects/" in path)
    later[path] = Seen(b"other", 0.0)
    assert "damaged" in torn_groups(later)["repo"]


def test_git_refuses_when_locked_and_when_objects_are_missing() -> None:
    disk = Disk()
    disk.do(GitCommit("repo", "a.c", b"1"))
    disk.files["repo/.git/index.lock"] = Seen(b"", 0.0)
    with pytest.raises(ApplicationError, match="another process"):
        disk.do(GitCommit("repo", "a.c", b"2"))
    del disk.files["repo/.git/index.lock"]
    for path in [path for path in disk.files if "/objects/" in path]:
        del disk.files[path]
    with pytest.raises(ApplicationError, match="bad object"):
        disk.do(GitCommit("repo", "a.c", b"2"))
    with pytest.raises(ApplicationError, match="no commit yet"):
        disk.do(GitSwitch("empty", "topic"))


def test_a_package_without_a_part_or_with_an_old_one_is_torn() -> None:
    disk = Disk()
    disk.do(SaveBundle("l.bundle", (("p", b"1"), ("q", b"2"))))
    assert torn_groups(disk.files) == {}
    inside = disk.inside("l.bundle")
    assert group_problem({**inside, "p": Seen(b"0", 0.0)}) == "the part p is of another version"
    del inside["q"]
    assert group_problem(inside) == "the part q is missing"
    assert group_problem({"p": Seen(b"1", 0.0)}) == "the list of parts is missing"


def test_an_output_that_counts_as_fresh_and_is_not_is_torn() -> None:
    disk = Disk()
    disk.do(Build("app", (("a.c", b"1"), ("b.c", b"2"))))
    assert disk.files["app/out/a.c"].content == compiled(b"1")
    assert torn_groups(disk.files) == {}
    # Only the source arrived, with an older time than the output has.
    disk.files["app/src/a.c"] = Seen(b"other", 0.0)
    assert torn_groups(disk.files) == {"app": "src/a.c counts as compiled and is not"}
    disk.files["app/src/a.c"] = Seen(b"other", 99.0)
    assert torn_groups(disk.files) == {}
    disk.do(Build("app", (("b.c", b"3"),)))
    assert disk.files["app/out/a.c"].content == compiled(b"other")


def test_plain_commands_do_what_they_say() -> None:
    disk = Disk()
    disk.do(Put("in/a", b"1"))
    disk.do(Save("in/b", b"2"))
    disk.do(Move("in/a", "out/a"))
    disk.do(Move("in/none", "out/none"))
    disk.do(Remove("in/b"))
    disk.do(Remove("in/none"))
    assert {path: seen.content for path, seen in disk.files.items()} == {"out/a": b"1"}
    with pytest.raises(ApplicationError, match="No program knows"):
        disk.do(Look())
