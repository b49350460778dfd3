"""The REST API for voice agents: what was said, as records; what of a reply was heard; something said from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.domain.heard import HEARD, heard_from
from holdfast.domain.session import Entry, Session
from holdfast.errors import InvalidRequest
from holdfast.media.leaving import whole_entries
from holdfast.server.fields import check_fields
from holdfast.server.http import Call
from holdfast.server.replies import Reply, tagged
from holdfast.sessions.history import history as told_history
from holdfast.sessions.interrupting import interrupted
from holdfast.sessions.speaking import Speech, spoken
from holdfast.wire.openai import entry_to
from holdfast.wire.voice import attributed, plain

_encode = msgspec.json.Encoder().encode
_SPEECH = ("text", "priority", "source", "interruptable")


async def history(call: Call) -> Reply:
    """What user and assistant said: as voice records, or role and content alone.

    No system messages, no tools; what was said beside tool calls is among it.
    """
    session = await call.session(shared=True)
    as_records = call.choice("view", "voice", "voice", "plain") == "voice"

    def told(entries: Sequence[Entry]) -> list[msgspec.Raw]:
        items: Sequence[dict[str, Any]] = attributed(entries, session.agent) if as_records else plain(entries)
        return [msgspec.Raw(_encode(item)) for item in items]

    found = await told_history(call.hf.store, session.ref, told)
    return Reply({"contents" if as_records else "messages": found})


async def interrupt(call: Call) -> Reply:
    """Stop the session's turn if one runs, and keep of its last reply what was heard.

    That is `content`, or its first `chars` characters, or what was spoken in `ms` milliseconds: of `total_ms` that the whole
    would have taken, else at 15 characters a second, to the end of a word. Without any of them all that there is was heard.
    What was delivered stands in the reply's place then, marked, in its turn, with what was generated as `original`; what came
    behind it follows, and tool calls that were cut are dropped. Of a reply of which nothing was heard nothing stays. Of one that
    was heard to its end, all does: `interrupted` is false. A second interruption can only shorten.
    """
    body = await call.body()
    check_fields(body, *HEARD)
    heard = heard_from({name: body.get(name) for name in HEARD})
    session = await call.session()
    done = await interrupted(call.hf.engine, session.ref, heard)
    said = {"interrupted": done.interrupted, "stopped": done.stopped}
    return await _reply(call, "interruption", done.session, done.entry, said)


async def speak(call: Call) -> Reply:
    """Have the agent say something from outside, in a turn of its own.

    While a turn of the session runs, `INTERRUPT` stops it first, `APPEND` waits for it, and `IGNORE` says nothing: then `spoken`
    is false. Without a `text` the agent's own `greeting` or `silence_message` is said, by its `source`.
    """
    body = await call.body()
    check_fields(body, *_SPEECH)
    speech = _speech({name: body[name] for name in _SPEECH if body.get(name) is not None})
    speech.check_size(call.most_speech)
    session = await call.session()
    done = await spoken(call.hf.engine, session.ref, call.hf.voice(session), speech)
    said = {"spoken": done.entry is not None, "stopped": done.stopped}
    return await _reply(call, "speech", done.session, done.entry, said)


def _speech(given: dict[str, Any]) -> Speech:
    for name in ("priority", "source"):
        if not isinstance(given.get(name, ""), str):
            raise InvalidRequest(f"{name} must be a string", param=name)
    return Speech(**given)


async def _reply(call: Call, kind: str, session: Session, entry: Entry | None, said: dict[str, Any]) -> Reply:
    """What became of a reply; `entry` as it stands in the log, or null."""
    whole = None if entry is None else (await whole_entries(call.hf.store, session.ref, [entry]))[0]
    told = {"object": kind, "session_id": session.id, "version": session.version, **said}
    shown = {**told, "entry": None if whole is None else entry_to(whole)}
    return Reply(shown, headers=tagged(session.version))
