"""What was said in past conversations, as a turn has it: for its prompts, for the tool that searches, and for memories to be checked by."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.context.recalled import Held, RecalledItem, RecallSettings, moment
from holdfast.domain.session import SessionRef
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import QUERY_CHARS, RECALL_FRESH_SECONDS, RECALL_VECTOR_SECONDS, RECALLED_CHARS
from holdfast.recall.questions import asks_many
from holdfast.search.asking import Asked, zone_named
from holdfast.search.results import SearchHit
from holdfast.search.searching import searched
from holdfast.tools.context import Found, Wanted
from holdfast.tools.memory_sources import is_users
from holdfast.turns.recalling import asked_in, is_shared
from holdfast.turns.turn import Turn
from holdfast.wire.times import moment_of

_SPARE: Final = 2
"""How many times as many hits are looked up as are wanted, as some may be in the prompt already."""
_MANY: Final = 20
"""Hits where a message asks for a list or a count."""
_MANY_CHARS: Final = 400
"""Characters of each of these."""
LEAST_SHARE: Final = 0.5
"""Part of the best hit's score below which a hit has too little to do with the message to come into its prompt by itself."""
_DEFAULT: Final = RecallSettings()


async def conversations(turn: Turn) -> list[RecalledItem]:
    """What was said in past conversations that answers the turn's message."""
    settings, query = _settings(turn), (await asked_in(turn))[:QUERY_CHARS]
    if turn.engine.index is None or not query.strip():
        return []
    own, since, tail = turn.request.ref.id, _sent_from(turn), turn.session.tail.turn_id
    many = asks_many(query)
    most = max(settings.max_results, _MANY) if many else settings.max_results  # the block's budget is what bounds them
    asked = Asked(
        limit=most * (_SPARE if since is None else 1),
        session_id=own if is_shared(turn) else None,
        zone=settings.zone,
        not_session=own if since == 0 else None,  # else its own messages might be all that an index gives of a subject
        width=_MANY_CHARS if many else RECALLED_CHARS,
        fresh=RECALL_FRESH_SECONDS,
        known=turn.request.ref,
        bare=True,
        least=LEAST_SHARE,
        sure=True,
        rerank="prompt",
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
    return [_item(hit, own) for hit in hits[:most]]


def _settings(turn: Turn) -> RecallSettings:
    return turn.request.voice.recalls.get("conversation", _DEFAULT)


def _sent_from(turn: Turn) -> int | None:
    """From which `seq` on the session itself is in the prompt, so that there is nothing to look up; None: it is not known here."""
    if turn.plan is not None and turn.session.messages == len(turn.plan.append):
        return 0
    warm = turn.engine.warm.get(turn.request.ref)
    return warm.saved if warm is not None and warm.key == turn.key else None


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
    injected = {item.id: item for item in built.recalled.items} if built and built.recalled else {}
    whole = {id_ for id_, item in injected.items() if not item.cut and item.span is None}
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
        leave_out=lambda session, seq: (session == own and seq in sent) or f"{session}#{seq}" in whole,
    )
    held = Held(sent, [message.text for message in built.messages] if built else ())
    new = [
        hit
        for hit in results.hits
        if (hit.id not in injected or hit.snippet not in injected[hit.id].text)
        and not held.has(msgspec.structs.replace(_item(hit, own), text=hit.snippet.strip("… \n")))
    ]
    return [Found(hit.session_id, moment(hit.timestamp), _author(hit), hit.snippet) for hit in new]
