"""Study ``rl-tenants``: what many tasks of reinforcement learning take on one set of accelerators."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import device, model
from wavetank.settings import setting
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.tenants.adapter_costs import FITTED_PERMILLE
from wavetank.training.tenants.interface import PS, Machine, Rules, Tenancy, Tenants, check_rules, utilisation
from wavetank.training.tenants.simulate import simulate
from wavetank.training.tenants.workload import draw

_ADAPTER_BYTES = 83_886_080  # rank 16 on all linear layers of Llama-3.1-8B, bf16
_LINK_BYTES_PER_S = 20e9
_PEAK_SHARE = 0.35
_UNLIMITED = 1 << 60
_H = 3600.0


@dataclass(frozen=True, kw_only=True)
class RLTenants(Study):
    """Tasks of 50 to 100 % as many updates each, with answers of one to ten turns and a tool after every turn, share
    the accelerators that generate and those that train.  They differ in how long their turns are and how long their
    tools take.  All ways to serve them get the same answers with the same delays.  Sweeps have fewer updates a task.
    """

    name: ClassVar[str] = "rl-tenants"
    baseline: ClassVar[str] = "one-by-one"
    primary: ClassVar[str] = "time_h"
    secondary: ClassVar[tuple[str, ...]] = ("utilisation", "mean_done_h")
    must_be_zero: ClassVar[tuple[str, ...]] = ("too_old",)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("time_h", "h", "lower", "simulated", "until the last task has its last update", words="time"),
        Metric("utilisation", "", "higher", "simulated",
               "busy time of the generating and of the training engine over the time of the run, weighted by their "
               "accelerators"),
        Metric("mean_done_h", "h", "lower", "simulated", "until a task is done, mean over the tasks",
               words="time until a task is done"),
        Metric("busy_h", "h", "lower", "simulated", "busy time of both engines, by accelerator; less where a batch is "
               "shared", words="busy accelerator time"),
        Metric("adapters", "", "", "simulated", "distinct adapters in a batch, mean over the steps of the engine"),
        Metric("stale_updates", "updates", "lower", "simulated", "age of an answer that is trained on, mean",
               words="age of answers"),
        Metric("too_old", "", "lower", "simulated", "answers trained on that are older than the rules allow",
               words="answers that are too old"),
        Metric("time_by_delay_h", "h", "lower", "simulated", "time where all tools have this median delay, s",
               table=False, words="time"),
        Metric("time_alone_by_delay_h", "h", "lower", "simulated",
               "time of one task alone whose tools have this median delay, s", table=False, words="time of one task"),
        Metric("time_by_tasks_h", "h", "lower", "simulated", "time by number of tasks", table=False, words="time"),
        Metric("time_by_ratio_h", "h", "lower", "simulated",
               "time by accelerators that generate over those that train, whose number stays", table=False,
               words="time"),
        Metric("time_by_heterogeneity_h", "h", "lower", "simulated",
               "time by longest over shortest turns of a task", table=False, words="time"),
        Metric("time_by_adapter_cost_h", "h", "lower", "simulated",
               "time by what a further adapter adds to a step, in thousandths", table=False, words="time"),
        Metric("time_by_most_adapters_h", "h", "lower", "simulated",
               "time by distinct adapters that a batch may hold, of all that mix any number", table=False,
               words="time"),
        Metric("time_by_kv_h", "h", "lower", "simulated",
               "time by what a token that is held adds to a step, ns", table=False, words="time"),
        Metric("utilisation_by_kv", "", "higher", "simulated",
               "utilisation by what a token that is held adds to a step, ns", table=False, words="utilisation"),
        Metric("utilisation_by_ratio", "", "higher", "simulated",
               "utilisation by accelerators that generate over those that train, whose number stays", table=False,
               words="utilisation"),
        Metric("utilisation_by_delay", "", "higher", "simulated",
               "utilisation where all tools have this median delay, s", table=False, words="utilisation"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Time for all tasks", y="time_h", says="Shorter is better."),
        Chart("sweep", "By the delay of tools", y="time_by_delay_h", by="delay_s", log="y",
              says="Without delays what is left is the batch that tasks share, and training beside generating."),
        Chart("sweep", "By number of tasks", y="time_by_tasks_h", by="tasks", log="xy",
              says="What one task more costs; one by one it is always as much."),
        Chart("sweep", "By the cost of adapters", y="time_by_adapter_cost_h", by="permille",
              says="What a further adapter adds to a step of the engine, in thousandths."),
    )  # fmt: skip

    tasks: int = setting(32, unit="tasks", says="Tasks", low=1, high=256)
    updates: int = setting(30, unit="updates", says="Most updates of a task", low=1, high=10_000)
    sweep_updates: int = setting(3, unit="updates", says="Most updates of a task in the sweeps", low=1, high=10_000)
    groups: int = setting(16, says="Groups of an update", low=1, high=1024)
    group: int = setting(8, says="Answers of a group", low=2, high=1024)
    turns: int = setting(10, unit="turns", says="Most turns of an answer", low=1, high=1000)
    turn_tokens: float = setting(
        200.0, unit="tokens", says="Median of a turn, of a task of length 1", low=1.0, high=4096.0
    )
    prompt_tokens: float = setting(1000.0, unit="tokens", says="Median of a prompt", low=1.0, high=8192.0)
    heterogeneity: float = setting(8.0, says="Longest over shortest turns of a task", low=1.0, high=64.0)
    shortest_delay_s: float = setting(
        0.1, unit="s", says="Shortest median delay of a task's tools", low=0.0, high=3600.0
    )
    longest_delay_s: float = setting(
        30.0, unit="s", says="Longest median delay of a task's tools", low=0.0, high=3600.0
    )
    sigma: float = setting(1.0, says="Standard deviation of the logarithm of delays", low=0.0, high=3.0)
    tools: int = setting(64, unit="workers", says="Tools of a task that run at the same time", low=1, high=4096)
    generating: float = setting(4.0, unit="GPUs", says="Accelerators that generate", low=0.1, high=1024.0)
    training: float = setting(4.0, unit="GPUs", says="Accelerators that train", low=0.1, high=1024.0)
    adapter_permille: int = setting(
        FITTED_PERMILLE, says="What a further adapter adds to a step of the engine, in thousandths", low=0, high=1000
    )
    kv_ns: int = setting(
        400, unit="ns", says="What a token that is held adds to a step of one accelerator", low=0, high=100_000
    )
    prefixes: str = setting(
        "kept", says="What answers hold while tools work: kept in no place, or read anew", choices=("kept", "read")
    )
    model: str = setting("Llama-3.1-8B", says="Model")
    device: str = setting("H100-SXM", says="Device")
    delays_s: tuple[float, ...] = setting(
        (0.0, 0.3, 1.0, 3.0, 10.0, 30.0), unit="s", says="Delays of the sweep", low=0.0, high=3600.0
    )
    numbers: tuple[int, ...] = setting((1, 2, 4, 8, 16, 32), says="Numbers of tasks of the sweep", low=1, high=256)
    ratios: tuple[float, ...] = setting((1.0, 4.0, 8.0), says="Generating over training accelerators, of the sweep",
                                        low=0.01, high=100.0)  # fmt: skip
    spreads: tuple[float, ...] = setting((1.0, 8.0), says="Longest over shortest turns, of the sweep", low=1.0,
                                         high=64.0)  # fmt: skip
    most_adapters: tuple[int, ...] = setting((2, 4, 8), says="Most adapters of a batch, of the sweep", low=1, high=256)
    kvs_ns: tuple[int, ...] = setting((40, 400), unit="ns", says="Costs of tokens that are held, of the sweep", low=0,
                                      high=100_000)  # fmt: skip
    permilles: tuple[int, ...] = setting((0, 10, 50), says="Costs of adapters of the sweep, in thousandths", low=0,
                                         high=1000)  # fmt: skip

    def check(self) -> None:
        """Refuse models and devices that there are not, and delays that are out of order."""
        self.machine()
        if not 0 <= self.shortest_delay_s <= self.longest_delay_s or self.shortest_delay_s == 0 < self.longest_delay_s:
            raise BadValueError(
                "These are no delays.", given=f"{self.shortest_delay_s:g} to {self.longest_delay_s:g} s",
                allowed="shortest_delay_s above 0 and at most longest_delay_s, or both equal",
                where=f"study {self.name}",
            )  # fmt: skip

    def machine(self) -> Machine:
        """Return the accelerators, with the constants of the study."""
        weights = model(self.model)
        gpu = device(self.device)
        train_token_ps = 3 * 6 * weights.parameters / (_PEAK_SHARE * gpu.bf16_flops_per_s) * PS
        # Nine tenths of the memory, less the weights and an adapter for each task, hold keys and values.
        free_bytes = 0.9 * gpu.memory_bytes - 2 * weights.parameters - self.tasks * _ADAPTER_BYTES
        if free_bytes < weights.kv_bytes_per_token:
            raise BadValueError("The model does not fit on the device.", given=f"{self.model} on {self.device}",
                                where=f"study {self.name}")  # fmt: skip
        return Machine(
            generating=self.generating, training=self.training, kv_ns=self.kv_ns,
            adapter_permille=self.adapter_permille, load_ps=round(_ADAPTER_BYTES / _LINK_BYTES_PER_S * PS),
            train_token_ps=round(train_token_ps), kv_tokens=int(free_bytes / weights.kv_bytes_per_token),
            # A forward pass, where training counts three, each with a backward pass of twice the work.
            read_token_ps=round(train_token_ps / 9) if self.prefixes == "read" else 0,
        )  # fmt: skip

    def workload(self, seed: int) -> Tenants:
        """Return the tasks of a seed.

        Parameters
        ----------
        seed : int
        """
        return draw(
            seed, tasks=self.tasks, updates=self.updates, groups=self.groups, group=self.group, turns=self.turns,
            turn_tokens=self.turn_tokens, prompt_tokens=self.prompt_tokens, heterogeneity=self.heterogeneity,
            delays_s=(self.shortest_delay_s, self.longest_delay_s), sigma=self.sigma, tools=self.tools,
            kv_quota=_UNLIMITED,
        )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            f"{self.model} on {self.generating:g} + {self.training:g} {self.device}; a step of the generating engine "
            f"takes 20 ms, 0.1 ms for an answer and {self.kv_ns} ns for a token that it holds, which are assumed; the "
            "cost of further adapters is fitted to recorded runs.",
            "Tools' answers are read in no time. What an answer holds while its tool works "
            + ("is kept in no place that counts" if self.prefixes == "kept" else "is read anew at every turn")
            + ", for all alike.",
        )

    def measure(self, system: Tenancy, seed: int) -> Measurements:
        """Serve the tasks of a seed, and those of the sweeps."""
        found = Measurements()
        rules = system.rules()
        known: dict[tuple[RLTenants, Rules], tuple[float, float]] = {}

        def served(study: RLTenants, by: Rules = rules) -> tuple[float, float]:
            # Sweeps meet in the setting that all of them leave as it is.
            if (study, by) not in known:
                known[study, by] = study.served(by, seed)
            return known[study, by]

        check_rules(rules)
        machine, tenants = self.machine(), self.workload(seed)
        run = simulate(tenants, machine, rules)
        found.put("time_h", run.time_ps / PS / _H)
        found.put("utilisation", utilisation(run, machine))
        found.put("mean_done_h", sum(run.done_ps) / len(run.done_ps) / PS / _H)
        found.put("busy_h", utilisation(run, machine) * machine.accelerators * run.time_ps / PS / _H)
        found.put("adapters", run.adapters)
        found.put("stale_updates", sum(age * many for age, many in enumerate(run.stale)) / sum(run.stale))
        found.put("too_old", sum(run.stale[rules.s_max + 1 :]) + abs(sum(run.stale) - len(tenants.prompt_tokens)))
        short = dataclasses.replace(self, updates=self.sweep_updates)
        for delay_s in self.delays_s:
            each = dataclasses.replace(short, shortest_delay_s=delay_s, longest_delay_s=delay_s)
            time_h, busy = served(each)
            found.put("time_by_delay_h", time_h, delay_s=delay_s)
            found.put("utilisation_by_delay", busy, delay_s=delay_s)
            alone = dataclasses.replace(each, tasks=1)
            found.put("time_alone_by_delay_h", served(alone)[0], delay_s=delay_s)
        for tasks in self.numbers:
            each = dataclasses.replace(short, tasks=tasks)
            found.put("time_by_tasks_h", served(each)[0], tasks=tasks)
        for ratio in self.ratios:
            each = dataclasses.replace(short, generating=self.training * ratio)
            time_h, busy = served(each)
            found.put("time_by_ratio_h", time_h, ratio=ratio)
            found.put("utilisation_by_ratio", busy, ratio=ratio)
        for spread in self.spreads:
            each = dataclasses.replace(short, heterogeneity=spread)
            found.put("time_by_heterogeneity_h", served(each)[0], heterogeneity=spread)
        for most in self.most_adapters:
            capped = rules if rules.adapters else rules._replace(adapters=most)
            found.put("time_by_most_adapters_h", served(short, capped)[0], most=most)
        for kv_ns in self.kvs_ns:
            each = dataclasses.replace(short, kv_ns=kv_ns)
            time_h, busy = served(each)
            found.put("time_by_kv_h", time_h, kv_ns=kv_ns)
            found.put("utilisation_by_kv", busy, kv_ns=kv_ns)
        for permille in self.permilles:
            each = dataclasses.replace(short, adapter_permille=permille)
            found.put("time_by_adapter_cost_h", served(each)[0], permille=permille)
        return found

    def served(self, rules: Rules, seed: int) -> tuple[float, float]:
        """Return the time of a run, h, and its utilisation.

        Parameters
        ----------
        rules : Rules
        seed : int
        """
        machine = self.machine()
        run = simulate(self.workload(seed), machine, rules)
        return run.time_ps / PS / _H, utilisation(run, machine)
