"""Writes a protocol as Erlang: one ``gen_statem`` module a role, one state function a state, and a module they share.

Every handler first drops what is stale and switches where it is interrupted, then matches.  Messages that belong to
later steps stay in an inbox of the machine (in order for each sender) and are looked at again after every step: OTP's
own ``postpone`` would let a later message of the same sender overtake, and does not look again when a loop leads back
to the same state.  Entering a state in which the role may interrupt starts a state timeout, if the application gave
one.

Runs on Erlang/OTP 25 and later.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wavetank.errors import BadValueError
from wavetank.protocols.sessions.machines import Machine, Transition

SUPPORT_MODULE = "wavetank_session"
_RESERVED = """
after and andalso band begin bnot bor bsl bsr bxor case catch cond div end fun if let maybe not of or orelse
receive rem try when xor else
"""
# Modules of kernel and stdlib (OTP 25) whose name a protocol and a role may make; Erlang loads no other in their place.
_MODULES_OF_ERLANG = """
alarm_handler application_controller application_master application_starter code_server dets_server dets_sup
digraph_utils disk_log dist_ac dist_util edlin_expand erl_eval erl_init erl_parse erl_reply erl_scan
error_handler error_logger eval_bits file_server file_sorter gb_sets gb_trees gen_event gen_fsm gen_sctp
gen_server gen_statem gen_tcp gen_udp global_group global_search group_history inet_config inet_db inet_hosts
inet_res io_lib logger_backend logger_config logger_filters logger_formatter logger_proxy logger_server
net_adm net_kernel persistent_term proc_lib ram_file release_handler seq_trace shell_default shell_docs
socket_registry standard_error supervisor_bridge user_drv user_sup
"""


def erlang_files(machines: Mapping[str, Machine], *, source: str) -> dict[str, str]:
    """Return file names and contents: a module for each role, and the shared one.

    Parameters
    ----------
    machines : mapping
        Role to machine, all of one protocol.
    source : str
        Name of the protocol file, for the heading.

    Raises
    ------
    BadValueError
        When two roles would get the same module name, or one would get that of a module of Erlang itself.
    """
    support = importlib.resources.files(__package__).joinpath(f"{SUPPORT_MODULE}.erl")
    files = {f"{SUPPORT_MODULE}.erl": support.read_text(encoding="utf-8")}
    for role, machine in machines.items():
        module = module_name(machine.protocol, role)
        if f"{module}.erl" in files:
            raise BadValueError("Two roles have the same name in Erlang, where case is lost.", given=role)
        if module in _MODULES_OF_ERLANG.split():
            raise BadValueError(
                f"The module of the role would be {module}, which is one of Erlang's own.",
                given=f"protocol {machine.protocol}, role {role}",
                hint="give the protocol or the role another name",
            )
        files[f"{module}.erl"] = _module(module, machine, source)
    return files


def module_name(protocol: str, role: str) -> str:
    """Return the name of the Erlang module of a role.

    Examples
    --------
    >>> module_name("ThirdParty", "s")
    'third_party_s'
    """
    return "_".join(_snake(part) for part in (protocol, role))


def _snake(name: str) -> str:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    word = re.sub(r"[^a-z0-9_]", "_", spaced.lower())
    return word if word[:1].isalpha() else f"p{word}"


def atom(name: str) -> str:
    """Return a name as an Erlang atom, in quotes where it needs them.

    Examples
    --------
    >>> atom("data"), atom("Data"), atom("220"), atom("end")
    ('data', "'Data'", "'220'", "'end'")
    """
    if re.fullmatch(r"[a-z][A-Za-z0-9_]*", name) and name not in _RESERVED.split():
        return name
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _module(module: str, machine: Machine, source: str) -> str:
    arbiter = []
    for number, state in enumerate(machine.states):
        rights = [each for each in state.transitions if each.sends and each.settles and each.settles[1] == "right"]
        if rights and rights[0].settles is not None and state.kind == "mixed":
            arbiter.append((number, machine.mixes[rights[0].settles[0]], rights[0].partner))
    facts = {"module": module, "machine": machine, "source": source, "support": SUPPORT_MODULE, "arbiter": arbiter}
    return rendered("role.erl.jinja", facts, atom=atom, expected=_expected, settled=_settled)


def rendered(template: str, facts: Mapping[str, object], **filters: Callable[[Any], Any]) -> str:
    """Return a template of this folder, filled in.

    Parameters
    ----------
    template : str
        Its file.
    facts : mapping of str to object
        What it names.
    **filters
        Its filters beside those of Jinja.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= filters
    return environment.get_template(template).render(facts)


def _settled(each: Transition) -> str:
    return "none" if each.settles is None else f"{{{each.settles[0]}, {each.settles[1]}}}"


def _expected(each: Transition) -> str:
    through = ", ".join(f"{{{mix}, {side}}}" for mix, side in each.through)
    return f"{{{atom(each.partner)}, {atom(each.label)}, [{through}]}}"
