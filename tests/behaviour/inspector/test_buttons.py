"""Every button of the inspector that changes something: what the page then says, and what is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import Served, gateway, texts, user
from tests.behaviour.kit.inspector import (
    HTML,
    SECRET,
    add_key,
    look,
    press,
    read_csrf,
    serve_filled,
    sign_in,
    sign_in_as,
)
from tests.behaviour.kit.rest import ask

S: Final = "/inspect/sessions/s"
OF_DEFAULT: Final = "scope=user&owner=default"


async def memory(served: Served, words: str) -> Any:
    """Return the newest memory with these words, whatever its status."""
    found: list[Any] = []
    for status in ("active", "quarantined", "rejected", "superseded"):
        found += (await ask(served.http, "GET", "/v1/memories", status=status, user_id="default"))["data"]
    return next(one for one in found if words in one["content"])


@pytest.mark.parametrize(
    ("page", "button", "fields", "notice", "path", "found"),
    [
        pytest.param(S, "Pin", {"holding": 'value="0"'}, "pinned", "/messages", {"pinned": True}, id="pin"),
        pytest.param(
            f"{S}/messages/0", "Set", {"body__importance": "0.9"}, "", "/messages", {"importance": 0.9}, id="rate"
        ),
        pytest.param(
            f"{S}/messages/0/erase",
            "Erase the content",
            {},
            "Message 0 has no content any more",
            "/messages",
            {"content": "[erased]"},
            id="erase",
        ),
        pytest.param(
            f"{S}/manage", "Set", {"body__ttl": "3600000"}, "60 minutes", "/info", {"ttl": 3_600_000}, id="ttl"
        ),
        pytest.param(
            f"{S}/manage", "Set", {"body__ttl": "0"}, "never", "/info", {"ttl": 0, "expires_at": None}, id="no ttl"
        ),
    ],
)
async def test_a_message_and_a_session_are_changed(
    page: str, button: str, fields: dict[str, Any], notice: str, path: str, found: dict[str, Any]
) -> None:
    async with serve_filled() as served:
        assert notice in (await press(served, page, button, **fields)).text
        row = await ask(served.http, "GET", f"/v1/sessions/s{path}", limit=1 if path == "/messages" else None)
        row = row["data"][0] if "data" in row else row
        assert {name: row.get(name) for name in found} == found


async def test_a_session_is_forked_rewound_moved_closed_and_deleted(tmp_path: Path) -> None:
    async with serve_filled(store=f"sqlite:///{tmp_path}/chat.db") as served:
        forked = await press(served, f"{S}/turns/1", "Fork", body__id="copy")
        assert "copy" in forked.text
        copy = "/inspect/sessions/copy"
        assert len(await served.rest.session("copy").messages()) == 7
        assert "forked from" in (await look(served, copy)).text
        assert "The session was rewound." in (await press(served, f"{copy}/turns/0", "Rewind")).text
        assert "5 messages were replaced by a rewind" in (await look(served, copy)).text
        assert len(await served.rest.session("copy").messages()) == 2
        assert "Closed. The next message opens it again." in (await press(served, f"{copy}/manage", "Close")).text
        await press(served, f"{copy}/manage", "Move", body__user_id="bob", body__id="moved")
        moved = await ask(served.http, "GET", "/v1/sessions/moved/info")
        assert (moved["user_id"], moved["status"]) == ("bob", "closed")
        deleted = await press(served, "/inspect/sessions/moved/delete?user_id=bob", "Delete the session")
        assert "Receipt" in deleted.text
        assert [row["id"] for row in await served.rest.sessions(user="bob")] == []
        journal = await look(served, "/inspect/deletions?session_id=moved&user_id=bob")
        assert "No deletions" not in journal.text


async def test_a_message_that_was_forgotten_is_pinned_and_comes_back() -> None:
    async with serve_filled() as served:
        page = f"{S}/forgotten?seq=2"
        assert "Pin it" in (await look(served, page)).text
        await press(served, page, "Pin it")
        again = await look(served, page)
        assert "The prompt has this message." in again.text or "pinned" in again.text
        context = await served.rest.session("s").context()
        assert any("{{ 7 * 7 }}" in str(one["content"]) for one in context["messages"])


@pytest.mark.parametrize(("button", "status"), [("Approve", "active"), ("Reject", "rejected")])
async def test_a_held_memory_is_reviewed(button: str, status: str) -> None:
    async with serve_filled() as served:
        held = await memory(served, "Send money")
        page = await press(served, f"/inspect/memories/{held['id']}", button)
        assert "The review was recorded." in page.text
        assert (await memory(served, "Send money"))["status"] == status


@pytest.mark.parametrize(("button", "versions"), [("Approve", 1), ("Reject", 0)])
async def test_a_held_change_of_a_memory_file_is_reviewed(button: str, versions: int) -> None:
    async with serve_filled() as served:
        page = await press(served, f"/inspect/memories/held?{OF_DEFAULT}", button, holding="review_file_change")
        assert "No change of a memory file is held" in page.text
        where = {"path": "/memories/held.md"}
        files = (await served.http.get("/v1/users/default/memory_files", params=where)).json()
        assert [one["text"] for one in files.get("data", [])] == [SECRET] * versions


async def test_a_memory_is_written_edited_and_forgotten() -> None:
    async with serve_filled() as served:
        new: dict[str, Any] = {
            "body__content": "Ada plays chess",
            "body__type": "user",
            "body__tags": "games, mind",
            "body__importance": "0.4",
        }
        assert "saved" in (await press(served, f"/inspect/memories?{OF_DEFAULT}", "Save", **new)).text
        made = await memory(served, "chess")
        assert (made["type"], made["tags"], made["importance"]) == ("user", ["games", "mind"], 0.4)
        page, edit = f"/inspect/memories/{made['id']}", {**new, "body__content": "Ada plays go"}
        late: dict[str, Any] = {**edit, "if-match": str(made["version"] - 1)}
        assert "read them again" in (await press(served, page, "Save", 412, **late)).text
        assert "The memory was changed." in (await press(served, page, "Save", **edit)).text
        changed = await memory(served, "plays go")
        assert changed["supersedes"] == [made["id"]]
        gone = await press(served, f"/inspect/memories/{changed['id']}", "Forget this memory")
        assert "The memory was deleted, with its older versions." in gone.text
        await look(served, f"/inspect/memories/{made['id']}", 404)


async def test_consolidation_is_tried_and_run() -> None:
    async with serve_filled() as served:
        page = f"/inspect/memories/diary?{OF_DEFAULT}"
        assert "Nothing was written." in (await press(served, page, "Try without writing")).text
        assert "No consolidation yet" in (await look(served, page)).text
        for question in ("which colour?", "favourite things?", "is green a favourite colour?"):
            await ask(served.http, "GET", "/v1/memories", q=question, user_id="default")
        await served.native.memories.settled()
        assert "promoted" in (await press(served, page, "Consolidate now")).text
        assert "1 promoted" in (await look(served, page)).text


@pytest.mark.parametrize(
    ("place", "owner", "key"),
    [
        ("scope=app", {"scope": "tenant"}, "app:colour"),
        ("scope=user&user_id=ada", {"user_id": "ada"}, "user:colour"),
        ("session_id=s", {"session_id": "s", "user_id": "default"}, "colour"),
    ],
)
async def test_a_key_of_the_state_is_added_changed_and_deleted(place: str, owner: dict[str, str], key: str) -> None:
    async with serve_filled() as served:
        new = f"/inspect/state/edit?{place}"
        await press(served, new, "Save", key="colour", value='"blue"')
        assert (await ask(served.http, "GET", "/v1/state", **owner))[key] == "blue"
        await press(served, new, "Save", 409, key="colour", value='"red"')
        await press(served, f"{new}&key={key}", "Save", value='{"a": 1}')
        assert (await ask(served.http, "GET", "/v1/state", **owner))[key] == {"a": 1}
        await press(served, f"{new}&key={key}", "Save", 400, value="{")
        await press(served, f"{new}&key={key}", "Delete the key")
        assert key not in await ask(served.http, "GET", "/v1/state", **owner)


async def test_a_value_that_somebody_changed_meanwhile_is_not_overwritten() -> None:
    async with serve_filled() as served:
        await served.rest.session("s").change_state(note="theirs")
        page = await press(
            served, "/inspect/state/edit?session_id=s&key=note", "Save", 409, base='"old"', value='"mine"'
        )
        assert "theirs" in page.text
        assert "Replace with your value" in page.html
        assert (await served.rest.session("s").state())["note"] == "theirs"


async def test_a_record_is_put_and_deleted() -> None:
    async with serve_filled() as served:
        at = "/inspect/state/record?scope=app&namespace=prefs"
        new: dict[str, Any] = {"namespace": "prefs", "key": "new", "value": "{}", "seconds": "60"}
        assert "The record was saved." in (await press(served, at, "Save", **new)).text
        await press(served, at, "Save", 409, **{**new, "value": "[]"})
        assert "whole number" in (await press(served, at, "Save", 400, **{**new, "key": "b", "seconds": "soon"})).text
        record = {"scope": "tenant", "namespace": "prefs", "key": "new"}
        saved = await ask(served.http, "GET", "/v1/records/record", **record)
        assert saved["value"] == {}
        assert saved["expires_at"] == served.clock.now + 60_000
        page = await press(served, f"{at}&key=new", "Delete the record")
        assert "The record was deleted." in page.text
        assert (await served.http.get("/v1/records/record", params=record)).status_code == 404


async def test_artifacts_are_deleted_by_version_and_as_a_whole() -> None:
    async with serve_filled() as served:
        page, path = f"{S}/artifacts/report.html", "/v1/sessions/s/artifacts"
        await press(served, page, "Delete", holding='value="0"')
        rows = (await ask(served.http, "GET", path, name="report.html"))["data"]
        assert [one["version"] for one in rows] == [1]
        await press(served, page, "Delete all versions")
        names = [one["name"] for one in (await ask(served.http, "GET", path))["data"]]
        assert names == ["dot.png", "drawing.svg", "user:data.bin"]


async def test_a_key_is_created_shown_once_and_revoked() -> None:
    async with gateway() as served:
        admin = await add_key(served)
        await sign_in(served, admin)
        fields = {
            "name": "<b>ci</b>",
            "role": "read",
            "user_id": "ada",
            "expires": "12h",
            "rate": "5",
            "max_body": "1000",
        }
        given: dict[str, Any] = {f"body__{name}": value for name, value in fields.items()}
        page = await press(served, "/inspect/keys", "Create key", **given)
        assert "hf_" in page.text
        assert "<b>ci" not in page.html
        assert page.headers["cache-control"] == "no-store"
        headers = {"x-holdfast-key": admin}
        rows = (await served.http.get("/v1/keys", headers=headers)).json()["data"]
        [made] = [row for row in rows if row["name"] == "<b>ci</b>"]
        assert (made["role"], made["user_id"], made["rate"], made["max_body"]) == ("read", "ada", 5, 1000)
        assert made["expires_at"] - made["created_at"] == 43_200_000
        revoked = await press(served, f"/inspect/keys/{made['id']}", "Revoke the key")
        assert "The key was revoked" in revoked.text
        for field, value in (("expires", "soon"), ("rate", "many"), ("budget", "0")):
            assert field in (await press(served, "/inspect/keys", "Create key", 400, **{f"body__{field}": value})).text
        [last] = [row for row in rows if row["name"] is None or row["name"] == ""]
        assert "This is the last admin key" in (await look(served, f"/inspect/keys/{last['id']}")).text
        gone = await press(served, f"/inspect/keys/{last['id']}", "Revoke the key")
        assert gone.address.startswith("/inspect/sign-in")


LIST: Final = "/inspect/sessions"


def named(*ids: str, user_id: str = "default") -> list[str]:
    """Return the values of the boxes before sessions."""
    return [json.dumps([user_id, one]) for one in ids]


async def test_several_sessions_are_exported_closed_and_deleted(tmp_path: Path) -> None:
    async with gateway(store=f"sqlite:///{tmp_path}/chat.db") as served:
        for name in ("one", "two", "three"):
            await served.rest.given(name, user("Hi."), user="ada")
        some: dict[str, Any] = {"session": named("one", "two", user_id="ada")}
        exported = await press(served, LIST, "Export as JSONL", **some)
        assert sorted(json.loads(line)["id"] for line in exported.html.splitlines()) == ["one", "two"]
        asked = await press(served, LIST, "Close…", **some)
        assert "Nothing has been changed yet" in asked.text
        data = {"csrf": await read_csrf(served, LIST), "confirmed": "yes", **some}
        for operation, told, left in (("close", "2 sessions were closed", 3), ("delete", "2 sessions were deleted", 1)):
            done = await served.http.post(
                "/inspect/bulk", data={**data, "operation": operation}, headers=HTML, follow_redirects=True
            )
            assert told in done.text
            assert len(await served.rest.sessions()) == left
        everything = await press(served, f"{LIST}?user_id=ada", "Delete…", scope="all")
        assert "Delete 1 session" in everything.text


async def test_only_the_chosen_session_of_two_users_is_closed() -> None:
    async with gateway(store="file") as served:
        for name in ("ada", "bob", "default"):
            await served.rest.given("s", user("Hi."), user=name)
        data = {"csrf": await read_csrf(served, LIST), "confirmed": "yes", "session": named("s", user_id="bob")}
        await served.http.post(
            "/inspect/bulk", data={**data, "operation": "close"}, headers=HTML, follow_redirects=True
        )
        found = {name: (await served.rest.session("s", name).info())["status"] for name in ("ada", "bob", "default")}
        assert found == {"ada": "active", "bob": "closed", "default": "active"}


async def test_a_session_with_a_running_turn_is_left_unchanged() -> None:
    async with gateway() as served:
        session = await served.native.session("busy")
        async with session.turn("Hi."):
            data = {
                "csrf": await read_csrf(served, LIST),
                "confirmed": "yes",
                "operation": "close",
                "session": named("busy"),
            }
            done = await served.http.post("/inspect/bulk", data=data, headers=HTML, follow_redirects=True)
        assert "1 could not be closed" in done.text
        assert "a turn of the session is running" in done.text


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"operation": "close"}, 400),
        ({"operation": "explode", "session": named("s")}, 400),
        ({"operation": "close", "session": ["s"]}, 400),
        ({"operation": "close", "session": named("s"), "csrf": "x"}, 403),
        ({"operation": "close", "scope": "all", "status": "dead"}, 400),
    ],
)
async def test_a_wrong_form_for_several_sessions_changes_nothing(fields: dict[str, Any], status: int) -> None:
    async with gateway() as served:
        await served.rest.given("s", user("Hi."))
        data = {"csrf": await read_csrf(served, LIST), "confirmed": "yes", **fields}
        assert (await served.http.post("/inspect/bulk", data=data, headers=HTML)).status_code == status
        assert (await served.rest.session("s").info())["status"] == "active"


@pytest.mark.parametrize(
    ("fields", "headers", "status"),
    [
        ({"csrf": "x"}, {}, 403),
        ({"csrf": ""}, {}, 403),
        ({"action": "explode"}, {}, 400),
        ({"body.importance": "[" * 5_000}, {}, 400),
        ({"body.importance": "NaN"}, {}, 400),
    ],
)
async def test_a_form_that_is_not_of_this_page_changes_nothing(
    fields: dict[str, str], headers: dict[str, str], status: int
) -> None:
    async with gateway() as served:
        session = await served.rest.given("s", user("Hi."))
        data = {
            "csrf": await read_csrf(served, S),
            "action": "rate_message",
            "path.session_id": "s",
            "path.seq": "0",
            "query.user_id": "default",
            "body.importance": "0.5",
            "next": "/",
            **fields,
        }
        answer = await served.http.post("/inspect/do", data=data, headers={**HTML, **headers})
        assert answer.status_code == status, answer.text[-300:]
        assert (await session.messages())[0].get("importance") is None


async def test_a_form_does_only_what_its_key_may_do() -> None:
    """The pages of a key that writes have no button for keys, but a client can send the form."""
    async with gateway() as served:
        await served.rest.given("s", user("Hi."))
        admin = await sign_in_as(served, "write")
        data = {"csrf": await read_csrf(served, S), "action": "create_key", "body.name": "mine", "body.role": "admin"}
        answer = await served.http.post("/inspect/do", data={**data, "next": "/"}, headers=HTML)
        assert answer.status_code == 403, answer.text[-300:]
        served.http.headers["x-holdfast-key"] = admin
        assert "mine" not in json.dumps(await ask(served.http, "GET", "/v1/keys"))


@pytest.mark.parametrize("after", ["https://evil.example/", "//evil.example/", "/\\evil.example", "/a\nb"])
async def test_a_form_leads_only_to_pages_of_this_server(after: str) -> None:
    async with gateway() as served:
        data = {"key": await add_key(served), "next": after}
        answer = await served.http.post("/inspect/sign-in", data=data, headers=HTML)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_a_message_is_sent_from_the_playground_without_a_script() -> None:
    async with gateway(["Hello <b>Ada</b>.", "Later."], "agents: {clerk: {instruction: Be brief.}}") as served:
        page = await press(
            served, "/inspect/playground", "Send", message="Hi.", model="clerk", session_id="s", budget="500"
        )
        assert "Hello <b>Ada</b>." in page.text
        assert texts(await served.rest.session("s").messages()) == ["Hi.", "Hello <b>Ada</b>."]
        sent = served.upstream.requests[0].body["messages"]
        assert texts(sent) == ["Be brief.", "Hi."]
        for wrong in ({"message": ""}, {"message": "Hi.", "budget": "many"}, {"message": "Hi.", "strategy": "best"}):
            await press(served, "/inspect/playground", "Send", 400, **wrong)
        await served.rest.given("t", user("Hi."), user="ada")
        await press(served, "/inspect/playground", "Send", message="And now?", session_id="t")
        assert texts(await served.rest.session("t", "ada").messages()) == ["Hi.", "And now?", "Later."]


@pytest.mark.parametrize(
    ("reply", "streamed"),
    [
        (Reply(text="Hello \x1b[2J Ada."), "Hello U+001B[2J Ada."),
        (Reply(tool_calls=[("find", {"q": "x"})]), '[find] {"q": "x"}'),
        (Reply(status=400, error="offensive"), "offensive"),
        (Reply(text="Half of it", error="overheated", cut_after=3, stream=True), "overheated"),
    ],
)
@pytest.mark.parametrize("hidden", ["", "admin"])
async def test_the_playground_streams_a_reply_as_plain_text(reply: Reply, streamed: str, hidden: str) -> None:
    """Who may not see what messages say gets errors and no words."""
    async with gateway([reply], f"inspector: {{hide_content: [{hidden}]}}") as served:
        data = {"csrf": await read_csrf(served, "/inspect/playground"), "message": "Hi.", "session_id": "s"}
        headers = {"accept": "text/event-stream"}
        answer = await served.http.post("/inspect/playground/send", data=data, headers=headers)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-next"] == "/inspect/playground?session_id=s"
        assert (streamed in answer.text) is (not hidden or reply.error is not None)
        assert not hidden or answer.text.startswith("\x1e") is (reply.error is not None)
        assert (await served.rest.session("s").messages())[0]["content"] == "Hi."


async def test_files_of_the_pages_may_be_kept_by_browsers() -> None:
    async with gateway() as served:
        for name, kind in (("inspector.js", "javascript"), ("inspector.css", "css"), ("icon.svg", "svg")):
            answer = await served.http.get(f"/inspect/assets/{name}")
            assert kind in answer.headers["content-type"]
            assert "immutable" in answer.headers["cache-control"]
        assert (await served.http.get("/inspect/assets/other.js")).status_code == 404
