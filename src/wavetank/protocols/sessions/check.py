"""``wavetank check`` for session protocols: well-formed, projectable, and able to go on in every interleaving."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wavetank.errors import BadFileError, MissingExtraError, nearest_of
from wavetank.protocols.checking import Budget, CheckReport, Outcome, Verdict
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
    "progress": (("deadlock",), "whoever waits can get on"),
    "messages": (("reception error", "orphan message"), "every message is taken, or dropped as stale"),
    "agreement": (("no agreement",), "all roles can always end on one side of every mix"),
}


@dataclass(frozen=True, kw_only=True)
class SessionCheck:
    """Checks every protocol of a file: its rules, its projection, and all interleavings within a bound on queues."""

    protocol: str = setting("", says="the protocol to check; all of the file when empty")
    role: str = setting("", says="print the local type of this role")
    queue_bound: int = setting(2, unit="messages", says="length of the queue between two roles", low=1, high=16)
    drop_stale: bool = setting(True, says="the stale-message rule; false shows what goes wrong without it")
    reach_rule: bool = setting(True, says="rule (a) of a mix, everyone is told; false shows what goes wrong without it")
    unfold: bool = setting(False, says="merge a loop with what is no loop by unfolding it once (nuScr refuses that)")

    def check(self, path: Path, budget: Budget) -> CheckReport:
        """Read a protocol file and answer for each protocol in it.

        Raises
        ------
        BadFileError
            For a file that breaks the grammar, with line and column.
        IllFormedError
            When the named protocol or role does not exist.
        """
        deadline = time.monotonic() + budget.seconds
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
            started = time.monotonic()
            machines: dict[str, Machine] = {}
            odd: list[str] = []
            try:
                if isinstance(outcome, IllFormedError):
                    raise outcome
                odd, machines = self._projected(system, outcome, module)
            except IllFormedError as error:
                verdicts.append(
                    Verdict(
                        name=f"{name}: well-formed",
                        outcome="violated",
                        says=error.problem,
                        by=error.rule or "rules",
                        seconds=time.monotonic() - started,
                        evidence=str(error),
                    )
                )
                continue
            except MissingExtraError as error:
                verdicts.append(
                    Verdict(
                        name=f"{name}: well-formed",
                        outcome="undecided",
                        says=error.problem,
                        by="refinements",
                        evidence=str(error),
                    )
                )
                continue
            sizes = ", ".join(f"{role} {len(machine.states)}" for role, machine in machines.items())
            verdicts.append(
                Verdict(
                    name=f"{name}: well-formed",
                    outcome="holds",
                    says=f"states: {sizes}",
                    by="projection",
                    seconds=time.monotonic() - started,
                )
            )
            facts += [("odd", each) for each in odd if ("odd", each) not in facts]
            if self.role in machines:
                facts += [(f"{name}, {self.role}", line) for line in machines[self.role].local_type().splitlines()]
            if name in auxiliary and not self.protocol:
                continue
            verdicts += self._explored(system, name, machines, deadline, budget, facts)
        return CheckReport(subject=module.path, kind="session", facts=tuple(facts), verdicts=tuple(verdicts))

    def _system(self) -> MixedChoice:
        return MixedChoice(queue_bound=self.queue_bound, drop_stale=self.drop_stale, reach_rule=self.reach_rule)

    @staticmethod
    def _projected(system: MixedChoice, protocol: GlobalType, module: Module) -> tuple[list[str], dict[str, Machine]]:
        odd = check_well_formed(protocol, system.rules())
        check_refinements(protocol, module)
        return odd, system.machines(protocol)

    def _explored(
        self,
        system: MixedChoice,
        name: str,
        machines: dict[str, Machine],
        deadline: float,
        budget: Budget,
        facts: list[tuple[str, str]],
    ) -> list[Verdict]:
        started = time.monotonic()
        found = system.explore(machines, out_of_budget=_limit(deadline, budget))
        took = time.monotonic() - started
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


def _limit(deadline: float, budget: Budget) -> Callable[[int], str]:
    held_before_bytes = _resident_bytes()

    def out_of_budget(_configurations: int) -> str:
        if time.monotonic() > deadline:
            return f"{budget.seconds:g} s"
        return f"{budget.memory_bytes} bytes" if _resident_bytes() - held_before_bytes > budget.memory_bytes else ""

    return out_of_budget


def _resident_bytes() -> int:
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    except (OSError, ImportError, ValueError):
        return 0
