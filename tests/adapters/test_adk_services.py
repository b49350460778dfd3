"""The artifact and memory services for Google's ADK, with ADK's own services as the oracle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("google.adk", reason="google-adk is not installed here: make adapters")

from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.adapters.adk import HoldfastArtifactService, HoldfastMemoryService, HoldfastSessionService
from holdfast.adapters.adk.names import decode_name, encode_name

MEMORY = "sqlite://:memory:"
ADA: Any = {"app_name": "shop", "user_id": "ada"}
BOB: Any = {"app_name": "shop", "user_id": "bob"}
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


@pytest.fixture
async def hf() -> AsyncIterator[holdfast.Holdfast]:
    async with holdfast.open(MEMORY) as opened:
        yield opened


# -- artifacts: the same as ADK's own service --------------------------------------

REFERENCE = "artifact://apps/shop/users/ada/sessions/s1/artifacts/a.txt/versions/0"
PARTS = st.sampled_from(
    [
        types.Part(text="A text"),
        types.Part(text=""),
        types.Part.from_bytes(data=PNG, mime_type="image/png"),
        types.Part.from_bytes(data=b"not a picture", mime_type="image/png"),
        types.Part.from_bytes(data=b"", mime_type="application/octet-stream"),
        types.Part(inline_data=types.Blob(data=b"named", mime_type="a/b", display_name="Name")),
        types.Part(file_data=types.FileData(file_uri="gs://bucket/file", mime_type="image/png")),
        types.Part(file_data=types.FileData(file_uri=REFERENCE)),
        types.Part(file_data=types.FileData(file_uri="artifact://wrong")),
        types.Part(),
        {"inlineData": {"mimeType": "text/plain", "data": "QQ=="}},
    ]
)
ARTIFACTS = st.sampled_from(["a.txt", "user:a.txt", "reports/März.pdf", "user:NUL", "..", "b+2f"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["save", "save", "save", "load", "keys", "delete", "numbers", "versions", "version"]),
        st.sampled_from(["shop", "bank"]),
        st.sampled_from(["ada", "bob"]),
        st.sampled_from(["s1", "s2", None]),
        ARTIFACTS,
        PARTS,
        st.sampled_from([None, 0, 1, 7, -1]),
        st.sampled_from([None, {"key": [1, None]}]),
    ),
    max_size=25,
)


async def perform(service: BaseArtifactService, step: Any) -> Any:
    """Perform a step, and return what a caller notices of it."""
    kind, app, user, session, name, part, version, custom = step
    owner: Any = {"app_name": app, "user_id": user, "session_id": session}
    try:
        if kind == "save":
            return await service.save_artifact(**owner, filename=name, artifact=part, custom_metadata=custom)
        if kind == "load":
            return await service.load_artifact(**owner, filename=name, version=version)
        if kind == "keys":
            return await service.list_artifact_keys(**owner)
        if kind == "delete":
            return await service.delete_artifact(**owner, filename=name)
        if kind == "numbers":
            return await service.list_versions(**owner, filename=name)
        if kind == "versions":
            return [describe(one) for one in await service.list_artifact_versions(**owner, filename=name)]
        return describe(await service.get_artifact_version(**owner, filename=name, version=version))
    except InputValidationError:
        return InputValidationError


def describe(version: Any) -> Any:
    """Return the description of a version, without its time, and with the same scheme for every service."""
    if version is None:
        return None
    dumped = version.model_dump(exclude={"create_time"})
    return {**dumped, "canonical_uri": dumped["canonical_uri"].partition("://")[2]}


@given(STEPS)
async def test_every_operation_has_the_same_result_as_in_adks_own_service(steps: Any) -> None:
    async with holdfast.open(MEMORY) as hf:
        ours, oracle = HoldfastArtifactService(hf), InMemoryArtifactService()
        for step in steps:
            assert await perform(ours, step) == await perform(oracle, step), step


@given(st.text(), st.text())
def test_names_are_encoded_reversibly(one: str, other: str) -> None:
    assert decode_name(encode_name(one)) == one
    assert (encode_name(one) == encode_name(other)) == (one == other)


@given(st.text(min_size=1, max_size=20).filter(lambda name: name != "user:"))
async def test_every_name_can_be_stored(name: str) -> None:
    async with holdfast.open(MEMORY) as hf:
        service = HoldfastArtifactService(hf)
        await service.save_artifact(**ADA, session_id="s", filename=name, artifact=types.Part(text="A"))
        assert await service.list_artifact_keys(**ADA, session_id="s") == [name]


async def test_a_chain_of_references_ends(hf: holdfast.Holdfast) -> None:
    service = HoldfastArtifactService(hf)
    part = types.Part(file_data=types.FileData(file_uri=REFERENCE))
    await service.save_artifact(**ADA, session_id="s1", filename="a.txt", artifact=part)
    with pytest.raises(InputValidationError, match="references"):
        await service.load_artifact(**ADA, session_id="s1", filename="a.txt")


async def test_a_reference_to_another_user_is_refused(hf: holdfast.Holdfast) -> None:
    service = HoldfastArtifactService(hf)
    await service.save_artifact(**ADA, session_id="s1", filename="a.txt", artifact=types.Part(text="Secret"))
    part = types.Part(file_data=types.FileData(file_uri=REFERENCE))
    for owner in (BOB, {**ADA, "app_name": "bank"}):
        with pytest.raises(InputValidationError, match="same app and user"):
            await service.save_artifact(**owner, session_id="s1", filename="b", artifact=part)
        assert await service.load_artifact(**owner, session_id="s1", filename="a.txt") is None


async def test_artifacts_of_a_session_are_deleted_with_it_and_those_of_the_user_stay(hf: holdfast.Holdfast) -> None:
    sessions, service = HoldfastSessionService(hf), HoldfastArtifactService(hf)
    await sessions.create_session(**ADA, session_id="s")
    for name in ("a", "user:a"):
        await service.save_artifact(**ADA, session_id="s", filename=name, artifact=types.Part(text="A"))
    await sessions.delete_session(**ADA, session_id="s")
    assert await service.list_artifact_keys(**ADA, session_id="s") == ["user:a"]


@pytest.mark.parametrize("name", ["s", " s "])
async def test_an_artifact_that_is_saved_first_makes_no_session(hf: holdfast.Holdfast, name: str) -> None:
    sessions, service, memory = HoldfastSessionService(hf), HoldfastArtifactService(hf), HoldfastMemoryService(hf)
    await service.save_artifact(**ADA, session_id=name, filename="a", artifact=types.Part(text="A"))
    assert await sessions.get_session(**ADA, session_id=name) is None
    assert (await sessions.list_sessions(app_name="shop")).sessions == []
    with pytest.raises(SessionNotFoundError):
        await sessions.append_event(Session(id="s", **ADA), say("Hello", 1))

    elsewhere = await InMemorySessionService().create_session(**ADA, session_id=name)
    elsewhere.events.append(say("My parcel is blue.", 1))
    await memory.add_session_to_memory(elsewhere)
    assert await find(memory, "parcel") == ["My parcel is blue."]

    session = await sessions.create_session(**ADA, session_id=name, state={"k": 1, "user:k": None})
    assert (session.state, session.events) == ({"k": 1, "user:k": None}, [])
    await sessions.append_event(session, say("My parcel is red.", 1))
    assert await sessions.get_session(**ADA, session_id=name) == session
    assert await service.list_artifact_keys(**ADA, session_id=name) == ["a"]
    assert await find(memory, "parcel") == ["My parcel is red."]
    with pytest.raises(AlreadyExistsError):
        await sessions.create_session(**ADA, session_id=name)


async def test_a_session_with_artifacts_is_created_once(hf: holdfast.Holdfast) -> None:
    sessions, service = HoldfastSessionService(hf), HoldfastArtifactService(hf)
    await service.save_artifact(**ADA, session_id="s", filename="a", artifact=types.Part(text="A"))
    states = [{"number": number} for number in range(6)]
    made = await asyncio.gather(
        *(sessions.create_session(**ADA, session_id="s", state=state) for state in states), return_exceptions=True
    )
    (created,) = [one for one in made if isinstance(one, Session)]
    assert sum(isinstance(one, AlreadyExistsError) for one in made) == 5
    assert await sessions.get_session(**ADA, session_id="s") == created


async def test_names_that_differ_only_in_case_are_refused(hf: holdfast.Holdfast) -> None:
    service = HoldfastArtifactService(hf)
    await service.save_artifact(**ADA, session_id="s", filename="a.txt", artifact=types.Part(text="A"))
    with pytest.raises(InputValidationError, match="case"):
        await service.save_artifact(**ADA, session_id="s", filename="A.txt", artifact=types.Part(text="A"))


# -- memories -------------------------------------------------------------------------


def say(text: str, number: int) -> Event:
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return Event(id=f"e{number}", timestamp=1700000000.5 + number, author="user", content=content)


async def find(service: HoldfastMemoryService, query: str, owner: Any = ADA) -> list[str | None]:
    found = (await service.search_memory(**owner, query=query)).memories
    return [(one.content.parts or [types.Part()])[0].text for one in found]


async def test_stored_sessions_are_searched_as_they_are(hf: holdfast.Holdfast) -> None:
    sessions, memory = HoldfastSessionService(hf), HoldfastMemoryService(hf)
    session = await sessions.create_session(**ADA, session_id="s")
    await sessions.append_event(session, say("My parcel is blue.", 1))
    await memory.add_session_to_memory(session)
    found = (await memory.search_memory(**ADA, query="Which colour has the parcel?")).memories
    assert [one.content for one in found] == [session.events[0].content]
    assert (found[0].author, found[0].timestamp) == ("user", "2023-11-14T22:13:21.500000+00:00")
    assert [one.id for one in (await sessions.list_sessions(**ADA)).sessions] == ["s"]


async def test_sessions_that_are_stored_elsewhere_are_copied_once(hf: holdfast.Holdfast) -> None:
    elsewhere, memory = InMemorySessionService(), HoldfastMemoryService(hf)
    session = await elsewhere.create_session(**ADA, session_id="s")
    for number, text in enumerate(("My parcel is blue.", "My parcel is heavy.", "My parcel is late.")):
        await elsewhere.append_event(session, say(text, number))
        await memory.add_session_to_memory(session)
    assert sorted(map(str, await find(memory, "parcel"))) == sorted(
        ["My parcel is blue.", "My parcel is heavy.", "My parcel is late."]
    )
    assert (await HoldfastSessionService(hf).list_sessions(**ADA)).sessions == []


async def test_users_and_applications_do_not_share_memories(hf: holdfast.Holdfast) -> None:
    memory = HoldfastMemoryService(hf)
    await memory.add_events_to_memory(**ADA, events=[say("My parcel is blue.", 1)])
    await memory.add_memory(**ADA, memories=[MemoryEntry(content=types.Content(parts=[types.Part(text="Parcel 7")]))])
    assert len(await find(memory, "parcel")) == 2
    for owner in (BOB, {**ADA, "app_name": "bank"}):
        assert await find(memory, "parcel", owner) == []
        for one in (await memory.search_memory(**ADA, query="parcel")).memories:
            await memory.delete_memory(**owner, memory_id=one.id)
    assert len(await find(memory, "parcel")) == 2


async def test_facts_are_words_of_the_assistant_and_can_be_deleted(hf: holdfast.Holdfast) -> None:
    memory = HoldfastMemoryService(hf)
    content = types.Content(parts=[types.Part(text="Ada likes window seats.")])
    entry = MemoryEntry(content=content, author="planner", custom_metadata={"a": 1})
    await memory.add_memory(**ADA, memories=[entry], custom_metadata={"b": 2})
    (found,) = (await memory.search_memory(**ADA, query="Which seats does Ada like?")).memories
    assert (found.author, found.custom_metadata) == ("planner", {"a": 1, "b": 2})
    async with hf.serve_tenant("shop") as tenant:
        assert (await tenant.memories.get(str(found.id))).origin == "assistant"
    await memory.delete_memory(**ADA, memory_id=found.id)
    assert await find(memory, "seats") == []
    await memory.delete_memory(**ADA, memory_id=found.id)
    with pytest.raises(ValueError, match="needs text"):
        await memory.add_memory(**ADA, memories=[MemoryEntry(content=types.Content(parts=[]))])


async def test_a_deleted_copy_of_an_event_is_not_added_again(hf: holdfast.Holdfast) -> None:
    memory = HoldfastMemoryService(hf)
    await memory.add_events_to_memory(**ADA, events=[say("My parcel is blue.", 1)])
    (found,) = (await memory.search_memory(**ADA, query="parcel")).memories
    for _ in range(2):
        await memory.delete_memory(**ADA, memory_id=found.id)
    await memory.delete_memory(**ADA, memory_id="unknown")
    await memory.add_events_to_memory(**ADA, events=[say("My parcel is blue.", 1)])
    assert await find(memory, "parcel") == []


async def test_a_deleted_event_of_a_stored_session_stays_in_its_session(hf: holdfast.Holdfast) -> None:
    sessions, memory = HoldfastSessionService(hf), HoldfastMemoryService(hf)
    session = await sessions.create_session(**ADA, session_id="mem_a#b")
    for number in range(25):
        await sessions.append_event(session, say(f"My parcel {number} is blue.", number))
    for _ in range(2):
        for one in (await memory.search_memory(**ADA, query="parcel")).memories:
            await memory.delete_memory(**BOB, memory_id=one.id)
            await memory.delete_memory(**ADA, memory_id=one.id)
    await memory.add_session_to_memory(session)
    assert len(await find(memory, "parcel")) == 5
    stored = await sessions.get_session(**ADA, session_id="mem_a#b")
    assert stored is not None
    assert stored.events == session.events


@pytest.mark.parametrize(
    "name", ["", "mem_", "mem_unknown", "unknown#1", "#1", "s#x", "s#-1", "s#99", "s#", "x" * 600, "\0"]
)
async def test_deleting_an_unknown_memory_changes_nothing(hf: holdfast.Holdfast, name: str) -> None:
    memory = HoldfastMemoryService(hf)
    await memory.add_events_to_memory(**ADA, session_id="s", events=[say("My parcel is blue.", 1)])
    await memory.delete_memory(**ADA, memory_id=name)
    assert await find(memory, "parcel") == ["My parcel is blue."]


async def test_events_before_the_newest_copied_one_are_copied_too(hf: holdfast.Holdfast) -> None:
    elsewhere, memory = InMemorySessionService(), HoldfastMemoryService(hf)
    session = await elsewhere.create_session(**ADA, session_id="s")
    for number, text in enumerate(("The parcel is blue.", "The parcel is heavy.", "The parcel is late.")):
        await elsewhere.append_event(session, say(text, number))
    await memory.add_events_to_memory(**ADA, session_id="s", events=session.events[1:2])
    await memory.add_session_to_memory(session)
    assert len(await find(memory, "parcel")) == 3


async def test_what_was_said_in_a_live_session_is_found(hf: holdfast.Holdfast) -> None:
    sessions, memory = HoldfastSessionService(hf), HoldfastMemoryService(hf)
    session = await sessions.create_session(**ADA, session_id="s")
    heard = Event(author="user", input_transcription=types.Transcription(text="My parcel is blue.", finished=True))
    spoken = Event(author="helper", output_transcription=types.Transcription(text="It arrives soon.", finished=True))
    for event in (heard, spoken):
        await sessions.append_event(session, event)
    found = (await memory.search_memory(**ADA, query="parcel")).memories
    assert found[0].content == types.Content(role="user", parts=[types.Part(text="My parcel is blue.")])
    assert await sessions.get_session(**ADA, session_id="s") == session
    async with hf.serve_tenant("shop") as tenant:
        stored = await (await tenant.get("s", user_id="ada")).messages()
    assert [one["role"] for one in stored] == ["user", "assistant"]


async def test_memories_and_messages_of_other_programs_are_found(hf: holdfast.Holdfast) -> None:
    text = "The parcel of Ada is blue. " * 30
    async with hf.serve_tenant("shop") as tenant:
        session = await tenant.session("chat", user_id="ada")
        await session.append({"role": "assistant", "content": text})
        await tenant.memories.remember("Ada likes parcels.", user_id="ada", metadata={"author": {"name": 1}})
    memory = HoldfastMemoryService(hf)
    assert await find(memory, "parcel") == ["Ada likes parcels.", text]


async def test_a_search_returns_at_most_ten_memories(hf: holdfast.Holdfast) -> None:
    memory = HoldfastMemoryService(hf)
    await memory.add_events_to_memory(**ADA, events=[say(f"Parcel {number} is blue.", number) for number in range(15)])
    for number in range(15):
        content = types.Content(parts=[types.Part(text=f"The street of parcel {number} is number {number * 7}.")])
        await memory.add_memory(**ADA, memories=[MemoryEntry(content=content)])
    assert len(await find(memory, "parcel")) == 10
    assert await find(memory, "  ") == []
