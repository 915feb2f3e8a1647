"""Sessions of agents as requests: prompts rebuilt from conversations, blocks against the text itself."""

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError, DataUnavailableError
from wavetank.workloads import agent_sessions, datasets, read_trace
from wavetank.workloads.agent_sessions import Conversation, one_pass, read_conversations

SAYS = ["one two three", "four five six seven", "a b", "eight", "c d e f g", "nine ten"]


def message(role, text, demo=False):
    return {"role": role, "text": text, "demo": demo}


@pytest.fixture
def write(tmp_path):
    """Write conversations, each a list of messages, and return the file's path."""

    def to(*conversations, name="t.jsonl.gz"):
        text = "\n".join(json.dumps({"name": "n", "messages": messages}) for messages in conversations)
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return to


def long_one(task, turns=8):
    """A conversation of the given task with an answer and an observation in every turn."""
    talk = [message("system", "You are an agent . " * 10), message("user", f"the task is {task} " * 5)]
    for turn in range(turns):
        talk += [message("assistant", f"call {turn}"), message("user", f"{task} saw {turn}\n" * (3 + turn))]
    return talk


class TestConversations:
    def test_every_answer_is_a_request_whose_prompt_is_all_before_it(self, write):
        # A mark per message, words and blanks: 1 + 5, 1 + 7, 1 + 3, 1 + 1.
        talk = [message(role, says) for role, says in zip(("system", "user", "assistant", "user"), SAYS, strict=False)]
        (found,) = read_conversations(write([*talk, message("assistant", SAYS[4])], name="t.jsonl"), block_tokens=4)
        assert found.prompt_tokens == (14, 20)
        assert found.output_tokens == (3, 9)
        assert [len(keys) for keys in found.block_keys] == [3, 5]
        assert found.block_keys[1][:3] == found.block_keys[0]
        assert found.common_blocks == 1

    def test_worked_examples_are_no_requests_and_belong_to_the_common_opening(self, write):
        talk = [
            message("system", "be good"),
            message("user", "do it like this", demo=True),
            message("assistant", "thus", demo=True),
            message("user", "now you"),
            message("assistant", "done"),
        ]
        (found,) = read_conversations(write(talk), block_tokens=2)
        assert found.output_tokens == (1,)
        # 4 + 8 + 2 tokens until the task begins, 4 with it.
        assert found.common_blocks == 7
        assert found.prompt_tokens == (18,)

    def test_old_observations_become_a_note_but_for_the_first_and_the_newest(self, write):
        path = write(long_one("x"))
        (whole,), (short,) = (read_conversations(path, observations=kept, block_tokens=1) for kept in (0, 2))
        # Task, then observations: with three of them the oldest behind the task is still among the two newest.
        assert short.prompt_tokens[:3] == whole.prompt_tokens[:3]
        # "x saw 0\n" three times is 18 tokens, the note 14.
        assert whole.prompt_tokens[3] - short.prompt_tokens[3] == 4
        # Up to the mark of the replaced observation, behind an answer of 4 tokens, the text is the same.
        same = [one == other for one, other in zip(whole.block_keys[3], short.block_keys[3], strict=False)]
        assert same.index(False) == whole.prompt_tokens[0] + 4 + 1

    def test_equal_keys_are_equal_texts_from_the_beginning(self, write):
        one, other = read_conversations(write(long_one("x"), long_one("y")), block_tokens=8)
        common = one.common_blocks
        assert common == other.common_blocks > 0
        for mine, theirs in zip(one.block_keys, other.block_keys, strict=True):
            assert mine[:common] == theirs[:common]
            assert not set(mine[common + 1 :]) & set(theirs[common + 1 :])
        assert len(set(one.block_keys[-1])) == len(one.block_keys[-1])

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            (b"{", "no JSON object"),
            (b"[]", "no conversation"),
            (b'{"messages": [{"role": "cat", "text": "m"}]}', "no conversation"),
            (b'{"messages": [{"role": "user", "text": 3}]}', "no conversation"),
            (b'{"messages": [{"role": "user", "text": "m"}]}', "no answer"),
        ],
    )
    def test_a_line_of_something_else_is_named(self, tmp_path, line, says):
        path = tmp_path / "t.jsonl"
        path.write_bytes(b"\n" + line)
        with pytest.raises(BadFileError, match=says) as caught:
            read_conversations(path)
        assert caught.value.where.endswith("line 2")

    @pytest.mark.parametrize(
        "content", [b"no gzip", gzip.compress(b"{}" * 99, mtime=0)[:-9], gzip.compress(b"\xff\xfe\xff", mtime=0)]
    )
    def test_damaged_files_are_refused(self, tmp_path, content):
        path = tmp_path / "t.jsonl.gz"
        path.write_bytes(content)
        with pytest.raises(BadFileError):
            read_conversations(path)
        with pytest.raises(BadFileError):
            read_conversations(tmp_path / "absent.jsonl")

    @pytest.mark.parametrize("given", [{"observations": -1}, {"block_tokens": 0}])
    def test_numbers_out_of_range_are_refused(self, write, given):
        with pytest.raises(BadValueError):
            read_conversations(write(long_one("x")), **given)


class TestSessions:
    @pytest.fixture
    def conversations(self, write):
        return read_conversations(write(long_one("x"), long_one("y", 3)), block_tokens=8)

    def test_a_turn_has_the_blocks_of_the_turn_before_and_no_other_session_has(self, conversations):
        trace = one_pass([*conversations, conversations[0]], block_tokens=8)
        rows = [
            trace.block_ids[start:stop].tolist()
            for start, stop in zip(trace.block_offsets, trace.block_offsets[1:], strict=False)
        ]
        opening = rows[0][: conversations[0].common_blocks]
        sessions = {}
        for row in rows:
            assert row[: len(opening)] == opening
            sessions.setdefault(row[len(opening)], []).append(row)
        assert sorted(map(len, sessions.values())) == [3, 8, 8]
        assert len({(row[len(opening)], number) for row, number in zip(rows, trace.session.tolist(), strict=True)}) == 3
        for turns in sessions.values():
            for before, after in pairwise(turns):
                depth = sum(one == other for one, other in zip(before, after, strict=False))
                # Until the first observation is replaced the whole prompt is found again, but for its last block.
                assert depth == len(before) or len(turns) == 8
        bodies = [{block for row in turns for block in row} - set(opening) for turns in sessions.values()]
        assert not bodies[0] & bodies[1]
        assert not bodies[0] & bodies[2]

    def test_a_turn_never_comes_before_the_answer_to_the_one_before_is_written(self, conversations):
        trace = one_pass(conversations[:1], block_tokens=8)
        least_s = agent_sessions.TOKEN_S * trace.output_tokens[:-1]
        assert (np.diff(trace.arrival_s) >= least_s).all()

    def test_the_rate_is_the_one_that_was_asked_for_from_the_first_request_on(self, conversations):
        for rate in (0.5, 40.0):
            trace = agent_sessions.agent_sessions(
                conversations, n_requests=4000, rate_per_s=rate, seed=3, block_tokens=8
            )
            assert len(trace) == 4000
            for half in (trace.head(2000), trace.part(2000, 2000)):
                # Sessions of about seven requests: the error of a count of 2,000 is about 6 %.
                assert half.rate_per_s == pytest.approx(rate, rel=0.25)

    def test_a_higher_rate_means_more_sessions_and_not_quicker_ones(self, conversations):
        def gap_s(rate):
            trace = agent_sessions.agent_sessions(
                conversations[:1], n_requests=3000, rate_per_s=rate, seed=1, block_tokens=8
            )
            first = trace.block_ids[trace.block_offsets[:-1] + conversations[0].common_blocks]
            order = np.lexsort((trace.arrival_s, first))
            gaps = np.diff(trace.arrival_s[order])[np.diff(first[order]) == 0]
            return gaps.mean()

        assert gap_s(1.0) == pytest.approx(gap_s(50.0), rel=0.1)
        assert gap_s(1.0) == pytest.approx(agent_sessions.TOOL_S + agent_sessions.TOKEN_S * 3, rel=0.1)

    def test_seeds_are_repeatable_and_differ(self, conversations):
        made = [
            agent_sessions.agent_sessions(conversations, n_requests=50, rate_per_s=2.0, seed=seed, block_tokens=8)
            for seed in (1, 1, 2)
        ]
        assert made[0] == made[1] != made[2]

    @pytest.mark.parametrize("given", [{"n_requests": 0}, {"rate_per_s": 0.0}, {"rate_per_s": np.inf}])
    def test_nothing_to_make_is_refused(self, conversations, given):
        with pytest.raises(BadValueError):
            agent_sessions.agent_sessions(conversations, **{"n_requests": 10, "rate_per_s": 1.0, **given})
        with pytest.raises(BadValueError):
            agent_sessions.agent_sessions([], n_requests=10, rate_per_s=1.0)


class TestDataSet:
    @pytest.fixture
    def path(self):
        try:
            return datasets.find("agent-transcripts", "transcripts.jsonl.gz")
        except DataUnavailableError as error:
            pytest.skip(error.problem)

    @pytest.mark.parametrize(("observations", "tokens", "found_again"), [(0, 611_964, 0.853), (5, 552_399, 0.517)])
    def test_the_known_answers_of_its_source_note(self, path, observations, tokens, found_again):
        conversations = read_conversations(path, observations=observations, block_tokens=1)
        assert sum(len(each.prompt_tokens) for each in conversations) == 104
        assert sum(map(sum, (each.prompt_tokens for each in conversations))) == tokens
        shared = sum(
            next((i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b)))
            for each in conversations
            for a, b in pairwise(each.block_keys)
        )
        assert shared / tokens == pytest.approx(found_again, abs=0.0005)

    def test_it_is_read_by_name_and_says_what_was_assumed(self, path):
        with pytest.warns(UserWarning, match="conversations have no times"):
            trace = read_trace("agent-transcripts")
        assert (len(trace), trace.prompt_tokens.sum(), trace.block_tokens) == (104, 552_399, 64)
        assert trace.arrival_s[0] == 0
        np.testing.assert_array_equal(np.diff(trace.block_offsets), trace.prompt_tokens // 64)
        assert trace.summary()["block_reuse"] == pytest.approx(0.52, abs=0.01)


def test_a_conversation_is_a_plain_value():
    given = {"name": "n", "prompt_tokens": (1,), "output_tokens": (1,), "block_keys": ((),), "common_blocks": 0}
    assert Conversation(**given) == Conversation(**given)
