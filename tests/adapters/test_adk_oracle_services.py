"""Behaviours of ADK's memory and artifact services: the same tests for its own services (the oracles) and for ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

pytest.importorskip("google.adk", reason="google-adk is not installed here: make adapters")

from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.artifacts.file_artifact_service import FileArtifactService
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.genai import types

import holdfast
from holdfast.adapters.adk import HoldfastArtifactService, HoldfastMemoryService, HoldfastSessionService
from tests.adapters.oracle import expect_difference

ADA: Any = {"app_name": "shop", "user_id": "ada"}
BOB: Any = {"app_name": "shop", "user_id": "bob"}
BANK: Any = {"app_name": "bank", "user_id": "ada"}

# -- memory --------------------------------------------------------------------------------

NEIGHBOURS: Final = "messages next to a match are found too, after better matches"
COMMON: Final = "common words do not count"
STORED: Final = "events of a stored session are searched as they are"
MEMORY_REASONS: Final[dict[str, dict[str, str]]] = {
    "in_memory": {
        "test_facts_can_be_added": "`add_memory` is not supported",
        "test_other_forms_of_a_word_are_found": "only equal words match",
    },
    "copied": {
        "test_only_events_with_a_word_of_the_query_are_found": NEIGHBOURS,
        "test_a_common_word_is_found": COMMON,
        "test_equal_matches_stay_in_order": "newer ones come first",
        "test_the_id_of_an_event_is_the_id_of_its_memory": "ids are those of messages: `session#number`",
    },
    "stored": {
        "test_only_events_with_a_word_of_the_query_are_found": NEIGHBOURS,
        "test_a_common_word_is_found": COMMON,
        "test_equal_matches_stay_in_order": "newer ones come first",
        "test_the_id_of_an_event_is_the_id_of_its_memory": "ids are those of messages: `session#number`",
        "test_events_with_a_known_id_are_left_out": STORED,
    },
}


class Memories(NamedTuple):
    """A memory service, with the service that stores its sessions."""

    service: BaseMemoryService
    sessions: BaseSessionService

    async def add(self, *texts: str, name: str = "s", owner: Any = ADA) -> Session:
        """Add a session with these texts of a user, or add them to it."""
        session = await self.sessions.get_session(**owner, session_id=name)
        session = session or await self.sessions.create_session(**owner, session_id=name)
        for text in texts:
            await self.sessions.append_event(session, say(text))
        await self.service.add_session_to_memory(session)
        return session

    async def find(self, query: str, owner: Any = ADA) -> list[str | None]:
        """Return the texts that a search finds."""
        found = (await self.service.search_memory(**owner, query=query)).memories
        return [(one.content.parts or [types.Part()])[0].text for one in found]


@pytest.fixture(params=list(MEMORY_REASONS))
async def memories(request: pytest.FixtureRequest) -> AsyncIterator[Memories]:
    """ADK's service, and ours with sessions that are stored elsewhere or in the same database."""
    expect_difference(request, MEMORY_REASONS[request.param])
    if request.param == "in_memory":
        yield Memories(InMemoryMemoryService(), InMemorySessionService())
        return
    async with holdfast.open("sqlite://:memory:") as hf:
        copied = request.param == "copied"
        yield Memories(HoldfastMemoryService(hf), InMemorySessionService() if copied else HoldfastSessionService(hf))


def say(text: str, **fields: Any) -> Event:
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return Event(**{"author": "user", "content": content, "timestamp": 1_700_000_000.5, **fields})


async def test_unknown_words_and_empty_queries_find_nothing(memories: Memories) -> None:
    assert await memories.find("parcel") == []
    await memories.add("My parcel is blue.")
    for query in ("nonexistent", "", "  ", "?!"):
        assert await memories.find(query) == []


async def test_events_with_a_known_id_are_left_out(memories: Memories) -> None:
    await memories.add("My parcel is blue.")
    for text in ("My parcel is heavy.", "My parcel is late."):
        await memories.service.add_events_to_memory(**ADA, session_id="s", events=[say(text, id="e1")])
    assert len(await memories.find("parcel")) == 2


async def test_equal_matches_stay_in_order(memories: Memories) -> None:
    await memories.add(*(f"Parcel {number}" for number in range(5)))
    assert await memories.find("parcel") == [f"Parcel {number}" for number in range(5)]


async def test_memories_name_author_and_time(memories: Memories) -> None:
    session = await memories.add()
    await memories.sessions.append_event(session, say("My parcel is blue.", author="helper", timestamp=1_700_000_000.5))
    await memories.service.add_session_to_memory(session)
    (found,) = (await memories.service.search_memory(**ADA, query="parcel")).memories
    assert (found.author, found.content) == ("helper", session.events[0].content)
    assert found.timestamp is not None
    assert "22:13:20.500" in found.timestamp  # in UTC, as on the test machines


async def test_the_id_of_an_event_is_the_id_of_its_memory(memories: Memories) -> None:
    session = await memories.add("My parcel is blue.")
    (found,) = (await memories.service.search_memory(**ADA, query="parcel")).memories
    assert found.id == session.events[0].id


async def test_only_events_with_a_word_of_the_query_are_found(memories: Memories) -> None:
    await memories.add("My parcel is blue.", "It arrives soon.")
    assert await memories.find("parcel") == ["My parcel is blue."]


async def test_a_common_word_is_found(memories: Memories) -> None:
    await memories.add("Where is the parcel?")
    assert await memories.find("the") == ["Where is the parcel?"]


async def test_other_forms_of_a_word_are_found(memories: Memories) -> None:
    await memories.add("I'm allergic to peanuts.", "The deploys are done.")
    assert (await memories.find("allergies"))[0] == "I'm allergic to peanuts."
    assert (await memories.find("deployed"))[0] == "The deploys are done."


async def test_facts_can_be_added(memories: Memories) -> None:
    content = types.Content(parts=[types.Part(text="Ada likes window seats.")])
    entry = MemoryEntry(content=content, author="planner", custom_metadata={"a": {"b": None}}, timestamp="yesterday")
    await memories.service.add_memory(**ADA, memories=[entry])
    (found,) = (await memories.service.search_memory(**ADA, query="window")).memories
    assert (found.author, found.custom_metadata, found.timestamp) == ("planner", {"a": {"b": None}}, "yesterday")


CONVERSATIONS: Final = [
    (
        "user: Hi, I'd like to book a flight from Berlin to Lisbon on 12 May.",
        "agent: I found TAP flight TP535 at 9:40 for 189 euros.",
        "user: Window seat please, and I'm vegetarian.",
        "agent: Booked TP535, seat 14A, vegetarian meal. Your booking code is QX7RTZ.",
        "user: Great, thanks!",
    ),
    (
        "user: My dog Rufus is sick, he ate chocolate.",
        "agent: Call the vet right away; how heavy is Rufus and how much did he eat?",
        "user: He weighs 12 kilos and ate half a bar of dark chocolate.",
        "agent: That can be dangerous. Dr. Meier in Lindenstraße 4 has emergency hours until 22:00.",
    ),
    (
        "user: What's the deploy status of the payments service?",
        "agent: payments-api v2.4.1 was deployed on Tuesday; error rate is 0.2 percent.",
        "user: Roll it back to v2.4.0 please.",
        "agent: Rolled back payments-api to v2.4.0.",
    ),
    (
        "user: My sister Clara moved to Porto last month.",
        "agent: Nice! Porto is lovely in spring.",
        "user: Her new phone number is 555-0142.",
        "agent: Noted.",
    ),
    (
        "user: I'm allergic to peanuts and penicillin.",
        "agent: Thanks for telling me. I'll avoid peanuts in recipes.",
        "user: Suggest a dinner for Friday.",
        "agent: How about mushroom risotto with a green salad?",
    ),
    (
        "user: 私の名前は太郎です。",
        "agent: こんにちは、太郎さん。",
        "user: Ich fahre am Montag mit dem Fahrrad zur Arbeit.",
        "agent: Viel Spaß beim Radfahren!",
    ),
    (
        "user: How do I convert a list to a set in Python?",
        "agent: Use set(my_list).",
        "user: And how do I sort a dict by value?",
        "agent: Use sorted(d.items(), key=lambda kv: kv[1]).",
    ),
]
SEARCHES: Final = {
    "What is my booking code?": "QX7RTZ",
    "flight to Lisbon": "Berlin to Lisbon",
    "which seat did I get": "14A",
    "what can't I eat": "allergic",
    "allergies": "allergic",
    "dog": "Rufus is sick",
    "Rufus weight": "12 kilos",
    "vet address": "Lindenstraße",
    "payments rollback": "Rolled back",
    "payments-api version": "Rolled back",
    "Clara's phone number": "555-0142",
    "where does my sister live": "Porto last month",
    "太郎": "太郎",
    "Fahrrad": "Fahrrad",
    "what did you suggest for dinner on Friday": "risotto",
    "sorting dictionaries": "sorted(",
    "Python": "in Python",
    "TP535": "TP535",
    "quantum physics": "",
    "the": "",
}


async def rank_answers(service: BaseMemoryService) -> tuple[int, int, int]:
    """Return how many of the searches have the answer in first place, how many among the first three, and how many entries all return."""
    first = three = entries = 0
    for query, answer in SEARCHES.items():
        found = (await service.search_memory(**ADA, query=query)).memories
        texts = [str((one.content.parts or [types.Part()])[0].text) for one in found]
        entries += len(texts)
        if not answer:
            first, three = first + (not texts), three + (not texts)
            continue
        first += any(answer in text for text in texts[:1])
        three += any(answer in text for text in texts[:3])
    return first, three, entries


async def add_conversations(memories: Memories) -> None:
    for number, texts in enumerate(CONVERSATIONS):
        session = await memories.sessions.create_session(**ADA, session_id=f"s{number}")
        for at, (author, text) in enumerate(one.split(": ", 1) for one in texts):
            content = types.Content(role="user" if author == "user" else "model", parts=[types.Part(text=text)])
            event = Event(author=author, content=content, timestamp=1_700_000_000 + 100 * number + at)
            await memories.sessions.append_event(session, event)
        await memories.service.add_session_to_memory(session)


async def test_twenty_searches_find_more_answers_than_adks_own_service() -> None:
    oracle = Memories(InMemoryMemoryService(), InMemorySessionService())
    await add_conversations(oracle)
    async with holdfast.open("sqlite://:memory:") as hf:
        ours = Memories(HoldfastMemoryService(hf), HoldfastSessionService(hf))
        await add_conversations(ours)
        theirs, found = await rank_answers(oracle.service), await rank_answers(ours.service)
    print(f"first place, first three, entries: ADK {theirs}, Holdfast {found}")
    assert found[0] >= theirs[0]
    assert found[1] >= theirs[1] + 3


# -- artifacts -----------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
NO_URI: Final = "parts with `file_data` are not stored"
NO_PATH: Final = "names are paths of files, which must stay in their folder"
ARTIFACT_REASONS: Final[dict[str, dict[str, str]]] = {
    "in_memory": {},
    "file": {
        "test_parts_are_returned_unchanged[thought]": "only the text of a part is stored",
        "test_parts_are_returned_unchanged[uri]": NO_URI,
        "test_versions_are_described": NO_URI,
        "test_references_to_other_artifacts_are_followed": NO_URI,
        "test_five_references_in_a_row_are_followed": NO_URI,
        "test_a_part_without_content_is_refused": "a refused part leaves an empty artifact",
        "test_names_may_have_many_forms[colon]": NO_PATH,
        "test_names_that_are_paths_to_other_folders_are_kept": NO_PATH,
        "test_an_artifact_of_a_session_needs_a_session": "without a session an artifact belongs to the user",
    },
    "holdfast": {
        "test_artifacts_of_a_session_stay_when_it_is_deleted": "a session is deleted with everything that belongs to it",
        "test_names_may_differ_only_in_case": "such names are one file on some systems",
        "test_names_may_be_long": "a name has at most 255 bytes when it is encoded",
        "test_metadata_may_be_large": "metadata have at most 16 KiB",
        **{
            f"test_ids_that_are_paths_to_other_folders_are_refused[{name}]": "ids are never part of a path"
            for name in ("other", "root", "inside", "drive")
        },
    },
}


class Artifacts(NamedTuple):
    """An artifact service, with the service that stores its sessions."""

    service: BaseArtifactService
    sessions: BaseSessionService

    async def save(self, name: str, part: Any = None, session: str | None = "s", owner: Any = ADA, **more: Any) -> int:
        part = types.Part(text="A text") if part is None else part
        saved: int = await self.service.save_artifact(**owner, session_id=session, filename=name, artifact=part, **more)
        return saved

    async def load(self, name: str, session: str | None = "s", owner: Any = ADA, **more: Any) -> types.Part | None:
        return await self.service.load_artifact(**owner, session_id=session, filename=name, **more)

    async def keys(self, session: str | None = "s", owner: Any = ADA) -> list[str]:
        keys: list[str] = await self.service.list_artifact_keys(**owner, session_id=session)
        return keys


@pytest.fixture(params=list(ARTIFACT_REASONS))
async def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Artifacts]:
    """ADK's services in memory and with files, and ours."""
    expect_difference(request, ARTIFACT_REASONS[request.param])
    if request.param == "in_memory":
        yield Artifacts(InMemoryArtifactService(), InMemorySessionService())
    elif request.param == "file":
        yield Artifacts(FileArtifactService(str(tmp_path)), InMemorySessionService())
    else:
        async with holdfast.open(f"sqlite:///{tmp_path}/chat.db") as hf:
            yield Artifacts(HoldfastArtifactService(hf), HoldfastSessionService(hf))


PARTS: Final[dict[str, types.Part]] = {
    "text": types.Part(text="é 👍"),
    "empty_text": types.Part(text=""),
    "image": types.Part.from_bytes(data=PNG, mime_type="image/png"),
    "wrong_type": types.Part.from_bytes(data=b"no picture", mime_type="image/png"),
    "html": types.Part.from_bytes(data=b"<script>", mime_type="text/html"),
    "made_up_type": types.Part.from_bytes(data=b"1", mime_type="a/b; c=d"),
    "empty": types.Part.from_bytes(data=b"", mime_type="text/plain"),
    "named": types.Part(inline_data=types.Blob(data=b"1", mime_type="text/plain", display_name="A name")),
    "large": types.Part.from_bytes(data=bytes(3_000_000), mime_type="application/zip"),
    "thought": types.Part(text="Hm.", thought=True, thought_signature=b"\xff"),
    "uri": types.Part(file_data=types.FileData(file_uri="gs://bucket/file", mime_type="image/png")),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=list(PARTS))
async def test_parts_are_returned_unchanged(artifacts: Artifacts, part: types.Part) -> None:
    await artifacts.save("a", part)
    assert await artifacts.load("a") == part


async def test_a_part_without_content_is_refused(artifacts: Artifacts) -> None:
    with pytest.raises(InputValidationError):
        await artifacts.save("a", types.Part())
    assert await artifacts.keys() == []


NAMES: Final[dict[str, str]] = {
    "plain": "report.pdf",
    "folders": "reports/2025/März.pdf",
    "letters": "報告 👍.txt",
    "colon": "a:b",
    "percent": "a%20b+2f",
    "device": "NUL",
    "spaces": " a ",
    "long": "x" * 150,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
@pytest.mark.parametrize("prefix", ["", "user:"], ids=["session", "user"])
async def test_names_may_have_many_forms(artifacts: Artifacts, name: str, prefix: str) -> None:
    await artifacts.save(f"{prefix}{name}")
    assert await artifacts.keys() == [f"{prefix}{name}"]
    assert await artifacts.load(f"{prefix}{name}") == types.Part(text="A text")


async def test_an_artifact_of_a_session_needs_a_session(artifacts: Artifacts) -> None:
    with pytest.raises(InputValidationError, match="Session ID"):
        await artifacts.save("a", session=None)
    with pytest.raises(InputValidationError, match="Session ID"):
        await artifacts.load("a", session=None)


async def test_versions_are_described(artifacts: Artifacts) -> None:
    await artifacts.save("a/b.png", PARTS["image"], custom_metadata={"k": [1, None]})
    await artifacts.save("a/b.png", types.Part(text="A"))
    await artifacts.save("a/b.png", PARTS["uri"])
    owner: Any = {**ADA, "session_id": "s", "filename": "a/b.png"}
    found = await artifacts.service.list_artifact_versions(**owner)
    assert [one.version for one in found] == [0, 1, 2]
    assert [one.mime_type for one in found] == ["image/png", "text/plain", "image/png"]
    assert [one.custom_metadata for one in found] == [{"k": [1, None]}, {}, {}]
    assert found[0].create_time <= found[2].create_time
    assert len({one.canonical_uri for one in found}) == 3
    assert await artifacts.service.get_artifact_version(**owner) == found[2]
    assert await artifacts.service.get_artifact_version(**owner, version=0) == found[0]
    for version in (3, -1):
        assert await artifacts.service.get_artifact_version(**owner, version=version) is None


def refer(path: str) -> types.Part:
    return types.Part(file_data=types.FileData(file_uri=f"artifact://apps/shop/users/ada/{path}", mime_type="a/b"))


async def test_references_to_other_artifacts_are_followed(artifacts: Artifacts) -> None:
    await artifacts.save("a")
    await artifacts.save("user:b")
    await artifacts.save("c", refer("sessions/s/artifacts/a/versions/0"))
    await artifacts.save("user:d", refer("artifacts/user:b/versions/0"))
    await artifacts.save("e", refer("sessions/s/artifacts/missing/versions/0"))
    assert await artifacts.load("c") == await artifacts.load("user:d") == types.Part(text="A text")
    assert await artifacts.load("e") is None
    described = await artifacts.service.get_artifact_version(**ADA, session_id="s", filename="c")
    assert described is not None
    assert described.mime_type is None


async def test_references_that_leave_their_scope_are_refused(artifacts: Artifacts) -> None:
    for owner, session in ((BOB, "s"), (BANK, "s"), (ADA, "t")):
        with pytest.raises(InputValidationError):
            await artifacts.save("a", refer("sessions/s/artifacts/a/versions/0"), session=session, owner=owner)
    with pytest.raises(InputValidationError):
        await artifacts.save("a", types.Part(file_data=types.FileData(file_uri="artifact://wrong")))


@pytest.mark.parametrize("length", [5, 6])
async def test_five_references_in_a_row_are_followed(artifacts: Artifacts, length: int) -> None:
    await artifacts.save("a0")
    for number in range(1, length + 1):
        await artifacts.save(f"a{number}", refer(f"sessions/s/artifacts/a{number - 1}/versions/0"))
    if length > 5:
        with pytest.raises(InputValidationError):
            await artifacts.load(f"a{length}")
    else:
        assert await artifacts.load(f"a{length}") == types.Part(text="A text")


async def test_the_mark_of_a_rewind_loads_as_none(artifacts: Artifacts) -> None:
    await artifacts.save("a")
    assert await artifacts.save("a", types.Part.from_bytes(data=b"", mime_type="application/octet-stream")) == 1
    assert await artifacts.load("a") is None
    assert await artifacts.load("a", version=0) == types.Part(text="A text")
    assert await artifacts.keys() == ["a"]


async def test_artifacts_of_a_session_stay_when_it_is_deleted(artifacts: Artifacts) -> None:
    await artifacts.sessions.create_session(**ADA, session_id="s")
    await artifacts.save("a")
    await artifacts.sessions.delete_session(**ADA, session_id="s")
    assert await artifacts.load("a") == types.Part(text="A text")


async def test_names_may_differ_only_in_case(artifacts: Artifacts) -> None:
    assert [await artifacts.save(name) for name in ("a.txt", "A.txt")] == [0, 0]
    assert await artifacts.keys() == ["A.txt", "a.txt"]


async def test_metadata_may_be_large(artifacts: Artifacts) -> None:
    await artifacts.save("a", custom_metadata={"k": "x" * 100_000})
    found = await artifacts.service.get_artifact_version(**ADA, session_id="s", filename="a")
    assert found is not None
    assert found.custom_metadata == {"k": "x" * 100_000}


async def test_names_may_be_long(artifacts: Artifacts) -> None:
    await artifacts.save("folder/" * 60 + "a")
    assert await artifacts.keys() == ["folder/" * 60 + "a"]


@pytest.mark.parametrize("name", ["..", "../t", "/s", "a/../b", "C:s"], ids=["up", "other", "root", "inside", "drive"])
async def test_ids_that_are_paths_to_other_folders_are_refused(artifacts: Artifacts, name: str) -> None:
    with pytest.raises(InputValidationError):
        await artifacts.save("a", session=name)


@pytest.mark.parametrize("name", ["..", "../a", "/a", "a/../../b"], ids=["up", "other", "root", "inside"])
async def test_names_that_are_paths_to_other_folders_are_kept(artifacts: Artifacts, name: str) -> None:
    await artifacts.save(name)
    assert await artifacts.keys() == [name]


async def test_concurrent_saves_have_versions_of_their_own(artifacts: Artifacts) -> None:
    made: Sequence[int] = await asyncio.gather(*(artifacts.save("a", types.Part(text=str(at))) for at in range(10)))
    assert sorted(made) == list(range(10))
    for at, version in enumerate(made):
        assert await artifacts.load("a", version=version) == types.Part(text=str(at))
