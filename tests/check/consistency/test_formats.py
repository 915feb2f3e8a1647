"""Formats as their documentation has them: of each workload a right history and a wrong one, with the verdict."""

from __future__ import annotations

import gzip

import pytest

from wavetank.check.consistency.check import HistoryCheck
from wavetank.check.consistency.files import read_history, write_history
from wavetank.check.consistency.recordings import parse_recording
from wavetank.check.report import Budget
from wavetank.cli.check import _kind_of, _kinds
from wavetank.errors import BadFileError

BUDGET = Budget(seconds=120.0)


def edn(*events, record=False):
    """Build history.edn of (process, type, f, value and more): one map a line, in the order of the file."""
    tag = "#jepsen.history.Op" if record else ""
    return "\n".join(
        f"{tag}{{:index {at}, :time {at * 1000}, :type :{kind}, :process {process}, :f :{f}, :value {value}}}"
        for at, (process, kind, f, value) in enumerate(events)
    )


def calls(*rows, f=None):
    """Build operations one after another: (process, f, value asked, ending, value told)."""
    return [
        event
        for process, name, asked, kind, told in rows
        for event in ((process, "invoke", name, asked), (process, kind, name, told))
    ]


LIN_KV = calls((0, "write", "[1 5]", "ok", "[1 5]"), (1, "write", "[2 6]", "ok", "[2 6]"))
WORKLOADS = {
    "jepsen independent register": (
        [*LIN_KV, *calls((0, "read", "[1 nil]", "ok", "[1 5]"), (1, "cas", "[2 [6 7]]", "ok", "[2 [6 7]]"),
                         (0, "read", "[2 nil]", "ok", "[2 7]"))],
        [*LIN_KV, *calls((0, "read", "[2 nil]", "ok", "[2 5]"))],
        "linearizable",
    ),
    "elle list-append": (
        calls((0, "txn", "[[:append 3 1]]", "ok", "[[:append 3 1]]"), (1, "txn", "[[:r 3 nil] [:r 4 nil]]", "ok",
              "[[:r 3 [1]] [:r 4 []]]")),
        calls((0, "txn", "[[:append 3 1]]", "ok", "[[:append 3 1]]"), (1, "txn", "[[:r 3 nil]]", "ok", "[[:r 3 nil]]")),
        "strict-serializable",
    ),
    "elle rw-register": (
        calls((0, "txn", "[[:w x 1]]", "ok", "[[:w x 1]]"), (1, "txn", "[[:r x nil] [:w y 2]]", "ok",
              "[[:r x 1] [:w y 2]]")),
        calls((0, "txn", "[[:w x 1]]", "ok", "[[:w x 1]]"), (1, "txn", "[[:r x nil]]", "ok", "[[:r x 9]]")),
        "strict-serializable",
    ),
    "bank": (
        calls((0, "read", "nil", "ok", "{0 10, 1 0}"), (1, "transfer", "{:from 0, :to 1, :amount 3}", "ok",
              "{:from 0, :to 1, :amount 3}"), (0, "read", "nil", "ok", "{0 7, 1 3}")),
        calls((0, "read", "nil", "ok", "{0 10, 1 0}"), (1, "transfer", "{:from 0, :to 1, :amount 3}", "ok",
              "{:from 0, :to 1, :amount 3}"), (0, "read", "nil", "ok", "{0 7, 1 0}")),
        "bank",
    ),
    "set": (
        calls((0, "add", "1", "ok", "1"), (1, "add", "2", "info", "2"), (0, "read", "nil", "ok", "#{1}")),
        calls((0, "add", "1", "ok", "1"), (1, "add", "2", "ok", "2"), (0, "read", "nil", "ok", "#{1}")),
        "set-full",
    ),
    "g-set, eventually right": (
        calls((0, "add", "1", "ok", "1"), (1, "read", "nil", "ok", "[]"), (1, "read", "nil", "ok", "[1]")),
        calls((0, "add", "1", "ok", "1"), (1, "read", "nil", "ok", "[1]"), (1, "read", "nil", "ok", "[]")),
        "set-full",
    ),
    "broadcast": (
        calls((0, "broadcast", "7", "ok", "7"), (1, "read", "nil", "ok", "[]"), (1, "read", "nil", "ok", "[7]")),
        calls((0, "broadcast", "7", "ok", "7"), (1, "read", "nil", "ok", "[7 8]")),
        "set-full",
    ),
    "queue in any order": (
        calls((0, "enqueue", "1", "ok", "1"), (0, "enqueue", "2", "ok", "2"), (1, "dequeue", "nil", "ok", "2")),
        calls((0, "enqueue", "1", "ok", "1"), (1, "dequeue", "nil", "ok", "1"), (0, "dequeue", "nil", "ok", "1")),
        "queue",
    ),
    "total-queue": (
        calls((0, "enqueue", "1", "ok", "1"), (0, "enqueue", "2", "info", "2"), (1, "drain", "nil", "ok", "[1]")),
        calls((0, "enqueue", "1", "ok", "1"), (0, "enqueue", "2", "ok", "2"), (1, "drain", "nil", "ok", "[1]")),
        "total-queue",
    ),
    "counter": (
        calls((0, "add", "2", "ok", "2"), (1, "add", "3", "info", "3"), (0, "read", "nil", "ok", "5"),
              (0, "read", "nil", "ok", "2")),
        calls((0, "add", "2", "ok", "2"), (0, "read", "nil", "ok", "1")),
        "counter",
    ),
    "unique-ids": (
        calls((0, "generate", "nil", "ok", '"a"'), (1, "generate", "nil", "ok", '"b"')),
        calls((0, "generate", "nil", "ok", '"a"'), (1, "generate", "nil", "ok", '"a"')),
        "unique-ids",
    ),
    "kafka": (
        calls((0, "send", '[[:send "9" 1]]', "ok", '[[:send "9" [0 1]]]'),
              (0, "send", '[[:send "9" 2]]', "ok", '[[:send "9" [2 2]]]'),
              (1, "assign", '["9"]', "ok", '["9"]'),
              (1, "poll", "[[:poll]]", "ok", '[[:poll {"9" [[0 1] [2 2]]}]]')),
        calls((0, "send", '[[:send "9" 1]]', "ok", '[[:send "9" [0 1]]]'),
              (0, "send", '[[:send "9" 2]]', "ok", '[[:send "9" [2 2]]]'),
              (1, "poll", "[[:poll]]", "ok", '[[:poll {"9" [[2 2]]}]]')),
        "kafka",
    ),
}  # fmt: skip


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_right_history_holds_and_a_wrong_one_is_violated(name, record, tmp_path):
    for good, events in zip((True, False), WORKLOADS[name][:2], strict=True):
        path = tmp_path / f"{good}.edn"
        path.write_text(edn(*events, record=record))
        (verdict,) = HistoryCheck().check(path, BUDGET).verdicts
        assert verdict.name == WORKLOADS[name][2]
        assert verdict.outcome == ("holds" if good else "violated"), verdict.says


@pytest.mark.parametrize("name", WORKLOADS)
def test_history_txt_says_the_same_in_columns(name, tmp_path):
    for good, events in zip((True, False), WORKLOADS[name][:2], strict=True):
        folder = tmp_path / f"{good}"
        folder.mkdir()
        lines = [f"{process}\t:{kind}\t:{f}\t{value}" for process, kind, f, value in events]
        (folder / "history.txt").write_text("\n".join([":nemesis\t:info\t:kill\tnil", *lines, ""]))
        assert _kind_of(folder, "", _kinds()).name == "history"
        (verdict,) = HistoryCheck().check(folder, BUDGET).verdicts
        assert verdict.outcome == ("holds" if good else "violated"), verdict.says


def test_a_store_folder_is_read_by_its_history(tmp_path):
    (tmp_path / "results.edn").write_text("{:valid? true}")
    (tmp_path / "history.txt").write_text("not read")
    (tmp_path / "history.edn").write_text(edn(*WORKLOADS["counter"][0]))
    assert len(read_history(tmp_path)) == 4


def test_keyed_values_are_found_and_said_or_set(tmp_path):
    path = tmp_path / "keyed.edn"
    path.write_text(edn(*WORKLOADS["jepsen independent register"][0]))
    report = HistoryCheck().check(path, BUDGET)
    assert "2 keys (found from the values)" in dict(report.facts)["values"]
    assert dict(report.facts)["keys"] == "2"
    as_one = HistoryCheck(keyed="false").check(path, BUDGET)
    assert as_one.verdicts[0].outcome == "violated"
    plain = tmp_path / "plain.edn"
    plain.write_text(edn(*calls((0, "write", "3", "ok", "3"), (0, "cas", "[3 4]", "ok", "[3 4]"))))
    assert "values" not in dict(HistoryCheck().check(plain, BUDGET).facts)
    with pytest.raises(BadFileError, match="not a pair") as caught:
        HistoryCheck(keyed="true").check(plain, BUDGET)
    assert caught.value.where.endswith("line 1, column 1")


def test_lists_written_to_one_register_are_not_keys():
    history = parse_recording(edn(*calls((0, "write", "[1 5]", "ok", "[1 5]"), (0, "read", "nil", "ok", "[1 5]"))), "x")
    assert {op.key for op in history.operations} == {""}


def test_a_pair_without_an_answer_keeps_its_key():
    history = parse_recording(
        edn((0, "invoke", "write", "[1 5]"), (0, "info", "write", "nil"), (1, "invoke", "read", "[1 nil]"),
            (1, "ok", "read", "[1 nil]")),
        "x",
    )  # fmt: skip
    assert [(op.key, op.value, op.returned) for op in history.operations] == [("1", 5, None)]


def test_words_and_strings_that_look_alike_are_different_keys():
    history = parse_recording(edn(*calls((0, "txn", '[[:w 1 5] [:w "1" 6]]', "ok", '[[:w 1 5] [:w "1" 6]]'))), "x")
    assert [step[1] for step in history.operations[0].result] == ["1", '"1"']


def test_final_reads_of_a_counter_are_sums_of_what_may_have_been_added(tmp_path):
    for value, outcome in ((5, "holds"), (2, "holds"), (3, "violated")):
        path = tmp_path / f"{value}.edn"
        path.write_text(
            edn(*calls((0, "add", "2", "ok", "2"), (1, "add", "3", "info", "3")))
            + "\n{:type :invoke, :process 2, :f :read, :value nil, :final? true}"
            + f"\n{{:type :ok, :process 2, :f :read, :value {value}, :final? true}}"
        )
        (verdict,) = HistoryCheck().check(path, BUDGET).verdicts
        assert (verdict.name, verdict.outcome) == ("pn-counter", outcome)
        again = tmp_path / "again.jsonl"
        write_history(again, read_history(path))
        assert HistoryCheck().check(again, BUDGET).verdicts[0].outcome == outcome


def test_unknown_words_are_named_and_can_be_mapped(tmp_path):
    path = tmp_path / "words.edn"
    rows = (0, "store", "1", "ok", "1"), (0, "fetch", "nil", "ok", "1"), (0, "gc", "nil", "ok", "nil")
    path.write_text(edn(*calls(*rows)))
    with pytest.raises(BadFileError) as caught:
        HistoryCheck().check(path, BUDGET)
    assert caught.value.given == "store"
    assert "--set names=store:read" in caught.value.hint
    named = HistoryCheck(names=("store:write", "fetch:read", "gc:ignore"))
    assert named.check(path, BUDGET).verdicts[0].outcome == "holds"
    with pytest.raises(BadFileError, match="THEIRS:OURS"):
        HistoryCheck(names=("store",)).check(path, BUDGET)


def test_what_is_not_checked_says_why(tmp_path):
    path = tmp_path / "echo.edn"
    path.write_text(edn(*calls((0, "echo", '"hi"', "ok", '"hi"'))))
    with pytest.raises(BadFileError, match="not checked"):
        HistoryCheck().check(path, BUDGET)


def test_what_has_no_answer_stays_beside_all_that_follows(tmp_path):
    events = [(0, "invoke", "write", "1"), (0, "info", "write", "1")]
    for at, value in enumerate(("7", "7", "1", "1")):
        events += calls((at + 1, "write", "7", "ok", "7")) if at == 0 else []
        events += calls((at + 1, "read", "nil", "ok", value))
    path = tmp_path / "late.edn"
    path.write_text(edn((":nemesis", "info", "start", "nil"), *events))
    assert HistoryCheck().check(path, BUDGET).verdicts[0].outcome == "holds"


def test_logs_may_have_blanks_for_tabs():
    line = "INFO  jepsen.util - {}\t:{}\t:{}\t{}\n"
    text = "".join(line.format(*row) for row in ((0, "invoke", "write", 1), (0, "ok", "write", 1),
                                                 (0, "invoke", "cas", "[1 2]"), (0, "ok", "cas", "[1 2]")))  # fmt: skip
    assert parse_recording(text, "x") == parse_recording(text.replace("\t", "  "), "x")
    assert parse_recording(text, "x") == parse_recording(text.replace("\n", "\r\n"), "x")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"{:process 0 :type :invoke :f :write :value " + b"9" * 100_000 + b"}", "too long"),
        (b"{:process 0 :type :invoke :f :write", "never closed"),
        (b"{:process 0 :type :invoke :f :write :value \xff}", "not UTF-8"),
        ("{:process 0}".encode("utf-16"), "not UTF-8"),
        (gzip.compress(b"{:process 0 :type :invoke}", mtime=0)[:-9], "cannot be read"),
        (b'{"format":"wavetank-history","version":1}\n{"process":"0","action":"write","invoked":0,"returned":1,"value":'
         + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
        (b'{"format":"wavetank-history","version":1}\n{"process":"0","action":"write","invoked":0,"returned":1,"value":'
         + b"[" * 900 + b"]" * 900 + b"}", "nested too deeply"),
        (b'{"format":"wavetank-history","version":1}\n' + b"x" * (2**24 + 1), "too long"),
    ],
    ids=["lists", "number", "open", "byte", "utf-16", "gzip", "json", "json-900", "line"],
)  # fmt: skip
def test_damaged_and_hostile_files_are_refused_in_words(content, says, tmp_path):
    path = tmp_path / "odd.edn"
    path.write_bytes(content)
    with pytest.raises(BadFileError) as caught:
        HistoryCheck().check(path, BUDGET)
    assert says in str(caught.value)


def test_stamps_no_clock_can_give_count_as_none():
    text = edn((0, "invoke", "write", "1")).replace(":time 0", f":time {'9' * 400}")
    assert parse_recording(text, "x").clock == "events"
    assert parse_recording(text.replace("9" * 400, "##NaN"), "x").clock == "events"


def test_a_file_larger_than_the_memory_is_undecided_before_it_is_read(tmp_path):
    path = tmp_path / "large.edn"
    path.write_text(edn(*calls(*[(0, "write", str(at), "ok", str(at)) for at in range(2000)])))
    (verdict,) = HistoryCheck().check(path, Budget(memory_bytes=2**14)).verdicts
    assert verdict.outcome == "undecided" and verdict.says.startswith("memory: ") and "--memory" in verdict.says
