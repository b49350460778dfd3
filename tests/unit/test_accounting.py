"""CPU work is shared fairly: no principal uses all threads, and waiting principals take turns."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from holdfast.accounting import CpuScheduler, Owner, charge_to, get_owner, get_scheduler, run_cpu
from holdfast.limits import CPU_THREADS, CPU_THREADS_OF_PRINCIPAL, CPU_THREADS_OF_TENANT
from tests.waits import until

ADA, BO = Owner("t", "ada"), Owner("other", "bo")


class Jobs:
    """Jobs that block their threads until they are released."""

    def __init__(self, scheduler: CpuScheduler) -> None:
        self.scheduler = scheduler
        self.begun: list[str] = []
        self._go = threading.Event()

    def start(self, owner: Owner, name: str) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.scheduler.run(owner, lambda: self._work(name)))

    def _work(self, name: str) -> None:
        self.begun.append(name)
        assert self._go.wait(20)

    def release(self) -> None:
        self._go.set()


async def test_a_principal_cannot_occupy_all_threads() -> None:
    """Another principal's job starts while sixteen jobs of the first one wait."""
    scheduler = CpuScheduler()
    jobs = Jobs(scheduler)
    tasks = [jobs.start(ADA, f"ada{at}") for at in range(16)]
    await until(lambda: len(jobs.begun) == CPU_THREADS_OF_PRINCIPAL)
    tasks.append(jobs.start(BO, "bo"))
    await until(lambda: "bo" in jobs.begun)
    assert scheduler.running == {ADA: CPU_THREADS_OF_PRINCIPAL, BO: 1}
    assert scheduler.waiting == 16 - CPU_THREADS_OF_PRINCIPAL
    jobs.release()
    await asyncio.gather(*tasks)
    assert not scheduler.running
    assert not scheduler.waiting


async def test_the_keys_of_a_tenant_together_cannot_occupy_all_threads() -> None:
    jobs = Jobs(CpuScheduler())
    tasks = [jobs.start(Owner("t", f"key{at}"), "t") for at in range(10)]
    await until(lambda: len(jobs.begun) == CPU_THREADS_OF_TENANT)
    tasks.append(jobs.start(BO, "bo"))
    await until(lambda: "bo" in jobs.begun)
    assert CPU_THREADS_OF_PRINCIPAL < CPU_THREADS_OF_TENANT < CPU_THREADS
    jobs.release()
    await asyncio.gather(*tasks)


async def test_waiting_principals_take_turns() -> None:
    """A principal that queued many jobs first does not delay all others."""
    scheduler = CpuScheduler(threads=1, of_tenant=1, of_principal=1)
    order: list[str] = []
    owners = [ADA] * 4 + [BO] * 2 + [Owner("third")]
    await asyncio.gather(*(scheduler.run(owner, partial(order.append, owner.tenant)) for owner in owners))
    assert order == ["t", "t", "other", "third", "t", "other", "t"]


async def test_a_cancelled_job_releases_its_slot() -> None:
    scheduler = CpuScheduler(threads=1, of_tenant=1, of_principal=1)
    jobs = Jobs(scheduler)
    first, second = jobs.start(ADA, "first"), jobs.start(ADA, "second")
    await until(lambda: jobs.begun == ["first"])
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    jobs.release()
    await first
    assert not scheduler.waiting
    assert await scheduler.run(BO, lambda: 5) == 5
    assert jobs.begun == ["first"]


async def test_work_is_charged_to_the_principal_of_its_task() -> None:
    """Also in tasks that it starts. Outside requests, work is charged to the library."""
    seen: list[Owner] = []

    def note() -> None:
        seen.extend(cpu_scheduler_running)

    scheduler = get_scheduler()
    cpu_scheduler_running = scheduler.running
    with charge_to(ADA):
        await run_cpu(note)
        await asyncio.ensure_future(run_cpu(note))
    await run_cpu(note)
    assert seen == [ADA, ADA, Owner()]
    assert get_owner() == Owner()


async def test_short_work_runs_at_once() -> None:
    assert await run_cpu(threading.get_ident, long=False) == threading.get_ident()
    assert await run_cpu(threading.get_ident) != threading.get_ident()
