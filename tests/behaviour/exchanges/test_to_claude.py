"""A model with Anthropic's Messages API behind Chat Completions: fields, tools, refusals and reasoning."""

from __future__ import annotations

from functools import partial

from tests.behaviour.kit import assistant, calls, result, user
from tests.behaviour.kit.anthropic import AnthropicUpstream
from tests.behaviour.kit.claude import LOOK, MARK, SCHEMA, THOUGHT, Row, chat, claude
from tests.behaviour.kit.exchanges import Exchange, exchange

FIND: Row = {
    "type": "function",
    "function": {"name": "find", "description": "Find it.", "strict": True},
    "strict": True,
}


@claude("gateway: {pass_fields: [zone]}", max_tokens=500)
async def test_fields(x: Exchange) -> None:
    """Each field is renamed, left out or unchanged."""
    rows: list[Row] = [
        {"max_tokens": 7, "max_completion_tokens": 8, "temperature": 1.5, "top_p": 0.4, "top_k": 3, "zone": "eu"},
        {"temperature": 0.5, "stop": "END", "user": "ada", "service_tier": "default", "container": "c"},
        {"stop": ["END", " ", "\n"], "service_tier": "priority", "metadata": {"user_id": "m-1", "x": 1}, "user": "m-1"},
        {"stop": [" "], "service_tier": "auto", "metadata": {"x": 1}, "user": ""},
        {
            "stop_sequences": ["NOW"],
            "stop": ["END"],
            "service_tier": "standard_only",
            "output_config": {"effort": "low"},
        },
        {
            "n": 1,
            "seed": 1,
            "logprobs": True,
            "top_logprobs": 2,
            "presence_penalty": 1,
            "frequency_penalty": 1,
            "store": True,
        },
        {
            "modalities": ["text"],
            "prediction": {},
            "verbosity": "low",
            "logit_bias": {},
            "audio": {},
            "safety_identifier": "x",
        },
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        {"response_format": {"type": "text"}, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {
            "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
            "output_config": {"effort": "low"},
        },
    ]
    for fields in rows:
        await chat(x, **fields)
        x.note("violations", x.served.upstream.violations)


@claude()
async def test_tools(x: Exchange) -> None:
    """Tools and the choice among them."""
    own = {"name": "dig", "input_schema": {"type": "object"}}
    both = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [LOOK, {"name": "none"}]}}
    rows: list[Row] = [
        {"tools": [LOOK, FIND, own, {"type": "web_search_20250305", "name": "web_search", **MARK}]},
        {"tools": [{**LOOK, "defer_loading": True}, FIND], "tool_choice": "required"},
        {"tools": [LOOK], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tools": [LOOK], "tool_choice": "none", "parallel_tool_calls": False},
        {"tools": [LOOK], "parallel_tool_calls": False},
        {
            "tools": [LOOK],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "parallel_tool_calls": False,
        },
        {
            "tools": [LOOK],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": False},
            "parallel_tool_calls": False,
        },
        {"tools": [LOOK, FIND], "tool_choice": both},
        {"tools": [LOOK, FIND], "tool_choice": {"type": "allowed_tools", "tools": [{"name": "find"}]}},
        {"tools": [], "tool_choice": "none"},
        {"tool_choice": "auto"},
    ]
    for fields in rows:
        await chat(x, **fields)
    history = [user("Go."), calls(("a", "look!", {}), ("b", "x" * 130, {})), result("a", "1"), result("b", "2")]
    await chat(x, [*history, calls(("c", "look!", {})), result("c", "3")], tool_choice="auto")
    x.note("violations", x.served.upstream.violations)


@claude()
async def test_what_is_refused(x: Exchange) -> None:
    """Fields that would change the answer are refused before anything is written."""
    rows: list[Row] = [
        {"n": 2},
        {"functions": [{"name": "f"}]},
        {"function_call": "auto"},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
        {"response_format": {"type": "json_schema"}},
        {"stop": 1},
        {"stop": ["a", 5]},
        {"stop_sequences": {"a": 1}},
        {"tools": [LOOK], "tool_choice": "sometimes"},
        {"tools": [LOOK], "tool_choice": {"type": "function"}},
        {"tools": [LOOK], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [FIND]}}},
        {"tools": [LOOK, {"type": "function", "function": {"name": "a b"}}]},
        {"tools": [{"type": "function", "function": {"name": "x" * 129}}]},
        {"tools": [{"type": "custom", "custom": {"name": "x"}}]},
        {"tools": [{"name": "x"}]},
        {"messages": [user("Hi."), {"role": "tool", "content": "x"}]},
        {"messages": [user("Hi.", tool_calls=[{"id": "a", "function": {"name": "f"}}])]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [assistant(None, tool_calls=[{"id": "a", "type": "custom", "function": {"name": "f"}}])]},
        {"messages": [assistant(None, tool_calls=[{"id": "a", "type": 1, "function": {"name": "f"}}])]},
        {"messages": [assistant(None, tool_calls={"id": "a"})]},
        {"messages": [user(True)]},
        {"messages": [user("Hi.", name=5)]},
    ]
    for fields in rows:
        await chat(x, **fields)
    await x.rows("/v1/sessions", "id")


@exchange(
    (),
    models={
        name: (
            partial(AnthropicUpstream, lambda _: "Yes."),
            {"provider": "anthropic", "model": name, "max_tokens": limit},
        )
        for name, limit in (
            ("claude-3-5-haiku-latest", None),
            ("claude-3-7-sonnet-20250219", 3000),
            ("claude-opus-4-5", None),
            ("claude-opus-4-6", None),
            ("claude-next", None),
        )
    },
)
async def test_effort(x: Exchange) -> None:
    """Models before 4.6 get a number of tokens, which are in the limit of the reply; those before 3.7 nothing."""
    for model in list(x.served.models)[1:]:
        await chat(x, model=model, reasoning_effort="high", temperature=0.5, top_p=0.5, top_k=2)
    old, new = "claude-3-7-sonnet-20250219", "claude-opus-4-6"
    for effort in ("none", "minimal", "low", "medium", "xhigh", "max"):
        await chat(x, model=old, reasoning_effort=effort)
    for effort in ("minimal", "medium", "xhigh"):
        await chat(x, model=new, reasoning_effort=effort, output_config={"effort": "max"} if effort == "medium" else {})
    for limit in (1024, 1025, 2048, 2049, 99_999):
        await chat(x, model=old, reasoning_effort="low", max_tokens=limit, temperature=0.5)
    forced = {"tools": [LOOK], "tool_choice": "required", "reasoning_effort": "low"}
    for model in (old, new):
        await chat(x, model=model, **forced)
        await chat(x, model=model, **{**forced, "tool_choice": "auto"})
        await chat(
            x,
            [user("Go."), calls(("a", "look", {})), result("a", "1")],
            model=model,
            **{**forced, "tool_choice": "auto"},
        )
    enabled = {"type": "enabled", "budget_tokens": 2000}
    for fields in ({}, {"max_tokens": 2001}, {"reasoning_effort": "high", "tools": [LOOK]}):
        for model in (old, "claude-opus-4-5"):
            await chat(x, model=model, thinking=enabled, **fields)
    thought = {**calls(("a", "look", {})), "thinking_blocks": [THOUGHT]}
    for made, thinking in (
        (calls(("a", "look", {})), enabled),
        (thought, enabled),
        (calls(("a", "look", {})), {"type": "disabled"}),
    ):
        await chat(x, [user("Go."), made, result("a", "1")], model=old, thinking=thinking, tools=[LOOK])
    x.note("violations", {name: one.violations for name, one in x.served.models.items() if name != "default"})
