"""Matching of a client's history with logs: which session answers, what is retired, and what the model gets."""

from __future__ import annotations

from typing import Any, Final

from holdfast.testing import Reply
from tests.behaviour.kit import assistant, calls, result, system, user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange

PICTURE: Final = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
PLAIN: Final = [f"R{at}." for at in range(40)]


def told(*said: str) -> list[dict[str, Any]]:
    """A history: what the user said and what was replied, in turn."""
    return [(assistant if at % 2 else user)(one) for at, one in enumerate(said)]


async def ask(x: Exchange, label: str, messages: list[Any], session_id: str | None = None, **fields: Any) -> Any:
    """Send a request, and write down its session, what it did there, and what the model got."""
    before = len(x.served.upstream.requests)
    answer = await x.served.chat(messages, session_id, **fields)
    x.served.clock.now += 1000
    session = answer.get("session") or {}
    got = [[one.get("content") for one in request.body["messages"]] for request in x.served.upstream.requests[before:]]
    did = [
        answer["status"],
        answer.get("session_id"),
        session.get("reconciled"),
        session.get("edited_at"),
        session.get("turn"),
        session.get("version"),
    ]
    x.note(
        label, [did, answer["choices"][0]["message"].get("content") if "choices" in answer else answer["error"], got]
    )
    return answer


async def log(x: Exchange, session_id: str = "s", **query: Any) -> None:
    await x.rows(
        f"/v1/sessions/{session_id}/messages",
        "seq",
        "role",
        "content",
        "retired_by",
        "turn_id",
        retired=True,
        limit=100,
        **query,
    )


@exchange(PLAIN, stores=DATABASES)
async def test_a_named_session_and_a_whole_history(x: Exchange) -> None:
    base = told("One.", "R0.", "Two.", "R1.", "Three.", "R2.")
    for at in (1, 3, 5):
        await ask(x, f"whole, {at} messages", base[:at], "s")
    await ask(x, "the last message again", base[:5], "s")
    await ask(x, "other last words", [*base[:4], user("Three!")], "s")
    await ask(x, "back to the first words", [*base, user("Four.")], "s")
    await log(x)
    await ask(x, "a message from the middle is gone", [*base[:2], *base[4:], user("Five.")], "s")
    await ask(x, "the beginning is gone", [base[4], base[5], user("Six.")], "s")
    await ask(
        x,
        "the beginning is gone, and this is a transcript",
        [base[4], base[5], user("Seven.")],
        "s",
        session_mode="transcript",
    )
    await log(x)
    await ask(x, "nothing in common", [user("Quite."), assistant("Other."), user("Words.")], "s")
    await ask(x, "the reply was edited", [user("Quite."), assistant("Changed."), user("Words.")], "s")
    await ask(
        x,
        "white space",
        [user("Quite. "), assistant("Changed.\n"), user("Words."), assistant("R10. "), user("Next.")],
        "s",
    )
    await ask(x, "only new words", [user("Next.")], "s")
    await ask(x, "only new words that are the same", [user("Next.")], "s", session_mode="delta")
    await ask(
        x, "old words as new ones", [user("Quite."), assistant("Changed."), user("More.")], "s", session_mode="delta"
    )
    await ask(x, "no words", [], "s")
    await ask(x, "a system message", [system("Be brief."), user("Quite?")], "s")
    await ask(x, "transcript of one message", [user("Fresh.")], "s", session_mode="transcript")
    await log(x)
    await x.get("/v1/sessions/s")


LOOK: Final = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
CALLS: Final = [("look", {"at": "sea"}), ("look", {"at": "sky"})]


@exchange(
    [
        Reply(tool_calls=CALLS),
        "Blue.",
        "Blue again.",
        Reply(text="I look.", tool_calls=CALLS),
        "Grey.",
        "Shown.",
        "Next.",
        "Third.",
        "Fourth.",
        "Fifth.",
    ],
    stores=DATABASES,
)
async def test_histories_with_tools_and_pictures(x: Exchange) -> None:
    one = [user("What?"), calls(("call_1_0", "look", {"at": "sea"}), ("call_1_1", "look", {"at": "sky"}))]
    results = [result("call_1_0", "sea"), result("call_1_1", "sky")]
    for label, messages in (
        ("calls", one[:1]),
        ("results", [*one, *results]),
        ("the same results again", [*one, *results]),
        ("without the tools", [user("What?"), assistant("Blue again."), user("And?")]),
        (
            "the round alone",
            [
                user("And?"),
                calls(("call_4_0", "look", {"at": "sea"}), ("call_4_1", "look", {"at": "sky"}), text="I look."),
                result("call_4_1", "b"),
                result("call_4_0", "a"),
            ],
        ),
        ("a picture", [user([{"type": "text", "text": "See"}, PICTURE])]),
        ("the picture is left out", [*told("What?", "Blue again.", "And?", "Grey.", "See", "Shown.", "Now?")]),
        (
            "other parts",
            [
                user("What?"),
                assistant([{"type": "text", "text": "Blue "}, {"type": "text", "text": "again."}]),
                user("And?"),
                assistant("Grey."),
                user("See"),
                assistant("Shown."),
                user("So?"),
            ],
        ),
        (
            "the last result is changed",
            [user("What?"), one[1], result("call_1_0", "lake"), results[1], assistant("Blue again."), user("Hm?")],
        ),
    ):
        await ask(x, label, messages, "s", tools=LOOK)
    await log(x)
    await ask(x, "a new session begins with tools", [user("First?"), one[1], *results], None, user="ada", tools=LOOK)
    await ask(
        x,
        "its calls name it",
        [user("First?"), one[1], *results, assistant("Fifth."), user("And then?")],
        None,
        user="ada",
        tools=LOOK,
    )


@exchange(PLAIN, stores=DATABASES)
async def test_which_session_an_unnamed_request_belongs_to(x: Exchange) -> None:
    first = told("Hi.", "R0.", "Who?", "R1.", "Why?")
    await ask(x, "ada", first[:1], user="ada")
    await ask(x, "ada goes on", first[:3], user="ada")
    await ask(x, "bob says the same", first[:3], user="bob")
    await ask(x, "nobody says the same", first[:3])
    await ask(x, "ada says hi again", first[:1], user="ada")
    await ask(x, "ada goes on in the first", first, user="ada")
    await ask(x, "ada edits", [*first[:2], user("What?")], user="ada")
    await ask(x, "ada goes back", [*first, assistant("R5."), user("When?")], user="ada")
    for how in ({"session_match": "off"}, {"session_mode": "delta"}, {"session_mode": "transcript"}, {"user": "Ada"}):
        await ask(x, f"{how}", [*first[:2], user("Where?")], **{"user": "ada", **how})
    await ask(x, "with another prompt", [system("Be brief."), *first[:2], user("Where else?")], user="ada")
    await ask(x, "a prompt of its own", [system("Be kind."), *told("Hello.")], user="eve")
    await ask(x, "the same with another prompt", [system("Be rude."), *told("Hello.", "R13.", "Well?")], user="eve")
    await ask(x, "the same with its prompt", [system("Be kind."), *told("Hello.", "R13.", "Well!")], user="eve")
    await ask(x, "the end of a long history", told("Who?", "R1.", "Why?", "R5.", "Then?"), user="ada")
    await ask(x, "too little of it", told("Why?", "R5.", "Then!"), user="ada")
    await ask(
        x, "more replies than the log has", told("Who?", "R1.", "Why?", "R5.", "Then?", "Other.", "Now?"), user="ada"
    )
    await ask(x, "only a beginning without a reply", told("Hi.", "Something."), user="ada")
    await ask(x, "an empty reply", [user("Hi."), assistant(""), user("So.")], user="ada")
    await x.rows("/v1/sessions", "id", "user_id", "turns", "message_count", "metadata", "system_messages", limit=50)
    for name in ("ada", "bob", "eve"):
        for row in (await x.served.http.get("/v1/sessions", params={"user_id": name, "limit": 50})).json()["data"]:
            await log(x, row["id"], user_id=name)


@exchange(PLAIN, "gateway: {single_user: false}")
async def test_requests_that_may_come_from_anyone(x: Exchange) -> None:
    first = told("Hi.", "R0.", "Who?")
    key = "a-key-of-16-chars"
    for label, fields in (
        ("no user", {}),
        ("no user again", {}),
        ("asks to be matched", {"session_match": "on"}),
        ("the user default", {"user": "default"}),
        ("a short key", {"headers": {"Idempotency-Key": key[:15]}}),
        ("a short key again", {"headers": {"Idempotency-Key": key[:15]}}),
        ("a key", {"headers": {"Idempotency-Key": key[:16]}}),
        ("a key again", {"headers": {"Idempotency-Key": key[:16]}}),
        ("a retry", {"headers": {"x-stainless-retry-count": "1"}}),
        ("ada", {"user": "ada", "headers": {"Idempotency-Key": "k"}}),
        ("ada again", {"user": "ada", "headers": {"Idempotency-Key": "k"}}),
        ("bob", {"user": "bob", "headers": {"Idempotency-Key": "k"}}),
        ("ada, streamed", {"user": "ada", "stream": False, "headers": {"Idempotency-Key": "k"}}),
        ("ada, colder", {"user": "ada", "temperature": 0, "headers": {"Idempotency-Key": "k"}}),
        ("eve sends", {"user": "eve", "headers": {"x-stainless-retry-count": "0"}}),
        ("eve retries", {"user": "eve", "headers": {"x-stainless-retry-count": "1"}}),
        ("eve retries again", {"user": "eve", "headers": {"x-stainless-retry-count": "2"}}),
        ("eve retries, hotter", {"user": "eve", "temperature": 2, "headers": {"x-stainless-retry-count": "2"}}),
        ("eve says the same", {"user": "eve", "headers": {"x-stainless-retry-count": "0"}}),
    ):
        answer = await ask(x, label, first, None, **fields)
        x.note("warnings", [(answer.get("session") or {}).get("warnings"), answer.get("id")])
    x.served.clock.now += 10 * 60_000 - 3000
    await ask(x, "eve retries soon enough", first, None, user="eve", headers={"x-stainless-retry-count": "1"})
    x.served.clock.now += 10 * 60_000
    await ask(x, "eve retries too late", first, None, user="eve", headers={"x-stainless-retry-count": "1"})
    await ask(x, "ada retries later", first, None, user="ada", headers={"Idempotency-Key": "k"})
    await x.rows("/v1/sessions", "id", "user_id", "turns", "version", limit=50)


@exchange(PLAIN)
async def test_long_histories_and_replies_that_were_cut(x: Exchange) -> None:
    """A client that does not know that its user interrupted a reply goes on in that session; so does one with a long history."""
    found = await ask(x, "the first", told("Tell me all."), user="ada")
    await x.post(f"/v1/sessions/{found['session_id']}/interrupt?user_id=ada", chars=1)
    await ask(x, "what was heard", told("Tell me all.", "R", "And?"), user="ada")
    await ask(x, "the whole reply", told("Tell me all.", "R0.", "And?", "R1.", "More?"), user="ada")
    await ask(x, "the whole reply, edited", told("Tell me all.", "R0.", "And you?"), user="ada")
    await log(x, found["session_id"], user_id="ada")
    words = [f"M{at}." for at in range(80)]
    await x.served.rest.given("long", *told(*words), user="eve")
    await ask(x, "a long one", told(*words, "Next."), user="eve")
    await ask(x, "a long one, edited late", told(*words[:78], "Last?"), user="eve")
    await ask(x, "a long one, edited early", told(*words[:2], "Early?"), user="eve")
    await ask(x, "a long one, cut", told(*words[60:78], "Last?", "R5.", "So?"), user="eve")
    await ask(x, "a long one, with gaps", told(*words[:4], *words[40:78], "Last?", "R5.", "So!"), user="eve")
    pictured = [user([{"type": "text", "text": "Look."}, PICTURE])]
    await ask(x, "a picture", pictured, user="kim")
    await ask(x, "its description", told("Look.", "R8.", "So?"), user="kim")
    await x.rows("/v1/sessions", "id", "user_id", "message_count", limit=100)
