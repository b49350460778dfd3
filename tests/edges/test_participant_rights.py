"""What participants in another user's session may read and write, in every API: it is decided in `PARTICIPANT_RIGHTS`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import commands
from holdfast.domain.participants import PARTICIPANT_RIGHTS
from holdfast.domain.session import SessionRef
from holdfast.errors import HoldfastError, SessionNotFound, UserNotFound
from tests.edges.access_kit import auth
from tests.edges.connect_kit import connect_without_pauses
from tests.edges.keys import bearer, create_stored_key
from tests.edges.mcp_client_kit import call, connect, fail, get_refusal
from tests.edges.server import Served, gateway

REF = SessionRef("ada", "plan")
SECRETS: Final = {
    "state": "zebrastate",
    "user state": "zebraprofile",
    "notes": "zebranote",
    "origins": "zebraorigin",
    "retired messages": "zebraretired",
    "artifacts": "zebrafile.txt",
    "named artifacts": "zebranamed.txt",
    "records": "zebrarecord",
    "memories": "zebramemory",
}
"""A word for each part that participants may not read; it appears nowhere else."""
AGENTS: Final = """
agents:
  guide:
    llm: default
    instruction: "Topic: {topic}. Profile: {user:profile?}. App: {app:motd}. File: {artifact.zebrafile.txt}."
    failure_message: "Sorry, {user:profile}!"
"""


async def fill_session(hf: Any) -> None:
    """Create ada's session, in which bob takes part, with something in every part of it."""
    session = await hf.session(REF.id, user_id=REF.user_id, agent="guide" if "guide" in hf.roster.agents else None)
    await session.update(metadata={"participants": ["bob"]})
    await session.append(
        [{"role": "user", "content": "To Oslo."}, {"role": "assistant", "content": SECRETS["retired messages"]}]
    )
    await session.clear()
    reply = {"role": "assistant", "content": "When?", "origin": {"raw": SECRETS["origins"]}}
    named = {"metadata": {"artifacts": [{"name": SECRETS["named artifacts"], "version": 0}], "mood": "calm"}}
    await session.append([{"role": "user", "content": "To Rome. Always book trains."}, {**reply, **named}])
    await session.append(note={"payload": SECRETS["notes"]})
    await session.facts.pin("2.1")
    await session.state.update({"topic": SECRETS["state"], "user:profile": SECRETS["user state"], "app:motd": "hello"})
    await session.artifacts.save(SECRETS["artifacts"], SECRETS["artifacts"])
    await session.records("n").put("k", SECRETS["records"])
    await hf.records("n", user_id="ada").put("k", SECRETS["records"])
    await hf.memories.remember(SECRETS["memories"] + " is ada's", user_id="ada")


def find_secrets(text: str) -> set[str]:
    """Return the parts of which a text shows something."""
    return {part for part, word in SECRETS.items() if word in text}


async def make_key(served: Served, user_id: str) -> dict[str, str]:
    return bearer(await create_stored_key(served.hf, user_id=user_id, role="admin"))


def test_the_rights_are_documented() -> None:
    """The table in docs/sharing.md has one row for each part, with the rights that the code applies."""
    text = (Path(__file__).parents[2] / "docs/sharing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*([\w ]+)\*\*[^|]*\| (yes|no)[^|]*\| (yes|no)[^|]*\|", text, re.MULTILINE)
    assert {part: (read == "yes", write == "yes") for part, read, write in rows} == dict(PARTICIPANT_RIGHTS)


# -- REST ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "info",
        "messages?retired=true&limit=100",
        "messages?order=desc",
        "history",
        "history?view=plain",
        "",
        "?retired=true&calls=true&digests=true&records=true",
    ],
)
async def test_rest_shows_participants_only_the_conversation(tmp_path: Path, path: str) -> None:
    async with gateway(lambda _: "ok", auth(tmp_path), AGENTS) as (served, _):
        await fill_session(served.hf)
        ada, bob = await make_key(served, "ada"), await make_key(served, "bob")
        name, _, query = path.partition("?")
        url = "/v1/sessions/plan" + (f"/{name}" if name else "") + f"?user_id=ada&{query}"
        mine, theirs = [await served.http.get(url, headers=one) for one in (ada, bob)]
        assert (mine.status_code, theirs.status_code) == (200, 200), theirs.text
        assert find_secrets(theirs.text) == set()
        assert "standing_facts" not in theirs.text
        if name != "info":
            assert "To Rome" in theirs.text
            assert find_secrets(mine.text) or "history" in name, "the owner sees more"
        found = theirs.json()
        assert found.get("state", {}) == {}
        assert not {"calls", "records", "origins"} & found.keys()
        assert found.get("artifacts", []) == []


async def test_pages_of_a_participant_are_full_without_notes(tmp_path: Path) -> None:
    """Notes are left out when the log is read, so a page has as many messages as it may have."""
    async with gateway(lambda _: "ok", auth(tmp_path), AGENTS) as (served, _):
        await fill_session(served.hf)
        bob = await make_key(served, "bob")
        session = await served.hf.get(REF)
        for at in range(3):
            await session.append([{"role": "user", "content": f"m{at}"}], note={"at": at})
        page = (await served.http.get("/v1/sessions/plan/messages?user_id=ada&limit=4", headers=bob)).json()
        assert [one["content"] for one in page["data"]] == ["To Rome. Always book trains.", "When?", "m0", "m1"]
        assert page["has_more"] is True
        assert [one.get("metadata") for one in page["data"][:2]] == [None, {"mood": "calm"}]


async def test_an_append_returns_no_state_to_a_participant(tmp_path: Path) -> None:
    async with gateway(lambda _: "ok", auth(tmp_path), AGENTS) as (served, _):
        await fill_session(served.hf)
        ada, bob = await make_key(served, "ada"), await make_key(served, "bob")
        body = {"messages": [{"role": "user", "content": "In May."}], "return_session": True}
        mine, theirs = [
            await served.http.post("/v1/sessions/plan/messages?user_id=ada", json=body, headers=one)
            for one in (ada, bob)
        ]
        assert mine.json()["session"]["state"] == {"topic": SECRETS["state"]}
        assert theirs.json()["session"]["state"] == {}
        assert theirs.json()["session"]["message_count"] == 4, "notes are no messages"


@pytest.mark.parametrize(
    ("part", "method", "path", "body"),
    [
        ("state", "GET", "state", None),
        ("state", "PATCH", "state", {"topic": 1}),
        ("state", "POST", "state", {"changes": [{"op": "set", "key": "topic", "value": 1}]}),
        ("artifacts", "GET", "artifacts", None),
        ("artifacts", "GET", "artifacts/zebrafile.txt", None),
        ("artifacts", "PUT", "artifacts/zebrafile.txt", "x"),
        ("artifacts", "DELETE", "artifacts/zebrafile.txt", None),
        ("records", "GET", "records?namespace=n", None),
        ("records", "GET", "records/record?namespace=n&key=k", None),
        ("records", "PUT", "records/record?namespace=n&key=k", {"value": 1}),
        ("facts", "GET", "facts", None),
        ("facts", "PATCH", "facts/2.1", {"dropped": True}),
        ("compactions", "GET", "compactions", None),
        ("compactions", "POST", "compactions", {"preview": True}),
        ("explain", "GET", "explain", None),
        ("explain", "POST", "context", {}),
        ("notes", "POST", "messages", {"messages": [{"role": "note", "origin": 1}]}),
        ("origins", "POST", "messages", {"messages": [{"role": "user", "content": "x", "origin": 1}]}),
        ("state", "POST", "messages", {"changes": [{"op": "set", "key": "topic", "value": 1}]}),
        ("administration", "POST", "turns", {"messages": [{"role": "user", "content": "x"}]}),
        ("administration", "PATCH", "", {"metadata": {"participants": []}}),
        ("administration", "POST", "fork", {}),
    ],
)
async def test_rest_refuses_participants_everything_else(
    tmp_path: Path, part: str, method: str, path: str, body: Any
) -> None:
    """With a 404, as for a session that does not exist; what they may not append is a 400."""
    async with gateway(lambda _: "ok", auth(tmp_path), AGENTS) as (served, _):
        await fill_session(served.hf)
        ada, bob = await make_key(served, "ada"), await make_key(served, "bob")
        name, _, query = path.partition("?")
        url = "/v1/sessions/plan" + (f"/{name}" if name else "") + f"?user_id=ada&{query}"
        sent = {"content": body} if isinstance(body, str) else {} if body is None else {"json": body}
        before = await served.hf.export(REF, retired=True)
        answer = await served.http.request(method, url, headers=bob, **sent)
        assert answer.status_code == (400 if name == "messages" else 404), (part, answer.text)
        assert await served.hf.export(REF, retired=True) == before
        mine = await served.http.request(method, url, headers=ada, **sent)
        assert mine.status_code < 300 or mine.json()["error"]["code"] == "nothing_to_compact", mine.text


# -- gateway ---------------------------------------------------------------------


async def test_the_prompt_of_a_participants_turn_has_nothing_of_the_owner(tmp_path: Path) -> None:
    """Values of the tenant stay; in the owner's next turn the owner's values are there again."""
    memory = "search: {enabled: true}\nmemory: {enabled: true, inject: true}"
    async with gateway(lambda _: f"see artifact:{SECRETS['artifacts']}", auth(tmp_path), AGENTS, memory) as (
        served,
        upstream,
    ):
        await fill_session(served.hf)
        other = await served.hf.session("other", user_id="ada")
        await other.append([{"role": "user", "content": "Rome is where the zebradiary is."}])
        assert served.hf.index is not None
        await served.hf.index.settled()
        ada, bob = await make_key(served, "ada"), await make_key(served, "bob")
        body = {"session_id": "plan", "session_user": "ada", "model": "guide", "session_mode": "delta"}
        said = {"messages": [{"role": "user", "content": "What do you know about Rome, ada and the zebra?"}]}
        theirs = await served.http.post("/v1/chat/completions", json={**body, **said}, headers=bob)
        assert theirs.status_code == 200, theirs.text
        sent = json.dumps(upstream.requests[-1].body)
        assert "Topic: . Profile: . App: hello. File: ." in sent
        assert find_secrets(sent) == set()
        assert "zebradiary" not in sent
        assert "artifacts" not in theirs.json()["session"], "the reply must not tell which artifacts exist"
        mine = await served.http.post("/v1/chat/completions", json={**body, **said}, headers=ada)
        sent = json.dumps(upstream.requests[-1].body)
        assert f"Topic: {SECRETS['state']}. Profile: {SECRETS['user state']}. App: hello." in sent
        assert mine.json()["session"]["artifacts"] == [{"name": SECRETS["artifacts"], "version": 0}]


async def test_a_key_without_a_user_that_names_a_participant_gets_their_prompt(tmp_path: Path) -> None:
    async with gateway(lambda _: "ok", auth(tmp_path), AGENTS) as (served, upstream):
        await fill_session(served.hf)
        app = bearer(await create_stored_key(served.hf, role="write"))
        body = {"session_id": "plan", "session_user": "ada", "model": "guide", "session_mode": "delta"}
        for user, shown in (("bob", False), ("ada", True), ("bob", False)):
            said = {"messages": [{"role": "user", "content": f"I am {user}"}], "user": user}
            answer = await served.http.post("/v1/chat/completions", json={**body, **said}, headers=app)
            assert answer.status_code == 200, answer.text
            assert (SECRETS["state"] in json.dumps(upstream.requests[-1].body)) is shown


async def test_a_turn_over_rest_for_a_participant_has_nothing_of_the_owner(tmp_path: Path) -> None:
    """Also in its later calls, whose requests have no user message."""
    async with gateway(lambda _: "ok", auth(tmp_path), AGENTS) as (served, _):
        await fill_session(served.hf)
        app = bearer(await create_stored_key(served.hf, role="write"))
        url = "/v1/sessions/plan/turns?user_id=ada"
        said = {"role": "user", "content": "Hi", "metadata": {"user": "bob"}}
        for messages in ([said], []):
            answer = await served.http.post(url, json={"messages": messages, "agent": "guide"}, headers=app)
            assert answer.status_code == 200, answer.text
            assert find_secrets(json.dumps(answer.json()["messages"])) == set()
        mine = await served.http.post(url, json={"messages": [{"role": "user", "content": "Hi"}]}, headers=app)
        assert SECRETS["state"] in mine.text


async def test_the_failure_message_for_a_participant_has_nothing_of_the_owner(tmp_path: Path) -> None:
    async with gateway([500, 500], auth(tmp_path), AGENTS) as (served, _):
        await fill_session(served.hf)
        body = {"session_id": "plan", "session_user": "ada", "model": "guide", "session_mode": "delta"}
        said = {"messages": [{"role": "user", "content": "Hi"}]}
        for user, text in (("bob", "Sorry, !"), ("ada", f"Sorry, {SECRETS['user state']}!")):
            answer = await served.http.post(
                "/v1/chat/completions", json={**body, **said}, headers=await make_key(served, user)
            )
            assert answer.json()["choices"][0]["message"]["content"] == text


async def test_a_past_prompt_of_a_participant_is_shown_as_it_was_sent(tmp_path: Path) -> None:
    async with gateway(lambda _: "ok", auth(tmp_path), AGENTS) as (served, _):
        await fill_session(served.hf)
        ada, bob = await make_key(served, "ada"), await make_key(served, "bob")
        body = {"session_id": "plan", "session_user": "ada", "model": "guide", "session_mode": "delta"}
        turns = []
        for one in (bob, ada):
            said = {"messages": [{"role": "user", "content": "Hi"}]}
            turns.append(
                (await served.http.post("/v1/chat/completions", json={**body, **said}, headers=one)).json()["session"][
                    "turn"
                ]
            )
        for turn in turns:
            shown = await served.http.post(
                "/v1/sessions/plan/context", json={"at_turn": turn, "agent": "guide"}, headers=ada
            )
            assert shown.json()["hash"] == shown.json()["sent_hash"]


# -- MCP, connect, library, command line ---------------------------------------------


async def test_mcp_does_not_reach_sessions_of_others(tmp_path: Path) -> None:
    """An assistant acts for one user and sees only that user's own sessions and memories."""
    async with gateway(lambda _: "ok", auth(tmp_path), AGENTS) as (served, _):
        await fill_session(served.hf)
        bob = await make_key(served, "bob")
        async with connect(served.url, bob) as client:
            assert (await call(client, "list_sessions"))["sessions"] == []
            for name, more in (("read_session", {}), ("explain", {"seq": 2}), ("append_note", {"text": "x"})):
                assert "plan" in await fail(client, name, session_id="plan", **more)
            found = [
                await call(client, "search", query="Rome trains"),
                await call(client, "recall", query="zebramemory"),
            ]
            assert find_secrets(json.dumps(found)) == set()
            assert "Rome" not in json.dumps(found)
        assert "ada" in await get_refusal(served.url, bob, "?user_id=ada")


async def test_connect_gives_a_participant_the_conversation(tmp_path: Path) -> None:
    async with gateway(lambda _: "ok", auth(tmp_path), AGENTS) as (served, _):
        await fill_session(served.hf)
        key = await create_stored_key(served.hf, user_id="bob", role="admin")
        async with connect_without_pauses(served.url, api_key=key) as hf:
            session = await hf.get(REF)
            assert (await session.info()).state == {}
            entries = await session.entries(retired=True)
            assert [one.message.text for one in entries] == ["To Rome. Always book trains.", "When?"]
            assert [one.message.origin for one in entries] == [None, None]
            assert (await session.append({"role": "user", "content": "In May."})).session.state == {}
            assert find_secrets(json.dumps(await hf.export(REF, retired=True, calls=True))) == set()
            for refused in (session.state.all, session.artifacts.list, session.context, session.explain, session.clear):
                with pytest.raises(HoldfastError):
                    await refused()
            with pytest.raises(UserNotFound):
                await hf.user_state("ada").all()


async def test_the_library_exports_what_a_participant_may_read() -> None:
    async with holdfast.open("sqlite://:memory:") as hf:
        await fill_session(hf)
        whole = await hf.export(REF, retired=True, calls=True)
        assert find_secrets(json.dumps(whole)) >= {
            "state",
            "notes",
            "origins",
            "retired messages",
            "artifacts",
            "records",
        }
        assert await hf.export(REF, retired=True, calls=True, viewer="ada") == whole
        seen = await hf.export(REF, retired=True, calls=True, digests=True, viewer="bob")
        assert find_secrets(json.dumps(seen)) == set()
        assert [one["content"] for one in seen["messages"]] == ["To Rome. Always book trains.", "When?"]
        with pytest.raises(SessionNotFound):
            await hf.export(REF, viewer="carl")
        copy = await hf.import_(seen, session_id="copy", user_id="bob")
        assert copy.session.messages == 2


async def test_a_library_turn_for_a_participant_has_nothing_of_the_owner() -> None:
    """The author of the message decides. Without an author, the turn is the owner's."""
    agents = {"guide": holdfast.Agent(name="guide", instruction="Topic: {topic}. Profile: {user:profile}.")}
    async with holdfast.open("sqlite://:memory:", roster=holdfast.Roster(agents=agents)) as hf:
        await fill_session(hf)
        session = await hf.get(REF)
        for user, shown in (("bob", False), ("ada", True), (None, True)):
            named = {} if user is None else {"metadata": {"user": user}}
            async with session.turn({"role": "user", "content": "Hi", **named}) as turn:
                assert (SECRETS["state"] in turn.messages[0]["content"]) is shown
                turn.add("Hello")
                await turn.next()
                assert (SECRETS["user state"] in turn.messages[0]["content"]) is shown


async def test_other_authors_change_nothing_in_a_session_of_one_user() -> None:
    """A program may keep names of its own in `metadata.user`."""
    agents = {"guide": holdfast.Agent(name="guide", instruction="Topic: {topic}.")}
    async with holdfast.open("sqlite://:memory:", roster=holdfast.Roster(agents=agents)) as hf:
        session = await hf.session("s", user_id="ada", agent="guide")
        await session.state.set("topic", "trains")
        async with session.turn({"role": "user", "content": "Hi", "metadata": {"user": "Ada L."}}) as turn:
            assert turn.messages[0]["content"] == "Topic: trains."


@pytest.mark.usefixtures("in_empty_folder")
def test_the_command_line_exports_what_a_participant_may_read() -> None:
    def run(*args: str) -> Any:
        return CliRunner().invoke(commands, ["sessions", *args], prog_name="holdfast")

    import asyncio

    async def fill() -> None:
        async with holdfast.open("sqlite:///holdfast.db") as hf:
            await fill_session(hf)
            await hf.session("own", user_id="ada")

    asyncio.run(fill())
    assert find_secrets(run("export", "plan").stdout) >= {"state", "notes", "records"}
    seen = run("export", "--all", "--viewer", "bob", "--retired", "--calls")
    assert (seen.exit_code, [json.loads(line)["id"] for line in seen.stdout.splitlines()]) == (0, ["plan"])
    assert find_secrets(seen.stdout) == set()
    refused = run("export", "plan", "--viewer", "carl")
    assert (refused.exit_code != 0, refused.stdout) == (True, "")


COMPACTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "compact": ("/v1/responses/compact", {"input": "x"}),
    "threshold": (
        "/v1/responses",
        {"input": "x", "context_management": [{"type": "compaction", "compact_threshold": 1}]},
    ),
    "trigger": ("/v1/responses", {"input": [{"role": "user", "content": "x"}, {"type": "compaction_trigger"}]}),
    "edit": (
        "/v1/messages",
        {
            "messages": [{"role": "user", "content": "x"}],
            "context_management": {
                "edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 1}}]
            },
        },
    ),
    "summarize": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "x"}], "compaction": {"type": "summarize"}},
    ),
}


@pytest.mark.parametrize("way", COMPACTS)
async def test_participants_cannot_compact(way: str, tmp_path: Path) -> None:
    """A participant gets no summary of the session in any way, and makes none; the owner does."""
    path, body = COMPACTS[way]
    async with gateway(["Yes."] * 4, auth(tmp_path)) as (served, _):
        await fill_session(served.hf)
        bob, ada = [await make_key(served, user) for user in ("bob", "ada")]
        log = await served.log(REF.id, REF.user_id)
        sent = {"model": "gpt-4o", "session_id": REF.id, "session_mode": "delta", **body}
        refused = await served.http.post(path, json={**sent, "session_user": "ada"}, headers=bob)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"] == "session_user"
        assert await served.log(REF.id, REF.user_id) == log
        assert not await served.hf.store.compactions(REF)
        allowed = await served.http.post(path, json=sent, headers=ada)
        assert allowed.status_code == 200, allowed.text
        given = await served.http.post(path, json=sent, headers=bob)  # of his own session with this name
        assert "Rome" not in given.text
