"""The Erlang machines and their Python twins answer alike, schedule by schedule."""

import shutil
import subprocess

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.sessions.examples import NAMES, example
from wavetank.protocols.sessions.generate_erlang import atom, erlang_files, module_name
from wavetank.protocols.sessions.mixed_choice import MixedChoice
from wavetank.protocols.sessions.runtime import RoleSession

needs_erlang = pytest.mark.skipif(shutil.which("erlc") is None, reason="erlc is not installed (Debian: erlang-base)")

PROTOCOLS = {
    **{name: example(name) for name in NAMES},
    "copies": """protocol Copies(role p, role q, role s) {
      rec X { mix m { data from p to q; copy from p to s; continue X; }
              or interrupt by q { stop from q to p; stopped from q to s; fin from p to s; continue X; } } }""",
    "nested": """protocol Nested(role p, role q) {
      mix outer { a from p to q;
                  mix inner { b from q to p; c from p to q; } or interrupt by p { d from p to q; e from q to p; } }
      or interrupt by q { x from q to p; y from p to q; } after from q to p; }""",
}

# Runs scripts of {Name, [{Role, Module}], [{send, Role, To, Label} | {deliver, From, To}]} and prints what happens.
HARNESS = """
-module(harness).
-export([main/1]).

main([File]) ->
    {ok, Scripts} = file:consult(File),
    lists:foreach(fun run/1, Scripts),
    halt(0).

run({Name, Roles, Commands}) ->
    io:format("script ~s~n", [Name]),
    Self = self(),
    Pids = maps:from_list([{Role, {Module, start(Role, Module, Self)}} || {Role, Module} <- Roles]),
    lists:foldl(fun(Command, Network) -> command(Command, Pids, Network) end, #{}, Commands),
    [Module:stop(Pid) || {Module, Pid} <- maps:values(Pids)].

start(Role, Module, Self) ->
    {ok, Pid} = Module:start_link(#{send => fun(To, Frame) -> Self ! {sent, Role, To, Frame} end,
                                    notify => fun(What) -> Self ! {noted, What} end}),
    Pid.

command({send, Role, To, Label}, Pids, Network) ->
    {Module, Pid} = maps:get(Role, Pids),
    Answer = case Module:send(Pid, To, Label, []) of ok -> "ok"; {error, Why} -> atom_to_list(Why) end,
    report(Role, Answer, Module:where(Pid)),
    collect(Network);
command({deliver, From, To}, Pids, Network) ->
    {Module, Pid} = maps:get(To, Pids),
    [Frame | Rest] = maps:get({From, To}, Network),
    Module:deliver(Pid, Frame),
    report(To, "got", Module:where(Pid)),
    collect(Network#{{From, To} := Rest}).

report(Role, Answer, {State, Tag, Waiting}) ->
    Marks = [io_lib:format(" ~b.~b.~b.~s", [Mix, First, Last, Side]) || {Mix, First, Last, Side} <- Tag],
    io:format("~s ~s ~s ~b~s~n", [Role, Answer, State, Waiting, Marks]).

collect(Network) ->
    receive
        {sent, From, To, Frame} ->
            collect(maps:update_with({From, To}, fun(Queue) -> Queue ++ [Frame] end, [Frame], Network));
        {noted, {What, From, Label, _, _}} ->
            io:format("  ~s ~s ~s~n", [What, From, Label]),
            collect(Network)
    after 0 -> Network
    end.
"""


def script(machines, seed, length=40):
    """Return random commands, some of which the protocol forbids, and what the Python sessions answer to them."""
    rng = np.random.default_rng(seed)
    sessions = {role: RoleSession(machine) for role, machine in machines.items()}
    network: dict[tuple[str, str], list] = {}
    commands, answers = [], []
    labels = sorted(
        {
            (role, each.partner, each.label)
            for role, machine in machines.items()
            for _, each in machine.transitions()
            if each.sends
        }
    )

    def report(role, answer, happened):
        session = sessions[role]
        marks = "".join(
            f" {mark.mix}.{mark.first}.{mark.last}.{'right' if mark.right else 'left'}" for mark in session.tag
        )
        answers.append(f"{role} {answer} s{session.state} {len(session.waiting)}{marks}")
        answers.extend(f"  {each.what} {each.sender} {each.label}" for each in happened)

    for _ in range(length):
        waiting = [pair for pair, queue in network.items() if queue]
        if waiting and rng.random() < 0.45:
            sender, receiver = waiting[int(rng.integers(len(waiting)))]
            commands.append(f"{{deliver, {atom(sender)}, {atom(receiver)}}}")
            report(receiver, "got", sessions[receiver].deliver(network[sender, receiver].pop(0)))
            continue
        offers = [(role, each.partner, each.label) for role, session in sessions.items() for each in session.offers()]
        pool = offers if offers and rng.random() < 0.9 else labels
        role, partner, label = pool[int(rng.integers(len(pool)))]
        commands.append(f"{{send, {atom(role)}, {atom(partner)}, {atom(label)}}}")
        if sessions[role].can_send(partner, label):
            envelope, happened = sessions[role].send(partner, label)
            network.setdefault((role, partner), []).append(envelope)
            report(role, "ok", happened)
        else:
            report(role, "not_allowed", [])
    return commands, answers


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("erlang")
    (folder / "harness.erl").write_text(HARNESS)
    for name, text in PROTOCOLS.items():
        for file, content in erlang_files(MixedChoice().machines(text), source=f"{name}.nuscr").items():
            (folder / file).write_text(content)
    words = ["erlc", "-Wall", "-Werror", *(path.name for path in folder.glob("*.erl"))]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    return folder


def run_erlang(folder, scripts):
    (folder / "scripts.term").write_text("".join(f"{each}.\n" for each in scripts))
    words = ["erl", "-noshell", "-run", "harness", "main", "scripts.term"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@needs_erlang
def test_erlang_and_python_machines_accept_the_same_traces(compiled):
    scripts, expected = [], []
    for name, text in PROTOCOLS.items():
        machines = MixedChoice().machines(text)
        modules = ", ".join(
            f"{{{atom(role)}, {module_name(machine.protocol, role)}}}" for role, machine in machines.items()
        )
        for seed in range(40):
            commands, answers = script(machines, seed)
            scripts.append(f'{{"{name} {seed}", [{modules}], [{", ".join(commands)}]}}')
            expected += [f"script {name} {seed}", *answers]
    assert run_erlang(compiled, scripts) == expected
    report = "\n".join(expected)
    for word in ("dropped", "switched", "taken", "not_allowed"):
        assert report.count(word) > 50


@needs_erlang
def test_an_erlang_arbiter_interrupts_when_its_time_has_come(compiled):
    program = """
    {ok, Q} = race_q:start_link(#{send => fun(To, Frame) -> io:format("~s ~s~n", [To, element(3, Frame)]) end,
                                  timeouts => #{race => {20, stop, []}}}),
    timer:sleep(200), io:format("~p~n", [race_q:where(Q)]), halt(0)."""
    words = ["erl", "-noshell", "-eval", program]
    done = subprocess.run(words, cwd=compiled, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["p stop", "{s1,[{1,1,1,right}],0}"]


def test_every_role_is_a_module_with_a_function_for_each_state():
    machines = MixedChoice().machines(PROTOCOLS["third_party"])
    files = erlang_files(machines, source="third_party.nuscr")
    assert set(files) == {"wavetank_session.erl", "third_party_p.erl", "third_party_q.erl", "third_party_s.erl"}
    for number in range(len(machines["s"].states)):
        assert f"\ns{number}(internal, next, Data) ->" in files["third_party_s.erl"]
    assert "callback_mode() -> state_functions." in files["third_party_s.erl"]
    assert "interrupted(1) -> s" in files["third_party_s.erl"]
    assert "from third_party.nuscr" in files["third_party_s.erl"]


def test_names_become_atoms_and_modules():
    assert [atom(name) for name in ("data", "Data", "220", "when", "it's")] == [
        "data",
        "'Data'",
        "'220'",
        "'when'",
        "'it\\'s'",
    ]
    assert module_name("AMQP", "C") == "amqp_c"
    assert module_name("220", "1") == "p220_p1"


def test_roles_that_differ_in_case_alone_are_refused():
    machines = MixedChoice().machines("protocol P(role A, role a) { m from A to a; }")
    with pytest.raises(BadValueError, match="same name in Erlang"):
        erlang_files(machines, source="p.nuscr")


@pytest.mark.parametrize(("protocol", "role"), [("File", "Server"), ("gen", "statem"), ("Net", "Kernel")])
def test_a_role_does_not_take_the_place_of_a_module_of_erlang(protocol, role):
    machines = MixedChoice().machines(f"protocol {protocol}(role {role}, role Other) {{ m from {role} to Other; }}")
    with pytest.raises(BadValueError, match=f"{protocol}_{role}".lower()):
        erlang_files(machines, source="p.nuscr")
