"""Divide a prompt into sections with their tokens, and compare it with the prompt of an earlier call.

The sections of the prompt and the tokens that stay free add up to the model's context window, so that they can be drawn as one bar.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from holdfast.context.build import PRIMING, WorkingSet
from holdfast.context.explain import BuildRecord
from holdfast.context.presence import map_blocks
from holdfast.context.sources import MessageSource, list_message_sources
from holdfast.domain.budget import Budget
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry

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
    "other",
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
- `other`: tokens of a recorded call whose sections are not known.
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


class PromptPart(NamedTuple):
    """One message of a prompt, with the section that it belongs to."""

    message: Message
    section: SectionName
    source: MessageSource
    tokens: int


class DividedPrompt(NamedTuple):
    """A prompt with the section of each message."""

    parts: tuple[PromptPart, ...]
    sections: tuple[PromptSection, ...]
    """Sections of the prompt and of the space that it leaves free, in order. Sections without tokens are left out."""


def divide_prompt(built: WorkingSet, record: BuildRecord | None = None) -> DividedPrompt:
    """Divide a prompt into sections.

    The result depends on the state of the view, so call this before the view is updated again.

    Args:
        built: the prompt.
        record: the record of the model call whose prompt was rebuilt; None: the prompt was not sent. The tools of a past call are not
            recorded, so their tokens are what the other parts leave of the recorded overhead.
    """
    blocks = map_blocks(built.window)
    sources = list_message_sources(built)
    parts = tuple(
        PromptPart(message, _choose_section(source, blocks), source, _count(built, message, entry))
        for message, source, entry in zip(built.messages, sources, built.list_sources(), strict=True)
    )
    tools = built.overhead.tools
    if record is not None:
        tools = max(0, record.overhead - built.overhead + tools)
    tokens: dict[SectionName, int] = {"tools": tools, "added": PRIMING}
    for part in parts:
        tokens[part.section] = tokens.get(part.section, 0) + part.tokens
    input_budget = built.request.input_budget if record is None else record.input_budget
    free = divide_rest(input_budget, sum(tokens.values()), built.budget - built.tokens, built.request.budget)
    return DividedPrompt(parts, _sort({**tokens, **free}, Counter(part.section for part in parts)))


def divide_record(record: BuildRecord, total: int) -> tuple[PromptSection, ...]:
    """Divide the prompt of a call that is not rebuilt, as far as its record knows the sections.

    Args:
        record: the record of the call.
        total: tokens of the whole prompt.
    """
    known: dict[SectionName, int] = {"recalled": record.recalled_tokens}
    known["other"] = max(0, total - record.recalled_tokens)
    conversation = total - record.overhead - record.recalled_tokens
    rest = divide_rest(record.input_budget, sum(known.values()), record.limit - conversation, None)
    return _sort({**known, **rest}, {"other": record.messages})


def divide_rest(input_budget: int, used: int, free: int, budget: Budget | None) -> dict[SectionName, int]:
    """Divide the part of the context window that a prompt does not take.

    Args:
        input_budget: maximum tokens of the prompt.
        used: tokens of the prompt.
        free: tokens that the conversation may still take.
        budget: division of the model's context window; None: unknown. Its reserves are converted to the tokens of Holdfast's counter.
    """
    left = max(0, input_budget - used)
    free = max(0, min(free, left))
    rest: dict[SectionName, int] = {"free": free, "unused": left - free}
    if budget is None:
        return rest
    reserves: tuple[tuple[SectionName, int], ...] = (
        ("reply", budget.max_reply_tokens),
        ("safety", budget.safety_headroom),
        ("tool_results", budget.tool_result_headroom),
    )
    spare = max(0, int(budget.context_window / budget.scale) - max(input_budget, used))
    for name, size in reserves:
        rest[name] = min(spare, int(size / budget.scale))
        spare -= rest[name]
    rest["unused"] += spare
    return rest


def _choose_section(source: MessageSource, blocks: Mapping[int, str]) -> SectionName:
    if source.kind == "entry":
        return blocks.get(source.seqs[0], "tail")  # type: ignore[return-value]
    return source.kind


def _count(built: WorkingSet, message: Message, entry: Entry | None) -> int:
    count = built.request.count
    if entry is not None and message is entry.message and count.exact and count.factor == 1.0 and not message.media:
        return entry.tokens
    return count.message(message)


def _sort(tokens: Mapping[SectionName, int], messages: Mapping[SectionName, int]) -> tuple[PromptSection, ...]:
    found = [PromptSection(name, size, messages.get(name, 0)) for name, size in tokens.items() if size]
    return tuple(sorted(found, key=lambda section: _ORDER[section.name]))


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


def compare_prompts(
    before: Sequence[PromptPart], now: Sequence[PromptPart], *, limit: int | None = None
) -> PromptDifference:
    """Compare two prompts. Messages with the same origin are the same message, which may have changed.

    Args:
        before: the earlier prompt.
        now: the later prompt.
        limit: maximum number of changes to return; None: all.
    """
    common = 0
    for mine, theirs in zip(now, before, strict=False):
        if mine.message is not theirs.message and mine.message != theirs.message:
            break
        common += 1
    old, new = dict(_iter_keyed(before)), dict(_iter_keyed(now))
    changes = [
        _describe_change("changed" if key in old else "added", now, at)
        for key, at in new.items()
        if key not in old or before[old[key]].message != now[at].message
    ]
    changes += [_describe_change("removed", before, at) for key, at in old.items() if key not in new]
    counts = Counter(change.kind for change in changes)
    return PromptDifference(
        common=common,
        before=len(before),
        common_tokens=sum(part.tokens for part in now[:common]),
        added=counts["added"],
        removed=counts["removed"],
        changed=counts["changed"],
        changes=tuple(changes[:limit]),
    )


def _iter_keyed(parts: Sequence[PromptPart]) -> Iterator[tuple[tuple[str, int, int], int]]:
    """Yield a key that identifies the origin of each message, with the message's index."""
    seen = Counter[tuple[str, int]]()
    for at, part in enumerate(parts):
        source = part.source
        key = (source.kind, source.seqs[0] if source.kind == "entry" else -1)
        yield (*key, seen[key]), at
        seen[key] += 1


def _describe_change(
    kind: Literal["added", "removed", "changed"], parts: Sequence[PromptPart], at: int
) -> PromptChange:
    part, seqs = parts[at], get_seq_range(parts[at])
    return PromptChange(kind, part.section, seqs, part.tokens, at)


def get_seq_range(part: PromptPart) -> tuple[int, ...]:
    """Return the first and the last `seq` of the log entries that a message comes from; empty if there are none."""
    seqs = part.source.seqs
    return (seqs[0], seqs[-1]) if seqs else ()
