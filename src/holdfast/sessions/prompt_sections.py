"""Divide a prompt into sections with their tokens, and compare it with the prompt of an earlier call.

The sections of the prompt and the tokens that stay free add up to the model's context window, so that they can be drawn as one bar.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from holdfast.context.parts import PromptRecord, SentMessage, ShownPrompt
from holdfast.context.prefix_diff import Prefix
from holdfast.context.presence import name_block
from holdfast.domain.counting import TokenCounter
from holdfast.domain.media.parts import show_to_model
from holdfast.domain.messages import Message
from holdfast.wire.openai import to_chat_message

SectionName = Literal[
    "system",
    "tools",
    "introduction",
    "task",
    "facts",
    "summary",
    "digest",
    "pins",
    "head",
    "tail",
    "recalled",
    "current",
    "added",
    "free",
    "unused",
    "tool_results",
    "safety",
    "reply",
]
"""Name of a section of the context window, in the order in which they are shown.

- `system`: the system prompt, and system messages of the log that are in force. `tools`: schemas of the tools.
- `introduction`: memories of the user. `task`: the user's first message.
- `facts`, `summary`, `digest`: texts that replace older messages.
- `pins`, `head`, `tail`: pinned messages, older messages chosen by the strategy, the newest messages.
- `recalled`: passages found by search. `current`: the current user message.
- `added`: what Holdfast or the provider adds because the format requires it.
- `free`: what the conversation may still take. `unused`: the rest of the input, which the strategy does not use.
- `tool_results`, `safety`, `reply`: reserves for results of tools, for counting errors, and for the reply.
"""
_ORDER: Final[Mapping[str, int]] = {name: at for at, name in enumerate(SectionName.__args__)}  # type: ignore[attr-defined]
FREE: Final = frozenset({"free", "unused", "tool_results", "safety", "reply"})
"""Sections that are not part of the prompt."""


class PromptSection(msgspec.Struct, frozen=True, gc=False):
    """A part of the context window."""

    name: SectionName
    tokens: int
    messages: int = 0
    """Number of messages of the prompt in this section."""


class PromptMessage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One message of a prompt."""

    section: SectionName
    kind: str
    """`entry` for a message of the log; otherwise the name of the block that Holdfast wrote."""
    seqs: tuple[int, ...]
    """First and last `seq` of the log entries that the message comes from; empty if there are none."""
    verbatim: bool
    """True if the message is an exact copy of that of the log."""
    tokens: int
    message: dict[str, Any]
    """The message in the format of Chat Completions, without media data."""


class DividedPrompt(NamedTuple):
    """A prompt with the section of each message."""

    messages: tuple[PromptMessage, ...]
    sections: tuple[PromptSection, ...]
    """Sections of the prompt and of the space that it leaves free, in order. Sections without tokens are left out."""


def divide_prompt(prompt: ShownPrompt, count: TokenCounter) -> DividedPrompt:
    """Divide a prompt into sections.

    Args:
        prompt: the prompt.
        count: counts the tokens of single messages.
    """
    record = prompt.record
    messages = tuple(_show_message(record, one, count) for one in prompt.messages)
    tokens: dict[SectionName, int] = {"tools": record.overhead[1], "added": record.overhead[3]}
    for one in messages:
        tokens[one.section] = tokens.get(one.section, 0) + one.tokens
    tokens |= _divide_rest(record, sum(tokens.values()))
    counts = Counter(one.section for one in messages)
    sections = [PromptSection(name, size, counts[name]) for name, size in tokens.items() if size]
    return DividedPrompt(messages, tuple(sorted(sections, key=lambda section: _ORDER[section.name])))


def _show_message(record: PromptRecord, one: SentMessage, count: TokenCounter) -> PromptMessage:
    message, part, seq = one
    if seq is None:
        seqs: tuple[int, ...] = (part.first, part.last) if part.first >= 0 else ()
    else:
        seqs = (seq, seq)
    return PromptMessage(
        section=cast("SectionName", part.kind if seq is None else name_block(record, part, seq)),
        kind=part.kind if seq is None else "entry",
        seqs=seqs,
        verbatim=seq is not None and not part.texts,
        tokens=count.message(message),
        message=to_chat_message(drop_media(message)),
    )


def drop_media(message: Message) -> Message:
    """Return the message with a description in place of each medium, which may be large."""
    return show_to_model(message, ()) if message.media else message


def _divide_rest(record: PromptRecord, used: int) -> dict[SectionName, int]:
    """Divide the part of the context window that a prompt does not take.

    Args:
        record: the record of the prompt.
        used: tokens of the prompt.
    """
    left = max(0, record.input_budget - used)
    free = max(0, min(record.limit - record.tokens, left))
    rest: dict[SectionName, int] = {"free": free, "unused": left - free}
    if not record.reserves:
        return rest
    window, *sizes = record.reserves
    spare = max(0, window - max(record.input_budget, used))
    for name, size in zip(("reply", "safety", "tool_results"), reversed(sizes), strict=True):
        rest[cast("SectionName", name)] = min(spare, size)
        spare -= min(spare, size)
    rest["unused"] += spare
    return rest


# -- comparing two prompts -------------------------------------------------------


class PromptChange(msgspec.Struct, frozen=True, gc=False):
    """A message that differs between two prompts."""

    kind: Literal["added", "removed", "changed"]
    section: SectionName
    """Section of the message, in the later prompt if it is there."""
    seqs: tuple[int, ...]
    """First and last `seq` of the log entries that the message comes from; empty if there are none."""
    tokens: int
    """Tokens of the message, in the later prompt if it is there."""
    index: int
    """Index of the message, in the later prompt if it is there."""


class PromptDifference(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The difference between a prompt and the one before."""

    common: int
    """Number of messages at the beginning that both prompts have in common. A provider's cache can reuse these."""
    before: int
    """Number of messages of the earlier prompt."""
    common_tokens: int
    """Tokens of the common messages."""
    added: int
    removed: int
    changed: int
    """`added`, `removed` and `changed` are numbers of messages."""
    changes: tuple[PromptChange, ...]
    """The differences: first those of the later prompt in its order, then removed messages. At most the requested number."""


def find_prefix(before: ShownPrompt | None, now: ShownPrompt) -> Prefix:
    """Return the common prefix of a prompt and the one before."""
    if before is None:
        return Prefix(0, None)
    pairs = zip(before.messages, now.messages, strict=False)
    common = next((at for at, (old, new) in enumerate(pairs) if old.message != new.message), None)
    shorter = min(len(before.messages), len(now.messages))
    return Prefix(shorter if common is None else common, len(before.messages))


def compare_prompts(
    before: ShownPrompt, now: ShownPrompt, messages: Sequence[PromptMessage], count: TokenCounter, *, limit: int
) -> PromptDifference:
    """Compare two prompts. Messages with the same origin are the same message, which may have changed.

    Args:
        before: the earlier prompt.
        now: the later prompt.
        messages: the messages of the later prompt.
        count: counts the tokens of single messages.
        limit: maximum number of changes to return.
    """
    earlier = divide_prompt(before, count).messages
    old, new = dict(_iter_keys(earlier)), dict(_iter_keys(messages))
    changes = [
        _describe_change("changed" if key in old else "added", messages, at)
        for key, at in new.items()
        if key not in old or before.messages[old[key]].message != now.messages[at].message
    ]
    changes += [_describe_change("removed", earlier, at) for key, at in old.items() if key not in new]
    counts = Counter(change.kind for change in changes)
    common = find_prefix(before, now).messages
    return PromptDifference(
        common=common,
        before=len(earlier),
        common_tokens=sum(one.tokens for one in messages[:common]),
        added=counts["added"],
        removed=counts["removed"],
        changed=counts["changed"],
        changes=tuple(changes[:limit]),
    )


def _iter_keys(messages: Sequence[PromptMessage]) -> Iterator[tuple[tuple[str, int, int], int]]:
    """Yield a key that identifies the origin of each message, with the message's index."""
    seen = Counter[tuple[str, int]]()
    for at, one in enumerate(messages):
        key = (one.kind, one.seqs[0] if one.kind == "entry" else -1)
        yield (*key, seen[key]), at
        seen[key] += 1


def _describe_change(
    kind: Literal["added", "removed", "changed"], messages: Sequence[PromptMessage], at: int
) -> PromptChange:
    one = messages[at]
    return PromptChange(kind, one.section, one.seqs, one.tokens, at)
