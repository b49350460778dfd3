"""Statements of a conversation that stay in its prompts, with Holdfast's strategies and with peers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.evaluation.prompt_sessions import Run as StrategyRun
from benchmarks.evaluation.statements.conversations import Conversation, read_conversations
from benchmarks.evaluation.statements.figures import Figures, Prompt, Tally, find_asked, make_prompt
from benchmarks.evaluation.statements.prompts import DEFAULT_STRATEGIES, measure_statements
from benchmarks.peers import Trimmer, open_agents_session, to_items
from benchmarks.run import Run
from benchmarks.tables import Column, Figure, Table, format_count, format_decimal, format_share
from benchmarks.timing import report
from holdfast.domain.messages import Message
from holdfast.replay.specs import parse_specs
from holdfast.tokens import STORED

FOLDER = Path(__file__).parent / "statements"
BUDGETS = (1024, 2048, 4096, 8192)
SUMMARY_SHARE = 4
"""The scripted summary gets this fraction of the budget: one in `SUMMARY_SHARE`."""
_SENTENCE = re.compile(r".*?(?:[.!?](?=\s|$)|[。！？]|$)", re.DOTALL)  # noqa: RUF001 - Chinese sentence marks


class Sent(NamedTuple):
    """Messages that a peer sends, without the system prompt, and the indexes of those that summarize others."""

    messages: Sequence[Message]
    blocks: Sequence[int] = ()


Peer = Callable[[Sequence[Message], int], Sent]
"""Selects the messages to send from a log that ends with the current user message, within a budget."""


async def measure(run: Run) -> list[Table]:
    """Return one table of all candidates; a quick run asks no questions and uses two budgets."""
    budgets = BUDGETS[1:3] if run.quick else BUDGETS
    conversations = read_conversations([FOLDER])
    specs = parse_specs([DEFAULT_STRATEGIES])
    runs = [StrategyRun(spec.label, budget, spec.make_settings(budget)) for budget in budgets for spec in specs]
    report(f"statements: {len(runs)} strategies and budgets, {len(conversations)} conversations")
    figures = await measure_statements(conversations, runs, asked=not run.quick)
    figures += await asyncio.to_thread(_measure_peers, conversations, budgets, run.folder, asked=not run.quick)
    figures.sort(key=lambda one: one.budget)
    title = f"Statements still in the prompt, for {len(conversations)} conversations of 10,500 to 14,000 tokens"
    return [Table("statements", title, _make_columns(), [_make_row(one) for one in figures], _NOTES)]


_NOTES = (
    "Measured by the functions of `python -m benchmarks statements FILE`. Budgets do not count the system prompt.",
    "rules: instructions and prohibitions.",
    "trim_messages: strategy last, include_system, exact counter. head and tail: the first user message and the newest messages that fit.",
    "openai-agents: SQLiteSession.get_items with the largest limit that fits.",
    "scripted summary: first sentences of older messages, evenly spread, in a quarter of the budget; then the newest messages that fit.",
)


def _make_columns() -> list[Column]:
    return [
        Column("strategy", "strategy"),
        Column("budget", "budget", format_count),
        Column("with_topic", "with topic", format_share),
        Column("cue", "cue", format_share),
        Column("no_cue", "no cue", format_share),
        Column("rules", "rules", format_share),
        Column("present", "present", format_share),
        Column("stale", "stale", format_share),
        Column("asked", "asked", format_share),
        Column("per_100_tokens", "facts per 100 tokens", format_decimal),
        Column("prompt_tokens", "tokens", format_count),
    ]


def _make_row(figures: Figures) -> dict[str, Figure]:
    rules = [figures.kinds[kind] for kind in ("instruction", "prohibition")]
    return {
        "strategy": figures.strategy,
        "budget": figures.budget,
        "with_topic": figures.all.with_topic,
        "cue": figures.cues["cue"].with_topic,
        "no_cue": figures.cues["no cue"].with_topic,
        "rules": sum((one.with_topic or 0) * one.statements for one in rules) / sum(one.statements for one in rules),
        "present": figures.all.present,
        "stale": figures.stale,
        "asked": figures.all.asked,
        "per_100_tokens": figures.per_100_tokens,
        "prompt_tokens": figures.prompt_tokens,
    }


# -- the peers -----------------------------------------------------------------


def _measure_peers(
    conversations: Sequence[Conversation], budgets: Sequence[int], folder: Path, *, asked: bool
) -> list[Figures]:
    tallies: dict[tuple[str, int], Tally] = {}
    for number, conversation in enumerate(conversations):
        for name, peer in _make_peers(conversation, folder / f"agents-{number}.db"):
            report(f"statements: {name}, {conversation.id}")
            for budget in budgets:
                tally = tallies.setdefault((name, budget), Tally())
                _play(conversation, peer, budget, tally, asked=asked)
    return [tally.make_figures(name, budget) for (name, budget), tally in tallies.items()]


def _make_peers(conversation: Conversation, path: Path) -> Iterator[tuple[str, Peer]]:
    yield "trim_messages", LangchainTrimmer(conversation)
    yield "head and tail", keep_head_and_tail
    yield "openai-agents, limit", AgentsSession(path)
    yield "scripted summary", summarize_and_keep_newest


def _play(conversation: Conversation, peer: Peer, budget: int, tally: Tally, *, asked: bool) -> None:
    prompt = _to_prompt(peer(conversation.messages[: conversation.last_user + 1], budget), tally)
    answers = {}
    for statement in conversation.statements if asked else ():
        question = Message(role="user", content=statement.question)
        sent = peer([*conversation.messages, question], budget)
        answers[statement.id] = find_asked(conversation, statement, _to_prompt(sent, tally))
    tally.add(conversation, prompt, answers)


def _to_prompt(sent: Sent, tally: Tally) -> Prompt | None:
    """Convert the sent messages to a prompt and count it; return None if not even the current message fits."""
    prompt = make_prompt(sent.messages, len(sent.messages) - 1, sent.blocks) if sent.messages else None
    tally.count_prompt(prompt)
    return prompt


class LangchainTrimmer:
    """`trim_messages` of langchain-core."""

    def __init__(self, conversation: Conversation) -> None:
        self._system = len(conversation.system)
        self._room = sum(map(STORED.message, conversation.system))
        self._trimmer = Trimmer(conversation.system, remember=True)

    def __call__(self, messages: Sequence[Message], budget: int) -> Sent:
        """Append the new messages of the log and trim it."""
        shared = _count_shared(self._trimmer.messages[self._system :], messages)
        self._trimmer.truncate(self._system + shared)
        for message in messages[shared:]:
            self._trimmer.append(message)
        kept = self._trimmer.trim(self._room + budget, exact=True)
        return Sent([message for message in kept if message.role != "system"])


def _count_shared(before: Sequence[Message], now: Sequence[Message]) -> int:
    """Return the length of the common beginning of two logs."""
    differ = (at for at, (old, new) in enumerate(zip(before, now, strict=False)) if old is not new)
    return next(differ, min(len(before), len(now)))


def keep_head_and_tail(messages: Sequence[Message], budget: int) -> Sent:
    """Return the first user message and the newest messages that fit."""
    first = next(at for at, message in enumerate(messages) if message.role == "user")
    newest = _take_newest(messages[first + 1 :], budget - STORED.message(messages[first]))
    return Sent([messages[first], *newest]) if newest else Sent(_take_newest(messages, budget))


def summarize_and_keep_newest(messages: Sequence[Message], budget: int) -> Sent:
    """Return a scripted summary of the older messages, and the newest messages that fit."""
    room = budget // SUMMARY_SHARE
    newest = _take_newest(messages, budget - room)
    lines = [f"{one.role}: {_cut_to_sentence(one.text)}" for one in messages[: len(messages) - len(newest)] if one.text]
    for step in range(1, len(lines) + 1):
        summary = Message(role="user", content="\n".join(["Summary of the conversation so far:", *lines[::step]]))
        if STORED.message(summary) <= room:
            return Sent([summary, *newest], (0,)) if newest else Sent(())
    return Sent(newest)


def _cut_to_sentence(text: str) -> str:
    match = _SENTENCE.match(text.strip())
    return " ".join(match[0].split()) if match else ""


def _take_newest(messages: Sequence[Message], budget: int) -> Sequence[Message]:
    """Return as many of the newest messages as fit."""
    start = len(messages)
    while start and (budget := budget - STORED.message(messages[start - 1])) >= 0:
        start -= 1
    return messages[start:]


class AgentsSession:
    """A session of the Agents SDK that returns its newest items."""

    def __init__(self, path: Path) -> None:
        self._session = open_agents_session(path)
        self._stored: list[Message] = []

    def __call__(self, messages: Sequence[Message], budget: int) -> Sent:
        """Return the newest messages that fit, read from the session's table."""
        return asyncio.run(self._get(messages, budget))

    async def _get(self, messages: Sequence[Message], budget: int) -> Sent:
        shared = _count_shared(self._stored, messages)
        for _ in self._stored[shared:]:
            await self._session.pop_item()
        await self._session.add_items(to_items(messages[shared:]))
        self._stored = list(messages)
        limit = len(_take_newest(messages, budget))
        kept = await self._session.get_items(limit) if limit else []
        return Sent(messages[len(messages) - len(kept) :])
