"""The built-in `offline` model, with which users can try out Holdfast without network and without a language model.

Its answers describe the prompt that the model received, which shows the effect of a strategy on a conversation. They also say that no
language model wrote them. The same request always gets the same answer, byte for byte.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import anyio.lowlevel
import msgspec

from holdfast.accounting import run_cpu
from holdfast.context.fitting import fit_messages
from holdfast.context.recalled import OPENING, SESSION_OPENING
from holdfast.domain.messages import Message, ToolCall
from holdfast.log.items import CallArguments, CallStart, Finish, Head, Text, Usage
from holdfast.models.base import ModelRequest
from holdfast.models.collect import WORDS
from holdfast.models.deltas import DeltaModel
from holdfast.wire.openai import to_chat_message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from holdfast.log.items import Delta

CONFESSION: Final = "I am Holdfast's built-in offline model, not a language model: I only report what reaches me."
HINTS: Final = (
    'Ask "what do you see?" for the messages I was given, one a line. Say "call NAME {"key": "value"}" to have me call a '
    "tool of this request. For real answers, configure a model: set OPENAI_BASE_URL and OPENAI_API_KEY, or `llms` in "
    "holdfast.yaml."
)
SHOWN_CHARS: Final = 200
"""Maximum number of characters of one text that an answer quotes."""
LISTED_CHARS: Final = 80
"""Maximum number of characters of each message or memory that an answer lists."""
# Not imported from the modules that define them, because that import is slow and other models do not need it.
_CONDENSED: Final = ("[Condensed from messages ", "[Summary of messages ")
"""Beginnings of the messages that replace older messages, as `holdfast.context.digest.pool` and `holdfast.context.summaries` write them."""
_ATTRIBUTED: Final = "[agent "
"""Beginning of a message that quotes another agent, as `holdfast.context.agent_view` writes it."""
_RECALLED: Final = tuple(label.partition(":")[0] for label in (OPENING, SESSION_OPENING))
"""Starts of the messages that contain recalled memories and search results."""
_SEE: Final = re.compile(r"\W*what (?:do|can) you see\W*", re.IGNORECASE)
_HELP: Final = re.compile(r"\W*help\W*", re.IGNORECASE)
_CALL: Final = re.compile(r"\s*call\s+([\w.:-]+)\s*(\{.*\})?\s*", re.IGNORECASE | re.DOTALL)

Count = Callable[[dict[str, Any]], int]


def estimate_tokens(data: dict[str, Any]) -> int:
    """Return a rough token count of a message or tool schema: a quarter of the bytes of its JSON, at least 1."""
    return max(1, len(msgspec.json.encode(data)) // 4)


class OfflineModel(DeltaModel):
    """A model that answers with a report on its prompt.

    The last user message selects the answer:

    - `what do you see?`: a list of the messages.
    - `call NAME {json}`: a call of one of the request's tools. When the result arrives, the model answers with an excerpt of it.
    - `help`: these commands.
    - Any other text: a report on the prompt. It contains the size, the first line of the system prompt, the names of the tools, and the
      first and the last user message. The report also says if messages were condensed, and quotes recalled memories and messages of other
      agents.

    The answer always has one choice. `n`, sampling parameters, `max_tokens` and `tool_choice` have no effect.

    Args:
        name: Name of the model in answers.
        count: Function that counts the tokens of a message or tool schema, for `usage` and the report.
        clock: Function that returns Unix seconds for `created`. None: `created` is 0, so that answers do not depend on the time.
    """

    def __init__(
        self, name: str = "offline", *, count: Count = estimate_tokens, clock: Callable[[], float] | None = None
    ) -> None:
        self._name = name
        self._count = count
        self._clock = clock

    @property
    def name(self) -> str:
        """Name of the model; `offline` by default."""
        return self._name

    async def stream_deltas(
        self, request: ModelRequest, *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[Delta], None]:
        """Yield the answer word by word. The method raises no errors."""
        # Counting the whole prompt takes long, so it is done in a thread.
        for deltas in await run_cpu(self._answer, request):
            await anyio.lowlevel.checkpoint()
            yield deltas

    async def close(self) -> None:
        """Do nothing, because this model has no connections."""

    def _answer(self, request: ModelRequest) -> list[list[Delta]]:
        prompt = _Prompt(request, self._count)
        reply = _build_reply(prompt)
        made = self._count(to_chat_message(reply))
        usage = {"prompt_tokens": prompt.tokens, "completion_tokens": made, "total_tokens": prompt.tokens + made}
        created = int(self._clock()) if self._clock else 0
        head = Head({"id": f"chatcmpl-offline-{prompt.digest}", "created": created, "model": self._name})
        answer: list[list[Delta]] = [[head, Text("")]]
        answer += ([Text(word)] for word in WORDS.findall(reply.text))
        for at, call in enumerate(reply.tool_calls):
            answer.append([CallStart(at, call.id, call.name)])
            answer += ([CallArguments(at, word)] for word in WORDS.findall(call.arguments))
        answer.append([Finish("tool_calls" if reply.tool_calls else "stop")])
        return [*answer, [Usage({**usage, "prompt_tokens_details": {"cached_tokens": 0}})]]


class _Prompt:
    """A request, with the facts that the offline model reports about it."""

    def __init__(self, request: ModelRequest, count: Count) -> None:
        self.messages = [message for message, _ in fit_messages(request.messages, None, request.fields.get("model"))]
        self.tools = [tool for tool in request.fields.get("tools") or () if isinstance(tool, dict)]
        written = [*map(to_chat_message, self.messages)]
        self.sizes = [*map(count, written)]
        self.tokens = sum(self.sizes) + sum(map(count, self.tools))
        encoded = msgspec.json.encode([written, self.tools], order="sorted")
        self.digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()

    def list_texts(self, *roles: str) -> list[str]:
        """Return the texts of all messages with these roles.

        Leave out messages that Holdfast generates for condensed or recalled content.
        """
        return [
            text
            for message in self.messages
            if message.role in roles and not (text := _get_text(message)).startswith((*_CONDENSED, *_RECALLED))
        ]

    @property
    def condensed(self) -> bool:
        """True if the prompt contains a digest or summary in place of older messages."""
        return any(_get_text(one).startswith(_CONDENSED) for one in self.messages if one.role == "user")

    @property
    def recalled(self) -> list[str] | None:
        """Texts of the recalled memories, or None if no message contains recalled memories."""
        for message in self.messages:
            if message.role == "user" and (block := _get_text(message)).startswith(_RECALLED):
                return list(_parse_recalled(block))
        return None

    @property
    def tool_names(self) -> list[str]:
        """Names of the tools in the request."""
        functions = [tool.get("function") for tool in self.tools]
        names = [function.get("name") for function in functions if isinstance(function, dict)]
        return [name for name in names if isinstance(name, str)]


def _build_reply(prompt: _Prompt) -> Message:
    user_texts = prompt.list_texts("user")
    last = user_texts[-1] if user_texts else ""
    if prompt.messages and prompt.messages[-1].role == "tool":
        lines = list(_describe_results(prompt))
    elif command := _CALL.fullmatch(last):
        return _make_call(prompt, command[1], command[2] or "{}")
    elif _SEE.fullmatch(last):
        lines = _list_messages(prompt)
    elif _HELP.fullmatch(last):
        lines = [HINTS]
    else:
        lines = [*_write_report(prompt, user_texts), HINTS]
    return _make_reply("\n".join(lines))


def _make_reply(text: str) -> Message:
    return Message(role="assistant", content=f"{CONFESSION}\n\n{text}")


def _write_report(prompt: _Prompt, user_texts: list[str]) -> Iterator[str]:
    roles = Counter(message.role for message in prompt.messages)
    counted = ", ".join(f"{number} {role}" for role, number in roles.items())
    yield f"I was given {_format_count(len(prompt.messages), 'message')} ({counted or 'none'}), about {prompt.tokens:,} tokens."
    system = prompt.list_texts("system", "developer")
    if system:
        yield f"The system prompt begins: {_quote(system[0].strip().partition(chr(10))[0])}"
    if prompt.tools:
        yield f"Tools I may call: {', '.join(prompt.tool_names)}."
    theirs = [text for text in user_texts if text.startswith(_ATTRIBUTED)]
    yours = [text for text in user_texts if not text.startswith(_ATTRIBUTED)]
    if len(yours) > 1:
        yield f"The task, your first message that I see: {_quote(yours[0])}"
    if prompt.condensed:
        yield "An earlier part of our conversation reached me only in condensed form."
    if (recalled := prompt.recalled) is not None:
        quoted = "; ".join(_quote(text, LISTED_CHARS) for text in recalled)
        yield f"Recalled for me from earlier, {_format_count(len(recalled), 'item')}: {quoted}"
    if theirs:
        yield f"I was also given {_format_count(len(theirs), 'message')} from other agents; the last one: {_quote(theirs[-1])}"
    if yours:
        yield f"You just said: {_quote(yours[-1])}"


def _parse_recalled(block: str) -> Iterator[str]:
    """Yield the texts in a message with recalled memories, whose lines after the first are JSON objects. Other lines are ignored."""
    for line in block.splitlines()[1:]:
        try:
            item = msgspec.json.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if isinstance(item, dict) and isinstance(text := item.get("text"), str):
            yield text


def _list_messages(prompt: _Prompt) -> list[str]:
    lines = [f"{_format_count(len(prompt.messages), 'message')}, about {prompt.tokens:,} tokens:"]
    for at, (message, size) in enumerate(zip(prompt.messages, prompt.sizes, strict=True), 1):
        calls = ", ".join(call.name for call in message.tool_calls)
        called = f" calls {calls}" if calls else ""
        text = _get_text(message)
        quoted = f" {_quote(text, LISTED_CHARS)}" if text else ""
        lines.append(f"{at}. {message.role}{called}{quoted} ({size:,} tokens)")
    return lines


def _describe_results(prompt: _Prompt) -> Iterator[str]:
    """Yield one line about each tool result at the end of the prompt."""
    names = {call.id: call.name for message in prompt.messages for call in message.tool_calls}
    results = [*takewhile(lambda message: message.role == "tool", reversed(prompt.messages))]
    for message in reversed(results):
        text = _get_text(message)
        name = names.get(message.tool_call_id or "") or message.name or "a tool"
        yield f"{name} answered with {_format_count(len(text), 'character')}: {_quote(text)}"


def _make_call(prompt: _Prompt, name: str, arguments: str) -> Message:
    """Return an assistant message that calls a tool, or that explains why the call is not possible."""
    if name not in prompt.tool_names:
        known = ", ".join(prompt.tool_names) or "none"
        return _make_reply(f"This request offers no tool called {name}. Tools it offers: {known}.")
    try:
        msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        return _make_reply(f"I cannot call {name}: its arguments are not a valid JSON object ({exc}).")
    call = ToolCall(f"call_{prompt.digest}", name, arguments)
    return _make_reply(f"Calling {name}, as you asked.").evolve(tool_calls=(call,))


def _get_text(message: Message) -> str:
    """Return the text of a message. Each part without text is replaced by its type in brackets."""
    if not isinstance(message.content, tuple):
        return message.text
    return "".join(f"[{part.type}]" if part.text is None else part.text for part in message.content)


def _quote(text: str, chars: int = SHOWN_CHARS) -> str:
    text = " ".join(text.split())
    return f'"{text}"' if len(text) <= chars else f'"{text[:chars]}…"'


def _format_count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
