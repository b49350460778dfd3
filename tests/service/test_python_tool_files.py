"""Files and plots of the tool `python`: which become artifacts, and which are restored in a new process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import SessionNotFound
from holdfast.holdfast import Holdfast
from tests.service.python_tool_kit import code, open_python_bench, results
from tests.service.scripted_model import REF
from tests.service.tools_kit import make_reply
from tests.waits import until


@pytest.mark.parametrize("path", ["../out.txt", "/tmp/out.txt", "a/../../out.txt", "a/b\0c", "", "/".join("d" * 40), 7])
async def test_files_are_restored_only_inside_their_folder(tmp_path: Path, path: Any) -> None:
    """Any path may be stored in a session, but none leads out of the folder."""
    script = [code("ls"), make_reply("Done.")]
    async with open_python_bench(script, tmp_path / "work") as (desk, stage):
        await desk.session.artifacts.save("a.txt", "x", author="python", metadata={"path": path})
        await desk.session.artifacts.save("b.txt", "x", author="python", metadata={"path": "b.txt"})
        await desk.session.artifacts.save("c.txt", "x", author="ada", metadata={"path": "c.txt"})
        await desk.ask("go")
        (found,) = await results(desk)
        assert found["result"] == "b.txt"
        assert found["note"].endswith("1 are not, being too many or too large")
        root = stage.processes[0].folder.parent
        assert [path.name for path in (tmp_path / "work").rglob("*.txt")] == ["b.txt"]
        assert list(root.iterdir()) == [stage.processes[0].folder]


async def test_files_never_reach_a_recreated_session_of_the_same_id(tmp_path: Path) -> None:
    """Another server recreated it while code of the old session ran here."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with (
        open_python_bench([code("late a.txt x"), make_reply("Done.")], tmp_path, url=url) as (desk, stage),
        Holdfast(url) as other,
    ):
        task = asyncio.create_task(desk.ask("go"))
        await until(lambda: stage.ran)
        await other.delete(REF)
        anew = await other.session(REF.id, user_id=REF.user_id)
        stage.gate("late").set()
        with pytest.raises(SessionNotFound):
            await task
        assert await anew.artifacts.list() == ()
