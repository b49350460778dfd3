"""Figures on statements in prompts: shares by kind, depth, wording and conversation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.domain.messages import Message
from holdfast.evaluation.statements.conversations import Conversation, Statement
from holdfast.evaluation.statements.matching import normalize
from holdfast.tokens import STORED

SUPERSEDED: Final = "superseded"
"""Kind of statements that were corrected later; they are excluded from all other figures."""
_WORDINGS: Final = {True: "cue", False: "no cue"}


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """The text of a prompt outside the system prompt and the current user message, normalized."""

    text: str
    tokens: int
    """Tokens of all its messages except the system prompt."""
    blocks: str = ""
    """The part of `text` in blocks that replace messages: digest, summary, facts."""
    block_tokens: int = 0
    is_late: bool = False
    """True if a search took too long when the prompt was first built."""


def make_prompt(
    messages: Sequence[Message], current: int, blocks: Collection[int] = (), *, is_late: bool = False
) -> Prompt:
    """Return a prompt in the form in which it is examined.

    Args:
        messages: Its messages without the system prompt.
        current: Index of the current user message.
        blocks: Indexes of messages that replace others.
        is_late: True if a search took too long when the prompt was first built.
    """
    texts = {at: _read_lines(message) for at, message in enumerate(messages) if at != current}
    return Prompt(
        text="\n".join(texts.values()),
        tokens=sum(map(STORED.message, messages)),
        blocks="\n".join(texts[at] for at in blocks),
        block_tokens=sum(STORED.message(messages[at]) for at in blocks),
        is_late=is_late,
    )


def _read_lines(message: Message) -> str:
    """Return a message's lines; each tool call is one line."""
    calls = (f"{call.name} {' '.join(call.arguments.splitlines())}" for call in message.tool_calls)
    return normalize("\n".join((message.text, *calls)))


class Finding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result for one statement in the prompts of one strategy and budget."""

    conversation: str
    """Id of the conversation."""
    statement: str
    """Id of the statement."""
    group: str
    """The conversation's kind."""
    kind: str
    """The statement's kind; `superseded` if it was corrected later."""
    quarter: int
    cue: bool
    with_topic: bool | None = None
    """True if a line has a value and a topic; None if the statement comes after the current message."""
    present: bool | None = None
    """True if a value is anywhere in the prompt."""
    condensed: bool = False
    """True if a line of a digest, summary or facts block has a value and a topic."""
    stale: bool = False
    """True if it is superseded and present with its topic, and no value of a correction is present."""
    asked: bool | None = None
    """Same as `with_topic` when the current message is its question; None if not measured."""
    asked_stale: bool = False
    """Same as `stale` for the question about the correction."""


def find_statements(
    conversation: Conversation, prompt: Prompt | None, asked: Mapping[str, tuple[bool, bool]]
) -> list[Finding]:
    """Return the finding for each statement of a conversation.

    Args:
        conversation: The conversation.
        prompt: The prompt of the turn that answers the last user message; None if it was refused.
        asked: By statement id: the result of `find_asked`; empty if not measured.
    """
    return [_find_one(conversation, statement, prompt, asked) for statement in conversation.statements]


def _find_one(
    conversation: Conversation, statement: Statement, prompt: Prompt | None, asked: Mapping[str, tuple[bool, bool]]
) -> Finding:
    correctors = conversation.correctors.get(statement.id, ())
    was_said = conversation.places[statement.id] < conversation.last_user
    with_topic = was_said and prompt is not None and statement.matcher.is_with_topic(prompt.text)
    return Finding(
        conversation=conversation.id,
        statement=statement.id,
        group=conversation.kind,
        kind=SUPERSEDED if correctors else statement.kind,
        quarter=conversation.quarter(statement),
        cue=statement.cue,
        with_topic=with_topic if was_said else None,
        present=prompt is not None and statement.matcher.is_present(prompt.text) if was_said else None,
        condensed=was_said and prompt is not None and statement.matcher.is_with_topic(prompt.blocks),
        stale=prompt is not None and _is_stale(conversation, statement, prompt),
        asked=asked[statement.id][0] if asked else None,
        asked_stale=bool(asked and correctors) and asked[correctors[0].id][1],
    )


def find_asked(conversation: Conversation, statement: Statement, prompt: Prompt | None) -> tuple[bool, bool]:
    """Return whether the prompt for a statement's question contains the statement, and whether it contains only a superseded value."""
    if prompt is None:
        return False, False
    old = next((one for one in conversation.statements if one.id == statement.supersedes), None)
    is_stale = old is not None and _is_stale(conversation, old, prompt)
    return statement.matcher.is_with_topic(prompt.text), is_stale


def _is_stale(conversation: Conversation, statement: Statement, prompt: Prompt) -> bool:
    correctors = conversation.correctors.get(statement.id, ())
    if not correctors or any(one.matcher.is_present(prompt.text) for one in correctors):
        return False
    return statement.matcher.is_with_topic(prompt.text)


# -- shares --------------------------------------------------------------------


class Shares(msgspec.Struct, frozen=True, gc=False):
    """Shares of statements, from 0 to 1; None if there were none, or if it was not measured."""

    statements: int
    with_topic: float | None
    present: float | None
    asked: float | None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one strategy at one budget."""

    strategy: str
    budget: int
    prompts: int
    refused: int
    """Number of prompts refused because not even the required messages fit; their statements count as missing."""
    late: int
    """Number of prompts that were built again because a search took too long."""
    prompt_tokens: float | None
    """Mean tokens of the prompts that answer the last user message, without the system prompt."""
    all: Shares
    cues: dict[str, Shares]
    quarters: dict[str, Shares]
    """By the quarter of the conversation that contains the statement, from 1."""
    kinds: dict[str, Shares]
    conversations: dict[str, Shares]
    """By kind of conversation."""
    stale: float | None
    """Share of superseded statements that are present with their topic and without any correction."""
    asked_stale: float | None
    """The same when the current message asks about the correction."""
    block_tokens: int
    """Tokens of all blocks that replace messages."""
    block_statements: int
    """Number of statements in these blocks with their topic."""
    per_100_tokens: float | None
    """`block_statements` per 100 tokens of the blocks; None if there are no blocks."""
    findings: list[Finding]


class Tally:
    """The findings of one strategy and budget, conversation by conversation."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.prompts: list[Prompt] = []
        self.count = self.refused = self.late = 0

    def count_prompt(self, prompt: Prompt | None) -> None:
        """Count a prompt; None if it was refused."""
        self.count += 1
        self.refused += prompt is None
        self.late += prompt is not None and prompt.is_late

    def add(self, conversation: Conversation, prompt: Prompt | None, asked: Mapping[str, tuple[bool, bool]]) -> None:
        """Add the findings of a conversation. The arguments are those of `find_statements`."""
        self.findings += find_statements(conversation, prompt, asked)
        self.prompts += [] if prompt is None else [prompt]

    def make_figures(self, strategy: str, budget: int) -> Figures:
        """Return the figures."""
        valid = [one for one in self.findings if one.kind != SUPERSEDED]
        superseded = [one for one in self.findings if one.kind == SUPERSEDED]
        condensed = sum(one.condensed for one in valid)
        tokens = sum(prompt.block_tokens for prompt in self.prompts)
        mean = sum(prompt.tokens for prompt in self.prompts) / len(self.prompts) if self.prompts else None
        return Figures(
            strategy=strategy,
            budget=budget,
            prompts=self.count,
            refused=self.refused,
            late=self.late,
            prompt_tokens=None if mean is None else round(mean, 1),
            all=_make_shares(valid),
            cues=_group(valid, lambda one: _WORDINGS[one.cue]),
            quarters=_group(valid, lambda one: str(one.quarter)),
            kinds=_group(self.findings, lambda one: one.kind),
            conversations=_group(valid, lambda one: one.group),
            stale=_get_share(one.stale for one in superseded),
            asked_stale=_get_share(one.asked_stale for one in superseded if one.asked is not None),
            block_tokens=tokens,
            block_statements=condensed,
            per_100_tokens=round(100 * condensed / tokens, 2) if tokens else None,
            findings=self.findings,
        )


def _group(findings: Iterable[Finding], group: Callable[[Finding], str]) -> dict[str, Shares]:
    groups: dict[str, list[Finding]] = {}
    for one in findings:
        groups.setdefault(group(one), []).append(one)
    return {name: _make_shares(groups[name]) for name in sorted(groups)}


def _make_shares(findings: Sequence[Finding]) -> Shares:
    with_topic, present, asked = (
        _get_share(value for one in findings if (value := getattr(one, name)) is not None)
        for name in ("with_topic", "present", "asked")
    )
    return Shares(len(findings), with_topic, present, asked)


def _get_share(found: Iterable[bool]) -> float | None:
    values = list(found)
    return round(sum(values) / len(values), 4) if values else None
