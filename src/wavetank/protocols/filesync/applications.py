"""What people's programs do to files, and what must hold among the files of one thing.

A program's action is a list of single-file steps, because that is all a file system offers; what the program takes for
granted is that its files change together.  Editors write a copy and rename it, git writes objects before the index and
the index before the branch, a document package has a list of its parts, and a build tool believes modification times.

Sources: ``git-fsck(1)``, ``gitformat-index(5)`` and ``gitrepository-layout(5)`` for what git writes and in which order;
S. Feldman, "Make - A Program for Maintaining Computer Programs", 1979, for the rule of the build tool.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from wavetank.errors import WavetankError
from wavetank.protocols.filesync.tree import TOGETHER, group_roots
from wavetank.sim.node import Message

_BRANCHES = "refs/heads/"


class ApplicationError(WavetankError):
    """A program that stopped and said why; nobody is misled."""


class Step(NamedTuple):
    """One thing a program does to one file.

    Parameters
    ----------
    action : str
        ``write``, ``remove``, ``move`` (to ``to``), ``begin`` and ``end`` (of a coordinated change of the group
        ``path``), or ``copy`` (into a backup).
    """

    action: str
    path: str
    content: bytes = b""
    to: str = ""


class Seen(NamedTuple):
    """One file as a reader found it; no content when that was in the cloud alone."""

    content: bytes | None
    mtime: float


Files = Mapping[str, Seen]
Read = Callable[[str], bytes]


class Put(Message, frozen=True):
    """Write a file in place."""

    path: str
    content: bytes


class Save(Message, frozen=True):
    """Save a document as editors do: write a copy beside it and rename that over it."""

    path: str
    content: bytes


class Remove(Message, frozen=True):
    """Remove a file, if it is there."""

    path: str


class Move(Message, frozen=True):
    """Rename a file or move it to another folder."""

    path: str
    to: str


class SaveBundle(Message, frozen=True):
    """Save a document that is a folder: its parts, then the list of them, as one coordinated change."""

    bundle: str
    parts: tuple[tuple[str, bytes], ...]


class GitCommit(Message, frozen=True):
    """Write a file of a git repository and commit it; makes the repository when there is none."""

    repository: str
    path: str
    content: bytes


class GitSwitch(Message, frozen=True):
    """Switch to a branch, which is made when there is none of that name."""

    repository: str
    branch: str


class GitPack(Message, frozen=True):
    """Collect all reachable objects into one pack and remove the single ones, as ``git gc`` does."""

    repository: str


class Build(Message, frozen=True):
    """Write some sources of a folder, then compile what is newer than its output."""

    folder: str
    sources: tuple[tuple[str, bytes], ...]


class Backup(Message, frozen=True):
    """Copy everything away; answered with what was copied."""


class Look(Message, frozen=True):
    """Read everything at once; answered with what was seen."""


def object_name(content: bytes) -> str:
    """Return the name git's model gives an object of this content."""
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def compiled(source: bytes) -> bytes:
    """Return what the build tool makes of a source."""
    return b"compiled " + hashlib.sha1(source, usedforsecurity=False).digest()


def steps_of(command: Message, paths: Mapping[str, float], read: Read) -> list[Step]:
    """Return what a program does, as planned from the files it finds when it starts.

    Parameters
    ----------
    command : Message
        One of this module's, other than Look and Backup.
    paths : mapping
        Every path to its modification time.
    read : callable
        Returns the content of a path.

    Raises
    ------
    ApplicationError
        When the program refuses, as git does in a damaged repository.
    TreeError
        When a content it needs is not there.
    """
    if isinstance(command, Put):
        return [Step("write", command.path, command.content)]
    if isinstance(command, Save):
        # The copy's name is drawn from the content, as editors draw one at random.
        copy = f"{command.path}.{object_name(command.content)[:6]}~"
        return [Step("write", copy, command.content), Step("move", copy, to=command.path)]
    if isinstance(command, Remove):
        return [Step("remove", command.path)] if command.path in paths else []
    if isinstance(command, Move):
        return [Step("move", command.path, to=command.to)] if command.path in paths else []
    if isinstance(command, SaveBundle):
        return _bundle_steps(command)
    if isinstance(command, Build):
        return _build_steps(command, paths, read)
    if isinstance(command, GitCommit):
        return _commit_steps(command, paths, read)
    if isinstance(command, GitSwitch):
        return _switch_steps(command, paths, read)
    if isinstance(command, GitPack):
        return _pack_steps(command, paths, read)
    raise ApplicationError("No program knows this command.", given=type(command).__name__)


def _bundle_steps(command: SaveBundle) -> list[Step]:
    listed = "".join(f"{object_name(content)} {name}\n" for name, content in sorted(command.parts))
    return [
        Step("begin", command.bundle),
        *(Step("write", f"{command.bundle}/{name}", content) for name, content in command.parts),
        Step("write", f"{command.bundle}/manifest", listed.encode()),
        Step("end", command.bundle),
    ]


def _build_steps(command: Build, paths: Mapping[str, float], read: Read) -> list[Step]:
    folder = command.folder
    steps = []
    if f"{folder}/{TOGETHER}" not in paths:
        steps.append(Step("write", f"{folder}/{TOGETHER}"))
    written = dict(command.sources)
    steps += [Step("write", f"{folder}/src/{name}", content) for name, content in written.items()]
    prefix = f"{folder}/src/"
    names = sorted({path.removeprefix(prefix) for path in paths if path.startswith(prefix)} | set(written))
    for name in names:
        out = f"{folder}/out/{name}"
        if name in written or paths.get(out, float("-inf")) < paths[prefix + name]:
            source = written[name] if name in written else read(prefix + name)
            steps.append(Step("write", out, compiled(source)))
    return steps


class _Repository:
    """A repository's files, for the programs that work on it."""

    def __init__(self, root: str, paths: Iterable[str], read: Read) -> None:
        self.root = root
        self.git = f"{root}/.git/"
        self.paths = {path for path in paths if path.startswith(root + "/")}
        self._read = read
        self._packed: dict[str, bytes] | None = None

    def read(self, name: str) -> bytes:
        """Return a file below ``.git``; b"" when there is none."""
        return self._read(self.git + name) if self.git + name in self.paths else b""

    def object(self, name: str) -> bytes:
        """Return an object; raises ApplicationError when it is missing."""
        path = f"{self.git}objects/{name[:2]}/{name[2:]}"
        if path in self.paths:
            return self._read(path)
        if self._packed is None:
            self._packed = {}
            for each in sorted(self.paths):
                if each.startswith(self.git + "objects/pack/"):
                    self._packed.update(_unpacked(self._read(each)))
        found = self._packed.get(name)
        if found is None:
            raise ApplicationError("git: bad object.", given=name, where=self.root)
        return found

    def head(self) -> tuple[str, str]:
        """Return the reference HEAD points to and the commit it holds, "" for none yet."""
        reference = self.read("HEAD").decode().removeprefix("ref: ").strip() or f"{_BRANCHES}main"
        return reference, self.read(reference).decode().strip()

    def entries(self, commit: str) -> dict[str, str]:
        """Return the files of a commit: path to the name of its blob."""
        return _entries(self.object(_fields(self.object(commit))["tree"][0])) if commit else {}

    def refuse_when_locked(self, *names: str) -> None:
        """Stop as git does when another git seems to be at work."""
        for name in names:
            if f"{self.git}{name}.lock" in self.paths:
                raise ApplicationError("git: another process seems to be running.", given=f"{name}.lock")

    def written(self, content: bytes) -> list[Step]:
        """Return the step that stores an object, none when it is there."""
        name = object_name(content)
        path = f"{self.git}objects/{name[:2]}/{name[2:]}"
        return [] if path in self.paths else [Step("write", path, content)]

    def replaced(self, name: str, content: bytes) -> list[Step]:
        """Return the steps that replace a file under its lock."""
        lock = f"{self.git}{name}.lock"
        return [Step("write", lock, content), Step("move", lock, to=self.git + name)]


def _commit_steps(command: GitCommit, paths: Mapping[str, float], read: Read) -> list[Step]:
    repository = _Repository(command.repository, paths, read)
    reference, parent = repository.head()
    repository.refuse_when_locked("index", reference)
    entries = repository.entries(parent)
    blob = b"blob\n" + command.content
    entries[command.path] = object_name(blob)
    listed = _listed(entries)
    tree = b"tree\n" + listed
    parents = f"parent {parent}\n" if parent else ""
    commit = f"commit\ntree {object_name(tree)}\n{parents}".encode()
    steps = (
        [] if f"{repository.git}HEAD" in paths else [Step("write", f"{repository.git}HEAD", b"ref: refs/heads/main\n")]
    )
    return [
        *steps,
        Step("write", f"{command.repository}/{command.path}", command.content),
        *repository.written(blob),
        *repository.replaced("index", listed),
        *repository.written(tree),
        *repository.written(commit),
        *repository.replaced(reference, f"{object_name(commit)}\n".encode()),
    ]


def _switch_steps(command: GitSwitch, paths: Mapping[str, float], read: Read) -> list[Step]:
    repository = _Repository(command.repository, paths, read)
    reference, commit = repository.head()
    if not commit:
        raise ApplicationError("git: there is no commit yet.", where=command.repository)
    target = f"{_BRANCHES}{command.branch}"
    repository.refuse_when_locked("index", "HEAD", target)
    if target == reference:
        return []
    there = repository.read(target).decode().strip()
    steps = [] if there else repository.replaced(target, f"{commit}\n".encode())
    old, new = repository.entries(commit), repository.entries(there or commit)
    for path, blob in sorted(new.items()):
        if old.get(path) != blob:
            steps.append(Step("write", f"{command.repository}/{path}", repository.object(blob).removeprefix(b"blob\n")))
    steps += [Step("remove", f"{command.repository}/{path}") for path in sorted(set(old) - set(new))]
    return [
        *steps,
        *repository.replaced("index", _listed(new)),
        *repository.replaced("HEAD", f"ref: {target}\n".encode()),
    ]


def _pack_steps(command: GitPack, paths: Mapping[str, float], read: Read) -> list[Step]:
    repository = _Repository(command.repository, paths, read)
    wanted: dict[str, bytes] = {}
    branches = [path for path in repository.paths if path.startswith(repository.git + _BRANCHES)]
    pending = [read(path).decode().strip() for path in sorted(branches) if not path.endswith(".lock")]
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted[name] = repository.object(name)
            pending += _links(wanted[name])
    prefix = repository.git + "objects/"
    loose = {path for path in repository.paths if path.startswith(prefix) and not path.startswith(prefix + "pack/")}
    loose = {path for path in loose if path.removeprefix(prefix).replace("/", "") in wanted}
    packs = {path for path in repository.paths if path.startswith(prefix + "pack/")}
    if not loose:
        return []
    pack = msgspec.msgpack.encode(dict(sorted(wanted.items())))
    home = f"{prefix}pack/pack-{object_name(pack)}.pack"
    return [Step("write", home, pack), *(Step("remove", path) for path in sorted((loose | packs) - {home}))]


def _unpacked(pack: bytes) -> dict[str, bytes]:
    try:
        return msgspec.msgpack.decode(pack, type=dict[str, bytes])
    except msgspec.DecodeError:
        return {}


def _fields(content: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"tree": [], "parent": []}
    for line in content.decode(errors="replace").splitlines()[1:]:
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


def _listed(entries: Mapping[str, str]) -> bytes:
    return "".join(f"{name} {path}\n" for path, name in sorted(entries.items())).encode()


def _entries(content: bytes) -> dict[str, str]:
    lines = content.decode(errors="replace").removeprefix("tree\n").splitlines()
    return {path: name for name, _, path in (line.partition(" ") for line in lines)}


def _links(content: bytes) -> list[str]:
    if content.startswith(b"commit\n"):
        fields = _fields(content)
        return [*fields["tree"], *fields["parent"]]
    return list(_entries(content).values()) if content.startswith(b"tree\n") else []


def torn_groups(files: Files) -> dict[str, str]:
    """Return the things whose files do not fit together, each with what is wrong.

    Git repositories, document packages and build folders are looked at, conflict copies of them as well.
    """
    found = {}
    for root in sorted(group_roots(files)):
        prefix = root + "/"
        inside = {path.removeprefix(prefix): seen for path, seen in files.items() if path.startswith(prefix)}
        problem = group_problem(inside)
        if problem:
            found[root] = problem
    return found


def group_problem(inside: Files) -> str:
    """Return what is wrong among the files of one group, by path within it; "" when nothing is."""
    if any(path.startswith(".git/") for path in inside):
        return repository_problem(inside)
    if TOGETHER in inside:
        return _build_problem(inside)
    return _bundle_problem(inside)


def repository_problem(inside: Files) -> str:
    """Return what ``git fsck`` would find, or that the index holds changes nobody made; "" for a sound repository."""
    objects: dict[str, bytes] = {}
    for path, seen in inside.items():
        if path.startswith(".git/objects/pack/"):
            objects.update(_unpacked(seen.content or b""))
        elif path.startswith(".git/objects/"):
            name = path.removeprefix(".git/objects/").replace("/", "")
            if seen.content is not None:
                objects[name] = seen.content
    for name, content in objects.items():
        if object_name(content) != name:
            return f"object {name[:8]} is damaged"
    heads = {}
    for path, seen in inside.items():
        if path.startswith(f".git/{_BRANCHES}") and not path.endswith(".lock"):
            heads[path.removeprefix(".git/")] = (seen.content or b"").decode(errors="replace").strip()
    reached: set[str] = set()
    for reference, commit in heads.items():
        pending = [commit]
        while pending:
            name = pending.pop()
            if name in reached:
                continue
            if name not in objects:
                return f"{reference} needs the object {name[:8]}, which is missing"
            reached.add(name)
            pending += _links(objects[name])
    index = _content(inside, ".git/index")
    for path, name in _entries(index).items():
        if name not in objects:
            return f"the index needs the object {name[:8]} of {path}, which is missing"
    head = _content(inside, ".git/HEAD").decode(errors="replace").removeprefix("ref: ").strip()
    if head not in heads:
        # Nothing was ever committed to it, or the branch has not come yet.
        return "HEAD names a branch that is missing" if heads or objects else ""
    tree = objects[_fields(objects[heads[head]])["tree"][0]]
    return "" if _entries(tree) == _entries(index) else "the index does not match the commit"


def _bundle_problem(inside: Files) -> str:
    listed = _content(inside, "manifest").decode(errors="replace").splitlines()
    if not listed:
        return "the list of parts is missing"
    for line in listed:
        name, _, part = line.partition(" ")
        if part not in inside:
            return f"the part {part} is missing"
        if object_name(_content(inside, part)) != name:
            return f"the part {part} is of another version"
    return ""


def _build_problem(inside: Files) -> str:
    for path, seen in inside.items():
        if not path.startswith("src/"):
            continue
        out = inside.get("out/" + path.removeprefix("src/"))
        fresh = out is not None and out.mtime >= seen.mtime
        if out is not None and fresh and out.content != compiled(seen.content or b""):
            return f"{path} counts as compiled and is not"
    return ""


def _content(inside: Files, path: str) -> bytes:
    seen = inside.get(path)
    return b"" if seen is None or seen.content is None else seen.content
