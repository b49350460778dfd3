"""The built-in `offline` model: no network, no intelligence, and it says so. Made for trying Holdfast out.

It tells what reached it, which shows what a working set does to a conversation. The same request gives the same answer,
to the byte.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio.lowlevel
import msgspec

from holdfast.accounting import run_cpu
from holdfast.context.recalled import OPENING, SESSION_OPENING
from holdfast.models.collect import as_chunks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

CONFESSION: Final = "I am Holdfast's built-in offline model, not a language model: I only report what reaches me."
HINTS: Final = (
    'Ask "what do you see?" for the messages I was given, one a line. Say "call NAME {"key": "value"}" to have me call a '
    "tool of this request. For real answers, configure a model: set OPENAI_BASE_URL and OPENAI_API_KEY, or `llms` in "
    "holdfast.yaml."
)
SHOWN_CHARS: Final = 200
"""Characters of one text that an answer quotes."""
LISTED_CHARS: Final = 80
"""Characters of each message in a list of them."""
# Not imported from where they are written: that is much to import for whoever uses another model.
_CONDENSED: Final = ("[Condensed from messages ", "[Summary of messages ")
"""How the message begins that stands for a part no longer sent; see `holdfast.context.digest.pool` and `holdfast.context.summaries`."""
_ATTRIBUTED: Final = "[agent "
"""How the message begins in which an agent is told what another one said or did; see `holdfast.context.agent_view`."""
_RECALLED: Final = tuple(label.partition(":")[0] for label in (OPENING, SESSION_OPENING))
"""How the message begins that tells what was recalled for the turn."""
_SEE: Final = re.compile(r"\W*what (?:do|can) you see\W*", re.IGNORECASE)
_HELP: Final = re.compile(r"\W*help\W*", re.IGNORECASE)
_CALL: Final = re.compile(r"\s*call\s+([\w.:-]+)\s*(\{.*\})?\s*", re.IGNORECASE | re.DOTALL)

Request = dict[str, Any]
Count = Callable[[dict[str, Any]], int]


def estimate_tokens(data: dict[str, Any]) -> int:
    """Tokens of a message or a tool schema, roughly: a quarter of its JSON's bytes, at least 1."""
    return max(1, len(msgspec.json.encode(data)) // 4)


class OfflineModel:
    """A model that answers with a report on its prompt.

    It understands `what do you see?` (lists the messages), `call NAME {json}` (calls one of the request's tools; what the
    tool answers is summed up), and `help`; to anything else it says how much it was given, the system prompt's first
    line, the task, whether a part is condensed, what was recalled, what it was told of other agents, and the last user
    message. One choice, whatever `n` says; sampling parameters, `max_tokens` and `tool_choice` have no effect.

    Args:
        name: its name in answers.
        count: tokens of one message or one tool schema, for `usage` and the report.
        clock: Unix seconds for `created`; 0 without one, so that answers do not depend on the time.
    """

    def __init__(
        self, name: str = "offline", *, count: Count = estimate_tokens, clock: Callable[[], float] | None = None
    ) -> None:
        self._name = name
        self._count = count
        self._clock = clock

    @property
    def name(self) -> str:
        """`offline`, unless named otherwise."""
        return self._name

    async def stream(
        self, request: Request, *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """See `Model.stream`. Word by word; raises nothing."""
        # It counts the whole prompt, as a real model's provider does elsewhere.
        for chunk in as_chunks(await run_cpu(self._completion, request), by_word=True):
            await anyio.lowlevel.checkpoint()
            yield chunk

    async def close(self) -> None:
        """See `Model.close`."""

    def _completion(self, request: Request) -> dict[str, Any]:
        prompt = _Prompt(request, self._count)
        message = _answer(prompt)
        completion_tokens = self._count(message)
        return {
            "id": f"chatcmpl-offline-{prompt.digest}",
            "object": "chat.completion",
            "created": int(self._clock()) if self._clock else 0,
            "model": self._name,
            "choices": [
                {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
            ],
            "usage": {
                "prompt_tokens": prompt.tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt.tokens + completion_tokens,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }


class _Prompt:
    """What a request says, as far as the offline model cares."""

    def __init__(self, request: Request, count: Count) -> None:
        self.messages = [message for message in request.get("messages") or () if isinstance(message, dict)]
        self.tools = [tool for tool in request.get("tools") or () if isinstance(tool, dict)]
        self.sizes = [count(message) for message in self.messages]
        self.tokens = sum(self.sizes) + sum(count(tool) for tool in self.tools)
        told = msgspec.json.encode([self.messages, self.tools], order="sorted")
        self.digest = hashlib.blake2b(told, digest_size=8).hexdigest()

    def texts(self, *roles: str) -> list[str]:
        """The texts of all messages in these roles, without those that nobody said: condensed parts, what was recalled."""
        return [
            text
            for message in self.messages
            if message.get("role") in roles and not (text := _text(message)).startswith((*_CONDENSED, *_RECALLED))
        ]

    @property
    def condensed(self) -> bool:
        """Whether a message stands for a part of the conversation."""
        return any(_text(message).startswith(_CONDENSED) for message in self.messages if message.get("role") == "user")

    @property
    def recalled(self) -> list[str] | None:
        """The texts of what was recalled; None: there is no such block."""
        for message in self.messages:
            if message.get("role") == "user" and (block := _text(message)).startswith(_RECALLED):
                return list(_items(block))
        return None

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools that may be called."""
        functions = [tool.get("function") for tool in self.tools]
        names = [function.get("name") for function in functions if isinstance(function, dict)]
        return [name for name in names if isinstance(name, str)]


def _answer(prompt: _Prompt) -> dict[str, Any]:
    """The assistant message."""
    said = prompt.texts("user")
    last = said[-1] if said else ""
    if prompt.messages and prompt.messages[-1].get("role") == "tool":
        told = list(_results(prompt))
    elif asked := _CALL.fullmatch(last):
        return _call(prompt, asked[1], asked[2] or "{}")
    elif _SEE.fullmatch(last):
        told = _listing(prompt)
    elif _HELP.fullmatch(last):
        told = [HINTS]
    else:
        told = [*_report(prompt, said), HINTS]
    return _saying("\n".join(told))


def _saying(told: str) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{CONFESSION}\n\n{told}"}


def _report(prompt: _Prompt, said: list[str]) -> Iterator[str]:
    roles = Counter(str(message.get("role")) for message in prompt.messages)
    counted = ", ".join(f"{number} {role}" for role, number in roles.items())
    yield f"I was given {_number(len(prompt.messages), 'message')} ({counted or 'none'}), about {prompt.tokens:,} tokens."
    system = prompt.texts("system", "developer")
    if system:
        yield f"The system prompt begins: {_quote(system[0].strip().partition(chr(10))[0])}"
    if prompt.tools:
        yield f"Tools I may call: {', '.join(prompt.tool_names)}."
    theirs = [text for text in said if text.startswith(_ATTRIBUTED)]
    yours = [text for text in said if not text.startswith(_ATTRIBUTED)]
    if len(yours) > 1:
        yield f"The task, your first message that I see: {_quote(yours[0])}"
    if prompt.condensed:
        yield "An earlier part of our conversation reached me only in condensed form."
    if (recalled := prompt.recalled) is not None:
        told = "; ".join(_quote(text, LISTED_CHARS) for text in recalled)
        yield f"Recalled for me from earlier, {_number(len(recalled), 'item')}: {told}"
    if theirs:
        yield f"Of other agents I was told {_number(len(theirs), 'message')}, the last one: {_quote(theirs[-1])}"
    if yours:
        yield f"You just said: {_quote(yours[-1])}"


def _items(block: str) -> Iterator[str]:
    """The texts in the lines of a recalled block, as far as it is one."""
    for line in block.splitlines()[1:]:
        try:
            item = msgspec.json.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if isinstance(item, dict) and isinstance(text := item.get("text"), str):
            yield text


def _listing(prompt: _Prompt) -> list[str]:
    lines = [f"{_number(len(prompt.messages), 'message')}, about {prompt.tokens:,} tokens:"]
    for at, (message, size) in enumerate(zip(prompt.messages, prompt.sizes, strict=True), 1):
        calls = [str((call.get("function") or {}).get("name")) for call in _calls(message)]
        called = f" calls {', '.join(calls)}" if calls else ""
        text = _text(message)
        shown = f" {_quote(text, LISTED_CHARS)}" if text else ""
        lines.append(f"{at}. {message.get('role')}{called}{shown} ({size:,} tokens)")
    return lines


def _results(prompt: _Prompt) -> Iterator[str]:
    """What the tools answered since the last assistant message."""
    names = {call.get("id"): (call.get("function") or {}).get("name") for m in prompt.messages for call in _calls(m)}
    results = []
    for message in reversed(prompt.messages):
        if message.get("role") != "tool":
            break
        results.append(message)
    for message in reversed(results):
        text = _text(message)
        name = names.get(message.get("tool_call_id")) or message.get("name") or "a tool"
        yield f"{name} answered with {_number(len(text), 'character')}: {_quote(text)}"


def _call(prompt: _Prompt, name: str, arguments: str) -> dict[str, Any]:
    """An assistant message that calls the tool, or says why not."""
    if name not in prompt.tool_names:
        known = ", ".join(prompt.tool_names) or "none"
        return _saying(f"This request offers no tool called {name}. Tools it offers: {known}.")
    try:
        msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        return _saying(f"I cannot call {name}: its arguments are no JSON object ({exc}).")
    call_id = f"call_{prompt.digest}"
    return _saying(f"Calling {name}, as you asked.") | {
        "tool_calls": [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]
    }


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [call for call in message.get("tool_calls") or () if isinstance(call, dict)]


def _text(message: dict[str, Any]) -> str:
    """The words of a message; media as their type in brackets."""
    content = message.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    parts = [part for part in content if isinstance(part, dict)]
    return "".join(part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type')}]" for part in parts)


def _quote(text: str, chars: int = SHOWN_CHARS) -> str:
    text = " ".join(text.split())
    return f'"{text}"' if len(text) <= chars else f'"{text[:chars]}…"'


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
