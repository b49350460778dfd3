"""Exports and imports: everything of a session goes out, and comes back."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.kit import World, assistant, calls, refused, result, system, texts, through, user
from tests.behaviour.kit.data import Records

HERE = ("library", "connect", "rest")
RELEASE_0_2 = Path(__file__).parents[2] / "edges/exports/release_0_2.jsonl"
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(bytes(3000)).decode()}}


async def full(hf: Any, world: World) -> Any:
    """Make a session that has everything."""
    session = await hf.create(
        "s", user="ada", system_messages=[system("Be brief.")], state={"a": {"b": [None]}}, metadata={"m": 1}, ttl=5_000
    )
    await session.append(user("Weigh it.", x_trace=7), calls(("c1", "weigh", {"q": 1}), text="Wait."))
    await session.append(result("c1", "Two pounds."), assistant("It weighs two pounds."))
    await session.append(user([{"type": "text", "text": "See"}, PICTURE]), assistant("Nice."))
    await session.replace(4, user("See nothing."))
    await session.append(user("Secret."), assistant("Kept."))
    await session.annotate(0, pinned=True, importance=0.9)
    await session.erase(next(row["seq"] for row in await session.messages() if row["content"] == "Secret."))
    await Records(hf, "a", "b", user="ada", session="s").put("k", b"\x00\xff", text="Findable.")
    return session


def comparable(exported: Any) -> Any:
    """Return an export without what an import numbers anew."""
    rows = [{k: v for k, v in one.items() if k != "version"} for one in exported.get("records", [])]
    left_out = {"version", "id", "user_id", "records", "updated_at", "images", "accessed_at"}
    return {**{k: v for k, v in exported.items() if k not in left_out}, "records": rows}


@through(*HERE)
async def test_an_import_restores_all_that_an_export_has(world: World) -> None:
    async with world.open(store="file") as hf:
        session = await full(hf, world)
        exported = await session.export(retired=True, digests=True)
        assert exported["schema"] == 1
        assert sorted(row["seq"] for row in exported["messages"]) == list(range(len(exported["messages"])))
        world.clock.now += 1000
        await hf.import_session(exported, session_id="t", user_id="bob")
        again = await hf.session("t", "bob").export(retired=True, digests=True)
        assert comparable(again) == comparable(exported)
        plain = json.dumps(again)
        assert ("Secret." in plain, "Kept." in plain, '"x_trace": 7' in plain) == (False, True, True)
        found = await Records(hf, "a", "b", user="bob", session="t").get("k")
        assert found is not None
        assert (found["value"], found["text"]) == (b"\x00\xff", "Findable.")


@through(*HERE)
async def test_parts_of_an_export_can_be_left_out(world: World) -> None:
    async with world.open(script=["Hello."]) as hf:
        session = await full(hf, world)
        live, retired = await session.export(), await session.export(retired=True)
        assert len(live["messages"]) < len(retired["messages"])
        assert [row for row in live["messages"] if "retired_by" in row] == []
        assert "records" not in await session.export(records=False)
        await session.send(user("Hi."))
        with_calls = await session.export(retired=True, calls=True)
        assert len(with_calls["calls"]) == 1
        with refused("invalid_request", "retired"):
            await session.export(calls=True)


@through(*HERE)
async def test_an_import_replaces_a_session_only_if_it_may(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("One."))
        exported = await session.export()
        await hf.import_session(exported, replace=False)
        assert (await session.info())["version"] == exported["version"], "an equal file changes nothing"
        await session.append(assistant("Two."))
        with refused("session_exists"):
            await hf.import_session(exported, replace=False)
        assert texts(await session.messages()) == ["One.", "Two."]
        await hf.import_session(exported, replace=True)
        assert texts(await session.messages()) == ["One."]


@through(*HERE)
async def test_an_end_that_differs_makes_another_session(world: World) -> None:
    async with world.open(store="file") as hf:
        session = await hf.given("s", user("One."))
        await session.close()
        exported = await session.export()
        await hf.import_session(exported, replace=False)
        for change in ({"end_reason": "ttl"}, {"ended_at": exported["ended_at"] + 1}, {"status": "active"}):
            with refused("session_exists"):
                await hf.import_session({**exported, **change}, replace=False)


BAD: list[tuple[Any, str]] = [
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "x", "tokens": "many"}]}, "messages[0].tokens"),
    ({"messages": [{"role": "user", "content": "x", "turn_id": -1}]}, "messages[0].turn_id"),
    ({"messages": "none"}, "messages"),
    ({"schema": 99, "messages": []}, "schema"),
    ({"messages": [], "state": []}, "state"),
    ({"messages": [], "ttl": "soon"}, "ttl"),
]


@through(*HERE)
@pytest.mark.parametrize(("exported", "place"), BAD, ids=[place for _, place in BAD])
async def test_an_invalid_value_is_named_and_nothing_is_imported(world: World, exported: Any, place: str) -> None:
    async with world.open() as hf:
        with pytest.raises(Exception, match=place.replace("[", r"\[").replace("]", r"\]").replace(".", r"\.")):
            await hf.import_session({"id": "s", **exported}, **({} if world.driver == "rest" else {"session_id": "s"}))
        assert await hf.sessions() == []


@through(*HERE)
async def test_other_shapes_are_imported(world: World) -> None:
    async with world.open() as hf:
        await hf.import_session({"id": "bare", "messages": [user("One."), assistant("Two.")]})
        assert texts(await hf.session("bare").messages()) == ["One.", "Two."]
        picture = base64.b64encode(bytes(3000)).decode()
        content = [{"type": "image"}, {"type": "text", "text": "See."}]
        await hf.import_session({"id": "mistral", "messages": [user(content)], "images": [picture], "videos": []})
        exported = await hf.session("mistral").export()
        assert picture in json.dumps(exported["messages"])
        with pytest.raises(Exception, match="image"):
            await hf.import_session({"id": "odd", "messages": [user(content)], "images": [], "videos": []})


@through("cli")
async def test_an_export_of_release_0_2_is_imported_completely(world: World) -> None:
    async with world.open() as hf:
        await hf.call("sessions", "import", str(RELEASE_0_2))
        verified = await hf.call("sessions", "verify", "--all")
        assert "Verified 4 sessions" in verified.out + verified.err
        everything = ("sessions", "export", "--all", "--retired", "--calls", "--digests")
        exported = (await hf.call(*everything)).out
        assert parse(exported) == parse(RELEASE_0_2.read_text())
        await hf.call("sessions", "import", str(RELEASE_0_2))
        assert (await hf.call(*everything)).out == exported, "a second import changes nothing"


def parse(text: str) -> Any:
    """Return the sessions by id, without the versions that an import numbers anew."""
    sessions = {one["id"]: one for one in map(json.loads, text.splitlines())}
    for one in sessions.values():
        for row in (one, *one.get("records", ())):
            del row["version"]
    return sessions


@through("cli")
async def test_many_sessions_go_through_a_file(world: World) -> None:
    file = world.folder / "all.jsonl.gz"
    async with world.open() as hf:
        for name in ("a", "b", "c"):
            await hf.given(name, user(f"From {name}."), user="ada")
        await hf.session("c", "ada").close()
        await hf.call("sessions", "export", "--all", "-o", str(file))
        assert [json.loads(line)["id"] for line in gzip.decompress(file.read_bytes()).splitlines()] == ["a", "b", "c"]
        closed = await hf.call("sessions", "export", "--all", "--status", "closed")
        assert [json.loads(line)["id"] for line in closed.out.splitlines()] == ["c"]
        dry = await hf.call("sessions", "import", str(file), "--user", "bob", "--dry-run")
        assert await hf.sessions(user="bob") == []
        assert "3" in dry.out + dry.err
        await hf.call("sessions", "import", str(file), "--user", "bob")
        assert sorted(row["id"] for row in await hf.sessions(user="bob")) == ["a", "b", "c"]
        assert (await hf.session("c", "bob").info())["status"] == "closed"


@through("cli")
@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("{", "in.jsonl:1: "),
        ('{"id": "a", "messages": []}\n[1]', "in.jsonl:2: "),
        ('{"id": "a", "messages": [{"role": "wizard", "content": "x"}]}', "messages[0].role"),
        ("", "no session"),
    ],
)
async def test_a_wrong_line_is_named_and_nothing_is_written(world: World, lines: str, words: str) -> None:
    async with world.open() as hf:
        (world.folder / "in.jsonl").write_text(lines)
        with refused("", words):
            await hf.call("sessions", "import", str(world.folder / "in.jsonl"))
        assert await hf.sessions() == []
