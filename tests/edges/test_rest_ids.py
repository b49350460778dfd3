"""One id, one session: any characters, in path, query, body or header."""

from __future__ import annotations

import asyncio
import itertools
import unicodedata
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from holdfast.domain.session import SessionRef
from holdfast.limits import ID_BYTES
from holdfast.stores.checks import DOT_SEGMENTS
from tests.edges.rest_kit import HI, assert_error
from tests.edges.server import Served, gateway

SINGLE = "/%*?#&=+ .:;,'\"\\|_aAI\x00\n\t\x7f\u00a0\u200b\u202e\ufeff\ufffd\U0010ffff\u00e9\u0301\u00c5\u212b\u00df\u0131\u0130\ufb01"
"""Separators, wildcards, controls, and letters that normalise, fold or look like others."""
SEVERAL = [
    "%2F",
    "%00",
    "..",
    "../",
    "\r\n",
    "e\u0301",
    "SS",
    "fi",
    "sess_",
    "default",
    "\U0001f9c0",
    "\U0001f469\u200d\U0001f467",
]
AWKWARD = st.sampled_from([*SINGLE, *SEVERAL])
IDS = st.one_of(st.lists(AWKWARD, min_size=1, max_size=6).map("".join), st.text(min_size=1, max_size=40)).filter(
    lambda text: (
        len(text.encode("utf-8", "surrogatepass")) <= ID_BYTES
        and not any("\ud800" <= c <= "\udfff" for c in text)
        and text not in DOT_SEGMENTS
    )
)


EXAMPLES = max(2, settings().max_examples // 4)
"""Each is twenty requests."""


def encode(text: str) -> str:
    """Percent-encode everything, dots too, which clients would resolve."""
    return quote(text, safe="").replace(".", "%2E")


class Server:
    """A server for all examples of one test, in its own event loop."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.served: Served = self.run(self._open())

    async def _open(self) -> Served:
        served, _ = await self._stack.enter_async_context(gateway(lambda body: "ok"))
        return served

    def run(self, work: Any) -> Any:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self._stack.aclose())
        self._runner.close()


@pytest.fixture
def server() -> Iterator[Server]:
    """Shared by the examples of a property."""
    server = Server()
    yield server
    server.close()


async def check_everywhere(served: Served, session_id: str, user_id: str) -> None:
    """Check that every route and position finds the same session."""
    http, path, user = served.http, f"/v1/sessions/{encode(session_id)}", encode(user_id)
    owner = f"?user_id={user}"
    made = await http.post("/v1/sessions", json={"id": session_id, "user_id": user_id, "metadata": {"of": user_id}})
    assert (made.status_code, made.json()["id"], made.json()["user_id"]) == (201, session_id, user_id), made.text
    assert (await http.post("/v1/sessions", json={"id": session_id, "user_id": user_id})).status_code == 409
    chat: dict[str, Any] = {"messages": [HI], "user": user_id}
    by_body = await http.post("/v1/chat/completions", json={**chat, "session_id": session_id})
    assert (by_body.status_code, by_body.json()["session_id"]) == (200, session_id), by_body.text
    header = by_body.headers["x-session-id"]
    chat["messages"] = [{"role": "user", "content": "again"}]
    by_header = await http.post("/v1/chat/completions", json=chat, headers={"X-Session-Id": header})
    assert (by_header.status_code, by_header.json()["session_id"]) == (200, session_id)
    assert by_header.json()["session"]["turn"] == 1
    whole = (await http.get(path + owner)).json()
    assert (whole["id"], whole["user_id"], whole["message_count"]) == (session_id, user_id, 4)
    assert (await http.put(path + owner, json={"messages": whole["messages"]})).json()["id"] == session_id
    assert (await http.patch(path + owner, json={"metadata": {"k": 1}})).json()["user_id"] == user_id
    page = (await http.get(f"{path}/messages{owner}&limit=2")).json()
    assert [item["content"] for item in page["data"]] == ["hi", "ok"]
    assert (await http.post(f"{path}/messages{owner}", json={"messages": [HI]})).json()["first_id"] == 4
    assert (await http.patch(f"{path}/messages/4{owner}", json={"pinned": True})).json()["pinned"]
    assert (await http.delete(f"{path}/messages/4{owner}")).json()["deleted"]
    assert (await http.post(f"{path}/context{owner}", json={})).json()["session_id"] == session_id
    assert len((await http.get(f"{path}/history{owner}")).json()["contents"]) == 5
    assert (await http.get(f"/sessions/{encode(session_id)}{owner}")).json()["id"] == session_id
    listed = (await http.get(f"/v1/sessions{owner}")).json()["data"]
    assert [item["id"] for item in listed] == [session_id]
    behind = (await http.get(f"/v1/sessions{owner}&after={encode(session_id)}")).json()
    assert behind["data"] == []
    assert (await served.hf.store.get(SessionRef(user_id, session_id))).id == session_id


async def remove_all_sessions(served: Served) -> None:
    """Remove every session."""
    while page := (await served.hf.sessions(limit=100)).sessions:
        for session in page:
            await served.hf.store.remove(session.ref)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(session_id=IDS, user_id=IDS)
@example(session_id="...", user_id=".a")
@example(session_id="../../etc/passwd", user_id="%2e%2e/")
@example(session_id="a\x00b", user_id="\x00")
@example(session_id="\n", user_id=" ")
@example(session_id="*", user_id="%")
@example(session_id="x" * ID_BYTES, user_id="é" * (ID_BYTES // 2))
def test_id_names_its_session_on_every_route(server: Server, session_id: str, user_id: str) -> None:
    """In the path, the query, the body and the header."""

    async def once() -> None:
        await remove_all_sessions(server.served)
        await check_everywhere(server.served, session_id, user_id)
        deleted = await server.served.http.delete(f"/v1/sessions/{encode(session_id)}?user_id={encode(user_id)}")
        assert deleted.json()["id"] == session_id
        assert (await server.served.hf.sessions()).sessions == ()

    server.run(once())


def find_similar_ids(text: str) -> set[str]:
    """Return other ids that careless code could confuse with this one."""
    forms = {unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")}
    edges = {text + " ", " " + text, text.strip(), text + "\x00", text.rstrip("\x00"), text + "/", text.rstrip("/")}
    cases = {text.upper(), text.lower(), text.casefold()}
    codes = {
        quote(text, safe=""),
        quote(text),
        text.replace("%2F", "/"),
        text.replace("+", " "),
        text.split("\x00", maxsplit=1)[0],
    }
    found = forms | edges | cases | codes | {f"./{text}", f"{text}/../{text}", text.replace("\\", "/")}
    return {one for one in found if one != text and 0 < len(one.encode()) <= ID_BYTES}


@settings(max_examples=EXAMPLES // 2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(session_id=IDS)
@example(session_id="\u00e9")
@example(session_id="e\u0301")
@example(session_id="%41")
@example(session_id="a/b")
@example(session_id="\ufb01\u212b")
def test_similar_ids_are_different_sessions(server: Server, session_id: str) -> None:
    """Ids that look, normalize or decode alike."""
    others = sorted(find_similar_ids(session_id))
    assume(others)

    async def once() -> None:
        served = server.served
        await remove_all_sessions(served)
        for one in (session_id, *others):
            response = await served.http.post("/v1/sessions", json={"id": one, "metadata": {"is": one}})
            assert response.status_code == 201, (one, response.text)
        for one in (session_id, *others):
            found = (await served.http.get(f"/v1/sessions/{encode(one)}")).json()
            assert (found["id"], found["metadata"]) == (one, {"is": one})
        for one in others:
            await served.http.delete(f"/v1/sessions/{encode(one)}")
        assert [session.id for session in (await served.hf.sessions()).sessions] == [session_id]

    server.run(once())


async def test_similar_idempotency_keys_are_different() -> None:
    keys = ["k", "K", "k%20", "k/", "k*", "é", "e\u0301", "k,k"]
    async with gateway([]) as (served, _):
        await served.http.put("/v1/sessions/s", json={"messages": []})
        for _, key in itertools.product(range(2), keys):
            response = await served.http.post(
                "/v1/sessions/s/messages",
                json={"messages": [{"role": "user", "content": key}]},
                headers=[(b"idempotency-key", key.encode())],
            )
            assert response.status_code == 200, (key, response.text)
        assert [content for _, content in await served.log()] == keys


@pytest.mark.parametrize("dots", [".", ".."])
async def test_ids_that_clients_resolve_in_paths_are_refused(dots: str) -> None:
    """A client that normalises `/v1/users/%2E%2E` would reach `/v1`."""
    user, named = encode(dots), {"id": dots}
    async with gateway(lambda body: "ok") as (served, _):
        http = served.http
        await http.put("/v1/sessions/s", json={"messages": [HI]})
        for method, path, body in (
            ("POST", "/v1/sessions", named),
            ("POST", "/v1/sessions", {"user_id": dots}),
            ("PUT", f"/v1/sessions/{user}", {"messages": [HI]}),
            ("PUT", f"/v1/sessions/t?user_id={user}", {"messages": [HI]}),
            ("POST", "/v1/sessions/s/fork", named),
            ("POST", "/v1/sessions/s/move", named),
            ("POST", "/v1/sessions/s/move", {"user_id": dots}),
            ("POST", "/v1/chat/completions", {"messages": [HI], "session_id": dots}),
            ("POST", "/v1/chat/completions", {"messages": [HI], "user": dots}),
            ("POST", "/v1/responses", {"input": "hi", "session_id": dots}),
            ("PATCH", f"/v1/state?user_id={user}", {"user:a": 1}),
            ("POST", f"/v1/state?user_id={user}", {"changes": [{"op": "set", "key": "user:a", "value": 1}]}),
            ("PUT", f"/v1/records/record?user_id={user}&namespace=n&key=k", {"value": 1}),
            (
                "POST",
                f"/v1/records?user_id={user}",
                {"changes": [{"op": "put", "namespace": ["n"], "key": "k", "value": 1}]},
            ),
            ("POST", "/v1/memories", {"content": "Ada likes tea.", "user_id": dots}),
            ("POST", "/v1/memories", {"content": "Ada likes tea.", "agent": dots, "scope": "agent"}),
            ("PUT", f"/v1/sessions/s/artifacts/{user}", None),
        ):
            response = await http.request(method, path, json=body)
            assert_error(response, 400)
            assert dots in response.json()["error"]["message"], (method, path, response.text)
        assert [one.id for one in (await served.hf.sessions()).sessions] == ["s"]
        # Record keys and labels are never segments of a path.
        assert (
            await http.put(f"/v1/records/record?user_id=a&namespace={user}&key={user}", json={"value": 1})
        ).is_success
