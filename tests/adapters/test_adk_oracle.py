"""Behaviours of ADK's session services: the same tests for its in-memory service (the oracle), its two database services, and ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("google.adk", reason="google-adk is not installed here: make adapters")
pytest.importorskip("sqlalchemy", reason="google-adk[db] is not installed here: make adapters")

from google.adk.errors import StaleSessionError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

import holdfast
from holdfast.adapters.adk import HoldfastSessionService
from tests.adapters.oracle import expect_difference

ADA: Any = {"app_name": "shop", "user_id": "ada"}

BY_TIME: Final = "events are sorted by their times, then by their ids"
UNIQUE: Final = "an id of an event may occur once in a session"
NO_JSON: Final = "values are stored as JSON"
PLAIN_ID: Final = "ids are stored as they are"
SQLITE_JSON: Final = "SQLite's JSON functions merge the state, and do not accept this"
REASONS: Final[dict[str, dict[str, str]]] = {
    "in_memory": {
        "test_a_stale_session_is_refused": "sessions are never stale",
        "test_an_equal_event_with_temporary_state_is_stored_once": "the events are compared before `temp:` keys are removed",
    },
    "database": {
        "test_a_blank_id_is_replaced": PLAIN_ID,
        "test_spaces_around_an_id_do_not_count": PLAIN_ID,
        "test_events_stay_in_the_order_in_which_they_were_appended": BY_TIME,
        "test_an_equal_event_is_stored_once": UNIQUE,
        "test_an_equal_event_with_temporary_state_is_stored_once": UNIQUE,
        "test_different_events_may_have_the_same_id": UNIQUE,
        "test_values_that_are_not_json_are_kept": NO_JSON,
        "test_numbers_that_are_not_json_are_kept_in_events": NO_JSON,
        "test_times_of_events_may_be_far_away": "times are dates up to the year 9999",
    },
    "sqlite": {
        "test_values_are_kept[infinite]": SQLITE_JSON,
        "test_values_are_kept[unicode]": SQLITE_JSON,
        "test_values_are_kept[half_pair]": SQLITE_JSON,
        "test_keys_may_have_any_form[nul]": SQLITE_JSON,
        "test_events_are_returned_unchanged[half_pair]": "the database does not store half a surrogate pair",
        "test_events_stay_in_the_order_in_which_they_were_appended": BY_TIME,
        "test_an_equal_event_is_stored_once": UNIQUE,
        "test_an_equal_event_with_temporary_state_is_stored_once": UNIQUE,
        "test_different_events_may_have_the_same_id": UNIQUE,
        "test_values_that_are_not_json_are_kept": NO_JSON,
        "test_numbers_that_are_not_json_are_kept_in_events": NO_JSON,
    },
    "holdfast": {
        "test_ids_may_be_empty_or_long": "an id has 1 to 512 bytes",
        "test_keys_may_be_long": "a key of the state has at most 256 bytes",
        "test_values_may_be_nested_deeply": "a value of the state has at most 64 levels",
        "test_values_that_are_not_json_are_kept": NO_JSON,
        "test_numbers_that_are_not_json_are_kept_in_events": NO_JSON,
    },
}
"""The known differences of each service, by the name of the test."""


@pytest.fixture(params=list(REASONS))
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseSessionService]:
    """Each service in turn. A test that fails for a known reason is expected to fail."""
    expect_difference(request, REASONS[request.param])
    if request.param == "in_memory":
        yield InMemorySessionService()
    elif request.param == "database":
        async with DatabaseSessionService("sqlite+aiosqlite:///:memory:") as opened:
            yield opened
    elif request.param == "sqlite":
        yield SqliteSessionService(str(tmp_path / "adk.db"))
    else:
        async with holdfast.open("sqlite://:memory:") as hf:
            yield HoldfastSessionService(hf)


def make_event(text: str | None = None, *, author: str = "user", at: float = 1_700_000_000.25, **fields: Any) -> Event:
    content = None if text is None else types.Content(role="user", parts=[types.Part(text=text)])
    return Event(**{"author": author, "timestamp": at, "content": content, **fields})


def change(**fields: Any) -> Event:
    return make_event(actions=EventActions(state_delta=fields))


async def read(service: BaseSessionService, session: Session, **config: Any) -> Session:
    found = await service.get_session(
        app_name=session.app_name,
        user_id=session.user_id,
        session_id=session.id,
        config=GetSessionConfig(**config) if config else None,
    )
    assert found is not None
    return found


# -- creating, reading, deleting ----------------------------------------------------


async def test_a_blank_id_is_replaced(service: BaseSessionService) -> None:
    created = await service.create_session(**ADA, session_id="  ")
    assert created.id.strip()


async def test_spaces_around_an_id_do_not_count(service: BaseSessionService) -> None:
    created = await service.create_session(**ADA, session_id=" s ")
    assert created.id == "s"
    assert await service.get_session(**ADA, session_id="\ts\n") == created
    await service.delete_session(**ADA, session_id=" s")
    assert await service.get_session(**ADA, session_id="s") is None


@pytest.mark.parametrize("name", ["", "x" * 600], ids=["empty", "long"])
async def test_ids_may_be_empty_or_long(service: BaseSessionService, name: str) -> None:
    session = await service.create_session(app_name="shop", user_id=name, session_id="s")
    assert await read(service, session) == session


async def test_changes_of_a_returned_session_are_not_stored(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA, session_id="s", state={"k": {"n": [1]}, "user:k": {"n": [1]}})
    await service.append_event(session, make_event("Hello"))
    for one in (session, await read(service, session), (await service.list_sessions(**ADA)).sessions[0]):
        one.state["k"]["n"].append(2)
        one.state["user:k"]["n"].append(2)
        one.state["new"] = 1
    found = await read(service, session)
    assert found.state == {"k": {"n": [1]}, "user:k": {"n": [1]}}


# -- state -------------------------------------------------------------------------------


VALUES: Final[dict[str, Any]] = {
    "none": None,
    "nested_none": {"a": [None, {"b": None}]},
    "floats": [1.0, 0.1, 1e300, -0.0, 5e-324],
    "infinite": [float("inf"), -float("inf")],
    "whole": [2**53 + 1, -(2**63), 2**70],
    "empty": ["", [], {}],
    "unicode": "é 👍 \0 \u2028",
    "half_pair": "\ud83d",
    "like_a_marker": [{"adk": None}, {"adk": "null"}, {"adk": "@"}],
    "large": {"text": "x" * 1_048_576},
    "booleans": [True, False, 0, 1],
}


@pytest.mark.parametrize("prefix", ["", "user:", "app:"])
@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
async def test_values_are_kept(service: BaseSessionService, value: Any, prefix: str) -> None:
    session = await service.create_session(**ADA, state={f"{prefix}a": value})
    await service.append_event(session, change(**{f"{prefix}b": value, f"{prefix}c": 1}))
    await service.append_event(session, change(**{f"{prefix}c": value}))
    found = (await read(service, session)).state
    assert found == session.state
    # As text, so that 1.0 is not 1 or True, and -0.0 is not 0.0.
    assert {key: repr(one) for key, one in found.items()} == {f"{prefix}{key}": repr(value) for key in "abc"}


@pytest.mark.parametrize(
    "key",
    ["", "app:", "user:", "user:temp:k", "app:user:k", "a:b", "é", "a\0b", "adk:last_update_time", "adk:key:k", "k%20"],
    ids=["empty", "app", "user", "user_temp", "app_user", "colon", "letter", "nul", "last_update", "escaped", "quoted"],
)
async def test_keys_may_have_any_form(service: BaseSessionService, key: str) -> None:
    session = await service.create_session(**ADA, state={key: 1})
    assert session.state == {key: 1}
    await service.append_event(session, change(**{key: 2}))
    assert (await read(service, session)).state == {key: 2}


async def test_keys_may_be_long(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA, state={"k" * 1000: 1})
    assert (await read(service, session)).state == {"k" * 1000: 1}


async def test_values_may_be_nested_deeply(service: BaseSessionService) -> None:
    value: Any = 1
    for _ in range(70):
        value = [value]
    session = await service.create_session(**ADA, state={"k": value})
    assert (await read(service, session)).state == {"k": value}


async def test_values_that_are_not_json_are_kept(service: BaseSessionService) -> None:
    state = {"set": {1}, "path": Path("a/b")}
    session = await service.create_session(**ADA, state=state)
    assert (await read(service, session)).state == state


# -- events ------------------------------------------------------------------------------


def make_parts() -> list[types.Part]:
    return [
        types.Part(text="Let me see.", thought=True, thought_signature=b"\x00\xff"),
        types.Part(function_call=types.FunctionCall(id="1", name="find", args={"q": None, "n": 1.5})),
        types.Part.from_bytes(data=bytes(range(256)) * 20, mime_type="image/png"),
        types.Part(file_data=types.FileData(file_uri="gs://a/b", mime_type="image/png")),
    ]


EVENTS: Final[dict[str, dict[str, Any]]] = {
    "text": {"text": "Hello"},
    "half_pair": {"text": "a\ud83db"},
    "nul": {"text": "a\0b"},
    "without_content": {},
    "empty_content": {"content": types.Content(role="model", parts=[])},
    "all_parts": {"content": types.Content(role="model", parts=make_parts())},
    "large": {"text": "x" * 2_000_000},
    "long_running": {"long_running_tool_ids": {"b", "a", "c"}},
    "branch": {"branch": "root.child", "invocation_id": "i-1", "author": "child"},
    "transfer": {"actions": EventActions(transfer_to_agent="other", escalate=True, skip_summarization=False)},
    "artifacts": {"actions": EventActions(artifact_delta={"a/b.txt": 3, "user:c": 0})},
    "rewind": {"actions": EventActions(rewind_before_invocation_id="i-1", state_delta={"k": None})},
    "resumed": {"actions": EventActions(agent_state={"step": 2}, end_of_agent=True)},
    "compaction": {
        "actions": EventActions(
            compaction=EventCompaction(
                start_timestamp=1.5,
                end_timestamp=2.5,
                compacted_content=types.Content(role="model", parts=[types.Part(text="So far.")]),
            )
        )
    },
    "heard": {"input_transcription": types.Transcription(text="Where is it?", finished=True)},
    "spoken": {"output_transcription": types.Transcription(text="On its way.", finished=True), "author": "helper"},
    "interrupted": {"interrupted": True, "turn_complete": True, "error_code": "x", "error_message": "y"},
    "metadata": {
        "custom_metadata": {"a": {"b": [1, None]}},
        "usage_metadata": types.GenerateContentResponseUsageMetadata(prompt_token_count=1, total_token_count=2),
        "grounding_metadata": types.GroundingMetadata(web_search_queries=["q"]),
        "citation_metadata": types.CitationMetadata(),
        "finish_reason": types.FinishReason.STOP,
    },
    "old": {"at": 0.000001},
    "before_1970": {"at": -5.5},
}


@pytest.mark.parametrize("fields", EVENTS.values(), ids=list(EVENTS))
async def test_events_are_returned_unchanged(service: BaseSessionService, fields: dict[str, Any]) -> None:
    session = await service.create_session(**ADA)
    event = make_event(**fields)
    expected = event.model_copy(deep=True)
    assert await service.append_event(session, event) == expected
    found = await read(service, session)
    assert found.events == session.events == [expected]


async def test_results_of_parallel_calls_stay_one_event(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA)
    calls = [types.Part(function_call=types.FunctionCall(id=f"c{n}", name="find", args={"n": n})) for n in range(3)]
    results = [
        types.Part(function_response=types.FunctionResponse(id=f"c{n}", name="find", response={"result": n}))
        for n in (2, 0, 1)
    ]
    await service.append_event(session, make_event(content=types.Content(role="model", parts=calls), at=1))
    await service.append_event(session, make_event(content=types.Content(role="user", parts=results), at=2))
    found = await read(service, session)
    assert [event.content for event in found.events] == [event.content for event in session.events]
    assert (await read(service, session, num_recent_events=1)).events == found.events[1:]


async def test_events_stay_in_the_order_in_which_they_were_appended(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA)
    for number, at in enumerate((30, 10, 20, 20, 20)):
        await service.append_event(session, make_event(str(number), at=at, id=f"e{9 - number}"))
    assert [event.id for event in (await read(service, session)).events] == ["e9", "e8", "e7", "e6", "e5"]


async def test_partial_events_are_not_stored(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA)
    event = make_event("Hel", partial=True, actions=EventActions(state_delta={"k": 1, "temp:k": 1}))
    assert await service.append_event(session, event) is event
    assert (session.events, session.state) == ([], {})
    found = await read(service, session)
    assert (found.events, found.state) == ([], {})


async def test_an_event_can_be_appended_to_an_older_copy_of_its_session_object(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA)
    first = await read(service, session)
    await service.append_event(first, make_event("One", at=1))
    assert len((await read(service, session)).events) == 1


async def test_an_equal_event_is_stored_once(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA)
    event = make_event("Hello", id="e1", actions=EventActions(state_delta={"k": 1}))
    await service.append_event(session, event.model_copy(deep=True))
    await service.append_event(session, event.model_copy(deep=True))
    assert (await read(service, session)).events == session.events == [event]


async def test_an_equal_event_with_temporary_state_is_stored_once(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA)
    event = make_event("Hello", id="e1", actions=EventActions(state_delta={"temp:k": 1}))
    await service.append_event(session, event.model_copy(deep=True))
    await service.append_event(session, event.model_copy(deep=True))
    assert len((await read(service, session)).events) == 1


async def test_numbers_that_are_not_json_are_kept_in_events(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA)
    event = await service.append_event(session, make_event(custom_metadata={"score": float("inf")}))
    assert (await read(service, session)).events == [event]


async def test_times_of_events_may_be_far_away(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA)
    event = await service.append_event(session, make_event("Hello", at=1e14))
    assert (await read(service, session)).events == [event]


async def test_different_events_may_have_the_same_id(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA)
    for text in ("One", "Two"):
        await service.append_event(session, make_event(text, id="e1"))
    assert len((await read(service, session)).events) == 2


async def test_a_stale_session_is_refused(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA)
    stale = await read(service, session)
    await service.append_event(session, make_event("One", at=session.last_update_time + 1))
    with pytest.raises(StaleSessionError):
        await service.append_event(stale, make_event("Two", at=session.last_update_time + 2))
    assert len((await read(service, session)).events) == 1


async def test_flushing_loses_nothing(service: BaseSessionService) -> None:
    session = await service.create_session(**ADA)
    await service.append_event(session, make_event("Hello"))
    await service.flush()
    assert await read(service, session) == session
