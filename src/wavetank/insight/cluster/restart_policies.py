"""What to do after a breakdown: exclude who is probably to blame, wait longer each time, and know when to call a human.

A node that was named once may be innocent; one that is named again after a restart is hardly, and one that was to blame
before needs no second time.  The suspect policy keeps a beta-binomial count for each node (in how many chains it was
taken out, of how many), weighs it with how often monitoring has named the node in this chain, and takes it out when it
is to blame with more than even odds.  The rivals restart by hand, at once, or always exclude.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavetank.insight.cluster.incidents import Failed, Operator, Restart
from wavetank.settings import check_ranges, setting

_SURE = 0.999


@dataclass(frozen=True, kw_only=True)
class RestartByHand:
    """A human restarts the job as it was; if it fails again, a human looks for the cause."""

    tries: int = setting(1, says="Restarts before the cause is looked for", low=1, high=100)

    def __post_init__(self) -> None:
        check_ranges(self)

    def begin(self, nodes: int) -> Operator:
        """Return itself: nothing is remembered.

        Parameters
        ----------
        nodes : int
        """
        return self

    def decide(self, failed: Failed) -> Restart:
        """Return a restart by hand.

        Parameters
        ----------
        failed : Failed
        """
        return Restart(call=True) if failed.attempt >= self.tries else Restart(by_hand=True)


@dataclass(frozen=True, kw_only=True)
class RestartAtOnce:
    """The job restarts by itself on the same nodes, at a fixed pace, until it runs or a cap is reached."""

    wait_s: float = setting(300.0, unit="s", says="Wait before a restart, but the first", low=0, high=1e6)
    tries: int = setting(7, says="Restarts before a human is called", low=1, high=100)

    def __post_init__(self) -> None:
        check_ranges(self)

    def begin(self, nodes: int) -> Operator:
        """Return itself: nothing is remembered.

        Parameters
        ----------
        nodes : int
        """
        return self

    def decide(self, failed: Failed) -> Restart:
        """Return a restart, or a call.

        Parameters
        ----------
        failed : Failed
        """
        if failed.attempt >= self.tries:
            return Restart(call=True)
        return Restart(wait_s=self.wait_s if failed.attempt else 0.0, exclude=self.excluded(failed))

    def excluded(self, failed: Failed) -> tuple[int, ...]:
        """Return who is taken out: nobody.

        Parameters
        ----------
        failed : Failed
        """
        return ()


@dataclass(frozen=True, kw_only=True)
class AlwaysExclude(RestartAtOnce):
    """As :class:`RestartAtOnce`, and whom monitoring names first is taken out each time."""

    def excluded(self, failed: Failed) -> tuple[int, ...]:
        """Return the first suspect.

        Parameters
        ----------
        failed : Failed
        """
        return failed.suspects[:1]


@dataclass(frozen=True, kw_only=True)
class SuspectRestart:
    """Excludes a suspect that is to blame with more than even odds, and waits longer each time.

    A human is called when failures go on and nobody new is suspect.
    """

    sensitivity: float = setting(0.9, says="Assumed probability that monitoring names the bad node", low=0.01,
                                 high=0.999)  # fmt: skip
    innocent: float = setting(0.5, says="Assumed probability that it names an innocent one", low=0.001, high=1.0)
    node_share: float = setting(0.33, says="Assumed share of breakdowns that a node is to blame for", low=0.001,
                                high=0.999)  # fmt: skip
    prior_chains: float = setting(10.0, says="Chains that the prior of a node counts as", low=0.1, high=1e6)
    odds: float = setting(0.5, says="Probability from which a node is taken out", low=0.01, high=0.999)
    wait_s: float = setting(150.0, unit="s", says="Wait before the second restart; doubled each time", low=0, high=1e6)
    longest_s: float = setting(1800.0, unit="s", says="Longest wait", low=0, high=1e6)
    unchanged: int = setting(5, says="Failures with the same suspects after which a human is called", low=1, high=100)
    tries: int = setting(10, says="Restarts before a human is called in any case", low=1, high=100)

    def __post_init__(self) -> None:
        check_ranges(self)

    def begin(self, nodes: int) -> SuspectMemory:
        """Return an operator that remembers what nodes were blamed for.

        Parameters
        ----------
        nodes : int
        """
        return SuspectMemory(self, nodes)


class SuspectMemory:
    """The suspect policy at work: what it has learned of nodes, and of the chain at hand.

    Parameters
    ----------
    policy : SuspectRestart
    nodes : int
        Of the cluster.
    """

    def __init__(self, policy: SuspectRestart, nodes: int) -> None:
        self.policy, self.nodes = policy, nodes
        self.blamed: dict[int, int] = {}
        self.chains, self.chain = 0, -1
        self.named: dict[int, int] = {}
        self.out: set[int] = set()
        self.unchanged = 0

    def decide(self, failed: Failed) -> Restart:
        """Return a restart, perhaps without some nodes, or a call.

        Parameters
        ----------
        failed : Failed
        """
        policy = self.policy
        if failed.chain != self.chain:
            self.chain, self.named, self.out, self.unchanged = failed.chain, {}, set(), 0
            self.chains += 1
        for node in failed.suspects:
            self.named[node] = self.named.get(node, 0) + 1
        chances = {node: self.blame(node, failed.attempt + 1) for node in self.named if node not in self.out}
        excluded = tuple(sorted(node for node, chance in chances.items() if chance > policy.odds))
        self.unchanged = 0 if excluded else self.unchanged + 1
        for node in excluded:
            self.out.add(node)
            self.blamed[node] = self.blamed.get(node, 0) + 1
        if failed.attempt >= policy.tries or self.unchanged > policy.unchanged:
            return Restart(call=True)
        back_off_s = min(policy.wait_s * 2.0 ** (self.unchanged - 2), policy.longest_s) if self.unchanged > 1 else 0.0
        return Restart(wait_s=back_off_s, exclude=excluded)

    def blame(self, node: int, failures: int) -> float:
        """Return the probability that a node is to blame for the chain at hand.

        Parameters
        ----------
        node : int
        failures : int
            Of this chain so far.
        """
        policy, named = self.policy, self.named.get(node, 0)
        # Beta-binomial: a prior of an even share of the blame, and the chains seen since.
        seen = policy.prior_chains + max(0, self.chains - 1)
        prior = (policy.prior_chains * policy.node_share / self.nodes + self.blamed.get(node, 0)) / seen
        prior = min(prior, _SURE)
        wrongly = min(policy.innocent / self.nodes, _SURE)
        missed = failures - named
        guilty = math.log(prior) + named * math.log(policy.sensitivity) + missed * math.log1p(-policy.sensitivity)
        clean = math.log1p(-prior) + named * math.log(wrongly) + missed * math.log1p(-wrongly)
        return 1 / (1 + math.exp(min(clean - guilty, 700.0)))
