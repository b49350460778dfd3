"""A model with OpenAI's Responses API behind clients of all APIs, prompts in the format of Gemini, and counts of providers."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.testing import Reply, ResponsesUpstream, ScriptedUpstream
from tests.behaviour.kit import assistant, calls, result, system, user
from tests.behaviour.kit.anthropic import AnthropicUpstream
from tests.behaviour.kit.claude import LOOK, MARK, PICTURE, PIXEL, SCHEMA, THOUGHT, Row, ask, chat, found, text, use
from tests.behaviour.kit.exchanges import Exchange, exchange

LLM = {"api": "responses", "model": "gpt-5"}
RUN = {"type": "custom", "custom": {"name": "run", "description": "Run it."}}
SHOWN: Row = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"}}
REPLIES = {
    "reasoned": Reply(
        text="Four.", message={"reasoning_content": "two and two"}, usage={"prompt_tokens": 9, "completion_tokens": 4}
    ),
    "calls": Reply(text="Wait.", tool_calls=[("look", {"at": 1}), ("find", "")]),
    "refusal": Reply(message={"refusal": "I must not."}),
    "length": Reply(text="Hel", finish_reason="length"),
    "filter": Reply(text="Hel", finish_reason="content_filter"),
    "whole": Reply(text="Hi", tool_calls=[("look", {})], stream=False),
    "error": Reply(text="One two", error="It broke.", cut_after=6),
    "cut": Reply(text="One two", cut_after=6),
    "limit": Reply(status=429, error="slow"),
    "odd": Reply(raw=[b'data: {"x": 1}\n\n']),
    "failed": Reply(
        raw=[
            b'data: {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "slow"}}}\n\n'
        ]
    ),
}


def choose(body: Row) -> Reply:
    said = body["input"][-1]["content"]
    return REPLIES.get(said if isinstance(said, str) else said[-1].get("text"), Reply(text="Yes."))


native = partial(exchange, (), upstream=partial(ResponsesUpstream, choose), llm=LLM)


@native()
async def test_fields_for_the_responses_api(x: Exchange) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    allowed = {"mode": "auto", "tools": [LOOK, RUN]}
    rows: list[Row] = [
        {
            "max_tokens": 7,
            "max_completion_tokens": 8,
            "temperature": 0.3,
            "top_p": 0.4,
            "seed": 1,
            "store": True,
            "n": 1,
            "user": "ada",
        },
        {
            "reasoning_effort": "low",
            "reasoning": {"summary": "auto", "effort": "high"},
            "verbosity": "low",
            "metadata": {"a": "b"},
        },
        {"response_format": form, "logprobs": True, "top_logprobs": 2, "max_tokens": 9, "service_tier": "flex"},
        {
            "response_format": {"type": "json_object"},
            "logprobs": True,
            "parallel_tool_calls": False,
            "tool_choice": "auto",
        },
        {
            "tools": [LOOK, RUN, {"type": "web_search"}],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
        },
        {
            "tools": [LOOK, RUN],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
            "parallel_tool_calls": True,
        },
        {"tools": [RUN], "tool_choice": {"type": "custom", "custom": {"name": "run"}}},
        {"tools": [LOOK], "tool_choice": "required", "prompt_cache_key": "mine"},
        *(
            {name: 1}
            for name in (
                "audio",
                "functions",
                "function_call",
                "logit_bias",
                "prediction",
                "stop",
                "web_search_options",
            )
        ),
        {"n": 2},
    ]
    for fields in rows:
        await chat(x, **fields)
    await ask(
        x, system="Be brief.", tools=[{"name": "look", "input_schema": SCHEMA}], tool_choice={"type": "any"}, top_p=0.5
    )
    await ask(
        x,
        thinking={"type": "enabled", "budget_tokens": 9000},
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )


@native()
async def test_conversations_for_the_responses_api(x: Exchange) -> None:
    custom = {"id": "e", "type": "custom", "custom": {"name": "run!", "input": "print(1)"}}
    long = ["c" * 64, "c" * 65 + "a", "c" * 65 + "b"]
    told = [*(result(one, one[-2:]) for one in long), result("e", [text("x"), SHOWN])]
    made = calls(*((one, "look.at", {}) for one in long), text="Wait.")
    made["tool_calls"].append(custom)
    histories: list[list[Row]] = [
        [system("Be brief."), user([text("Look.", **MARK), SHOWN]), made, *told],
        [
            user("Hi."),
            assistant([text("A"), {"type": "refusal", "refusal": "No."}]),
            assistant("B", refusal="No."),
            user("So?"),
        ],
        [user("Hi."), assistant("A", thinking_blocks=[THOUGHT], reasoning_content="hm"), assistant(""), user("So?")],
        [
            user("Hi."),
            assistant(
                "A", reasoning_details=[{"type": "reasoning.encrypted", "data": "x", "format": "openai-responses-v1"}]
            ),
            user("So?"),
        ],
    ]
    for at, history in enumerate(histories):
        await chat(x, history, tools=[LOOK, RUN], session_id=f"s{at}")
    image = [
        text("Look."),
        PICTURE,
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
    ]
    await ask(
        x, [user(image), assistant([THOUGHT, use("a")]), user([found("a", [PICTURE], is_error=True), text("So?")])]
    )


@native()
async def test_replies_of_the_responses_api(x: Exchange) -> None:
    """Encrypted reasoning goes back to its server only."""
    made: dict[str, Any] = {}
    for name in REPLIES:
        for api, stream in ((chat, False), (chat, True), (ask, True)):
            made[f"{name} {stream}"] = await api(x, name, stream=stream, session_id=f"{name} {api.__name__} {stream}")
            if name == "reasoned":
                body = {"messages": [user("So?")], "session_id": f"{name} {api.__name__} {stream}"}
                await x.served.http.post("/v1/chat/completions", json=body)
    (first, second) = made["calls False"]["choices"][0]["message"]["tool_calls"]
    await chat(x, [result(first["id"], "seen"), result(second["id"], "found")], session_id="calls chat False")


@exchange(())
async def test_prompts_for_gemini(x: Exchange) -> None:
    """Turns alternate, results have a turn of their own, and calls have a signature."""
    sealed = {"type": "reasoning.encrypted", "data": "seal", "format": "google-gemini-v1"}
    signed: Row = {"extra_content": {"google": {"thought_signature": "sig"}}}
    asked = calls(("a", "look at", {"x": 1}), ("b", "9" * 70, {}), text="Wait.")
    shown = [text("1"), {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}]
    histories: dict[str, list[Row]] = {
        "results": [user("Go.", name="Ada"), asked, result("b", "2", is_error=True), result("a", "1"), user("So?"), assistant("Yes.")],
        "media": [user([text("Look."), {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]), asked, result("a", shown), result("b", ""), user("So?")],
        "signed": [user("Go."), {**asked, "tool_calls": [{**one, **signed} for one in asked["tool_calls"]]}, result("a", "1"), result("b", "2"), user("So?")],
        "sealed": [user("Go."), {**asked, "reasoning_details": [{**sealed, "id": "b"}]}, result("a", "1"), result("b", "2")],
        "sealed first": [user("Go."), {**asked, "reasoning_details": [sealed]}, result("a", "1"), result("b", "2")],
        "words": [user("Go."), assistant("A", **signed, refusal="No."), assistant("B", reasoning_content="hm", audio={"transcript": "Aha."}), user("C"), user("D")],
        "thoughts": [user("Go."), assistant("A", reasoning_details=[{"type": "reasoning.text", "text": "hm", "signature": "s", "format": "google-gemini-v1"}]), user("C")],
        "others": [assistant("A", thinking_blocks=[THOUGHT]), user([{"type": "image_url", "image_url": {"url": "data:image/gif;base64,AAAA"}}]), system("Be kind."), user([text("a", **signed), text(" ")])],
    }  # fmt: skip
    for name, messages in histories.items():
        await x.post("/v1/sessions", id=name, system_messages=[system("Be brief.")])
        await x.post(f"/v1/sessions/{name}/messages", messages=messages)
        await x.post(f"/v1/sessions/{name}/context", dialect="gemini")
    await x.post("/v1/sessions/results/context", dialect="anthropic")
    await x.post("/v1/sessions/results/context", dialect="other")


def count(body: Row) -> Any:
    said = str(body)
    return (
        Reply(status=int(said[said.index("status ") + 7 :][:3]), error="told")
        if "status " in said
        else 4321
        if "zero" not in said
        else 0
    )


@exchange(
    (),
    upstream=lambda: ScriptedUpstream(lambda _: "Yes.", counts=count),
    llm={"count": "provider"},
    models={
        "claude": (
            lambda: AnthropicUpstream(lambda _: "Yes.", counts=count),
            {"provider": "anthropic", "model": "c-4", "count": "provider"},
        ),
        "claude-x": (
            lambda: ScriptedUpstream(lambda _: "Yes.", counts=count),
            {"model": "org/claude-x", "count": "provider"},
        ),
        "local": (lambda: ScriptedUpstream(lambda _: "Yes."), {}),
    },
)
async def test_counts_of_providers(x: Exchange) -> None:
    """In the provider's own format; without an answer, Holdfast's own count."""
    rounds = [user([text("Go."), PICTURE]), assistant([text("Wait."), use("a")]), user([found("a", "1"), text("So?")])]
    body: Row = {"messages": rounds, "system": "Be brief.", "tools": [{"name": "look", "input_schema": SCHEMA}]}
    for model in ("default", "claude", "claude-x", "local"):
        await x.post("/v1/messages/count_tokens", model=model, **body)
        for said in ("status 400", "Hi.", "zero", "Hi again."):
            await x.post("/v1/messages/count_tokens", model=model, messages=[user(said)])
    wrongs: list[Row] = [
        {},
        {"messages": []},
        {"messages": "x"},
        {"messages": [user("Hi.")], "tools": 5},
        {"messages": [user("Hi.")], "system": 5},
    ]
    for wrong in wrongs:
        await x.post("/v1/messages/count_tokens", **wrong)
    for name, server in x.served.models.items():
        x.note(f"{name} counted", [[one.path, one.body] for one in server.counted])
    for query in (
        {},
        {"limit": 1},
        {"limit": 2, "after_id": "claude"},
        {"before_id": "local", "limit": 1},
        {"after_id": "no"},
        {"limit": 0},
    ):
        await x.get("/v1/models", {"anthropic-version": "2023-06-01"}, **query)


@exchange((), models={"play": (ScriptedUpstream, {"provider": "offline"})})
async def test_the_offline_model(x: Exchange) -> None:
    """It tells what reaches it, and calls a tool if it is asked to."""
    for said in (
        "Good morning.",
        "What do you see?",
        "what can you see",
        "help!",
        "call look {}",
        'call look {"at": 1}',
        "call find",
        "call look {no}",
        "call",
    ):
        await chat(x, said, model="play", tools=[LOOK], session_id="s")
        if "look {" in said and "no" not in said:
            await chat(x, [result("call", "x")], model="play", tools=[LOOK], session_id="s")
    await ask(x, [user([text("Look. " * 60), PICTURE])], model="play", system="Be brief.\nAnd kind.", stream=True)
