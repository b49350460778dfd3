"""Conversations through every client API in front of upstreams that refuse what their providers refuse.

A conversation changes its client API and its upstream at any place, also between a call and its result. Whatever its models and clients
say, no upstream refuses a request, each word of the working set is in the request, and a longer prompt begins with the same bytes.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing import Reply
from tests.amounts import sampling_step
from tests.behaviour.kit import Served, gateway
from tests.providers.providers import find_fault, make_signature
from tests.providers.strict_upstreams import UPSTREAMS, Json, Strict, make_models

SCHEMA: Final[Json] = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS: Final = ("find", "sh_1")
TEXTS: Final = ("Where is {}?", "где {} 𝄞\n", "  {}  ", "```\n{}\n```", "{} مرحبا 你好", '{{"a": "{}"}}')
SIZES: Final = (1, 1, 1, 1, 30, 400)
ARGUMENTS: Final = ('{{"q": "{}"}}', '{{"q": "{}', "", "null", '["{}"]', '"{}"', '{{"q": {{"a": ["{}"]}}}}')
IDS: Final = ("call_{}", "{}" + "x" * 70, "a b:{}", "é{}", "toolu_{}", None, "same")
NAMES: Final = (*TOOLS, *TOOLS, "get weather", "1.b:c", "é", "x" * 70)
SPEAKERS: Final = (None, None, "ada", "Ada L.", "é")
REASONING: Final = (None, None, "plain", "signed", "foreign", "sealed")
CONTEXTS: Final = (
    {"strategy": "none"},
    {"strategy": "digest"},
    {"strategy": "token_window"},
    {"strategy": "summary_buffer", "summarizer_llm": "none"},
    {"strategy": "buffer_window", "window_size": 4},
    {"strategy": "clear_tool_results", "keep": 1},
    {"strategy": "salience"},
)
SYSTEM: Final = ("system", "developer")
"""Roles whose messages at the beginning of a request are the system prompt of this request only."""
BUDGETS: Final = (1_000, 4_000, 100_000)


class Answer(NamedTuple):
    """What a model says."""

    text: str | None
    form: str
    """`text`, `parts`, `empty`, `null` or `missing`: how the content of a reply with calls is written. `refusal`: the text is one."""
    calls: tuple[tuple[str, str, str | None], ...]
    """Name, arguments and id of each call."""
    reasoning: str | None


class Step(NamedTuple):
    """One request of a client, and its answer."""

    api: str
    stream: bool
    llm: str
    kinds: tuple[str, ...]
    """What the user sends, unless calls wait for results."""
    text: str
    size: int
    speaker: str | None
    result: str
    """How the results of calls are written."""
    seed: int
    tools: bool
    answer: Answer


NEWS: Final = ("text", "text", "text", "parts", "picture", "developer", "system", "blank", "round", "said")
answers = st.builds(
    Answer,
    st.sampled_from([*TEXTS, None]),
    st.sampled_from(["text", "text", "parts", "empty", "null", "missing", "refusal"]),
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(ARGUMENTS), st.sampled_from(IDS)), max_size=3).map(
        tuple
    ),
    st.sampled_from(REASONING),
)
steps = st.builds(
    Step,
    st.sampled_from(["chat", "messages", "responses"]),
    st.booleans(),
    st.sampled_from(UPSTREAMS),
    st.lists(st.sampled_from(NEWS), min_size=1, max_size=3).map(tuple),
    st.sampled_from(TEXTS),
    st.sampled_from(SIZES),
    st.sampled_from(SPEAKERS),
    st.sampled_from(["text", "text", "parts", "error", "picture", "blank", "more"]),
    st.integers(0, 5),
    st.sampled_from([True, True, True, False]),
    answers,
)


def make_picture(number: int) -> str:
    """Return a PNG in base64, each with bytes of its own."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII5B", 13, b"IHDR", 64, 64, 8, 2, 0, 0, 0)
    return base64.b64encode(head + number.to_bytes(4, "big")).decode()


class Conversation:
    """A client that goes on with one session through any API.

    Attributes:
        words: a word of each text that was said, which no other text has.
        calls: id and name of the calls that wait for results.
    """

    def __init__(self, served: Served, strict: Strict, agent: str, word: str) -> None:
        self.served, self.strict, self.agent, self.session_id = served, strict, agent, "s"
        self._word = re.compile(word)
        self.words: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self._numbers = itertools.count()
        self._before: dict[str, tuple[list[Json], Json]] = {}

    def find_words(self, value: Any) -> set[str]:
        """Return the words of a value."""
        return set(self._word.findall(re.sub(r"\\+(u[0-9a-f]{4}|.)", " ", json.dumps(value))))

    def say(self, template: str, size: int = 1) -> str:
        """Return a text with a word of its own."""
        word = f"wd{next(self._numbers)}z"
        self.words.append(word)
        return template.format(word) + " and some more words of no importance" * (size - 1)

    # -- what clients send -------------------------------------------------------------

    def write_news(self, step: Step) -> list[Json]:
        """Return the new messages of a turn in the format of Chat Completions."""
        if self.calls:
            return self._write_results(step)
        named = {"name": step.speaker} if step.speaker and step.api == "chat" else {}
        messages: list[Json] = []
        for kind in (*step.kinds, *(("text",) if step.kinds[-1] not in ("text", "parts", "picture") else ())):
            text = self.say(step.text, step.size) if kind != "blank" else " \n"
            part = {"type": "text", "text": text}
            if kind in ("system", "developer"):
                messages.append({"role": kind, "content": text})
            elif kind == "said":
                messages.append({"role": "assistant", "content": text})
            elif kind == "round":
                messages += self._write_round(step, text)
            elif kind == "parts":
                messages.append({"role": "user", "content": [part, {"type": "text", "text": self.say("{}")}], **named})
            elif kind == "picture":
                messages.append({"role": "user", "content": [part, self._make_picture()], **named})
            else:
                messages.append({"role": "user", "content": text, **named})
        return messages

    def _make_picture(self) -> Json:
        url = f"data:image/png;base64,{make_picture(next(self._numbers))}"
        return {"type": "image_url", "image_url": {"url": url}}

    def _write_round(self, step: Step, text: str) -> list[Json]:
        """Return a reply with a call that another program made, and its result."""
        call_id = f"own_{next(self._numbers)}"
        arguments = ARGUMENTS[step.seed].replace("{}", "x").replace("{{", "{").replace("}}", "}")
        call = {"id": call_id, "type": "function", "function": {"name": "find", "arguments": arguments}}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": text},
        ]

    def _write_results(self, step: Step) -> list[Json]:
        orders = list(itertools.permutations(self.calls))
        messages: list[Json] = []
        for call_id, _ in orders[step.seed % len(orders)]:
            content: Any = "  " if step.result == "blank" else self.say(step.text, step.size)
            if step.result in ("parts", "picture"):
                content = [{"type": "text", "text": content}]
                content += [self._make_picture()] if step.result == "picture" else []
            more = {"is_error": True} if step.result == "error" and step.api == "messages" else {}
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content, **more})
        if step.result == "more":
            messages.append({"role": "user", "content": self.say("Hurry, {}!")})
        self.calls = []
        return messages

    def make_body(self, step: Step, news: Sequence[Json]) -> tuple[str, Json]:
        """Return path and body of a request with new messages."""
        own: Json = {"session_id": self.session_id, "agent": self.agent, "model": step.llm, "stream": step.stream}
        if step.api == "chat":
            functions = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in TOOLS]
            body: Json = {"messages": news, "tools": functions, "session_mode": "delta"}
        elif step.api == "messages":
            system = [
                {"type": "text", "text": one["content"]} for one in news if one["role"] in ("system", "developer")
            ]
            declared = [{"name": name, "input_schema": SCHEMA} for name in TOOLS]
            body = {"messages": list(_to_blocks(news)), "max_tokens": 2_000, "tools": declared, "session_mode": "delta"}
            body |= {"system": system} if system else {}
        else:
            flat = [{"type": "function", "name": name, "parameters": SCHEMA} for name in TOOLS]
            body = {"input": [item for one in news for item in _to_items(one)], "tools": flat, "session_mode": "delta"}
        if not step.tools:
            del body["tools"]
        path = {"chat": "chat/completions"}.get(step.api, step.api)
        return f"/v1/{path}", {**body, **own}

    # -- what models answer ------------------------------------------------------------

    def write_reply(self, step: Step) -> Reply:
        """Return what the model of the step answers."""
        text, form, calls, reasoning = step.answer
        if step.llm in ("anthropic", "responses"):  # which check what their models write
            calls = tuple((name, arguments, None) for name, arguments, _ in calls if name in TOOLS)
        said = None if text is None and calls else self.say(text or "Well, {}.")
        thought = None if reasoning is None else f"th{next(self._numbers)}z"
        written = [
            (
                name,
                self.say(arguments) if "{}" in arguments else arguments,
                call_id and call_id.format(next(self._numbers)),
            )
            for name, arguments, call_id in calls
        ]
        if step.llm in ("anthropic", "responses"):
            written = [(name, json.dumps(_read(arguments)), None) for name, arguments, _ in written]
            message: Json = {}
            if thought and step.llm == "anthropic":
                message["thinking_blocks"] = [
                    {"type": "redacted_thinking", "data": make_signature("anthropic", thought)}
                    if reasoning == "sealed"
                    else {"type": "thinking", "thinking": thought, "signature": make_signature("anthropic", thought)}
                ]
            elif thought:
                message["reasoning_content"] = thought
            if not (said or written):
                said = self.say("Well, {}.")
            return Reply(text=said, tool_calls=[(name, arguments) for name, arguments, _ in written], message=message)
        return Reply(message=_write_message(step, said, form, written, thought))

    # -- turns -------------------------------------------------------------------------

    async def play(self, step: Step) -> None:
        """Play one step."""
        news = self.write_news(step)
        before = list(self.words)
        leading = itertools.takewhile(lambda one: step.api == "messages" or one["role"] in SYSTEM, news)
        brief = {word for one in leading if one["role"] in SYSTEM for word in self.find_words(one)}
        self.words = [word for word in self.words if word not in brief]
        await self.send(step, news, self.write_reply(step), before)

    async def send(self, step: Step, news: Sequence[Json], reply: Reply, words: Sequence[str] = ()) -> None:
        """Send a request, read its answer, and check what the upstream received."""
        path, body = self.make_body(step, news)
        self.strict.reply, known = reply, self.strict.learned
        response = await self.served.http.post(path, json=body)
        assert not self.strict.refusals, (self.strict.refusals, response.text)
        assert response.status_code == 200, response.text
        self.calls = read_calls(step.api, response.text, stream=step.stream)
        await self.check_gemini()
        await self.check(step.llm, words, learned=self.strict.learned > known)

    async def check_gemini(self) -> None:
        """Check the prompt in the format of an API that no upstream of the product has."""
        view = await self.served.http.post(f"/v1/sessions/{self.session_id}/context", json={"dialect": "gemini"})
        prompt = view.json()
        body = {"contents": prompt["messages"], "systemInstruction": prompt.get("system")}
        assert find_fault("gemini_native", {"model": "gemini-3-flash", **body}) is None, body

    async def check(self, llm: str, words: Sequence[str], *, learned: bool) -> None:
        """Check words and beginning of the newest request to an upstream."""
        sent = self.strict.bodies[llm][-1]
        view = await self.served.http.get(f"/v1/sessions/{self.session_id}/calls", params={"limit": 1, "order": "desc"})
        call = view.json()["data"][0]
        view = await self.served.http.get(f"/v1/sessions/{self.session_id}/calls/{call['id']}")
        prompt = view.json()  # not exact: what was sent cannot be rebuilt, for example after media were refused
        kept = [one["message"] for one in prompt["messages"] if one["section"] != "system" and prompt["exact"]]
        wanted = self.find_words([_list_texts(one) for one in kept]) | set(words if self.agent == "all" else ())
        assert not (lost := wanted - self.find_words(sent)), (lost, kept, sent)
        old, earlier = self._before.get(llm, ([], {}))
        self._before[llm] = kept, sent
        if old and not learned and kept[: len(old)] == old:
            first, second = _list_sent(earlier), _list_sent(sent)
            assert first[:-1] == second[: len(first) - 1], (first, second)


def _list_texts(message: Json) -> list[Any]:
    """Return what a message of a prompt says."""
    content = message.get("content")
    texts = [part.get("text") for part in content] if isinstance(content, list) else [content]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return [text for text in (*texts, message.get("refusal"), *calls) if text]


def _list_sent(body: Mapping[str, Any]) -> list[str]:
    """Return the messages of a request after its system prompt, without marks of caches and signatures of the current round."""
    messages = body.get("messages") or body.get("input") or []
    messages = list(itertools.dropwhile(lambda one: one.get("role") in SYSTEM, messages))
    shown = [json.dumps(one) for one in messages]
    return [re.sub(r', "cache_control": {[^}]*}|, "extra_content": {"google": {[^}]*}}', "", one) for one in shown]


def _read(arguments: str) -> Json:
    try:
        found = json.loads(arguments)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"q": arguments}


def _write_message(
    step: Step, said: str | None, form: str, calls: Sequence[tuple[str, str, str | None]], thought: str | None
) -> Json:
    """Return a message of the assistant as chat models write it."""
    message: Json = {"role": "assistant", "content": said}
    if form == "refusal" and said and step.llm in ("openai", "azure"):
        message |= {"content": None, "refusal": said}
    elif form == "parts" and said:
        message["content"] = [{"type": "text", "text": said}]
    elif said is None and form == "empty":
        message["content"] = ""
    elif said is None and form == "missing":
        del message["content"]
    if calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": arguments}}
            | ({} if call_id is None else {"id": call_id})
            for name, arguments, call_id in calls
        ]
    if thought:
        message |= _write_reasoning(step.llm, step.answer.reasoning, thought)
    if thought and step.llm == "gemini" and calls:
        message["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": make_signature("google", thought)}}
    return message


def _write_reasoning(llm: str, kind: str | None, thought: str) -> Json:
    signature = make_signature("anthropic", thought)
    if llm == "openrouter" and kind != "plain":
        detail: Json = {
            "type": "reasoning.text",
            "text": thought,
            "signature": signature,
            "format": "anthropic-claude-v1",
        }
        if kind == "sealed":
            detail = {"type": "reasoning.encrypted", "data": signature, "format": "anthropic-claude-v1"}
        elif kind == "foreign":
            sealed = make_signature("openai", thought)
            detail = {"type": "reasoning.encrypted", "data": sealed, "format": "openai-responses-v1"}
        return {"reasoning": thought, "reasoning_details": [detail]}
    if llm == "litellm" and kind != "plain":
        block = {"type": "thinking", "thinking": thought, "signature": signature}
        return {"reasoning_content": thought, "thinking_blocks": [block], "provider_specific_fields": {"x": 1}}
    return {"reasoning" if kind == "signed" else "reasoning_content": thought}


def _to_blocks(messages: Sequence[Json]) -> Iterator[Json]:
    """Yield messages of Chat Completions as those of Anthropic's API, without system messages."""
    results: list[Json] = []
    for message in messages:
        role, content = message["role"], message["content"]
        parts = [_to_block(part) for part in content] if isinstance(content, list) else content
        if role == "tool":
            more = {"is_error": True} if message.get("is_error") else {}
            results.append({"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": parts, **more})
            continue
        if results:
            yield {"role": "user", "content": results}
            results = []
        if calls := message.get("tool_calls"):
            functions = [(call["id"], call["function"]) for call in calls]
            uses = [
                {"type": "tool_use", "id": call_id, "name": one["name"], "input": _read(one["arguments"])}
                for call_id, one in functions
            ]
            yield {"role": "assistant", "content": uses}
        elif role in ("user", "assistant"):
            yield {"role": role, "content": parts}
    if results:
        yield {"role": "user", "content": results}


def _to_block(part: Json) -> Json:
    if part["type"] == "text":
        return part
    data = part["image_url"]["url"].partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def _to_items(message: Json) -> Iterator[Json]:
    """Yield a message of Chat Completions as items of the Responses API."""
    role, content = message["role"], message["content"]
    kind = "output_text" if role == "assistant" else "input_text"
    if isinstance(content, list):
        content = [_to_input(part, kind) for part in content]
    if role == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": content}
    elif calls := message.get("tool_calls"):
        yield from ({"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls)
    else:
        yield {"role": role, "content": content}


def _to_input(part: Json, kind: str) -> Json:
    if part["type"] == "text":
        return {"type": kind, "text": part["text"]}
    return {"type": "input_image", "image_url": part["image_url"]["url"]}


def read_calls(api: str, text: str, *, stream: bool) -> list[tuple[str, str]]:
    """Return id and name of the calls in an answer."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")] if stream else []
    body = {} if stream else json.loads(text)
    if api == "chat":
        messages = [choice["delta"] for event in events for choice in event["choices"]] or [
            body["choices"][0]["message"]
        ]
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        found = [(call["id"], call["function"]["name"]) for call in calls if call.get("id")]
    elif api == "messages":
        blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        found = [(one["id"], one["name"]) for one in blocks or body.get("content", ()) if one["type"] == "tool_use"]
    else:
        output = (events[-1]["response"] if stream else body)["output"]
        found = [(one["call_id"], one["name"]) for one in output if one["type"] == "function_call"]
    return found


@asynccontextmanager
async def begin(context: Mapping[str, Any], llms: Iterable[str], word: str = r"wd\d+z") -> AsyncIterator[Conversation]:
    """Open a gateway in front of strict upstreams."""
    strict = Strict()
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(server) for server in strict.list_servers()]
        models = make_models(servers, llms)
        agent = "all" if context["strategy"] == "none" else "some"
        agents = {agent: {"llm": min(models), "context": context}}
        config = (f"llms: {json.dumps(models)}", f"agents: {json.dumps(agents)}")
        yield Conversation(await stack.enter_async_context(gateway(None, *config)), strict, agent, word)


async def converse(context: Mapping[str, Any], conversation: Sequence[Step]) -> None:
    """Have a conversation in front of strict upstreams."""
    async with begin(context, {step.llm for step in conversation}) as client:
        for step in conversation:
            await client.play(step)


contexts = st.builds(
    lambda context, budget: context if context["strategy"] == "none" else {**context, "budget": budget},
    st.sampled_from(CONTEXTS),
    st.sampled_from(BUDGETS),
)


@given(context=contexts, conversation=st.lists(steps, min_size=1, max_size=8))
def test_no_upstream_refuses_a_conversation(context: Json, conversation: list[Step]) -> None:
    asyncio.run(converse(context, conversation))


async def replay(messages: Sequence[Json], budget: int, llms: Sequence[str]) -> None:
    """Play a recorded conversation. Each request goes to another upstream, through another API."""
    async with begin({"strategy": "digest", "budget": budget}, llms, r"[A-Za-z]{4,}") as client:
        news: list[Json] = []
        turns = itertools.count()
        for message in messages:
            if message["role"] != "assistant":
                open_calls = [call_id for call_id, _ in client.calls]
                answered = sum(one["role"] == "tool" for one in news)
                news.append({**message, "tool_call_id": open_calls[answered]} if message["role"] == "tool" else message)
                continue
            turn = next(turns)
            api, llm = ("chat", "messages", "responses")[turn % 3], llms[turn % len(llms)]
            await client.send(PLAIN._replace(api=api, llm=llm, stream=turn % 2 > 0), news, Reply(message=message))
            news = []


PLAIN: Final = Step("chat", False, "openai", ("text",), "{}", 1, None, "text", 0, True, Answer("{}", "text", (), None))


@pytest.fixture(scope="session")
def recorded(test_data: Path) -> list[list[Json]]:
    """The messages of all recorded sessions, without fields that are not those of messages."""
    rows = [json.loads(line) for file in sorted(test_data.glob("*/*.jsonl")) for line in file.read_bytes().splitlines()]
    sessions = [session["messages"] for row in rows for session in row.get("sessions", [row])]
    return [[{k: one[k] for k in one.keys() - {"timestamp", "id"}} for one in messages] for messages in sessions]


@pytest.mark.parametrize("budget", [1_000, 16_000])
def test_no_upstream_refuses_a_recorded_conversation(recorded: list[list[Json]], budget: int) -> None:
    for at, messages in enumerate(recorded[:: sampling_step(150)]):
        first = at * 5 % len(UPSTREAMS)
        asyncio.run(replay(messages, budget, [*UPSTREAMS[first:], *UPSTREAMS[:first]]))
