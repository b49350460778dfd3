"""Prompts in pinned exchanges: conversations written as short texts, and what a strategy makes of them.

    await talk(x, "s", "orders")                                 # appends `talks/orders.txt` to a session
    await prompt(x, "s", strategy="token_window", budget=300)    # writes down the prompt and the decisions

In a text each line is a message, `ROLE: WORDS`; `user*40: …` says its words 40 times, and `\\n` is a line end. `call find {"q": 1}` is a reply
that calls a tool, `result: …` its result. Fields follow the role: `user {"pinned": true}: …`. A line of JSON is a message as it is.
`~ hours=3` lets time pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.behaviour.kit.exchanges import Exchange, render
from tests.behaviour.kit.seams import settle

TALKS: Final = Path(__file__).parent / "talks"
SAID: Final = re.compile(
    r"(?P<role>user|assistant|system|developer|result)(?:\*(?P<times>\d+))?(?: (?P<more>\{.*?\}))?: ?(?P<words>.*)"
)
CALL: Final = re.compile(r"call (?P<name>\w+) (?P<given>\{.*\})(?: \| (?P<words>.*))?")
REPEATED: Final = re.compile(r"(.{20,120}?)\1{2,}")
SHORT: Final = 80
"""A message with more characters is written down whole once, and after that its number and beginning."""
UNITS: Final = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}


WEEK_AGENTS: Final = """
agents:
  wide: {context: {strategy: token_window, budget: 330, target: 0.5}}
  few: {context: {strategy: head_tail, window_size: 3}, instruction: "Answer {user:name?} about {topic?} as {app:house?} does."}
  short: {context: {strategy: digest, budget: 400}}
  long: {context: {strategy: digest, budget: 1200}}
  chosen: {context: {strategy: salience, budget: 350}}
  cleared: {context: {strategy: clear_tool_results, trigger: 150, keep: 1, clear_at_least: 20, budget: 500}}
"""
WEEK: Final = (
    "Please plan my week in Bergen, and never book a flight.", "On Monday I meet Ida at 9:30 at 14 Quay Lane.", "My budget is 400 a day.", "And what about Tuesday?",
    "I am vegetarian.", "No, the budget is 450 a day now.", "Ida moved to 10:15.", "Is the ferry HX-204 late?", "Where do I meet Ida, and when?",
)  # fmt: skip


def answer_at_length(body: dict[str, Any]) -> Any:
    """Answer as a script of `gateway`: the longer the question, the longer."""
    said = str(body["messages"][-1]["content"])
    return (
        f"About that ({said[:30]}) there is much to say, for the harbour, the market and the old town are near: "
        + "see there; " * (len(said) % 7)
    )


def read_talk(name: str) -> Iterator[list[dict[str, Any]] | int]:
    """Yield messages that are said at one time, and the milliseconds until the next ones."""
    made: list[dict[str, Any]] = []
    for number, line in enumerate((TALKS / f"{name}.txt").read_text(encoding="utf-8").splitlines()):
        if line.startswith("~ "):
            unit, _, amount = line[2:].partition("=")
            yield made
            yield int(float(amount) * UNITS[unit])
            made = []
        elif line.startswith("{"):
            made.append(json.loads(line))
        elif found := CALL.fullmatch(line):
            function = {"name": found["name"], "arguments": found["given"]}
            calls = [{"id": f"call_{number}", "type": "function", "function": function}]
            made.append({"role": "assistant", "content": found["words"], "tool_calls": calls})
        elif found := SAID.fullmatch(line):
            words = " ".join([found["words"].replace("\\n", "\n")] * int(found["times"] or 1))
            more = json.loads(found["more"] or "{}")
            own = (
                {"role": "tool", "tool_call_id": f"call_{number - 1}"}
                if found["role"] == "result"
                else {"role": found["role"]}
            )
            made.append({**own, "content": words, **more})
        elif line:
            raise ValueError(f"{name}: {line}")
    yield made


async def talk(x: Exchange, session_id: str, name: str, **fields: Any) -> None:
    """Append a conversation to a session, which is created with `fields` if it does not exist; write down only which."""
    x.lines.append(f"> {name} is said in {session_id}")
    await x.served.http.post("/v1/sessions", json={"id": session_id, **fields})
    for said in read_talk(name):
        if isinstance(said, int):
            x.served.clock.now += said
        elif said:
            answer = await x.served.http.post(f"/v1/sessions/{session_id}/messages", json={"messages": said})
            assert answer.is_success, answer.text
    await x.settle()


async def prompt(x: Exchange, session_id: str, **options: Any) -> None:
    """Build a prompt; write down its messages, tokens and decisions."""
    x.served.clock.now += 1000
    answer = await x.served.http.post(f"/v1/sessions/{session_id}/context", json={"explain": True, **options})
    found = answer.json()
    x.write(f"> the prompt of {session_id}", options)
    if not answer.is_success:
        x.write(f"< {answer.status_code}", found)
        return
    build = found["build"]
    build.pop("hash")
    facts = {
        name: found[name]
        for name in ("conversation_tokens", "total_tokens", "budget", "provider_count", "sent_hash", "system")
        if name in found
    }
    x.write(
        "< is of",
        {
            **facts,
            **({} if "strategy" in options else {"strategy": build["strategy"]}),
            **{name: one for name, one in build.items() if name not in ("strategy", "budget")},
        },
    )
    for run in found["decisions"]:
        x.lines.append(f"    {run['from']}-{run['to']} {run['decision']} ({run['tokens']}): {run['reason']}")
    _show(x, found["messages"])


async def converse(x: Exchange, session_id: str, words: Iterable[str], **fields: Any) -> None:
    """Run turns of which nothing is written down."""
    for one in words:
        x.served.clock.now += 1000
        await x.served.chat(one, session_id, **fields)
        await settle(x.served.native)
    x.seen |= {name: len(model.requests) for name, model in x.served.models.items()}
    x.lines.append(f"> talk in {session_id}")


async def say(x: Exchange, session_id: str, words: Any, **fields: Any) -> Any:
    """Run a turn of a session; write down what the answer says of it, and the prompts that models got."""
    x.served.clock.now += 1000
    body = {"session_id": session_id, "messages": [{"role": "user", "content": words}], **fields}
    answer = await x.served.http.post("/v1/chat/completions", json=body)
    await settle(x.served.native)
    x.write(f"> say in {session_id}", fields)
    x.lines.append(f"    {REPEATED.sub(_count, str(words))}")
    for _, sent in x.take_requests():
        x.lines.append(f"- {sent['model']} got")
        _show(x, [*([{"role": "system", "content": sent["system"]}] if "system" in sent else []), *sent["messages"]])
    found = answer.json()
    x.write("<", found.get("session", found))
    return found


def _show(x: Exchange, messages: Iterable[Mapping[str, Any]]) -> None:
    for one in messages:
        lines = _outline(one)
        text = "\n".join(lines)
        known = text in x.seen
        number = x.seen.setdefault(text, len(x.seen))
        x.lines += (
            [f"    | ={number} {lines[0][2:60]}"] if known and len(text) > SHORT else [f"    {line}" for line in lines]
        )


def _outline(message: Mapping[str, Any]) -> list[str]:
    """Write a message: its role, its words, and its other fields as JSON."""
    more = {name: value for name, value in message.items() if name not in ("role", "content") and value is not None}
    words = message.get("content")
    if isinstance(words, (list, Mapping)):
        more, words = {"content": words, **more}, None
    first, *rest = REPEATED.sub(_count, str(words or "")).split("\n")
    return [
        f"| {message['role']}: {first}".rstrip(),
        *(f"|   {line}" for line in [*rest, *(render(more) if more else [])]),
    ]


def _count(found: re.Match[str]) -> str:
    """Write repeated words once, with their number."""
    return f"{found[1]}(x{len(found[0]) // len(found[1])}) "


async def recalled(x: Exchange, session_id: str, questions: Iterable[str], **options: Any) -> None:
    """Ask each question in a fork of a session; write down only what its prompt recalls."""
    x.write(f"> questions in {session_id}", options)
    for number, question in enumerate(questions):
        fork = f"{session_id}-{len(x.lines)}-{number}"
        await x.served.http.post(f"/v1/sessions/{session_id}/fork", json={"id": fork})
        await x.served.http.post(
            f"/v1/sessions/{fork}/messages", json={"messages": [{"role": "user", "content": question}]}
        )
        answer = await x.served.http.post(f"/v1/sessions/{fork}/context", json={"explain": True, **options})
        found = answer.json()
        x.write(f"? {question}", found.get("build", found).get("recalled"))
        blocks = [
            str(one["content"]) for one in found.get("messages", ()) if str(one["content"]).startswith("[recalled")
        ]
        x.lines += [f"    {line}" for block in blocks for line in block.split("\n")[1:-1]]
