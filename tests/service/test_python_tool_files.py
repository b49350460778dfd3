"""Files and plots of the tool `python`: which become artifacts, and which are restored in a new process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from holdfast.artifacts import ArtifactSettings
from holdfast.domain.artifact import Artifact
from holdfast.errors import SessionNotFound, StoreCorrupt
from holdfast.holdfast import Holdfast
from holdfast.limits import PYTHON_RESTORED, PYTHON_RESTORED_BYTES
from holdfast.tools.python import files
from tests.clocks import Clock
from tests.service.python_tool_kit import code, open_python_bench, results
from tests.service.scripted_model import REF
from tests.service.tools_kit import make_reply
from tests.waits import until


async def test_files_become_artifacts(tmp_path: Path) -> None:
    """With type, author, call and path; changed files become new versions."""
    script = [
        code("write out/data.csv a,b"),
        code("write out/data.csv a,b,c", "write notes.md hi"),
        make_reply("Done."),
    ]
    async with open_python_bench(script, tmp_path) as (desk, _):
        await desk.ask("go")
        data = {"name": "out/data.csv", "artifact": "out,data.csv"}
        assert [found["files"] for found in await results(desk)] == [
            [{**data, "bytes": 3, "version": 0}],
            [{**data, "bytes": 5, "version": 1}],
            [{"name": "notes.md", "bytes": 2, "version": 0}],
        ]
        kept = await desk.session.artifacts.load("out,data.csv")
        assert (kept.data, kept.artifact.mime_type, kept.artifact.author) == (b"a,b,c", "text/csv", "python")
        assert kept.artifact.metadata == {"call_id": "c0", "path": "out/data.csv"}
        assert (await desk.session.artifacts.load("notes.md")).artifact.mime_type == "text/markdown"


async def test_plots_become_artifacts(tmp_path: Path) -> None:
    """Numbered across the session, also in a new process."""
    script = [code("plot 2"), code("plot"), make_reply("Done."), code("plot"), make_reply("Done.")]
    async with open_python_bench(script, tmp_path, url=f"sqlite:///{tmp_path}/s.db") as (desk, stage):
        await desk.ask("go")
        await desk.session.close()
        await desk.session.append("more")
        await desk.ask("go")
        names = [plot["artifact"] for found in await results(desk) for plot in found["plots"]]
        assert names == [f"plot-{number}.png" for number in (1, 2, 3, 4)]
        assert len(stage.processes) == 2
        assert [one.mime_type for one in await desk.session.artifacts.list()] == ["image/png"] * 4


async def test_files_that_are_not_kept_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason: too many, too large, not a file, missing."""
    script = [
        code("files gone link ../out /etc/passwd a/../b"),
        code("write big.txt " + "x" * 99),
    ]
    script += [code("files x y z w v u"), make_reply("Done.")]
    monkeypatch.setattr("holdfast.tools.python.tool.MAX_FILES", 5)
    shelf = ArtifactSettings(max_bytes=50)
    async with open_python_bench(script, tmp_path, artifacts=shelf) as (desk, _):
        await desk.ask("go")
        first, second, third = [found["not_kept"] for found in await results(desk)]
        assert [found["name"] for found in first] == ["gone", "link", "../out", "/etc/passwd", "a/../b"]
        assert {found["reason"] for found in first} == {"it is not a regular file, cannot be read, or was deleted"}
        assert "50" in second[0]["reason"]
        assert third[-1] == {"files": 1, "reason": "at most 5 files and plots of a call are kept"}
        assert await desk.session.artifacts.list() == ()


async def test_file_named_like_a_user_artifact_stays_in_the_session(tmp_path: Path) -> None:
    """Code writes only to its own session, whatever the file name."""
    async with open_python_bench([code("write user:all.txt x"), make_reply("Done.")], tmp_path) as (desk, _):
        await desk.ask("go")
        other = await desk.hf.session("other")
        assert await other.artifacts.list() == ()
        assert len(await desk.session.artifacts.list()) == 1


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


async def test_name_that_this_system_cannot_represent_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `€` if file names are Latin-1; a lone surrogate is one everywhere."""
    monkeypatch.setattr(
        files, "_get_path", lambda artifact: PurePosixPath(artifact.metadata["path"].replace("€", "\ud800"))
    )
    async with open_python_bench([code("ls"), make_reply("Done.")], tmp_path) as (desk, _):
        for name, path in (("bad.txt", "€.txt"), ("good.txt", "good.txt")):
            await desk.session.artifacts.save(name, "x", author="python", metadata={"path": path})
        await desk.ask("go")
        (found,) = await results(desk)
        assert found["result"] == "good.txt"
        assert "1 are not" in found["note"]


async def test_files_are_restored_up_to_the_limits(tmp_path: Path) -> None:
    """Newest first."""
    clock = Clock()
    async with open_python_bench([code("ls"), make_reply("Done.")], tmp_path, clock=clock) as (desk, _):
        for number in range(PYTHON_RESTORED + 2):
            clock.now += 1
            await desk.session.artifacts.save(f"{number}", "x", author="python", metadata={"path": f"{number}"})
        clock.now += 1
        large = bytes(PYTHON_RESTORED_BYTES - 50)
        await desk.session.artifacts.save("large", large, author="python", metadata={"path": "large"})
        await desk.ask("go")
        (found,) = await results(desk)
        names = {"large", *(str(number) for number in range(52, PYTHON_RESTORED + 2))}
        assert set(found["result"].split()) == names
        assert "52 are not" in found["note"]


async def test_file_is_restored_completely_or_not_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be read to its end is skipped; the others are restored."""
    async with open_python_bench([code("ls"), make_reply("Done.")], tmp_path) as (desk, _):
        for name in ("bad.txt", "good.txt"):
            await desk.session.artifacts.save(name, f"content of {name}", author="python", metadata={"path": name})
        read = desk.hf.engine.artifacts.read

        async def broken(artifact: Artifact, *args: Any) -> AsyncIterator[bytes]:
            async for chunk in read(artifact, *args):
                yield chunk
                if artifact.name == "bad.txt":
                    raise StoreCorrupt("it is not what was saved")

        desk.hf.engine.artifacts.read = broken  # type: ignore[method-assign,assignment]
        await desk.ask("go")
        (found,) = await results(desk)
        assert found["result"] == "good.txt"
        assert "1 are not" in found["note"]
        assert "could not be restored" in caplog.text


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
