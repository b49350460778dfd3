"""A model with Anthropic's API: what its server gets for a request of Chat Completions, and what the client gets back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.testing import AnthropicUpstream, PromptCache, Reply
from tests.behaviour.kit import UPSTREAM_KEY, Served, answer_of, assistant, calls, gateway, result, system, user

Row = dict[str, Any]
OLD, NEW = "claude-sonnet-4-5", "claude-opus-4-6"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}}}
FORM = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": SCHEMA}}
THOUGHT = {"type": "thinking", "thinking": "let me see", "signature": "c2ln"}
MARK = {"cache_control": {"type": "ephemeral"}}


def tool(name: str = "find", **more: Any) -> Row:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}}


def claude(script: Any = None, *config: str, model: str = OLD, **options: Any) -> Any:
    """A gateway whose model has Anthropic's API."""
    llm = {"provider": "anthropic", "model": model, **options.pop("llm", {})}
    return gateway((), *config, upstream=AnthropicUpstream(script or (lambda _: "ok"), **options), llm=llm)


def without_marks(value: Any) -> Any:
    if isinstance(value, list):
        return [without_marks(one) for one in value]
    if isinstance(value, dict):
        return {name: without_marks(one) for name, one in value.items() if name != "cache_control"}
    return value


def prompt(served: Served, at: int = -1) -> list[Row]:
    """Return the messages that the model got, without marks of the cache."""
    messages: list[Row] = without_marks(served.upstream.requests[at].body["messages"])
    return messages


SENT: list[tuple[str, Row, Row]] = [
    ("max_tokens", {"max_tokens": 77}, {"max_tokens": 77}),
    ("max_completion_tokens", {"max_completion_tokens": 78, "max_tokens": 77}, {"max_tokens": 78}),
    ("stop text", {"stop": "END"}, {"stop_sequences": ["END"]}),
    ("stop of white space", {"stop": ["END", " \n"]}, {"stop_sequences": ["END"]}),
    ("only white space", {"stop": "\n"}, {"stop_sequences": None}),
    ("temperature", {"temperature": 0.3}, {"temperature": 0.3}),
    ("high temperature", {"temperature": 1.7}, {"temperature": 1}),
    ("top_k", {"top_k": 5, "top_p": 0.5}, {"top_k": 5, "top_p": 0.5}),
    ("format", {"response_format": FORM}, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    ("text format", {"response_format": {"type": "text"}}, {"output_config": None, "response_format": None}),
    ("tier", {"service_tier": "default"}, {"service_tier": "standard_only"}),
    ("auto tier", {"service_tier": "auto"}, {"service_tier": "auto"}),
    ("other tier", {"service_tier": "flex"}, {"service_tier": None}),
    ("metadata", {"metadata": {"user_id": "u-1"}}, {"metadata": {"user_id": "u-1"}}),
    (
        "left out",
        {"seed": 1, "logprobs": True, "logit_bias": {"1": 2}, "presence_penalty": 1, "store": True, "verbosity": "low"},
        dict.fromkeys(("seed", "logprobs", "logit_bias", "presence_penalty", "store", "verbosity", "prompt_cache_key")),
    ),
    ("unknown", {"container": "c-1"}, {"container": "c-1"}),
    ("no tools", {"tool_choice": "auto"}, {"tools": None, "tool_choice": None}),
    ("none", {"tools": [tool()], "tool_choice": "none"}, {"tool_choice": {"type": "none"}}),
    ("required", {"tools": [tool()], "tool_choice": "required"}, {"tool_choice": {"type": "any"}}),
    (
        "named",
        {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "find"}}},
        {"tool_choice": {"type": "tool", "name": "find"}},
    ),
    (
        "one at a time",
        {"tools": [tool()], "parallel_tool_calls": False},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ),
    (
        "none at a time",
        {"tools": [tool()], "parallel_tool_calls": False, "tool_choice": "none"},
        {"tool_choice": {"type": "none"}},
    ),
    ("thinking", {"thinking": {"type": "enabled", "budget_tokens": 5000}}, {"max_tokens": 9_096}),
    ("little effort", {"reasoning_effort": "low", "max_tokens": 900}, {"thinking": None}),
    ("no effort", {"reasoning_effort": "none"}, {"thinking": None}),
    ("forced call", {"reasoning_effort": "high", "tools": [tool()], "tool_choice": "required"}, {"thinking": None}),
    (
        "effort",
        {"reasoning_effort": "medium", "temperature": 0.2, "top_p": 0.1},
        {
            "thinking": {"type": "enabled", "budget_tokens": 8192},
            "max_tokens": 12_288,
            "temperature": None,
            "top_p": None,
        },
    ),
    (
        "effort within a limit",
        {"reasoning_effort": "high", "max_tokens": 2000},
        {"thinking": {"type": "enabled", "budget_tokens": 1999}, "max_tokens": 2000},
    ),
]


@pytest.mark.parametrize(("fields", "expected"), [row[1:] for row in SENT], ids=[row[0] for row in SENT])
async def test_a_field_of_chat_completions_reaches_claude(fields: Row, expected: Row) -> None:
    async with claude() as served:
        assert (await served.chat("Hi", **fields))["status"] == 200
        assert {name: without_marks(served.sent.get(name)) for name in expected} == expected
        assert served.upstream.violations == []


@pytest.mark.parametrize(
    ("model", "fields", "expected"),
    [
        (NEW, {"reasoning_effort": "minimal", "top_p": 0.5}, ({"type": "adaptive"}, {"effort": "low"}, None)),
        (NEW, {"reasoning_effort": "high"}, ({"type": "adaptive"}, {"effort": "high"}, None)),
        ("claude-3-5-haiku-latest", {"reasoning_effort": "high", "top_p": 0.5}, (None, None, 0.5)),
    ],
)
async def test_effort_depends_on_the_model(model: str, fields: Row, expected: tuple[Any, ...]) -> None:
    async with claude(model=model) as served:
        await served.chat("Hi", **fields)
        assert tuple(served.sent.get(name) for name in ("thinking", "output_config", "top_p")) == expected


async def test_tools_have_anthropics_form_and_only_allowed_ones_are_sent() -> None:
    async with claude() as served:
        await served.chat("Hi", tools=[tool(description="Find a town.")])
        assert without_marks(served.sent["tools"]) == [
            {"name": "find", "description": "Find a town.", "input_schema": SCHEMA}
        ]
        allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "b"}}]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        await served.chat("Hi", tools=[tool("a"), tool("b")], tool_choice=choice)
        assert [one["name"] for one in served.sent["tools"]] == ["b"]
        assert served.sent["tool_choice"] == {"type": "any"}


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("n", {"n": 2}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("response_format", {"response_format": {"type": "json_schema"}}),
        ("response_format", {"response_format": "json"}),
        ("stop", {"stop": 1}),
        ("stop", {"stop": ["a", 5]}),
        ("functions", {"functions": [{"name": "f"}]}),
        ("function_call", {"function_call": "auto"}),
        ("tool_choice", {"tools": [tool()], "tool_choice": "sometimes"}),
        ("tool_choice", {"tools": [tool()], "tool_choice": {"type": "function"}}),
        ("tool_choice", {"tools": [tool()], "tool_choice": {"type": "allowed_tools", "allowed_tools": 5}}),
        ("tools[0].function.name", {"tools": [tool("a b")]}),
    ],
)
async def test_what_claude_does_not_have_is_refused_before_anything_is_written(param: str, fields: Row) -> None:
    async with claude() as served:
        answer = await served.chat("Hi", **fields)
        assert (answer["status"], answer["error"]["param"]) == (400, param)
        assert served.upstream.requests == []
        assert await served.rest.sessions() == []


PARTS: list[tuple[Row, Row | str]] = [
    (
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
    ),
    (
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
    ),
    (
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
            "title": "a.pdf",
        },
    ),
    (
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        "a part of type input_audio is left out",
    ),
    (
        {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}},
        "a part of type image_url is left out",
    ),
    ({"type": "image_url", "image_url": {"url": "gs://bucket/a.png"}}, "a part of type image_url is left out"),
    ({"type": "file", "file": {"file_id": "file-1"}}, "a part of type file is left out"),
    ({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}, "a part of type video_url is left out"),
]


@pytest.mark.parametrize(("part", "block"), PARTS)
async def test_media_become_blocks_or_a_note(part: Row, block: Row | str) -> None:
    async with claude() as served:
        await served.chat([user([{"type": "text", "text": "What is it?"}, part])])
        found = prompt(served)[0]["content"][1]
        if isinstance(block, str):
            assert found["type"] == "text"
            assert block in found["text"]
        else:
            assert found == block


async def test_prompts_follow_the_rules_of_the_api() -> None:
    """Roles alternate, results follow their calls at once, names become text; nothing is empty."""
    async with claude() as served:
        history = [
            system("Be brief."),
            user("One", name="Ada"),
            user("Two"),
            calls(("a", "find", {"n": 1}), ("b", "find", {})),
            result("a", "here"),
            result("b", ""),
            assistant("Found."),
            user("Three"),
        ]
        assert (await served.chat(history, tools=[tool()]))["status"] == 200
        assert without_marks(served.sent["system"]) == [{"type": "text", "text": "Be brief."}]
        first, asked, results, said, last = prompt(served)
        assert [block["text"] for block in first["content"]] == ["Ada:", "One", "Two"]
        assert asked["content"] == [
            {"type": "tool_use", "id": "a", "name": "find", "input": {"n": 1}},
            {"type": "tool_use", "id": "b", "name": "find", "input": {}},
        ]
        assert [block["tool_use_id"] for block in results["content"]] == ["a", "b"]
        assert (said["content"][0]["text"], last["content"][0]["text"]) == ("Found.", "Three")
        assert served.upstream.violations == []


async def test_calls_in_the_prompt_declare_tools_that_the_request_does_not_have() -> None:
    async with claude() as served:
        await served.chat([user("One"), calls(("a", "find", {})), result("a", "here")])
        assert [one["name"] for one in served.sent["tools"]] == ["find"]
        assert served.sent["tool_choice"] == {"type": "none"}


@pytest.mark.parametrize(
    "fields", [{"reasoning_effort": "high"}, {"thinking": {"type": "enabled", "budget_tokens": 2000}}]
)
async def test_reasoning_does_not_begin_within_a_round_of_tools(fields: Row) -> None:
    async with claude() as served:
        await served.chat([user("One"), calls(("a", "find", {})), result("a", "here")], tools=[tool()], **fields)
        assert "thinking" not in served.sent


REASONED: list[tuple[Row, list[Row]]] = [
    ({"thinking_blocks": [THOUGHT], "reasoning_content": "let me see"}, [THOUGHT]),
    (
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "format": "anthropic-claude-v1"}]},
        [{"type": "redacted_thinking", "data": "x"}],
    ),
    (
        {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": None}]},
        [{"type": "text", "text": "[reasoning] hm"}],
    ),
    ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "format": "openai-responses-v1"}]}, []),
    ({"reasoning_content": "hm"}, [{"type": "text", "text": "[reasoning] hm"}]),
    ({"annotations": [], "reasoning_content": None}, []),
]


@pytest.mark.parametrize(("extra", "blocks"), REASONED)
async def test_reasoning_comes_before_the_text(extra: Row, blocks: list[Row]) -> None:
    """Signed reasoning is unchanged, other reasoning is marked text, and what other vendors encrypted is left out."""
    async with claude() as served:
        await served.chat([user("One"), assistant("Two", **extra), user("Three")])
        assert prompt(served)[1]["content"] == [*blocks, {"type": "text", "text": "Two"}]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_reply_of_claude_reaches_a_client_of_chat_completions(stream: bool) -> None:
    """Text, reasoning, calls, reason and usage; the reasoning goes back signed with the results."""
    usage = {"prompt_tokens": 9, "cache_read_input_tokens": 30, "completion_tokens": 4}
    asked = Reply(
        text="One moment.", message={"thinking_blocks": [THOUGHT]}, tool_calls=[("find", {"n": 7})], usage=usage
    )
    thinking = {"type": "enabled", "budget_tokens": 2000}
    async with claude([asked, "Found."]) as served:
        fields = {"tools": [tool()], "thinking": thinking, "max_tokens": 4000}
        if stream:
            async with served.openai.chat.completions.stream(
                model="default",
                messages=[user("Where?")],
                tools=fields["tools"],
                max_tokens=4000,
                stream_options={"include_usage": True},
                extra_body={"session_id": "s", "thinking": thinking},
            ) as events:
                answer = (await events.get_final_completion()).model_dump()
        else:
            answer = await served.chat("Where?", **fields)
        choice, used = answer["choices"][0], answer["usage"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "One moment.")
        assert choice["message"]["reasoning_content"] == "let me see"
        (call,) = choice["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("find", {"n": 7})
        assert (used["prompt_tokens"], used["completion_tokens"]) == (39, 4)
        assert used["prompt_tokens_details"]["cached_tokens"] == 30
        assert answer_of(await served.chat([result(call["id"], "here")], **fields)) == "Found."
        assert [block["type"] for block in prompt(served)[1]["content"]] == ["thinking", "text", "tool_use"]
        assert prompt(served)[1]["content"][0] == THOUGHT
        assert served.upstream.violations == []


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
    ],
)
async def test_stop_reasons_are_translated(stop_reason: str, finish_reason: str) -> None:
    async with claude([Reply(text="Well.", finish_reason=stop_reason)]) as served:
        choice = (await served.chat("Hi"))["choices"][0]
        assert (choice["finish_reason"], choice["native_finish_reason"]) == (finish_reason, stop_reason)


async def test_blocks_that_only_anthropic_has_go_back_unchanged() -> None:
    found: list[Row] = [
        {"type": "text", "text": "Searching. "},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "kelp"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "Kelp.", "citations": [{"type": "char_location", "cited_text": "x"}]},
    ]
    async with claude([Reply(message={"content": found}), "Yes."]) as served:
        answer = await served.chat("Hi")
        assert answer_of(answer) == "Searching. Kelp."
        assert [block["type"] for block in answer["choices"][0]["message"]["content_blocks"]] == [
            b["type"] for b in found
        ]
        await served.chat("Sure?")
        assert prompt(served)[1]["content"] == found


async def test_each_call_reads_what_the_call_before_it_wrote_to_the_cache() -> None:
    async with claude(lambda _: "A long answer about harbours. " * 20, cache=PromptCache()) as served:
        before: Row = {}
        for at in range(5):
            usage = (await served.chat(f"Question {at}, and some words.", tools=[tool()]))["usage"]
            if before:
                written = before["cache_read_input_tokens"] + before["cache_creation_input_tokens"]
                assert usage["cache_read_input_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == written
            before = usage
        calls_made = await served.rest.session().calls()
        assert before["cache_read_input_tokens"] in {call["cached_tokens"] for call in calls_made}


async def test_at_most_four_marks_of_the_client_are_kept() -> None:
    parts = [{"type": "text", "text": str(at), **MARK} for at in range(3)]
    async with claude() as served:
        await served.chat(
            [
                system([{"type": "text", "text": "Sys.", **MARK}]),
                user(parts),
                calls(("a", "find", {})),
                result("a", [{"type": "text", "text": "r", **MARK}]),
                user([{"type": "text", "text": "go", **MARK}]),
            ],
            tools=[tool()],
        )
        assert json.dumps(served.sent).count('"cache_control"') == 4
        assert "cache_control" in served.sent["system"][0]
        assert ["cache_control" in block for block in served.sent["messages"][0]["content"]] == [False, False, True]


async def test_marks_can_be_turned_off() -> None:
    async with claude(llm={"params": {"cache_control": False}}) as served:
        await served.chat([system("Sys."), user("One")])
        built = await served.rest.session().context(dialect="anthropic")
        assert "cache_control" not in json.dumps([served.sent, built])


async def test_the_preview_of_a_prompt_is_what_is_sent() -> None:
    async with claude() as served:
        for text in ("One", "Two"):
            await served.chat([system("Be brief."), user(text)])
        built = await served.rest.session().context(dialect="anthropic", at_turn=1)
        assert built["messages"] == served.sent["messages"]


async def test_betas_of_request_and_model_are_one_header() -> None:
    async with claude(llm={"headers": {"anthropic-beta": "b-2"}}) as served:
        await served.chat("Hi", betas=["a-1"])
        assert set(served.upstream.requests[0].headers["anthropic-beta"].split(",")) == {"a-1", "b-2"}
        assert "betas" not in served.sent


async def test_the_provider_counts_if_the_configuration_says_so() -> None:
    async with claude(counts=lambda _: 1234, llm={"count": "provider"}) as served:
        await served.chat("Hello")
        (asked,) = served.upstream.counted
        assert (asked.path, asked.headers["x-api-key"]) == ("/v1/messages/count_tokens", UPSTREAM_KEY)
        assert asked.body["messages"][0]["content"][0]["text"] == "Hello"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_paused_reply_is_continued_ten_times(stream: bool) -> None:
    """The client gets one reply, with all of its parts."""
    searches = [
        {"type": "server_tool_use", "id": f"srvtoolu_{at}", "name": "web_search", "input": {"query": str(at)}}
        for at in range(10)
    ]
    paused = [
        Reply(message={"content": [{"type": "text", "text": f"{at} "}, search]}, finish_reason="pause_turn")
        for at, search in enumerate(searches)
    ]
    async with claude([*paused, "end."]) as served:
        said: Any = {"model": "default", "messages": [user("Go on.")], "stream": stream}
        made = await served.openai.chat.completions.create(**said)
        if stream:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in made if chunk.choices])
        else:
            text = made.choices[0].message.content
        assert "".join(text.split()) == "0123456789end."
        assert len(served.upstream.requests) == 11
