"""Study ``file-sync``: what file synchronisers lose, tear and cost, simulated or on real directories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from wavetank.errors import BadValueError
from wavetank.protocols.filesync.flaps import beliefs_by_timeout, beliefs_by_token, flapping
from wavetank.protocols.filesync.simulated import network_of, run_simulated
from wavetank.protocols.filesync.workloads import WORKLOADS, Scenario
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study

LIVES = ("simulated", "real")
# Programs take the time they take: a round must be long against a git command.
_ROUND_S = 0.2
_FLAPPING_ROUNDS = 2000.0


@dataclass(frozen=True, kw_only=True)
class FileSync(Study):
    """People work on several devices that are cut off now and then and whose clocks are off.  What programs wrote, and
    what they saw when they did, is the truth; one account of losses serves every engine.
    """

    name = "file-sync"
    baseline = "timeline-sync"
    primary = "torn_groups_per_look"
    secondary = ("bytes_per_write", "divergence_bytes", "round_trips_per_write")
    must_be_zero = ("silent_losses_per_10k_writes",)
    metrics = (
        Metric(
            "silent_losses_per_10k_writes", "", "lower", "counted",
            "versions without a visible descendant that no user who saw them removed and for whose path "
            "no device reported anything, per 10^4 files written (in real runs: documents written and "
            "commits made, and all lost commits count as reported when any device reported a conflict "
            "of branches)", words="silent losses",
        ),
        Metric("lost_updates", "", "lower", "counted", "such versions, reported or not"),
        Metric(
            "torn_groups_per_look", "", "lower", "counted",
            "groups whose files do not fit together, per look of a reader: a branch or index without "
            "its objects, an index that is not the commit's, a package without its parts, an output "
            "that counts as fresh although it is stale; in real runs failures of git fsck, per run of "
            "it",
        ),
        Metric("torn_groups_at_end", "", "lower", "counted", "groups that are torn after all activity has ended, "
                                                             "each counted once"),
        Metric(
            "resurrected_deletes", "", "lower", "counted",
            "paths that hold, at the end, a version that a user who had seen it removed and no user wrote again",
        ),
        Metric(
            "divergence_bytes", "bytes", "lower", "counted",
            "files that differ between devices at the end, the largest version of each", words="diverged bytes",
        ),
        Metric(
            "failed_restores", "", "lower", "counted",
            "share of backups that lack the content of a file or hold a torn group; NaN without "
            "backups, and in real runs",
        ),
        Metric(
            "conflict_copies", "", "", "counted",
            "conflict copies at the end, under a name that identifies them",
        ),
        Metric("bytes_per_write", "bytes", "lower", "counted", "bytes of all messages, both ways, per file written"),
        Metric(
            "round_trips_per_write", "", "lower", "counted", "half of all messages, both ways, per file written"
        ),
        Metric(
            "wrong_link_beliefs", "", "lower", "counted",
            "share of instants at which a node's claim about a flapping link is wrong; engines differ "
            "in their method: by heartbeats and silence, or by the state of the link's token", table=False,
        ),
        Metric("refused", "", "lower", "counted", "times that a program stopped with an error message", table=False),
        Metric("writes", "", "", "counted", "files written (in real runs: documents and commits)", table=False),
        Metric(
            "rest_s", "s", "lower", "measured", "wall time from the last change to the end of all activity; in "
                                                "real runs only", table=False
        ),
    )  # fmt: skip
    charts = (
        Chart("bars", "Writes lost silently", y="silent_losses_per_10k_writes",
              says="Shorter is better; snapshots promise no lost writes at all."),
        Chart("bars", "Groups found torn", y="torn_groups_per_look",
              says="Conflict copies do not help here: only sending closed sets does."),
        Chart("pareto", "Cost", x="bytes_per_write", y="torn_groups_per_look",
              says="Left is cheaper, below is safer."),
    )  # fmt: skip

    life: str = setting("simulated", choices=LIVES, says="Events in memory, or processes on real directories with git")
    work: str = setting("mixed", choices=WORKLOADS, says="Work that the users do")
    devices: int = setting(3, low=1, high=64, says="Devices in addition to the cloud; peers need 2")
    rounds: float = setting(
        900.0, unit="rounds", low=1, high=1e6, says="Duration of the users' work; a round is a second"
    )
    cuts: int = setting(6, low=0, high=1000, says="How often a device is cut off")
    cut_rounds: float = setting(60.0, unit="rounds", low=0, says="Duration of each cut")
    skew_rounds: float = setting(2.0, unit="rounds", low=0, says="Standard deviation of clock offsets")
    drop: float = setting(0.01, low=0, high=0.9, says="Probability that a message is lost")
    delay_rounds: float = setting(
        0.05, unit="rounds", low=0.001, high=100, says="Least delay; delays reach four times this value"
    )
    files: int = setting(24, low=1, high=100_000, says="Documents, and sources of the build folder")
    disk_bytes: float = setting(0.0, unit="bytes", low=0, says="Capacity of a device; 0 for enough (simulated only)")
    flap_rounds: float = setting(3.0, unit="rounds", low=0.1, says="Mean time between changes of a flapping link")

    def check(self) -> None:
        """Refuse cuts that are longer than the work."""
        if self.cuts and self.cut_rounds > self.rounds:
            raise BadValueError(
                "A cut is longer than the users' work.",
                given=self.cut_rounds,
                allowed=f"up to {self.rounds}",
                where="cut_rounds",
            )

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        general = (
            "timeline-sync is a model of documented behaviour of services like iCloud Drive; no such service was run.",
            "Documents that are folders travel as one item in every engine, and coordinated writes are respected.",
            "timeline-sync-careful takes whatever was made from the current version and keeps every loser as a copy.",
        )
        if self.life == "simulated":
            return general
        return (
            *general,
            f"Real runs: a round is {_ROUND_S} s, work is documents and git; the seed draws what people do, but what "
            "meets depends on the machine, so counts differ from run to run.",
            "Peers end a synchronisation before every action, unless cut off: nobody meets an old or half-way state.",
            "A look is git fsck, repeated where files changed while git looked: what it missed may never have been so.",
        )

    def scenario(self) -> Scenario:
        """Return people, devices, clocks and cuts."""
        return Scenario(
            work=self.work, devices=self.devices, rounds=self.rounds, cuts=self.cuts, cut_rounds=self.cut_rounds,
            skew_rounds=self.skew_rounds, files=self.files,
        )  # fmt: skip

    def measure(self, system: Any, seed: int) -> Measurements:
        """Run one engine through the scenario and count."""
        found = self._real(system, seed) if self.life == "real" else self._simulated(system, seed)
        believes_by = getattr(system, "believes_by", "")
        if believes_by:
            link = flapping(self.flap_rounds, _FLAPPING_ROUNDS, seed)
            beliefs = beliefs_by_token(link) if believes_by == "token" else beliefs_by_timeout(link)
            found.put("wrong_link_beliefs", beliefs.wrong_share)
        return found

    def _simulated(self, system: Any, seed: int) -> Measurements:
        if not hasattr(system, "node"):
            raise BadValueError(
                "This peer is a program: it cannot be simulated.",
                given=type(system).__name__,
                hint="--set life=real --set devices=2",
            )
        outcome = run_simulated(
            system,
            self.scenario(),
            seed,
            drop=self.drop,
            delay_rounds=self.delay_rounds,
            disk_bytes=self.disk_bytes or math.inf,
        )
        damage = outcome.damage
        writes = max(damage.writes, 1)
        return Measurements(
            {
                "silent_losses_per_10k_writes": 1e4 * len(damage.silent) / writes,
                "lost_updates": len(damage.lost),
                "torn_groups_per_look": damage.torn / max(damage.looks, 1),
                "torn_groups_at_end": len(damage.torn_at_end),
                "resurrected_deletes": len(damage.resurrected),
                "divergence_bytes": damage.divergence_bytes,
                "failed_restores": damage.failed_restores / damage.backups if damage.backups else math.nan,
                "conflict_copies": damage.conflict_copies,
                "bytes_per_write": outcome.bytes_sent / writes,
                "round_trips_per_write": outcome.messages / 2 / writes,
                "refused": outcome.refused,
                "writes": damage.writes,
            }
        )

    def _real(self, system: Any, seed: int) -> Measurements:
        from wavetank.protocols.filesync.live.real import run_beside, run_real

        scenario = self.scenario()
        if hasattr(system, "node"):
            # Over TCP nothing is lost but what a cut takes.
            network = network_of(scenario, seed, delay_rounds=self.delay_rounds)
            outcome = run_real(system, scenario, seed, network, round_s=_ROUND_S)
        else:
            outcome = run_beside(system, scenario, seed)
        damage = outcome.damage
        writes = max(damage.writes + outcome.commits, 1)
        found = Measurements(
            {
                "silent_losses_per_10k_writes": 1e4 * (len(damage.silent) + outcome.silent_commits) / writes,
                "lost_updates": len(damage.lost) + outcome.lost_commits,
                "torn_groups_per_look": outcome.fsck_failures / max(outcome.fsck_runs, 1),
                "torn_groups_at_end": outcome.unsound_at_end,
                "resurrected_deletes": len(damage.resurrected),
                "divergence_bytes": damage.divergence_bytes,
                "conflict_copies": damage.conflict_copies,
                "refused": outcome.refused,
                "writes": damage.writes + outcome.commits,
                "rest_s": outcome.rest_s,
            }
        )
        if outcome.bytes_sent is not None and outcome.messages is not None:
            found.put("bytes_per_write", outcome.bytes_sent / writes)
            found.put("round_trips_per_write", outcome.messages / 2 / writes)
        return found
