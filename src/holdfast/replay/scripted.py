"""The `scripted` summarizer: a stand-in for a model, to measure what summaries cost, not how good they are.

It gets the same task as a model and answers at about the same length, but understands nothing. It takes the beginning
of every message, those of the user first, then calls with their results, then the assistant's texts, the newest first,
until half of its token limit is used; they appear in the order of the conversation. The same task always gives the same
summary, to the byte.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, NamedTuple

from holdfast.agents import Llm
from holdfast.context.summaries import WORDS_A_TOKEN
from holdfast.models import to_chunks
from holdfast.tokens import STORED
from holdfast.wire.openai import parse_message

SCRIPTED: Final = "scripted"
WINDOW: Final = 128_000
"""Size of its context window in tokens, as for most models."""
FULL: Final = 0.5
"""Share of its room that it uses: models told "at most so many words" stay well below. An assumption, not a measurement."""
OF_SOURCE: Final = 1 / 3
"""Maximum size of a summary as a share of the new messages."""
WORDS: Final[Mapping[str, int]] = {"user": 60, "call": 40, "result": 40, "assistant": 25}
"""Number of words taken from one message, by kind."""
_RANKS: Final = {"user": 0, "earlier": 1, "call": 2, "result": 2, "assistant": 3}
"""Order in which kinds of messages get room."""
_SOURCE: Final = re.compile(r"<(conversation-[0-9a-f]+)>\n(.*)\n</\1>", re.DOTALL)
_EARLIER: Final = re.compile(r"<(conversation-[0-9a-f]+)-earlier>\n(.*?)\n</\1-earlier>", re.DOTALL)
_ROOM: Final = re.compile(r"at most (\d+) words")
_HEAD: Final = re.compile(r"\[(?:\d+|-)\] (?:result of (.*)|([a-z]+)(?: \((.*?)\))?):")
_CALL: Final = re.compile(r"  calls (.*) with:")


class Line(NamedTuple):
    """One line that a summary may contain."""

    kind: str
    text: str


class ScriptedModel:
    """The stand-in as a `Model`."""

    @property
    def name(self) -> str:
        """`scripted`."""
        return SCRIPTED

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the summary of a request's task; never raises."""
        texts = [str(message["content"]) for message in request["messages"]]
        text = summarize("\n".join(texts))
        prompt = sum(STORED.message(parse_message(message)) for message in request["messages"])
        usage = {"prompt_tokens": prompt, "completion_tokens": STORED.text(text)}
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": SCRIPTED, "object": "chat.completion", "created": 0, "model": SCRIPTED}
        for chunk in to_chunks({**answer, "choices": [choice], "usage": usage}):
            yield chunk

    async def close(self) -> None:
        """Do nothing: there are no connections."""


def make_scripted_llm() -> Llm:
    """Return the stand-in as an llm; it counts tokens with o200k."""
    return Llm(name=SCRIPTED, model="gpt-4o", client=ScriptedModel(), context_window=WINDOW)


def summarize(task: str) -> str:
    """Return its summary for a task in the wording of `holdfast.context.summaries`."""
    source, earlier, room = _SOURCE.search(task), _EARLIER.search(task), _ROOM.findall(task)
    text = source[2] if source else task
    before = [Line("earlier", line) for line in earlier[2].splitlines() if line.strip()] if earlier else []
    known = STORED.text(earlier[2]) if earlier else 0
    max_tokens = min(int(room[-1]) / WORDS_A_TOKEN * FULL if room else WINDOW, STORED.text(text) * OF_SOURCE + known)
    return "\n".join(_select_lines([*before, *_split_lines(text)], int(max_tokens))) or text[:40]


def _select_lines(lines: list[Line], tokens: int) -> list[str]:
    """Select the lines that fit, by rank, and within a rank the newest first; return them in their original order."""
    order = sorted(range(len(lines)), key=lambda at: (_RANKS[lines[at].kind], -at))
    chosen = []
    for at in order:
        size = STORED.text(lines[at].text) + 1
        if size <= tokens:
            tokens -= size
            chosen.append(at)
    return [lines[at].text for at in sorted(chosen)]


def _split_lines(text: str) -> Iterator[Line]:
    """Yield a line for each message and call of a conversation."""
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
    """Return the first words, limited to six characters per word, since JSON may be one long word."""
    text = " ".join(words[:most])
    return text if len(text) <= 6 * most else text[: 6 * most] + "…"
