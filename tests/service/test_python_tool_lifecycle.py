"""Processes of the tool `python` over the lifecycle of sessions: when one is new, how the model learns it, and when
it ends.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SessionNotFound
from holdfast.holdfast import Holdfast
from holdfast.lifecycle.settings import LifeSettings
from holdfast.tools.python.tool import FRESH
from tests.clocks import Clock
from tests.service.python_tool_kit import code, open_python_bench, results
from tests.service.scripted_model import REF
from tests.service.tools_kit import make_reply
from tests.waits import until

# -- new processes ---------------------------------------------------------------


async def test_fork_and_import_start_a_new_process(tmp_path: Path) -> None:
    """Processes are not copied, exported or imported; the log shows that there were calls."""
    async with open_python_bench([code("x"), make_reply("Done.")] * 4, tmp_path) as (desk, stage):
        await desk.ask("go")
        fork = await desk.hf.fork(REF)
        await fork.send("go")
        assert (await results(desk, fork.ref))[-1]["note"] == FRESH
        export = await desk.hf.export(REF)
        assert "python" not in {*export} - {"messages"}
        await desk.session.append("more")
        await desk.hf.import_(export, session_id="s", user_id=REF.user_id, replace=True)
        await until(lambda: stage.processes[0].closed)
        await desk.ask("go")
        found = (await results(desk))[-1]
        assert (found["result"], found["note"]) == ("1", FRESH)
        assert len(stage.processes) == 3


# -- ends ----------------------------------------------------------------------


@pytest.mark.parametrize("place", ["memory", "file"])
@pytest.mark.parametrize("how", ["close", "delete", "ttl", "sweep", "cap", "prune", "user"])
async def test_process_ends_with_its_session(tmp_path: Path, place: str, how: str) -> None:
    """However the session ends, the process and its folder are removed at once."""
    clock, url = Clock(), "sqlite://:memory:" if place == "memory" else f"sqlite:///{tmp_path}/s.db"
    life = LifeSettings(session_ttl=60_000, max_sessions=2, sweep=False)
    script = [code("x"), make_reply("Done.")] * 2
    async with open_python_bench(script, tmp_path / "work", url=url, life=life, clock=clock) as (desk, stage):
        hf = desk.hf
        await desk.ask("go")
        clock.now += 1000
        if how == "close":
            await desk.session.close()
        elif how == "delete":
            assert await hf.delete(REF)
        elif how == "user":
            await hf.delete_user(REF.user_id)
        elif how == "cap":
            for name in ("b", "c"):
                clock.now += 1
                await hf.session(name)
        else:
            clock.now += 60_000
            if how == "sweep":
                await hf.sweep()
            elif how == "ttl" and place == "memory":
                with pytest.raises(SessionNotFound):
                    await hf.store.get(REF)
            elif how == "ttl":
                await desk.session.append("hello")
            else:
                async for _ in hf.prune(1000, status=None):
                    pass
        assert hf.tool_registry.kernels is not None
        assert len(hf.tool_registry.kernels) == 0
        await hf.tool_registry.kernels.wait_until_ended()
        assert stage.alive == 0
        assert not stage.processes[0].folder.exists()


async def test_session_closed_by_another_server_gets_a_new_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    async with (
        open_python_bench([code("x"), make_reply("Done.")] * 2, tmp_path, url=url) as (desk, stage),
        Holdfast(url) as other,
    ):
        await desk.ask("go")
        await other.close_session(REF)
        assert stage.alive == 1
        await desk.ask("go")
        assert (await results(desk))[-1]["result"] == "1"
        assert [process.closed for process in stage.processes] == [True, False]


async def test_session_recreated_by_another_server_gets_a_new_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    async with (
        open_python_bench([code("x"), make_reply("Done.")] * 2, tmp_path, url=url) as (desk, stage),
        Holdfast(url) as other,
    ):
        await desk.ask("go")
        await other.delete(REF)
        await other.session(REF.id, user_id=REF.user_id)
        await desk.ask("go")
        assert (await results(desk))[-1]["result"] == "1"
        assert [process.closed for process in stage.processes] == [True, False]


async def test_tenants_have_separate_processes(tmp_path: Path) -> None:
    """With the same id and user."""
    async with open_python_bench([code("x"), make_reply("Done.")] * 2, tmp_path) as (desk, stage):
        await desk.ask("go")
        async with desk.hf.serve_tenant("other") as hf:
            session = await hf.session("s")
            await session.send("go")
            assert len(stage.processes) == 2
            assert desk.hf.tool_registry.kernels is hf.tool_registry.kernels
            await session.close()
            assert hf.tool_registry.kernels is not None
            await hf.tool_registry.kernels.wait_until_ended()
        assert [process.closed for process in stage.processes] == [False, True]
