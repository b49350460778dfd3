"""Messages that a provider refuses: found out, left out of its prompts, and noted in the log.

A provider answers 400 to a whole prompt because of one message: a broken image, a part that it does not know. If its error
names the message, or one call without the likeliest one succeeds, that message is left out of prompts for this upstream until
it is lifted by hand. The current user message is never left out: then the client gets the error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.domain.messages import TEXT_PARTS
from holdfast.domain.refusals import refusals_of
from holdfast.domain.session import Entry
from holdfast.errors import HoldfastError, ModelError, ModelRejected
from holdfast.limits import REFUSED_A_TURN
from holdfast.turns.prompting import build_prompt, sendable
from holdfast.turns.turn import Turn
from holdfast.turns.turn_warnings import TurnWarning
from holdfast.wire.anthropic import owners
from holdfast.wire.media import FROM_RESULT

_log = logging.getLogger("holdfast.models")
_STATUS: Final = frozenset({400, 415, 422})
_SCANNED: Final = 4_000
"""Characters of an error that are searched for the name of a message."""
_NAMED: Final = re.compile(r"\bmessages(?:\.?\[|\.|', ?)(\d{1,6})\]?(?:[.\]', ]+content(?:\.?\[|\.|', ?)(\d{1,6}))?")
"""`messages[3]` and `messages.[3].content.[0]` (OpenAI), `messages.3.content.0` (Anthropic), `'messages', 3, 'content'` (vLLM)."""
_OF_MESSAGES: Final = re.compile(
    r"message|content|image|audio|video|media|document|pdf|\bfile|base64|mime|decod|\burl\b|\bparts?\b|\brole\b|filter|moderat",
    re.IGNORECASE,
)
_OF_OTHERS: Final = re.compile(
    r"\b(?:tools?|functions?|schema|tool_choice|temperature|top_p|max_\w*tokens|stop|stream|response_format|logprobs|api.?key"
    r"|credits?|quota|billing|rate.limit|parameters?|context.length|thinking)\b",
    re.IGNORECASE,
)
_CODE: Final = re.compile(r"[a-z0-9_.-]{3,60}", re.IGNORECASE)


class Suspect(msgspec.Struct, frozen=True):
    """A message that a call is made without."""

    seq: int
    reason: str
    named: bool
    """Whether the error named it; else this call is the turn's one probe."""


class Refusals:
    """What one turn has found out about refused messages."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._suspect: Suspect | None = None
        self._misnamed: set[int] = set()
        """Messages that errors named, though they were left out already."""

    async def is_sent_without(self, error: ModelError) -> bool:
        """Return True if the prompt is built again without the message that `error` is about.

        False where it is about something else, about the current user message, or a probe was made already.
        """
        turn = self._turn
        probed, self._suspect = self._suspect, None
        if probed is not None and not probed.named:
            turn.without[turn.request.voice.llm.name].pop(probed.seq, None)  # the probe did not help
        left_out = turn.without.setdefault(turn.request.voice.llm.name, {})
        if not isinstance(error, ModelRejected) or error.status not in _STATUS or len(left_out) >= REFUSED_A_TURN:
            return False
        suspect = await self._suspected(error)
        if suspect is not None and suspect.named and (suspect.seq in left_out or suspect.seq in self._misnamed):
            self._misnamed.add(suspect.seq)  # a router numbers messages otherwise
            left_out.pop(suspect.seq, None)
            suspect = await self._guess_suspect(error)
        if suspect is None or (turn.probed and not suspect.named):
            return False
        turn.probed = turn.probed or not suspect.named
        left_out[suspect.seq] = suspect.reason
        self._suspect = suspect
        await build_prompt(turn)
        return True

    async def confirm(self) -> None:
        """Note the message in the log, because the call without it was answered. Never fails."""
        suspect, self._suspect = self._suspect, None
        if suspect is None:
            return
        turn, name = self._turn, self._turn.request.voice.llm.name
        for seq, reason in turn.without[name].items():
            try:
                await self._note(seq, name, reason)
            except HoldfastError as exc:
                _log.warning("message %d of session %r: its refusal is not noted: %s", seq, turn.request.ref.id, exc)

    async def _note(self, seq: int, upstream: str, reason: str) -> None:
        turn = self._turn
        ref, store = turn.request.ref, turn.engine.store
        found = await store.entries(ref, start=seq, stop=seq + 1)
        known = refusals_of(found[0].metadata) if found else {}
        if not found or upstream in known:
            return
        await store.annotate(ref, seq, refused_by={**known, upstream: reason})
        turn.engine.warm.forget(ref)
        message = (
            f"message {seq} is left out of prompts for {upstream}: the provider refused it ({reason}). "
            f"It stays in the log; set its refused_by to [] to send it again."
        )
        turn.warnings.add(TurnWarning("message_left_out", message))

    async def _suspected(self, error: ModelRejected) -> Suspect | None:
        built = self._turn.working_set
        assert built is not None, "a prompt was refused"
        text, reason = _words(error), _reason(error)
        current = built.window.current
        if (found := _NAMED.search(text)) is not None:
            places = await self._places(int(found[1]), None if found[2] is None else int(found[2]))
            seqs = built.seqs()
            named = {seq for at in places if at < len(seqs) and (seq := seqs[at]) is not None}
            if len(named) == 1:
                (only,) = named
                return None if only == current else Suspect(only, reason, named=True)
        return await self._guess_suspect(error)

    async def _guess_suspect(self, error: ModelRejected) -> Suspect | None:
        """Return the message that a probe leaves out; None if the error is about something else."""
        seq = await self._likeliest() if _is_about_messages(error, _words(error)) else None
        return None if seq is None else Suspect(seq, _reason(error), named=False)

    async def _places(self, at: int, block: int | None) -> Sequence[int]:
        """Return which messages of the working set the upstream's message `at` was made of."""
        turn = self._turn
        built, llm = turn.working_set, turn.request.voice.llm
        assert built is not None, "a prompt was refused"
        if llm.dialect == "anthropic":
            made = owners(built.messages)
            if at >= len(made):
                return ()
            return made[at] if block is None or block >= len(made[at]) else made[at][block : block + 1]
        own = -1
        for place, message in enumerate(await sendable(turn.engine, turn.request.ref, llm, built)):
            own += not _is_moved(message)
            if place == at:
                return (own,)
        return ()

    async def _likeliest(self) -> int | None:
        """Return a suspicious message since the last prompt that was answered, media and unknown parts first.

        That is the oldest, if no user message came after them. A turn whose probe does not help adds one, so the next turn tries another.
        """
        turn = self._turn
        built = turn.working_set
        assert built is not None, "a prompt was refused"
        calls = await turn.engine.store.calls(turn.request.ref, limit=1)
        through = calls[0].through if calls else -1
        left = {seq for seq in built.seqs() if seq is not None} - built.refused.keys() - {built.window.current}
        units = (*built.window.head, *built.window.units)
        new = [entry for unit in units for entry in unit.entries if entry.seq in left and entry.seq > through]
        odd = [entry for entry in new if _is_odd(entry)]
        given = [entry for entry in new if entry.message.role != "assistant"]  # not what the model said itself
        found = odd or (given if calls else [])
        tried = sum(entry.seq > odd[-1].seq and entry.message.role == "user" for entry in new) if odd else 0
        return found[tried % len(found)].seq if found else None


def _is_odd(entry: Entry) -> bool:
    """Return True for a message with anything but text and calls in it."""
    content = entry.message.content
    return isinstance(content, tuple) and any(part.type not in TEXT_PARTS for part in content)


def _is_moved(message: dict[str, Any]) -> bool:
    """Return True for the media of tool results that are sent as a message of their own."""
    content = message.get("content")
    first = content[0] if message["role"] == "user" and isinstance(content, list) and content else {}
    return str(first.get("text", "")).startswith(FROM_RESULT.partition("{")[0])


def _words(error: ModelError) -> str:
    body = msgspec.json.encode(error.body).decode() if error.body else ""
    param = error.body.get("param") if error.body else None
    return f"{param or ''} {str(error)[:_SCANNED]} {body[:_SCANNED]}"


def _reason(error: ModelError) -> str:
    """Return the status and the error's code: the upstream's own words may quote the message or name its address."""
    labels = [error.body.get(key) for key in ("code", "type")] if error.body else []
    code = next((label for label in labels if isinstance(label, str) and _CODE.fullmatch(label)), None)
    return f"{error.status} {code}" if code else f"{error.status}"


def _is_about_messages(error: ModelError, text: str) -> bool:
    """Return True if the error is about what messages say, and not about tools, sampling, keys or money."""
    param = error.body.get("param") if error.body else None
    if (
        isinstance(param, str)
        and param
        and not re.match(r"messages|contents?|url|image|file|audio|input|prompt", param)
    ):
        return False
    return _OF_MESSAGES.search(text) is not None and _OF_OTHERS.search(text) is None
