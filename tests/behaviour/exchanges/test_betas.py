"""Beta features of Anthropic's API: what is served, passed on with its header, or refused, for models of either kind."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.behaviour.kit import assistant, system, user
from tests.behaviour.kit.anthropic import AnthropicUpstream
from tests.behaviour.kit.claude import SCHEMA, THOUGHT, Row, ask, found, text, use
from tests.behaviour.kit.exchanges import Exchange, exchange

OURS = {"name": "look", "input_schema": SCHEMA}
FIND = {"name": "find", "input_schema": SCHEMA, "defer_loading": True}
LLM = {"provider": "anthropic", "model": "claude-sonnet-4-5", "headers": {"anthropic-beta": "own-1, own-2"}}
both = partial(exchange, lambda _: "Yes.", models={"claude": (partial(AnthropicUpstream, lambda _: "Yes."), LLM)})


def clear(**more: Any) -> Row:
    return {"edits": [{"type": "clear_tool_uses_20250919", **more}]}


def change(kind: str, name: str | None = None, **tool: Any) -> Row:
    return {"type": kind, "tool": tool or {"type": "tool_reference", "name": name}}


@both()
async def test_headers_and_fields_of_anthropic(x: Exchange) -> None:
    """Served features are not in the header; others, those of the configuration and of the memory tool are, each once."""
    rows: list[tuple[str, Row]] = [
        ("a-1, b-2,,a-1,inline-tools-2026-09-15,own-2", {}),
        ("mid-conversation-tool-changes-2026-07-01", {"betas": ["c-3,d-4", 5, "inline-tools-2026-09-15"]}),
        ("context-management-2025-06-27,compact-2026-09-04,fast-mode-2026-02-01", {"speed": "fast"}),
        ("", {"tools": [{"type": "memory_20250818", "name": "memory"}], "betas": "c-3"}),
        (
            "",
            {"tools": [{"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}], "inference_geo": "eu"},
        ),
        (
            "",
            {"output_config": {"task_budget": {"total": 9}}, "mcp_servers": [], "container": "c", "diagnostics": None},
        ),
        ("", {"fallbacks": "default"}),
        ("", {"messages": [user("Hi."), system("Be brief.", clear_at="never")]}),
        ("", {"messages": [user("Hi."), system("Be brief.", clear_at="next_user_message")]}),
        ("", {"messages": [user("Hi."), system("Be brief.", output_config={"effort": "low"})]}),
    ]
    for header, fields in rows:
        sent = len(x.served.models["claude"].requests)
        body = {"model": "claude", "max_tokens": 100, "messages": [user("Hi.")], **fields}
        await x.post("/v1/messages", {"anthropic-beta": header}, **body)
        x.note("betas", [one.headers.get("anthropic-beta") for one in x.served.models["claude"].requests[sent:]])


@both()
async def test_tools_that_change(x: Exchange) -> None:
    """The model gets the tools that are in force at the end; the blocks themselves are not stored."""
    gone, back = change("tool_removal", "look"), change("tool_addition", "look")
    dig = change("tool_addition", type="tool_definition", definition={"name": "dig", "input_schema": SCHEMA})
    rows: list[tuple[list[Any], Any]] = [
        ([gone], [OURS, FIND]),
        ([gone, back], [OURS, FIND]),
        ([change("tool_addition", "find"), text("Be brief."), dig], [OURS, FIND]),
        ([dig, change("tool_removal", "dig"), gone], [OURS]),
        ([dig, change("tool_removal", "dig"), change("tool_addition", "dig")], None),
        ([change("tool_removal", "other")], [OURS]),
        ([change("tool_removal", type="tool_definition", definition={"name": "dig"})], [OURS]),
        ([change("tool_addition", type="mcp_tool", name="x")], [OURS]),
        ([change("tool_addition", type="tool_definition", definition={"input_schema": SCHEMA})], [OURS]),
        ([text("Be brief."), {"type": "tool_addition"}], [OURS]),
    ]
    for model in ("default", "claude"):
        for blocks, tools in rows[: 3 if model == "claude" else None]:
            await ask(
                x,
                [user("Hi."), assistant("Yes."), user("So?"), system(blocks)],
                model=model,
                tools=tools,
                tool_choice={"type": "any"},
            )
    await x.rows("/v1/sessions", "id", "turns")


def rounds(number: int, names: tuple[str, ...] = ("look",)) -> list[Row]:
    """Return so many rounds of tools, each with reasoning."""
    made = [user("Go.")]
    for at in range(number):
        call = use(f"c{at}", names[at % len(names)], {"at": at, "words": "where " * 5})
        made += [
            assistant([{**THOUGHT, "thinking": f"hm {at} " * 9}, call]),
            user([found(f"c{at}", f"result {at} " * 20)]),
        ]
    return made


@both()
async def test_cleared_tool_uses(x: Exchange) -> None:
    """Old results are cleared for every model, and reported; what does not reach the trigger or the least amount stays."""
    amount = [
        {"type": kind, "value": value}
        for kind, value in (("tool_uses", 3), ("tool_uses", 4), ("tool_uses", 5), ("input_tokens", 200))
    ]
    rows: list[Row] = [
        clear(),
        *(clear(trigger=one, keep={"type": "tool_uses", "value": 1}) for one in amount),
        clear(trigger=amount[0], keep={"type": "tool_uses", "value": 0}, clear_tool_inputs=True),
        clear(trigger=amount[0], clear_tool_inputs=["find"]),
        clear(
            trigger=amount[0], keep={"type": "tool_uses", "value": 1}, exclude_tools=["look"], clear_tool_inputs=False
        ),
        clear(
            trigger=amount[0],
            keep={"type": "tool_uses", "value": 2},
            clear_at_least={"type": "input_tokens", "value": 5000},
        ),
    ]
    for at, edits in enumerate(rows):
        await ask(x, rounds(4, ("look", "find")), context_management=edits, session_id=f"s{at}")
    await ask(x, rounds(4), context_management=rows[1], model="claude", stream=True, tools=[OURS])
    await ask(x, [user("So?")], context_management=rows[1], session_id="s1", stream=True)


@both()
async def test_cleared_reasoning(x: Exchange) -> None:
    """Of all but the newest turns; an Anthropic model gets the edit itself."""
    talk = [user("Go.")]
    for at in range(3):
        talk += [assistant([{**THOUGHT, "thinking": f"hm {at} " * 9}, text(f"Yes {at}.")]), user(f"So {at}?")]
    keeps: list[Any] = [
        None,
        "all",
        {"type": "all"},
        {"type": "thinking_turns", "value": 1},
        {"type": "thinking_turns", "value": 2},
    ]
    keeps += [
        {"type": "thinking_turns", "value": 0},
        {"type": "thinking_turns"},
        {"type": "tool_uses", "value": 1},
        "some",
    ]
    models = {
        f"{model} {at}": {"type": "clear_thinking_20251015", "keep": keep}
        for model in ("claude-local", "claude")
        for at, keep in enumerate(keeps)
    }
    for name, edit in models.items():
        await ask(x, talk, model=name.split()[0], context_management={"edits": [edit]}, session_id=name)


@both()
async def test_wrong_edits(x: Exchange) -> None:
    rows: list[Any] = [
        [],
        {},
        {"edits": {}},
        {"edits": ["x"]},
        {"edits": [{"type": 5}]},
        {"edits": [{"type": "clear_everything_20990101"}]},
        {"edits": [*clear()["edits"], *clear()["edits"]]},
        {"edits": [{"type": "clear_thinking_20251015"}, {"type": "clear_thinking_20251015"}]},
        {"edits": [{"type": "clear_thinking_20251015", "zone": 1}]},
        {"edits": [{"type": "compact_20260112"}, {"type": "compact_20260112"}]},
        clear(zone=1),
        clear(trigger={"type": "thinking_turns", "value": 1}),
        clear(trigger={"type": "tool_uses", "value": -1}),
        clear(trigger={"type": "tool_uses", "value": 2**31 + 1}),
        clear(trigger=5),
        clear(keep={"type": "input_tokens", "value": 1}),
        clear(clear_at_least={"type": "tool_uses", "value": 1}),
        clear(exclude_tools="look"),
        clear(clear_tool_inputs=[1]),
        *({"edits": [{"type": "compact_20260112", **more}]} for more in (
            {"zone": 1}, {"trigger": 5}, {"trigger": {"type": "tool_uses", "value": 9}}, {"trigger": {"type": "input_tokens", "value": 0}},
            {"pause_after_compaction": "yes"}, {"instructions": 5},
        )),
    ]  # fmt: skip
    for edits in rows:
        await ask(x, context_management=edits)
    for wish in (
        "summarize",
        {"type": "other"},
        {"type": "summarize", "zone": 1},
        {"type": "summarize", "instructions": []},
    ):
        await ask(x, compaction=wish)
    for edits in (clear(), {"edits": [{"type": "compact_20260112"}]}, {"edits": []}):
        await ask(x, compaction={"type": "summarize"}, context_management=edits)
    await x.rows("/v1/sessions", "id", "turns")


@both()
async def test_compaction(x: Exchange) -> None:
    """A summary stands for older messages; the client carries it, and the newest one with a text counts."""
    talk = [
        user("Go."),
        *(one for at in range(4) for one in (assistant(f"Answer {at}. " * 30), user(f"Question {at}. " * 20))),
    ]
    made: list[Any] = []
    for model in ("default", "claude"):
        await ask(
            x,
            talk,
            model=model,
            compaction={"type": "summarize", "instructions": "Be brief."},
            session_id=f"whole {model}",
        )
        for stream, more in ((False, {}), (True, {"instructions": " "}), (False, {"pause_after_compaction": True})):
            edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 300}, **more}
            made.append(
                await ask(
                    x,
                    talk,
                    model=model,
                    context_management={"edits": [edit]},
                    stream=stream,
                    session_id=f"{model} {stream} {more}",
                )
            )
    block = made[0]["content"][0]
    for content in (
        [block],
        [block, text("Yes.")],
        [{**block, "signature": "x"}, text("Yes.")],
        [{**block, "content": None}, text("Yes.")],
        [block, use("a")],
    ):
        after = [user([found("a", "1")])] if content[-1]["type"] == "tool_use" else [user("And?")]
        await ask(x, [*talk, assistant(content), *after])
    await ask(x, [user("Hi."), assistant([block, text("Yes.")]), user("And?")], model="claude")
