"""The REST API of sessions over a socket, with valid input."""

from __future__ import annotations

from typing import Any

from tests.edges.rest_kit import append_messages, assistant, create_session, user
from tests.edges.server import gateway
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


async def test_deleted_session_is_not_found() -> None:
    """With its messages; a second delete is a 404."""
    async with gateway([]) as (served, _):
        await create_session(served)
        gone = (await served.http.delete("/v1/sessions/s")).json()
        assert (gone["id"], gone["object"], gone["deleted"], gone["receipt"]["sessions"]) == ("s", "session", True, 1)
        assert (await served.http.delete("/v1/sessions/s")).status_code == 404
        assert (await served.http.get("/v1/sessions/s/messages")).status_code == 404


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
