from __future__ import annotations

import dataclasses
import importlib.machinery
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from wavetank_toys.systems import Shifted

from wavetank.errors import BadFileError, BadValueError, UnknownNameError
from wavetank.ledger import catalog
from wavetank.ledger.search import index
from wavetank.workloads import datasets

Register = Callable[[str], None]

GOOD = """
[other]
object = "wavetank_toys.systems:Plain"
shape = "policy"
does = "Something else."
source = { title = "Nothing" }
runs = ["simulated"]
studies = []
"""


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Register]:
    """Install a third-party package whose catalog holds the given text."""

    def install(text: str, package: str = "some_party") -> None:
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "catalog.toml").write_text(text)
        info = tmp_path / f"{package}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[wavetank.systems]\n{package} = {package}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        catalog.everything.cache_clear()
        index.cache_clear()

    yield install
    monkeypatch.undo()
    catalog.everything.cache_clear()
    index.cache_clear()
    sys.modules.pop("some_party", None)


def test_a_third_party_adds_systems_and_studies_through_an_entry_point() -> None:
    assert "toy-plain" not in catalog.built_in().systems
    assert catalog.everything().systems["toy-plain"].area == "toys"
    assert catalog.study("toy-noise").asks == "Which toy gives the smallest value?"


def test_an_entry_loads_and_builds_its_class_with_the_catalogs_parameters() -> None:
    assert catalog.system("toy-shifted").load() is Shifted
    assert catalog.system("toy-fragile").build().every == 3
    assert catalog.system("toy-fragile").build(every="5").every == 5


def test_claims_know_their_system_and_conditions() -> None:
    first = catalog.system("toy-shifted").claims[0]
    assert (first.system, first.metric, first.versus, first.paper, first.better, dict(first.where)) == (
        "toy-shifted",
        "value_s",
        "toy-plain",
        0.5,
        "lower",
        {"mode": "calm"},
    )


def test_areas_are_the_folders_with_a_catalog() -> None:
    folder = Path(catalog.__file__).parents[1]
    assert catalog.areas() == tuple(sorted({file.parents[1].name for file in folder.glob("*/*/catalog.toml")}))


def test_reading_the_catalog_imports_no_system() -> None:
    code = "import sys; from wavetank.ledger import catalog; catalog.everything(); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_a_wrong_system_comes_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        catalog.system("toy-shiftd")
    error = caught.value
    assert error.problem == "There is no system named 'toy-shiftd'."
    assert error.nearest == "toy-shifted"
    assert error.hint == "wavetank list"


def test_a_wrong_study_comes_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        catalog.study("toy-nois")
    assert (caught.value.nearest, caught.value.hint) == ("toy-noise", "wavetank list --studies")


def test_a_wrong_parameter_comes_with_the_nearest() -> None:
    with pytest.raises(BadValueError) as caught:
        catalog.system("toy-shifted").build(shaer=0.1)
    assert str(caught.value) == (
        "There is no parameter named 'shaer'.\n  allowed: label, pause_s, share\n  nearest: share\n"
        "  where: system toy-shifted\n  next: wavetank show toy-shifted"
    )


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("[other", "The catalog is not valid TOML: ", ""),
        (GOOD.replace("shape", "form"), "The catalog entry has unknown keys: form.\n  allowed: object, shape, does", 2),
        (
            GOOD.replace('"policy"', '"plan"'),
            "The shape is not one of the known ones.\n  given: plan\n  allowed: policy",
            2,
        ),
        (GOOD + 'role = "hero"\n', "The role is not one of the known ones.\n  given: hero\n  allowed: system", 2),
        (GOOD.replace('"simulated"', '"dreamt"'), "The key runs holds unknown words.\n  given: ('dreamt',)\n", 2),
        (GOOD.replace('does = "Something else."', ""), "The catalog entry is incomplete: ", 2),
        ("\n" + GOOD.replace("[other]", "[raft]"), "The name 'raft' is registered twice;", 3),
        (
            GOOD + "[[other.claims]]\nsay = 'x'\n",
            "The catalog entry has unknown keys: say.\n  allowed: says, study, ",
            2,
        ),
        (GOOD + 'paper = "nobodys"\n', "A system has either a paper or a source.\n  given: nobodys", 2),
        (GOOD.replace('source = { title = "Nothing" }', ""), "A system has either a paper or a source.", 2),
        (
            GOOD.replace('source = { title = "Nothing" }', 'paper = "balance-ruote"'),
            "There is no paper named 'balance-ruote'.",
            2,
        ),
        (GOOD + 'default = ["toy-noise"]\n', "The key default names a study that the system is not in.", 2),
        (GOOD + "[launch.other]\nobject = 'x:y'\n", "The catalog entry is incomplete: ", 9),
        (GOOD + "[studies.more]\nobject = 'x:y'\nask = '?'\n", "The catalog entry has unknown keys: ask.", 9),
        (
            GOOD.replace('["simulated"]', "5"),
            "The key runs must be a list of texts, none of them empty.\n  given: 5",
            2,
        ),
        (GOOD.replace('["simulated"]', '[["simulated"]]'), "The key runs must be a list of texts", 2),
        (GOOD.replace("studies = []", 'studies = "toy-noise"'), "The key studies must be a list of texts", 2),
        (GOOD.replace("studies = []", 'studies = ["toy-nosie"]'), "There is no study named 'toy-nosie'.", 2),
        (GOOD.replace('"Something else."', "2026-01-01"), "The key does must be a text.", 2),
        (GOOD + "paper = { a = 1 }\n", "The key paper must be a text.", 2),
        (GOOD + 'default = "yes"\n', "The key default must be true, false or a list of texts.", 2),
        (GOOD + 'name = "raft"\n', "The catalog entry has unknown keys: name.", 2),
        (GOOD + 'area = "kernels"\n', "The catalog entry has unknown keys: area.", 2),
        (GOOD + "claims = 5\n", "The catalog has a value where a table belongs.\n  given: 5", 2),
        (GOOD + "[[other.claims]]\nvalue = 5\n", "The catalog has a value where a table belongs.\n  given: 5", 2),
        (
            GOOD + "[[other.claims]]\nsays = 'x'\nstudy = 's'\nmetric = 'm'\nat_least = nan\n",
            "The key at_least must be a number.",
            2,
        ),
        (
            GOOD + "[[other.claims]]\nsays = 'x'\nstudy = 's'\nmetric = 'm'\nbetter = 'higer'\n",
            "The key better is not one of the known words.\n  given: higer",
            2,
        ),
        (GOOD.replace("[other]", '["an other"]'), "This is no name of an entry.\n  given: an other", 2),
        (GOOD.replace("[other]", '[ "a.b" ]'), "This is no name of an entry.\n  given: a.b", 2),
        ("[check.'']\nobject = 'x:y'\nsays = 's'\n", "This is no name of an entry.", ""),
        ("[check.more]\nobject = 'x:y'\nsays = 's'\nendings = ['']\n", "The key endings must be a list of texts", 1),
        ("[verb.more]\nobject = 'x:y'\nsays = 's'\norder = 'first'\n", "The key order must be a whole number.", 1),
        ("other = " + "[" * 5000 + "]" * 5000, "The catalog is not valid TOML: ", ""),
        ("other = " + "9" * 5000, "The catalog is not valid TOML: ", ""),
        ("other = 3\n", "The catalog has a value where a table belongs.\n  given: 3", ""),
        ("launch = 3\n", "The catalog has a value where a table belongs.\n  given: 3", ""),
        (GOOD + GOOD, "The name 'other' is registered twice; the second entry is left out.\n  where: ", 2),
        (GOOD + "[check.more]\nobject = 'x\n", "The catalog is not valid TOML: ", 9),
        (GOOD[1:] + "does = 'Twice.'\n", "The catalog is not valid TOML: Cannot overwrite a value (at line 8, ", 1),
        (GOOD + "launch = 'wavetank launch ruter'\n", "There is no launch named 'ruter'.\n  allowed: adapters, ", 2),
        (GOOD + "launch = 'wavetank launch'\n", "There is no launch named ''.\n  allowed: adapters, cluster, ", 2),
        (
            GOOD + "[[other.claims]]\nsays = 'x'\nstudy = 'toy-nosie'\nmetric = 'm'\nat_least = 1\n",
            "There is no study named 'toy-nosie'.",
            2,
        ),
    ],
)
def test_a_damaged_entry_is_left_out_with_a_warning_that_names_its_file_and_line(
    register: Register, text: str, message: str, line: int | str
) -> None:
    register(text)
    with pytest.warns(UserWarning, match="some_party") as caught:
        found = catalog.everything()
    told = str(caught[0].message)
    assert told.startswith(message)
    assert f"some_party/catalog.toml, line {line}" in told if line else "some_party/catalog.toml" in told
    assert len(caught) == len(found.problems) == 1
    # Everything else goes on working.
    assert "other" not in found.systems or text.startswith(GOOD)
    assert catalog.system("toy-plain").where.split(", ")[0].endswith("wavetank_toys/catalog.toml")


@pytest.mark.parametrize(
    ("damaged", "message", "line"),
    [
        (GOOD.replace("[other]", "[another]").replace("shape", "form"), "unknown keys: form", 10),
        (GOOD.replace("[other]", "[another]").replace("studies = []", "studies = ["), "not valid TOML: ", 10),
        (GOOD.replace("[other]", "[another]") + "[[another.claims]]\nsays = \n", "not valid TOML: ", 10),
        (GOOD + "[[other.claims]]\nsays = 'x'\n", "'other' is registered twice", 10),
        ('[launch.another]\nobject = """x\n', "not valid TOML: ", 9),
        ("[launch.another\nobject = 'x'\n", "not valid TOML: ", 9),
    ],
)
def test_the_entries_on_either_side_of_a_damaged_one_stay(
    register: Register, damaged: str, message: str, line: int
) -> None:
    after = GOOD.replace("[other]", "[third]") + "[studies.toys]\nobject = 'x:y'\nasks = '?'\n"
    register(GOOD + damaged + after)
    with pytest.warns(UserWarning, match=re.escape(message)) as caught:
        found = catalog.everything()
    assert f"catalog.toml, line {line}, " in str(caught[0].message)
    assert len(caught) == 1
    assert {"other", "third"} <= set(found.systems) and "another" not in found.systems
    assert found.systems["other"].claims == () and "another" not in found.commands["launch"]
    # Lines are those of the file.
    first = (GOOD + damaged).count("\n")
    assert f", line {first + 2}, third" in found.systems["third"].where
    assert f", line {first + 9}, studies.toys" in found.studies["toys"].where


def test_a_system_whose_launch_is_wrong_is_used_without_it(register: Register) -> None:
    claim = "[[other.claims]]\nsays = 'x'\nstudy = '{}'\nmetric = 'm'\nat_least = 1\n"
    register(GOOD + "launch = 'wavetank launch ruter'\n" + claim.format("nowhere") + claim.format("toy-noise"))
    with pytest.warns(UserWarning) as caught:
        found = catalog.everything().systems["other"]
    assert ["without it" in str(each.message) for each in caught] == [True, False]
    assert found.launch == ""
    assert [each.study for each in found.claims] == ["toy-noise"]


def test_a_catalog_that_is_no_text_is_named_with_its_line(register: Register, tmp_path: Path) -> None:
    register(GOOD)
    (tmp_path / "some_party" / "catalog.toml").write_bytes(GOOD.encode() + b"# \xff\n")
    with pytest.warns(UserWarning, match=r"The catalog is not UTF-8 text: (.|\n)*some_party/catalog.toml, line 9"):
        assert "toy-plain" in catalog.everything().systems


@pytest.mark.parametrize("words", [("list",), ("--help",), ("launch", "--help"), ("profile", "--show")])
def test_one_wrong_entry_does_not_stop_the_commands(
    call: Callable[..., Any], register: Register, words: tuple[str, ...]
) -> None:
    lines = [f"[{table}.more]\nobject = 'no_such:thing'\nsays = 's'\norder = 'x'\n" for table in catalog.COMMANDS]
    register(GOOD.replace("[other]", "[x]") + "paper = [1]\n" + "".join(lines))
    with pytest.warns(UserWarning, match="some_party"):
        told = call(*words)
    assert told.code == 0, told.err


BROKEN = GOOD.replace("wavetank_toys.systems:Plain", "some_party.nowhere:Thing").replace("[]", '["toy-noise"]')


def test_a_comparison_goes_on_without_a_system_that_cannot_be_imported(
    call: Callable[..., Any], command: Callable[..., Any], register: Register, tmp_path: Path
) -> None:
    register(BROKEN + "default = true\n" + GOOD.replace("[other]", "[unfit]\nform = 1"))
    path = os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"]))
    done = command("compare", "toy-noise", "--seeds", "2", "--plain", "--on", "local:2", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "toy-shifted" in done.stdout
    note = " ".join(done.stdout.partition("note: Left out: other. ")[2].split())
    assert note.startswith("The object of 'other' could not be loaded: No module named 'some_party.nowhere' (")
    assert "some_party/catalog.toml, line 2, other)." in note
    # What is left out is said once, not again by every worker process.
    assert done.stderr.count("unknown keys: form") == 1
    with pytest.warns(UserWarning, match="unknown keys: form"):
        asked = call("compare", "toy-noise", "--systems", "toy-plain,other")
    assert asked.code == 3
    assert "No module named 'some_party.nowhere'" in asked.err and "catalog.toml, line 2, other" in asked.err


def test_a_check_that_cannot_be_imported_leaves_its_files_to_the_next(
    call: Callable[..., Any], register: Register, here: Path
) -> None:
    register("[check.mine]\nobject = 'some_party:C'\nsays = 's'\norder = 0\nendings = ['.edn', '.mine']\n")
    (here / "history.edn").write_text("{:process 0, :type :invoke, :f :read, :value nil}\n")
    (here / "history.mine").write_text("")
    told = call("check", "history.edn")
    assert told.code == 0 and "linearizable" in told.out
    assert "some_party/catalog.toml, line 1, check.mine" in told.err
    for words in (("history.mine",), ("--kind", "mine", "history.edn")):
        told = call("check", *words)
        assert (told.code, told.out) == (3, "")
        assert "some_party/catalog.toml, line 1, check.mine" in told.err


def test_a_study_that_cannot_be_imported_stands_in_nobodys_way(
    call: Callable[..., Any], register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[studies.odd]\nobject = 'some_party:S'\nasks = 'Which zebra wins?'\nproblems = ['zebras']\n"
    claim = "[[other.claims]]\nsays = 'x'\nstudy = 'odd'\nmetric = 'm'\nat_least = 1\n"
    register(GOOD.replace("[]", '["odd"]') + claim + text)
    where = "some_party/catalog.toml, line 14, studies.odd"
    shown = call("show", "other")
    assert shown.code == 0 and "wavetank compare odd --systems other\n" in shown.out
    advised = call("advise", "zebras")
    assert advised.code == 0 and where in advised.err
    run = call("claims", "other", "toy-shifted", "--run", "--plain")
    assert run.code == 4 and where in run.err
    assert "not run           x" in run.out and "halves the value" in run.out


def test_a_verb_that_is_there_already_is_named_and_left_out(call: Callable[..., Any], register: Register) -> None:
    register("[verb.list]\nobject = 'some_party:nothing'\nsays = 'Something else.'\n")
    with pytest.warns(UserWarning, match=r"The verb 'list' is there already(.|\n)*some_party/catalog.toml, line 1"):
        told = call("--help")
    assert told.code == 0 and "Something else" not in told.out
    assert call("list").code == 0


def test_completion_says_nothing_of_what_is_left_out(
    call: Callable[..., Any], register: Register, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    register(GOOD + "form = 1\n")
    asked = {"_WAVETANK_COMPLETE": "bash_complete", "COMP_WORDS": "wavetank show toy-pl", "COMP_CWORD": "2"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    told = call("show", "toy-pl")
    assert "toy-plain" in told.out and told.err == ""
    assert [each for each in recwarn if each.category is catalog.CatalogWarning] == []


def test_this_package_has_no_damaged_entry() -> None:
    assert catalog.built_in().problems == ()


def test_a_package_that_is_gone_is_named(register: Register, tmp_path: Path) -> None:
    register(GOOD)
    (tmp_path / "some_party" / "catalog.toml").unlink()
    with pytest.warns(UserWarning, match="behind the entry point 'some_party' could not be read: ") as caught:
        assert "toy-plain" in catalog.everything().systems
    assert "next: uninstall or repair that package" in str(caught[0].message)


def test_a_package_that_fails_to_import_is_named(register: Register, tmp_path: Path) -> None:
    register(GOOD)
    (tmp_path / "some_party" / "__init__.py").write_text("raise RuntimeError('not today')")
    with pytest.warns(UserWarning, match="'some_party' could not be read: RuntimeError: not today") as caught:
        assert "toy-plain" in catalog.everything().systems
    assert f"({tmp_path}/some_party/__init__.py, line 1)" in str(caught[0].message)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\ndef (:", "SyntaxError: invalid syntax ({}, line 2)"),
        ("\n\nimport json.nothing", "No module named 'json.nothing' ({}, line 3)"),
        ("def f():\n    return {}['a']\nf()", "KeyError: 'a' ({}, line 2)"),
    ],
)
def test_the_line_at_which_a_package_fails_is_named_beside_the_one_that_registers_it(
    register: Register, tmp_path: Path, text: str, said: str
) -> None:
    register(GOOD)
    (tmp_path / "some_party" / "__init__.py").write_text(text)
    with pytest.warns(UserWarning, match="could not be read") as caught:
        catalog.everything()
    told = str(caught[0].message)
    assert f"could not be read: {said.format(tmp_path / 'some_party' / '__init__.py')}\n" in told
    assert f"where: {tmp_path}/some_party-1.dist-info/entry_points.txt, line 2, " in told


def test_a_package_that_does_not_exist_is_named_with_the_line_that_registers_it(
    register: Register, tmp_path: Path
) -> None:
    register(GOOD)
    (tmp_path / "some_party-1.dist-info" / "entry_points.txt").write_text("[x]\n\n[wavetank.systems]\na = no_such\n")
    with pytest.warns(UserWarning, match="'a' could not be read: No module named 'no_such'\n") as caught:
        assert "toy-plain" in catalog.everything().systems
    assert "entry_points.txt, line 4, group wavetank.systems" in str(caught[0].message)


def test_a_paper_is_found_by_its_name_and_its_arxiv_id() -> None:
    for name in ("icloud", "2602.19433", "arXiv:2602.19433v2", "https://arxiv.org/abs/2602.19433"):
        found = catalog.paper(name)
        assert found is not None and found.name == "icloud"
    assert catalog.paper("2602.19430") is None
    assert catalog.system("bilateral-sync").source["arxiv"] == "2602.19433"


def test_commands_of_a_catalog_come_in_the_order_of_help(register: Register) -> None:
    register("[launch.zebra]\nobject = 'some_party:nothing'\nsays = 'stripes'\norder = 0\n")
    assert list(catalog.commands("launch"))[:2] == ["zebra", "router"]
    with pytest.raises(BadFileError) as caught:
        catalog.commands("launch")["zebra"].load()
    assert "some_party/catalog.toml, line 1, launch.zebra" in str(caught.value)


@pytest.mark.parametrize("path", ["wavetank_toys.nowhere:Plain", "wavetank_toys.systems:Nobody"])
def test_an_object_that_cannot_be_loaded_is_named(register: Register, path: str) -> None:
    register(GOOD.replace("wavetank_toys.systems:Plain", path))
    with pytest.raises(BadFileError) as caught:
        catalog.system("other").load()
    assert str(caught.value).startswith("The object of 'other' could not be loaded: ")
    assert caught.value.given == path
    assert "some_party/catalog.toml, line 2, other" in str(caught.value.where)


@pytest.mark.parametrize("text", ["1 / 0", "def (:", "raise SystemExit(0)"])
def test_a_module_that_raises_is_named_with_the_line_that_does(register: Register, tmp_path: Path, text: str) -> None:
    register(GOOD.replace("wavetank_toys.systems:Plain", "some_party.broken:Plain"))
    (tmp_path / "some_party" / "broken.py").write_text(f"{text}\n")
    sys.modules.pop("some_party.broken", None)
    with pytest.raises(BadFileError, match="The object of 'other' could not be loaded: ") as caught:
        catalog.system("other").load()
    assert "some_party/catalog.toml, line 2, other" in str(caught.value.where)
    assert "broken.py" in caught.value.problem and "line 1" in caught.value.problem


def test_an_object_of_another_kind_is_named(register: Register) -> None:
    text = "[studies.more]\nobject = 'wavetank_toys.systems:Plain'\nasks = '?'\n"
    register(GOOD.replace("wavetank_toys.systems:Plain", "json:dumps") + text)
    with pytest.raises(BadFileError, match=r"The object of 'other' is no class\.") as caught:
        catalog.system("other").load()
    assert "some_party/catalog.toml, line 2, other" in str(caught.value.where)
    with pytest.raises(BadFileError, match=r"The object of 'more' is no class derived from Study\."):
        catalog.study("more").load()


def test_a_package_that_ends_the_program_is_named(register: Register, tmp_path: Path) -> None:
    register(GOOD)
    (tmp_path / "some_party" / "__init__.py").write_text("raise SystemExit(0)")
    with pytest.warns(UserWarning, match="behind the entry point 'some_party' could not be read"):
        assert "toy-plain" in catalog.everything().systems


@pytest.mark.parametrize(
    ("needs", "lack"),
    [
        ((), ""),
        (("json", "sys"), ""),
        (("json", "no_such_library", "no_other"), "no_such_library"),
        (("no_such_library.part",), "no_such_library.part"),
    ],
)
def test_an_entry_knows_what_it_lacks(needs: tuple[str, ...], lack: str) -> None:
    assert dataclasses.replace(catalog.system("toy-plain"), needs=needs).lacks() == lack


@pytest.mark.parametrize(("found", "lack"), [(True, ""), (False, "cuda")])
def test_a_device_is_a_need_too(found: bool, lack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: found), __spec__=importlib.machinery.ModuleSpec("torch", None)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert dataclasses.replace(catalog.system("toy-plain"), needs=("cuda",)).lacks() == lack


def test_a_data_set_is_a_need_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entry = dataclasses.replace(catalog.system("toy-plain"), needs=("data:lcma-schemes",))
    assert entry.lacks() == "data:lcma-schemes"
    for file in datasets.entry("lcma-schemes").files:
        place = tmp_path / "lcma-schemes" / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    assert entry.lacks() == ""


def test_a_device_is_lacking_where_the_library_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert dataclasses.replace(catalog.system("toy-plain"), needs=("cuda",)).lacks() == "cuda"


def test_a_program_is_met_beside_the_folder_and_on_the_search_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    entry = dataclasses.replace(catalog.system("toy-plain"), needs=("program:some-proxy",))
    for folder in (".venv-peers/bin", "bin"):
        assert entry.lacks() == "program:some-proxy"
        program = tmp_path / folder / "some-proxy"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
        assert entry.lacks() == ""
        program.unlink()


def test_what_an_entry_needs_is_in_the_extra_that_it_names() -> None:
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    needy = [entry for entry in catalog.built_in() if entry.needs]
    assert needy
    for entry in needy:
        libraries = {
            re.split("[^A-Za-z0-9_-]", line)[0].replace("-", "_").lower() for line in extras.get(entry.extra, ())
        }
        # What is installed under one name may be imported by another.
        imported = {"opencv_python_headless": "cv2", "scikit_learn": "sklearn"}
        libraries = {imported.get(name, name) for name in libraries}
        needed = {
            need.removeprefix("package:")
            for need in entry.needs
            if need != "cuda" and not need.startswith(("data:", "blas:", "program:"))
        }
        assert needed <= libraries, entry.name
