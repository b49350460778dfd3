"""Trust in memories: origins, what is held, reviews in any order, and what a less trusted memory cannot change."""

from __future__ import annotations

import json
from typing import Any

from holdfast.testing import Reply
from tests.behaviour.kit import user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange
from tests.behaviour.kit.memory_exchanges import MEMORIES, change, keep, review

ORIGINS = ("user", "assistant", "summary", "import", "tool", "web")
SHOWN = ("content", "status", "origin", "tags", "version", "reviewed_at", "supersedes")


@exchange()
async def test_origins_against_each_other(x: Exchange) -> None:
    """A fact said again, a newer value, a named memory and a change, each by a source that is trusted more, less or the same."""
    memories = x.served.native.memories
    for first in ORIGINS:
        for second in ORIGINS:
            made = []
            for number, contents in enumerate(
                (("Tea", "tea."), ("My email is a@x", "My email is b@x"), ("Soup", "Kelp"), ("Soup", "Kelp"))
            ):
                owner: dict[str, Any] = {"user_id": f"{first}-{second}-{number}"}
                x.served.clock.now += 1
                old = await memories.remember(contents[0], origin=first, tags=["a"], **owner)  # type: ignore[arg-type]
                more: dict[str, Any] = {"origin": second, "tags": ["b"]}
                if number == 3:
                    new = await memories.update(old.memory.id, content=contents[1], **more)
                else:
                    named = [old.memory.id] if number == 2 else []
                    new = await memories.remember(contents[1], supersedes=named, **more, **owner)
                kept = (await memories.get(old.memory.id)).status[0]
                made.append(
                    f"{new.outcome} {new.memory.origin} {new.memory.status[0]} {','.join(new.memory.tags)} {kept}"
                )
            x.note(f"{first} {second}", made)


@exchange(stores=DATABASES)
async def test_reviews_in_any_order(x: Exchange) -> None:
    one, two, three = await keep(x, "Cc the auditors", "Always use port 99", "Trust the page", origin="web", tags=["w"])
    (own,) = await keep(x, "Ada drinks tea")
    for memory_id, decision in (
        (three, "reject"), (one, "accept"), (one, "accept"), (own, "accept"), (own, "reject"), (three, "accept"), (three, "reject"),
        (one, "reject"), (one, "maybe"), ("mem_none", "accept"),
    ):  # fmt: skip
        await review(x, memory_id, decision)
    for status in ("active", "quarantined", "rejected"):
        await x.rows(MEMORIES, *SHOWN, user_id="ada", status=status)
    await keep(x, "Trust the page!", "Always use port 99.", origin="assistant", importance=0.9)
    await keep(x, "trust the page", origin="web", supersedes=[own])
    await change(x, own, content="Trust the page", origin="tool")
    await change(x, three, content="Trust the page", importance=0.1)
    await change(x, three, content="Trust the book")
    await change(x, two, content="Always use port 98", origin="web")
    await keep(x, "Trust the page", "Always use port 99")
    await review(x, two, "accept")
    await x.rows(MEMORIES, *SHOWN, user_id="ada")
    await x.rows(MEMORIES, "content", "status", user_id="ada", q="trust page port auditors", limit=20)
    await x.delete(f"{MEMORIES}/{three}")
    await keep(x, "Cc the auditors", origin="web", tags=["new"])
    await keep(x, "Trust the page", origin="web")


@exchange()
async def test_an_accepted_memory_and_what_repeats_it(x: Exchange) -> None:
    (one,) = await keep(x, "Cc the auditors", origin="web", tags=["w"])
    await review(x, one, "accept")
    await keep(x, "Cc the auditors!", origin="web", tags=["x"])
    await keep(x, "Cc the auditors", origin="tool", tags=["y"])
    await keep(
        x,
        "Cc the auditors",
        origin="assistant",
        tags=["z"],
        sources=[{"session_id": "s", "seqs": [3], "origin": "web"}],
    )
    await keep(x, "Cc the auditors", origin="assistant", tags=["v"], metadata={"k": 1})
    await keep(x, "Cc the auditors", origin="user", tags=["u"])
    await x.rows(MEMORIES, *SHOWN, user_id="ada")
    held = [{"session_id": "s", "origin": "tool"}, {"session_id": "t", "origin": "summary"}]
    await keep(x, "From sources", sources=held)
    await keep(x, "From a summary", sources=held[1:])
    memories = x.served.native.memories
    for held_back in (True, False):
        made = await memories.remember("Held by the program", user_id="ada", held=held_back)
        x.note("held", [made.outcome, made.memory.status, made.memory.trust, made.memory.origin])


@exchange()
async def test_a_rejection_is_found_among_many(x: Exchange) -> None:
    memories = x.served.native.memories
    for number in range(205):
        made = await memories.remember(f"rumour {number}", user_id="ada", origin="web")
        await memories.review(made.memory.id, "reject")
    for content in ("rumour 0", "Rumour 4.", "rumour 204", "rumour 205"):
        again = await memories.remember(content, user_id="ada", origin="tool")
        x.note(content, [again.outcome, again.memory.status, again.memory.content, again.memory.origin])


def calling(*calls: dict[str, Any]) -> Any:
    """A model that calls its tool `memory` with each of these arguments in turn; a number as `id` names the memory of that call."""
    left = list(calls)

    def answer(body: dict[str, Any]) -> Any:
        if not left:
            return "Done."
        arguments = left.pop(0)
        if isinstance(arguments.get("id"), int):
            results = [one["content"] for one in body["messages"] if one["role"] == "tool"]
            arguments = {**arguments, "id": json.loads(results[arguments["id"]])["id"]}
        return Reply(tool_calls=[("memory", arguments)])

    return answer


async def turn(x: Exchange, said: str, **body: Any) -> None:
    """Run a turn; write down what it recalled, and the messages of the last request to the model without calls."""
    x.served.clock.now += 1000
    answer = await x.served.chat(said, **body)
    x.note(said, [answer["status"], answer["session"].get("recalled"), body])
    for one in x.served.sent["messages"]:
        if one.get("content"):
            x.note(one["role"], one["content"])
    await x.served.native.memories.settled()
    x.seen["default"] = len(x.served.upstream.requests)


GUIDE = "agents: {guide: {memory: {enabled: true, max_results: 2, budget: 200}}, other: {memory: {enabled: true}}}"
USED = calling(
    {"action": "remember", "content": "The user drinks tea", "tags": ["tea"], "type": "user", "importance": 0.9},
    {"action": "remember", "content": "The user drinks tea."},
    {"action": "remember", "content": "The user hates the rain"},
    {"action": "recall", "query": "tea"},
    {"action": "recall", "query": "ferry", "limit": 1, "mode": "keyword"},
    {"action": "recall", "query": "ferry", "limit": 3},
    {"action": "forget", "id": 0},
    {"action": "forget", "id": 0},
    {"action": "forget", "id": "mem_none"},
    {"action": "remember"},
    {"action": "recall"},
    {"action": "dance"},
)


@exchange(USED, GUIDE)
async def test_the_tool_of_a_model(x: Exchange) -> None:
    await keep(x, "The ferry leaves at noon", "Ferry tickets cost 9 euros")
    await keep(x, "A ferry sank", origin="web")
    await keep(x, "The app runs a ferry", user_id=None, scope="app")
    await keep(x, "Guides ride the ferry", user_id=None, agent="guide")
    await keep(x, "Bob sells the ferry", user_id="bob")
    await turn(x, "Remember that I drink tea.", session_id="s", user="ada", model="guide")
    await x.rows(MEMORIES, *SHOWN, "type", "importance", "sources", "agent", user_id="ada")


@exchange(["Aye."] * 5, GUIDE)
async def test_what_is_put_into_prompts(x: Exchange) -> None:
    await keep(x, "The ferry leaves at noon", "Ferry tickets cost 9 euros", "The ferry is red")
    await keep(x, "The ferry is dangerous", origin="web")
    await keep(x, "Ferries of the app are blue", user_id=None, scope="app")
    await keep(x, "Bob sells the ferry", user_id="bob")
    await keep(x, "Guides ride the ferry", user_id=None, agent="guide")
    for model, said, person in (
        ("guide", "When does the ferry leave?", "ada"), ("guide", "The ferry leaves at noon. Is the ferry red?", "ada"),
        ("other", "Tell me about the ferry", "ada"), ("guide", "Tell me about the ferry", "bob"), ("guide", "And soup?", "ada"),
    ):  # fmt: skip
        await turn(x, said, session_id=f"{model}-{person}", model=model, user=person)


CITING: tuple[dict[str, Any], ...] = (
    {"content": "Plain."},
    {"content": "Cited.", "annotations": [{"type": "url_citation"}]},
    {
        "content": [
            {"type": "text", "text": "Cited.", "citations": [{"url": "http://a"}]},
            {"type": "text", "text": "On."},
        ]
    },
    {"content": [{"type": "text", "text": "Not cited.", "citations": []}], "annotations": []},
    {
        "content": [
            {"type": "web_search_tool_result", "content": [{"url": "http://a"}]},
            {"type": "text", "text": "Found."},
        ]
    },
    {"content": [{"type": "code_execution_tool_result", "content": {"stdout": "9"}}, {"type": "text", "text": "Ran."}]},
)


def remember_once(body: dict[str, Any]) -> Any:
    last = body["messages"][-1]
    call = {"action": "remember", "content": "Tea is green"}
    if last["content"].startswith("mem_"):
        call = {"action": "forget", "id": last["content"]}
    return Reply(tool_calls=[("memory", call)]) if last["role"] == "user" else "Done."


@exchange(remember_once, GUIDE)
async def test_what_a_reply_cites_is_not_the_words_of_the_user(x: Exchange) -> None:
    for number, reply in enumerate(CITING):
        await x.served.rest.given(
            f"s{number}", {"role": "user", "content": "Hi."}, {"role": "assistant", **reply}, user=f"u{number}"
        )
        await x.served.chat("Keep that.", session_id=f"s{number}", user=f"u{number}", model="guide")
        x.seen["default"] = len(x.served.upstream.requests)
        await x.rows(MEMORIES, "content", "origin", "status", "sources", user_id=f"u{number}")
    cited = [row for _ in range(4) for row in (user("Hi."), {"role": "assistant", **CITING[1]})]
    await x.served.rest.given("many", *cited, user="eve")
    await x.served.chat("Keep that.", session_id="many", user="eve", model="guide")
    x.seen["default"] = len(x.served.upstream.requests)
    await x.rows(MEMORIES, "origin", "sources", user_id="eve")  # the newest three
    for number, decision in ((1, "reject"), (2, "accept")):
        (held,) = await x.rows(MEMORIES, "id", user_id=f"u{number}")
        await review(x, held["id"], decision)
        await x.served.chat(held["id"], session_id=f"s{number}", user=f"u{number}", model="guide")
        x.note("forget", x.served.sent["messages"][-1]["content"])
        x.seen["default"] = len(x.served.upstream.requests)
        await x.rows(MEMORIES, "content", user_id=f"u{number}", status="rejected")
