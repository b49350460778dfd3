"""Chat Completions: what each kind of reply and request becomes for the client, for the model, and in the log."""

from __future__ import annotations

from typing import Any, Final

from holdfast.testing import Reply, ScriptedUpstream
from tests.behaviour.kit import assistant, calls, result, system, user
from tests.behaviour.kit.exchanges import Exchange, exchange

CHAT: Final = "/v1/chat/completions"
CLAUDE: Final = {"anthropic-version": "2023-06-01"}
LOOK: Final = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
USAGE: Final = {
    "prompt_tokens": 20,
    "completion_tokens": 7,
    "total_tokens": 27,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
LOGPROBS: Final = {"content": [{"token": "Yes", "logprob": -0.1, "bytes": [89, 101, 115], "top_logprobs": []}]}


def chunk(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-7",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "gpt-4o-7",
        "choices": list(choices),
        **more,
    }


KINDS: Final = [
    Reply(text="Two words", usage=USAGE),
    Reply(text="Cut", finish_reason="length", usage={}),
    Reply(message={"refusal": "I cannot."}),
    Reply(text="Deep.", message={"reasoning_content": "Let me think."}),
    Reply(text="Both.", tool_calls=[("look", {"at": "sea"}), ("look", {"at": "sky"})]),
    Reply(tool_calls=[{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}, "extra_content": {"google": {"thought_signature": "c2ln"}}}]),
    Reply(
        chunks=[
            chunk({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}, system_fingerprint="fp"),
            chunk({"index": 0, "delta": {"content": "Yes"}, "logprobs": LOGPROBS, "finish_reason": None}),
            chunk({"index": 1, "delta": {"role": "assistant", "content": "No"}, "finish_reason": None}),
            chunk({"index": 1, "delta": {}, "finish_reason": "content_filter"}),
            chunk({"index": 0, "delta": {}, "finish_reason": "stop"}, service_tier="flex"),
            chunk(usage=USAGE),
        ]
    ),
]  # fmt: skip


@exchange([*KINDS, *KINDS, *KINDS])
async def test_each_kind_of_reply_whole_and_streamed(x: Exchange) -> None:
    streams: list[dict[str, Any]] = [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}]
    for name, how in zip("abc", streams, strict=True):
        for at in range(len(KINDS)):
            n = 1 + at // (len(KINDS) - 1)
            await x.post(CHAT, session_id=f"{name}{at}", messages=[user("Hi.")], n=n, **how)
        await x.rows("/v1/sessions", "id", "turns", "usage", limit=len(KINDS))
    for at in range(len(KINDS)):
        await x.rows(
            f"/v1/sessions/a{at}/messages", "role", "content", "tool_calls", "metadata", "reasoning", "refusal"
        )
        await x.rows(
            f"/v1/sessions/c{at}/calls",
            "model",
            "finish_reason",
            "prompt_tokens",
            "completion_tokens",
            "cached_tokens",
            "error",
        )


@exchange(
    ["Hi.", *(["Done."] * 40)],
    "gateway: {pass_fields: [our_field], session_headers: [X-Thread], user_headers: [X-User]}",
)
async def test_fields_and_headers_of_requests(x: Exchange) -> None:
    await x.post(
        CHAT,
        model="default",
        messages=[system("Be kind."), user("Hi.")],
        session_id="s",
        temperature=0,
        stop=["x"],
        response_format={"type": "json_object"},
        reasoning_effort="low",
        max_completion_tokens=7,
        logprobs=True,
        metadata={"a": "b"},
        store=False,
        seed=7,
        our_field=1,
        their_field=2,
        tools=[LOOK],
        tool_choice="auto",
        parallel_tool_calls=False,
        session_queue="queue",
        session_mode="auto",
        session_match="on",
        on_disconnect="finish",
    )
    for more in (
        {"conversation_id": "c"},
        {"thread": "t", "session_id": "t"},
        {"stream_options": {"progress": True}, "stream": True},
        {"stream_options": {"include_usage": False, "include_progress": False}, "stream": True},
        {"stream_options": None, "stream": True},
    ):
        await x.post(CHAT, messages=[user("Hi.")], **more)
    for named in ({}, {"name": ""}, {"name": 5}, {"name": "look"}):
        called = {**assistant(None), "function_call": {"name": "look", "arguments": "{}"}}
        said = [user("Look."), called, {"role": "function", "content": "far", **named}, user("So?")]
        await x.post(CHAT, session_id="old", session_mode="transcript", messages=said)
    for name in ("sessian_id", "sesion_id", "sessiion_id", "sessoin_id", "xession_id", "session_ix", "threadId"):
        await x.post(CHAT, messages=[user("Hi.")], **{name: "s"})
    for headers in (
        {"X-Session-Id": "s%C3%A9+1", "X-User": "ada+1"},
        {"X-Thread": "t2"},
        {"X-Thread": "t2", "X-Session-Id": "t2", "X-Session-Mode": "delta"},
        {"X-User": "ada", "Idempotency-Key": "short"},
        {"Idempotency-Key": "short"},
    ):
        await x.post(CHAT, headers, messages=[user("Hi.")])
    people: list[dict[str, Any]] = [
        {"user": "ada"},
        {"safety_identifier": "bob"},
        {"user_id": "eve", "user": "eve"},
        {"user": "a", "safety_identifier": "b"},
    ]
    for user_of in people:
        await x.post(CHAT, session_id="s", messages=[user("Hi.")], **user_of)
    await x.rows("/v1/sessions", "id", "user_id", "turns", "agent", limit=50)


WRONG: Final[list[tuple[dict[str, str], dict[str, Any]]]] = [
    ({}, {"messages": None}),
    ({}, {"messages": []}),
    ({}, {"messages": [], "session_id": "new"}),
    ({}, {"messages": [user("")]}),
    ({}, {"messages": [user("Hi."), user([])]}),
    ({}, {"messages": [result("c9", "what?")]}),
    ({}, {"messages": [{"role": "wizard", "content": "Hi."}]}),
    ({}, {"messages": "Hi."}),
    *(({}, {field: value}) for field in ("model", "stream", "user", "session_id", "agent", "tools", "stream_options") for value in (7,)),
    *(({}, {"n": value}) for value in (0, 129, 1.5)),
    ({}, {"max_tokens": 0}),
    ({}, {"max_completion_tokens": True}),
    *(({}, {field: "odd"}) for field in ("session_mode", "session_queue", "on_disconnect", "session_match", "strategy", "agent", "budget", "recall")),
    ({}, {"interrupt": 5}),
    ({}, {"interrupt": {"letters": 5}}),
    ({}, {"sesion_id": "s"}),
    ({"X-Session-Mode": "odd"}, {}),
    ({"X-Session-Mode": "delta"}, {"session_mode": "auto"}),
    ({"X-Session-Match": "odd"}, {}),
    *(({"X-Session-Match": "on"}, {"session_match": "off"}), ({"X-Memory": "client"}, {"memory": "server"}), ({"X-Memory": "odd"}, {})),
    ({"X-Session-Id": "a"}, {"session_id": "b"}),
    ({"X-Session-Id": "%ff"}, {}),
    ({"X-User": "a"}, {"user": "b"}),
    ({}, {"user_id": "a", "user": "b"}),
    ({"Idempotency-Key": "x" * 600}, {}),
]  # fmt: skip


@exchange(["Never."], "gateway: {user_headers: [X-User]}")
async def test_wrong_requests_leave_nothing(x: Exchange) -> None:
    for headers, fields in WRONG:
        await x.post(CHAT, headers, **{"messages": [user("Hi.")], **fields})
    for body in (b"", b"[]", b"{", b'{"messages": [], "messages": []}'):
        await x.send("POST", CHAT, body, headers={"content-type": "application/json"})
    await x.rows("/v1/sessions", "id", "user_id")


TWO: Final = [("look", {"at": "sea"}), ("look", {"at": "sky"})]


@exchange([Reply(tool_calls=TWO), "Blue.", Reply(tool_calls=TWO[:1]), "Late.", "After.", "Whole."])
async def test_tools_of_the_client(x: Exchange) -> None:
    for messages in (
        [user("What is there?")],
        [result("call_9_9", "nothing asked")],
        [result("call_1_1", "sky"), result("call_1_0", "sea")],
        [user("And now?")],
        [user("Never mind.")],
        [result("call_3_0", "late")],
    ):
        await x.post(CHAT, session_id="s", messages=messages, tools=[LOOK])
    told = calls(("call_1_0", "look", {"at": "sea"}), ("call_1_1", "look", {"at": "sky"}))
    whole = [user("What is there?"), told, result("call_1_0", "sea"), result("call_1_1", "sky"), assistant("Blue.")]
    await x.post(CHAT, session_id="s", messages=[*whole, user("And now?"), user("So?")], tools=[LOOK])
    await x.rows(
        "/v1/sessions/s/messages", "seq", "role", "content", "tool_calls", "tool_call_id", "retired_by", retired=True
    )


AGENTS: Final = "agents: {zoe: {instruction: Be Zoe., llm: small, session_mode: delta}, abe: {instruction: Be Abe.}}"
SMALL: Final = {"small": (lambda: ScriptedUpstream(["Small."] * 9), {"model": "gpt-small", "params": {"seed": 3}})}


@exchange(["Large."] * 9, AGENTS, models=SMALL, llm={"params": {"seed": 9}, "context_window": 5000, "max_tokens": 300})
async def test_models_and_agents_by_their_names(x: Exchange) -> None:
    for query in ({}, {"limit": 0}, {"limit": 1001}, {"after": "default"}):
        await x.get("/v1/models", **query)
    pages: list[dict[str, Any]] = [
        {},
        {"limit": 1},
        {"limit": 3},
        {"limit": 4},
        {"limit": 2, "after_id": "zoe"},
        {"limit": 1, "before_id": "small"},
        {"after_id": "small"},
        {"after_id": "odd"},
    ]
    for page in pages:
        await x.get("/v1/models", CLAUDE, **page)
    for name in ("default", "small", "abe", "zoe", "gpt-small", "gpt-4o", "odd", "Abe"):
        await x.get(f"/v1/models/{name}")
        await x.post(CHAT, model=name, messages=[user("Hi."), assistant("Ho."), user("So?")], user="ada")
    await x.post(CHAT, model="small", agent="abe", messages=[user("Hi.")], user="ada")
    await x.rows("/v1/sessions", "id", "agent", "turns", "message_count", limit=50)


@exchange(upstream=lambda: ScriptedUpstream(models=[f"m{at}" for at in range(25)]))
async def test_how_many_models_a_page_has(x: Exchange) -> None:
    for headers, query in (({}, {}), (CLAUDE, {}), (CLAUDE, {"limit": 24}), (CLAUDE, {"after_id": "m19"})):
        await x.rows("/v1/models", "id", headers=headers, **query)


THOUGHT: Final = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
SPOKEN: Final = [{"type": "text", "text": "Yes"}, {"type": "text", "text": "."}]
PICTURE: Final = {"type": "image_url", "image_url": {"url": "https://kelp.example/p.png"}}


def deltas(*found: dict[str, Any], reason: str = "stop") -> Reply:
    last = chunk({"index": 0, "delta": {}, "finish_reason": reason})
    return Reply(chunks=[*(chunk({"index": 0, "delta": one, "finish_reason": None}) for one in found), last])


def asked(index: int | None, call_id: str | None, name: str | None, arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments, **more}
    return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function, **more}]}


ODD: Final = [
    Reply(message={"content": [THOUGHT, *SPOKEN]}),
    Reply(message={"content": [*SPOKEN, PICTURE]}),
    Reply(message={"content": None, "function_call": {"name": "look", "arguments": "{}"}}, finish_reason="function_call"),
    Reply(message={"content": None, "function_call": {"arguments": "{}"}}),
    deltas({"content": "Yes"}, {"content": [PICTURE]}, {"content": "."}),
    deltas({"content": [THOUGHT]}, {"content": SPOKEN}, {"content": [PICTURE]}, {"content": " And"}, {"content": " this."}),
    deltas({"function_call": {"name": "look", "arguments": ""}}, {"function_call": {"arguments": "{}"}}, reason="function_call"),
    deltas(asked(0, "a", "look", ""), asked(0, "a", None, '{"at": '), asked(0, None, None, "1}"), asked(0, "b", "look", "{}")),
    deltas(asked(None, "a", "look", {"at": 1}), asked(None, "a", "look", {"at": 2}, strict=True), asked(None, None, "look", "{}")),
    deltas(asked(0, "", "look", "{}"), asked(0, "", "look", "{}"), asked(0, "", "look", "}"), asked(3, "", "see", "{}")),
    deltas(asked(1, "a", None, '{"at"'), asked(1, None, "look", ": 1}", strict=True), asked(2, "c", None, "{}")),
    Reply(text="", usage={"prompt_tokens": -1, "completion_tokens": "x", "prompt_tokens_details": 5}),
]  # fmt: skip


@exchange([*ODD, *ODD])
async def test_odd_replies(x: Exchange) -> None:
    """What servers send that are not quite OpenAI's: parts, old calls, and pieces of calls with repeated or missing names."""
    for how in ({}, {"stream": True}):
        for at in range(len(ODD)):
            await x.post(CHAT, session_id=f"{at}{len(how)}", messages=[user("Hi.")], tools=[LOOK], **how)
            await x.rows(f"/v1/sessions/{at}{len(how)}/messages", "role", "content", "tool_calls", "reasoning")
            await x.rows(f"/v1/sessions/{at}{len(how)}/calls", "prompt_tokens", "completion_tokens", "cached_tokens")


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


BOTH: Final = Reply(text="I see.", tool_calls=[("look", {}), ("shout", {"text": "hey"})])
ANSWERS: Final = [BOTH, "It is far.", "Three.", "Again.", "One.", "Two.", "Other.", "Later.", "Cut reply."]


@exchange([*ANSWERS, *ANSWERS], tools=[shout])
async def test_requests_that_are_sent_again(x: Exchange) -> None:
    """With the same key: after calls, after an edit that wrote messages again, and after an interruption; and with erased words."""

    async def ask(key: str | None, *messages: Any, session_id: str = "s", **more: Any) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = await x.post(CHAT, headers, session_id=session_id, messages=list(messages), tools=[LOOK], **more)
        return answer["choices"][0]["message"] if "choices" in answer else {"content": None}

    first = await ask("k1", user("Look."))
    await ask("k1", user("Look."), on_disconnect="finish")
    for _ in range(2):
        await ask("k2", result(first["tool_calls"][0]["id"], "far"), session_mode="delta")
    await ask("k1", user("Look."))
    await ask("k3", user("Next."), session_mode="delta")
    await x.put("/v1/sessions/s/messages/0", message=user("Look!"))
    await ask("k3", user("Next."), session_mode="delta")
    await x.post("/v1/sessions/s/interrupt", chars=3)
    await ask("k3", user("Next."), session_mode="delta")
    await x.rows("/v1/sessions/s/messages", "seq", "role", "content", "metadata", "retired_by", retired=True, limit=100)
    said: list[Any] = []
    for text in ("A", "B"):
        said += [user(text)]
        said += [assistant((await ask(None, *said, session_id="t"))["content"])]
    await ask(None, *said[:2], user("B other"), session_id="t")
    await x.delete("/v1/sessions/t/messages/2")
    await ask(None, *said, user("C"), session_id="t")
    await x.rows("/v1/sessions/t/messages", "seq", "role", "content", "retired_by", retired=True, limit=100)
