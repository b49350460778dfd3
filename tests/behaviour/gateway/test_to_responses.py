"""The Responses API on either side: what a model with that API gets, and what items of a client become for other models."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import Reply, ResponsesUpstream
from tests.behaviour.kit import Served, answer_of, assistant, gateway, result, texts, user

Row = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}}
LOOK = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
PICTURE = "data:image/png;base64,iVBORw0KGgo="


def native(script: Any = None, **llm: Any) -> Any:
    """A gateway whose model has the Responses API."""
    upstream = ResponsesUpstream(script or (lambda _: "ok"))
    return gateway((), upstream=upstream, llm={"model": "gpt-5", "api": "responses", **llm})


def kinds(served: Served) -> list[str]:
    """Return the types of the items that the model got last."""
    return [item["type"] for item in served.sent["input"]]


# -- a model with the Responses API ---------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_calls_reasoning_and_usage_come_back(stream: bool) -> None:
    """The encrypted reasoning returns to the server that made it, and to no other."""
    reply = Reply(text="Wait.", tool_calls=[("look", {"at": 1})], message={"reasoning_content": "Six by seven."})
    async with native([reply, "Done."]) as served:
        if stream:
            tools: Any = [LOOK]
            async with served.openai.chat.completions.stream(
                model="default", messages=[user("Hi")], tools=tools, extra_body={"session_id": "s"}
            ) as events:
                answer = (await events.get_final_completion()).model_dump()
        else:
            answer = await served.chat("Hi", tools=[LOOK])
        choice = answer["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Wait.")
        assert choice["message"]["reasoning_content"] == "Six by seven."
        (call,) = choice["message"]["tool_calls"]
        assert answer_of(await served.chat([result(call["id"], "seen")], tools=[LOOK])) == "Done."
        sealed = [item.get("encrypted_content") for item in served.sent["input"] if item["type"] == "reasoning"]
        assert sealed == ["sealed:Six by seven."]
        exported = await served.rest.session().export()
    async with native() as other:
        await other.rest.import_session(exported)
        await other.chat("And?", tools=[LOOK])
        assert "reasoning" not in kinds(other)


async def test_speakers_and_foreign_parts_become_words() -> None:
    """The API has no `name` and takes only texts, pictures and files; the scripted server refuses everything else."""
    video = {"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}}
    async with native() as served:
        history = [
            user("I am allergic to nuts.", name="alice"),
            assistant([{"type": "text", "text": "Noted."}, video]),
            user([{"type": "text", "text": "Watch."}, video], name="ben"),
        ]
        assert answer_of(await served.chat(history)) == "ok"
        said = [
            [part["text"] for part in item["content"]] if isinstance(item["content"], list) else item["content"]
            for item in served.sent["input"]
        ]
        link = '{"video_url":{"url":"https://example.org/a.mp4"}}'
        words = f"[a part of type video_url is left out here: this model does not take it]\n{link}"
        assert said == [["alice:", "I am allergic to nuts."], ["Noted.", words], ["ben:", "Watch.", words]]


# -- items of a client for another model -----------------------------------------------------------

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "seen"}


@pytest.mark.parametrize(
    ("items", "shape"),
    [
        (
            [
                user("Go"),
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
                CALL,
                {**CALL, "call_id": "c2"},
                OUTPUT,
                {**OUTPUT, "call_id": "c2"},
            ],
            [("user", "Go", 0), ("assistant", "Wait.", 2), ("tool", "seen", 0), ("tool", "seen", 0)],
        ),
        (
            [user("Go"), CALL, assistant("Looking."), OUTPUT],
            [("user", "Go", 0), ("assistant", "Looking.", 1), ("tool", "seen", 0)],
        ),
        (
            [
                user("Go"),
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
                {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}},
                assistant("Yes"),
                user("On"),
            ],
            [("user", "Go", 0), ("assistant", "Yes", 0), ("user", "On", 0)],
        ),
        (
            [user([{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PICTURE}])],
            [
                (
                    "user",
                    [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PICTURE}}],
                    0,
                )
            ],
        ),
        (
            [
                user("Go"),
                {"type": "custom_tool_call", "call_id": "c1", "name": "run", "input": "print(1)"},
                {**OUTPUT, "type": "custom_tool_call_output"},
            ],
            [("user", "Go", 0), ("assistant", None, 1), ("tool", "seen", 0)],
        ),
    ],
    ids=["parallel calls", "text after a call", "items without an equivalent", "parts", "custom tool"],
)
async def test_items_become_messages(items: list[Row], shape: list[tuple[Any, ...]]) -> None:
    async with gateway(["ok"]) as served:
        reply = await served.openai.responses.create(model="gpt-4o", input=items)
        got = [(one["role"], one["content"], len(one.get("tool_calls") or ())) for one in served.sent["messages"]]
        assert got == shape
        listed = [item async for item in served.openai.responses.input_items.list(reply.id, order="asc")]
        assert sorted(item.type for item in listed) == sorted(item.get("type", "message") for item in items)


async def test_tools_become_functions_and_calls_get_their_own_names_back() -> None:
    """A custom tool has one input; a tool of a namespace has both names in one; what no function can be is left out with a warning."""
    tools: Any = [
        {"type": "function", "name": "look", "parameters": SCHEMA, "strict": True},
        {"type": "custom", "name": "run", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
        {
            "type": "namespace",
            "name": "mail",
            "description": "Mail.",
            "tools": [{"type": "function", "name": "send", "parameters": SCHEMA}],
        },
        {"type": "web_search"},
    ]
    made = [("run", {"input": "print(1)"}), ("mail__send", {"at": 1})]
    async with gateway([Reply(tool_calls=made)]) as served:
        reply = await served.openai.responses.create(model="gpt-4o", input="Go", tools=tools)
        functions = {tool["function"]["name"]: tool["function"] for tool in served.sent["tools"]}
        assert list(functions) == ["look", "run", "mail__send"]
        assert "lark grammar" in functions["run"]["parameters"]["properties"]["input"]["description"]
        first, second = (item.to_dict() for item in reply.output)
        assert (first["type"], first["name"], first["input"]) == ("custom_tool_call", "run", "print(1)")
        assert (second["type"], second["name"], second["namespace"]) == ("function_call", "send", "mail")
        assert [warning["code"] for warning in reply.session["warnings"]] == ["tool_not_served"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"content": "x"}]}, "input[0].type"),
        ({"input": ["x"]}, "input[0]"),
        (
            {
                "input": "x",
                "tool_choice": {"type": "function", "name": "other"},
                "tools": [{"type": "function", "name": "look"}],
            },
            "tool_choice",
        ),
    ],
)
async def test_what_is_wrong_is_named(body: Row, param: str) -> None:
    async with gateway(["never"]) as served:
        answer = await served.http.post("/v1/responses", json={"model": "gpt-4o", **body})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert await served.rest.sessions() == []


async def test_instructions_may_be_messages_of_the_system() -> None:
    async with gateway(["ok"]) as served:
        given: Any = [{"role": "developer", "content": "Be brief."}, {"role": "system", "content": "Be kind."}]
        await served.openai.responses.create(model="gpt-4o", input="x", instructions=given, text={"verbosity": "low"})
        assert texts(served.sent["messages"]) == ["Be brief.", "Be kind.", "x"]
        assert "response_format" not in served.sent


@pytest.mark.parametrize("name", ["s", "a/b ü", "sess_0123456789abcdef0123456789abcdef", "x" * 80, "conv_1"])
async def test_ids_of_responses_and_conversations_name_any_session(name: str) -> None:
    async with gateway(lambda _: "ok") as served:
        first = await served.openai.responses.create(model="gpt-4o", input="One", extra_body={"session_id": name})
        again = await served.openai.responses.create(model="gpt-4o", input="Two", previous_response_id=first.id)
        assert (again.session_id, len(served.sent["messages"])) == (name, 3)
        assert (await served.openai.responses.retrieve(first.id)).output_text == "ok"


@pytest.mark.parametrize("path", ["responses/resp_x", "responses/x", "conversations/conv_", "conversations/y"])
async def test_other_texts_are_no_ids(path: str) -> None:
    async with gateway(()) as served:
        assert (await served.http.get(f"/v1/{path}")).status_code == 404


@pytest.mark.parametrize(
    ("counts", "expected"), [(lambda _: 4321, 4321), (None, None)], ids=["provider", "no endpoint"]
)
async def test_the_provider_counts_if_the_configuration_says_so(counts: Any, expected: int | None) -> None:
    """An endpoint that does not exist leaves our own count."""
    upstream = ResponsesUpstream(["ok"], counts=counts)
    llm = {"model": "gpt-5", "api": "responses", "count": "provider"}
    async with gateway((), upstream=upstream, llm=llm) as served:
        counted = await served.anthropic.messages.count_tokens(model="default", messages=[user("Hello")])
        assert upstream.counted[0].path == "/v1/responses/input_tokens"
        assert counted.input_tokens == expected if expected else counted.input_tokens < 50
        assert (await served.chat("Hello"))["status"] == 200
