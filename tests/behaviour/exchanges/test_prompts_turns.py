"""Prompts of one turn after the other: when the frontier moves, what stays equal, and how past prompts are rebuilt."""

from __future__ import annotations

from holdfast import MemoryFiles
from holdfast.testing import Reply
from tests.behaviour.kit import system, user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange
from tests.behaviour.kit.prompts import WEEK, WEEK_AGENTS, answer_at_length, converse, prompt, say


@exchange(answer_at_length, WEEK_AGENTS)
async def test_prompts_grow_and_step(x: Exchange) -> None:
    for agent in ("wide", "short", "chosen"):
        for words in WEEK:
            await say(x, agent, words, model=agent)
        await x.rows(
            f"/v1/sessions/{agent}/calls", "id", "strategy", "budget", "messages", "frontier", "through", "common"
        )
        await prompt(x, agent)
        await prompt(x, agent, at_turn=3)


@exchange(answer_at_length, WEEK_AGENTS, stores=DATABASES)
async def test_calls_and_their_prompts(x: Exchange) -> None:
    await x.put("/v1/users/default/state", **{"user:name": "Ada"})
    await converse(x, "s", WEEK[:6], model="short")
    await x.patch("/v1/sessions/s/messages/1", pinned=True)
    await converse(x, "s", WEEK[6:7], model="short")
    await converse(x, "s", WEEK[7:8], model="few")
    await converse(x, "s", WEEK[8:], model="short")
    for page in (
        {},
        {"limit": 3},
        {"limit": 3, "after": "2.0"},
        {"limit": 2, "order": "desc"},
        {"limit": 9, "order": "desc", "after": "1"},
    ):
        await x.rows("/v1/sessions/s/calls", "id", "strategy", "frontier", "common", **page)
    await x.get("/v1/sessions/s/calls", limit=1, after="6")
    for call in ("0", "5.0", "7.0", "8", "next", "9.0", "2.1"):
        await x.get(f"/v1/sessions/s/calls/{call}", log_limit=4)
    await x.get("/v1/sessions/s/calls/6", log_limit=3, log_after=-1, dialect="anthropic")
    await x.get("/v1/sessions/s/calls/6", strategy="token_window", budget=200)
    await x.get("/v1/sessions/s/calls/next", agent="few")
    for options in (
        {},
        {"strategy": "token_window", "budget": 250},
        {"agent": "few"},
        {"budget": 200},
        {"dialect": "gemini"},
    ):
        await prompt(x, "s", at_turn=8, **options)
    await prompt(x, "s", at_turn=99)
    await x.delete("/v1/sessions/s/messages/3")
    await prompt(x, "s", at_turn=4)
    await x.get("/v1/sessions/s/calls/4")


@exchange(answer_at_length, WEEK_AGENTS)
async def test_templates_and_system_messages_in_prompts(x: Exchange) -> None:
    await x.post(
        "/v1/sessions",
        id="s",
        agent="few",
        state={"topic": "Bergen {user:name}"},
        system_messages=["Be kind.", {"role": "developer", "content": "Be brief."}],
    )
    await prompt(x, "s")
    await say(x, "s", "Hi.", model="few")
    await x.patch("/v1/sessions/s/state", topic=["a", {"b": None}], **{"user:name": "Ada", "app:house": "the Kelp"})
    await say(x, "s", "And now?", model="few")
    await x.post(
        "/v1/chat/completions", session_id="s", model="few", messages=[system("Of the request."), user("Third.")]
    )
    await prompt(
        x,
        "s",
        system_messages=["Only this."],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "open_door",
                    "description": "Opens.",
                    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
                },
            }
        ],
    )
    await prompt(x, "s", agent="long", strategy="digest")
    await prompt(x, "s", at_turn=1)
    await prompt(x, "s", budget=80)
    await prompt(x, "s", save=True, strategy="none")
    await prompt(x, "s", strategy="none")


@exchange(
    [Reply(text="Yes.", usage={"prompt_tokens": n, "completion_tokens": 1}) for n in (8000, 7000, 7100, 90_000, 9000)],
    llm={"model": "my-own-model"},
)
async def test_counts_learn_from_reports(x: Exchange) -> None:
    for number in range(5):
        await say(x, "s", f"Box {number} of the captain. " * 900, model="default")
        await prompt(x, "s", strategy="token_window", budget=600)


@exchange(
    answer_at_length,
    """agents:
  reader: {instruction: "Follow {artifact.rules.md}, and {artifact.none.md?}, {artifact.key.txt?}."}
  big: {instruction: "Follow {artifact.big.txt}."}
  dot: {instruction: "Follow {artifact.dot.png}."}
  none: {instruction: "Follow {artifact.none.md}."}
""",
    "redaction: {enabled: true, patterns: [{regex: 'EMP-[0-9]{6}', label: employee}]}",
)
async def test_instructions_with_artifacts(x: Exchange) -> None:
    for session in ("reader", "big", "dot", "none"):
        await x.post("/v1/sessions", id=session, agent=session)
        for name, kind, data in (
            ("rules.md", "text/markdown", b"Be kind."),
            ("big.txt", "text/plain", b"x" * 65_537),
            ("dot.png", "image/png", b"\x89PNG\r\n\x1a\n"),
            ("key.txt", "text/plain", b"I am EMP-123456."),
        ):
            await x.served.http.put(
                f"/v1/sessions/{session}/artifacts/{name}", content=data, headers={"content-type": kind}
            )
        await say(x, session, "Hello.")
        await prompt(x, session)
    await x.send("PUT", "/v1/sessions/reader/artifacts/rules.md", b"Be brief.", headers={"content-type": "text/plain"})
    await say(x, "reader", "And now?")


@exchange(
    answer_at_length,
    "memory: server",
    "agents: {keeper: {context: {strategy: token_window, budget: 500, target: 0.4}}}",
)
async def test_prompts_name_the_memory_files(x: Exchange) -> None:
    """Once messages are evicted, because models forget to look."""
    for number, words in enumerate(WEEK):
        await say(x, "s", words * 3, model="keeper", user="ada")
        if number < 2:
            files = MemoryFiles(x.served.native.records(("memory_files", "keeper"), user_id="ada"))
            await files.create(f"/memories/notes-{number}.md", "Ida lives in Bergen.")
    await x.rows("/v1/sessions/s/calls", "id", "frontier", "recalled", user_id="ada")
    async with (await x.served.native.session("s", user_id="ada", agent="keeper")).turn(WEEK[0]) as turn:
        x.note("a program has tools of its own, and not this one", [one["content"] for one in turn.messages][-2:])
