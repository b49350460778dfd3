"""The session service and the working-set plugin for Google's ADK: ADK's own services as the oracle, and real agents."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk", reason="google-adk is not installed here: make adapters")

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.adapters.adk import HoldfastSessionService, WorkingSetPlugin, fit_contents, register
from holdfast.errors import BudgetTooSmall
from tests.adapters.pages import run_page

MEMORY = "sqlite://:memory:"
ADA: Any = {"app_name": "shop", "user_id": "ada"}


@pytest.fixture
async def hf() -> AsyncIterator[holdfast.Holdfast]:
    async with holdfast.open(MEMORY) as opened:
        yield opened


def say(text: str | None, number: int = 0, *, author: str = "user", **fields: Any) -> Event:
    """Make an event with a fixed id and time."""
    content = types.Content(role="user", parts=[types.Part(text=text)]) if text is not None else None
    return Event(id=f"e{number}", timestamp=1700000000.123456 + number, author=author, content=content, **fields)


async def read(service: BaseSessionService, session_id: str = "s", **config: Any) -> Session:
    found = await service.get_session(
        **ADA, session_id=session_id, config=GetSessionConfig(**config) if config else None
    )
    assert found is not None
    return found


# -- the same as ADK's own service -----------------------------------------------

VALUES = st.sampled_from(
    [None, 0, 1.5, "text", [1, None], {"a": {"b": None}}, True, 2**70, "\ud800", "x" * 20_000, ["é" * 20_000]]
    + [{"adk": one} for one in (None, "null", "@", "x" * 20_000, {"adk": "@"}, 1)]
)
KEYS = [
    "k",
    "user:k",
    "app:k",
    "temp:k",
    "user:other",
    "",
    "app:",
    "user:",
    "user:temp:k",
    "app:user:k",
    "a\0b",
    "\ud800",
]
KEYS += ["adk:last_update_time", "adk:stored_elsewhere", "adk:key:k", "user:adk:key:", "k%20k", "app:adk:%2e"]
DELTAS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3)
NAMES = st.tuples(st.sampled_from(["shop", "bank"]), st.sampled_from(["ada", "bob"]), st.sampled_from(["s1", "s2"]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES, DELTAS),
        st.tuples(st.just("delete"), NAMES, st.none()),
        st.tuples(st.just("append"), NAMES, st.tuples(st.integers(0, 30), DELTAS, st.sampled_from(["text", "", None]))),
        st.tuples(st.just("get"), NAMES, st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(0, 30))),
        st.tuples(st.just("list"), NAMES, st.booleans()),
        st.tuples(st.just("user"), NAMES, st.none()),
    ),
    max_size=25,
)


def strip(session: Session | None) -> Any:
    """Return a session as JSON, without the time of its creation, which both services take from the clock."""
    if session is None:
        return None
    dumped = session.model_dump(mode="json")
    return dumped if session.last_update_time < 1_750_000_000 else {**dumped, "last_update_time": None}


async def perform(service: BaseSessionService, step: Any) -> Any:
    """Perform a step, and return what a caller notices of it."""
    kind, (app, user, name), value = step
    owner: Any = {"app_name": app, "user_id": user}
    if kind == "create":
        try:
            return strip(await service.create_session(**owner, session_id=f" {name} ", state=dict(value)))
        except AlreadyExistsError as exc:
            return str(exc)
    if kind == "delete":
        return await service.delete_session(**owner, session_id=name)
    if kind == "append":
        number, delta, text = value
        session = await service.get_session(**owner, session_id=name)
        if session is None:
            session = Session(id=name, **owner)
        event = say(text, number, actions=EventActions(state_delta=dict(delta)))
        if any(
            key.startswith("temp:") for key in delta
        ):  # ADK stores a repeated event with temp: keys twice, Holdfast does not
            event.id = f"temp{len(session.events)}-{number}"
        try:
            appended = await service.append_event(session, event)
        except SessionNotFoundError as exc:
            return str(exc)
        return appended.model_dump(mode="json"), strip(session)
    if kind == "get":
        recent, since = value
        after = None if since is None else 1700000000.123456 + since
        config = GetSessionConfig(num_recent_events=recent, after_timestamp=after)
        return strip(await service.get_session(**owner, session_id=name, config=config))
    if kind == "list":
        listed = await service.list_sessions(app_name=app, user_id=user if value else None)
        return sorted((strip(one) for one in listed.sessions), key=lambda one: (one["user_id"], one["id"]))
    return await service.get_user_state(**owner)


@given(STEPS)
async def test_every_operation_has_the_same_result_as_in_adks_own_service(steps: Any) -> None:
    async with holdfast.open(MEMORY) as hf:
        ours, oracle = HoldfastSessionService(hf), InMemorySessionService()
        for step in steps:
            assert await perform(ours, step) == await perform(oracle, step), step


# -- sessions ----------------------------------------------------------------------


def make_full_event() -> Event:
    return Event(
        author="agent",
        invocation_id="i",
        timestamp=1.000000123,
        content=types.Content(
            role="model",
            parts=[
                types.Part(text="Let me see.", thought=True, thought_signature=os.urandom(64)),
                types.Part(function_call=types.FunctionCall(id="1", name="find", args={"q": None, "n": 1.5})),
                types.Part.from_bytes(data=os.urandom(3000), mime_type="image/png"),
                types.Part.from_bytes(data=os.urandom(30), mime_type="audio/wav"),
                types.Part(executable_code=types.ExecutableCode(code="1+1", language=types.Language.PYTHON)),
                types.Part(file_data=types.FileData(file_uri="gs://a/b", mime_type="image/png")),
            ],
        ),
        actions=EventActions(state_delta={"k": None, "m": {"n": None}}, artifact_delta={"file": 0}, escalate=True),
        long_running_tool_ids={"b", "a", "c"},
        error_code="code",
        grounding_metadata=types.GroundingMetadata(search_entry_point=types.SearchEntryPoint(sdk_blob=b"blob")),
        custom_metadata={"key": None, "list": [1]},
        usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=1),
        output={"a": None},
    )


async def test_one_event_with_several_results_comes_back_as_one(hf: holdfast.Holdfast) -> None:
    service = HoldfastSessionService(hf)
    session = await service.create_session(**ADA, session_id="s")
    calls = [types.Part(function_call=types.FunctionCall(id=f"c{n}", name="find", args={"n": n})) for n in range(3)]
    results = [
        types.Part(function_response=types.FunctionResponse(id=f"c{n}", name="find", response={"result": f"r{n}"}))
        for n in range(3)
    ]
    await service.append_event(session, Event(author="agent", content=types.Content(role="model", parts=calls)))
    await service.append_event(session, Event(author="agent", content=types.Content(role="user", parts=results)))
    assert await read(service) == session
    assert len((await read(service, num_recent_events=2)).events) == 2
    async with hf.serve_tenant("shop") as tenant:
        messages = await (await tenant.get("s", user_id="ada")).messages()
    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "tool"]
    assert [message["content"] for message in messages[1:]] == ["r0", "r1", "r2"]


async def test_an_event_without_content_is_a_note(hf: holdfast.Holdfast) -> None:
    service = HoldfastSessionService(hf)
    session = await service.create_session(**ADA, session_id="s")
    await service.append_event(session, say(None, 1, actions=EventActions(state_delta={"k": 1})))
    await service.append_event(session, say("Hello", 2))
    assert [event.id for event in (await read(service)).events] == ["e1", "e2"]
    async with hf.serve_tenant("shop") as tenant:
        stored = await tenant.get("s", user_id="ada")
        assert await stored.messages() == [{"role": "user", "content": "Hello"}]
        assert (await stored.entries())[0].is_note


async def test_users_and_applications_do_not_share_sessions(hf: holdfast.Holdfast) -> None:
    service = HoldfastSessionService(hf)
    session = await service.create_session(**ADA, session_id="s", state={"user:k": 1, "app:k": 2, "k": 3})
    await service.append_event(session, say("Secret"))
    for owner in ({"app_name": "shop", "user_id": "bob"}, {"app_name": "bank", "user_id": "ada"}):
        assert await service.get_session(**owner, session_id="s") is None
        assert (await service.list_sessions(**owner)).sessions == []
        assert await service.get_user_state(**owner) == {}
        await service.delete_session(**owner, session_id="s")
        with pytest.raises(SessionNotFoundError):
            await service.append_event(Session(id="s", **owner), say("Hello", 1))
    assert (await read(service)).state == {"user:k": 1, "app:k": 2, "k": 3}
    assert (await service.create_session(app_name="shop", user_id="bob")).state == {"app:k": 2}


async def test_state_and_summaries_do_not_make_a_session_stale(hf: holdfast.Holdfast) -> None:
    service = HoldfastSessionService(hf)
    session = await service.create_session(**ADA, session_id="s")
    async with hf.serve_tenant("shop") as tenant:
        await (await tenant.get("s", user_id="ada")).state.update({"k": 1, "user:k": 2})
    await service.append_event(session, say("One", 1))
    assert (await read(service)).state == {"k": 1, "user:k": 2}


async def test_concurrent_events_of_one_session_object_are_all_stored(hf: holdfast.Holdfast) -> None:
    service = HoldfastSessionService(hf)
    session = await service.create_session(**ADA, session_id="s")
    await asyncio.gather(*(service.append_event(session, say("Text", number)) for number in range(8)))
    assert len((await read(service)).events) == len(session.events) == 8


async def test_an_event_that_was_stored_before_a_lost_answer_is_not_stored_twice(hf: holdfast.Holdfast) -> None:
    service = HoldfastSessionService(hf)
    session = await service.create_session(**ADA, session_id="s")
    lost = await read(service)
    await service.append_event(session, say("One", 1))
    await service.append_event(lost, say("One", 1))
    assert lost == session
    await service.append_event(lost, say("Two", 2))
    assert len((await read(service)).events) == 2
    await service.append_event(session, say("One", 1))
    with pytest.raises(StaleSessionError):
        await service.append_event(session, say("Three", 3))


async def test_recent_events_are_read_without_the_whole_log(hf: holdfast.Holdfast, monkeypatch: Any) -> None:
    service = HoldfastSessionService(hf)
    session = await service.create_session(**ADA, session_id="s")
    for number in range(60):
        await service.append_event(session, say("Text", number))
    reads: list[int] = []
    entries = holdfast.SessionHandle.entries

    async def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = await entries(self, *args, **kwargs)
        reads.append(len(found))
        return found

    monkeypatch.setattr(holdfast.SessionHandle, "entries", count)
    assert [event.id for event in (await read(service, num_recent_events=3)).events] == ["e57", "e58", "e59"]
    assert sum(reads) <= 6
    assert (await read(service, num_recent_events=0)).events == []
    assert [event.id for event in (await read(service, after_timestamp=session.events[58].timestamp)).events] == [
        "e58",
        "e59",
    ]


async def test_sessions_are_listed_by_the_time_of_their_last_event(hf: holdfast.Holdfast) -> None:
    service = HoldfastSessionService(hf)
    for name, number in (("a", 30), ("b", 10), ("c", 20)):
        session = await service.create_session(**ADA, session_id=name)
        await service.append_event(session, say("Text", number))
    listed = (await service.list_sessions(app_name="shop")).sessions
    assert [one.id for one in listed] == ["b", "c", "a"]
    assert [one.last_update_time for one in listed] == [1700000000.123456 + number for number in (10, 20, 30)]


@pytest.mark.parametrize("prefix", ["", "user:", "app:"])
async def test_numbers_that_are_not_json_and_large_values_are_kept(hf: holdfast.Holdfast, prefix: str) -> None:
    service = HoldfastSessionService(hf)
    first = {f"{prefix}k": [float("inf"), {"n": -float("inf")}], f"{prefix}large": "é" * 1_000_000}
    session = await service.create_session(**ADA, session_id="s", state=first)
    assert (await read(service)).state == session.state == first
    assert math.isnan((await service.create_session(**ADA, state={"k": float("nan")})).state["k"])
    second = {f"{prefix}large": ["é" * 1_000_000], f"{prefix}k": {"n": "x" * 1_048_576}}
    await service.append_event(session, say("Text", 1, actions=EventActions(state_delta=second)))
    assert (await read(service)) == session
    assert session.state == second
    if prefix == "user:":
        raw = {key.removeprefix(prefix): value for key, value in second.items()}
        assert await service.get_user_state(**ADA) == raw
    listed = (await service.list_sessions(**ADA)).sessions
    assert next(one for one in listed if one.id == "s").state == second
    await service.append_event(session, say("Text", 2, actions=EventActions(state_delta={f"{prefix}large": None})))
    assert (await read(service)).state == {**second, f"{prefix}large": None}


async def test_a_session_with_large_values_that_was_only_begun_can_be_created_again(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = HoldfastSessionService(hf)
    with monkeypatch.context() as patch:
        patch.setattr(holdfast.SessionHandle, "append", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await service.create_session(**ADA, session_id="s", state={"k": "x" * 300_000})
    assert (await service.list_sessions(**ADA)).sessions == []
    await service.create_session(**ADA, session_id="s", state={"k": "x" * 300_000})
    assert (await read(service)).state == {"k": "x" * 300_000}
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**ADA, session_id="s", state={"k": "x" * 300_000})


async def test_an_event_with_half_of_a_surrogate_pair_is_stored(hf: holdfast.Holdfast) -> None:
    service = HoldfastSessionService(hf)
    session = await service.create_session(**ADA, session_id="s")
    for number, text in enumerate(("A \ud83d B", "A 😀 B", "A \\ud83d B", "\ude00\ud83d")):
        await service.append_event(session, say(text, number))
    assert await read(service) == session
    async with hf.serve_tenant("shop") as tenant:
        messages = await (await tenant.get("s", user_id="ada")).messages()
    assert [one["content"] for one in messages] == ["A ? B", "A 😀 B", "A \\ud83d B", "??"]


async def test_values_that_are_not_json_are_stored_as_in_adks_databases(hf: holdfast.Holdfast) -> None:
    service = HoldfastSessionService(hf)
    state = {"path": Path("a/b"), "set": {1}, "function": make_full_event}
    stored = (await service.create_session(**ADA, state=state)).state
    assert (stored["path"], stored["set"]) == ("a/b", [1])
    assert "make_full_event" in stored["function"]


def test_the_command_line_opens_services_by_uri(tmp_path: Path) -> None:
    from google.adk.cli.service_registry import get_service_registry

    register()
    registry, uri = get_service_registry(), f"holdfast+sqlite:///{tmp_path}/chat.db"
    sessions = registry.create_session_service(uri, agents_dir=str(tmp_path))
    memories = registry.create_memory_service(uri, agents_dir=str(tmp_path))
    artifacts = registry.create_artifact_service(uri, agents_dir=str(tmp_path))
    assert sessions is not None
    assert memories is not None
    assert artifacts is not None

    async def use() -> None:
        session = await sessions.create_session(**ADA, session_id="s")
        await sessions.append_event(session, say("The parcel is blue."))
        found = await memories.search_memory(**ADA, query="What is blue?")
        assert len(found.memories) == 1
        assert await artifacts.save_artifact(**ADA, session_id="s", filename="a", artifact=types.Part(text="A")) == 0

    asyncio.run(use())
    assert (tmp_path / "chat.db").exists()


# -- the working set ----------------------------------------------------------------


def check_contents(contents: list[types.Content]) -> None:
    """Check Gemini's rules: a user content comes first, and the content after calls has exactly their results."""
    assert contents[0].role == "user"
    waiting: list[str | None] = []
    for content in contents:
        results = [part.function_response.name for part in content.parts or () if part.function_response]
        assert sorted(map(str, results)) == sorted(map(str, waiting))
        waiting = [part.function_call.name for part in content.parts or () if part.function_call]
    assert not waiting


def count_tokens(contents: list[types.Content]) -> int:
    messages = [{"role": "user", "content": content.model_dump_json(exclude_none=True)} for content in contents]
    return holdfast.fit(messages, budget=2**31).conversation_tokens


def play_orders(turns: int, *, ids: bool = True, calls: int = 2, size: int = 60) -> list[types.Content]:
    """Return a conversation with parallel calls, thoughts and signatures."""
    contents = []
    for turn in range(turns):
        names = [f"c{turn}-{n}" if ids else None for n in range(calls)]
        called = [
            types.Part(
                function_call=types.FunctionCall(id=name, name=f"find{n}", args={"order": turn}),
                thought_signature=f"sig{turn}-{n}".encode(),
            )
            for n, name in enumerate(names)
        ]
        found = [
            types.FunctionResponse(id=name, name=f"find{n}", response={"result": f"Order {turn} is at {n}. " * size})
            for n, name in enumerate(names)
        ]
        thought = types.Part(text="Let me see.", thought=True)
        contents += [
            types.Content(role="user", parts=[types.Part(text=f"Where is order {turn}?")]),
            types.Content(role="model", parts=[thought, *called]),
            types.Content(role="user", parts=[types.Part(function_response=one) for one in found]),
            types.Content(role="model", parts=[types.Part(text=f"Order {turn} is on its way.")]),
        ]
    return [*contents, types.Content(role="user", parts=[types.Part(text="And where is the first one?")])]


@given(st.integers(0, 8), st.booleans(), st.integers(0, 3), st.sampled_from([1, 20, 400]), st.integers(300, 6_000))
def test_fitted_contents_are_valid_for_gemini(turns: int, ids: bool, calls: int, size: int, budget: int) -> None:
    contents = [
        one for one in play_orders(turns, ids=ids, calls=calls, size=size) if calls or "function" not in str(one)
    ]
    contents = [one for one in contents if one.parts]
    fitted = fit_contents(contents, budget=budget)
    check_contents(fitted)
    assert fitted[-1] is contents[-1]
    signed = [part for one in fitted for part in one.parts or () if part.function_call]
    assert all(part.thought_signature for part in signed)


PICTURE = types.Part.from_bytes(data=b"\x89PNG\r\n\x1a\n123", mime_type="image/png")
IDS = st.sampled_from([None, "a", "b"])
ODD_PARTS = st.one_of(
    st.builds(lambda size: types.Part(text="words " * size), st.sampled_from([0, 1, 100])),
    st.just(types.Part(text="thinking", thought=True)),
    st.builds(
        lambda name, size: types.Part(
            function_call=types.FunctionCall(id=name, name="f", args={"x": "y" * size}), thought_signature=b"s"
        ),
        IDS,
        st.sampled_from([1, 3000]),
    ),
    st.builds(
        lambda name, size: types.Part(
            function_response=types.FunctionResponse(id=name, name="f", response={"result": "z " * size})
        ),
        IDS,
        st.sampled_from([1, 2000]),
    ),
    st.just(PICTURE),
)
ODD_CONTENTS = st.builds(
    lambda role, parts: types.Content(role=role, parts=parts),
    st.sampled_from(["user", "model"]),
    st.lists(ODD_PARTS, max_size=4),
)


@given(st.lists(ODD_CONTENTS, max_size=12), st.sampled_from([300, 2000, 10**6]))
def test_contents_with_repeated_ids_and_orphans_are_fitted_too(contents: list[types.Content], budget: int) -> None:
    try:
        fitted = fit_contents(contents, budget=budget)
    except BudgetTooSmall:
        return
    parts = [part for content in fitted for part in content.parts or ()]
    assert all(part.thought_signature for part in parts if part.function_call)
    if budget == 10**6:
        pictures = [part for content in contents for part in content.parts or () if part == PICTURE]
        assert [part for part in parts if part == PICTURE] == pictures


def test_contents_that_fit_are_the_same_objects() -> None:
    contents = play_orders(30, size=10)
    assert fit_contents(contents, budget=100_000) == contents
    fitted = fit_contents(contents, budget=2_500)
    own = [one for one in fitted if any(one is known for known in contents)]
    assert len(own) >= 5
    assert any(part.thought for one in own for part in one.parts or ())
    assert len(fitted) < 20


async def test_the_plugin_changes_only_the_contents() -> None:
    tool = types.Tool(function_declarations=[types.FunctionDeclaration(name="find0")])
    config = types.GenerateContentConfig(system_instruction="You help.", tools=[tool], temperature=0.5)
    request = LlmRequest(model="gemini-2.5-flash", contents=play_orders(30), config=config.model_copy(deep=True))
    await WorkingSetPlugin(budget=2_500).before_model_callback(callback_context=None, llm_request=request)
    assert request.config == config
    assert request.model == "gemini-2.5-flash"
    check_contents(request.contents)
    assert count_tokens(request.contents) < 6_000


# -- agents --------------------------------------------------------------------------


class ScriptedModel(BaseLlm):
    """A model that calls the tool twice after each question, then answers. It keeps the contents that it got."""

    prompts: list[list[types.Content]]

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncIterator[LlmResponse]:
        self.prompts.append(list(llm_request.contents))
        asked = (llm_request.contents[-1].parts or [])[-1]
        if asked.function_response is not None:
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="It is on its way.")]))
            return
        number = int("".join(filter(str.isdigit, asked.text or "0")))
        calls = [types.FunctionCall(name="find", args={"order": number + extra}) for extra in (0, 1)]
        parts = [types.Part(function_call=call, thought_signature=b"sig") for call in calls]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


def find(order: int) -> str:
    """Find an order."""
    return f"Order {order} is on its way, parcel {order * 17}. " * 8


async def ask(runner: Runner, number: int) -> None:
    message = types.Content(role="user", parts=[types.Part(text=f"Where is order {number}?")])
    async for _ in runner.run_async(user_id="ada", session_id="s", new_message=message):
        pass


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("adk")
