"""The requests of the routing studies: what is past, what is served."""

from pathlib import Path

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadTraceError, BadValueError
from wavetank.run.comparison import compare
from wavetank.serving.routing.traffic import Traffic
from wavetank.workloads import RequestTrace, agent_sessions, read_trace
from wavetank.workloads.agent_sessions import Conversation


def test_predictors_learn_from_requests_that_are_not_served(write):
    trace = write([(i, 100, 7 if i < 20 else 300) for i in range(100)])
    past, served = Traffic(**trace).split(0)
    assert (len(past), len(served)) == (20, 80)
    assert set(past.output_tokens.tolist()) == {7}
    assert set(served.output_tokens.tolist()) == {300}
    assert served.arrival_s[0] == 0
    for seed in (1, 2):
        assert set(Traffic(**trace).split(seed)[1].output_tokens.tolist()) == {300}


def test_not_even_where_many_arrive_in_the_same_second(write):
    # The cut at 20 falls within the requests of second 1.
    trace = write([(i // 16, 100, i + 1) for i in range(96)])
    past, served = Traffic(**trace).split(0)
    assert past.output_tokens.tolist() == list(range(1, 17))
    assert served.output_tokens.tolist() == list(range(17, 97))


def test_a_generated_history_is_another_trace():
    past, served = Traffic(requests=100).split(4)
    assert len(past) == len(served) == 100
    assert past != served
    assert not np.isin(past.arrival_s, served.arrival_s).any()


def test_requests_limits_a_trace(write):
    trace = write([(i, 100, 10) for i in range(200)])
    past, served = Traffic(**trace, requests=50).split(0)
    assert len(past) + len(served) == 50


def test_of_a_longer_trace_the_busiest_part_is_used_where_asked(write):
    # One request per second, but the 60 from number 100 on come ten per second; what is learnt from precedes them.
    gaps = [0.1 if 100 <= number < 160 else 1.0 for number in range(300)]
    trace = write([(sum(gaps[:number]), 100, number + 1) for number in range(300)])
    study = Traffic(**trace, requests=50, window="busiest")
    past, served = study.split(0)
    assert (len(past), len(served)) == (10, 40)
    assert served.output_tokens.min() >= 101 and served.output_tokens.max() <= 161
    assert past.output_tokens.max() + 1 == served.output_tokens.min()
    assert served.span_s == pytest.approx(3.9)
    assert "only the busiest 50 of 300 requests are used, from " in study.learnt()
    first = Traffic(**trace, requests=50)
    assert first.split(0)[1].output_tokens.max() == 50
    assert "only the first 50 of 300" in first.learnt()
    # A trace that is used whole has no part.
    for requests in (300, 301):
        every = Traffic(**trace, requests=requests, window="busiest")
        assert every.split(0)[0] == Traffic(**trace, requests=requests).split(0)[0]
        assert "only" not in every.learnt()


def test_what_was_understood_of_a_file_is_said_and_nothing_of_generated_requests(write):
    trace = write([(i, 100, 10) for i in range(50)])
    assert Traffic(**trace).data().keys() == {trace["trace"]}
    assert isinstance(Traffic(**trace).notes_on_reading(), tuple)
    assert (Traffic().notes_on_reading(), Traffic().data()) == ((), {})


def test_a_file_that_has_changed_is_read_again_from_any_folder(write, tmp_path, monkeypatch):
    trace = write([(i, 100, 10) for i in range(100)])
    study = Traffic(**trace)
    before = study.data()
    assert len(study.read()) == 100
    header = Path(trace["trace"]).read_text().splitlines()[0]
    Path(trace["trace"]).write_text(header + "\n1,5,5\n2,5,5\n3,6,6\n")
    assert (len(study.read()), study.data() != before) == (3, True)
    for rows in (1, 2):
        folder = tmp_path / str(rows)
        folder.mkdir()
        (folder / "same.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + "1,5,5\n" * rows)
        monkeypatch.chdir(folder)
        assert len(Traffic(trace="same.csv").read()) == rows


class TestReading:
    def messy(self, tmp_path):
        rows = [[1_700_000_000_000 + 500 * i, 100 + i, 10] for i in range(100)]
        rows[7][2] = 0
        rows[8][1] = ""
        rows[20], rows[21] = rows[21], rows[20]
        path = tmp_path / "messy.csv"
        path.write_text("\n".join(["created_at,n_input,completion", *(",".join(map(str, row)) for row in rows)]) + "\n")
        return str(path)

    def test_bad_rows_are_dropped_and_said_before_any_figure(self, tmp_path):
        traffic = Traffic(trace=self.messy(tmp_path))
        first, second, third, unit = traffic.opening()
        assert first == "Read messy.csv: 98 of 100 rows kept, over 49.5 s, 1.96 requests/s"
        assert second.startswith("prompts 150 tokens on average")
        assert third == (
            "dropped 2 rows (1 with missing prompt length, 1 with zero output length); "
            "put in order 1 row that was out of place; "
            "columns: arrival created_at (Unix ms), prompt n_input, output completion"
        )
        assert "Unix time in ms" in unit
        assert traffic.notes_on_reading()[0] == f"{first}; {second}; {third}."
        assert Traffic().opening() == ()

    def test_the_command_says_it_and_the_assumptions_before_any_figure(self, tmp_path, call):
        words = ["compare", "llm-routing", "--systems", "round-robin", "--seeds", "1", "--out", str(tmp_path / "runs")]
        small = {"trace": self.messy(tmp_path), "workers": 2, "max_running": 4, "loads": "", "refreshes_s": ""}
        ended = call(*words, *(word for name, value in small.items() for word in ("--set", f"{name}={value}")))
        assert ended.code == 0
        said = " ".join(ended.err.split())
        places = [said.index(words) for words in ("Read messy.csv: 98 of 100 rows", "dropped 2 rows", "Assumed: ")]
        assert places == sorted(places)
        assumed = said[said.index("Assumed: ") : said.index("llm-routing: 1 trial")]
        for words in ("2 workers", "H200-SXM", "Qwen3", "first 20%", "times as fast", "independent replicas"):
            assert words in assumed
        assert "capacity_tokens_per_s" in said[said.index("llm-routing: 1 trial") :]

    def test_or_stop_the_study_with_the_syntax_of_a_setting(self, tmp_path):
        with pytest.raises(BadTraceError) as caught:
            Traffic(trace=self.messy(tmp_path), bad_rows="stop").read()
        assert caught.value.hint.startswith("--set bad_rows=drop (in Python bad_rows='drop')")

    def test_missing_columns_are_asked_for_in_the_syntax_of_a_setting(self, tmp_path):
        path = tmp_path / "mine.csv"
        path.write_text("wann,hinein,heraus\n0,1,1\n")
        with pytest.raises(BadFileError) as caught:
            Traffic(trace=str(path)).read()
        assert "--set columns=arrival_s=COLUMN,prompt_tokens=COLUMN,output_tokens=COLUMN" in caught.value.hint
        with pytest.raises(BadValueError, match="pairs"):
            Traffic(trace=str(path), columns=("wann",)).read()


class TestTracesFromMemory:
    ROWS = tuple({"ts": float(i), "in": 10 + i, "out": 5} for i in range(40))

    def test_they_are_written_once_to_a_file_that_reads_back_equal(self, tmp_path):
        given = {"trace": list(self.ROWS), "workers": 2}
        found = Traffic.kept(given, tmp_path / "traces")
        assert (found["workers"], found["columns"], found["time_unit"]) == (2, (), "")
        trace = read_trace(self.ROWS)
        path = Path(found["trace"])
        assert (path.parent, path.name) == (tmp_path / "traces", f"list-of-dicts-{trace.checksum[:12]}.parquet")
        assert Traffic(trace=found["trace"]).read() == trace
        before = path.stat().st_mtime_ns
        assert Traffic.kept({"trace": trace}, tmp_path / "other")["trace"] != found["trace"]
        assert Traffic.kept(given, tmp_path / "traces")["trace"] == found["trace"]
        assert path.stat().st_mtime_ns == before

    def test_columns_are_a_mapping_in_python(self, tmp_path):
        rows = [{"a": row["ts"], "b": row["in"], "c": row["out"]} for row in self.ROWS]
        columns = {"arrival_s": "a", "prompt_tokens": "b", "output_tokens": "c"}
        found = Traffic.kept({"trace": rows, "columns": columns}, tmp_path)
        assert Traffic(trace=found["trace"]).read() == read_trace(self.ROWS)
        found = Traffic.kept({"trace": Path("mine.csv"), "columns": columns}, tmp_path)
        assert found == {"trace": "mine.csv", "columns": ("arrival_s=a", "prompt_tokens=b", "output_tokens=c")}

    def test_names_and_other_settings_stay_as_they_are(self, tmp_path):
        given = {"trace": "azure-conv-2023", "columns": ("arrival_s=TS",), "load": 0.5}
        assert Traffic.kept(given, tmp_path) == given
        assert Traffic.kept({}, tmp_path) == {}
        assert not list(tmp_path.iterdir())

    def test_a_run_on_a_table_is_repeated_by_its_study_file(self, tmp_path):
        rng = np.random.default_rng(3)
        trace = RequestTrace(
            arrival_s=np.cumsum(rng.exponential(0.5, 120)),
            prompt_tokens=rng.integers(10, 400, 120),
            output_tokens=rng.integers(2, 40, 120),
        )
        common = {"systems": ["round-robin", "vllm-default"], "seeds": 1, "on": "here", "out": tmp_path / "runs"}
        small = {"workers": 2, "max_running": 4, "loads": (), "refreshes_s": (), "load": 0.5}
        first = compare("llm-routing", trace=trace, **common, **small)
        again = compare(str(first.folder / "study.toml"), on="here", out=tmp_path / "again")

        def simulated(result):
            return [record for record in result.records if record.kind == "simulated"]

        assert simulated(again) == simulated(first) != []
        assert Path(first.plan.settings["trace"]).parent == tmp_path / "runs" / "traces"
        assert any(note.startswith("Read requests-") for note in first.notes)


class TestAgentTranscripts:
    @pytest.fixture(autouse=True)
    def conversations(self, monkeypatch):
        """Three conversations of four turns, in place of the data set."""
        found = tuple(
            Conversation(
                name=f"c{number}",
                prompt_tokens=(100, 200, 300, 400),
                output_tokens=(10, 20, 30, 40),
                block_keys=tuple((1, *range(10 * number, 10 * number + turn)) for turn in range(1, 5)),
                common_blocks=1,
            )
            for number in (1, 2, 3)
        )
        monkeypatch.setattr(agent_sessions, "of_data_set", lambda: found)

    def test_requests_are_made_as_many_as_are_asked_for(self):
        study = Traffic(trace="agent-transcripts", requests=40)
        past, served = study.split(3)
        assert study.made
        assert (len(past), len(served)) == (40, 40)
        assert past != served
        assert len(study.split(3, 100)[1]) == 100
        assert served == study.split(3)[1] != study.split(4)[1]

    def test_a_higher_rate_means_more_sessions_at_a_time(self):
        study = Traffic(trace="agent-transcripts", requests=2000)
        served = study.split(0)[1]
        faster = study.sent_at(served, 0, 200.0)
        assert len(faster) == 2000
        assert faster.rate_per_s == pytest.approx(200.0, rel=0.2)
        # Were the same sessions played faster, as many of them would be at work.
        assert faster.n_blocks > 1.2 * served.n_blocks

    def test_another_trace_is_played_faster(self, write):
        study = Traffic(**write([(i, 100, 10) for i in range(100)]))
        served = study.split(0)[1]
        assert not study.made
        assert study.sent_at(served, 0, 7.0) == served.at_rate(7.0)
