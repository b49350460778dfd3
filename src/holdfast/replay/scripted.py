"""The `scripted` summarizer: a stand-in for a model where what matters is what summaries cost, not how good they are.

It is asked what a model is asked and answers about as long as one would, but understands nothing: of every message it takes the
beginning, the user's first, then calls with their results, then what the assistant said, the newest first, until half of
its room is full; told in the order of the conversation. The same task gives the same summary, to the byte.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, NamedTuple

from holdfast.agents import Llm
from holdfast.context.summaries import WORDS_A_TOKEN
from holdfast.models import to_chunks
from holdfast.tokens import STORED
from holdfast.wire.openai import message_from

SCRIPTED: Final = "scripted"
WINDOW: Final = 128_000
"""Tokens of its context window: that of most models."""
FULL: Final = 0.5
"""Part of its room that it fills: told "at most so many words", models stay well below. An assumption, not a measurement."""
OF_SOURCE: Final = 1 / 3
"""Part of what is new to it that a summary takes at most."""
WORDS: Final[Mapping[str, int]] = {"user": 60, "call": 40, "result": 40, "assistant": 25}
"""Words told of one message, by kind."""
_RANKS: Final = {"user": 0, "earlier": 1, "call": 2, "result": 2, "assistant": 3}
"""Who gets room first."""
_SOURCE: Final = re.compile(r"<(conversation-[0-9a-f]+)>\n(.*)\n</\1>", re.DOTALL)
_EARLIER: Final = re.compile(r"<(conversation-[0-9a-f]+)-earlier>\n(.*?)\n</\1-earlier>", re.DOTALL)
_ROOM: Final = re.compile(r"at most (\d+) words")
_HEAD: Final = re.compile(r"\[(?:\d+|-)\] (?:result of (.*)|([a-z]+)(?: \((.*?)\))?):")
_CALL: Final = re.compile(r"  calls (.*) with:")


class Told(NamedTuple):
    """One line that a summary may hold."""

    kind: str
    text: str


class Scripted:
    """The stand-in, as a `Model`."""

    @property
    def name(self) -> str:
        """`scripted`."""
        return SCRIPTED

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """See `Model.stream`. It raises nothing."""
        said = [str(message["content"]) for message in request["messages"]]
        text = summary_of("\n".join(said))
        prompt = sum(STORED.message(message_from(message)) for message in request["messages"])
        usage = {"prompt_tokens": prompt, "completion_tokens": STORED.text(text)}
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": SCRIPTED, "object": "chat.completion", "created": 0, "model": SCRIPTED}
        for chunk in to_chunks({**answer, "choices": [choice], "usage": usage}):
            yield chunk

    async def close(self) -> None:
        """There is nothing to let go of."""


def stand_in() -> Llm:
    """The stand-in as an llm: it counts as o200k does."""
    return Llm(name=SCRIPTED, model="gpt-4o", client=Scripted(), context_window=WINDOW)


def summary_of(task: str) -> str:
    """What it makes of a task, as `holdfast.context.summaries` words it."""
    source, earlier, room = _SOURCE.search(task), _EARLIER.search(task), _ROOM.findall(task)
    text = source[2] if source else task
    before = [Told("earlier", line) for line in earlier[2].splitlines() if line.strip()] if earlier else []
    known = STORED.text(earlier[2]) if earlier else 0
    allowed = min(int(room[-1]) / WORDS_A_TOKEN * FULL if room else WINDOW, STORED.text(text) * OF_SOURCE + known)
    return "\n".join(_chosen([*before, *_lines(text)], int(allowed))) or text[:40]


def _chosen(lines: list[Told], tokens: int) -> list[str]:
    """Lines that fit, the first in rank first, of one rank the newest; in the order in which they stood."""
    order = sorted(range(len(lines)), key=lambda at: (_RANKS[lines[at].kind], -at))
    chosen = []
    for at in order:
        size = STORED.text(lines[at].text) + 1
        if size <= tokens:
            tokens -= size
            chosen.append(at)
    return [lines[at].text for at in sorted(chosen)]


def _lines(text: str) -> Iterator[Told]:
    """A line for each message and call of a conversation."""
    kind, who, words = "assistant", "assistant", list[str]()
    for line in text.splitlines():
        head, call = _HEAD.fullmatch(line), _CALL.fullmatch(line)
        if head is None and call is None:
            words += line.split()
            continue
        yield from _line(kind, who, words)
        words = []
        if call is not None:
            kind, who = "call", f"called {call[1]}"
        elif head is not None and head[1]:
            kind, who = "result", f"{head[1]} returned"
        elif head is not None:
            kind, who = "user" if head[2] == "user" else "assistant", head[3] or head[2]
    yield from _line(kind, who, words)


def _line(kind: str, who: str, words: list[str]) -> Iterator[Told]:
    if words:
        yield Told(kind, f"{who}: {_shortened(words, WORDS[kind])}")


def _shortened(words: list[str], most: int) -> str:
    """The first words, in at most six characters a word: JSON is one long word."""
    text = " ".join(words[:most])
    return text if len(text) <= 6 * most else text[: 6 * most] + "…"
