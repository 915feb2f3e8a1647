from __future__ import annotations

import inspect
import json
import shlex
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from wavetank_toys.systems import Shifted

from wavetank.errors import BadFileError, BadValueError, UnknownNameError, WavetankError
from wavetank.ledger import catalog, claims
from wavetank.run import comparison, own, runfolder
from wavetank.run.comparison import compare, keep_as_evidence, load, make_plan, resume
from wavetank.run.difference import difference
from wavetank.run.own import OwnSystem, from_reference, interface_of
from wavetank.settings import setting

if TYPE_CHECKING:
    from nowhere import Nothing

MINE = '''
from __future__ import annotations
from dataclasses import dataclass
from wavetank.settings import setting

class MyToy:
    """Takes off a share of the draw, and no more.

    The rest is not for the report.
    """

    def __init__(self, share: float = 0.25, label: str = "mine", steps=2):
        self.share, self.label, self.steps = share, label, steps

    def change(self, draw, seed):
        return draw * (1 - self.share)

@dataclass(frozen=True, kw_only=True)
class Declared:
    share: float = setting(0.5, says="the share that is taken off", low=0, high=1)

    def change(self, draw: float, seed: int) -> float:
        return draw * self.share

class Unready(MyToy):
    def __init__(self, share, steps: int = 2):
        super().__init__(share)

class Angry(MyToy):
    def __init__(self, share: float = 0.5):
        raise ValueError("not today")

class Broken(MyToy):
    def change(self, draw, seed):
        raise SystemExit(3) if seed else KeyError("broken")

class ToyPlain(MyToy):
    pass

class Unfit:
    change = None

NUMBER = 3
'''


class Toy:
    """Halves the draw."""

    def __init__(self, share: float = 0.5) -> None:
        self.share = share
        self.draws = 0

    def change(self, draw: float, seed: int) -> float:
        # Whether the object had been used before would show.
        self.draws += 1
        return draw * self.share / self.draws


@dataclass(frozen=True)
class Field:
    share: float = setting(0.5, says="the share that is kept")
    parts: tuple[int, ...] = (1, 2)
    hidden: Any = None

    def change(self, draw: float, seed: int) -> float:
        return draw * self.share


def unlike_toy() -> type:
    class Toy:
        def change(self, draw: float, seed: int) -> float:
            return draw

    return Toy


@pytest.fixture
def mine(here: Path) -> Path:
    """Write a file of systems into the working folder."""
    file = here / "mine.py"
    file.write_text(MINE)
    return file


def values(result: comparison.Comparison, system: str) -> list[float]:
    return [record.value for record in result.records if (record.system, record.metric) == (system, "value_s")]


def refused(*names: str, study: str = "toy-noise", **given: Any) -> BadValueError:
    with pytest.raises(BadValueError) as caught:
        make_plan(study, added=[from_reference(f"mine.py:{name}") for name in names], **given)
    return caught.value


# Names


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("MyRouter", "my-router"), ("LRURouter", "lru-router"), ("my_router", "my-router"), ("_Mine", "mine"),
        ("BR0", "br0"), ("Router2Go", "router2-go"), ("__", "own"), ("Schön", "schön"),
    ],
)  # fmt: skip
def test_a_system_is_named_after_its_class(name: str, short: str) -> None:
    kind = type(name, (Toy,), {})
    assert own.from_memory(kind).name == short
    assert catalog.NAME.fullmatch(short)


def test_objects_of_one_class_are_numbered_and_one_given_twice_counts_once() -> None:
    toy = Toy(0.1)
    names, found = own.collect([Toy, toy, "toy-plain", Toy(0.2), toy, Toy])
    assert names == ["toy", "toy-2", "toy-plain", "toy-3"]
    assert [each.made and each.made.share for each in found.values()] == [None, 0.1, 0.2]  # type: ignore[attr-defined]


def test_two_classes_of_one_name_are_refused(mine: Path) -> None:
    with pytest.raises(BadValueError, match=r"^The name 'toy' of the class .*unlike_toy.*Toy is that of the class "):
        own.collect([Toy, unlike_toy()])
    (mine.parent / "other.py").write_text(MINE)
    with pytest.raises(BadValueError, match=r"'my-toy' of the class other\.py:MyToy is that of the class mine"):
        own.collect([], [from_reference("mine.py:MyToy"), from_reference("other.py:MyToy")])
    assert own.collect([], [from_reference("mine.py:MyToy"), from_reference("mine.py:MyToy")])[0] == ["my-toy"]


def test_the_name_of_a_system_of_the_catalog_is_refused(mine: Path) -> None:
    assert str(refused("ToyPlain")) == (
        "The name 'toy-plain' of the class mine.py:ToyPlain is that of a system of the catalog.\n"
        "  where: --policy mine.py:ToyPlain\n  next: rename the class; a system of the catalog is given by its name"
    )


# What is refused


def test_what_names_no_class_is_refused(mine: Path) -> None:
    for text in ("mine.py", "MyToy", ":MyToy", "mine.py:", "mine.py:My-Toy"):
        with pytest.raises(BadValueError, match=r"^This names no class\.") as caught:
            from_reference(text)
        assert caught.value.allowed == own.FORMS
    with pytest.raises(BadValueError) as caught:
        from_reference("mine.py:MyTo")
    assert caught.value.problem == "There is no class 'MyTo' in mine.py."
    assert caught.value.nearest == "MyToy"
    with pytest.raises(BadValueError, match=r"'NUMBER' in mine\.py is no class"):
        from_reference("mine.py:NUMBER")
    with pytest.raises(BadFileError, match="cannot be read"):
        from_reference("gone.py:MyToy")
    with pytest.raises(BadFileError, match="The module gone could not be run"):
        from_reference("gone:MyToy")


def test_the_working_folder_is_not_searched_for_modules(mine: Path) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("wavetank")), "compare", "toy-noise", "--policy", "mine:MyToy"],
        cwd=mine.parent, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    said = " ".join(done.stderr.split())
    assert "The module mine could not be run: No module named 'mine'. where" in said


@pytest.mark.parametrize("given", [3, None, object(), print, [1], sys, lambda: 3])
def test_what_is_no_system_is_refused(given: Any) -> None:
    with pytest.raises(BadValueError, match=r"^A system is a name of the catalog, a class or an object of a class\."):
        make_plan("toy-noise", systems=[given])


def test_a_class_that_lacks_what_the_study_asks_of_its_systems_is_refused(mine: Path) -> None:
    error = refused("Unfit")
    assert error.problem == "Unfit cannot take part in toy-noise: it lacks change."
    assert (error.allowed, error.where) == ("change", "--policy mine.py:Unfit")
    assert error.hint == "wavetank show toy-plain --full names the code of a system that has all of it"


def test_a_router_chooses_or_places() -> None:
    wanted = interface_of("llm-routing")
    assert wanted.in_words() == "initial_state, parameters, and choose or place"
    assert wanted.word == "router"

    class Router:
        def initial_state(self, workers: int) -> None: ...
        def place(self) -> None: ...

    assert wanted.missing_of(Router()) == "parameters"
    assert wanted.missing_of(Toy()) == "initial_state, parameters, and choose or place"

    class Whatever:
        def __getattr__(self, name: str) -> int:
            return 3

    assert wanted.missing_of(Whatever()) == ""


def test_a_study_that_starts_its_systems_by_their_names_takes_those_of_the_catalog_only() -> None:
    with pytest.raises(BadValueError, match=r"^The study router-parity starts its systems by their names"):
        make_plan("router-parity", systems=["vllm-default", Toy])


def test_what_cannot_be_imported_here_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: object) -> type:
        raise WavetankError("not here")

    monkeypatch.setattr(catalog.SystemEntry, "load", absent)
    assert interface_of("toy-noise") == own.Interface("", (), ())


def test_a_constructor_that_needs_arguments_is_refused_without_them(mine: Path) -> None:
    assert str(refused("Unready")) == (
        "Unready cannot be built without a value of: share.\n  where: system unready\n"
        "  next: --set unready.share=VALUE, or a default in the class; in Python, give an object"
    )
    given = {"unready": {"share": "0.5"}}
    plan, _ = make_plan("toy-noise", added=[from_reference("mine.py:Unready")], parameters=given)
    # Without a type and a default to go by, a text stays a text.
    assert plan.parameters == given


def test_a_constructor_that_fails_is_named_with_its_line(mine: Path) -> None:
    line = MINE.splitlines().index('        raise ValueError("not today")') + 1
    error = refused("Angry", parameters={"angry": {"share": 0.1}})
    assert error.problem == f"Angry could not be built: ValueError: not today ({mine}, line {line})."
    assert error.given == {"share": 0.1}


def test_parameters_are_checked_by_what_the_class_says_of_them(mine: Path) -> None:
    added = [from_reference("mine.py:MyToy"), from_reference("mine.py:Declared")]
    given = {"my-toy": {"share": "0.75", "label": "7", "steps": "3"}, "declared": {"share": "0.1"}}
    plan, _ = make_plan("toy-noise", added=added, parameters=given)
    assert plan.parameters == {"my-toy": {"share": 0.75, "label": "7", "steps": 3}, "declared": {"share": 0.1}}
    assert str(refused("MyToy", parameters={"my-toy": {"shares": 1}})) == (
        "There is no parameter named 'shares'.\n  allowed: label, share, steps\n  nearest: share\n"
        "  where: system my-toy"
    )
    assert "out of range" in refused("Declared", parameters={"declared": {"share": 2}}).problem
    assert "whole number" in refused("MyToy", parameters={"my-toy": {"steps": 1.5}}).problem
    file = mine.parent / "study.toml"
    file.write_text(runfolder.dump_plan(plan))
    with pytest.raises(BadValueError, match=r"^A parameter was set for 'my-toy', which is not among"):
        make_plan(str(file), systems=["toy-plain"], parameters={"my-toy": {"share": 1}})
    with pytest.raises(UnknownNameError):
        make_plan("toy-noise", parameters={"my-toy": {"share": 1}})


def test_an_object_has_its_parameters_already() -> None:
    with pytest.raises(BadValueError, match=r"^The system 'toy' is an object, which has its parameters already\."):
        make_plan("toy-noise", systems=[Toy(0.25)], parameters={"toy": {"share": 0.75}})


def test_an_object_that_cannot_be_copied_is_refused() -> None:
    toy = Toy()
    toy.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(BadValueError, match=r"^Toy cannot be given to other processes \(its lock\): cannot pickle"):
        make_plan("toy-noise", systems=[toy])


def test_a_value_that_no_study_file_can_hold_is_refused() -> None:
    with pytest.raises(BadValueError, match=r"^A study file cannot hold this value\."):
        make_plan("toy-noise", systems=[Field], parameters={"field": {"hidden": object()}})


# Runs


def test_a_class_takes_part_beside_the_plain_run(tmp_path: Path) -> None:
    result = compare("toy-noise", systems=[..., Toy], out=tmp_path, on="here")
    assert result.plan.systems == ("toy-plain", "toy-shifted", "toy")
    # Built anew for every trial, so that none finds what another has left.
    assert values(result, "toy") == pytest.approx([value / 2 for value in values(result, "toy-plain")])
    assert make_plan("toy-noise", systems=Toy)[0].systems == ("toy",)
    assert make_plan("toy-noise", systems=Toy())[0].systems == ("toy",)


def test_it_can_be_the_answer_and_stands_in_table_and_report(tmp_path: Path) -> None:
    result = compare("toy-noise", systems=[..., Toy(0.125), Toy(0.25)], out=tmp_path, on="here", seeds=6)
    assert result.answer is not None
    assert result.answer.best == "toy"
    # Objects of one class are variants of one idea, no rivals of each other.
    assert "the strongest rival, toy-shifted" in result.answer.sentence
    assert "toy-2" in result.summary()
    assert {"toy", "toy-2"} < set(result.summary_frame()["system"])
    page = (result.folder / "report.html").read_text()
    assert "Halves the draw." in page
    assert f"{Toy.__module__}.Toy, which is not in the catalog" in page


def test_claims_are_of_systems_of_the_catalog(tmp_path: Path) -> None:
    plain = compare("toy-noise", out=tmp_path, on="here")
    result = compare("toy-noise", systems=[..., Field(0.25)], out=tmp_path, on="here")
    assert result.plan.parameters == {"field": {"share": 0.25}}
    assert [(each.claim.says, each.verdict) for each in result.verdicts] == [
        (each.claim.says, each.verdict) for each in plain.verdicts
    ]
    # Nor is it said that claims on it are not judged because its parameters differ.
    assert "are not judged" not in (result.folder / "report.html").read_text()


@pytest.mark.parametrize("place", ["here", "local:2", "dask://local", "ray://local"])
def test_every_place_gives_the_same_records(mine: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    # A module that this process alone has, as a notebook's.
    typed: Any = types.ModuleType("wavetank_typed_here")
    monkeypatch.setitem(sys.modules, typed.__name__, typed)
    exec(inspect.getsource(Toy), vars(typed))
    added = [from_reference("mine.py:MyToy"), from_reference("mine.py:Declared")]
    plan, study = make_plan("toy-noise", systems=["toy-plain", typed.Toy, typed.Toy(0.25)], added=added, seeds=2)
    result = comparison.run_plan(plan, study, runfolder.create(mine.parent, plan), on=place)
    assert result.failures == ()
    plain = values(result, "toy-plain")
    for name, share in {"toy": 0.5, "toy-2": 0.25, "my-toy": 0.75, "declared": 0.5}.items():
        assert values(result, name) == pytest.approx([value * share for value in plain])


def test_seeds_are_added_to_its_runs_too(call: Callable[..., Any], mine: Path) -> None:
    told = call("compare", "toy-noise", "--policy", "mine.py:MyToy", "--until", "50%", "--on", "here", "--json")
    assert told.code == 0
    plan = runfolder.load_plan(mine.parent / json.loads(told.out)["folder"] / "study.toml")
    assert (len(plan.seeds), plan.own["my-toy"].reference) == (6, "mine.py:MyToy")


def test_a_study_of_time_runs_it_in_processes_of_their_own(mine: Path) -> None:
    added = [from_reference("mine.py:MyToy")]
    plan, study = make_plan("toy-timing", added=added, seeds=2, settings={"rounds": 1, "sizes": (10,)})
    result = comparison.run_plan(plan, study, runfolder.create(mine.parent, plan))
    assert result.failures == ()
    assert len([r for r in result.records if (r.system, r.metric) == ("my-toy", "time_s")]) == 2


@pytest.mark.parametrize("place", ["here", "local:2"])
def test_an_error_in_a_trial_is_a_failed_trial(mine: Path, place: str) -> None:
    plan, study = make_plan("toy-noise", systems=["toy-plain"], added=[from_reference("mine.py:Broken")], seeds=2)
    result = comparison.run_plan(plan, study, runfolder.create(mine.parent, plan), on=place)
    assert {failure.trial for failure in result.failures} == {"broken#0", "broken#1"}
    last = sorted(failure.traceback.splitlines()[-1] for failure in result.failures)
    assert last == ["KeyError: 'broken'", "SystemExit: 3"]
    assert len(values(result, "toy-plain")) == 2


def test_a_class_of_the_main_script_goes_to_other_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import wavetank\n"
        "HALF = 0.5\n"
        "class Mine:\n"
        "    def change(self, draw, seed):\n"
        "        return draw * HALF\n"
        "if __name__ == '__main__':\n"
        "    result = wavetank.compare('toy-noise', systems=[..., Mine, Mine()], on='local:2', out='.')\n"
        "    print(result.plan.systems, result.failures, result.answer.best)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "('toy-plain', 'toy-shifted', 'mine', 'mine-2') () toy-shifted\n"


def test_a_compiled_router_of_a_file_is_tried(here: Path) -> None:
    (here / "mine.py").write_text(
        "import numpy as np\n"
        "from wavetank.serving.routing.interface import NoParameters, NoState, choose_function\n"
        "@choose_function\n"
        "def first(view, arrival, state, parameters):\n"
        "    return 0\n"
        "class FirstOnly(NoState, NoParameters):\n"
        "    choose = staticmethod(first)\n"
        "class Slower(NoState, NoParameters):\n"
        "    def choose(self, view, arrival, state, parameters):\n"
        "        return 0\n"
    )
    small = {"requests": 40, "workers": 2, "loads": (), "refreshes_s": ()}
    added = [from_reference("mine.py:FirstOnly"), from_reference("mine.py:Slower")]
    plan, study = make_plan("llm-routing", systems=["vllm-default"], added=added, seeds=1, settings=small)
    result = comparison.run_plan(plan, study, runfolder.create(here, plan), on="here")
    assert result.failures == ()
    simulated = [r for r in result.records if r.kind == "simulated"]
    compiled, slower = ([r.value for r in simulated if r.system == name] for name in ("first-only", "slower"))
    assert compiled == slower != []


# Folders of runs


def test_a_run_names_where_its_code_was_and_is_read_without_it(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added = [from_reference("mine.py:MyToy"), from_reference("mine.py:Declared")]
    plan, study = make_plan("toy-noise", added=added, parameters={"my-toy": {"share": 0.5}})
    result = comparison.run_plan(plan, study, runfolder.create(mine.parent / "runs", plan), on="here")
    about = json.loads((result.folder / "run.json").read_text())
    assert about["command"] == (
        "wavetank compare toy-noise --set my-toy.share=0.5 --policy mine.py:MyToy --policy mine.py:Declared"
    )
    assert about["own"]["my-toy"] == {
        "from": "mine.py:MyToy", "code": plan.own["my-toy"].code, "does": "Takes off a share of the draw, and no more.",
        "parameters": [
            {"name": "share", "value": "0.5", "unit": "", "says": "", "default": "0.25"},
            {"name": "label", "value": "mine", "unit": "", "says": "", "default": "mine"},
            {"name": "steps", "value": "2", "unit": "", "says": "", "default": "2"},
        ],
    }  # fmt: skip
    assert about["own"]["declared"]["does"] == ""
    assert about["own"]["declared"]["parameters"][0]["says"] == "the share that is taken off"
    assert (
        "my-toy is mine.py:MyToy, which is not in the catalog: to repeat the run, give it again with --policy "
        "mine.py:MyToy."
    ) in about["notes"]
    first_page = (result.folder / "report.html").read_text()
    mine.unlink()
    again = load(result.folder)
    assert again.plan == plan
    assert again.answer == result.answer
    assert again.summary() == result.summary()
    again.report()
    assert (result.folder / "report.html").read_text() == first_page


def evil(folder: Path, reference: str) -> Path:
    """Change a run's folder so that it names other code."""
    file = folder / "study.toml"
    file.write_text(file.read_text().replace('"mine.py:MyToy"', json.dumps(reference)))
    return file


@pytest.mark.parametrize("reference", ["evil.py:MyToy", "./evil.py:MyToy", "evil_module:MyToy", "evil_module.MyToy"])
def test_reading_a_run_never_runs_what_its_folder_names(
    call: Callable[..., Any], mine: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.syspath_prepend(str(mine.parent))
    for name in ("evil.py", "evil_module.py"):
        (mine.parent / name).write_text("open('ran', 'w').close()\n" + MINE)
    told = call("compare", "toy-noise", "--policy", "mine.py:MyToy", "--on", "here", "--json")
    folder = mine.parent / json.loads(told.out)["folder"]
    file = evil(folder, reference)
    (folder / "report.html").unlink()
    report = ["report", str(folder)]
    forms = [[*report, "--format", form] for form in ("html", "json", "csv")]
    for words in (report, *forms, ["diff", str(folder), str(folder)]):
        assert call(*words).code == 0
    load(folder).plot()
    from wavetank.cli import site

    assert b"which is not in the catalog" in site.page(mine.parent / "runs", f"/run/toy-noise/{folder.name}", {})
    assert b"3 systems" in site.page(mine.parent / "runs", "/", {})
    for words in (["compare", str(file)], ["compare", "--resume", str(folder)], ["compare", "toy-noise", "--resume"]):
        told = call(*words)
        assert told.code == 3
        said = " ".join(told.err.split())
        assert "The system 'my-toy' is not in the catalog, and its code is not loaded" in said
        assert "next: give it again: --policy" in said
        assert reference in said
    with pytest.raises(BadValueError, match="is not loaded because a file of a run names it"):
        compare(str(file), out=mine.parent, on="here")
    with pytest.raises(BadValueError, match="is not loaded because a file of a run names it"):
        resume(folder)
    assert not (mine.parent / "ran").exists()


def test_a_study_file_repeats_the_run_when_the_code_is_given_again(call: Callable[..., Any], mine: Path) -> None:
    words = ["--policy", "mine.py:MyToy", "--set", "my-toy.share=0.5", "--on", "here", "--json"]
    first = json.loads(call("compare", "toy-noise", *words).out)
    file = f"{first['folder']}/study.toml"
    (mine.parent / "moved.py").write_text(mine.read_text())
    again = json.loads(call("compare", file, "--policy", "moved.py:MyToy", "--on", "here", "--json").out)
    assert again["records"] == first["records"]
    without = json.loads(call("compare", file, "--systems", "toy-plain,toy-shifted", "--on", "here", "--json").out)
    assert {record["system"] for record in without["records"]} == {"toy-plain", "toy-shifted"}


def test_the_printed_command_repeats_the_run(call: Callable[..., Any], mine: Path) -> None:
    for words in (
        ["--policy", "mine.py:MyToy"],
        ["--policy", "mine.py:MyToy", "--systems", "my-toy"],
        ["--policy", "mine.py:MyToy", "--systems", "my-toy,toy-plain"],
        ["--policy", "mine.py:MyToy", "--systems", "toy-plain", "--set", "my-toy.label=a b"],
    ):
        told = call("compare", "toy-noise", *words, "--on", "here", "--json")
        about = json.loads((mine.parent / json.loads(told.out)["folder"] / "run.json").read_text())
        plan = runfolder.load_plan(mine.parent / json.loads(told.out)["folder"] / "study.toml")
        assert plan.own["my-toy"].reference == "mine.py:MyToy"
        again = call(*shlex.split(about["command"])[1:], "--on", "here", "--json")
        assert runfolder.load_plan(mine.parent / json.loads(again.out)["folder"] / "study.toml") == plan


def test_what_was_given_in_python_cannot_be_repeated_from_its_folder_alone(tmp_path: Path) -> None:
    result = compare("toy-noise", systems=["toy-plain", Toy(0.25)], out=tmp_path, on="here")
    reference = f"{Toy.__module__}.Toy"
    assert result.plan.own["toy"].reference == reference
    assert result.about["command"] == "wavetank compare toy-noise --systems toy-plain --policy FILE.py:Toy"
    assert (
        f"toy is {reference}, which is not in the catalog: study.toml alone cannot repeat the run, give it again among "
        "the systems in Python."
    ) in result.notes
    file = result.folder / "study.toml"
    assert "with --policy for each system under [own]" in file.read_text().splitlines()[0]
    with pytest.raises(BadValueError) as caught:
        make_plan(str(file))
    assert caught.value.hint == (
        f"give it again: --policy FILE.py:CLASS of a file with {reference}, or in Python among systems"
    )
    again = compare(str(file), systems=["toy-plain", Toy(0.25)], out=tmp_path, on="here")
    assert again.records == result.records


def test_a_run_goes_on_with_the_code_that_it_began_with(call: Callable[..., Any], mine: Path) -> None:
    words = ["compare", "toy-noise", "--policy", "mine.py:MyToy", "--on", "here"]
    assert call(*words).code == 0
    (folder,) = (mine.parent / "runs" / "toy-noise").iterdir()
    log = folder / "records.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:3]))
    told = call(*words, "--resume")
    assert told.code == 0
    assert "3 of them finished before" in told.err
    refused = call(*words, "--policy", "mine.py:Declared", "--resume")
    assert refused.code == 3
    assert "The run to continue has no system 'declared'." in refused.err
    mine.write_text(MINE + "\n# A comment changes nothing.\n")
    assert call(*words, "--resume").code == 0
    mine.write_text(MINE.replace("1 - self.share", "2 - self.share"))
    told = call(*words, "--resume")
    assert told.code == 3
    assert "The code of 'my-toy' is not that of the run to continue." in told.err
    result = compare("toy-noise", systems=[..., Toy], on="here", out="other")
    assert resume(result.folder, systems=[Toy], on="here").records == result.records


def test_two_runs_differ_by_the_code_of_a_system(mine: Path) -> None:
    found = []
    for text in (MINE, MINE.replace("1 - self.share", "2 - self.share")):
        mine.write_text(text)
        plan, study = make_plan("toy-noise", added=[from_reference("mine.py:MyToy")])
        found.append(comparison.run_plan(plan, study, runfolder.create(mine.parent, plan), on="here"))
    (name, before, after), *rest = difference(*found).settings
    assert name == "my-toy, code"
    assert (before, after) == (found[0].plan.own["my-toy"].code, found[1].plan.own["my-toy"].code)
    assert before != after
    assert rest == []


def test_a_run_with_code_of_ones_own_is_no_evidence(
    call: Callable[..., Any], mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "evidence_folder", lambda: mine.parent / "evidence")
    told = call("compare", "toy-noise", "--policy", "mine.py:MyToy", "--evidence", "a", "--on", "here")
    assert told.code == 3
    assert "Evidence is kept of systems of the catalog only." in told.err
    result = compare("toy-noise", systems=[..., Toy], on="here", out="other")
    with pytest.raises(BadValueError, match="systems of the catalog only"):
        keep_as_evidence(result, "a")
    assert not (mine.parent / "runs").exists()
    assert not (mine.parent / "evidence").exists()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('[own."a/b"]\nfrom = "x.py:X"\ncode = ""', "This is no name of a system."),
        ('[own.a]\nfrom = "x.py:X"', "The system 'a' of the user's own has other keys than it must have."),
        ('[own.a]\nfrom = 3\ncode = ""', "The study file holds a value of another kind"),
        ('own = ["x.py:X"]', "The study file holds a value of another kind"),
    ],
)
def test_a_study_file_names_code_in_one_way_only(tmp_path: Path, table: str, problem: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text(f'study = "toy-noise"\n{table}\n')
    with pytest.raises(BadFileError) as caught:
        runfolder.load_plan(file)
    assert caught.value.problem.startswith(problem)


def test_a_name_that_nobody_gave_is_unknown() -> None:
    with pytest.raises(UnknownNameError):
        make_plan("toy-noise", systems=["toy-plain", "my-toy"])


def test_a_class_says_what_it_can_of_its_parameters() -> None:
    class Odd:
        def __init__(self, one: Nothing, /, *rest: int, two: int = 2, **more: int) -> None: ...  # type: ignore[valid-type]

    @dataclass
    class Unresolved:
        share: float = 0.5
        other: Nothing = None  # type: ignore[valid-type]

        def change(self, draw: float, seed: int) -> float:
            return draw

    class Renamed(Field):
        def __init__(self, keeps: float = 0.25) -> None:
            super().__init__(keeps)

    assert [each["name"] for each in own.facts(own.from_memory(Odd), {})["parameters"]] == ["two"]
    assert [each["name"] for each in own.facts(own.from_memory(Renamed), {})["parameters"]] == ["keeps"]
    plan, _ = make_plan("toy-noise", systems=[Renamed, Renamed(0.75)], parameters={"renamed": {"keeps": "0.5"}})
    assert plan.parameters == {"renamed": {"keeps": 0.5}}
    plan, _ = make_plan("toy-noise", systems=[Unresolved], parameters={"unresolved": {"share": "0.25"}})
    assert plan.parameters == {"unresolved": {"share": 0.25}}
    with pytest.raises(BadValueError, match="is not loaded"):
        own.facts(OwnSystem("gone", "x.py:X"), {})


def test_the_example_is_a_router() -> None:
    file = Path(__file__).parents[2] / "examples" / "own_policy.py"
    given = {"least-work": {"held_weight": "0.5"}}
    plan, _ = make_plan("llm-routing", systems=[], added=[from_reference(f"{file}:LeastWork")], parameters=given)
    assert (plan.systems, plan.parameters) == (("least-work",), {"least-work": {"held_weight": 0.5}})


def test_a_long_text_is_shortened() -> None:
    kind = type("Long", (Field,), {"__doc__": "x" * 300})
    found = own.facts(own.from_memory(kind(hidden="y" * 300)), {})
    assert found["does"] == "x" * 137 + "..."
    assert found["parameters"][2]["value"] == "y" * 137 + "..."


def test_no_class_takes_the_place_of_a_system_of_the_catalog() -> None:
    with pytest.raises(BadValueError, match="'toy-shifted'") as caught:
        make_plan("toy-timing", systems=[type("ToyShifted", (Shifted,), {})])
    assert caught.value.hint == "rename the class; a system of the catalog is given by its name"
