"""Valid requests for every route, in their variants: for `test_server_openapi.py`."""

from __future__ import annotations

import httpx2

from holdfast.context.dialects import DIALECTS
from holdfast.context.settings import STRATEGIES
from holdfast.memory.files import ChangeSource
from holdfast.sessions.memory_files import open_memory_files
from tests.edges.openapi_kit import (
    ANTHROPIC,
    ARTIFACT,
    CHAT,
    COMPACTIONS,
    CONVERSATIONS,
    FILES,
    HI,
    LOG,
    MEMORIES,
    MEMORY,
    MESSAGES,
    ONE,
    OWNERS,
    RECORDS,
    RESPONSES,
    STATE,
    WORKSPACE,
    Walk,
)


async def send_good_requests(walk: Walk) -> None:
    """Send valid input to every route, in its variants."""
    walk.good = True
    await walk("POST", "/v1/sessions", body={"state": {"a": 1}, "agent": "support"})
    await walk(
        "PUT", ONE, "?user_id=ada", {"messages": LOG, "state": {"k": [1]}, "metadata": {"m": None}, "ttl": 10**9}
    )
    for query in ("", "?user_id=ada"):
        await walk("GET", ONE, query)
        await walk("GET", f"{ONE}/history", query)
        await walk("GET", f"{ONE}/explain", query)
        await walk("GET", "/sessions/{session_id}", query)
    await walk("GET", "/v1/search", "?q=kelp&user_id=ada&limit=2&neighbours=1&tz=UTC&level=session")
    for query in ("", "?step=5m&since=2023-11-14&until=2023-11-15T03:00:00Z"):
        await walk("GET", "/v1/status", query)
    await walk("POST", "/mcp", "?user_id=ada", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    await walk("POST", "/mcp", body={"jsonrpc": "2.0", "method": "notifications/initialized"})
    await walk("GET", f"{ONE}/history", "?view=plain")
    await walk("PATCH", ONE, body={"ttl": 10**9, "system_messages": ["x", {"role": "developer", "content": "y"}]})
    for query in ("", "?limit=2", "?limit=2&after=1&order=desc", "?retired=true"):
        await walk("GET", MESSAGES, query)
    for path in ("/v1/sessions", "/sessions"):
        await walk("GET", path)
        await walk("GET", path, "?limit=1&order=asc&user_id=ada&status=active&agent=none&since=2020-01-01&until=0")
        await walk("GET", path, "?after=s&after_user=ada")
    await walk("POST", MESSAGES, body={"messages": [HI]}, Idempotency_Key="k")
    await walk("PATCH", f"{MESSAGES}/{{seq}}", body={"pinned": False, "importance": None})
    await replace_messages(walk)
    await build_prompts(walk)
    await run_chats(walk)
    await walk("GET", MESSAGES, "?retired=true", id="chat")
    await walk("DELETE", f"{MESSAGES}/{{seq}}", seq="2")
    await compact_sessions(walk)
    await move_sessions(walk)
    await send_voice_requests(walk)
    await store_artifacts(walk)
    await change_state(walk)
    await write_records(walk)
    await review_memory_files(walk)
    await walk("DELETE", "/sessions/{session_id}", id="chat")
    await use_facts(walk)
    await walk("DELETE", ONE)
    page = (await walk("GET", "/v1/deletions", "?limit=1")).json()
    await walk("GET", "/v1/deletions", f"?limit=1&after={page['last_id']}")
    await walk("GET", "/v1/deletions", "?user_id=default&session_id=s")
    for path in ("/v1/models", "/healthz", "/readyz", "/metrics", "/openapi.json", "/"):
        await walk("GET", path)
    await walk("GET", "/", Accept="text/html,application/xhtml+xml,*/*;q=0.8")


async def manage_keys(walk: Walk, http: httpx2.AsyncClient) -> None:
    """Create keys with and without settings, then list, read and revoke them. The client uses the first key from then on."""
    walk.good = True
    first = (await walk("POST", "/v1/keys", body={"role": "admin", "expires": 86_400_000})).json()
    assert first["note"]
    http.headers["authorization"] = f"Bearer {first['key']}"
    limits = {"rate": 60, "max_body": 1024, "session_mode": "delta", "budget": 4096}
    body = {"name": "laptop", "tenant": "t2", "user_id": "ada", "role": "admin", "expires": "12h", **limits}
    made = (await walk("POST", "/v1/keys", body=body)).json()
    for query in ("", "?limit=1", f"?after={made['id']}&tenant=t2"):
        await walk("GET", "/v1/keys", query)
    await walk("DELETE", "/v1/keys/{key_id}", key=made["id"])


async def build_prompts(walk: Walk) -> None:
    """Build working sets with each strategy, for each provider."""
    for strategy in STRATEGIES:
        await walk("POST", f"{ONE}/context", body={"strategy": strategy, "explain": True, "tools": [{"x": 1}]})
    composed = {"clear_tool_results": {"trigger": 10, "keep": 0, "clear_at_least": 1, "exclude_tools": ["a"]}}
    await walk("POST", f"{ONE}/context", body=composed)
    small = {"strategy": "token_window", "budget": 60, "preserve_recent": 1, "target": 0.5, "explain": True}
    assert (await walk("POST", f"{ONE}/context", body=small)).json()["decisions"]
    for query in ("?seq=0", "?q=a&limit=2&before=9", "?seq=0&turn=0&model=gpt-4o", "?seq=1&agent=support"):
        await walk("GET", f"{ONE}/explain", query)
    await walk("POST", f"{ONE}/context", body={"details": True, "save": True})
    for query in ("", "?strategy=token_window&budget=900&log_limit=3", "?dialect=gemini&log_limit=2&log_after=0"):
        await walk("GET", f"{ONE}/calls/{{call_id}}", query, call="next")
    await walk("GET", f"{ONE}/calls", "?limit=2&order=desc")
    long = [{"role": "user", "content": f"Kelp {number + 700} grows in bay {number}."} for number in range(30)]
    await walk("PUT", ONE, body={"messages": long, "agent": "short"}, id="long")
    await walk("GET", f"{ONE}/calls/{{call_id}}", "?block=digest&limit=3", id="long", call="next")
    await walk("GET", f"{ONE}/info")
    opening = {
        "messages": [HI],
        "strategy": "token_window",
        "budget": 500,
        "recall": "off",
        "request": {"max_tokens": 10},
    }
    begun = await walk("POST", f"{ONE}/turns", body=opening, Idempotency_Key="turn")
    marker = begun.json()["session"]["log_marker"]
    reply = {
        "messages": [{"role": "assistant", "content": "Hello."}],
        "expect_log": marker,
        "return_session": True,
        "usage": {"prompt_tokens": 5},
    }
    await walk("POST", f"{ONE}/messages", body={**reply, "changes": [{"op": "set", "key": "greeted", "value": True}]})
    await walk("POST", f"{ONE}/turns", body={"mode": "delta", "session_queue": "reject"})
    await walk("POST", f"{ONE}/messages", body={"retire_from": 0, "messages": [HI]})
    for dialect in DIALECTS:
        await walk("POST", f"{ONE}/context", body={"at_turn": 0, "dialect": dialect, "model": "gpt-4o"})


async def use_facts(walk: Walk) -> None:
    """List, pin and drop standing facts."""
    change_state = await walk(
        "PUT", ONE, "?user_id=ada", {"messages": [{"role": "user", "content": "I never eat any nuts."}]}
    )
    assert change_state.is_success
    (fact,) = (await walk("GET", f"{ONE}/facts", "?strategy=digest&budget=10000")).json()["data"]
    assert (fact["text"], fact["source"]) == ("I never eat any nuts.", "message")
    for body in ({"pinned": True}, {"dropped": True}, {"dropped": False}):
        await walk("PATCH", f"{ONE}/facts/{{fact_id}}", body=body, fact=fact["id"])


async def run_chats(walk: Walk) -> None:
    """Run turns through both APIs, and the calls that precede one."""
    chat = {"session_id": "chat", "messages": [HI], "temperature": 0.5}
    await walk(*CHAT, body=chat, Idempotency_Key="k")
    await walk(*CHAT, body=chat, Idempotency_Key="k")
    for options in ({}, {"stream_options": {"include_usage": True}}):
        await walk(*CHAT, body={"messages": [HI], "stream": True, **options}, X_Session_Id="chat")
    edited = [HI, {"role": "assistant", "content": "other"}, {"role": "user", "content": "go on"}]
    await walk(*CHAT, body={"session_id": "chat", "messages": edited, "session_mode": "transcript"})
    said = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "session_id": "anthropic"}
    for body in (
        said,
        {**said, "system": "Be kind.", "stream": True},
        {**said, "system": [{"type": "text", "text": "x"}]},
    ):
        await walk(*ANTHROPIC, body=body, Idempotency_Key=str(body)[:200].encode().hex())
    await walk(
        "POST", "/v1/messages/count_tokens", "?beta=true", {**said, "tools": [{"name": "f", "input_schema": {}}]}
    )
    await walk("GET", "/v1/models", "?limit=1&after_id=default", Anthropic_Version="2023-06-01")


async def move_sessions(walk: Walk) -> None:
    """Call the routes that move and delete sessions."""
    for query in ("", "?retired=true", "?retired=true&calls=true"):
        exported = (await walk("GET", ONE, query, id="chat")).json()
        for imported in (False, True):
            answer = await walk("PUT", ONE, "", {**exported, "ttl": 10**9 + imported}, id="chat")
            assert answer.json()["imported"] is True
        assert (await walk("PUT", ONE, "", {**exported, "ttl": 10**9 + 1}, id="chat")).json()["imported"] is False
    await walk("POST", f"{ONE}/fork", body={"at_turn": 0, "id": "forked"}, id="chat")
    await walk("POST", f"{ONE}/fork", body={"id": "handed"}, id="chat")
    await walk("POST", f"{ONE}/move", body={"id": "moved", "user_id": "ada", "agent": None}, id="handed")
    await walk("POST", f"{ONE}/close", id="forked")
    await walk("POST", f"{ONE}/fork", body={}, id="chat")
    await walk("POST", f"{ONE}/rewind", body={"at_turn": 0}, id="chat")
    await walk("DELETE", "/v1/users/{user_id}", id="nobody")


async def send_voice_requests(walk: Walk) -> None:
    """Call the routes that voice agents use."""
    await walk("PUT", ONE, "", {"messages": [HI, {"role": "assistant", "content": "one two three"}]}, id="voiced")
    for heard in ({}, {"content": "one two ", "timestamp": 5, "turn_id": 0}, {"chars": 4}, {"ms": 1, "total_ms": 9}):
        await walk("POST", f"{ONE}/interrupt", body=heard, id="voiced")
    await walk("POST", f"{ONE}/speak", body={"text": "hm", "return_session": True}, id="voiced")
    said = {"text": "hm", "priority": "IGNORE", "source": "silence", "interruptable": False}
    await walk("POST", f"{ONE}/speak", body=said, id="voiced")
    await walk("POST", f"{ONE}/interrupt", body={"chars": 1, "return_session": True}, id="voiced")
    await walk("GET", f"{ONE}/history", id="voiced")


async def store_artifacts(walk: Walk) -> None:
    """Call the artifact routes, with each kind of answer."""
    named = {"name": "user:a.txt"}
    put = await walk(
        "PUT", ARTIFACT, "?author=ada&metadata=%7B%22a%22%3A1%7D", b"hello", Content_Type="text/plain", **named
    )
    await walk("PUT", ARTIFACT, "", b"again", If_Match=put.headers["etag"], **named)
    await walk("PUT", ARTIFACT, "", b"new", If_None_Match="*")
    for query in ("", "?limit=1", "?after=1"):
        await walk("GET", f"{ONE}/artifacts", query)
        versions = query if "after" not in query else "?after=0"
        await walk("GET", f"{ONE}/artifacts", f"{versions or '?'}&name={named['name']}".replace("?&", "?"))
    for headers in ({}, {"Range": "bytes=1-2"}, {"Range": "bytes=1-2", "If_Range": put.headers["etag"]}):
        await walk("GET", ARTIFACT, "?version=0", **named, **headers)
    await walk("GET", ARTIFACT, "?version=0", If_None_Match=put.headers["etag"], **named)
    await walk("DELETE", ARTIFACT, "?version=0", **named)
    await walk("DELETE", ARTIFACT, **named)


async def change_state(walk: Walk) -> None:
    """Call the state routes, with each operation."""
    await walk("PATCH", f"{ONE}/state", body={"a": [0]})
    await walk("GET", f"{ONE}/state")
    for owner, key in zip(OWNERS, ("a", "user:a", "app:a"), strict=True):
        query = f"?{owner}" if owner else ""
        await walk("PATCH", STATE, query, body={key: [1], f"{key}b": None, f"{key}c": {"d": "x"}})
        now = await walk("GET", STATE, query)
        changes = [
            {"op": "expect", "key": key, "value": [1]},
            {"op": "append", "key": key, "values": [None]},
            {"op": "set", "key": f"{key}d", "value": False},
            {"op": "increment", "key": f"{key}e"},
            {"op": "increment", "key": f"{key}e", "by": -0.5},
            {"op": "delete", "key": f"{key}c"},
        ]
        await walk("POST", STATE, query, body={"changes": changes}, If_Match=now.headers["etag"])
    for query in ("?user_id=s", "?scope=tenant"):
        now = await walk("GET", STATE, query)
        await walk("DELETE", STATE, query, If_Match=now.headers["etag"])


async def replace_messages(walk: Walk) -> None:
    """Import a session that need not replace another one, replace one of its messages, and append with changes of records."""
    new = {"messages": [HI, {"role": "assistant", "content": "Hello."}]}
    await walk("PUT", ONE, "?replace=false", new, id="replaced")
    await walk(
        "PUT", f"{MESSAGES}/{{seq}}", body={"message": {"role": "user", "content": "Hey."}}, id="replaced", seq="0"
    )
    erasing = {"message": {"role": "user", "content": "Hi.", "pinned": True}, "erase": True}
    await walk("PUT", f"{MESSAGES}/{{seq}}", body=erasing, id="replaced", seq="2")
    changes = [
        {"op": "put", "namespace": ["a"], "key": "x", "value": 1},
        {"op": "delete", "namespace": ["a"], "key": "y"},
    ]
    done = await walk("POST", MESSAGES, body={"records": changes}, id="replaced")
    version = done.headers["etag"]
    await walk("POST", MESSAGES, body={"messages": [HI], "copy_of": [None]}, id="replaced", If_Match=version)


async def write_records(walk: Walk) -> None:
    """Call the routes of records of each owner."""
    for owner in OWNERS:
        base, name = RECORDS, f"?{owner}&namespace=a/b&key=k"
        put = await walk("PUT", f"{base}/record", name, {"value": [None], "ttl": 10**6}, If_None_Match="*")
        text = {"value": "AP8=", "encoding": "base64", "text": "late parcels"}
        await walk("PUT", f"{base}/record", name, text, If_Match=put.headers["etag"])
        await walk("GET", f"{base}/record", name)
        changes = [
            {"op": "put", "namespace": ["a"], "key": "x", "value": None, "text": "a parcel", "expect": 0},
            {"op": "put", "namespace": ["a"], "key": "y", "value": "AA==", "encoding": "base64", "ttl": 10**6},
            {"op": "delete", "namespace": ["a"], "key": "z"},
        ]
        await walk("POST", base, f"?{owner}" if owner else "", body={"changes": changes})
        await walk("GET", base, f"?{owner}&namespace=a&limit=1&order=desc&values=false")
        page = (await walk("GET", base, f"?{owner}&nested=true&limit=1")).json()
        await walk("GET", base, f"?{owner}&nested=true&after={page['last_id']}")
        await walk("GET", base, f"?{owner}&namespace=a&prefix=x")
        await walk("GET", base, f"?{owner}&nested=true&q=parcel")
        await walk("GET", base, f"?{owner}&namespace=a&prefix=x&q=parcel&values=false&limit=1&mode=keyword")
        await walk("GET", f"{base}/namespaces", f"?{owner}" if owner else "")
        await walk("GET", f"{base}/namespaces", f"?{owner}&namespace=a&depth=2&limit=1&after=a")
        now = await walk("GET", f"{base}/record", name)
        await walk("DELETE", f"{base}/record", name, If_Match=now.headers["etag"])
        await walk("DELETE", base, f"?{owner}" if owner else "")


async def review_memory_files(walk: Walk) -> None:
    """Call the routes of memory files: versions, held changes, and both decisions."""
    walk.good = True
    files = open_memory_files(walk.hf.engine, "ann", "planner").with_source(ChangeSource("s", 0, "planner", "tool"))
    await files.create("/memories/a.md", "tea")
    for number in range(2):
        await files.hold({"command": "insert", "path": "/memories/a.md", "insert_line": number, "insert_text": "gin"})
    own = "?agent=planner"
    (version,) = (await walk("GET", FILES, f"{own}&path=/memories/a.md", id="ann")).json()["data"]
    assert (version["id"], version["text"], version["source"]["origin"]) == (1, "tea", "tool")
    page = (await walk("GET", FILES, f"{own}&limit=1", id="ann")).json()
    assert (page["data"][0]["command"]["insert_text"], page["has_more"]) == ("gin", True)
    assert not (await walk("GET", FILES, f"{own}&after={page['last_id']}", id="ann")).json()["has_more"]
    path = f"{FILES}/{{change_id}}/review"
    done = await walk("POST", path, own, {"decision": "accept"}, id="ann", change="1")
    assert done.json()["answer"] == "The file /memories/a.md has been edited."
    assert (await walk("POST", path, own, {"decision": "reject"}, id="ann", change="2")).json()["answer"] is None
    assert (await walk("GET", FILES, id="ann")).json()["data"] == []


async def use_memories(walk: Walk) -> None:
    """Call the memory routes: new, merged, superseded, held and reviewed, recalled and forgotten."""
    walk.good = True
    new = {
        "content": "Ann likes tea",
        "user_id": "ann",
        "tags": ["drink"],
        "sources": [{"session_id": "s", "seqs": [1]}],
    }
    one = (await walk("POST", MEMORIES, body=new)).json()
    await walk("POST", MEMORIES, body=new)
    await walk("POST", MEMORIES, body={**new, "content": "Ann likes green tea"})
    held = (await walk("POST", MEMORIES, body={**new, "content": "Ann pays to 7", "origin": "tool"})).json()
    await walk("POST", f"{MEMORY}/review", body={"decision": "accept"}, memory=held["id"])
    for query in ("?user_id=ann", "?user_id=ann&limit=1&order=desc", "?user_id=ann&q=tea", "?user_id=nobody"):
        await walk("GET", MEMORIES, query)
    await walk("GET", MEMORY, memory=one["id"])
    await walk("PATCH", MEMORY, body={"content": "Ann likes gin", "valid_until": 10**13}, memory=one["id"])
    await walk("DELETE", MEMORY, memory=held["id"])
    await consolidate(walk)
    await walk("DELETE", MEMORIES, "?user_id=ann&source_session=s")


async def consolidate(walk: Walk) -> None:
    """Run a dry run and a sweep, then read the diary."""
    walk.good = True
    for question in ("gin", "gin+now", "any+other+gin"):
        await walk("GET", MEMORIES, f"?user_id=ann&q={question}")
    for body in ({"user_id": "ann", "dry_run": True}, {"user_id": "ann"}, {"scope": "app"}, {"agent": "desk"}):
        await walk("POST", f"{MEMORIES}/consolidate", body=body)
    for query in ("?user_id=ann&limit=1", "?scope=app", "?agent=desk"):
        await walk("GET", f"{MEMORIES}/diary", query)


async def commit_workspaces(walk: Walk) -> None:
    """Call the workspace routes: no commit yet, one commit, nothing new, two commits."""
    workspace = walk.hf.workspaces
    assert workspace is not None
    folder = workspace.workspace("default", "support").folder
    await walk("GET", f"{WORKSPACE}/history", "?diff=true", id="support")
    for note in ({"note": "first"}, {}):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "large").write_bytes(bytes(2**20 + 1))
        (folder / "note.md").write_text("first")
        await walk("POST", f"{WORKSPACE}/checkpoint", body=note, id="support")
    for query in ("", "?diff=true", "?limit=1&diff=true"):
        await walk("GET", f"{WORKSPACE}/history", query, id="support")


async def compact_sessions(walk: Walk) -> None:
    """Call the compaction routes, with each kind of answer."""
    for _ in range(5):
        await walk("POST", MESSAGES, body={"messages": [{"role": "user", "content": "an answer to that " * 20}]})
    assert (await walk("POST", COMPACTIONS, body={"preview": True, "target": 0.3})).json()["status"] == "preview"
    assert (await walk("POST", COMPACTIONS, body={"target": 0.3})).json()["status"] == "live"
    for query in ("", "?limit=1&order=desc", "?after=1"):
        await walk("GET", COMPACTIONS, query)
    await walk("GET", f"{COMPACTIONS}/{{compaction_id}}", "?compare=true&limit=2&after=0")
    for method in ("GET", "DELETE"):
        await walk(method, f"{COMPACTIONS}/{{compaction_id}}")
    assert (await walk("POST", COMPACTIONS, body={"wait": False})).json()["status"] == "pending"
    await walk.hf.engine.compactor.wait_until_idle()


async def use_responses(walk: Walk) -> None:
    """Create responses, whole, streamed and in the background, and a conversation with items."""
    made = (await walk("POST", RESPONSES, body={"input": "hi", "background": True})).json()
    one = {"response": made["id"]}
    await walk("POST", f"{RESPONSES}/compact", body={"input": [HI], "model": "gpt-4o"})
    await walk("POST", f"{RESPONSES}/input_tokens", body={"input": "more", "previous_response_id": made["id"]})
    await walk("GET", f"{RESPONSES}/{{response_id}}", "?stream=true", **one)
    await walk("GET", f"{RESPONSES}/{{response_id}}", **one)
    await walk("POST", f"{RESPONSES}/{{response_id}}/cancel", **one)
    await walk("GET", f"{RESPONSES}/{{response_id}}/input_items", "?order=asc", **one)
    await walk("POST", RESPONSES, body={"input": "again", "stream": True, "previous_response_id": made["id"]})
    await walk("DELETE", f"{RESPONSES}/{{response_id}}", **one)
    talk = (await walk("POST", CONVERSATIONS, body={"metadata": {"a": "b"}})).json()["id"]
    path = f"{CONVERSATIONS}/{{conversation_id}}"
    await walk("POST", path, body={"metadata": {}}, conversation=talk)
    await walk("GET", path, conversation=talk)
    added = await walk("POST", f"{path}/items", body={"items": [{"role": "user", "content": "hi"}]}, conversation=talk)
    item = added.json()["data"][0]["id"]
    await walk("GET", f"{path}/items", conversation=talk)
    await walk("GET", f"{path}/items/{{item_id}}", conversation=talk, item=item)
    await walk("DELETE", f"{path}/items/{{item_id}}", conversation=talk, item=item)
    await walk("DELETE", path, conversation=talk)
