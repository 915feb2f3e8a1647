"""``wavetank check`` for session protocols: well-formed, projectable, and able to go on in every interleaving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from wavetank.check.deadline import Deadline, resident_bytes
from wavetank.check.report import Budget, CheckReport, Outcome, Verdict
from wavetank.errors import BadFileError, MissingExtraError, nearest_of
from wavetank.protocols.sessions.global_types import GlobalType, globals_of
from wavetank.protocols.sessions.machines import Machine
from wavetank.protocols.sessions.mixed_choice import MixedChoice
from wavetank.protocols.sessions.parser import read_protocols
from wavetank.protocols.sessions.product import Exploration, Trouble
from wavetank.protocols.sessions.refinements import check_refinements
from wavetank.protocols.sessions.syntax import IllFormedError, Module
from wavetank.protocols.sessions.wellformed import check_well_formed
from wavetank.settings import setting

_QUESTIONS: dict[str, tuple[tuple[Trouble, ...], str]] = {
    "progress": (("deadlock",), "every role that waits can get on"),
    "messages": (("reception error", "orphan message"), "every message is taken, or dropped as stale"),
    "agreement": (("no agreement",), "all roles can always end on one side of every mix"),
}


@dataclass(frozen=True, kw_only=True)
class SessionCheck:
    """Checks every protocol of a file: its rules, its projection, and all interleavings within a bound on queues."""

    protocol: str = setting("", says="Name of the protocol to check; empty: all protocols of the file")
    role: str = setting("", says="Role whose local type is printed")
    queue_bound: int = setting(2, unit="messages", says="Longest queue between two roles", low=1, high=16)
    drop_stale: bool = setting(
        True, says="Whether stale messages are dropped; false shows the errors without this rule"
    )
    reach_rule: bool = setting(
        True,
        says="Whether rule (a) of a mix, that every role is informed, is checked; false shows the errors without it",
    )
    unfold: bool = setting(
        False,
        says="Whether a loop and a branch that is no loop are merged by unfolding the loop once (nuScr refuses that)",
    )

    def check(self, path: Path, budget: Budget) -> CheckReport:
        """Read a protocol file and answer for each protocol in it.

        Raises
        ------
        BadFileError
            For a file that breaks the grammar, with line and column.
        IllFormedError
            When the named protocol or role does not exist.
        """
        deadline = Deadline(budget.seconds)
        module = read_protocols(path)
        system = self._system()
        try:
            found = globals_of(module, unfolds=self.unfold)
        except IllFormedError as error:
            verdict = Verdict(name="names", outcome="violated", says=error.problem, by="names", evidence=str(error))
            return CheckReport(subject=module.path, kind="session", verdicts=(verdict,))
        if not found:
            raise BadFileError("The file has no protocol.", where=module.path)
        if self.protocol and self.protocol not in found:
            raise IllFormedError(
                f"The file has no protocol named {self.protocol!r}.",
                rule="protocol",
                allowed=list(found),
                nearest=nearest_of(self.protocol, found),
                where=module.path,
            )
        chosen = {name: each for name, each in found.items() if self.protocol in ("", name)}
        if self.role and not any(self.role in each.roles for each in chosen.values() if isinstance(each, GlobalType)):
            roles = sorted({role for each in chosen.values() if isinstance(each, GlobalType) for role in each.roles})
            raise IllFormedError(
                f"No protocol here has a role named {self.role!r}.",
                rule="role",
                allowed=roles,
                nearest=nearest_of(self.role, roles),
                where=module.path,
            )
        auxiliary = {each.name for each in module.protocols if each.auxiliary}
        facts: list[tuple[str, str]] = [("protocols", ", ".join(chosen))]
        verdicts: list[Verdict] = []
        for name, outcome in chosen.items():
            well_formed, odd, machines = self._well_formed(system, name, outcome, module)
            verdicts.append(well_formed)
            if well_formed.outcome != "holds":
                continue
            facts += [("odd", each) for each in odd if ("odd", each) not in facts]
            if self.role in machines:
                facts += [(f"{name}, {self.role}", line) for line in machines[self.role].local_type().splitlines()]
            if self.protocol or name not in auxiliary:
                verdicts += self._explored(system, name, machines, deadline, budget, facts)
        return CheckReport(subject=module.path, kind="session", facts=tuple(facts), verdicts=tuple(verdicts))

    def _system(self) -> MixedChoice:
        return MixedChoice(queue_bound=self.queue_bound, drop_stale=self.drop_stale, reach_rule=self.reach_rule)

    @staticmethod
    def _well_formed(
        system: MixedChoice, name: str, protocol: GlobalType | IllFormedError, module: Module
    ) -> tuple[Verdict, list[str], dict[str, Machine]]:
        """Return the verdict on a protocol's rules and projection, what is odd about it, and its machines."""
        verdict = Verdict(name=f"{name}: well-formed", outcome="violated", by="rules")
        started = Deadline()
        try:
            if isinstance(protocol, IllFormedError):
                raise protocol
            odd = check_well_formed(protocol, reach=system.reach_rule)
            check_refinements(protocol, module)
            machines = system.machines(protocol)
        except IllFormedError as error:
            took_s = started.spent_s
            by = error.rule or "rules"
            return replace(verdict, says=error.problem, by=by, seconds=took_s, evidence=str(error)), [], {}
        except MissingExtraError as error:
            undecided = replace(verdict, outcome="undecided", by="refinements", says=error.problem, evidence=str(error))
            return undecided, [], {}
        sizes = ", ".join(f"{role} {len(machine.states)}" for role, machine in machines.items())
        took_s = started.spent_s
        held = replace(verdict, outcome="holds", says=f"states: {sizes}", by="projection", seconds=took_s)
        return held, odd, machines

    def _explored(
        self,
        system: MixedChoice,
        name: str,
        machines: dict[str, Machine],
        deadline: Deadline,
        budget: Budget,
        facts: list[tuple[str, str]],
    ) -> list[Verdict]:
        started = Deadline()
        found = system.explore(machines, out_of_budget=_limit(deadline, budget))
        took = started.spent_s
        speed = f", {found.configurations / took:,.0f} a second" if found.configurations >= 10_000 else ""
        facts.append((f"{name}, explored", f"{found.configurations:,} configurations, {found.steps:,} steps{speed}"))
        verdicts = []
        mixes = any(machine.mixes for machine in machines.values())
        for question, (troubles, good) in _QUESTIONS.items():
            if question == "agreement" and not mixes:
                continue
            verdicts.append(self._verdict(f"{name}: {question}", troubles, good, found, took))
        return verdicts

    def _verdict(
        self, name: str, troubles: tuple[Trouble, ...], good: str, found: Exploration, took_s: float
    ) -> Verdict:
        by = f"all interleavings, queues of {self.queue_bound}"
        bad = [each for each in found.findings if each.trouble in troubles]
        outcome: Outcome = "holds"
        says, evidence = good, ""
        if bad:
            outcome, says = "violated", f"{bad[0].trouble}: {bad[0].says}"
            evidence = "\n\n".join(f"{each.trouble}: {each.says}\n{each.chart}" for each in bad)
        elif not found.complete or found.blocked_by_bound:
            why = found.stopped or "some runs end only because the queues are full; raise queue_bound"
            outcome, says = "undecided", f"nothing found in {found.configurations:,} configurations ({why})"
        return Verdict(name=name, outcome=outcome, says=says, by=by, seconds=took_s, evidence=evidence)


def _limit(deadline: Deadline, budget: Budget) -> Callable[[int], str]:
    held_before_bytes = resident_bytes()

    def out_of_budget(_configurations: int) -> str:
        if deadline.left_s < 0:
            return f"{budget.seconds:g} s"
        return f"{budget.memory_bytes} bytes" if resident_bytes() - held_before_bytes > budget.memory_bytes else ""

    return out_of_budget
