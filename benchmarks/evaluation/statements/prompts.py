"""Build the prompts of a conversation with the library, on a store in memory, and detect the labelled statements in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.evaluation.prompt_sessions import PromptSession, Run, find_current, is_block, open_session
from benchmarks.evaluation.statements.conversations import Conversation
from benchmarks.evaluation.statements.figures import Figures, Prompt, Tally, find_asked, make_prompt
from holdfast.context.build import WorkingSet

DEFAULT_STRATEGIES: Final = "digest,salience,token_window,head_tail,buffer_window,clear_tool_results"
"""Strategies that need no model. `none` needs none either, but is left out because it sends everything."""
_START: Final = 1_767_225_600_000
"""Time of the first message, in milliseconds since the epoch. Each message is a minute later than the message before it."""
_MINUTE: Final = 60_000


async def measure_statements(
    conversations: Iterable[Conversation],
    runs: Sequence[Run],
    *,
    asked: bool = False,
    on_prompt: Callable[[], None] = lambda: None,
) -> list[Figures]:
    """Build prompts for conversations, and measure how many labelled statements they contain.

    For each run, a prompt is built that answers the last user message of a conversation. If `asked` is true, the question of each statement is
    then appended to the complete conversation, one at a time, and a prompt that answers this question is built for each run.

    Args:
        conversations: The conversations.
        runs: Strategies and budgets for which prompts are built.
        asked: True to build prompts for the questions of the statements, too.
        on_prompt: Function that is called after each prompt, for a progress bar.
    """
    tallies = [Tally() for _ in runs]
    for conversation in conversations:
        async with open_conversation(conversation, runs, on_prompt) as session:
            prompts = await session.build_prompts()
            answers = await _ask_all(conversation, session, tallies) if asked else [{} for _ in runs]
        for tally, prompt, found in zip(tallies, prompts, answers, strict=True):
            tally.count_prompt(prompt)
            tally.add(conversation, prompt, found)
    return [tally.make_figures(run.label, run.budget) for run, tally in zip(runs, tallies, strict=True)]


async def _ask_all(
    conversation: Conversation, session: PromptSession[Prompt], tallies: Sequence[Tally]
) -> list[dict[str, tuple[bool, bool]]]:
    """Ask the question of each statement at the end of a conversation.

    Returns:
        For each run: the results of `find_asked` by the id of the statement.
    """
    await append_messages(session, conversation, range(conversation.last_user + 1, len(conversation.messages)))
    answers: list[dict[str, tuple[bool, bool]]] = [{} for _ in tallies]
    for statement in conversation.statements:
        await session.ask(statement.question)
        for tally, found, prompt in zip(tallies, answers, await session.build_prompts(), strict=True):
            tally.count_prompt(prompt)
            found[statement.id] = find_asked(conversation, statement, prompt)
    return answers


async def append_messages(session: PromptSession[Prompt], conversation: Conversation, places: range) -> None:
    """Append the messages with the indexes `places` to a session. Their times are a minute apart."""
    own = [{"timestamp": _START + _MINUTE * at, **conversation.fields[at]} for at in places]
    await session.append([conversation.messages[at] for at in places], own)


@asynccontextmanager
async def open_conversation(
    conversation: Conversation, runs: Sequence[Run], on_prompt: Callable[[], None]
) -> AsyncIterator[PromptSession[Prompt]]:
    """Open a session with the conversation up to its last user message, and yield it."""
    now = _START + _MINUTE * (len(conversation.messages) + 1)
    opened = open_session(runs, to_prompt, clock=lambda: now, system=conversation.system, on_prompt=on_prompt)
    async with opened as session:
        await append_messages(session, conversation, range(conversation.last_user + 1))
        yield session


def to_prompt(built: WorkingSet) -> Prompt:
    """Convert a working set to a prompt in which statements can be detected. The system prompt is left out."""
    leading = len(built.request.list_leading_messages())
    messages, seqs = built.messages[leading:], built.list_seqs()
    blocks = [at for at in range(len(messages)) if is_block(built, at + leading, seqs[at + leading])]
    return make_prompt(messages, find_current(built) - leading, blocks)
