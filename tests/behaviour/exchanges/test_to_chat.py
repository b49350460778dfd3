"""Anthropic's Messages API in front of a model with Chat Completions: what of a request reaches the model, and what is refused."""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import assistant, system, user
from tests.behaviour.kit.claude import MARK, PICTURE, SCHEMA, THOUGHT, ask, found, text, use
from tests.behaviour.kit.exchanges import Exchange, exchange

OURS = {"name": "look", "input_schema": SCHEMA}
JSON = {"type": "json_schema", "schema": SCHEMA}


@exchange(lambda _: "Yes.")
async def test_fields(x: Exchange) -> None:
    """Each field that another model gets, too, is renamed."""
    rows: list[dict[str, Any]] = [
        {"max_tokens": None, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 7, "stop_sequences": []},
        {"stop_sequences": ["END", " "], "service_tier": "auto", "speed": "standard", "metadata": {}, **MARK},
        {"metadata": {"user_id": "ada"}},
        {"metadata": {"user_id": "ada"}, "user": "bo"},
        {"metadata": {"user_id": None}, "output_config": {"task_budget": None}, "container": None, "fallbacks": []},
        {"tools": [OURS, {**OURS, "name": "b", "type": "custom", "strict": True, "description": "B.", **MARK}]},
        {"tools": [OURS], "tool_choice": {"type": "any"}},
        {"tools": [OURS], "tool_choice": {"type": "none", "disable_parallel_tool_use": False}},
        {"tools": [OURS], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tools": [OURS], "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": "yes"}},
        {"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}},
        {"tools": [], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "system": ""},
        {"output_config": {"format": JSON}, "system": "Be brief."},
        {"output_format": JSON, "system": [text("Be", **MARK), text(" brief.")]},
        {"output_config": {"format": {"type": "text"}}, "output_format": JSON},
        {"output_config": {"format": {"type": "json_schema", "schema": "no"}}},
        {"output_config": "no", "thinking": {"type": "enabled", "budget_tokens": 5000}},
    ]
    for fields in rows:
        await ask(x, **fields)


@exchange(lambda _: "Yes.")
async def test_effort_of_reasoning_models(x: Exchange) -> None:
    """They have another name for the limit of a reply; a budget of tokens becomes a word."""
    for model in ("o3-mini", "openrouter/gpt-5", "GPT-9", "o0", "gpt-4.1", "my-o3"):
        await ask(x, model=model, thinking={"type": "enabled", "budget_tokens": 4096})
    for thinking, effort in (
        ({"budget_tokens": 4097}, None),
        ({"budget_tokens": 16_384}, "unheard"),
        ({"budget_tokens": 16_385}, None),
        ({"budget_tokens": 99}, "low"),
        ({"type": "adaptive"}, "medium"),
        ({"type": "adaptive"}, None),
        ("no", "high"),
        (None, "xhigh"),
        (None, "max"),
    ):
        await ask(x, model="o3", max_tokens=None, thinking=thinking, output_config={"effort": effort})


@exchange(lambda _: "Yes.")
async def test_tools_that_anthropic_defines(x: Exchange) -> None:
    """Memory and text editor become functions; others are left out."""
    for tools in (
        [{"type": "memory_20250818", "name": "memory"}, {"type": "web_search_20250305", "name": "web_search"}],
        [{"type": "text_editor_20250124", "name": "str_replace_editor", **MARK}, OURS],
        [{"type": "text_editor_20250429", "name": "str_replace_based_edit_tool"}],
        [{"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100}],
        [{"type": "text_editor_20250728"}],
    ):
        await ask(x, tools=tools, tool_choice={"type": "auto"})


@exchange(lambda _: "Yes.")
async def test_wrong_fields(x: Exchange) -> None:
    """Nothing is written, and the error names the field."""
    rows: list[dict[str, Any]] = [
        {"stop_sequences": "END"},
        {"stop_sequences": [1]},
        {"tools": "x"},
        {"tools": ["x"]},
        {"tools": [OURS, {"name": "x", "input_schema": {}, "type": 1}]},
        {"tools": [{"name": "", "input_schema": {}}]},
        {"tools": [{"name": "x", "input_schema": []}]},
        {"tool_choice": "auto"},
        {"tool_choice": {"type": "some"}},
        {"tool_choice": {"type": "tool"}},
        {"metadata": []},
        {"metadata": {"user_id": 1}},
        {"system": 7},
        {"system": [{"type": "text"}]},
        {"messages": []},
        {"messages": "hi"},
        {"messages": ["hi"]},
        {"messages": [user("Hi."), {"role": "tool", "content": "x"}]},
        {"messages": [user("Hi."), assistant("Yes."), user("")]},
        {"messages": [user([])]},
        {"messages": [user(None)]},
        {"messages": [user({"type": "text"})]},
        {"messages": [user([{"text": "x"}])]},
        {"messages": [user([text("x"), {"type": "text", "text": 5}])]},
        {"messages": [user([use("a")])]},
        {"messages": [assistant([found("a")])]},
        {"messages": [user([{"type": "tool_result", "content": "x"}])]},
        {"messages": [user("Go."), assistant([{"type": "tool_use", "id": "a", "name": "look"}])]},
        {"messages": [user("Go."), assistant([{"type": "tool_use", "id": 1, "name": "look", "input": {}}])]},
        {"billing_policy": "x"},
        {"container": "c", "speed": "fast"},
        {"speed": "fast", "output_config": {"task_budget": {"type": "tokens", "total": 9}}},
        {"output_config": {"task_budget": {"type": "tokens", "total": 9}, "zone": 1, "effort": "low"}},
        {"inference_geo": "eu"},
        {"mcp_servers": [{"type": "url"}]},
        {"fallback_credit_token": "t"},
        {"thread": {"type": "auto"}},
        {"diagnostics": {}},
        {"unheard_of": 1},
    ]
    for fields in rows:
        await ask(x, **fields)
    await x.rows("/v1/sessions", "id")


@exchange(lambda _: "Yes.")
async def test_blocks(x: Exchange) -> None:
    """Fields that Chat Completions have are converted; fields that only Anthropic reads are named."""
    for blocks in (
        [text("Hi", citations=[{"cited_text": "x"}]), {**PICTURE, **MARK}],
        [{"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}, "detail": "low"}],
        [{"type": "image", "source": {"type": "file", "file_id": "f1"}}, text(" ")],
        [{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}],
        [
            {
                "type": "document",
                "title": "T",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JV"},
            }
        ],
        [{"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "Words."}}],
        [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Words."}, **MARK}],
        [{"type": "document", "context": "C", "source": {"type": "url", "url": "https://example.com/a.pdf"}}],
        [{"type": "document", "title": "T", "source": {"type": "file", "file_id": "f1"}}],
        [{"type": "search_result", "title": "T", "source": "S", "content": [text("one"), text("two"), {"x": 1}]}],
        [{"type": "search_result", "title": "", "source": "", "content": []}],
        [{"type": "container_upload", "file_id": "f1"}, text("Hi")],
        [{"type": "thinking", "thinking": "hm", "signature": "s"}, text("Hi")],
        [{"type": "unheard_of", "x": 1}],
    ):
        await ask(x, [user(blocks)])


@exchange(lambda _: "Yes.")
async def test_replies_and_results(x: Exchange) -> None:
    """Calls, results with media, reasoning and blocks of server tools, of which some replies consist."""
    asked = {"type": "server_tool_use", "id": "st1", "name": "web_search", "input": {"query": "kelp"}}
    for replied, results in (
        (
            [THOUGHT, text("Wait."), use("a", caller={"type": "direct"}), use("b", "find", [1])],
            [found("b", "two"), found("a")],
        ),
        ([use("a", given={"at": 1}, **MARK)], [text("So?"), found("a", [PICTURE, text("one")], is_error=True, **MARK)]),
        ([use("a"), use("b")], [found("a", [PICTURE]), found("b", [text("x"), PICTURE]), PICTURE]),
        ([use("a")], [found("a", [{"type": "tool_reference", "tool_name": "t"}]), text("And?")]),
        ([THOUGHT], [text("And?")]),
        ([asked, {"type": "web_search_tool_result", "tool_use_id": "st1", "content": []}], [text("And?")]),
        ([text("Kelp."), asked, {"type": "redacted_thinking", "data": "x"}], [text("And?")]),
        ([], [text("And?")]),
    ):
        await ask(x, [user("Go."), assistant(replied), user(results)], tools=[OURS])
    await ask(x, [user("Go."), assistant("Wait."), system("Be brief."), user("Well?"), assistant("Ye")])
    await x.rows("/v1/sessions", "id", "turns")
