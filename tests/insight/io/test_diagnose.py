"""The diagnosis on real logs, on planted ones, with models that say nonsense, and its answers."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.insight.io.jobs import log_of, phase, real
from tests.workloads.darshan_logs import WrittenLog, record

from wavetank.diagnosis.findings import Diagnosis, unsupported
from wavetank.errors import BadTraceError, BadValueError
from wavetank.insight.io.diagnose import IoAgent, answered, supported
from wavetank.insight.io.fragments import fragments
from wavetank.insight.io.planted import make_traces
from wavetank.insight.io.quantities import DarshanSource
from wavetank.live.language_model import Function, NoAnswerError
from wavetank.workloads.darshan import DarshanLog


def diagnosed(name: str) -> Diagnosis:
    path = real(name)
    found = IoAgent().diagnose(path)
    assert unsupported(found, IoAgent().source(path)) == []
    return found


def labels(found: Diagnosis, *severities: str) -> set[str]:
    return {each.label for each in found.findings if not severities or each.severity in severities}


def test_one_server_and_one_writer_are_found_although_data_are_incomplete() -> None:
    found = diagnosed("imbalanced-io")
    assert {"SLIM", "RLIM"} <= labels(found, "critical")
    servers = next(each for each in found.findings if each.label == "SLIM")
    assert "up to" in servers.sentence(servers.says) and "does not say whether" in servers.says
    assert any("POSIX" in each and "incomplete" in each for each in found.too_little)
    assert next(each.value for each in found.facts if each.name == "incomplete") == "POSIX"


def test_skew_of_time_alone_is_of_low_confidence() -> None:
    found = diagnosed("skew-autobench-ior")
    (skew,) = [each for each in found.findings if each.label == "RLIM"]
    assert skew.severity == "note" and skew.confidence < 0.05
    assert "equal" in skew.sentence(skew.says)


def test_writes_of_one_byte_are_told() -> None:
    found = diagnosed("half_ranks_dxt")
    tiny = next(each for each in found.findings if each.label == "SML-W" and "H5D" in each.where)
    figures = {each.name: each.value for each in tiny.evidence}
    assert figures["mean_bytes"] == 1.0 and figures["requests"] == 5 and figures["tiny_share"] == 1.0
    # The whole program spends 1 % of its run on files: nothing is more than a note.
    assert labels(found, "warning", "critical") == set()


def test_the_sample_of_the_authors_of_drishti_writes_large_collective_blocks() -> None:
    """A dossier has it as small, independent writes; its counters say otherwise, and so does the diagnosis."""
    source = DarshanSource(real("jlbez"))
    assert source.quantity("independent_share", op="write") == 0.0
    assert source.quantity("requests", module="MPI-IO", op="write") == 8448
    assert source.quantity("small_share", module="POSIX", op="write") < 0.01
    assert not {"SML-W", "NC-W", "MPNM"} & labels(diagnosed("jlbez"))


def test_one_server_behind_sixty_five_thousand_ranks_is_found() -> None:
    assert {"SLIM", "RLIM"} <= labels(diagnosed("skew-app"))


@pytest.mark.parametrize(
    "name", ["empty_log", "laytonjb", "partial_data", "e3sm", "apmpi", "IOR", "ior-HDF5", "ior-PNETCDF", "mpi-io-test",
             "opens_only", "diagonal_write_only", "2110483"],
)  # fmt: skip
def test_every_kind_of_log_is_read_and_every_statement_recomputes(name: str) -> None:
    found = diagnosed(name if name != "IOR" else "ior-POSIX")
    assert found.facts and (found.findings or found.too_little or name in ("mpi-io-test",))


def test_an_empty_log_has_too_little_to_say() -> None:
    found = diagnosed("empty_log")
    assert not found.findings and any("took any time" in each for each in found.too_little)
    assert diagnosed("partial_data").too_little[0].count("STDIO") == 1


def test_a_folder_of_logs_is_diagnosed_log_by_log() -> None:
    path = real("skew-app").parent
    found = IoAgent().diagnose(path)
    assert {each.where for each in found.findings} == {"skew-app.darshan", "skew-autobench-ior.darshan"}
    assert unsupported(found, IoAgent().source(path)) == []


def test_planted_logs_have_no_unsupported_statement_and_a_healthy_one_no_finding() -> None:
    _, traces = make_traces(100, tuning=20, held_out=20)
    for each in traces:
        source = DarshanSource.of(each.log)
        assert unsupported(IoAgent().diagnosed(source, "log"), source) == []
    assert IoAgent().said(log_of(phase(interface="collective", pattern="strided", requests=64))) == frozenset()


def small() -> DarshanLog:
    return log_of(phase(size_bytes=4096, requests=2000, pattern="strided"))


def test_thresholds_decide_what_is_reported() -> None:
    assert "SML" in IoAgent().said(small())
    assert "SML" not in IoAgent(thresholds=(1.0, *[0.05] * 10)).said(small())
    with pytest.raises(BadValueError, match="Every kind"):
        IoAgent(thresholds=(0.5,))
    assert IoAgent(least=1.0).said(small()) == frozenset()
    source = DarshanSource.of(replace(small(), run_time_s=1e6))
    assert {each.severity for each in IoAgent().diagnosed(source, "log").findings} == {"note"}
    with pytest.raises(BadValueError):
        IoAgent(least=float("nan"))


def test_without_passages_nothing_is_cited() -> None:
    source = DarshanSource.of(small())
    cited, bare = (agent.diagnosed(source, "log").findings for agent in (IoAgent(), IoAgent(passages=0)))
    assert min(len(each.sources) for each in cited) > 1 and {len(each.sources) for each in bare} == {1}
    assert [each.label for each in cited] == [each.label for each in bare]


GOOD = {"label": "SML-W", "says": "Writes are tiny: {small_share} are small.", "evidence": ["small_share"]}


@pytest.mark.parametrize(
    "change",
    [{"label": "SML-R"}, {"label": "XXX"}, {"label": None}, {"says": "84 % of writes are small."}, {"says": ""},
     {"says": "{small_share} and {elsewhere}"}, {"says": "{small_share"}, {"says": "{small_share:.2f}"},
     {"evidence": []}, {"evidence": ["colour"]}, {"evidence": "small_share"}, {"evidence": [7]}, {"says": 5},
     {"says": "{small_share.value}"}, {"says": "{requests}"}],
)  # fmt: skip
def test_what_a_model_says_without_support_is_dropped(change: dict[str, object]) -> None:
    source = DarshanSource.of(small())
    part = next(each for each in fragments(source) if each.about == "write requests")
    assert supported(GOOD, source, part, "", 1) is not None
    assert supported({**GOOD, **change}, source, part, "", 1) is None


def says_of(answer: str) -> Diagnosis:
    source = DarshanSource.of(small())
    agent = IoAgent()
    summary, problem = agent.summary(source, "", Function(lambda question: answer))
    assert problem == ""
    findings = tuple(agent._finding(each, "the job", next(iter(source.facts.values())), True) for each in summary)
    found = Diagnosis(subject="", kind="", findings=findings)
    assert unsupported(found, source) == []
    return found


def test_a_models_sentence_takes_the_place_of_a_rules_where_it_is_supported() -> None:
    found = says_of("Sure! " + json.dumps([GOOD]))
    (issue,) = [each for each in found.findings if each.label == "SML-W"]
    assert issue.sentence(issue.says) == "Writes are tiny: 100 % are small."
    plain = says_of("nothing")
    assert labels(plain) == labels(found) and issue.confidence == next(
        each.confidence for each in plain.findings if each.label == "SML-W"
    )


@pytest.mark.parametrize(
    "answer", ["", "no idea", "[", "[1, 2]", "{}", "[[[[", json.dumps([{**GOOD, "says": "99 %"}]), "[" * 100_000 + "]"]
)
def test_a_model_that_answers_nonsense_changes_nothing(answer: str) -> None:
    assert says_of(answer).findings == says_of("plain").findings


def test_a_model_that_does_not_answer_is_left_out_after_one_question() -> None:
    asked = []

    def late(question: str) -> str:
        asked.append(question)
        raise NoAnswerError("too late")

    source = DarshanSource.of(small())
    summary, problem = IoAgent().summary(source, "", Function(late))
    assert (problem, len(asked)) == ("too late", 1)
    assert summary == IoAgent().summary(source)[0]


def test_a_recorded_model_is_opened_by_its_setting(tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answers.write_text(json.dumps("nothing to say"))
    found = IoAgent(model=f"recorded:{answers}").diagnosed(DarshanSource.of(small()), "log")
    assert any("language model was left out" in each for each in found.too_little)
    assert labels(found) == labels(IoAgent().diagnosed(DarshanSource.of(small()), "log"))


def test_questions_are_answered_from_what_is_stored() -> None:
    found = diagnosed("imbalanced-io")
    servers = answered(found, "Which servers hold my files, and what about the stripes?")
    assert "SLIM" in labels(servers) and len(servers.findings) < len(found.findings)
    assert all(each in found.findings for each in servers.findings)
    assert all(each in found.facts for each in servers.facts)
    nothing = answered(found, "zebra")
    assert not nothing.findings and "zebra" in nothing.too_little[0]
    assert [each.name for each in answered(found, "how many processes?").facts] == ["processes"]


def test_other_files_are_not_taken(tmp_path: Path) -> None:
    assert IoAgent.takes(Path(), WrittenLog().written()) and not IoAgent.takes(Path(), b"{}")
    path = tmp_path / "x.darshan"
    path.write_bytes(WrittenLog(regions={8: (2, b"short")}).written())
    with pytest.raises(BadTraceError, match="inside a record"):
        IoAgent().diagnose(path)


def test_counters_drawn_at_random_never_break_a_report(tmp_path: Path) -> None:
    chance = random.Random(3)
    values = (0, 1, -1, 7, 1000, 2**31, 2**62, -(2**63), 2**63 - 1)
    times = (0.0, 1.0, -1.0, 1e-300, 1e300, float("nan"), float("inf"), -5.0)
    path = tmp_path / "x.darshan"
    for _ in range(150):
        posix = b"".join(
            record(
                "<", chance.randrange(3), chance.choice([-1, 0, 3, 2**40]), chance.choices(values, k=69),
                chance.choices(times, k=17),
            )
            for _ in range(chance.randint(1, 4))
        )  # fmt: skip
        mpi = record("<", 1, -1, chance.choices(values, k=51), chance.choices(times, k=17))
        content = WrittenLog(processes=chance.choice([1, 4, 2**39]), regions={1: (4, posix), 2: (3, mpi)}).written()
        path.write_bytes(content)
        found = IoAgent().diagnose(path)
        assert unsupported(found, IoAgent().source(path)) == []
