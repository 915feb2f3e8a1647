"""Workflows: structure against networkx, WfFormat files of the data set, and files that are damaged or impossible."""

import copy
import gzip
import json
import math

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadFileError, BadValueError, DataUnavailableError
from wavetank.workloads import datasets
from wavetank.workloads.workflows import Workflow, read_instance, read_workflow

SMALL = {
    "name": "two steps",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {"name": "split_01", "id": "a", "parents": [], "children": ["b", "c"], "inputFiles": ["in"],
                 "outputFiles": ["x", "y"]},
                {"name": "count_02", "id": "b", "parents": ["a"], "children": [], "inputFiles": ["x", "ref"]},
                {"name": "count_03", "id": "c", "parents": ["a"], "children": [], "inputFiles": ["y", "x"]},
            ],
            "files": [{"id": "in", "sizeInBytes": 7}, {"id": "x", "sizeInBytes": 10}, {"id": "y", "sizeInBytes": 5},
                      {"id": "ref", "sizeInBytes": 100}],
        },
        "execution": {
            "makespanInSeconds": 9.5,
            "executedAt": "2026-01-01T00:00:00Z",
            "tasks": [{"id": "a", "runtimeInSeconds": 4.0, "command": {"program": "split"}},
                      {"id": "c", "runtimeInSeconds": 0}],
        },
    },
}  # fmt: skip


def written(tmp_path, whole):
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(whole))
    return path


def changed(change):
    whole = copy.deepcopy(SMALL)
    change(whole, whole["workflow"]["specification"]["tasks"])
    return whole


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 12))
    return [
        tuple(draw(st.sets(st.integers(0, child - 1), max_size=3))) if child else () for child in range(count)
    ]


@given(graphs(), st.randoms(use_true_random=False))
def test_order_levels_and_longest_path_are_those_of_networkx(parents, random):
    # Tasks in any order, not parents first.
    names = list(range(len(parents)))
    random.shuffle(names)
    position = {old: new for new, old in enumerate(names)}
    shuffled = tuple(tuple(position[each] for each in parents[old]) for old in names)
    weights = [random.randint(1, 9) for _ in names]
    workflow = Workflow(name="w", tasks=tuple(map(str, names)), parents=shuffled)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(names)))
    graph.add_edges_from((parent, child) for child, above in enumerate(shuffled) for parent in above)
    for level, tasks in enumerate(nx.topological_generations(graph)):
        assert {task for task in range(len(names)) if workflow.levels[task] == level} == set(tasks)
    assert all(set(workflow.children[task]) == set(graph.successors(task)) for task in graph)
    place = {task: i for i, task in enumerate(workflow.order)}
    assert all(place[parent] < place[child] for parent, child in graph.edges)
    longest = max(
        sum(weights[each] for each in path)
        for source in graph
        for target in graph
        for path in ([[source]] if source == target else nx.all_simple_paths(graph, source, target))
    )
    assert workflow.longest_path(weights) == longest


def test_a_file_says_what_each_task_waits_for_and_gets(tmp_path):
    found = read_workflow(written(tmp_path, SMALL))
    assert found.tasks == ("a", "b", "c")
    assert found.parents == ((), (0,), (0,))
    assert found.edge_bytes == ((), (10.0,), (15.0,))
    assert found.input_bytes == (7.0, 100.0, 0.0)
    assert found.kinds == ("split", "count", "count")
    assert (found.runtime_s[0], found.runtime_s[2], found.makespan_s) == (4.0, 0.0, 9.5)
    assert math.isnan(found.runtime_s[1])
    assert found.width == 2


def test_a_packed_file_of_the_next_version_without_an_execution_is_read(tmp_path):
    whole = changed(lambda whole, tasks: (whole.update(schemaVersion="1.6"), whole["workflow"].pop("execution")))
    path = tmp_path / "w.json.gz"
    path.write_bytes(gzip.compress(json.dumps(whole).encode()))
    assert all(map(math.isnan, read_workflow(path).runtime_s))


def circle(whole, tasks):
    tasks[0]["parents"], tasks[1]["children"] = ["b"], ["a"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (circle, "circle"),
        (lambda whole, tasks: tasks[1].update(parents=["aa"]), "no task of this identity"),
        (lambda whole, tasks: tasks[1].update(parents=[]), "do not agree"),
        (lambda whole, tasks: tasks[0].update(children=["c"]), "do not agree"),
        (lambda whole, tasks: tasks[1].update(id="a"), "Two tasks"),
        (lambda whole, tasks: tasks[1].update(inputFiles=["z"]), "no file of this identity"),
        (lambda whole, tasks: whole.update(schemaVersion="1.3"), "version"),
        (lambda whole, tasks: whole.update(workflow=[]), "no WfFormat"),
        (lambda whole, tasks: tasks.clear(), "no tasks"),
        (lambda whole, tasks: whole["workflow"]["execution"]["tasks"][0].update(runtimeInSeconds=-1), "0 or more"),
        (lambda whole, tasks: whole["workflow"]["execution"]["tasks"][0].update(id="q"), "not specified"),
        (lambda whole, tasks: whole["workflow"]["specification"]["files"][0].update(sizeInBytes="1"), "0 or more"),
        (lambda whole, tasks: tasks[0].update(children="b"), "no list"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_name(tmp_path, change, words):
    path = written(tmp_path, changed(change))
    with pytest.raises(BadFileError, match=words) as caught:
        read_workflow(path)
    assert str(path) in (caught.value.where or "")


def test_the_circle_is_named(tmp_path):
    with pytest.raises(BadFileError) as caught:
        read_workflow(written(tmp_path, changed(circle)))
    assert caught.value.given in ("a -> b -> a", "b -> a -> b")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "3", '{"schemaVersion": 1.5}'])
def test_what_is_no_workflow_is_refused(tmp_path, text):
    path = tmp_path / "w.json"
    path.write_text(text)
    with pytest.raises(BadFileError):
        read_workflow(path)


def test_parts_that_do_not_fit_are_refused():
    for wrong in (
        {"parents": ((), (5,))}, {"parents": ((), (0, 0))}, {"parents": ((),)}, {"tasks": ("a", "a")},
        {"edge_bytes": ((), (-1.0,))}, {"edge_bytes": ((), ())}, {"runtime_s": (-1.0, 0.0)},
        {"parents": ((1,), (0,))}, {"parents": ((0,), ())},
    ):  # fmt: skip
        with pytest.raises(BadValueError):
            Workflow(**{"name": "w", "tasks": ("a", "b"), "parents": ((), (0,)), **wrong})


@pytest.mark.parametrize("file", [each.path for each in datasets.entry("wfinstances").files])
def test_every_instance_of_the_data_set_is_read_and_its_measured_makespan_is_no_less_than_its_critical_path(file):
    try:
        found = read_instance(file.removesuffix(".json.gz"))
    except DataUnavailableError as error:
        pytest.skip(f"data set wfinstances: {error}")
    assert 5 <= len(found) <= 208
    # The caution of the data set: 1.3 to 125 times the critical path.
    assert 1.0 <= found.makespan_s / found.longest_path(found.runtime_s) <= 130
