"""What a turn recalls: looked for once, before its first call, and the same in all of its prompts.

Whoever knows something (past conversations, memories) is asked side by side, for a moment. Who is late, or fails, is left out: the
record of the call says so, and the turn goes on. What is found is data: `holdfast.context.recalled` says how it is told.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import anyio
import msgspec

from holdfast.agents import Voice
from holdfast.context.build import WorkingSet
from holdfast.context.recalled import Recall, RecalledItem, RecalledKind, RecallSettings, moment
from holdfast.domain.participants import is_shared as read_by_others
from holdfast.domain.session import SessionRef
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import QUERY_CHARS, RECALL_FRESH_SECONDS, RECALL_SECONDS, RECALL_VECTOR_SECONDS, RECALLED_CHARS
from holdfast.search.asking import Asked, zone_named
from holdfast.search.searching import SearchHit, searched
from holdfast.tools.context import Found, Wanted
from holdfast.tools.hearing import is_users
from holdfast.turns.turn import Turn
from holdfast.wire.times import moment_of

_log: Final = logging.getLogger("holdfast.recall")
Recalling = Callable[[Turn], Awaitable[Sequence[RecalledItem]]]
"""Gives what answers the turn's message (`asked_in`), of one kind; see `Engine.recalling`."""
_LOOKED_BACK: Final = 64
"""Messages in which the one is looked for that a turn answers, where its request has none."""
_SPARE: Final = 2
"""How many times as many hits are looked up as are wanted, as some may be in the prompt already."""
LEAST_SHARE: Final = 0.5
"""Part of the best hit's score below which a hit has too little to do with the message to come into its prompt by itself."""
_DEFAULT: Final = RecallSettings()


def name_of(turn: Turn) -> str | None:
    """Whose prompts they are: the agent's name, or None."""
    agent = turn.request.voice.agent
    return agent.name if agent else None


def budgets_of(voice: Voice) -> dict[RecalledKind, int]:
    """Tokens by kind that are kept free in the prompts of a voice."""
    recalls: Mapping[RecalledKind, RecallSettings] = voice.agent.recalls if voice.agent else {}
    return {kind: settings.budget for kind, settings in recalls.items() if settings.inject}


async def reminded(turn: Turn) -> None:
    """Find what the turn's prompts are to have recalled, unless that is known."""
    name, budgets = name_of(turn), budgets_of(turn.request.voice)
    if not budgets or name in turn.recalls:
        return
    found: dict[RecalledKind, Sequence[RecalledItem]] = {}
    missed: list[str] = []
    async with anyio.create_task_group() as tasks:
        for kind in budgets:
            if (recalling := turn.engine.recalling.get(kind)) is not None:
                tasks.start_soon(_asked, turn, kind, recalling, found, missed)
    items = tuple(item for kind in budgets for item in found.get(kind, ()))
    turn.recalls[name] = Recall(budgets=budgets, items=items, missed=tuple(sorted(missed)))


async def _asked(
    turn: Turn,
    kind: RecalledKind,
    recalling: Recalling,
    found: dict[RecalledKind, Sequence[RecalledItem]],
    missed: list[str],
) -> None:
    """Ask for one kind, for a moment."""
    try:
        with anyio.fail_after(RECALL_SECONDS):
            found[kind] = await recalling(turn)
    except TimeoutError:
        missed.append(f"{kind}: late")
    except Exception as exc:  # noqa: BLE001 - the last place: no turn fails for the sake of what it might recall
        missed.append(f"{kind}: failed")
        # Neither the message nor what was found is in the log: only the kind of the error.
        _log.warning("nothing recalled of kind %s in session %r: %s", kind, turn.request.ref.id, type(exc).__name__)


def keep(turn: Turn, built: WorkingSet) -> None:
    """Have the turn's further prompts recall what the first one did."""
    name = name_of(turn)
    recall = turn.recalls.get(name)
    if recall is not None and recall.items:
        missed = built.request.recall.missed
        turn.recalls[name] = msgspec.structs.replace(recall, items=(), block=built.recalled, missed=missed)


async def asked_in(turn: Turn) -> str:
    """The text of the user's message that the turn answers; empty: there is none."""
    for message in reversed(turn.request.incoming):
        if message.role == "user":
            return message.text
    last = await turn.engine.store.entries(turn.request.ref, limit=_LOOKED_BACK, descending=True)
    return next((entry.message.text for entry in last if entry.message.role == "user"), "")


# -- past conversations --------------------------------------------------------


async def conversations(turn: Turn) -> list[RecalledItem]:
    """What was said in past conversations that answers the turn's message."""
    settings, query = _settings(turn), (await asked_in(turn))[:QUERY_CHARS]
    if turn.engine.index is None or not query.strip():
        return []
    own, since, tail = turn.request.ref.id, _sent_from(turn), turn.session.tail.turn_id
    asked = Asked(
        limit=settings.max_results * (_SPARE if since is None else 1),
        session_id=own if is_shared(turn) else None,
        zone=settings.zone,
        not_session=own if since == 0 else None,  # else its own messages might be all that an index gives of a subject
        width=RECALLED_CHARS,
        fresh=RECALL_FRESH_SECONDS,
        known=turn.request.ref,
        bare=True,
        least=LEAST_SHARE,
        sure=True,
        patience=RECALL_VECTOR_SECONDS,
    )
    results = await searched(
        turn.engine,
        turn.request.ref.user_id,
        query,
        asked,
        leave_out=lambda session, seq: session == own and since is not None and seq >= since,
    )
    hits = [hit for hit in results.hits if hit.session_id != own or hit.turn_id != tail]
    return [_item(hit, own) for hit in hits[: settings.max_results]]


def is_shared(turn: Turn) -> bool:
    """Whether others than its user take part in the session, or asked: what the user has said elsewhere is not for them."""
    return turn.request.guest or read_by_others(turn.session.metadata)


def _settings(turn: Turn) -> RecallSettings:
    agent = turn.request.voice.agent
    return agent.recalls.get("conversation", _DEFAULT) if agent else _DEFAULT


def _sent_from(turn: Turn) -> int | None:
    """From which `seq` on the session itself is in the prompt, so that there is nothing to look up; None: it is not known here."""
    if turn.plan is not None and turn.session.messages == len(turn.plan.append):
        return 0
    memory = turn.engine.warm.get(turn.request.ref)
    return memory.saved if memory is not None and memory.key == turn.key else None


def _item(hit: SearchHit, own: str) -> RecalledItem:
    return RecalledItem(
        kind="conversation",
        id=hit.id,
        text=hit.snippet,
        at=hit.timestamp,
        author=_author(hit),
        score=hit.score,
        source="" if hit.session_id == own else hit.session_id,
        seq=hit.seq if hit.session_id == own else None,
        cut=hit.snippet.startswith("…") or hit.snippet.endswith("…"),
    )


def _author(hit: SearchHit) -> str:
    who = hit.name or hit.agent
    return f"{hit.role} {who}" if who and who != hit.role else hit.role


def quotes(turn: Turn) -> bool:
    """Whether the turn's prompt has something recalled in it that others than its user said."""
    block, user = turn.working_set.recalled if turn.working_set else None, turn.request.ref.user_id
    return block is not None and any(
        one.kind == "conversation" and not is_users(one.author, user) for one in block.items
    )


async def said_at(turn: Turn, session_id: str, identity: str, seq: int) -> str | None:
    """What an entry of one of the user's sessions says; None: it is not there any more."""
    ref = SessionRef(turn.request.ref.user_id, session_id)
    try:
        if (await turn.engine.store.get(ref)).identity != identity:
            return None
        entries = await turn.engine.store.entries(ref, start=seq, stop=seq + 1)
    except HoldfastError:
        return None
    return entries[0].message.text if entries and not entries[0].erased else None


# -- the tool ------------------------------------------------------------------


async def looked_up(turn: Turn, wanted: Wanted) -> list[Found]:
    """What the tool `search_conversations` finds for the user whose turn it is: nothing that the prompt has.

    Raises:
        InvalidRequest: something that cannot be asked.
    """
    settings, built = _settings(turn), turn.working_set
    sent = built.window.whole() if built else set()
    own = turn.request.ref.id
    if is_shared(turn):
        if wanted.session_id not in (None, own):
            raise InvalidRequest("several users take part in this conversation: no other one is searched here")
        wanted = wanted._replace(session_id=own)
    zone = zone_named(settings.zone)
    asked = Asked(
        limit=min(wanted.most or settings.max_results, settings.max_results),
        session_id=wanted.session_id,
        since=None if wanted.since is None else moment_of(wanted.since, "since", zone),
        until=None if wanted.until is None else moment_of(wanted.until, "until", zone),
        zone=settings.zone,
        width=RECALLED_CHARS,
        bare=True,
        sure=True,
    )
    results = await searched(
        turn.engine,
        turn.request.ref.user_id,
        wanted.query,
        asked,
        leave_out=lambda session, seq: session == own and seq in sent,
    )
    return [Found(hit.session_id, moment(hit.timestamp), _author(hit), hit.snippet) for hit in results.hits]
