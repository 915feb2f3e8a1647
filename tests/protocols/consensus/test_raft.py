from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.protocols.consensus.raft import Append, Appended, AskVote, Entry, Forward, Raft, RaftNode, Vote
from wavetank.sim.events import simulate
from wavetank.sim.faults import Crash, RandomCrashes
from wavetank.sim.network import Network, Partition
from wavetank.sim.node import Node, Snapshot
from wavetank.sim.rng import Draws
from wavetank.sim.simulation import LIVES, Request, Run

CROWD = [Request(at=60 + 3 * number, node=number % 5, command=("append", "x", number)) for number in range(40)]


def run(life: str = "rounds", *, seed: int = 0, faults: Any = (), until: float = 1500, **links: Any) -> Run:
    network = Network.complete(5, **links)
    return simulate(Raft(), network=network, until=until, life=life, seed=seed, faults=faults, requests=CROWD)


def server(node: Node) -> RaftNode:
    found = getattr(node, "inner", node)
    assert isinstance(found, RaftNode)
    return found


@pytest.mark.parametrize("life", LIVES)
def test_every_request_is_applied_everywhere_in_one_order(life: str) -> None:
    found = run(life)
    assert len(found.replies) == len(CROWD)
    orders = {server(node).registers.values["x"] for node in found.nodes}
    assert len(orders) == 1
    assert sorted(*orders) == list(range(len(CROWD)))
    assert found.total("leaders") == 1


def test_without_loss_rounds_and_events_apply_the_same_requests() -> None:
    applied = [sorted(set(run(life).decisions.values()), key=repr) for life in LIVES]
    assert applied[0] == applied[1]


@pytest.mark.parametrize("life", LIVES)
@given(
    seed=st.integers(0, 10_000),
    drop=st.sampled_from([0.0, 0.2]),
    most=st.sampled_from([1.0, 5.0]),
    reorder=st.sampled_from([0.0, 0.3]),
    cut=st.booleans(),
    crashes=st.booleans(),
)
@settings(max_examples=15)
def test_no_two_servers_apply_different_requests_whatever_happens(
    life: str, seed: int, drop: float, most: float, reorder: float, cut: bool, crashes: bool
) -> None:
    cuts = (Partition(start=80, stop=160, groups=((0, 1), (2, 3, 4))),) if cut else ()
    faults = [RandomCrashes(members=(0, 2), odds=0.02, down_for=15)] if crashes else []
    found = run(
        life,
        seed=seed,
        faults=faults,
        drop=drop,
        delay="uniform",
        most_delay=most,
        reorder=reorder,
        duplicate=reorder,
        partitions=cuts,
        until=600,
    )
    assert Raft().violation(found.snapshot()) == ""
    assert found.contradictions == []


@pytest.mark.parametrize("life", LIVES)
def test_lost_messages_only_take_time(life: str) -> None:
    for seed in range(5):
        found = run(life, seed=seed, drop=0.2, duplicate=0.1, reorder=0.1)
        assert len(found.replies) == len(CROWD)
        values = [server(node).registers.values["x"] for node in found.nodes]
        assert max(map(len, values)) == len(CROWD)


def test_a_new_leader_takes_over_when_the_old_one_crashes() -> None:
    first = next(index for index, node in enumerate(run(until=55).nodes) if server(node).role == "leader")
    found = run(faults=[Crash(members=(first,), at=100)])
    assert found.total("leaders") == 2
    lost = [number for number, request in enumerate(CROWD) if request.node == first and request.at >= 98]
    assert [number for number in range(len(CROWD)) if number not in found.replies] == lost


def test_a_minority_commits_nothing_and_catches_up_afterwards() -> None:
    first = next(index for index, node in enumerate(run(until=55).nodes) if server(node).role == "leader")
    other = (first + 1) % 5
    rest = tuple(node for node in range(5) if node not in (first, other))
    cut = Partition(start=58, stop=400, groups=((first, other), rest))
    during = run(partitions=(cut,), until=390)
    assert server(during.nodes[first]).applied == 1
    assert server(during.nodes[rest[0]]).applied > 1
    after = run(partitions=(cut,))
    assert len(after.replies) == len(CROWD)
    assert len({server(node).registers.values["x"] for node in after.nodes}) == 1


def test_a_restarted_server_has_its_log_and_its_vote() -> None:
    found = run(faults=[Crash(members=(0, 1, 2, 3, 4), at=120, down_for=10)])
    done = [number for number, answer in found.replies.items() if answer.at < 120]
    for node in found.nodes:
        assert set(done) <= set(server(node).registers.values["x"])
    assert Raft().violation(found.snapshot()) == ""


def test_fewer_votes_than_a_majority_break_it() -> None:
    cut = Partition(start=100, stop=300, groups=((0, 1), (2, 3, 4)))
    network = Network.complete(5, partitions=(cut,))
    found = simulate(Raft(quorum=2), network=network, until=500, requests=CROWD)
    assert Raft().violation(found.snapshot()) != ""


def test_a_follower_points_before_the_whole_term_that_differs() -> None:
    sent: list[Any] = []

    class Ear:
        id, size, peers, now = 1, 3, (0, 2), 5.0

        def __getattr__(self, name: str) -> Any:
            if name == "load":
                return lambda key, default=None: default
            if name == "send":
                return lambda to, message: sent.append((to, message))
            return lambda *arguments: None

    node = RaftNode(Raft(), 3)
    ear = Ear()
    ear.rng = Draws(0)  # type: ignore[attr-defined]
    node.context = ear  # type: ignore[assignment]
    node.start()
    node._store(tuple(Entry(term, term, 0, None) for term in (1, 1, 2, 2, 2)))
    node.receive(0, Append(3, 5, 3, (), 0))
    assert sent.pop() == (0, Appended(3, False, 2))
    node.receive(0, Append(3, 9, 3, (), 0))
    assert sent.pop() == (0, Appended(3, False, 5))
    node.receive(0, Append(3, 2, 1, (Entry(3, 9, 0, None),), 0))
    assert sent.pop() == (0, Appended(3, True, 3))
    assert [entry.term for entry in node.log] == [0, 1, 1, 3]
    node.receive(0, Append(2, 0, 0, (), 0))
    assert sent.pop() == (0, Appended(3, False, 0))


class Bench:
    """A context that keeps what a server saves and writes down what it sends."""

    id, size, peers, now = 1, 3, (0, 2), 5.0

    def __init__(self, saved: dict[str, Any]) -> None:
        self.saved = saved
        self.sent: list[tuple[int, Any]] = []
        self.decided: list[int] = []
        self.rng = Draws(0)

    def load(self, key: str, default: Any = None) -> Any:
        return self.saved.get(key, default)

    def save(self, key: str, value: Any) -> None:
        self.saved[key] = value

    def send(self, to: int, message: Any) -> None:
        self.sent.append((to, message))

    def decide(self, value: Any, instance: int) -> None:
        self.decided.append(instance)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def started(saved: dict[str, Any]) -> tuple[RaftNode, Bench]:
    node, bench = RaftNode(Raft(), 3), Bench(saved)
    node.context = bench  # type: ignore[assignment]
    node.start()
    return node, bench


def test_a_vote_outlives_a_crash_so_nobody_votes_twice_in_a_term() -> None:
    node, bench = started({})
    node.receive(0, AskVote(2, 0, 0))
    assert bench.sent.pop() == (0, Vote(2, True))
    again, bench = started(bench.saved)
    again.receive(2, AskVote(2, 0, 0))
    assert bench.sent.pop() == (2, Vote(2, False))
    again.receive(0, AskVote(2, 0, 0))
    assert bench.sent.pop() == (0, Vote(2, True))


def test_entries_of_earlier_terms_are_committed_by_one_of_the_leaders_own_alone() -> None:
    # Figure 8 of the paper: a majority holds the entry of term 2, and a leader of term 3 might still overwrite it.
    node, bench = started({"term": 3, "log length": 1, "log 1": Entry(2, 7, 0, ("write", "x", 1))})
    node.timer("election")
    node.receive(0, Vote(4, True))
    assert node.role == "leader"
    node.receive(0, Appended(4, True, 1))
    node.receive(2, Appended(4, True, 1))
    assert (node.commit, bench.decided) == (0, [])
    node.receive(0, Appended(4, True, 2))
    assert (node.commit, bench.decided) == (2, [1])


NUMBERS = st.one_of(st.integers(-2, 4), st.sampled_from([-(2**63), 2**31, 2**62, 2**63, 2**64 - 1]))
COMMANDS = st.sampled_from([None, ("read", "x"), ("write", "x", 1), ("append", "x", 2), ("cas", "x", (1,)), (b"", {})])
ENTRIES = st.lists(st.builds(Entry, NUMBERS, NUMBERS, NUMBERS, COMMANDS), max_size=3).map(tuple)
WORDS = st.one_of(
    st.builds(AskVote, NUMBERS, NUMBERS, NUMBERS),
    st.builds(Vote, NUMBERS, st.booleans()),
    st.builds(Append, NUMBERS, NUMBERS, NUMBERS, ENTRIES, NUMBERS),
    st.builds(Appended, NUMBERS, st.booleans(), NUMBERS),
    st.builds(Forward, NUMBERS, NUMBERS, COMMANDS),
)


@pytest.mark.parametrize("role", ["follower", "leader"])
@given(said=st.lists(st.tuples(st.sampled_from([0, 2]), WORDS), max_size=12))
@settings(max_examples=120)
def test_no_message_whatever_it_says_raises_or_takes_back_what_is_committed(role: str, said: Any) -> None:
    decided: dict[int, Any] = {}
    saved: dict[str, Any] = {"term": 1, "log length": 2, "log 1": Entry(1, 1, 0, None), "log 2": Entry(1, 2, 0, None)}

    class Desk:
        id, size, peers, now, rng = 1, 3, (0, 2), 5.0, Draws(0)

        def load(self, key: str, default: Any = None) -> Any:
            return saved.get(key, default)

        def save(self, key: str, value: Any) -> None:
            saved[key] = value

        def decide(self, value: Any, instance: int) -> None:
            assert decided.setdefault(instance, value) == value

        def __getattr__(self, name: str) -> Any:
            return lambda *arguments: None

    node = RaftNode(Raft(), 3)
    node.context = Desk()
    node.start()
    if role == "leader":
        node.timer("election")
        node.receive(0, Vote(node.term, True))
    for sender, message in said:
        before = node.log[: node.commit + 1]
        node.receive(sender, message)
        assert node.log[: len(before)] == before
        assert node.applied == node.commit < len(node.log)
        assert saved["term"] == node.term < 2**63
        assert [saved[f"log {index}"] for index in range(1, saved["log length"] + 1)] == node.log[1:]


def test_it_tolerates_less_than_half() -> None:
    assert [Raft().max_faults(size) for size in (1, 2, 3, 4, 5)] == [0, 0, 1, 1, 2]


def test_a_single_server_answers_alone() -> None:
    found = simulate(Raft(), size=1, until=100, requests=[Request(at=50, node=0, command=("write", "x", 1))])
    assert found.replies[0].at == 50


def test_bad_parameters_and_commands_are_refused() -> None:
    with pytest.raises(BadValueError):
        Raft(election_rounds=0.0)
    with pytest.raises(BadValueError):
        simulate(Raft(), size=3, until=50, requests=[Request(at=1, node=0, command="hello")])


def _servers(*logs: tuple[int, ...]) -> list[Any]:
    """Return servers whose logs hold entries of these terms; entry ``i`` of all is request ``i``."""
    servers = [Raft().node(index, len(logs)) for index in range(len(logs))]
    for server, terms in zip(servers, logs, strict=True):
        server.log += [Entry(term, number, 0, ("write", "x", number)) for number, term in enumerate(terms)]
    return servers


def _says(servers: list[Any]) -> str:
    return Raft().violation(Snapshot(servers, frozenset(range(len(servers))), {}, {}))


def test_logs_that_agree_on_a_term_agree_on_all_before_it() -> None:
    servers = _servers((1, 2), (1, 2), (1, 1, 1))
    assert _says(servers) == ""
    servers[1].log[1] = Entry(1, 9, 1, ("write", "x", 9))
    assert _says(servers).startswith("the logs of nodes 0 and 1 agree on the term of place 2, but not before")


def test_a_leader_of_the_latest_term_has_what_is_committed() -> None:
    servers = _servers((), (1,), (1,))
    servers[1].commit, servers[1].term = 1, 2
    servers[0].role, servers[0].term = "leader", 1
    # An old leader need not have it.
    assert _says(servers) == ""
    servers[0].term = 3
    assert _says(servers) == "node 0 leads term 3 without what node 1 has committed"
    servers[0].log += servers[1].log[1:]
    assert _says(servers) == ""
