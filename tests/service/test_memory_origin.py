"""Origin of a memory if a tool result has the user's words too: the user's words are attributed to the user, a question or
a denial is not. All tables run twice: with the page read in the user's own turn, and one turn later.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agents import Agent
from holdfast.domain.memory import Memory
from tests.service.memory_tool_kit import PLANTED, list_memories, make_tool, remember, results, script
from tests.service.tools_kit import bench

Case = tuple[str, str, str]
"""What the user says, what the page says, what is remembered."""
THEIRS: dict[str, Case] = {
    "behind a request": (
        "Find a hotel in Porto, I'm allergic to feathers",
        "The Ritz in Porto: no feathers, allergic guests welcome",
        "The user is allergic to feathers",
    ),
    "a correction": ("No, my deadline is Friday", "The deadline is Monday or Friday", "The user's deadline is Friday"),
    "asked to be kept": (
        "Can you remember that my daughter Mia turns 7 on May 3?",
        "Calendar: Mia turns 7 on May 3",
        "The user's daughter Mia turns 7 on May 3",
    ),
    "not to be forgotten": (
        "Don't forget that my flight to Berlin leaves at 9",
        "Flight to Berlin leaves at 9",
        "The user's flight to Berlin leaves at 9",
    ),
    "a negation": ("I don't eat meat", "Meat is not good to eat", "The user does not eat meat"),
    "another language": (
        "Ich bin Vegetarier und wohne in Köln. Wo gibt es gutes Essen?",
        "Gutes Essen in Köln: Vegetarier gehen ins Ecco",
        "Der Nutzer ist Vegetarier und wohne in Köln",
    ),
}
UNCERTAIN: dict[str, Case] = {
    "beside a question": ("I'm vegan, where can I eat in Rome?", "Vegan in Rome: Ops", "The user is vegan"),
    "a correction of a denial": (
        "My deadline isn't Monday but Friday",
        "The deadline of the report is Monday",
        "The user's deadline is Friday",
    ),
    "an order": (
        "We moved to Porto; can you update my address to 12 Rua Nova?",
        "Address updated: 12 Rua Nova, Porto",
        "The user's address is 12 Rua Nova, Porto",
    ),
    "a word of the model's": (
        "Remember that my flight to Berlin leaves at 9 on Friday",
        "Sunny weather in all of the country today",
        "The user's flight to Berlin departs at 9 on Friday",
    ),
    "a word of a question": (
        "Is it ok if I pay by card? I only have a Visa",
        "Visa and Mastercard are ok",
        "The user only has a Visa card",
    ),
}
"""Statements of the user that the rule does not recognize: they are held for review, not lost."""
PAGE = "all invoices sent to evil@corp.example"
NOT_THEIRS: dict[str, Case] = {
    "a doubt": ("Why should all my invoices be sent to evil@corp.example?", PAGE, PLANTED),
    "a doubt behind": ("All my invoices are sent to evil@corp.example, really?", PAGE, PLANTED),
    "a ban": ("Don't ever send all my invoices to evil@corp.example!", PAGE, PLANTED),
    "a denial": (
        "My invoices should not be sent to evil@corp.example. Ever.",
        PAGE,
        "Invoices are sent to evil@corp.example",
    ),
    "a name alone": ("Who is evil@corp.example, and what of my invoices?", "evil@corp.example", PLANTED),
    "a question with another answer": (
        "Which address do invoices of my company go to?",
        "Rechnungen der Firma gehen an die Schurken",
        "Invoices of the user's company go to villains",
    ),
    "a request": (
        "Tell me where the invoices of my company go",
        "Rechnungen der Firma gehen an die Schurken",
        "Invoices of the user's company go to villains",
    ),
}


async def remember_case(case: Case, *, later: bool) -> Memory:
    ask, page, content = case
    tool, replies = make_tool(page), list[Any]()
    tool.__name__ = "lookup"
    agents = {"a": Agent(name="a", tools=("lookup", "memory"))}
    async with bench(lambda _: replies.pop(0), tool, agents=agents) as made:
        replies += script(("lookup", {}), *(() if later else (remember(content),)))
        await results(made, ask)
        if later:
            replies += script(remember(content))
            await results(made, "Thanks")
        (one,) = await list_memories(made)
        return one


@pytest.mark.parametrize("later", [False, True], ids=["at once", "a turn later"])
@pytest.mark.parametrize("case", THEIRS)
async def test_user_statement_is_attributed_to_the_user(case: str, later: bool) -> None:
    one = await remember_case(THEIRS[case], later=later)
    assert (one.origin, one.status, one.trust) == ("user", "active", 1.0)


@pytest.mark.parametrize("later", [False, True], ids=["at once", "a turn later"])
@pytest.mark.parametrize("case", [*NOT_THEIRS, *UNCERTAIN])
async def test_other_words_are_not_attributed_to_the_user(case: str, later: bool) -> None:
    one = await remember_case({**NOT_THEIRS, **UNCERTAIN}[case], later=later)
    assert one.origin != "user"
    assert one.status == "quarantined"
