"""Options and forms of input of commands that few people use: each does what its help says, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.behaviour.kit import World, assistant, reranker, through, user

pytestmark = through("cli")
FILLER = "The weather was mild over the harbour and the boats came in one after the other. " * 6


def lines(*given: Any) -> str:
    return "".join(f"{json.dumps(one)}\n" for one in given)


async def test_transcripts_of_two_users_with_one_session_id_stay_apart(world: World) -> None:
    """Folders of transcripts have such files, and `cat` joins them. A message that occurs twice is the later one."""
    ada = [user("Ada's", seq=0), assistant("Once", seq=1), assistant("Twice", seq=1)]
    given = [
        line
        for owner, said in (("ada", ada), ("bob", [user("Bob's", seq=0)]))
        for line in ({"type": "session", "id": "s", "user_id": owner}, *({**one, "session_id": "s"} for one in said))
    ]
    async with world.open() as hf:
        await hf.call("sessions", "import", "-", input=lines(*given))
        for owner, texts in (("ada", ["Ada's", "Twice"]), ("bob", ["Bob's"])):
            assert [one["content"] for one in await hf.session("s", owner).messages()] == texts
        refused = await hf.run("sessions", "import", "-", input=lines(*given[:2], *given[:2]))
        assert "stdin:3: session 's' of user 'ada' is already in stdin:1" in refused.err


async def test_a_search_without_the_reranker_and_in_a_time_zone(world: World) -> None:
    """A date without a time begins at midnight in the zone."""
    rerank = "storage: {{index: {{rerank: {{base_url: '{}', model: m}}}}}}"
    async with reranker(score=lambda _, text: len(text) / 100) as at, world.open(rerank.format(at.url)) as hf:
        said = [user("kelp", timestamp=1_700_002_800_000), user("kelp and more", timestamp=1_700_010_000_000)]
        await hf.given("s", *said)  # 23:00 and 1:00 in UTC, on both sides of midnight
        assert ["rerank" in hit["parts"] for hit in await hf.search("kelp")] == [True, True]
        assert ["rerank" in hit["parts"] for hit in await hf.search("kelp", no_rerank=True)] == [False, False]
        for zone, number in (("UTC", 1), ("Europe/Berlin", 2)):
            assert len(await hf.search("kelp", since="2023-11-15", tz=zone)) == number


async def test_prune_deletes_only_sessions_of_the_user(world: World) -> None:
    async with world.open() as hf:
        for owner in ("ada", "bob"):
            await hf.given("s", user("Hi."), user=owner)
        pruned = await hf.ask("sessions", "prune", older_than="0s", status="any", user="ada")
        assert [one["user_id"] for one in pruned] == ["ada"]
        assert [one["user_id"] for one in await hf.sessions()] == ["bob"]


async def test_facts_that_a_command_changes_are_listed_beyond_the_limit(world: World) -> None:
    said = [
        user("I must not eat nuts."),
        assistant(FILLER),
        user("I prefer oak."),
        assistant(FILLER),
        user("I live in Bergen."),
    ]
    async with world.open("context: {strategy: digest}") as hf:
        session = await hf.given("s", *said)
        first, *_, last = await session.facts()
        assert [one["id"] for one in await session.facts(limit=1)] == [first["id"]]
        listed = await session.facts(limit=1, pin=last["id"])
        assert [(one["id"], one["pinned"]) for one in listed] == [(first["id"], False), (last["id"], True)]


async def test_restore_keeps_an_index_that_is_in_the_database_itself(world: World, tmp_path: Path) -> None:
    file, copy = tmp_path / "holdfast.index.db", str(tmp_path / "copy.db")
    provider = f"{{chromem: {{persist_path: {tmp_path}}}}}"
    async with world.open(f"storage: {{memory: {{vector_provider: {provider}}}}}", store=f"sqlite:///{file}") as hf:
        await hf.given("s", user("Hi."))
        await hf.call("backup", copy)
        await hf.call("restore", copy)
        assert [one["id"] for one in await hf.sessions()] == ["s"]


async def test_state_of_a_session_id_that_several_users_have(world: World) -> None:
    async with world.open() as hf:
        for owner in ("ada", "bob"):
            session = await hf.given("s", user("Hi."), user=owner)
            await session.change_state(owner=owner)
        assert [(await hf.session("s", owner).state())["owner"] for owner in ("ada", "bob")] == ["ada", "bob"]
