"""Deletions: everything goes, a receipt counts it, and a journal remembers that without names."""

from __future__ import annotations

import json
from typing import Any

from tests.behaviour.kit import World, assistant, refused, through, user
from tests.behaviour.kit.data import Files, Records, State
from tests.behaviour.kit.rest import ask

HERE = ("library", "connect", "rest")


async def fill(hf: Any, name: str, owner: str = "ada") -> Any:
    """Make a session that has something of everything."""
    session = await hf.given(name, user("My parcel is orange."), assistant("Noted."), user("Thanks."), user=owner)
    await session.replace(2, user("Thank you."))
    await State(hf, name, owner).set(**{"a": 1, "b": 2, "user:theme": "dark"})
    await Files(session).save("a.txt", "12345678")
    await Files(session).save("user:b.txt", "1234")
    await Records(hf, "r", user=owner, session=name).put("k", 1)
    await Records(hf, "r", user=owner).put(name, 1)
    await hf.remember(f"Fact number {name}", user=owner)
    return session


@through(*HERE)
async def test_a_receipt_counts_what_went_with_a_session(world: World) -> None:
    async with world.open() as hf:
        session = await fill(hf, "s")
        receipt = await session.delete()
        expected = {"sessions": 1, "messages": 3, "retired": 1, "state_keys": 2, "artifacts": 1, "artifact_bytes": 8,
                    "records": 1, "memories": 0, "user_state_keys": 0, "pending_deliveries": 0}  # fmt: skip
        assert {name: receipt[name] for name in expected} == expected
        assert receipt["bytes"] > 0
        with refused("session_not_found"):
            await Files(session).list()
        assert await hf.search("orange parcel", user="ada") == []
        assert [row["content"] for row in await hf.memories(user="ada")] == ["Fact number s"]
        assert await State(hf, user="ada").all() == {"user:theme": "dark"}


@through(*HERE)
async def test_with_a_user_everything_of_the_user_goes(world: World) -> None:
    async with world.open() as hf:
        for name in ("s", "t"):
            await fill(hf, name)
        await fill(hf, "s", "bob")
        receipt = await hf.delete_user("ada")
        expected = {"sessions": 2, "messages": 6, "state_keys": 4, "user_state_keys": 1, "artifacts": 4, "records": 4,
                    "memories": 2}  # fmt: skip
        assert {name: receipt[name] for name in expected} == expected
        assert await hf.sessions(user="ada") == []
        assert await State(hf, user="ada").all() == {}
        assert await Records(hf, user="ada").namespaces() == []
        assert await hf.memories(user="ada") == []
        assert await hf.search("orange parcel", user="ada") == []
        assert len(await hf.search("orange parcel", user="bob")) >= 1
        assert len(await hf.memories(user="bob")) == 1
        again = await hf.delete_user("ada")
        assert {value for value in again.values() if isinstance(value, int)} == {0}


@through("cli")
async def test_the_command_line_deletes_sessions_and_users(world: World) -> None:
    async with world.open() as hf:
        for name in ("s", "t", "u"):
            await hf.given(name, user("My parcel is orange."), user="ada")
        await hf.remember("Ada drinks tea", user="ada")
        await hf.call("sessions", "delete", "s", "--user", "ada", "--yes")
        assert sorted(row["id"] for row in await hf.sessions(user="ada")) == ["t", "u"]
        refusal = await hf.run("sessions", "delete", "--user", "ada", input="n\n")
        assert refusal.code != 0
        receipt = await hf.delete_user("ada")
        assert (receipt["sessions"], receipt["memories"]) == (2, 1)
        assert await hf.sessions(user="ada") == []


async def journal(hf: Any, **query: Any) -> list[Any]:
    """Return kind and number of sessions of recorded deletions. Their ids are random hexadecimal digits, which no name may have."""
    if hf.name == "rest":
        rows = (await ask(hf.http, "GET", "/v1/deletions", **query))["data"]
        assert not any(name in json.dumps(rows) for name in ("quinn", "roy", "trip-7"))
        return [(row["kind"], row["receipt"]["sessions"]) for row in rows]
    page = await hf.native.deletions(**query)
    return [(one.kind, one.receipt.sessions) for one in page.deletions]


@through("library", "rest")
async def test_the_journal_names_no_one_and_answers_for_an_id(world: World) -> None:
    async with world.open(store="file") as hf:
        for name, owner in (("trip-7", "quinn"), ("x", "quinn"), ("y", "quinn"), ("trip-7", "roy")):
            await hf.given(name, user("One."), user=owner)
        await hf.session("trip-7", "quinn").delete()
        world.clock.now += 1000
        await hf.session("trip-7", "roy").delete()
        world.clock.now += 1000
        await hf.delete_user("quinn")
        assert await journal(hf) == [("user", 2), ("session", 1), ("session", 1)]
        assert await journal(hf, user_id="quinn") == [("user", 2), ("session", 1)]
        assert await journal(hf, user_id="quinn", session_id="trip-7") == [("session", 1)]
        assert await journal(hf, user_id="eve") == []
        assert len(await journal(hf, limit=1)) == 1


@through("library", "rest")
async def test_deleted_text_is_in_no_file(world: World) -> None:
    word = "quetzalcoatlus"
    config = f"hooks: {{transcripts_dir: {json.dumps(str(world.folder / 't'))}}}"
    async with world.open(config, store="file") as hf:
        session = await hf.given("s", user(f"A {word}."), assistant(f"Yes, a {word}."), user="ada")
        await Files(session).save("a.txt", f"The {word}")
        await hf.remember(f"Ada likes the {word}", user="ada")
        await Records(hf, "r", user="ada").put("k", word, text=word)
        await hf.search(word, user="ada")
        await world.native.index.settled()
        await hf.delete_user("ada")
        await world.native.sweep()
        await world.native.index.settled()
    found = [path.name for path in world.folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]
    assert found == []


@through("library", "connect", "rest")
async def test_an_erased_message_is_gone_everywhere(world: World) -> None:
    async with world.open(store="file") as hf:
        session = await hf.given("s", user("The code is plover."), assistant("Noted: plover."), user("Thanks."))
        fork = await session.fork(id="f")
        await session.erase(0)
        for one in (session, fork):
            assert "The code is plover." not in json.dumps(await one.export(retired=True))
        assert [hit["seq"] for hit in await hf.search("code plover") if hit["seq"] == 0] == []
        assert "The code is plover." not in json.dumps((await session.context())["messages"])
        assert (await session.messages())[0].get("erased") is True
