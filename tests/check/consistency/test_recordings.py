"""The three formats in which others recorded histories."""

from __future__ import annotations

import pytest

from wavetank.check.consistency.engine import judge
from wavetank.check.consistency.files import read_history
from wavetank.check.consistency.recordings import parse_recording
from wavetank.check.consistency.rules import judge_rule
from wavetank.errors import BadFileError, DataUnavailableError
from wavetank.workloads import datasets


def log(*events):
    return "".join("INFO  jepsen.util - " + "\t".join(event) + "\n" for event in events)


def test_an_etcd_log_keeps_failed_swaps_and_leaves_out_reads_without_an_answer():
    history = parse_recording(
        log(
            ("0", ":invoke", ":write", "3"), ("1", ":invoke", ":cas", "[1 2]"), ("2", ":invoke", ":read", "nil"),
            ("3", ":invoke", ":read", "nil"), ("0", ":info", ":write", ":timed-out"), ("1", ":fail", ":cas", "[1 2]"),
            ("2", ":ok", ":read", "nil"), ("3", ":fail", ":read", ":timed-out"),
        ),
        "x",
    )  # fmt: skip
    write, swap, read = history.operations
    assert (write.value, write.returned, swap.value, swap.result) == (3, None, [1, 2], False)
    assert (read.action, read.result, read.returned) == ("read", None, 6.0)
    assert history.clock == "events"


def test_a_swap_that_failed_for_another_reason_may_have_happened():
    text = log(("0", ":invoke", ":cas", "[1 2]"), ("0", ":fail", ":cas", ":timed-out"))
    (swap,) = parse_recording(text, "x").operations
    assert (swap.result, swap.returned) == (None, None)


def test_porcupines_maps_are_a_store_of_strings():
    history = parse_recording(
        '{:process 1, :type :invoke, :f :append, :key "7", :value "a"}\n'
        '{:process 2, :type :invoke, :f :get, :key "7", :value nil}\n'
        '{:process 1, :type :ok, :f :append, :key "7", :value "a"}\n'
        '{:process 2, :type :ok, :f :get, :key "7", :value "a"}\n',
        "x",
    )
    assert [(op.action, op.key, op.value, op.result) for op in history.operations] == [
        ("append", "7", "a", None), ("read", "7", None, "a"),
    ]  # fmt: skip
    assert history.initial == ""


def test_knossos_leaves_out_what_failed_and_reads_of_nil():
    history = parse_recording(
        "; a comment\n[{:process :nemesis :type :info :f :kill}"
        "{:process 1 :type :invoke :f :read :value nil :time 10} {:process 1 :type :ok :f :read :value nil :time 20}"
        "{:process 1 :type :invoke :f :write :value 1 :time 15} {:process 1 :type :fail :f :write :value 1 :time 30}"
        "{:process 2 :type :invoke :f :write :value 2 :time 40}]",
        "x",
    )
    assert [(op.process, op.value, op.returned) for op in history.operations] == [("2", 2, None)]
    assert history.clock == "seconds"


def test_stamps_never_contradict_the_order_of_the_file():
    history = parse_recording(
        "[{:process 1 :type :invoke :f :write :value 1 :time 50} {:process 1 :type :ok :f :write :value 1 :time 60}"
        "{:process 2 :type :invoke :f :read :value nil :time 55} {:process 2 :type :ok :f :read :value 1 :time 70}]",
        "x",
    )
    write, read = history.operations
    assert write.returned < read.invoked


def test_transactions_keep_their_steps():
    history = parse_recording(
        "[{:process 1 :type :invoke :f :txn :value [[:read :x nil] [:write :y 2]]}"
        "{:process 1 :type :ok :f :txn :value [[:read :x 0] [:write :y 2]]}]",
        "x",
    )
    (one,) = history.operations
    assert one.result == [["read", "x", 0], ["write", "y", 2]]
    assert history.initial == 0


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        (log(("0", ":invoke", ":read", "nil")) + "INFO noise\n", "line 2, column 1", "not an event"),
        (log(("0", ":invoke", ":write", "many")), "line 1, column 38", "not meaningful"),
        (log(("0", ":invoke", ":reed", "nil")), "line 1, column 32", "does not know"),
        (log(("0", ":ok", ":read", "nil")), "line 1, column 1", "not under way"),
        (
            log(*[("0", kind, ":read", "nil") for kind in (":invoke", ":ok", ":ok")]),
            "line 3, column 1",
            "not under way",
        ),
        ("[{:process 1 :type :invoke :f :read}\n {:process 1 :type :okay :f :read}]", "line 2, column 2", "of a type"),
        ("[{:type :invoke :f :read}]", "line 1, column 2", "no :process"),
        ("[{:process 1 :type :invoke :f :dance}]", "line 1, column 2", "not known"),
        ("[{:process 1 :type :invoke :f :cas :value 3}]", "line 1, column 2", "not meaningful"),
        ("[{:process 1 :type :invoke :f :txn :value [[:read]]}]", "line 1, column 2", "not meaningful"),
        ("[{:process 1 :type :invoke :f :read} {:process 1 :type :ok :f :write}]", "line 1, column 38", "another one"),
    ],
)
def test_bad_events_are_named_with_line_and_column(text, where, says):
    with pytest.raises(BadFileError, match=says) as caught:
        parse_recording(text, "f")
    assert caught.value.where == f"f, {where}"


def test_what_is_no_event_is_refused():
    with pytest.raises(BadFileError, match="not an event"):
        parse_recording("[1 2]", "f")


def test_every_recorded_file_is_read_with_as_many_invocations_as_on_record():
    try:
        folder = datasets.find("consistency-histories")
    except DataUnavailableError as error:
        pytest.skip(error.problem)
    lines = (folder / "jepsen-etcd" / "expected.csv").read_text().split()[1:]
    for line in lines:
        name, _, invocations = line.split(",")
        assert len(read_history(folder / "jepsen-etcd" / name)) == int(invocations)


def test_something_between_events_is_refused_with_the_event_before_it():
    event = "{:process 1 :type :invoke :f :read :value nil}"
    with pytest.raises(BadFileError) as caught:
        parse_recording(f"[\n{event}\n5]", "h.edn")
    assert "after the event at line 2, column 1" in str(caught.value)


@pytest.mark.parametrize("first_ns", [0, 1_700_000_000, 1_700_000_000_000_000_000, -5])
@pytest.mark.parametrize("span_ns", [0, 1, 10**18])
def test_the_order_of_the_lines_is_real_time_whatever_the_stamps(first_ns, span_ns):
    events = [(0, "invoke", "write", "1"), (0, "ok", "write", "1"), (1, "invoke", "write", "2"),
              (1, "ok", "write", "2"), (2, "invoke", "read", "nil"), (2, "ok", "read", "1")]  # fmt: skip
    history = parse_recording(
        "".join(
            f"{{:process {process} :type :{kind} :f :{action} :value {value} :time {first_ns + span_ns * (at > 1)}}}\n"
            for at, (process, kind, action, value) in enumerate(events)
        ),
        "x",
    )
    times = [time for op in history.operations for time in (op.invoked, op.returned)]
    assert times == sorted(set(times)) and times[0] == 0.0
    assert judge(history, "linearizable").outcome == "violated"


def edn(*events):
    return parse_recording(
        "".join(
            f"{{:process {process} :type :{kind} :f :{action} :value {value}}}\n"
            for process, action, asked, told in events
            for kind, value in (("invoke", asked), ("ok", told))
        ),
        "x",
    )


@pytest.mark.parametrize(
    ("written", "read"),
    [("{1 2}", '{"1" 2}'), ("{nil 2}", '{"nil" 2}'), ("{[1 2] 3}", '{"[1, 2]" 3}'), ('{1 2, "1" 3}', '{"1" 3}'),
     ("{true 1}", '{"true" 1}'), ("#{1 2}", "#{1 3}"), ("[2 1]", "[1 2]"), ('#{1}', '#{"1"}')],
)  # fmt: skip
def test_unlike_keys_of_maps_and_unlike_sets_stay_unlike(written, read):
    for first, second in ((written, read), (read, written)):
        history = edn((0, "write", first, first), (1, "read", "nil", second))
        assert judge(history, "linearizable").outcome == "violated"


@pytest.mark.parametrize(
    ("written", "read"),
    [("#{1 2 3}", "#{3 2 1}"), ("#{1 2}", "#{2 1}"), ('#{1 "a" nil {:b 1 :c 2}}', '#{{:c 2 :b 1} nil "a" 1}'),
     ("{:a #{1 2}}", "{:a #{2 1}}"), ('{1 2, "1" 3}', '{"1" 3, 1 2}')],
)  # fmt: skip
def test_sets_and_maps_have_no_order(written, read):
    history = edn((0, "write", written, written), (1, "read", "nil", read))
    assert [op.action for op in history.operations] == ["write", "read"]
    assert judge(history, "linearizable").outcome == "holds"


def test_messages_of_a_log_have_keys_of_one_spelling():
    history = edn(
        (0, "send", '[[:send "9" 1]]', '[[:send "9" [0 1]]]'), (1, "poll", "[[:poll]]", '[[:poll {"9" [[0 1]]}]]')
    )
    assert judge_rule(history, "kafka").outcome == "holds"


@pytest.mark.parametrize(
    ("events", "initial", "outcome"),
    [
        ([(0, "cas", '[nil "b"]', '[nil "b"]'), (0, "write", '"a"', '"a"')], None, "holds"),
        ([(0, "write", '"a"', '"a"'), (0, "cas", '["" "b"]', '["" "b"]')], "", "violated"),
        ([(0, "cas", '["" "b"]', '["" "b"]')], "", "holds"),
        ([(0, "read", "nil", '""'), (0, "write", '"a"', '"a"')], "", "holds"),
        ([(0, "read", "nil", '""'), (1, "read", "nil", "nil"), (0, "write", '"a"', '"a"')], "", "holds"),
        ([(0, "txn", "[[:read x nil] [:write y 1]]", "[[:read x nil] [:write y 1]]")], None, "holds"),
        ([(0, "txn", "[[:read x nil] [:write y 1]]", "[[:read x 0] [:write y 1]]")], 0, "holds"),
        ([(0, "txn", "[[:append x 1] [:read x nil]]", "[[:append x 1] [:read x [1]]]")], None, "holds"),
    ],
)  # fmt: skip
def test_what_was_seen_says_what_was_there_at_first(events, initial, outcome):
    history = edn(*events)
    assert history.initial == initial
    name = "strict-serializable" if events[0][1] == "txn" else "linearizable"
    assert judge(history, name).outcome == outcome
    said = dict(history.notes).get("initial value", "")
    lists = "append" in str(events)
    assert said.startswith("" if lists else {None: "nil", 0: "0", "": "the empty string"}[initial])


@pytest.mark.parametrize(
    ("tried", "wanted"),
    [
        (":f :remove, :value 4", "#{}"),
        (":f :append, :value 4", "[]"),
        (":f :inc, :value 4", "0"),
        (":f :read, :value nil", "#{}"),
        (":f :read, :value nil", "[]"),
    ],
)
def test_reads_of_a_store_to_which_nothing_was_done_are_right(tried, wanted):
    text = (
        f"{{:process 0, :type :invoke, {tried}}}\n{{:process 0, :type :fail, {tried}}}\n"
        "{:process 1, :type :invoke, :f :read, :value nil}\n"
        f"{{:process 1, :type :ok, :f :read, :value {wanted}}}\n"
    )
    history = parse_recording(text, "x")
    for name in ("linearizable", "sequential", "causal"):
        assert judge(history, name).outcome == "holds"


def test_a_vector_of_events_is_read_one_by_one_and_ends_the_file():
    first = "{:process 0 :type :invoke :f :write :value 1}\n{:process 0 :type :ok :f :write :value 1}\n"
    assert len(parse_recording(f"[{first}]", "x")) == len(parse_recording(first, "x")) == 1
    assert len(parse_recording("[]", "x")) == 0
    with pytest.raises(BadFileError, match="holds all others") as caught:
        parse_recording(f"[{first}]\n{first}", "x")
    assert "line 4, column 1" in caught.value.where
