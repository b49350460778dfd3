"""Compute the fraction of statements that are in prompts, by kind, position and wording of the statement, and by kind of conversation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from benchmarks.evaluation.statements.conversations import Conversation, Statement
from benchmarks.evaluation.statements.matching import normalize
from holdfast.domain.messages import Message
from holdfast.tokens import STORED

SUPERSEDED: Final = "superseded"
"""Kind under which results for later corrected statements are reported. Results for other groups exclude these statements."""
_WORDINGS: Final = {True: "cue", False: "no cue"}


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """The normalized text of a prompt, without the system prompt and the current user message."""

    text: str
    tokens: int
    """Tokens of all messages of the prompt except the system prompt."""
    blocks: str = ""
    """Text of the digest, the summary and the facts, which replace messages. It is also part of `text`."""
    block_tokens: int = 0


def make_prompt(messages: Sequence[Message], current: int, blocks: Collection[int] = ()) -> Prompt:
    """Normalize the messages of a prompt, so that statements can be detected in them.

    Args:
        messages: Messages of the prompt, without the system prompt.
        current: Index of the current user message.
        blocks: Indexes of the messages that replace other messages: digest, summary or facts.
    """
    texts = {at: _read_lines(message) for at, message in enumerate(messages) if at != current}
    return Prompt(
        text="\n".join(texts.values()),
        tokens=sum(map(STORED.message, messages)),
        blocks="\n".join(texts[at] for at in blocks),
        block_tokens=sum(STORED.message(messages[at]) for at in blocks),
    )


def _read_lines(message: Message) -> str:
    """Return the normalized lines of a message. Each tool call becomes one line."""
    calls = (f"{call.name} {' '.join(call.arguments.splitlines())}" for call in message.tool_calls)
    return normalize("\n".join((message.text, *calls)))


class Finding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The results for one statement with one strategy and budget: the prompts that contain the statement.

    Most fields concern the prompt that answers the last user message of the conversation.
    """

    conversation: str
    """Id of the conversation."""
    statement: str
    """Id of the statement."""
    group: str
    """Kind of the conversation."""
    kind: str
    """Kind of the statement, or `superseded` if it was corrected later."""
    quarter: int
    cue: bool
    with_topic: bool | None = None
    """True if one line of the prompt contains a value and a topic of the statement. None if the statement comes after the last user
    message.
    """
    present: bool | None = None
    """True if the prompt contains a value of the statement. None if the statement comes after the last user message."""
    condensed: bool = False
    """True if one line of a digest, a summary or the facts contains a value and a topic."""
    stale: bool = False
    """True if the statement was corrected, and the prompt contains its value and topic in one line, but no value of a correction."""
    asked: bool | None = None
    """Same as `with_topic`, in the prompt that answers the statement's question. None if questions were not asked."""
    asked_stale: bool = False
    """Same as `stale`, in the prompt that answers the question of the correction."""


def find_statements(
    conversation: Conversation, prompt: Prompt | None, asked: Mapping[str, tuple[bool, bool]]
) -> list[Finding]:
    """Return the finding for each statement of a conversation.

    Args:
        conversation: The conversation.
        prompt: The prompt that answers the last user message. None: it could not be built.
        asked: Result of `find_asked` for each statement, by the id of the statement. Empty if questions were not asked.
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
    """Examine the prompt that answers the question of a statement.

    Returns:
        Two values. The first is True if a line of the prompt contains a value and a topic of the statement. The second is True if the
        statement corrects an older statement, and the prompt contains the older statement but no correction.
    """
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
    """Fractions of a group of statements, from 0 to 1. `Finding` describes the fields. A fraction that was not measured is None."""

    statements: int
    with_topic: float | None
    present: float | None
    asked: float | None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one strategy with one budget."""

    strategy: str
    budget: int
    prompts: int
    refused: int
    """Number of prompts that could not be built, because not even the required messages fit. Their statements are counted as missing."""
    prompt_tokens: float | None
    """Mean tokens of the prompts that answer the last user message, without the system prompt."""
    all: Shares
    cues: dict[str, Shares]
    quarters: dict[str, Shares]
    """Fractions by the quarter of the conversation that contains the statement, from 1."""
    kinds: dict[str, Shares]
    conversations: dict[str, Shares]
    """Fractions by kind of conversation."""
    stale: float | None
    """Fraction of the corrected statements for which `Finding.stale` is true."""
    asked_stale: float | None
    """Fraction of the corrected statements for which `Finding.asked_stale` is true. None if questions were not asked."""
    block_tokens: int
    """Tokens of all digests, summaries and facts, which replace messages."""
    block_statements: int
    """Number of statements for which `Finding.condensed` is true."""
    per_100_tokens: float | None
    """`block_statements` per 100 `block_tokens`; None if there are no such blocks."""
    findings: list[Finding]


class Tally:
    """Collects the findings of one strategy and budget, one conversation after the other."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.prompts: list[Prompt] = []
        self.count = self.refused = 0

    def count_prompt(self, prompt: Prompt | None) -> None:
        """Count a prompt. None is a prompt that could not be built."""
        self.count += 1
        self.refused += prompt is None

    def add(self, conversation: Conversation, prompt: Prompt | None, asked: Mapping[str, tuple[bool, bool]]) -> None:
        """Add the findings of a conversation. The arguments are those of `find_statements`."""
        self.findings += find_statements(conversation, prompt, asked)
        self.prompts += [] if prompt is None else [prompt]

    def make_figures(self, strategy: str, budget: int) -> Figures:
        """Return the results for all conversations that were added."""
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
