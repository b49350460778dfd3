"""Agents in one session: workflows, conversations that are handed over, and what each agent sees and leaves behind."""

from __future__ import annotations

from typing import Any, Final, Self

from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.behaviour.kit import Speakers, assistant, bearer, result, user
from tests.behaviour.kit.exchanges import Exchange, exchange

DOWN: Final = Reply(status=503, error="down")
DOOR: Final = {
    "type": "function",
    "function": {"name": "open_door", "parameters": {"type": "object", "properties": {}}},
}
NESTED: Final = """
agents:
  whole: {sequence: [plan, panel, verdict], failure_message: The whole failed.}
  plan: {instruction: I am plan, output_key: "temp:plan"}
  panel: {parallel: [hope, grounds]}
  hope: {instruction: "I am hope of {temp:plan?}", output_key: hope}
  grounds: {sequence: [facts, inner]}
  facts: {instruction: I am facts, output_key: "user:facts"}
  inner: {parallel: [left, right]}
  left: {instruction: I am left}
  right: {instruction: "I am right of {user:facts?}"}
  verdict: {instruction: "I am verdict on {hope?} {temp:plan?} {user:facts?} {temp:gone?}", output_key: verdict}
"""
SEQUENCE: Final = """
agents:
  line: {sequence: [draft, check, polish]}
  draft: {instruction: I am draft, output_key: draft, tools: [shout]}
  check: {instruction: "I am check of {draft?}", failure_message: The check is ill., tools: []}
  polish: {instruction: I am polish, output_key: "user:polished", tools: []}
"""
PANEL: Final = """
agents:
  panel: {parallel: [hope, doubt]}
  hope: {instruction: I am hope, output_key: hope}
  doubt: {instruction: I am doubt, failure_message: No doubts today.}
"""
TEAM: Final = """
agents:
  chief: {instruction: I am chief, description: "Decides\\n all.", sub_agents: [finder, writer], output_key: plan, state: {level: 1, "user:seen": a}}
  finder: {instruction: "I am finder {plan?}", description: Looks things up., sub_agents: [digger], output_key: "user:found", tools: []}
  digger: {instruction: I am digger, greeting: Hello from the digger., tools: []}
  writer: {instruction: I am writer, sequence: [], tools: [shout]}
  other: {instruction: I am other, sub_agents: [digger], tools: []}
"""


def shout(text: str) -> str:
    """Shout."""
    return text.upper()


def call(name: str, said: str | None = None, **arguments: Any) -> Reply:
    return Reply(text=said, tool_calls=[(name, arguments)])


def over(name: Any, said: str | None = None, **more: Any) -> Reply:
    return call("transfer_to_agent", said, agent_name=name, **more)


async def say(x: Exchange, text: str, model: str | None = None, **fields: Any) -> Any:
    return await x.post("/v1/chat/completions", session_id="s", model=model, messages=[user(text)], **fields)


async def show(x: Exchange, session_id: str = "s") -> None:
    """Pin what a session keeps."""
    await x.rows(
        f"/v1/sessions/{session_id}/messages", "seq", "turn_id", "agent", "role", "content", "metadata", limit=100
    )
    await x.get(f"/v1/sessions/{session_id}/state")


@exchange({"draft": ["D1", "D2"], "check": ["C1", DOWN, "C3"], "polish": ["P1", "P3"]}, SEQUENCE, tools=[shout])
async def test_a_sequence(x: Exchange) -> None:
    await say(x, "One", "line", response_format={"type": "json_object"}, tools=[DOOR], tool_choice="required")
    await show(x)
    await say(x, "Two", "line", stream=True, stream_options={"include_usage": True, "include_progress": True})
    await show(x)
    await say(x, "Two", "line", n=2)
    await say(x, "Two", "line")
    await show(x)
    await x.get("/v1/sessions/s/history")
    await x.get("/v1/sessions/s")


HOPE_IS_DONE: Final = Gate()
LATE: Final = Reply(status=503, error="down", hold=HOPE_IS_DONE)


@exchange({"hope": ["H1", "H2", DOWN, DOWN], "doubt": ["D1", LATE, DOWN, "D4"]}, PANEL)
async def test_a_panel(x: Exchange) -> None:
    await say(x, "One", "panel", tools=[DOOR])
    asked = {"session_id": "s", "model": "panel", "messages": [user("Two")], "stream": True}
    asked["stream_options"] = {"include_progress": True}
    x.served.clock.now += 1000
    x.write("> POST /v1/chat/completions", asked)
    async with x.served.http.stream("POST", "/v1/chat/completions", json=asked) as answer:
        async for line in answer.aiter_lines():
            x.lines += [line] * bool(line)
            if line == ": agent hope done":
                HOPE_IS_DONE.open()
    await x.settle()
    await say(x, "Three", "panel")
    await say(x, "Four", "panel")
    await show(x)
    await x.get("/v1/sessions/s/history")
    await say(x, "Five", "hope")


CALLS: Final[dict[str, Any]] = {
    "plan": ["Pl1"],
    "hope": ["H1", "H2"],
    "facts": ["F1", "F2"],
    "left": ["L1", "L2"],
    "right": ["R1", "R2"],
    "verdict": [call("open_door"), "V1", "V2", DOWN],
}


@exchange({**CALLS, "plan": ["Pl1", call("open_door", "Open it."), "Pl2", DOWN]}, NESTED)
async def test_workflows_in_workflows(x: Exchange) -> None:
    first = await say(x, "One", "whole", tools=[DOOR], tool_choice="required")
    [made] = first["choices"][0]["message"]["tool_calls"]
    await x.post(
        "/v1/chat/completions", session_id="s", model="whole", messages=[result(made["id"], "open")], tools=[DOOR]
    )
    second = await say(x, "Two", "whole", tools=[DOOR], tool_choice="required", response_format={"type": "json_object"})
    [made] = second["choices"][0]["message"]["tool_calls"]
    await x.post("/v1/chat/completions", session_id="s", messages=[result(made["id"], "open")], tools=[DOOR])
    await show(x)
    await say(x, "Three")
    await show(x)
    for agent in ("plan", "right"):
        await x.post("/v1/sessions/s/context", agent=agent)


@exchange(
    {
        "chief": [
            over("writer", "One moment.", message="See page 3."),
            over("nobody"),
            "C3",
            over("finder"),
            over("writer"),
            "C6",
        ],
        "writer": ["W1", call("shout", text="x"), over("chief"), over("chief"), "W5"],
        "finder": [over("digger"), over("digger", message=7), "F3", "F4"],
        "digger": ["D1", "D2", over("finder"), "D4"],
        "other": [over("digger"), "O2"],
    },
    TEAM,
    tools=[shout],
)
async def test_a_conversation_is_handed_over(x: Exchange) -> None:
    await x.post("/v1/sessions", id="s", agent="chief", state={"level": 2})
    await say(x, "One", tools=[DOOR], tool_choice="required")
    await say(x, "Two", "chief")
    await show(x)
    await say(x, "Three", "chief")
    await say(x, "Four", "finder")
    await say(x, "Five", "chief")
    await show(x)
    await say(x, "Six", "other")
    await say(x, "Seven", "digger")
    await say(x, "Eight", agent="nobody")
    await say(x, "Eight", agent="")
    await x.get("/v1/models")
    await x.post("/v1/sessions/s/fork", at_turn=0, id="t")
    await x.post("/v1/chat/completions", session_id="t", messages=[user("Nine")])
    await show(x)


KEYS: Final = """
gateway: {upstream_auth: passthrough}
agents:
  desk: {instruction: I am desk, sub_agents: [near, far, mixed, near_line], agent_tools: [near, far]}
  near: {instruction: I am near, llm: same, tools: []}
  far: {instruction: I am far, llm: other, tools: []}
  mixed: {sequence: [near2, far2], failure_message: Not all of us may speak.}
  near_line: {sequence: [near3, near4]}
  near2: {instruction: I am near2}
  far2: {instruction: I am far2, llm: other}
  near3: {instruction: I am near3}
  near4: {instruction: I am near4, llm: same}
"""
DESK: Final[dict[str, Any]] = {
    "desk": [over("far"), "D1", over("near"), over("mixed"), "D4", over("near_line"), call("far", request="Help."), "D6", call("near", request="Help."), "D7", "D8"],
    "near": ["N1", "N2"], "near2": "N3", "near3": "N4", "near4": "N5",
}  # fmt: skip


class SameProvider:
    """Another model at the address of the first one."""

    requests: tuple[Any, ...] = ()

    def __init__(self, first: ScriptedUpstream) -> None:
        self.first = first

    async def __aenter__(self) -> Self:
        self.url = self.first.url
        return self

    async def __aexit__(self, *_: object) -> None: ...


PROVIDER: Final = ScriptedUpstream(Speakers(DESK))


@exchange(
    (),
    KEYS,
    upstream=PROVIDER,
    models={"same": (SameProvider(PROVIDER), {}), "other": (lambda: ScriptedUpstream(["Never."]), {})},
)
async def test_the_clients_own_key_goes_to_its_provider_only(x: Exchange) -> None:
    """Not to an agent of another one: not by a transfer, a call, a workflow, or because it answered last."""
    for text in ("far", "near", "desk: mixed", "line", "call far", "call near"):
        asked = {"model": "desk", "messages": [user(text)]}
        await x.post("/v1/chat/completions", bearer("sk-own"), session_id=text[:4], **asked)
    await x.post("/v1/sessions", bearer("sk-own"), id="s", agent="desk")
    spoken = [user("Hello?"), {**assistant("I was here."), "agent": "far"}]
    await x.post("/v1/sessions/s/messages", bearer("sk-own"), messages=spoken)
    await x.post("/v1/chat/completions", bearer("sk-own"), session_id="s", model="desk", messages=[user("So?")])
