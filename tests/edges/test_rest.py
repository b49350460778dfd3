"""The REST API of sessions over a socket, with valid input."""

from __future__ import annotations

from typing import Any

from holdfast.domain.session import SessionRef
from tests.clocks import START, Clock
from tests.edges.rest_kit import append_messages, assistant, create_session, path, user
from tests.edges.server import Served, gateway
from tests.words import says

# -- sessions ----------------------------------------------------------------


async def test_create_returns_the_session() -> None:
    """With all of its fields, and a location."""
    async with gateway([], "agents: {support: {llm: default}}") as (served, _):
        fields: dict[str, Any] = {
            "agent": "support",
            "state": {"a": 1},
            "metadata": {"m": [1]},
            "ttl": 5000,
            "user_id": "ada",
        }
        made = await create_session(served, system_messages=["Be kind."], **fields)
        assert {name: made[name] for name in fields} == fields
        assert made["system_messages"] == [{"role": "system", "content": "Be kind."}]
        assert (made["id"], made["object"], made["status"], made["version"]) == ("s", "session", "active", 0)
        assert (made["message_count"], made["turns"], made["tokens"]) == (0, 0, 0)
        without = (await served.http.post("/v1/sessions", json={})).json()
        assert (len(without["id"]), without["user_id"]) == (37, "default")


async def test_create_refuses_an_existing_id() -> None:
    """409 for the same user; another user may use it."""
    async with gateway([]) as (served, _):
        await create_session(served)
        again = await served.http.post("/v1/sessions", json={"id": "s"})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "session_exists")
        assert (await create_session(served, user_id="ada"))["user_id"] == "ada"


ROUTES: list[tuple[str, tuple[str, ...], Any]] = [
    ("GET", (), None),
    ("PATCH", (), {"metadata": {"a": 1}}),
    ("GET", ("messages",), None),
    ("GET", ("history",), None),
    ("POST", ("context",), {}),
    ("PATCH", ("messages", "0"), {"pinned": True}),
    ("DELETE", ("messages", "0"), None),
]


async def test_list_pages_in_both_orders() -> None:
    """Three pages, newest or oldest first, without gaps or duplicates; filters apply to every page."""
    async with gateway([], "agents: {support: {llm: default}}") as (served, _):
        for at in range(7):
            await create_session(served, f"s{at}", user_id="ada", **({"agent": "support"} if at % 2 else {}))
        await create_session(served, "s3", user_id="bob")
        for order in ("desc", "asc"):
            names = await read_pages(served, f"/v1/sessions?user_id=ada&order={order}&limit=3")
            assert [len(page) for page in names] == [3, 3, 1]
            assert [name for page in names for name in page] == sorted(
                (f"s{at}" for at in range(7)), reverse=order == "desc"
            )
        assert await read_pages(served, "/v1/sessions?agent=support&limit=2") == [["s5", "s3"], ["s1"]]
        assert await read_pages(served, "/v1/sessions?user_id=nobody") == [[]]
        assert await read_pages(served, "/v1/sessions?status=closed") == [[]]
        assert len((await read_pages(served, "/v1/sessions?status=active"))[0]) == 8


async def read_pages(served: Served, url: str) -> list[list[Any]]:
    """Read a list to its end; return the items of each page."""
    found: list[list[Any]] = []
    after = ""
    while True:
        page = (await served.http.get(url + after)).json()
        names = [item.get("seq", item.get("id")) for item in page["data"]]
        found.append(names)
        assert page["object"] == "list"
        assert (page["first_id"], page["last_id"]) == ((names[0], names[-1]) if names else (None, None))
        if not page["has_more"]:
            return found
        after = f"{'&' if '?' in url else '?'}after={page['last_id']}"
        if "user_id" in page["data"][-1] and "user_id" not in url:
            after += f"&after_user={page['data'][-1]['user_id']}"


async def test_list_is_limited_to_a_time_range() -> None:
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        for name in ("first", "second", "third"):
            await served.http.post("/v1/sessions", json={"id": name})
            clock.now += 1000

        async def find(query: str) -> list[str]:
            answer = await served.http.get(f"/v1/sessions?{query}")
            assert answer.status_code == 200, answer.text
            return [one["id"] for one in answer.json()["data"]]

        assert await find(f"since={START + 1000}") == ["third", "second"]
        assert await find(f"until={START + 2000}&order=asc") == ["first", "second"]
        assert await find("since=2023-11-14&until=2023-11-15") == ["third", "second", "first"]
        assert (await served.http.get("/v1/sessions?since=soon")).json()["error"]["param"] == "since"


async def test_patch_changes_only_the_given_fields() -> None:
    """PATCH merges the state, replaces other fields, and increments the version."""
    async with gateway([], "agents: {support: {llm: default}}") as (served, _):
        await create_session(served, state={"a": 1, "b": 2}, metadata={"m": 1}, ttl=10**9, system_messages=["Old."])
        changed = await served.http.patch("/v1/sessions/s", json={"state": {"a": None, "c": 3}})
        assert changed.json()["state"] == {"b": 2, "c": 3}
        assert changed.json()["metadata"] == {"m": 1}
        body: dict[str, Any] = {"metadata": {}, "ttl": None, "system_messages": "New.", "agent": "support"}
        data = (await served.http.patch("/v1/sessions/s", json=body)).json()
        assert (data["metadata"], data["ttl"], data["agent"], data["version"]) == ({}, None, "support", 2)
        assert data["system_messages"] == [{"role": "system", "content": "New."}]
        assert (await served.http.patch("/v1/sessions/s", json={"agent": None})).json()["agent"] is None


async def test_stale_version_is_refused() -> None:
    """If-Match with another version is a 412; the current one or `*` works."""
    async with gateway([]) as (served, _):
        await create_session(served)
        first = await append_messages(served, user("a"), **{"If-Match": '"0"'})
        assert (first.status_code, first.headers["etag"], first.json()["version"]) == (200, '"1"', 1)
        stale = await append_messages(served, user("b"), **{"If-Match": "0"})
        assert (stale.status_code, stale.json()["error"]["code"]) == (412, "stale_session")
        assert (await append_messages(served, user("b"), **{"If-Match": "*"})).status_code == 200
        body: dict[str, Any] = {"metadata": {}}
        assert (await served.http.patch("/v1/sessions/s", json=body, headers={"If-Match": '"1"'})).status_code == 412
        assert (await served.http.patch("/v1/sessions/s", json=body, headers={"If-Match": '"2"'})).status_code == 200
        assert await served.log() == [("user", "a"), ("user", "b")]


async def test_deleted_session_is_not_found() -> None:
    """With its messages; a second delete is a 404."""
    async with gateway([]) as (served, _):
        await create_session(served)
        gone = (await served.http.delete("/v1/sessions/s")).json()
        assert (gone["id"], gone["object"], gone["deleted"], gone["receipt"]["sessions"]) == ("s", "session", True, 1)
        assert (await served.http.delete("/v1/sessions/s")).status_code == 404
        assert (await served.http.get("/v1/sessions/s/messages")).status_code == 404


async def test_short_session_routes() -> None:
    """`/sessions` as in Hector: id, agent and time; one session with its messages; delete."""
    async with gateway([]) as (served, _):
        await create_session(served, user_id="ada")
        await append_messages(served, user("hi"))
        listed = (await served.http.get("/sessions?user_id=ada")).json()
        assert [set(item) for item in listed["sessions"]] == [{"id", "agent", "updated_at"}]
        assert listed["sessions"][0]["updated_at"].startswith("2023-11-14T")
        one = (await served.http.get("/sessions/s")).json()
        assert (one["id"], one["messages"]) == ("s", [user("hi")])
        assert (await served.http.delete("/sessions/s")).status_code == 200
        assert (await served.http.get("/sessions")).json() == {"sessions": []}


async def test_other_users_sessions_are_not_found() -> None:
    """With a `user_id` only that user's sessions exist, on every route and in every parameter."""
    async with gateway([]) as (served, _):
        await create_session(served, user_id="ada")
        await append_messages(served, user("hi"))
        for method, more, body in ROUTES:
            response = await served.http.request(method, path("s", *more) + "?user_id=bob", json=body)
            assert (response.status_code, response.json()["error"]["code"]) == (404, "session_not_found"), (
                method,
                more,
            )
        for url in ("/sessions/s?user_id=bob", "/v1/sessions?user_id=bob&after=s"):
            assert (await served.http.get(url)).status_code == 404
        assert (await served.http.delete("/v1/sessions/s?user_id=bob")).status_code == 404
        assert (await served.http.get("/v1/sessions/s?user_id=ada")).status_code == 200


async def test_session_of_a_removed_agent_stays_usable() -> None:
    """Its log can be read, written, exported and deleted; only turns need the agent."""
    async with gateway([]) as (served, _):
        await served.http.put("/v1/sessions/s", json={"messages": [user("a")], "agent": "gone"})
        assert (await append_messages(served, user("b"))).status_code == 200
        for url in ("/v1/sessions/s", "/sessions/s", "/v1/sessions/s/messages", "/v1/sessions/s/history"):
            assert (await served.http.get(url)).status_code == 200
        answer = await served.chat("c")
        assert (answer["status"], answer["error"]["param"]) == (400, "agent")
        assert (await served.http.patch("/v1/sessions/s", json={"agent": None})).status_code == 200


# -- messages ----------------------------------------------------------------

UNIT: list[dict[str, Any]] = [
    user("find A-17", timestamp=5, metadata={"source": "asr"}),
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"n": "A-17"}'}}],
    },
    {"role": "tool", "tool_call_id": "c", "name": "find", "content": [{"type": "text", "text": "here"}], "x": {"y": 1}},
    assistant("Found.", agent="finder", importance=0.5, pinned=True),
]


async def test_append_returns_the_entries() -> None:
    """As stored, with the version; unknown fields are kept, and Holdfast's own are read."""
    async with gateway([]) as (served, _):
        await create_session(served)
        answer = (await append_messages(served, *UNIT)).json()
        assert [entry["seq"] for entry in answer["data"]] == [0, 1, 2, 3]
        assert (answer["version"], answer["first_id"], answer["last_id"]) == (1, 0, 3)
        for sent, entry in zip(UNIT, answer["data"], strict=True):
            assert sent.items() <= entry.items()
            assert entry["tokens"] > 0
        assert {entry["turn_id"] for entry in answer["data"]} == {0}


async def test_append_with_an_idempotency_key_is_done_once() -> None:
    """The same key and body return the same entries; another body is a 422."""
    async with gateway([]) as (served, _):
        await create_session(served)
        key = {"Idempotency-Key": "k"}
        first = (await append_messages(served, user("a"), **key)).json()
        await append_messages(served, user("b"))
        assert (await append_messages(served, user("a"), **key)).json()["data"] == first["data"]
        conflict = await append_messages(served, user("c"), **key)
        assert (conflict.status_code, conflict.json()["error"]["code"]) == (422, "idempotency_conflict")
        assert await served.log() == [("user", "a"), ("user", "b")]


async def test_messages_page_in_both_orders() -> None:
    """Three pages, oldest or newest first; a message with an `id` of its own is still addressed by its seq."""
    async with gateway([]) as (served, _):
        await create_session(served)
        await append_messages(served, *(user(f"m{at}", id=f"own-{at}") for at in range(7)))
        assert await read_pages(served, "/v1/sessions/s/messages?limit=3") == [[0, 1, 2], [3, 4, 5], [6]]
        assert await read_pages(served, "/v1/sessions/s/messages?limit=3&order=desc") == [[6, 5, 4], [3, 2, 1], [0]]
        assert await read_pages(served, "/v1/sessions/s/messages?limit=1000") == [list(range(7))]
        assert await read_pages(served, "/v1/sessions/s/messages?after=6") == [[]]
        page = (await served.http.get("/v1/sessions/s/messages")).json()
        assert page["data"][0]["id"] == "own-0"
        assert page["version"] == 1


async def test_pinned_message_stays_in_the_working_set() -> None:
    """Within any budget; after unpinning it is evicted."""
    async with gateway([]) as (served, _):
        await create_session(served)
        await append_messages(
            served, *(user(f"message {at}") if at % 2 == 0 else assistant("word " * 200) for at in range(20))
        )
        pinned = (await served.http.patch("/v1/sessions/s/messages/6", json={"pinned": True, "importance": 0.9})).json()
        assert (pinned["seq"], pinned["pinned"], pinned["importance"]) == (6, True, 0.9)
        small = {"strategy": "token_window", "budget": 600, "explain": True}
        built = (await served.http.post("/v1/sessions/s/context", json=small)).json()
        assert user("message 6") in built["messages"]
        assert [run["from"] for run in built["decisions"] if run["decision"] == "pinned"] == [6]
        again = (
            await served.http.patch("/v1/sessions/s/messages/6", json={"pinned": False, "importance": None})
        ).json()
        assert "pinned" not in again
        assert "importance" not in again
        built = (await served.http.post("/v1/sessions/s/context", json=small)).json()
        assert user("message 6") not in built["messages"]


async def test_erased_message_is_gone_everywhere() -> None:
    """From log, export, history and prompts; its place stays, and its tokens are not counted."""
    secret = "my number is 4111-1111-1111-1111 " * 20
    async with gateway(["ok"]) as (served, upstream):
        await create_session(served)
        before = (
            await append_messages(served, user("hi"), assistant("hello"), user(secret), assistant("noted"))
        ).json()["data"]
        erased = (await served.http.delete("/v1/sessions/s/messages/2")).json()
        assert (erased["seq"], erased["deleted"], erased["content"]) == (2, True, "[erased]")
        assert erased["tokens"] < before[2]["tokens"]
        session = (await served.http.get("/v1/sessions/s")).json()
        assert session["tokens"] == sum(entry["tokens"] for entry in session["messages"])
        for url in ("/v1/sessions/s", "/v1/sessions/s/history", "/v1/sessions/s/messages?retired=true", "/sessions/s"):
            assert not says((await served.http.get(url)).text, "4111")
        await served.chat("and now?")
        assert not says(upstream.requests[0].raw.decode(), "4111")
        assert (await served.http.delete("/v1/sessions/s/messages/2")).status_code == 200
        assert (await served.http.delete("/v1/sessions/s/messages/99")).status_code == 404
        await (await served.hf.session("s")).verify()


async def test_erased_tool_result_keeps_its_unit_valid() -> None:
    """Call and result stay a pair in the prompt."""
    async with gateway(["ok"]) as (served, upstream):
        await create_session(served)
        await append_messages(served, *UNIT)
        await served.http.delete("/v1/sessions/s/messages/2")
        await served.chat("next")
        assert [message["role"] for message in upstream.requests[0].body["messages"]] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
        ]


# -- export and import -------------------------------------------------------


async def test_log_beginning_with_a_system_message_round_trips() -> None:
    """An export names the system prompt; a system message in the log is a message."""
    async with gateway([]) as (served, _):
        await create_session(served, system_messages=["Beside."])
        await append_messages(served, {"role": "system", "content": "inside"}, user("a"))
        for _ in range(2):
            exported = (await served.http.get("/v1/sessions/s")).json()
            assert [entry["content"] for entry in exported["messages"]] == ["inside", "a"]
            assert [message["content"] for message in exported["system_messages"]] == ["Beside."]
            await served.http.put("/v1/sessions/s", json=exported)


# -- working sets and history ------------------------------------------------


async def test_context_builds_a_prompt_and_stores_nothing() -> None:
    """Messages ready to send, matching counts, a hash; the version does not change."""
    async with gateway([]) as (served, upstream):
        await create_session(served, system_messages=["Sys."])
        await append_messages(
            served, *(user(f"m{at}") if at % 2 == 0 else assistant("word " * 100) for at in range(20))
        )
        whole = (await served.http.post("/v1/sessions/s/context", json={})).json()
        assert [message["role"] for message in whole["messages"][:2]] == ["system", "user"]
        assert len(whole["messages"]) == 21
        assert "decisions" not in whole
        assert whole["total_tokens"] > whole["conversation_tokens"]
        assert whole["conversation_tokens"] == (await served.http.get("/v1/sessions/s")).json()["tokens"]
        body = {"strategy": "digest", "budget": 500, "explain": True, "model": "gpt-4o", "dialect": "anthropic"}
        small = (await served.http.post("/v1/sessions/s/context", json=body)).json()
        assert small["conversation_tokens"] <= small["budget"] == 500
        assert small["build"]["strategy"]["strategy"] == "digest"
        assert (
            small["hash"]
            == (await served.http.post("/v1/sessions/s/context", json=body)).json()["hash"]
            != whole["hash"]
        )
        assert {"from", "to", "decision", "reason", "tokens"} == set(small["decisions"][0])
        covered = [seq for run in small["decisions"] for seq in range(run["from"], run["to"] + 1)]
        assert covered == list(range(20))
        assert whole["version"] == small["version"] == 1
        assert upstream.requests == []


MARKED = {"cache_control": {"type": "ephemeral"}}
"""Up to here the provider is asked to keep a prompt for the next one."""


async def test_context_in_each_dialect() -> None:
    """In the provider's shape with its place for the system prompt; the hash is that of the built prompt."""
    calls = [{"id": "c.1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    signed = [{"type": "thinking", "thinking": "hm", "signature": "sig"}]
    log = [
        user("hi"),
        {"role": "assistant", "content": None, "tool_calls": calls, "thinking_blocks": signed},
        {"role": "tool", "tool_call_id": "c.1", "content": "found"},
        user("and?"),
    ]
    async with gateway([]) as (served, _):
        await create_session(served, system_messages=["Sys."])
        await append_messages(served, *log)
        told = {}
        for dialect in (None, "openai", "anthropic", "gemini"):
            reply = await served.http.post("/v1/sessions/s/context", json={"dialect": dialect})
            told[dialect] = reply.json()
        assert told[None] == told["openai"]
        assert told["openai"]["messages"] == [{"role": "system", "content": "Sys."}, *log]
        assert "system" not in told["openai"]
        assert {name: told["anthropic"][name] for name in ("system", "messages")} == {
            "system": [{"type": "text", "text": "Sys.", **MARKED}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi", **MARKED}]},
                {
                    "role": "assistant",
                    "content": [*signed, {"type": "tool_use", "id": "c_1", "name": "f", "input": {"x": 1}}],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c_1", "content": [{"type": "text", "text": "found"}]},
                        {"type": "text", "text": "and?", **MARKED},
                    ],
                },
            ],
        }
        assert told["gemini"]["system"] == {"parts": [{"text": "Sys."}]}
        assert [turn["role"] for turn in told["gemini"]["messages"]] == ["user", "model", "user", "model", "user"]
        assert (
            told["anthropic"]["conversation_tokens"]
            == told["openai"]["conversation_tokens"]
            < told["gemini"]["conversation_tokens"]
        )
        assert len({told[dialect]["hash"] for dialect in ("openai", "anthropic")}) == 2
        await served.http.patch("/v1/sessions/s", json={"system_messages": []})
        bare = (await served.http.post("/v1/sessions/s/context", json={"dialect": "anthropic"})).json()
        assert "system" not in bare


async def test_context_at_an_earlier_turn() -> None:
    """The prompt of that turn: no later message, and not its reply."""
    async with gateway([]) as (served, _):
        await create_session(served)
        await append_messages(served, user("a"), assistant("A"), user("b"), assistant("B"))
        at = (await served.http.post("/v1/sessions/s/context", json={"at_turn": 1})).json()
        assert [message["content"] for message in at["messages"]] == ["a", "A", "b"]
        missing = await served.http.post("/v1/sessions/s/context", json={"at_turn": 9})
        assert (missing.status_code, missing.json()["error"]["param"]) == (400, "at_turn")


async def test_history_in_both_forms() -> None:
    """The voice form has records, the plain one role and content; tools and system messages are in neither."""
    async with gateway([]) as (served, _):
        await create_session(served, system_messages=["Sys."])
        await append_messages(served, *UNIT)
        voice = (await served.http.get("/v1/sessions/s/history")).json()
        assert voice == {
            "contents": [
                {
                    "role": "user",
                    "content": "find A-17",
                    "turn_id": 0,
                    "timestamp": 5,
                    "metadata": {"source": "asr"},
                },
                {
                    "role": "assistant",
                    "content": "Found.",
                    "turn_id": 0,
                    "agent": "finder",
                    "timestamp": voice["contents"][1]["timestamp"],
                    "metadata": {"source": "llm"},
                },
            ]
        }
        plain = (await served.http.get("/v1/sessions/s/history?view=plain")).json()
        assert plain == {"messages": [user("find A-17"), assistant("Found.")]}


async def test_session_on_disk_survives_a_restart(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with gateway(["ok"], store=store) as (served, _):
        await served.chat("hi")
    async with gateway(["fine"], store=store) as (served, upstream):
        await served.chat("again")
        assert [message["content"] for message in upstream.requests[0].body["messages"]] == ["hi", "ok", "again"]
        assert (await served.hf.store.get(SessionRef("default", "s"))).version == 4
