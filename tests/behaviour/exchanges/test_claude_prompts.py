"""The prompts that a model with Anthropic's Messages API gets: conversations, reasoning, media and cache marks."""

from __future__ import annotations

from typing import Any

from holdfast.testing import PromptCache
from tests.behaviour.kit import assistant, calls, result, system, user
from tests.behaviour.kit.anthropic import AnthropicUpstream
from tests.behaviour.kit.claude import LOOK, MARK, PIXEL, THOUGHT, Row, chat, claude, text
from tests.behaviour.kit.exchanges import Exchange, exchange

FIND: Row = {"type": "function", "function": {"name": "find", "description": "Find it."}}
HOUR: Row = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


@claude()
async def test_conversations(x: Exchange) -> None:
    """Roles alternate, names and systems become text, ids are valid and distinct, arguments are objects, and nothing is empty."""
    odd = [
        ('{"a":1,"a":2}', "a!b"),
        ("[1]", "a?b"),
        ("not json", "x" * 70),
        ("", "f"),
        ('{"at": 1.0}', "c"),
        ('{"arguments": 1}', "d"),
    ]
    made: list[Row] = [
        {"id": call_id, "type": "function", "function": {"name": "look", "arguments": given}} for given, call_id in odd
    ]
    custom: Row = {"id": "e", "type": "custom", "custom": {"name": "run", "input": "print(1)"}}
    histories: list[list[Row]] = [
        [
            system("Be brief."),
            system("Be kind."),
            user("One", name="Ada"),
            user("Two", name=" "),
            user([text(" ")]),
        ],
        [assistant("Welcome."), user("Hi."), assistant(""), assistant("One."), assistant("Two.")],
        [
            user("Go."),
            assistant(None, tool_calls=[*made, custom]),
            *(result(one["id"], one["id"]) for one in (*made, custom)),
        ],
        [
            user("Go."),
            calls(("a", "look", {}), text="Wait."),
            result("a", ""),
            calls(("a", "look", {})),
            result("a", [text("2")]),
        ],
        [
            user("Go."),
            calls(("a", "look", {}), ("b", "look", {})),
            result("b", "2", is_error=True),
            result("a", "1"),
            user("So?"),
        ],
        [
            system([text("Be"), text(" brief.", **MARK)]),
            user("Hi."),
            assistant("Yes."),
            system("Be kind."),
            user("Well?"),
        ],
        [
            user("Hi."),
            assistant("Yes.", refusal="No."),
            user("And?"),
            assistant(None, audio={"id": "x", "transcript": "Aha."}),
        ],
        [
            user("Hi."),
            assistant([text("A"), {"type": "refusal", "refusal": "No."}, text(" ")]),
            user([text("B", **MARK)]),
        ],
        [{"role": "developer", "content": "Obey."}, user("Hi.")],
    ]
    for at, history in enumerate(histories):
        await chat(x, history, tools=[LOOK], session_id=f"s{at}")
    x.note("violations", x.served.upstream.violations)


@claude()
async def test_reasoning(x: Exchange) -> None:
    """Anthropic's own reasoning is unchanged and first; other readable reasoning is marked text, encrypted one is left out."""

    def detail(**more: Any) -> Row:
        return {"reasoning_details": [{"type": "reasoning.text", "text": "hm", **more}]}

    sealed = {"type": "reasoning.encrypted", "data": "x"}
    replies: list[Row] = [
        assistant("Yes.", thinking_blocks=[THOUGHT, {"type": "redacted_thinking", "data": "x"}], reasoning_content="let me see"),
        assistant("Yes.", thinking_blocks=[{**THOUGHT, "signature": ""}, "x", {"type": "redacted_thinking"}]),
        assistant([text("First."), THOUGHT, text("Then.")]),
        assistant([{"type": "thinking", "thinking": "unsigned"}, text("Yes.")], reasoning_content="other"),
        assistant("Yes.", **detail(signature="signed", format="anthropic-claude-v1")),
        assistant("Yes.", **detail(signature="signed")),
        assistant("Yes.", **detail(signature="signed", format="google-gemini-v1")),
        assistant("Yes.", **detail(signature=None, summary="s", text=""), reasoning="hm"),
        assistant("Yes.", reasoning_details=[{**sealed, "format": "anthropic-claude-v1"}, {**sealed, "format": "google-gemini-v1"}]),
        assistant("Yes.", reasoning_details=[{**sealed, "format": "openai-responses-v1"}], reasoning_content="hm"),
        assistant("Yes.", reasoning_content=" ", reasoning="aloud"),
        assistant("Yes.", content_blocks=[{**THOUGHT, "index": 0}, text("Ye", index=1), text("s.", citations=[{"x": 1}]), text("")]),
        assistant("Yes.", content_blocks=[text("No.")], thinking_blocks=[THOUGHT]),
        assistant("Yes.", content_blocks=[text("Yes."), {**THOUGHT, "index": 1}]),
    ]  # fmt: skip
    for at, reply in enumerate(replies):
        await chat(x, [user("Hi."), reply, user("So?")], session_id=f"s{at}")
    await chat(x, [user("Hi."), replies[0], replies[0], user("So?")])
    x.note("violations", x.served.upstream.violations)


@claude()
async def test_media(x: Exchange) -> None:
    """Images and documents that Anthropic accepts are blocks, others are named."""
    for part in (
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}, **MARK},
        {"type": "image_url", "image_url": {"url": "http://example.com/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "gs://bucket/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,SGk=", "filename": "a.txt"}},
        {"type": "file", "file": {"file_data": "data:image/png;base64,AAAA"}},
        {"type": "file", "file": {"file_data": "data:application/zip;base64,AAAA"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}},
        {"type": "unheard_of", "x": 1},
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "Hi."},
            "context": "A note.",
        },
    ):
        await chat(x, [user([text("What is it?"), part])])
    shown = [text("Here."), {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}]
    await chat(
        x, [user("Go."), calls(("a", "look", {})), result("a", shown), user([text("And?"), *shown])], tools=[LOOK]
    )
    await chat(x, [system(shown), user("Hi."), assistant(shown), user("So?")])
    x.note("violations", x.served.upstream.violations)


def marked(x: Exchange) -> None:
    """Note where the marks of the last request are, and what of its prompt was in the cache."""
    body = x.served.sent
    blocks = [
        *body.get("tools", []),
        *body.get("system", []),
        *(one for each in body["messages"] for one in each["content"]),
    ]
    blocks += [one for block in blocks if block.get("type") == "tool_result" for one in block.get("content", [])]
    said = [
        (one.get("text") or one.get("name") or one["type"], one["cache_control"])
        for one in blocks
        if "cache_control" in one
    ]
    x.note("marks", said)


@claude(script=lambda _: "Yes, " * 9)
async def test_cache_marks(x: Exchange) -> None:
    """Four at most: those of the client in what is new, then the two best of Holdfast, and the long-lived before the others."""
    old = [text(f"old {at}", **MARK) for at in range(3)]
    for said in ("One.", "Two.", "Three."):
        await chat(x, said, session_id="s", tools=[LOOK, FIND])
        marked(x)
    for number in (3, 4, 5):
        await chat(x, [user([text(f"new {at}", **MARK) for at in range(number)])], session_id="s")
        marked(x)
    rows: list[tuple[list[Row], Row]] = [
        (
            [
                system([text("Sys.", **MARK)]),
                user(old),
                assistant("A."),
                user([text("a"), text("b", **MARK), text("c")]),
            ],
            {},
        ),
        ([system("Sys."), user(old), assistant("A."), user("B.")], {"tools": [LOOK, {**FIND, **MARK}]}),
        ([system("Sys."), user("A."), assistant("B."), user([text("C.", **HOUR)])], {"tools": [{**LOOK, **MARK}]}),
        ([system("Sys."), user("A."), assistant("B."), user("C.")], HOUR),
        ([system("Sys."), user(old), assistant("B."), user([text("C.", **MARK)])], {"cache_control": False}),
        (
            [system("Sys."), user("A."), assistant("B.")],
            {"cache_control": {}, "tools": [{**LOOK, "defer_loading": True}]},
        ),
        (
            [user("A."), calls(("a", "look", {})), result("a", [text("in", **MARK), text("out")]), user("C.")],
            {"tools": [LOOK]},
        ),
    ]
    for messages, fields in rows:
        await chat(x, messages, **fields)
        marked(x)
    x.note("violations", x.served.upstream.violations)


@exchange(
    (),
    "context: {budget: 400}",
    upstream=lambda: AnthropicUpstream(lambda _: "An answer about harbours, tides and kelp. " * 5, cache=PromptCache()),
    llm={"provider": "anthropic", "model": "claude-sonnet-4-5", "max_tokens": 50},
)
async def test_what_is_read_from_the_cache(x: Exchange) -> None:
    """The next prompt reads what the last one wrote, also when older messages leave the prompt."""
    for at in range(7):
        answer = await chat(x, f"Question {at}, and some more words.", session_id="s", tools=[LOOK])
        x.note("usage", answer["usage"])
        marked(x)
