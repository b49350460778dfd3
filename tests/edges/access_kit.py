"""Start a server that accepts keys and tokens, make each kind of caller, and build a request for each route about
ada's objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from holdfast.domain.memory import Memory, MemoryDelta, Owner
from holdfast.domain.messages import NOTE, Message
from holdfast.domain.record import TenantRef
from holdfast.domain.session import NewCompaction, SessionRef
from holdfast.engine.entries import make_entries
from holdfast.holdfast import Holdfast
from holdfast.models.codecs.responses.ids import Place, make_conversation_id
from holdfast.models.codecs.responses.notes import ResponseNote
from holdfast.server.app import ROUTES as DECLARED
from holdfast.server.permissions import Need
from holdfast.sessions.memory_files import open_memory_files
from holdfast.stores.log import Append
from holdfast.turns.turn import INPUT_COUNT, MARK, OPENED_BY, make_mark
from tests.clocks import START, Clock
from tests.edges.keys import AUDIENCE, ISSUER, bearer, create_stored_key, key_set, token
from tests.edges.server import Served, gateway

CHAT = ("POST", "/v1/chat/completions")
TURN: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
LOG = [{"role": "user", "content": "Always keep ada's secret"}, {"role": "assistant", "content": "kept"}]
OWNERS: Final = ("?session_id={session_id}", "?user_id={user_id}", "?scope=tenant")
"""Queries that name the owner of state and records: a session, a user, or the app or tenant."""
BODIES: dict[tuple[str, str], Any] = {
    CHAT: {**TURN, "session_id": "s"},
    ("POST", "/v1/messages"): {**TURN, "session_id": "s"},
    ("POST", "/v1/messages/count_tokens"): TURN,
    ("POST", "/v1/responses"): {"input": "hi", "session_id": "s"},
    ("POST", "/v1/responses/compact"): {"input": "hi", "session_id": "s"},
    ("POST", "/v1/responses/input_tokens"): {"input": "hi", "session_id": "s"},
    ("POST", "/v1/conversations"): {},
    ("POST", "/v1/conversations/{conversation_id}"): {"metadata": {"a": "1"}},
    ("POST", "/v1/conversations/{conversation_id}/items"): {"items": [{"role": "user", "content": "hi"}]},
    ("POST", "/v1/sessions"): {},
    ("PUT", "/v1/sessions/{session_id}"): {"messages": LOG},
    ("PATCH", "/v1/sessions/{session_id}"): {"metadata": {"a": 1}},
    **{
        (method, path): body
        for path, key in (
            ("/v1/sessions/{session_id}/state", "topic"),
            ("/v1/state?session_id={session_id}", "topic"),
            ("/v1/state?user_id={user_id}", "user:theme"),
            ("/v1/state?scope=tenant", "app:motd"),
        )
        for method, body in (("PATCH", {key: "new"}), ("POST", {"changes": [{"op": "set", "key": key, "value": 1}]}))
    },
    **{
        route: body
        for owner in OWNERS
        for route, body in (
            (("PUT", f"/v1/records/record{owner}"), {"value": "new"}),
            (
                ("POST", f"/v1/records{owner}"),
                {"changes": [{"op": "put", "namespace": ["n"], "key": "new", "value": 1}]},
            ),
        )
    },
    ("POST", "/v1/sessions/{session_id}/fork"): {},
    ("POST", "/v1/sessions/{session_id}/move"): {"id": "moved"},
    ("POST", "/v1/sessions/{session_id}/rewind"): {"at_turn": 0},
    ("POST", "/v1/sessions/{session_id}/messages"): TURN,
    ("PUT", "/v1/sessions/{session_id}/messages/{seq}"): {"message": {"role": "user", "content": "new"}},
    ("PATCH", "/v1/sessions/{session_id}/messages/{seq}"): {"pinned": True},
    ("POST", "/v1/sessions/{session_id}/context"): {},
    ("POST", "/v1/sessions/{session_id}/turns"): TURN,
    ("PATCH", "/v1/sessions/{session_id}/facts/{fact_id}"): {"pinned": True},
    ("POST", "/v1/sessions/{session_id}/compactions"): {"preview": True},
    ("POST", "/v1/sessions/{session_id}/interrupt"): {},
    ("POST", "/v1/sessions/{session_id}/speak"): {"text": "hm"},
    ("POST", "/v1/workspaces/{agent}/checkpoint"): {"note": "now"},
    ("POST", "/v1/keys"): {},
    ("POST", "/v1/memories"): {"content": "tea is at five", "user_id": "ada"},
    ("POST", "/v1/memories/consolidate"): {"user_id": "ada"},
    ("PATCH", "/v1/memories/{memory_id}"): {"importance": 1},
    ("POST", "/v1/memories/{memory_id}/review"): {"decision": "accept"},
    ("POST", "/v1/users/{user_id}/memory_files/{change_id}/review"): {"decision": "accept"},
    ("POST", "/mcp"): {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "recall", "arguments": {"query": "memory"}},
    },
}
"""A body that is taken, where one is needed."""
QUERIES: Final = {
    ("GET", "/v1/search"): "?q=secret&user_id=ada",
    ("GET", "/v1/memories"): "?q=memory&user_id=ada",
    ("POST", "/mcp"): "?user_id=ada",
    ("POST", "/v1/memories"): "",
    ("POST", "/v1/memories/consolidate"): "",
    ("GET", "/v1/memories/diary"): "?user_id=ada",
    ("DELETE", "/v1/memories"): "?source_session=s&user_id=ada",
    **{
        route: query
        for owner in OWNERS
        for route, query in (
            (("GET", f"/v1/records{owner}"), "?namespace=n"),
            *(((method, f"/v1/records/record{owner}"), "?namespace=n&key=k") for method in ("GET", "PUT", "DELETE")),
        )
    },
}
"""A query, likewise."""


def list_variants(method: str, path: str, need: Need) -> Iterator[tuple[tuple[str, str], Need]]:
    """Yield a route with its permission; a route of state or records once for each kind of owner."""
    if path == "/v1/state":
        owners = OWNERS if method != "DELETE" else OWNERS[1:]
        yield from (
            ((method, path + owner), need if owner != OWNERS[-1] or method == "GET" else "tenant") for owner in owners
        )
    elif path.startswith("/v1/records"):
        shared: Need = "shared" if need == "read" else "shared write"
        yield from (((method, path + owner), need if owner != OWNERS[-1] else shared) for owner in OWNERS)
    else:
        yield (method, path), need


PERMISSIONS: Final = {route: need for one in DECLARED for route, need in list_variants(one.method, one.path, one.need)}
ROUTES: Final = sorted(PERMISSIONS)
OWN: Final = {
    "POST /v1/chat/completions",
    "POST /v1/messages",
    "POST /v1/responses",
    "POST /v1/responses/compact",
    "PUT /v1/sessions/{session_id}",
}
"""Routes that make a session of that name where the caller has none: they never reach another one's."""
RESPONSE: Final = Place("s", 3, "0123456789ab")
"""Place of ada's background response in her session."""
MEMORY: Final = "mem_" + "0" * 31 + "1"
"""One of ada's, held for review."""


NAMES: Final = {
    "session_id": "s",
    "conversation_id": make_conversation_id("s"),
    "response_id": RESPONSE.make_id("resp"),
    "item_id": Place("s", 0, "").make_id("msg"),
    "seq": "0",
    "compaction_id": "1",
    "call_id": "next",
    "fact_id": "0.0",
    "name": "a.txt",
    "user_id": "ada",
    "agent": "default",
    "memory_id": MEMORY,
    "change_id": "1",
    "key_id": "none",
}
"""Values of path parameters. There is something by these names after `create_objects` and `append_response`, except a key."""


class HasHoldfast(Protocol):
    """A server of a test, in this process."""

    @property
    def hf(self) -> Holdfast:
        """What the server serves."""
        ...


def auth(folder: Path) -> str:
    """Return configuration with keys, tokens and workspaces."""
    file = folder / "jwks.json"
    file.write_bytes(key_set())
    said = {"jwks_url": str(file), "issuer": ISSUER, "audience": AUDIENCE, "role_claim": "role"}
    kept = {"workspace_git": {"path": str(folder / "workspaces")}}
    return f"auth: {json.dumps({'jwt': said})}\nhooks: {json.dumps(kept)}"


async def callers(served: Served) -> dict[str, dict[str, str]]:
    """Return the headers of each kind of caller."""
    hf = served.hf
    await hf.store.revoke_key((revoked := await create_stored_key(hf)).split("_")[1], timestamp=START)
    keys = {
        "bad": "hf_" + "a" * 16 + "_" + "b" * 52,
        "malformed": "hf_nonsense",
        "expired": await create_stored_key(hf, expires_at=START),
        "revoked": revoked,
        "forged": token()[:-6] + "AAAAAA",
        "read": await create_stored_key(hf, role="read"),
        "read of ada": await create_stored_key(hf, role="read", user_id="ada"),
        "reading token": token(role="read"),
        "write": await create_stored_key(hf),
        "write of ada": await create_stored_key(hf, user_id="ada"),
        "token": token(),
        "admin": await create_stored_key(hf, role="admin"),
        "admin of ada": await create_stored_key(hf, role="admin", user_id="ada"),
        "bob": await create_stored_key(hf, role="admin", user_id="bob"),
        "other tenant": await create_stored_key(hf, role="admin", tenant="t2"),
        "ada of another tenant": await create_stored_key(hf, role="admin", tenant="t2", user_id="ada"),
    }
    return {"nobody": {}, **{name: bearer(key) for name, key in keys.items()}}


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[Served]:
    """Run a server that accepts keys and tokens, with a fixed clock."""
    async with gateway(lambda _: "ok", auth(folder), clock=Clock()) as (served, _):
        yield served


async def create_objects(served: HasHoldfast, user: str = "ada") -> None:
    """Create ada's session and every object that a route can name."""
    hf, ref = served.hf, SessionRef(user, "s")
    for tenant in (hf.tenant, "t2"):
        async with hf.serve_tenant(tenant) as one:
            for session in (await one.sessions()).sessions:
                await one.remove(session.ref)
    await hf.import_({"messages": LOG}, session_id="s", user_id=user)
    await hf.artifacts.save(ref, "a.txt", b"ada's artifact", mime_type="text/plain")
    await hf.handle(await hf.store.get(ref)).state.set("topic", "ada's topic")
    await hf.user_state(user).set("user:note", "ada's note")
    for owned in (hf.records("n", session=ref), hf.records("n", user_id=user), hf.records("n")):
        await owned.drop()
        await owned.put("k", "ada's record" if owned.owner != TenantRef() else "the tenant's")
    files = open_memory_files(hf.engine, user)
    await files.clear()
    await files.create("/memories/a.md", "ada's file")
    await files.hold({"command": "insert", "path": "/memories/a.md", "insert_line": 0, "insert_text": "ada's line"})
    await hf.store.drop_memories(Owner("user", user))
    held = Memory(
        id=MEMORY,
        owner=Owner("user", user),
        content="ada's memory",
        origin="tool",
        status="quarantined",
        created_at=START,
        updated_at=START,
    )
    await hf.store.change_memories(held.owner, MemoryDelta(put=(held,)), timestamp=START)
    session = await hf.store.get(ref)
    laid = NewCompaction(
        view="v",
        first=0,
        last=1,
        through=1,
        total=session.tail.total,
        kind="summary",
        text="ada's summary",
        tokens=3,
        source_tokens=9,
        created_at=START,
    )
    await hf.store.append(ref, Append(entries=[], timestamp=START, expect=session.version, compactions=[laid]))


async def append_response(served: HasHoldfast, user: str = "ada") -> None:
    """Append a stored response to the user's session: the question, the note, and the reply."""
    ref = SessionRef(user, "s")
    payload = ResponseNote(secret=RESPONSE.secret, created_at=0, echo={"background": True}).to_origin()
    question, note = Message(role="user", content="And tea?"), Message(role=NOTE, origin=payload)
    reply = Message(role="assistant", content="At ada's hour.")
    marks: list[dict[str, Any]] = [
        {},
        {"metadata": {INPUT_COUNT: 1, MARK: make_mark(payload)}},
        {"metadata": {OPENED_BY: make_mark(payload)}},
    ]
    entries = await make_entries([question, note, reply], marks, timestamp=START)
    await served.hf.store.append(ref, Append(entries=entries, timestamp=START))


def url(path: str, **names: str) -> str:
    """Return a route's path with its parameters filled in."""
    known = {**NAMES, **names}
    return re.sub(r"{(\w+)}", lambda found: known[found[1]], path)


async def ask(served: Served, route: tuple[str, str], headers: dict[str, str], query: str = "", **names: str) -> Any:
    """Send a valid request to that route with the caller's headers."""
    method, path = route
    content = b"x" if route == ("PUT", "/v1/sessions/{session_id}/artifacts/{name}") else None
    if route in BODIES:
        content = json.dumps(BODIES[route]).encode()
    query = query or QUERIES.get(("GET" if method == "HEAD" else method, path), "")
    target = url(path, **names) + (f"&{query[1:]}" if "?" in path and query else query)
    return await served.http.request(method, target, headers=headers, content=content)


async def load_everything(served: Served) -> Any:
    """Return everything that ada has in the server's own tenant."""
    ref = SessionRef("ada", "s")
    return (
        await served.hf.export(ref, retired=True, calls=True, digests=True),
        await served.hf.store.compactions(ref),
        (await served.hf.artifacts.page(ref)).artifacts,
        await served.hf.user_state("ada").all(),
        (await served.hf.records(user_id="ada").list(nested=True)).records,
    )


def normalize_session_name(response: Any) -> str:
    """Return the answer with the session name normalized."""
    return str(response.text).replace("'q'", "'s'")
