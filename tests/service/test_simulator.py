"""Thousands of conversations by simulated clients, with each request checked against the rules of docs/reconcile.md:
it reached the right session or a new one; the live path is the conversation with its tool messages; no other
session changed; nothing is lost; the prompt is legal and equals the live path; and the answer reports the outcome.
`make test-thorough` runs thousands of conversations, `make test` a hundred.
"""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import example, given, note
from hypothesis import strategies as st

from tests.service.simulator.behaviours import BEHAVIOURS, OPENINGS, resend_all
from tests.service.simulator.reference import text
from tests.service.simulator.world import TENANTS, Ask, Person, World, world

Step = tuple[int, str, int]
OWNERS = [(TENANTS[0], "ada"), (TENANTS[0], "ada"), (TENANTS[0], "bob"), (TENANTS[1], "ada")]
"""Whose clients there are: two of one user, and two whose users have a name or a tenant in common with that one."""
steps = st.lists(
    st.tuples(st.integers(0, len(OWNERS) - 1), st.sampled_from(sorted(BEHAVIOURS)), st.integers(0, 2**20)),
    min_size=3,
    max_size=14,
)
alone = st.lists(
    st.tuples(st.just(0), st.sampled_from(sorted(BEHAVIOURS)), st.integers(0, 2**20)), min_size=10, max_size=30
)


GOES_BACK: list[Step] = [
    *((0, name, seed) for name, seed in (("compact", 2126), ("edit_assistant", 108224), ("switch_off", 5616))),
    *((0, name, seed) for name, seed in (("go_back", 6019), ("compact", 20006), ("compact", 2876))),
    *((at, "compact", 0) for at in (0, 3, 0, 0, 0, 0)),
    (0, "go_back", 6019),
]
"""Ends with a request that goes back to a retired branch, so only its repetition is equal to the whole log."""


def make_reply(person: Person, ask: Ask, chance: Random) -> dict[str, object] | str:
    """Return the model's next reply: the common one to the common opening, else own words or calls."""
    if [text(one) for one in ask.sent] == [OPENINGS[0]]:
        return OPENINGS[1]
    word = f"re {person.word()} and more"
    if chance.random() < 0.2:
        names = [f"call_{person.name}_{person.count}_{at}" for at in range(chance.randint(1, 2))]
        return {
            "content": None,
            "tool_calls": [
                {
                    "id": name,
                    "type": "function",
                    "function": {"name": "find", "arguments": f'{{"a": 1, "deep": {{"word": "{word}"}}}}'},
                }
                for name in names
            ],
        }
    return word


async def play(there: World, people: list[Person], steps: list[Step], *, twice: bool) -> None:
    """Run the steps; a client that cannot do a step sends a normal message instead."""
    for at, (who, name, seed) in enumerate(steps):
        person, chance = people[who], Random(seed)
        ask = BEHAVIOURS[name](person, chance) or resend_all(person, chance)
        # Of two sessions with the same words, only a session id could tell which one a retry means.
        clear = ask.named or len(there.logs.get(person.owner, ())) < 2
        ask.key = f"{person.name}-{at}" if twice and clear and chance.random() < 0.5 else None
        note(f"{name}: {person.name} of {person.owner}")
        reply = make_reply(person, ask, chance)
        answer = await there.ask(person, ask, reply)
        if ask.key is not None:
            await there.again(person, ask, answer, reply)
    await there.verify()


def run(people: list[Person], steps: list[Step], *, twice: bool = False) -> None:
    """Run in a new event loop and a new world; with `twice`, many requests are repeated with the same key."""

    async def playing() -> None:
        async with world() as there:
            await play(there, people, steps, twice=twice)

    asyncio.run(playing())


def clients(name: str) -> list[Person]:
    """Return a client for each owner; every other one resends no images but the newest."""
    return [Person(owner=owner, name=name.format(at), drops=at % 2 == 1) for at, owner in enumerate(OWNERS)]


@given(steps)
@example([(0, "compact", 0), (0, "regenerate", 1), (0, "compact", 0)])
def test_every_request_reaches_its_own_session(steps: list[Step]) -> None:
    """Clients of one user, two users and two tenants, alternating; all words differ except the opening."""
    run(clients("p{}"), steps)


@given(steps)
def test_requests_with_equal_words_reach_their_own_session(steps: list[Step]) -> None:
    """All clients use the same words, and the model gives all the same answers."""
    run(clients("x"), steps)


@given(alone)
def test_long_conversation_stays_in_one_session(steps: list[Step]) -> None:
    """One client that changes its habits with every request."""
    run(clients("x")[:1], steps)


@given(steps)
@example(GOES_BACK)
def test_repeated_request_returns_the_same_answer(steps: list[Step]) -> None:
    """With the same `Idempotency-Key` nothing is written or generated again; if the first attempt failed, the retry
    continues it.
    """
    run(clients("p{}"), steps, twice=True)
