"""The service: bit for bit the plain trainer, and whatever one tenant does, the others' numbers stay the same."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.training.tenants.checkpoints import checkpoint_path, load_adapter
from wavetank.training.tenants.interface import Rules
from wavetank.training.tenants.policy import INPUTS, Base, new_adapter
from wavetank.training.tenants.service import Quota, Reply, TenantFailedError, TenantService, TenantTask
from wavetank.training.tenants.synchronous import train_alone
from wavetank.training.tenants.toys import Arithmetic, Bandit, Grid

BASE = Base(1)
ON_POLICY = (Rules(), Rules(at_once=1), Rules(barrier=True), Rules(adapters=1), Rules(at_once=2, adapters=1))


def task(name="good", environment=None, **more):
    words = {"updates": 3, "groups": 2, "group": 4, "seed": 5, "tool_timeout_s": 5.0}
    return TenantTask(name=name, environment=environment or Grid(secret=3), **{**words, **more})


def three(**more):
    return [
        task("walk", Grid(secret=1, delay_s=0.0005), seed=1, **more),
        task("sum", Arithmetic(secret=2, delay_s=0.0005), seed=2, **more),
        task("question", Bandit(secret=3, delay_s=0.0005), seed=3, **more),
    ]


async def served(tasks, *, also=(), timeout_s=60.0, **words):
    """Return the results of good tasks, served beside others that may fail; nothing is left running."""
    before = asyncio.all_tasks()
    async with asyncio.timeout(timeout_s):
        async with TenantService(BASE, audit=True, **words) as service:
            others = [service.submit(each) for each in also]
            for other, each in zip(others, also, strict=True):
                getattr(each.environment, "meet", lambda tenant: None)(other)
            tenants = [service.submit(each) for each in tasks]
            results = [await tenant.result() for tenant in tenants]
            failed = [await asyncio.gather(other.result(), return_exceptions=True) for other in others]
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert service.foreign_changes == 0
    return results, [each for (each,) in failed]


def serve(tasks, **words):
    return asyncio.run(served(tasks, **words))


def alone(given):
    return asyncio.run(train_alone(given, BASE))


@pytest.mark.parametrize("given", three(), ids=lambda each: each.name)
def test_one_task_without_old_answers_is_the_plain_trainer_bit_for_bit(given, tmp_path):
    seen = []

    async def watched():
        async with TenantService(BASE, rules=Rules(), checkpoints=tmp_path) as service:
            tenant = service.submit(given)
            seen.append(tenant.adapter.bytes())
            while not tenant.done:
                await asyncio.sleep(0)
                if tenant.adapter.bytes() != seen[-1]:
                    seen.append(tenant.adapter.bytes())
            return await tenant.result()

    result = asyncio.run(watched())
    expected = [each.bytes() for each in alone(given)]
    assert seen == expected
    assert result.stale == (24,)
    assert load_adapter(tmp_path, given.name).bytes() == expected[-1]


@pytest.mark.parametrize("rules", ON_POLICY)
def test_several_tasks_at_once_end_with_the_adapters_that_each_would_have_alone(rules):
    results, _ = serve(three(), rules=rules)
    for result, given in zip(results, three(), strict=True):
        assert result.adapter.bytes() == alone(given)[-1].bytes()


@pytest.mark.parametrize("s_max", [1, 2, 4])
def test_no_answer_is_older_than_allowed_and_all_are_trained_on(s_max):
    results, _ = serve(three(updates=8), rules=Rules(s_max=s_max))
    for result in results:
        assert len(result.stale) == s_max + 1
        assert sum(result.stale) == 8 * 2 * 4
        assert result.stale[0] < 64
        assert result.adapter.version == 8


class Exits:
    def __float__(self):
        raise SystemExit(3)


class Tool:
    """An environment of two moves that does something bad at one of its calls."""

    def __init__(self, at, bad):
        self.at, self.bad, self.calls, self.tenant = at, bad, 0, None
        self.observation = np.ones(INPUTS)

    def meet(self, tenant):
        self.tenant = tenant

    def begin(self, prompt, draws):
        if self.bad == "begin":
            raise ValueError("no beginning")
        if self.bad == "begin cancels":
            raise asyncio.CancelledError
        if self.bad == "begin exits":
            raise SystemExit(3)
        session = Tool(self.at, self.bad)
        session.root, session.moves = self, 0
        if self.bad == "observation":
            session.observation = np.ones(3)
        return session

    def act(self, action):
        if self.bad == "call cancels":
            raise asyncio.CancelledError
        return self._act(action)

    async def _act(self, action):
        root = self.root
        root.calls += 1
        self.moves += 1
        if root.at is None or root.calls == root.at or (root.at < 0 and root.calls >= -root.at):
            bad = self.bad
            if bad == "raise":
                raise RuntimeError("broken tool")
            if bad == "hang":
                await asyncio.sleep(3600)
            if bad == "stubborn":
                for _ in range(2):
                    try:
                        await asyncio.sleep(3600)
                    except asyncio.CancelledError:
                        continue
            if bad == "cancelled":
                raise asyncio.CancelledError
            if bad == "cancel tenant":
                root.tenant.cancel()
            if bad == "cancel self":
                asyncio.current_task().cancel()
                await asyncio.sleep(0)
            if bad == "nan":
                return Reply(self.observation, math.nan, True)
            if bad == "huge":
                return Reply(self.observation, 1.7e308 if root.calls % 2 else 1.6e308, True)
            if bad == "none":
                return None
            if bad == "exit":
                raise SystemExit(3)
            if bad == "number exits":
                return Reply(self.observation, Exits(), True)
            if bad == "endless":
                return Reply(self.observation, 0.0, False)
        await asyncio.sleep(0)
        return Reply(self.observation, float(action % 2), self.moves == 2)


BAD = (
    "raise", "hang", "stubborn", "cancelled", "cancel self", "nan", "none", "begin", "observation", "endless",
    "begin cancels", "begin exits", "call cancels", "exit", "number exits",
)  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_tenant_whose_tools_always_fail_fails_and_the_others_are_as_they_would_be(bad):
    broken = task("bad", Tool(None, bad), tool_timeout_s=0.02, most_turns=5, retries=1, most_bad_updates=1)
    results, (failure,) = serve(three(), also=[broken], rules=Rules())
    assert isinstance(failure, TenantFailedError)
    assert "Too many updates in a row" in str(failure)
    for result, given in zip(results, three(), strict=True):
        assert result.adapter.bytes() == alone(given)[-1].bytes()


def test_rewards_that_overflow_leave_the_adapter_as_it_is():
    broken = task("bad", Tool(None, "huge"), most_bad_updates=1, updates=4)
    results, (failure,) = serve(three(), also=[broken], rules=Rules())
    assert isinstance(failure, TenantFailedError)
    for result, given in zip(results, three(), strict=True):
        assert result.adapter.bytes() == alone(given)[-1].bytes()
    # With patience it ends, with the weights that it began with.
    (result,), _ = serve([task("bad", Tool(None, "huge"), most_bad_updates=100, updates=4)], rules=Rules())
    assert (result.bad_updates, result.adapter.version) == (4, 4)
    assert all((one == other).all() for one, other in zip(result.adapter.weights, new_adapter(5).weights, strict=True))


@pytest.mark.parametrize("bad", ["raise", "hang", "cancelled", "nan"])
def test_one_failure_is_tried_again_and_costs_nothing_else(bad):
    given = task("bad", Tool(3, bad), tool_timeout_s=0.05)
    (result,), _ = serve([given], rules=Rules())
    assert (result.again, result.dropped, result.bad_updates) == (1, 0, 0)
    (result,), _ = serve([task("bad", Tool(3, bad), tool_timeout_s=0.05, retries=0)], rules=Rules())
    assert (result.again, result.dropped, result.adapter.version) == (0, 1, 3)
    assert sum(result.stale) == 23


@pytest.mark.parametrize("rules", [Rules(), Rules(s_max=2), Rules(barrier=True), Rules(at_once=2)])
@pytest.mark.parametrize("at", [1, 2, 7, 8, 9, 16, 17, 24, 33, 40])
def test_a_tenant_may_cancel_itself_at_any_call(at, rules):
    broken = task("bad", Tool(at, "cancel tenant"))
    good = three()
    results, (failure,) = serve(good, also=[broken], rules=rules)
    assert "The tenant was cancelled." in str(failure)
    if rules.s_max == 0:
        for result, given in zip(results, good, strict=True):
            assert result.adapter.bytes() == alone(given)[-1].bytes()


@pytest.mark.parametrize("rules", [Rules(), Rules(s_max=1), Rules(barrier=True), Rules(at_once=1)])
def test_a_tenant_may_be_cancelled_after_any_number_of_turns_of_the_loop(rules):
    async def main(turns):
        async with TenantService(BASE, rules=rules) as service:
            gone, stays = service.submit(task("gone")), service.submit(task("stays", Bandit(secret=2)))
            for _ in range(turns):
                await asyncio.sleep(0)
            gone.cancel()
            gone.cancel()
            with pytest.raises(TenantFailedError, match="cancelled"):
                await gone.result()
            frozen = gone.adapter.bytes()
            result = await stays.result()
            assert gone.adapter.bytes() == frozen
            again = service.submit(task("gone", updates=1))
            await again.result()
            return result.adapter.bytes()

    expected = alone(task("stays", Bandit(secret=2)))[-1].bytes()
    for turns in (0, 1, 2, 3, 5, 8, 13, 21):
        found = asyncio.run(asyncio.wait_for(main(turns), 60))
        assert rules.s_max or found == expected


def test_who_stops_waiting_does_not_stop_the_training():
    async def main():
        async with TenantService(BASE, rules=Rules()) as service:
            tenant = service.submit(task())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(tenant.result(), 1e-4)
            return await tenant.result()

    assert asyncio.run(main()).adapter.bytes() == alone(task())[-1].bytes()


def test_quotas_hold_and_are_used():
    quota = Quota(tools=2, rows=3)
    (result,), _ = serve([task(environment=Grid(secret=1, delay_s=0.001), quota=quota)], rules=Rules())
    assert (result.most_tools, result.most_rows) == (2, 3)
    (result,), _ = serve([task(environment=Grid(secret=1, delay_s=0.001))], rules=Rules(), rows=5)
    assert result.most_rows == 5
    assert 2 < result.most_tools <= 8


def test_a_batch_mixes_adapters_only_where_the_rules_say_so():
    async def rows(rules):
        async with TenantService(BASE, rules=rules) as service:
            for tenant in [service.submit(task(f"task-{n}", Grid(secret=n))) for n in range(4)]:
                await tenant.result()
            return service.batch_rows / service.batches

    mixed, unmixed = asyncio.run(rows(Rules())), asyncio.run(rows(Rules(adapters=1)))
    assert unmixed <= 8 < mixed


def test_adapters_of_other_ranks_are_served_beside_each_other():
    given = [task("small", rank=2), task("large", Bandit(secret=1), rank=8)]
    results, _ = serve(given, rules=Rules())
    assert [result.adapter.rank for result in results] == [2, 8]
    for result, each in zip(results, given, strict=True):
        assert result.adapter.bytes() == alone(each)[-1].bytes()


def test_one_by_one_the_next_begins_when_the_last_has_ended():
    async def main():
        async with TenantService(BASE, rules=Rules(at_once=1)) as service:
            first, second = service.submit(task("first")), service.submit(task("second"))
            while not first.done:
                assert second.adapter.version == 0
                await asyncio.sleep(0)
            await second.result()

    asyncio.run(main())


def test_a_tenant_goes_on_from_its_checkpoint_as_if_it_had_not_been_interrupted(tmp_path):
    async def main(until):
        async with TenantService(BASE, rules=Rules(), checkpoints=tmp_path) as service:
            tenant = service.submit(task())
            while tenant.adapter.version < until:
                await asyncio.sleep(0)
            if until == 3:
                return await tenant.result()
        with pytest.raises(TenantFailedError, match="closed"):
            await tenant.result()
        return None

    asyncio.run(main(1))
    assert 1 <= load_adapter(tmp_path, "good").version < 3
    result = asyncio.run(main(3))
    assert result.adapter.bytes() == alone(task())[-1].bytes()
    # What is done is done: nothing is trained again.
    assert asyncio.run(main(3)).stale == (0,)


def test_checkpoints_of_other_tasks_and_damaged_ones_are_refused(tmp_path):
    async def submit(**words):
        async with TenantService(BASE, checkpoints=tmp_path) as service:
            return await service.submit(task(**words)).result()

    asyncio.run(submit())
    with pytest.raises(BadValueError, match="of another task"):
        asyncio.run(submit(rank=3))
    with pytest.raises(BadValueError, match="of another task"):
        asyncio.run(submit(updates=2))
    checkpoint_path(tmp_path, "good").write_text("{}")
    with pytest.raises(BadFileError, match="holds no adapter"):
        asyncio.run(submit())


def test_a_checkpoint_that_cannot_be_written_fails_its_tenant_alone(tmp_path):
    (tmp_path / "bad.adapter.json").mkdir()

    async def main():
        async with TenantService(BASE, rules=Rules(), checkpoints=tmp_path) as service:
            with pytest.raises(BadFileError):
                service.submit(task("bad"))
            gone = service.submit(task("gone"))
            (tmp_path / "gone.adapter.json").mkdir()
            good = service.submit(task())
            with pytest.raises(TenantFailedError, match="could not be kept"):
                await gone.result()
            return await good.result()

    assert asyncio.run(main()).adapter.bytes() == alone(task())[-1].bytes()


def test_an_open_service_is_closed_whatever_its_tools_do():
    async def main():
        async with TenantService(BASE) as service:
            tenants = [service.submit(task(bad.replace(" ", "-"), Tool(None, bad), tool_timeout_s=60.0))
                       for bad in ("hang", "stubborn")]  # fmt: skip
            await asyncio.sleep(0.02)
        for tenant in tenants:
            with pytest.raises(TenantFailedError, match="closed"):
                await tenant.result()
        with pytest.raises(BadValueError, match="not open"):
            service.submit(task())

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("stage", ["_compute", "_update"])
def test_nobody_waits_for_a_stage_that_a_defect_has_ended(monkeypatch, stage):
    async def main():
        async with TenantService(BASE, rules=Rules(at_once=1)) as service:
            monkeypatch.setattr(service, stage, lambda *given: 1 // 0)
            for tenant in [service.submit(task()), service.submit(task("later"))]:
                with pytest.raises(TenantFailedError, match="A stage of the service failed"):
                    await tenant.result()
            with pytest.raises(BadValueError, match="not open"):
                service.submit(task())

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_cannot_be_served_is_refused(tmp_path):
    async def twice():
        async with TenantService(BASE) as service:
            service.submit(task())
            service.submit(task())

    with pytest.raises(BadValueError, match="of this name"):
        asyncio.run(twice())
    for words in ({"rules": Rules(divided=True)}, {"rules": Rules(s_max=-1)}, {"rows": 0},
                  {"checkpoints": tmp_path / "nowhere"}):  # fmt: skip
        with pytest.raises(BadValueError):
            TenantService(BASE, **words)
    for words in ({"name": "../x"}, {"updates": 0}, {"rate": math.nan}, {"environment": 3}, {"group": 1},
                  {"tool_timeout_s": math.inf}, {"clip": -1.0}):  # fmt: skip
        with pytest.raises(BadValueError):
            task(**words)
    with pytest.raises(BadValueError):
        Quota(tools=0)
