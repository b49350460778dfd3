"""Processes of the tool `python` over the lifecycle of sessions: when one is new, how the model learns it, and when
it ends.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.holdfast import Holdfast
from tests.service.python_tool_kit import code, open_python_bench, results
from tests.service.scripted_model import REF
from tests.service.tools_kit import make_reply

# -- ends ----------------------------------------------------------------------


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
