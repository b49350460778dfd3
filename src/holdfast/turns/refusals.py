"""Heal a prompt that a provider refuses, as the last resort: profiles prevent refusals.

A provider may answer 400 to a whole prompt because of one part of a message, for example a broken image. If the error
names the part, a line of words replaces it in prompts for this upstream; if it names a whole message, a note replaces
the message. The log records the refusal, until a caller includes the message again. The current user message is never
left out: the client gets the error instead. If the error names a rule that the model's profile lacks, all later
requests for the model keep it; media that it does not take are described in words.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from holdfast.context.fitting import Sent, fit_messages
from holdfast.context.truncation import find_refused
from holdfast.domain.profiles import get_profile, list_changes
from holdfast.domain.refusals import Refusal, read_refusals
from holdfast.errors import ContextTooLong, HoldfastError, ModelError, ModelRejected
from holdfast.limits import REFUSED_A_TURN
from holdfast.models.base import ModelRequest
from holdfast.models.codecs.chat import encode_request
from holdfast.models.codecs.messages.blocks import find_part, map_blocks
from holdfast.models.codecs.responses.items import map_items
from holdfast.models.refusals import find_place, learn_media, learn_rule, read_reason, read_words
from holdfast.turns.prompt import build_prompt
from holdfast.turns.turn import Turn, TurnWarning

_log = logging.getLogger("holdfast.models")
_STATUS: Final = frozenset({400, 415, 422})
_UNREADABLE: Final = "invalid_encrypted_content"
"""Code with which OpenAI refuses an item that another service encrypted."""


class Refusals:
    """Leaves out the parts and messages because of which providers refused a turn's prompts, if their errors name them."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.request: ModelRequest | None = None
        """The request that was sent last."""
        self._new: set[int] = set()
        """`seq` of messages that were left out, or parts of them, without proof that it helped."""

    async def heal(self, error: ModelError) -> bool:
        """Build the prompt again without what an error names. Return True if that was done.

        Return False if the error names nothing, the current user message, or something that is left out already.
        """
        if self._learn(error):
            return True
        turn, name = self._turn, self._turn.request.responder.llm.name
        rejected = isinstance(error, ModelRejected) and error.status in _STATUS
        seq, part = self._find_named(error) if rejected else (None, None)
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

    # -- what the upstream accepts -------------------------------------------

    def _learn(self, error: ModelError) -> bool:
        """Learn from an error what the model does not accept, and return True if the next request is made otherwise."""
        turn, request, llm = self._turn, self.request, self._turn.request.responder.llm
        assert request is not None, "a request was refused"
        assert request.profile is not None, "a turn's request has a profile"
        known, sent = request.profile, [message for message, _ in self._list_sent()]
        found = None
        if self._is_fitted and isinstance(error, ModelRejected) and not isinstance(error, ContextTooLong):
            found = learn_rule(known, sent, error)
            if found is not None and encode_request(request, found) == encode_request(request, known):
                found = None
        is_rule, found = found is not None, found or learn_media(known, sent, error)
        if found is None or not turn.roster.find_upstream(llm).learn(
            llm.model, known, found, read_reason(error), turn.engine.clock()
        ):
            return False
        changes = list_changes(found, known)
        if is_rule:
            _log.warning("%s refused a request; learned: %s", llm.name, changes)
        else:
            about = f"{llm.name} refused media of the prompt ({read_reason(error)}): they are described in words, because it"
            turn.warnings.add(TurnWarning("media_described", f"{about} {changes}"))
        return True

    @property
    def _is_fitted(self) -> bool:
        """True if requests are made to fit a profile, which is so for upstreams with Chat Completions."""
        llm = self._turn.request.responder.llm
        return llm.dialect == "openai" and not llm.hosts_tools and get_profile(llm.client) is not None

    def _list_sent(self) -> list[Sent]:
        """Return the messages of the request as they are sent to an upstream with Chat Completions."""
        assert self.request is not None, "a request was refused"
        profile = self.request.profile if self._is_fitted else None
        return fit_messages(self.request.messages, profile, self._turn.request.responder.llm.model)

    # -- names -------------------------------------------------------------

    def _find_named(self, error: ModelError) -> tuple[int | None, int | None]:
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
        at, part = self._find_source(*place) if place else (None, None)
        seq = seqs[at] if at is not None and at < len(seqs) else None
        return (None, None) if seq is None or seq == built.window.current else (seq, part)

    def _find_source(self, at: int, *blocks: int) -> tuple[int | None, int | None]:
        """Return the index in the working set of the upstream's message number `at`, and the index of the part that `blocks` name."""
        built, llm, request = self._turn.working_set, self._turn.request.responder.llm, self.request
        assert built is not None, "a prompt was refused"
        assert request is not None, "a request was refused"
        if llm.dialect == "anthropic":
            made = map_blocks(built.messages)
            sources = made[at] if at < len(made) else []
            if not blocks or blocks[0] >= len(sources):
                return _get_only(sources), None
            own = sources[blocks[0]]
            return own, find_part(built.messages[own], blocks[0] - sources.index(own), *blocks[1:2])
        sent = self._list_sent()
        if llm.hosts_tools:
            items = map_items([message for message, _ in sent], getattr(llm.client, "origin", ""))
            sent = [sent[item] for item in items]
        if at >= len(sent):
            return None, None
        message, own_sources = sent[at]
        content = message.content if isinstance(message.content, tuple) else ()
        number = (
            blocks[0] - bool(llm.hosts_tools and message.name) if blocks else -1
        )  # there, a name is a part of its own
        named = content[number] if 0 <= number < len(content) else None
        for own in own_sources:
            before, after = built.messages[own].content, request.messages[own].content
            for place, part in enumerate(after if isinstance(after, tuple) else ()):
                if part is named:
                    is_same = isinstance(before, tuple) and len(before) == len(after or ())
                    return own, place if is_same else None
        return _get_only(own_sources), None


def _get_only(places: Sequence[int]) -> int | None:
    return places[0] if len({*places}) == 1 else None
