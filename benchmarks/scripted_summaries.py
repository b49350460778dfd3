"""Write summaries without a model, in order to measure the cost of summaries, but not their quality.

The summarizer gets the same task as a model, and its summaries have about the same length, but it does not understand the text. A summary
consists of the beginnings of messages, in the order of the conversation. They are selected in three groups, the newest first in each group:
messages of the user, then tool calls and their results, then texts of the assistant. The selection stops when half of the token limit is
used. The same task always gets the same summary, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Final, NamedTuple

from holdfast.agents import Llm
from holdfast.context.summaries import WORDS_A_TOKEN
from holdfast.log.items import Delta, Finish, Head, Text, Usage
from holdfast.models.base import ModelRequest
from holdfast.models.deltas import DeltaModel
from holdfast.tokens import STORED

SCRIPTED: Final = "scripted"
WINDOW: Final = 128_000
"""Size of the context window in tokens. Most models have this size."""
FULL: Final = 0.5
"""Fraction of the token limit that a summary uses. Models stay well below a limit such as "at most 200 words". The fraction is an
assumption, not a measurement.
"""
OF_SOURCE: Final = 1 / 3
"""Maximum tokens that a summary adds to the previous one, as a fraction of the tokens of the new messages."""
WORDS: Final[Mapping[str, int]] = {"user": 60, "call": 40, "result": 40, "assistant": 25}
"""Maximum number of words from the beginning of a message, by kind of message."""
_RANKS: Final = {"user": 0, "earlier": 1, "call": 2, "result": 2, "assistant": 3}
"""Order in which lines are selected, by kind. Lines with the lowest number are selected first."""
_SOURCE: Final = re.compile(r"<(conversation-[0-9a-f]+)>\n(.*)\n</\1>", re.DOTALL)
_EARLIER: Final = re.compile(r"<(conversation-[0-9a-f]+)-earlier>\n(.*?)\n</\1-earlier>", re.DOTALL)
_ROOM: Final = re.compile(r"at most (\d+) words")
_HEAD: Final = re.compile(r"\[(?:\d+|-)\] (?:result of (.*)|([a-z]+)(?: \((.*?)\))?):")
_CALL: Final = re.compile(r"  calls (.*) with:")


class Line(NamedTuple):
    """One line that a summary may contain."""

    kind: str
    text: str


class ScriptedModel(DeltaModel):
    """A model that answers summary tasks with `summarize`."""

    @property
    def name(self) -> str:
        """Always `scripted`."""
        return SCRIPTED

    async def stream_deltas(
        self, request: ModelRequest, *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[Delta], None]:
        """Yield the summary for the task in a request. The method raises no errors."""
        text = summarize("\n".join(message.text for message in request.messages))
        yield [Head({"id": SCRIPTED, "created": 0, "model": SCRIPTED}), Text(text), Finish("stop")]
        prompt_tokens = sum(map(STORED.message, request.messages))
        yield [Usage({"prompt_tokens": prompt_tokens, "completion_tokens": STORED.text(text)})]

    async def close(self) -> None:
        """Do nothing, because this model has no connections."""


def make_scripted_llm() -> Llm:
    """Return a `ScriptedModel` as an `Llm` that counts tokens with the tokenizer o200k."""
    return Llm(name=SCRIPTED, model="gpt-4o", client=ScriptedModel(), context_window=WINDOW)


def summarize(task: str) -> str:
    """Return the summary for a task. The task must have the wording of `holdfast.context.summaries`."""
    source, earlier, room = _SOURCE.search(task), _EARLIER.search(task), _ROOM.findall(task)
    text = source[2] if source else task
    before = [Line("earlier", line) for line in earlier[2].splitlines() if line.strip()] if earlier else []
    known = STORED.text(earlier[2]) if earlier else 0
    max_tokens = min(int(room[-1]) / WORDS_A_TOKEN * FULL if room else WINDOW, STORED.text(text) * OF_SOURCE + known)
    return "\n".join(_select_lines([*before, *_split_lines(text)], int(max_tokens))) or text[:40]


def _select_lines(lines: list[Line], tokens: int) -> list[str]:
    """Return the lines that fit into `tokens` tokens, in their original order.

    Lines are selected by rank, and the newest first within a rank.
    """
    order = sorted(range(len(lines)), key=lambda at: (_RANKS[lines[at].kind], -at))
    chosen = []
    for at in order:
        size = STORED.text(lines[at].text) + 1
        if size <= tokens:
            tokens -= size
            chosen.append(at)
    return [lines[at].text for at in sorted(chosen)]


def _split_lines(text: str) -> Iterator[Line]:
    """Yield a line for each message and each tool call of a conversation, shortened to the number of words for its kind."""
    kind, who, words = "assistant", "assistant", list[str]()
    for line in text.splitlines():
        head, call = _HEAD.fullmatch(line), _CALL.fullmatch(line)
        if head is None and call is None:
            words += line.split()
            continue
        yield from _make_line(kind, who, words)
        words = []
        if call is not None:
            kind, who = "call", f"called {call[1]}"
        elif head is not None and head[1]:
            kind, who = "result", f"{head[1]} returned"
        elif head is not None:
            kind, who = "user" if head[2] == "user" else "assistant", head[3] or head[2]
    yield from _make_line(kind, who, words)


def _make_line(kind: str, speaker: str, words: list[str]) -> Iterator[Line]:
    if words:
        yield Line(kind, f"{speaker}: {_shorten(words, WORDS[kind])}")


def _shorten(words: list[str], most: int) -> str:
    """Return the first `most` words, cut after six characters for each word, because JSON may be one long word."""
    text = " ".join(words[:most])
    return text if len(text) <= 6 * most else text[: 6 * most] + "…"
