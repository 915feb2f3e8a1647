"""Sections that feed one another: fan-out, sizes, a teacher that keeps up, and graphs that cannot be."""

import numpy as np
import pytest

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.training.sections.graph import Section, SectionGraph, fewest_gpus, logits_over_hidden
from wavetank.training.sections.simulate import run


def distillation(ranks=1, teachers=1):
    sections = (
        Section(name="teacher", gpus=16, ranks=teachers, frozen=True), Section(name="student", gpus=8, ranks=ranks)
    )  # fmt: skip
    return SectionGraph(sections=sections, feeds=(("teacher", "student"),), critical="student")


def test_a_teacher_that_is_k_times_as_fast_feeds_k_students_without_a_wait():
    graph = distillation(ranks=4)
    assert (graph.fan_out("teacher"), graph.gpus) == (4, 16 + 4 * 8)
    count = 50
    for teacher_ps, waits in ((25, False), (30, True)):
        times = {"teacher": np.full(count, teacher_ps), "student": np.full(count, 40)}
        flow = graph.flow(times, {"student": np.full(count, 60)}, queue=2)
        end = run(flow, np.arange(count)).critical_end_ps
        # The first sample is waited for; after it, only a teacher with less than four times the speed is.
        assert (end > count * 100 + 4 * teacher_ps) == waits


def test_two_sections_feed_the_critical_one_and_a_frozen_one_has_no_backward_pass():
    sections = (Section(name="vision"), Section(name="audio", frozen=True), Section(name="llm"))
    graph = SectionGraph(sections=sections, feeds=(("vision", "llm"), ("audio", "llm")), critical="llm")
    forward = {"vision": np.array([2, 0]), "audio": np.array([0, 5]), "llm": np.array([3, 3])}
    flow = graph.flow(forward, {"vision": np.array([4, 0]), "llm": np.array([6, 6])})
    assert flow.forward_ps.tolist() == [[2, 0], [0, 5]]
    assert flow.backward_ps.tolist() == [[4, 0], [0, 0]]
    assert flow.critical_ps.tolist() == [9, 9]
    assert run(flow, np.array([0, 1])).makespan_ps == 20
    with pytest.raises(BadValueError, match="forward times"):
        graph.flow(forward, {"vision": np.array([4, 0]), "audio": np.array([1, 1]), "llm": np.array([6, 6])})


def test_the_fewest_gpus_do_not_delay_the_critical_section():
    assert fewest_gpus(64, 8, range(1, 100)) == 8
    assert fewest_gpus(65, 8, range(1, 100)) == 9
    assert fewest_gpus(65, 8, [4, 8, 16]) == 16
    for work, critical, allowed in ((65, 8, [8]), (1, 0, [8]), (1, 1, [])):
        with pytest.raises(BadValueError, match="allowed number"):
            fewest_gpus(work, critical, allowed)


def test_hidden_states_are_smaller_than_logits_by_vocabulary_over_width():
    assert logits_over_hidden(250_000, 4_000) == 62.5
    with pytest.raises(BadValueError):
        logits_over_hidden(0, 4)


@pytest.mark.parametrize(
    ("sections", "feeds"),
    [
        ((Section(name="llm"), Section(name="llm")), ()),
        ((Section(name="llm"), Section(name="vision")), ()),
        ((Section(name="llm"), Section(name="vision")), (("vision", "llm"), ("vision", "llm"))),
        ((Section(name="llm"), Section(name="vision")), (("vision", "llm"), ("llm", "vision"))),
        ((Section(name="llm", ranks=4), Section(name="vision", ranks=3)), (("vision", "llm"),)),
        ((Section(name="llm", gpus=0),), ()),
        ((Section(name="llm", frozen=True),), ()),
    ],
)
def test_graphs_that_cannot_be_are_refused(sections, feeds):
    with pytest.raises(BadValueError):
        SectionGraph(sections=sections, feeds=feeds, critical="llm")


def test_names_that_there_are_not_are_refused():
    with pytest.raises(UnknownNameError):
        SectionGraph(sections=(Section(name="llm"),), feeds=(), critical="lmm")
    with pytest.raises(UnknownNameError):
        distillation().fan_out("vision")
