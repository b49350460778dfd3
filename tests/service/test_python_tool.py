"""The tool `python` in turns: whom it is offered to, what becomes of files and plots, what the model is told, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from holdfast.agents import Agent
from holdfast.artifacts import ArtifactSettings
from holdfast.config import load
from holdfast.domain.artifact import Artifact
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest, SessionNotFound, StoreCorrupt
from holdfast.holdfast import Holdfast
from holdfast.life.settings import LifeSettings
from holdfast.limits import PYTHON_CODE_BYTES, PYTHON_RESTORED, PYTHON_RESTORED_BYTES
from holdfast.secrets import guard_of
from holdfast.tools.python import files
from holdfast.tools.python.tool import ELSEWHERE, FRESH, longest
from holdfast.tools.tool import ToolLimits
from tests.clocks import Clock
from tests.service.fake_python import Stage, listed, result, settings
from tests.service.told_model import REF
from tests.service.tools_kit import Bench, bench, content, said, shout
from tests.waiting import until


def code(*codes: str) -> list[dict[str, Any]]:
    """A message of the model that calls the tool, once for each."""
    return said(None, *[(f"c{at}", "python", {"code": one}) for at, one in enumerate(codes)])


@asynccontextmanager
async def pythonic(
    script: Sequence[Any], folder: Path, *tools: Any, python: dict[str, Any] | None = None, **given: Any
) -> AsyncIterator[tuple[Bench, Stage]]:
    """A bench whose model may call the tool, whose processes are stand-ins."""
    stage = Stage()
    async with bench(script, *tools, python=settings(folder, **(python or {})), **given) as desk:
        stage.take(desk.hf)
        yield desk, stage


async def results(desk: Bench, ref: SessionRef = REF) -> list[dict[str, Any]]:
    """What the model was told by tools, in the order of the log."""
    entries = await desk.hf.store.entries(ref)
    return [result(entry.message.text) for entry in entries if entry.message.role == "tool"]


def bare(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "seconds"}


# -- who has it ----------------------------------------------------------------


async def test_whom_it_is_offered_to(tmp_path: Path) -> None:
    """Agents that name no tools, and those that name it; beside the tools of a program."""
    agents = {
        "free": Agent(name="free"),
        "named": Agent(name="named", tools=("python",)),
        "other": Agent(name="other", tools=("shout",)),
        "none": Agent(name="none", tools=()),
    }
    async with pythonic(["x"] * 4, tmp_path, shout, agents=agents) as (desk, _):
        offered = {}
        for name in agents:
            await desk.ask("hi", agent=name)
            offered[name] = [tool["function"]["name"] for tool in desk.model.bodies[-1].get("tools", ())]
        assert offered == {"free": ["shout", "python"], "named": ["python"], "other": ["shout"], "none": []}


async def test_off_it_is_left_out() -> None:
    """An agent may name it all the same: it has the others."""
    async with bench(["x"], shout, agents={"a": Agent(name="a", tools=("python", "shout"))}) as desk:
        assert content(await desk.ask("hi", agent="a")) == "x"
        assert [tool["function"]["name"] for tool in desk.model.bodies[0]["tools"]] == ["shout"]


def test_the_model_is_told_the_limits(tmp_path: Path) -> None:
    """With their numbers as they are set; its time limit here lies above its own."""
    given = settings(tmp_path, timeout=7.5, memory=256 << 20, max_output=2048, max_file=1 << 20, max_files=3)
    tool = Holdfast(python=given).roster.tools.tools["python"]
    for words in ("7.5 s", "256 MiB of memory", "2 KiB of its output", "at most 3 a call, 1 MiB each", "no network"):
        assert words in tool.description
    assert tool.definition["function"]["parameters"]["required"] == ["code"]
    assert list(tool.parameters["properties"]) == ["code"]
    assert tool.timeout is not None
    assert tool.timeout == longest(given) > given.timeout + 3


def test_what_cannot_be() -> None:
    """Settings that are none, and another tool of that name."""
    wrong: Any = {"timeout": 3}
    with pytest.raises(InvalidRequest, match="PythonSettings"):
        Holdfast(python=wrong)

    def python(code: str) -> str:
        return code

    with pytest.raises(InvalidRequest, match="two tools are called 'python'"):
        Holdfast(tools=[python], python=settings(Path("x")))


async def test_nothing_starts_before_it_is_used(tmp_path: Path) -> None:
    """And nothing is left of it."""
    async with pythonic(["hello"], tmp_path) as (desk, stage):
        await desk.ask("hi")
        assert stage.processes == []
        assert [path for root in listed(tmp_path) if root.is_dir() for path in listed(root)] == []
    assert listed(tmp_path) == []


# -- calls ---------------------------------------------------------------------


async def test_state_is_kept_from_call_to_call_and_turn_to_turn(tmp_path: Path) -> None:
    """One process, whose calls of one message come one after the other."""
    script = [code("x 0", "x 1", "x 2"), code("x 3"), said("Done."), code("x 4"), said("Done.")]
    async with pythonic(script, tmp_path) as (desk, stage):
        await desk.ask("go")
        await desk.ask("on")
        assert stage.ran == [f"x {number}" for number in range(5)]
        assert [bare(found) for found in await results(desk)] == [
            {"status": "success", "result": str(number)} for number in range(1, 6)
        ]
        assert len(stage.processes) == 1


@pytest.mark.parametrize("arguments", [{}, {"code": 1}, {"code": ""}, {"code": "x", "more": 1}, '{"code": ', "[]"])
async def test_wrong_arguments(tmp_path: Path, arguments: Any) -> None:
    """Are told, and nothing starts."""
    async with pythonic([said(None, ("a", "python", arguments)), said("Sorry.")], tmp_path) as (desk, stage):
        assert content(await desk.ask("go")) == "Sorry."
        assert "wrong arguments" in (await results(desk))[0]["error"]
        assert stage.processes == []


async def test_code_that_is_too_long(tmp_path: Path) -> None:
    """Is told with the limit."""
    async with pythonic([code("x" * (1 << 20) + "y"), said("Sorry.")], tmp_path) as (desk, stage):
        await desk.ask("go")
        assert "1,048,576 bytes" in (await results(desk))[0]["error"]
        assert stage.processes == []


async def test_all_busy_is_a_result_and_no_error(tmp_path: Path) -> None:
    """The turn goes on: the model may try again, or tell."""
    async with pythonic([code("x"), said("Later.")], tmp_path, python={"max_sessions": 1}) as (desk, stage):
        kernels = desk.hf.workshop.kernels
        assert kernels is not None
        async with kernels.using(("default", "default", "other"), "1"):
            assert content(await desk.ask("go")) == "Later."
        (found,) = await results(desk)
        assert found["status"] == "not_run"
        assert "all 1 Python processes of this server are busy" in found["note"]
        assert stage.ran == []


async def test_whoever_goes_has_it_cancelled(tmp_path: Path) -> None:
    """The running code is given up, its result says so, and the next call finds the process."""
    async with pythonic([code("hold one"), code("x"), said("Done.")], tmp_path) as (desk, stage):
        task = asyncio.create_task(desk.ask("go"))
        await until(lambda: stage.ran)
        task.cancel()
        await asyncio.wait([task])
        async with desk.hf.engine.queues.alone(REF):
            (found,) = await results(desk)
        assert "cancelled" in found["error"]
        await desk.ask("again")
        assert bare((await results(desk))[-1]) == {"status": "success", "result": "2"}


async def test_a_long_result_is_cut_where_it_hurts_least(tmp_path: Path) -> None:
    """By the tool itself, so that what the model gets is whole JSON."""
    script = [code("files " + " ".join(f"no-{at}" for at in range(200))), said("Done.")]
    python = {"max_files": 1000}
    async with pythonic(script, tmp_path, python=python, limits=ToolLimits(result=1024)) as (desk, _):
        await desk.ask("go")
        (found,) = await results(desk)
        assert len(found["not_kept"]) + found["more_not_kept"] == 200


# -- files ---------------------------------------------------------------------


async def test_files_become_artifacts(tmp_path: Path) -> None:
    """With type, author, call and path; changed ones are versions."""
    script = [code("write out/data.csv a,b"), code("write out/data.csv a,b,c", "write notes.md hi"), said("Done.")]
    async with pythonic(script, tmp_path) as (desk, _):
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
    """Numbered over the session, also in a fresh process."""
    script = [code("plot 2"), code("plot"), said("Done."), code("plot"), said("Done.")]
    async with pythonic(script, tmp_path, url=f"sqlite:///{tmp_path}/s.db") as (desk, stage):
        await desk.ask("go")
        await desk.session.close()
        await desk.session.append("more")
        await desk.ask("go")
        names = [plot["artifact"] for found in await results(desk) for plot in found["plots"]]
        assert names == [f"plot-{number}.png" for number in (1, 2, 3, 4)]
        assert len(stage.processes) == 2
        assert [one.mime_type for one in await desk.session.artifacts.list()] == ["image/png"] * 4


async def test_what_is_not_kept_is_told(tmp_path: Path) -> None:
    """With the reason: too many, too large, of a type that is not taken, no file, gone."""
    script = [
        code("files gone link ../out /etc/passwd a/../b"),
        code("write big.txt " + "x" * 99),
        code("write a.exe x"),
    ]
    script += [code("files x y z w v u"), said("Done.")]
    shelf = ArtifactSettings(max_bytes=50, types=("text/*",))
    async with pythonic(script, tmp_path, python={"max_files": 5}, artifacts=shelf) as (desk, _):
        await desk.ask("go")
        first, second, third, fourth = [found["not_kept"] for found in await results(desk)]
        assert [found["name"] for found in first] == ["gone", "link", "../out", "/etc/passwd", "a/../b"]
        assert {found["reason"] for found in first} == {"it is no plain file, cannot be read, or is gone"}
        assert "50" in second[0]["reason"]
        assert third[0]["name"] == "a.exe"
        assert fourth[-1] == {"files": 1, "reason": "at most 5 files and plots of a call are kept"}
        assert await desk.session.artifacts.list() == ()


async def test_a_file_for_all_of_a_users_sessions_is_none(tmp_path: Path) -> None:
    """Code writes to its own session alone, whatever it calls its files."""
    async with pythonic([code("write user:all.txt x"), said("Done.")], tmp_path) as (desk, _):
        await desk.ask("go")
        other = await desk.hf.session("other")
        assert await other.artifacts.list() == ()
        assert len(await desk.session.artifacts.list()) == 1


async def test_secrets_do_not_pass(tmp_path: Path) -> None:
    """Output goes through the guard as any result does."""
    key = "sk-proj-" + "a1B2c3D4e5F6g7H8i9J0" * 2
    found = load("redaction: {enabled: true}", env={})
    guard = guard_of(found.redaction, found.secret_guard)
    script = [code(f"write {key}.txt x"), said("Done.")]
    async with pythonic(script, tmp_path, guard=guard) as (desk, _):
        await desk.ask("go")
        for entry in await desk.log():
            assert key not in entry.message.text
            assert all(key not in call.arguments for call in entry.message.tool_calls)


# -- a fresh process -----------------------------------------------------------


async def test_a_process_that_was_idle_is_made_anew(tmp_path: Path) -> None:
    """The model is told, and kept files are there again."""
    clock = Clock()
    script = [code("write out/data.csv a,b", "plot"), said("Done."), code("ls"), code("ls"), said("Done.")]
    async with pythonic(script, tmp_path, python={"idle": 60}, clock=clock) as (desk, stage):
        await desk.ask("go")
        clock.now += 60_000
        assert desk.hf.workshop.kernels is not None
        assert await desk.hf.workshop.kernels.sweep() == 0
        await desk.ask("go")
        first, second = (await results(desk))[-2:]
        assert first["note"] == f"{FRESH}; 1 of these files are in the current folder again"
        assert "note" not in second
        assert first["result"] == second["result"] == "out/data.csv"
        assert [process.closed for process in stage.processes] == [True, False]


async def test_a_session_without_earlier_calls_is_told_nothing(tmp_path: Path) -> None:
    """However much was said in it."""
    async with pythonic([said("Hi."), code("x"), said("Done.")], tmp_path) as (desk, _):
        await desk.ask("hello")
        await desk.ask("go")
        assert bare((await results(desk))[-1]) == {"status": "success", "result": "1"}


async def test_another_server_of_the_database(tmp_path: Path) -> None:
    """It starts a process of its own, and says so; the first one is told that it has missed something."""
    url = f"sqlite:///{tmp_path}/s.db"
    calls = [code("x"), said("Done.")]
    async with pythonic(calls * 2, tmp_path, url=url) as (one, _), pythonic(calls * 2, tmp_path, url=url) as (other, _):
        for desk in (one, other, other, one):
            await desk.ask("go")
        notes = [found.get("note") for found in await results(one)]
        assert notes == [None, FRESH, None, ELSEWHERE]


async def test_calls_that_did_not_run_are_no_earlier_calls(tmp_path: Path) -> None:
    """A model that first gets the arguments wrong has lost no variables, and nothing ran elsewhere."""
    wrong = said(None, ("s", "shout", {"text": "x"}), ("c0", "python", {"cod": "x"}), ("c1", "python", "{"))
    too_long = code("x" * (PYTHON_CODE_BYTES + 1))
    script = [wrong, code("x"), wrong, too_long, said("Done."), code("x"), said("Done.")]
    async with pythonic(script, tmp_path, shout) as (desk, _):
        await desk.ask("go")
        await desk.ask("go")
        told = [entry.message.text for entry in await desk.log() if entry.message.role == "tool"]
        assert sum("wrong arguments" in text for text in told) == 4
        ran = [result(text) for text in told if text.startswith('{"status"')]
        assert [found.get("note") for found in ran] == [None, None]


async def test_a_fork_and_an_import_start_fresh(tmp_path: Path) -> None:
    """Processes are not copied, exported or imported; the log says that there were calls."""
    async with pythonic([code("x"), said("Done.")] * 4, tmp_path) as (desk, stage):
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


@pytest.mark.parametrize("path", ["../out.txt", "/tmp/out.txt", "a/../../out.txt", "a/b\0c", "", "/".join("d" * 40), 7])
async def test_files_come_back_to_their_folder_alone(tmp_path: Path, path: Any) -> None:
    """Whoever may write to a session can say any path: none leads out of the folder."""
    script = [code("ls"), said("Done.")]
    async with pythonic(script, tmp_path / "work") as (desk, stage):
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


async def test_a_name_that_this_system_cannot_have_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `€` where names are Latin-1; half a character is one everywhere."""
    monkeypatch.setattr(
        files, "_place", lambda artifact: PurePosixPath(artifact.metadata["path"].replace("€", "\ud800"))
    )
    async with pythonic([code("ls"), said("Done.")], tmp_path) as (desk, _):
        for name, path in (("bad.txt", "€.txt"), ("good.txt", "good.txt")):
            await desk.session.artifacts.save(name, "x", author="python", metadata={"path": path})
        await desk.ask("go")
        (found,) = await results(desk)
        assert found["result"] == "good.txt"
        assert "1 are not" in found["note"]


async def test_files_come_back_as_far_as_the_limits_go(tmp_path: Path) -> None:
    """The newest first."""
    clock = Clock()
    async with pythonic([code("ls"), said("Done.")], tmp_path, clock=clock) as (desk, _):
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


async def test_a_file_comes_back_whole_or_not_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be read to its end is not there; the others are."""
    async with pythonic([code("ls"), said("Done.")], tmp_path) as (desk, _):
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
        assert "could not be put back" in caplog.text


# -- ends ----------------------------------------------------------------------


@pytest.mark.parametrize("place", ["memory", "file"])
@pytest.mark.parametrize("how", ["close", "delete", "ttl", "sweep", "cap", "prune", "user"])
async def test_the_process_ends_with_its_session(tmp_path: Path, place: str, how: str) -> None:
    """However it ends: the process and its folder go at once."""
    clock, url = Clock(), "sqlite://:memory:" if place == "memory" else f"sqlite:///{tmp_path}/s.db"
    life = LifeSettings(session_ttl=60_000, max_sessions=2, sweep=False)
    script = [code("x"), said("Done.")] * 2
    async with pythonic(script, tmp_path / "work", url=url, life=life, clock=clock) as (desk, stage):
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
        assert hf.workshop.kernels is not None
        assert len(hf.workshop.kernels) == 0
        await hf.workshop.kernels.idle()
        assert stage.alive == 0
        assert not stage.processes[0].folder.exists()


async def test_a_session_that_another_server_closed(tmp_path: Path) -> None:
    """The process here does not come back to life with the session."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with pythonic([code("x"), said("Done.")] * 2, tmp_path, url=url) as (desk, stage), Holdfast(url) as other:
        await desk.ask("go")
        await other.close_session(REF)
        assert stage.alive == 1
        await desk.ask("go")
        assert (await results(desk))[-1]["result"] == "1"
        assert [process.closed for process in stage.processes] == [True, False]


async def test_a_session_that_another_server_made_anew(tmp_path: Path) -> None:
    """It never sees the process of the one before."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with pythonic([code("x"), said("Done.")] * 2, tmp_path, url=url) as (desk, stage), Holdfast(url) as other:
        await desk.ask("go")
        await other.delete(REF)
        await other.session(REF.id, user_id=REF.user_id)
        await desk.ask("go")
        assert (await results(desk))[-1]["result"] == "1"
        assert [process.closed for process in stage.processes] == [True, False]


async def test_a_session_deleted_while_code_runs(tmp_path: Path) -> None:
    """The code is killed, and its files go nowhere, also when there is a new session of that name."""
    async with pythonic([code("hold one"), said("Done.")], tmp_path) as (desk, stage):
        task = asyncio.create_task(desk.ask("go"))
        await until(lambda: stage.ran)
        await desk.hf.delete(REF)
        await desk.hf.session("s")
        with pytest.raises(SessionNotFound):
            await task
        assert stage.alive == 0
        assert await desk.session.artifacts.list() == ()


async def test_files_never_reach_another_session_of_that_name(tmp_path: Path) -> None:
    """Which another server made, while code of the one before ran here."""
    url = f"sqlite:///{tmp_path}/s.db"
    async with (
        pythonic([code("late a.txt x"), said("Done.")], tmp_path, url=url) as (desk, stage),
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


async def test_tenants_have_processes_of_their_own(tmp_path: Path) -> None:
    """Of one name, user and all."""
    async with pythonic([code("x"), said("Done.")] * 2, tmp_path) as (desk, stage):
        await desk.ask("go")
        async with desk.hf.serving("other") as hf:
            session = await hf.session("s")
            await session.send("go")
            assert len(stage.processes) == 2
            assert desk.hf.workshop.kernels is hf.workshop.kernels
            await session.close()
            assert hf.workshop.kernels is not None
            await hf.workshop.kernels.idle()
        assert [process.closed for process in stage.processes] == [False, True]


async def test_the_session_of_a_tenant_that_nobody_serves(tmp_path: Path) -> None:
    """The sweep that ends it ends its process: whoever had remembered more of the tenant has gone."""
    clock, life = Clock(), LifeSettings(session_ttl=60_000, sweep=False, all_tenants=True)
    url = f"sqlite:///{tmp_path}/s.db"
    async with pythonic([code("x"), said("Done.")], tmp_path, url=url, clock=clock, life=life) as (desk, stage):
        async with desk.hf.serving("other") as hf:
            await (await hf.session("s")).send("go")
        tenants, kernels = desk.hf._tenants, desk.hf.workshop.kernels
        assert tenants is not None
        assert kernels is not None
        await tenants._close("other", ends=False)
        assert (len(tenants), len(kernels)) == (0, 1)
        clock.now += 60_000
        await desk.hf.sweep()
        await kernels.idle()
        assert [process.closed for process in stage.processes] == [True]
