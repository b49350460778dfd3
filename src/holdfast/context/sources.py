"""Find the log entries from which each message of a working set was made, so that callers can send their own message objects instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.context.parts import ShownPrompt

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
    seqs: tuple[int, ...] = ()
    """`seq` of the entries that the message comes from, in order. For `facts`, `summary` and `digest`: the range of entries
    that the message replaces. For `recalled`: the entries of this session only."""
    verbatim: bool = False
    """True if the message is exactly that of the entry in the log: not cut, cleared, quoted or adapted to a provider."""


def list_message_sources(prompt: ShownPrompt) -> list[MessageSource]:
    """Return the source of each message of a prompt."""
    sources = []
    for _, part, seq in prompt.messages:
        if seq is not None:
            sources.append(MessageSource("entry", (seq,), not part.texts))
        elif part.kind == "recalled":
            quoted = [text.first for text in prompt.list_lines(part) if text.source is None and text.first >= 0]
            sources.append(MessageSource("recalled", tuple(dict.fromkeys(quoted))))
        else:
            seqs = tuple(range(part.first, part.last + 1)) if part.first >= 0 else ()
            sources.append(MessageSource(part.kind, seqs))  # type: ignore[arg-type]
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
