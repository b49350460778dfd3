"""Find the log entries from which each message of a working set was made, so that callers can send their own message objects instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.context.build import WorkingSet

SourceKind = Literal["system", "introduction", "entry", "facts", "summary", "digest", "recalled", "added"]
"""Kind of a message in a working set:

- `system`: a system message before the conversation.
- `introduction`: memories of the user, sent after the system prompt.
- `entry`: the message of a log entry.
- `facts`: earlier statements of the user.
- `summary`, `digest`: the text that replaces a range of the log.
- `recalled`: passages found by search.
- `added`: a message that Holdfast adds because the provider requires it, for example a result for a call that has none.
"""


class MessageSource(msgspec.Struct, frozen=True, gc=False):
    """The source of one message of a working set."""

    kind: SourceKind
    seqs: Sequence[int] = ()
    """`seq` of the entries that the message comes from, in order. For `facts`, `summary` and `digest`: the range of entries
    that the message replaces. For `recalled`: the entries of this session only."""
    verbatim: bool = False
    """True if the message is exactly that of the entry in the log: not cut, cleared, quoted or adapted to a provider."""


def list_message_sources(built: WorkingSet) -> list[MessageSource]:
    """Return the source of each of `built.messages`.

    The sources are computed from the view at each call: call this before the view is updated again.
    """
    window = built.window
    introduction = built.request.introduction
    entries = {entry.seq: entry for unit in (*window.head, *window.units) for entry in unit.entries}
    compactions = [one for one in (window.facts, window.summary, window.compaction) if one]
    leading = len(built.request.list_leading_messages())
    sources = []
    for at, (message, seq) in enumerate(zip(built.messages, built.list_seqs(), strict=True)):
        if built.recalled is not None and message is built.recalled.message:
            own = dict.fromkeys(seq for seq, *_ in built.recalled.passages)
            sources.append(MessageSource("recalled", tuple(own)))
        elif seq is not None:
            entry = entries.get(seq)
            verbatim = entry is not None and (message is entry.message or message == entry.message)
            sources.append(MessageSource("entry", (seq,), verbatim))
        elif at < leading:
            known = introduction is not None and message is introduction.message
            sources.append(MessageSource("introduction" if known else "system"))
        elif compactions and message.content == compactions[0].text:
            found = compactions.pop(0)
            sources.append(MessageSource(found.kind, range(found.first, found.last + 1)))
        else:
            sources.append(MessageSource("added"))
    return sources


def join_sources(sources: Sequence[MessageSource], groups: Sequence[Sequence[int]]) -> list[MessageSource]:
    """Return the sources of messages that are made from one or several messages.

    A message whose content was divided among several messages is not sent verbatim.

    Args:
        sources: the source of each message before.
        groups: for each new message, the indexes in `sources` of the messages that it is made from.
    """
    uses = Counter(at for group in groups for at in set(group))
    parts = [one if uses[at] < 2 else msgspec.structs.replace(one, verbatim=False) for at, one in enumerate(sources)]
    return [_join([parts[at] for at in dict.fromkeys(group)]) for group in groups]


def _join(sources: Sequence[MessageSource]) -> MessageSource:
    if len(sources) == 1:
        return sources[0]
    kinds = dict.fromkeys(one.kind for one in sources if one.kind != "added")
    kind: SourceKind = "entry" if "entry" in kinds else next(iter(kinds), "added")
    return MessageSource(kind, tuple(dict.fromkeys(seq for one in sources if one.kind == kind for seq in one.seqs)))
