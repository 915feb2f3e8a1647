from __future__ import annotations

import datetime
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadFileError, BadValueError, RunFolderError
from wavetank.files import write_atomic
from wavetank.run import runfolder
from wavetank.run.comparison import make_plan
from wavetank.run.own import OwnSystem
from wavetank.run.runfolder import Plan, command_of, create, dump_plan, latest, load_plan

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(TEXTS, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans())
VALUES = st.one_of(SCALARS, st.lists(TEXTS), st.lists(st.integers(0, 9)), st.lists(st.floats(allow_nan=False)))
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True)
PLANS = st.builds(
    Plan,
    study=TEXTS,
    settings=st.dictionaries(NAMES, VALUES, max_size=4),
    systems=st.lists(TEXTS, max_size=3).map(tuple),
    parameters=st.dictionaries(TEXTS, st.dictionaries(NAMES, VALUES, min_size=1, max_size=2), max_size=2),
    seeds=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4, unique=True).map(tuple),
    own=st.dictionaries(st.from_regex(r"[a-z]+(-[a-z]+)?", fullmatch=True), st.tuples(TEXTS, TEXTS), max_size=2).map(
        lambda found: {name: OwnSystem(name, *values) for name, values in found.items()}
    ),
)


def test_every_plan_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"

    @given(PLANS)
    def check(plan: Plan) -> None:
        write_atomic(path, dump_plan(plan))
        assert load_plan(path) == plan

    check()


def test_no_value_is_written_as_a_word_that_reads_as_no_value(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    plan, _ = make_plan("toy-noise", parameters={"toy-shifted": {"pause_s": None}})
    path.write_text(dump_plan(plan))
    assert make_plan(str(path))[0] == plan


def test_a_text_that_is_not_unicode_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    plan = Plan(study="toy-noise", settings={"remark": "caf\udce9"}, systems=("toy-plain",))
    with pytest.raises(BadValueError) as caught:
        create(tmp_path, plan)
    assert str(caught.value) == (
        "A text that is not valid Unicode cannot be kept in a study file.\n  given: 'caf\\udce9'"
    )
    assert list(tmp_path.iterdir()) == []


PLAN = Plan(study="toy-noise", settings={"offset_s": 0.5}, systems=("toy-plain",), seeds=(0, 1))


def test_runs_that_start_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime.datetime:
            return datetime.datetime(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr(runfolder.datetime, "datetime", Stopped)
    folders = [create(tmp_path, PLAN) for _ in range(3)]
    assert [folder.name for folder in folders] == ["2026-01-02_030405", "2026-01-02_030405_2", "2026-01-02_030405_3"]
    assert all(load_plan(folder / "study.toml") == PLAN for folder in folders)


def test_a_place_that_cannot_hold_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunFolderError) as caught:
        create(tmp_path / "runs", PLAN)
    assert str(caught.value) == (
        f"The run's folder cannot be created: Not a directory.\n  where: {tmp_path / 'runs' / 'toy-noise'}\n"
        "  next: choose another place with --out FOLDER"
    )


def test_the_latest_run_is_the_one_begun_last(tmp_path: Path) -> None:
    folders = [create(tmp_path, PLAN) for _ in range(3)]
    os.utime(folders[1] / "study.toml", ns=(2**62, 2**62))
    assert latest(tmp_path, "toy-noise") == folders[1]


def test_no_run_to_go_on_with_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError) as caught:
        latest(tmp_path, "toy-noise")
    assert str(caught.value) == (
        f"There is no run of 'toy-noise' to go on with.\n  where: {tmp_path / 'toy-noise'}\n"
        "  next: wavetank compare toy-noise"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("study = ", "The study file is not valid TOML: "),
        (
            "format = 2\nstudy = 'x'",
            "The study file has a format this version does not read.\n  given: 2\n  allowed: 1\n  where: ",
        ),
        (
            "seeds = 3",
            "The study file needs a study and may hold only the known keys.\n  given: seeds\n"
            "  allowed: format, own, parameters, seeds, settings, study, systems\n  where: ",
        ),
        (
            "study = 'x'\nseed = 3",
            "The study file needs a study and may hold only the known keys.\n  given: study, seed",
        ),
        ("study = 'x'\nsystems = 'a'", "The study file holds a value of another kind: "),
        ("study = 'x'\nseeds = [1.5]", "The study file holds a value of another kind: "),
        ("study = 'x'\nsettings = 3", "The study file holds a value of another kind: "),
        ("study = 'x'\n[parameters]\na = 3", "The study file holds a value of another kind: "),
        ("study = 'x'\nseeds = 0", "The study file's seeds must be one or more numbers from 0.\n  given: 0\n  where: "),
        ("study = 'x'\nseeds = [-1]", "The study file's seeds must be one or more numbers from 0.\n  given: [-1]\n"),
    ],
)
def test_a_damaged_study_file_names_its_fault(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises(BadFileError) as caught:
        load_plan(path)
    assert str(caught.value).startswith(message)
    assert caught.value.where == str(path)


def test_a_study_file_that_is_absent_or_not_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadFileError) as caught:
        load_plan(tmp_path / "gone.toml")
    assert str(caught.value) == (
        f"The study file cannot be read: No such file or directory.\n  where: {tmp_path / 'gone.toml'}"
    )
    (tmp_path / "image.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadFileError, match="is not valid TOML"):
        load_plan(tmp_path / "image.toml")


def test_seeds_may_be_a_count(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text("study = 'x'\nseeds = 3")
    assert load_plan(path).seeds == (0, 1, 2)
    path.write_text("study = 'x'")
    assert load_plan(path).seeds == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "wavetank compare toy-noise"),
        ({"settings": {"offset_s": "1 s"}}, "wavetank compare toy-noise --set offset_s=1"),
        ({"settings": {"parts": (3, 4)}}, "wavetank compare toy-noise --set parts=3,4"),
        ({"settings": {"remark": "two words"}}, "wavetank compare toy-noise --set 'remark=two words'"),
        ({"systems": ["toy-plain"]}, "wavetank compare toy-noise --systems toy-plain"),
        ({"seeds": 7}, "wavetank compare toy-noise --seeds 7"),
        ({"seeds": [3, 5]}, "wavetank compare toy-noise --seeds 3,5"),
        ({"seeds": [3]}, "wavetank compare toy-noise --seeds 3,"),
        (
            {"parameters": {"toy-shifted": {"share": "0.25", "pause_s": None}}},
            "wavetank compare toy-noise --set toy-shifted.share=0.25 --set toy-shifted.pause_s=none",
        ),
    ],
)
def test_the_command_repeats_the_run(options: dict[str, Any], words: str) -> None:
    plan, _ = make_plan("toy-noise", **options)
    assert command_of(plan) == words
    assert shlex.split(words)[:3] == ["wavetank", "compare", "toy-noise"]


@pytest.mark.parametrize("text", ["a=" + "[" * 100_000, "a=" + "{a=" * 50_000, "[a" + ".a" * 50_000 + "]"])
def test_a_study_file_nested_too_deeply_is_refused(tmp_path, text):
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises(BadFileError):
        load_plan(path)
