"""Standing facts: what counts as one, what corrects what, and what pins, drops, edits and erasures do."""

from __future__ import annotations

from tests.behaviour.kit import user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange
from tests.behaviour.kit.prompts import TALKS, prompt, talk

FIELDS = ("id", "text", "pinned", "dropped", "corrected_by", "source")


@exchange()
async def test_facts_of_a_conversation(x: Exchange) -> None:
    await talk(x, "s", "life")
    await x.get("/v1/sessions/s/facts")
    for options in (
        {"strategy": "digest", "budget": 400},
        {"budget": 800},
        {"strategy": "salience", "budget": 800},
        {"strategy": "token_window", "budget": 300},
        {"strategy": "summary_buffer", "budget": 900},
        {"model": "default", "budget": 1100},
    ):
        await x.rows("/v1/sessions/s/facts", *FIELDS, **options)
    for options in (
        {"budget": 767},
        {"budget": 780},
        {"budget": 1100},
        {"budget": 1100, "facts": False},
        {"strategy": "token_window", "budget": 800, "facts": True},
        {"strategy": "head_tail", "window_size": 2, "facts": True},
    ):
        await prompt(x, "s", **{"strategy": "digest", "recall": "off", **options})


@exchange(stores=DATABASES)
async def test_chosen_facts(x: Exchange) -> None:
    await talk(x, "s", "life")
    path = "/v1/sessions/s/facts"
    for fact, choice in (
        ("4.1", {"pinned": True}),
        ("2.0", {"dropped": True}),
        ("4.0", {"pinned": True}),
        ("16.0", {"dropped": True}),
        ("2.9", {"pinned": True}),
        ("x", {"pinned": True}),
        ("1.0", {"pinned": True}),
        ("2.1", {}),
        ("2.1", {"pinned": True, "dropped": True}),
    ):
        await x.patch(f"{path}/{fact}", **choice)
    await x.rows(path, *FIELDS, budget=800)
    await prompt(x, "s", strategy="digest", budget=800)
    await x.post("/v1/sessions/s/fork", id="f")
    await x.rows("/v1/sessions/f/facts", *FIELDS, budget=800)
    for fact, choice in (
        ("4.1", {"pinned": False}),
        ("2.0", {"dropped": False}),
        ("4.0", {"dropped": True}),
        ("16.0", {"pinned": True}),
    ):
        await x.patch(f"{path}/{fact}", **choice)
    await x.rows(path, *FIELDS, budget=800)
    await x.delete("/v1/sessions/s/messages/14")
    await x.rows(path, *FIELDS, budget=800)
    await prompt(x, "s", strategy="digest", budget=800)
    await x.rows("/v1/sessions/f/facts", "id", "text", "corrected_by", budget=800)
    await x.rows(path, "id", user_id="ada")


OTHERS = (
    "My sister Almudena lives near the harbour of Vigo.",
    "Keep the drawings in the folder of the architect.",
    "Our neighbour lends us the trailer on weekends.",
)


@exchange()
async def test_what_corrects_what(x: Exchange) -> None:
    """Each line is a conversation, with other statements after its first one."""
    for number, line in enumerate((TALKS / "corrections.txt").read_text(encoding="utf-8").splitlines()):
        first, *later = line.split(" | ")
        said = [user(f"A remark on that.\n{one}") for one in (first, *OTHERS, *later)]
        await x.served.rest.given(f"s{number}", user("Hello."), *said)
        x.note(first, later)
        await x.rows(f"/v1/sessions/s{number}/facts", "id", "corrected_by", budget=2000)
