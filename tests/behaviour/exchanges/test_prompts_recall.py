"""Recall from the own session and from others: for which questions, with which neighbours, and how much."""

from __future__ import annotations

from tests.behaviour.kit import assistant, user
from tests.behaviour.kit.exchanges import Exchange, exchange
from tests.behaviour.kit.prompts import TALKS, prompt, recalled, say, talk

TTL = "sessions: {ttl: 0}"
QUESTIONS = (
    "What does the mooring cost?", "How much is the mooring per month now?", "When is my dentist appointment?", "Who is my dentist?", "Where does Ida work?", "And Ole?", "Where does her brother work?",
    "What did I tell you yesterday?", "What did I say last week?", "What did we talk about on 2023-12-14?", "What happened three weeks ago?", "What did I do last Monday?", "What did I tell you in December?",
    "What was the first thing I told you?", "Which bicycle was cheaper, the blue or the red one?", "List all the people I mentioned.", "How many bicycles do I have?", "What is the password?", "passport number?",
    "NX-448812", "Thanks!", "Yes, please do that.", "Tell me a joke.", "When is high water at pier 7?", "小雪几岁", "Wie heißt mein Zahnarzt?", "Is Ida older than Ole?", "when was ida born", "KITTIWAKE??",
    "I paid the mooring again today.", "What is Ole's date of birth?", "Do you remember what Dr Berg's address is?", "What did you say about the tide?", "Between the 1st and the 10th of December, what did I say?",
    "What did I say this morning?", "What did I tell you 2 days ago?", "Anything since Friday?", "What about my boat's name?",
)  # fmt: skip


TIMES = (
    "What did I say yesterday?", "What did I say today?", "What happened last Monday?", "What did I tell you on 20 December 2023?", "What did I say in November?", "What did I say two weeks ago?", "What did we discuss last month?",
    "What did I say this week?", "What did I say on Wednesday?", "What did I say between 3 December and 15 December?", "What did I say since December 22nd?", "What did I say before December?", "What did I say this year?",
    "What did I say last year?", "What did I say in the evening of 2023-12-23?", "What did I say 10 days ago?", "What did I say in the last 3 days?", "Was habe ich gestern gesagt?", "What did I say on 12/20?", "What did I say earlier today?",
    "How many bicycles did I mention?", "Did I say anything about Ole and Ida?", "What about the boat on 14 November?", "What did you say about the password?",
)  # fmt: skip


@exchange((), TTL)
async def test_questions_about_the_session(x: Exchange) -> None:
    await talk(x, "s", "diary")
    await recalled(x, "s", QUESTIONS, strategy="token_window", budget=600, recall="on")
    for budget in (200, 450, 800):
        await recalled(x, "s", QUESTIONS[:6], strategy="token_window", budget=budget, target=0.2, recall="on")
    for budget in (300, 600):
        await recalled(x, "s", QUESTIONS[:8], strategy="digest", budget=budget)
    await recalled(x, "s", QUESTIONS[:4], strategy="salience", budget=400)
    await recalled(x, "s", QUESTIONS[:2], strategy="buffer_window", window_size=4)
    await recalled(x, "s", QUESTIONS[:4], strategy="head_tail", window_size=3, recall="on", budget=300)
    for how in ("on", "off"):
        body = {"messages": [user(QUESTIONS[3])], "strategy": "token_window", "budget": 600, "recall": how}
        answer = await x.served.http.post("/v1/sessions/s/turns", json=body)
        x.note(f"recall {how} in a turn", answer.json()["messages"][-2])


@exchange(["Yes."] * 90, "search: {enabled: true, max_results: 4, budget: 300}", "memory: {enabled: true}", TTL)
async def test_recall_of_other_sessions(x: Exchange) -> None:
    await talk(x, "diary", "diary")
    await talk(x, "life", "life", user_id="ada")
    for text in ("Ada lives in Lyon.", "Ada's boat club meets on Thursdays.", "Ada pays the mooring in cash."):
        await x.post("/v1/memories", content=text)
    for words in (
        "What does the mooring cost?",
        "What did I say last week?",
        "When is my dentist appointment?",
        "When does the boat club meet?",
        "Thanks!",
        "What must I not eat?",
        "List all the people I mentioned.",
    ):
        await say(x, f"n{len(words)}", words)
    for number, words in enumerate(TIMES):
        found = await x.served.chat(words, f"t{number}")
        x.note(words, found["session"].get("recalled"))
    x.seen["default"] = len(x.served.upstream.requests)
    await say(x, "ada", "What must I not eat?", user="ada")
    await x.get("/v1/sessions/n27/calls/0")
    await prompt(x, "n27", at_turn=0)


AHEAD = (
    "We meet tomorrow at nine.", "The day after tomorrow is free.", "The exam is next Tuesday.", "Ferry in two weeks.", "The lease ends next month.", "Paint the hull in 3 months.", "Rent is due on the 20th.",
    "The 31st is the party.", "Am 2. kommt der Lotse.", "Nächste Woche ist Markt.", "Le train part lundi prochain.", "La boda es el viernes que viene.", "明天去码头。", "下周三开会。", "两个月后交货。", "25号付款。", "来週は休み。", "Back in an hour, or in 2 hours.", "The fair was on May 3.", "New sails next year.", "The 99th try.",
)  # fmt: skip
LONG = "The keel lay on the beach. " * 80
WORDS = f"{LONG}They flew over the sky-blue Straße with KX-7731 and McKenzie's CRIES; tiedUp 東京の港で泳ぐ and Ελλάδα, cafés, женщины {'x' * 90} 12. {LONG}"


@exchange((), TTL)
async def test_times_that_searches_name(x: Exchange) -> None:
    """Past ones in questions, future ones in messages; and what is marked in long messages."""
    days = (
        1_670_700_000_000,
        1_683_500_000_000,
        1_697_400_000_000,
        1_699_400_000_000,
        1_699_700_000_000,
        1_699_900_000_000,
    )
    for at, moment in enumerate(days):
        said = "My taxes, Ana's trip, and the questions: what I asked and we talked about."
        await x.served.rest.given(
            f"q{at}", user(said, timestamp=moment), assistant("Kettles and taxes.", timestamp=moment)
        )
    await x.settle()
    x.served.clock.now += 86_400_000
    for file, before in (("times", "what did I say "), ("questions", "")):
        for phrase in (TALKS / f"{file}.txt").read_text(encoding="utf-8").splitlines():
            found = (await x.served.http.get("/v1/search", params={"q": before + phrase})).json()
            x.note(
                phrase,
                [found["range"], found["notes"], [f"{one['session_id']} {one['role']}" for one in found["data"][:4]]],
            )
    await x.served.rest.given("s", *(user(f"Plan: {text}") for text in AHEAD))
    await x.served.rest.given("t", user(WORDS))
    x.served.clock.now += 100 * 86_400_000
    for day in ("2023-11-15", "16 November", "21 November", "27 November", "1 December 2023", "20 November", "2024-02-12", "30 November", "2 December", "22 November", "25 November", "2024-01-14", "24 November", "3 May", "2024"):  # fmt: skip
        await x.rows("/v1/search", "snippet", q=f"Which plan was for {day}?", session_id="s", limit=3)
    for words in (
        "fly cry",
        "KX7731",
        "kenzie mckenzie",
        "strasse",
        "東京",
        "泳ぐ",
        "Ελλάδα",
        "cafe",
        "женщина",
        "tie up",
        "12 beach",
        "keel",
    ):
        await x.rows("/v1/search", "snippet", "highlights", q=words, session_id="t")
