"""Heal a prompt that a provider refuses, as the last resort: profiles prevent refusals.

A provider may answer 400 to a whole prompt because of one part of a message, for example a broken image. If the error
names the part, a line of words replaces it in prompts for this upstream; if it names a whole message, a note replaces
the message. The log records the refusal, until a caller includes the message again. The current user message is never
left out: the client gets the error instead. If the error names a kind or number of media, all later prompts for the
model describe such media in words.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.context.truncation import find_refused
from holdfast.domain.messages import Message, Part
from holdfast.domain.profiles import get_profile, list_changes
from holdfast.domain.refusals import Refusal, read_refusals
from holdfast.errors import HoldfastError, ModelError, ModelRejected
from holdfast.limits import REFUSED_A_TURN
from holdfast.models.codecs.responses.items import map_items
from holdfast.models.fitting import fit_messages
from holdfast.models.refusals import find_place, learn, read_reason, read_words
from holdfast.turns.prompt import build_prompt, to_sendable
from holdfast.turns.turn import Turn, TurnWarning
from holdfast.wire.anthropic import find_part, map_blocks
from holdfast.wire.openai import list_moved_media, parse_messages, to_chat_message

_log = logging.getLogger("holdfast.models")
_STATUS: Final = frozenset({400, 415, 422})
_UNREADABLE: Final = "invalid_encrypted_content"
"""Code with which OpenAI refuses an item that another service encrypted."""
_Sent = list[tuple[dict[str, Any], list[int]]]
"""Messages of a request, each with the indexes of the messages that it is made of."""


class Refusals:
    """Leaves out the parts and messages because of which providers refused a turn's prompts, if their errors name them."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._new: set[int] = set()
        """`seq` of messages that were left out, or parts of them, without proof that it helped."""

    async def heal(self, error: ModelError) -> bool:
        """Build the prompt again without what an error names. Return True if that was done.

        Return False if the error names nothing, the current user message, or something that is left out already.
        """
        if await self._learn_media(error):
            return True
        turn, name = self._turn, self._turn.request.responder.llm.name
        rejected = isinstance(error, ModelRejected) and error.status in _STATUS
        seq, part = await self._find_named(error) if rejected else (None, None)
        assert turn.working_set is not None, "a prompt was refused"
        left_out = turn.without.setdefault(name, {})
        known = find_refused(turn.working_set.window, name, left_out).get(seq) if seq is not None else None
        if seq is None or (known is not None and (not known.parts or part in known.parts)):
            self._new.clear()
            return False
        await self.confirm()  # the provider has found something else, so leaving out the rest has helped
        if sum(len(refusal.parts) or 1 for refusal in left_out.values()) >= REFUSED_A_TURN:
            return False
        parts = () if part is None else (*(known.parts if known else ()), part)
        left_out[seq] = Refusal(read_reason(error), parts)
        self._new.add(seq)
        await build_prompt(turn)
        return True

    @property
    def has_news(self) -> bool:
        """True if `confirm` has something to record."""
        return bool(self._new)

    async def confirm(self) -> None:
        """Record in the log what the model refused, because leaving it out has helped.

        An error while recording is only logged.
        """
        turn, name = self._turn, self._turn.request.responder.llm.name
        left_out = turn.without.get(name, {})
        for seq in sorted(self._new & left_out.keys()):
            try:
                await self._record_refusal(seq, name, left_out[seq])
            except HoldfastError as exc:
                _log.warning(
                    "message %d of session %r: its refusal could not be recorded: %s", seq, turn.request.ref.id, exc
                )
        self._new.clear()

    async def _record_refusal(self, seq: int, upstream: str, refusal: Refusal) -> None:
        turn = self._turn
        ref, store = turn.request.ref, turn.engine.store
        found = await store.entries(ref, start=seq, stop=seq + 1)
        known = {**read_refusals(found[0].metadata)} if found else {}
        if not found or known.get(upstream) == refusal:
            return
        known[upstream] = refusal
        await store.annotate(ref, seq, refused_by={name: one.to_metadata() for name, one in known.items()})
        turn.engine.warm.forget(ref)
        what = f"message {seq} is" if not refusal.parts else f"a part of message {seq} is"
        message = (
            f"{what} left out of prompts for {upstream}: the provider refused it ({refusal.reason}). "
            f"It stays in the log; set its refused_by to [] to send it again."
        )
        turn.warnings.add(TurnWarning("message_left_out", message))

    # -- media -------------------------------------------------------------

    async def _learn_media(self, error: ModelError) -> bool:
        """Learn from an error which media the model does not take, and return True if the next prompt describes more of them in words."""
        turn, llm = self._turn, self._turn.request.responder.llm
        assert turn.working_set is not None, "a prompt was refused"
        if not any(message.media for message in turn.working_set.messages):
            return False
        now = turn.engine.clock()
        known = turn.roster.find_profile(llm, now)
        _, sent = await self._encode()
        found = learn(known, {"messages": [message for message, _ in sent]}, error)
        if found is None or not turn.roster.find_upstream(llm).learn(llm.model, known, found, now):
            return False
        learned = (
            f"{llm.name} refused media of the prompt ({read_reason(error)}): they are described in words, because it"
        )
        turn.warnings.add(TurnWarning("media_described", f"{learned} {list_changes(found, known)}"))
        return True

    async def _encode(self) -> tuple[list[dict[str, Any]], _Sent]:
        """Return the messages of the prompt in Chat Completions format, and as they are sent to an upstream with this API."""
        turn, llm = self._turn, self._turn.request.responder.llm
        assert turn.working_set is not None, "a prompt was refused"
        messages = await to_sendable(turn.engine, turn.request.ref, llm, turn.working_set)
        prepared = [*map(to_chat_message, messages)]
        profile = None if llm.hosts_tools or llm.dialect == "anthropic" else get_profile(llm.client)
        if profile is None:
            return prepared, [(message, [at]) for at, message in enumerate(prepared)]
        return prepared, fit_messages(prepared, profile, llm.model)

    # -- names -------------------------------------------------------------

    async def _find_named(self, error: ModelError) -> tuple[int | None, int | None]:
        """Return the `seq` of the message that an error names, and the index of the part in its content.

        The part is None if the error names the message as a whole, and both are None if it names none, several, or the
        current user message.
        """
        built = self._turn.working_set
        assert built is not None, "a prompt was refused"
        seqs, item = built.list_seqs(), built.window.compacting
        if item is not None and (error.body or {}).get("code") == _UNREADABLE:
            return item if item in seqs else None, None
        place = find_place(read_words(error))
        at, part = await self._find_source(*place) if place else (None, None)
        seq = seqs[at] if at is not None and at < len(seqs) else None
        return (None, None) if seq is None or seq == built.window.current else (seq, part)

    async def _find_source(self, at: int, *blocks: int) -> tuple[int | None, int | None]:
        """Return the index in the working set of the upstream's message number `at`, and the index of the part that `blocks` name."""
        turn = self._turn
        built, llm = turn.working_set, turn.request.responder.llm
        assert built is not None, "a prompt was refused"
        if llm.dialect == "anthropic":
            made = map_blocks(built.messages)
            sources = made[at] if at < len(made) else []
            if not blocks or blocks[0] >= len(sources):
                return _get_only(sources), None
            own = sources[blocks[0]]
            return own, find_part(built.messages[own], blocks[0] - sources.index(own), *blocks[1:2])
        prepared, sent = await self._encode()
        if llm.hosts_tools:
            items = map_items(parse_messages(prepared), getattr(llm.client, "origin", ""))
            sent = [(prepared[item], [item]) for item in items]
        if at >= len(sent):
            return None, None
        message, sources = sent[at]
        number = (
            blocks[0] - (llm.hosts_tools and "name" in message) if blocks else -1
        )  # there, a name is a part of its own
        source, part = _find_part(message, {one: prepared[one] for one in sources}, number)
        if source is None:
            return None, None
        places = list_moved_media(prepared)[source]
        if built.messages[places[0]].role == "tool" != prepared[source]["role"]:
            return _find_moved(built.messages, places, prepared[source]["content"], part)
        content = built.messages[places[0]].content
        is_same = isinstance(content, tuple) and len(content) == len(prepared[source]["content"])
        return places[0], part if is_same else None


def _find_part(
    message: Mapping[str, Any], sources: Mapping[int, Mapping[str, Any]], number: int
) -> tuple[int | None, int | None]:
    """Return the source of part `number` of a sent message, and the index of the part in the source; None if they are not known.

    Neighbours that were merged for an upstream still consist of the same parts.
    """
    content = message.get("content")
    named = content[number] if isinstance(content, list) and 0 <= number < len(content) else None
    for at, source in sources.items():
        for place, part in enumerate(source["content"] if isinstance(source.get("content"), list) else ()):
            if part is named:
                return at, place
    return _get_only([*sources]), None


def _find_moved(
    messages: Sequence[Message], results: Sequence[int], content: Sequence[Mapping[str, Any]], part: int | None
) -> tuple[int | None, int | None]:
    """Return the tool result that part `part` of a message with moved media comes from, and the index of the part in the result."""
    labels = [at for at, one in enumerate(content[: part or 0]) if one.get("type") == "text"]
    if part is None or not labels:
        return _get_only(results), None
    own = results[len(labels) - 1]
    media = [at for at, one in enumerate(messages[own].content or ()) if isinstance(one, Part) and one.text is None]
    nth = part - labels[-1] - 1
    return own, media[nth] if nth < len(media) else None


def _get_only(places: Sequence[int]) -> int | None:
    return places[0] if len({*places}) == 1 else None
