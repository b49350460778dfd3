"""List, pin and drop a session's standing facts: statements of the user that a prompt keeps after their messages have left it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder
from holdfast.context.standing_facts import Fact, FactFields, collect_facts
from holdfast.context.statements import Statement, find_statements
from holdfast.domain.fact_choices import Choice, read_choices
from holdfast.domain.objects import Id, make_object
from holdfast.domain.session import SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import FactNotFound, TooLarge
from holdfast.limits import FACT_DROPS, FACT_PINS
from holdfast.sessions.prompt_lookup import PromptRequest, find_prompt
from holdfast.stores.base import Store
from holdfast.stores.checks import check_kind
from holdfast.stores.walk import iterate_log_pages

_ID: Final = re.compile(r"([0-9]{1,15})\.([0-9]{1,3})")
_NEVER: Final = 10**15
"""A `seq` that no message has."""
_MOST: Final[dict[Choice, int]] = {"pinned": FACT_PINS, "dropped": FACT_DROPS}


class SessionFacts:
    """The user's statements that prompts keep: `await session.facts()` lists them; `pin`, `drop` and `reset` change them.

    A pin or drop takes effect with the next prompt, whichever agent or settings the prompt is for.
    """

    def __init__(self, engine: Engine, ref: SessionRef, responder: Responder) -> None:
        self._engine = engine
        self._ref = ref
        self._responder = responder

    def __repr__(self) -> str:
        return f"<facts of session {self._ref.id!r}>"

    async def __call__(self, strategy: str | None = None, **options: Any) -> list[Fact]:
        """Return the user's statements that the prompt contains or could contain, in the order in which they were said.

        Args:
            strategy: the strategy of the prompt; None: the agent's.
            options: settings of the strategy, for example `budget=8000`.

        Raises:
            InvalidRequest: the strategy or a key is unknown.
            SessionNotFound: there is no such session.
            BudgetTooSmall: no valid working set fits.
        """
        given = {**({"strategy": strategy} if strategy else {}), **options}
        responder = self._engine.roster.with_options(self._responder, given)
        found = await find_prompt(self._engine, self._ref, PromptRequest(responder=responder, touch=False))
        assert found.built is not None, "the next prompt is built"
        return await run_cpu(collect_facts, found.built.window, long=True)

    async def pin(self, fact_id: str) -> None:
        """Keep a statement in the block of standing facts, before all others. Raises the errors of `choose`."""
        await choose(self._engine.store, self._ref, fact_id, {"pinned": True})

    async def drop(self, fact_id: str) -> None:
        """Keep a statement out of the block of standing facts. Raises the errors of `choose`."""
        await choose(self._engine.store, self._ref, fact_id, {"dropped": True})

    async def reset(self, fact_id: str) -> None:
        """Undo `pin` or `drop`. Raises the errors of `choose`."""
        await choose(self._engine.store, self._ref, fact_id, {"pinned": False, "dropped": False})


async def choose(store: Store, ref: SessionRef, fact_id: str, change: Mapping[Choice, bool]) -> Statement:
    """Pin or drop a statement of the user, or undo the pin or drop. The log is read to enforce the limits.

    Args:
        store: the store.
        ref: the session.
        fact_id: id as in the list of facts: the message's `seq`, a dot, and the number of the sentence.
        change: maps `pinned` or `dropped` to True, which replaces the other choice, or to False, which undoes the choice.

    Returns:
        The statement after the change.

    Raises:
        FactNotFound: no current message of the user has such a statement.
        TooLarge: the session already has the maximum number of pinned, or of dropped, statements.
    """
    check_kind(fact_id, "fact_id", str, "a text like '4.1'")
    named = _ID.fullmatch(fact_id)
    seq, place = (int(part) for part in named.groups()) if named else (_NEVER, 0)
    entry = next(iter(await store.entries(ref, start=seq, stop=seq + 1)), None)
    if entry is None or entry.message.role != "user":
        raise FactNotFound(ref.id, fact_id)
    choices = read_choices(entry.metadata)
    statements = await run_cpu(partial(find_statements, entry.message.text, seq, at=entry.timestamp, choices=choices))
    statement = next((one for one in statements if one.place == place), None)
    if statement is None:
        raise FactNotFound(ref.id, fact_id)
    undone = None if statement.choice in change else statement.choice
    choice = next((name for name, wanted in change.items() if wanted), undone)
    if choice != statement.choice:
        if choice is not None and (await _count_choices(store, ref))[choice] >= _MOST[choice]:
            raise TooLarge(f"{_MOST[choice]} facts of session {ref.id!r} are {choice}: undo one first", param="fact_id")
        others = {at: one for at, one in choices.items() if at != place}
        await store.annotate(ref, seq, facts={**others, place: choice} if choice else others)
    return msgspec.structs.replace(statement, choice=choice)


async def _count_choices(store: Store, ref: SessionRef) -> Counter[Choice]:
    """Count the pinned and the dropped statements of a session. The log is read page by page."""
    found: Counter[Choice] = Counter()
    async for page in iterate_log_pages(store, ref):
        found.update(choice for entry in page if entry.metadata for choice in read_choices(entry.metadata).values())
    return found


class ChosenFact(FactFields, frozen=True, kw_only=True):
    """A statement of the user, with its pin or drop."""

    object: Literal["fact"] = "fact"
    session_id: Id


class FactObject(ChosenFact, frozen=True, kw_only=True):
    """A statement of the user, with its pin or drop, and its place in the prompt."""

    source: Literal["block", "message"] | None
    """Place of the statement in the prompt: in the `block` of standing facts, or still in its own `message`; null: the prompt does not have
    the statement."""
    corrected_by: str | None
    """Id of the later fact that corrects this one."""
    in_prompt: bool
    """True if `source` is not null."""

    @classmethod
    def from_fact(cls, session_id: str, fact: Fact) -> FactObject:
        return make_object(cls, fact, session_id=session_id, in_prompt=fact.in_prompt)
