"""How a transcript or a delta that somebody sent relates to a session's log (DESIGN.md, section 6). Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from holdfast.messages import GENESIS, Message, canonical, chain
from holdfast.session import Entry, Vertebra

Mode = Literal["auto", "transcript", "delta"]
Relation = Literal["new", "continued", "edited", "regenerated", "delta", "replayed", "replaced"]


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What a request's messages do to the log (DESIGN.md, section 6)."""

    relation: Relation
    append: tuple[Message, ...] = ()
    retire_from: int | None = None
    """The first live `seq` that is retired, with all after it; None: nothing is."""


def mode_of(incoming: Iterable[Message], mode: Mode) -> Literal["transcript", "delta"]:
    """How `incoming` is to be read: without an assistant message it is a delta, unless the request decides."""
    if mode != "auto":
        return mode
    return "transcript" if any(message.role == "assistant" for message in incoming) else "delta"


def reconcile_delta(last: Sequence[Entry], incoming: Sequence[Message]) -> Plan:
    """Plan for messages that come after the log, even where they equal old ones.

    A log that ends in just these messages, unanswered, has them already: the client tries again.

    Args:
        last: the last `len(incoming)` live entries, in order; fewer where the log has fewer.
        incoming: the request's messages without the leading system messages.
    """
    unanswered = bool(incoming) and incoming[-1].role != "assistant" and len(last) == len(incoming)
    if unanswered and all(canonical(e.message) == canonical(sent) for e, sent in zip(last, incoming, strict=True)):
        return Plan("replayed")
    return Plan("delta" if last else "new", tuple(incoming))


def reconcile_transcript(spine: Sequence[Vertebra], incoming: Sequence[Message]) -> Plan:
    """Plan for a history that a client resent, with or without its tool messages, perhaps edited.

    Visible messages are walked side by side; stored tool messages inside what is common stay, the client's copies of
    them are not doubled. At the first difference the stored history ends and the rest of the incoming one follows.
    """
    stored_at, incoming_at = _common(spine, incoming)
    if stored_at == 0 and spine:
        return Plan("replaced", tuple(incoming), retire_from=spine[0].seq) if incoming else Plan("replayed")
    rest = tuple(incoming[incoming_at:])
    retired = spine[_kept(spine, stored_at, rest) :]
    if not retired:
        return Plan(("continued" if spine else "new") if rest else "replayed", rest)
    return Plan("edited" if rest else "regenerated", rest, retire_from=retired[0].seq)


def _common(spine: Sequence[Vertebra], incoming: Sequence[Message]) -> tuple[int, int]:
    """How far both sides go together: indexes after the last message they share."""
    stored_at = incoming_at = 0
    digest = GENESIS
    stored = [(at, entry) for at, entry in enumerate(spine) if entry.visible]
    sent = [(at, message) for at, message in enumerate(incoming) if message.visible]
    for (s, entry), (i, message) in zip(stored, sent, strict=False):
        following = chain(digest, message)
        if following != entry.digest:
            break
        digest, stored_at, incoming_at = following, s + 1, i + 1
    return _aligned_tools(spine, incoming, stored_at, incoming_at, digest)


def _aligned_tools(
    spine: Sequence[Vertebra], incoming: Sequence[Message], stored_at: int, incoming_at: int, digest: bytes
) -> tuple[int, int]:
    """Go on over tool messages that both sides have behind the last visible message they share."""
    while (
        stored_at < len(spine)
        and incoming_at < len(incoming)
        and not spine[stored_at].visible
        and not incoming[incoming_at].visible
        and spine[stored_at].digest == chain(digest, incoming[incoming_at])
    ):
        stored_at, incoming_at = stored_at + 1, incoming_at + 1
    return stored_at, incoming_at


def _kept(spine: Sequence[Vertebra], stored_at: int, rest: Sequence[Message]) -> int:
    """Index of the first stored entry that goes: tool messages behind the common part stay, unless `rest` has its own."""
    if rest and not rest[0].visible:
        return stored_at
    while stored_at < len(spine) and not spine[stored_at].visible:
        stored_at += 1
    return stored_at
