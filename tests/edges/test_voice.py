"""Voice agents over HTTP: records in and out, partly heard replies, injected speech, greetings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import commands
from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, SessionRef
from holdfast.hooks.webhook import Webhook
from holdfast.stores.log import Append
from holdfast.testing import Gate, Reply
from tests.clocks import TickingClock
from tests.edges.server import Served, gateway
from tests.edges.test_gateway_queue import script, start_request, start_stream
from tests.edges.webhook_receiver import receiving
from tests.unit.seed_voice import CONTENTS, JOKE, PLAIN

HEARD = "Why did the scarecrow "
ONE = "/v1/sessions/s"
AGENTS = """agents:
  bot: {greeting: "How can I help you today?", silence_message: "Are you still there?", instruction: Be kind.}
  mute: {instruction: Be quiet.}"""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def make_reply(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


async def start_session(served: Served, *messages: dict[str, Any]) -> None:
    """Create session `s` with these messages."""
    assert (await served.http.put(ONE, json={"messages": list(messages)})).status_code == 200


async def post(served: Served, what: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    answer = await served.http.post(f"{ONE}/{what}", json=body)
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def history(served: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await served.http.get(f"{ONE}/history")).json()["contents"]
    return found


# -- records -------------------------------------------------------------------


@pytest.mark.parametrize("way", ["append", "import"])
async def test_agoras_contents_round_trip(way: str) -> None:
    """Unchanged in both forms; and again from the export."""
    async with gateway([]) as (served, _):
        if way == "append":
            assert (await served.http.post("/v1/sessions", json={"id": "s"})).status_code == 201
            await post(served, "messages", {"messages": CONTENTS})
        else:
            await start_session(served, *CONTENTS)
        assert (await served.http.get(f"{ONE}/history")).json() == {"contents": CONTENTS}
        assert (await served.http.get(f"{ONE}/history?view=plain")).json() == {"messages": PLAIN}
        exported = (await served.http.get(ONE)).json()
        assert (await served.http.put("/v1/sessions/copy", json={**exported, "id": "copy"})).status_code == 200
        assert (await served.http.get("/v1/sessions/copy/history")).json() == {"contents": CONTENTS}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({**user("d"), "metadata": {"source": "llm"}}, "source"),
        ({**make_reply("d"), "metadata": {"source": "asr"}}, "source"),
        ({**user("d"), "metadata": {"source": "telepathy"}}, "source"),
        ({"role": "system", "content": "d", "metadata": {"source": "command"}}, "source"),
        ({**user("d"), "metadata": {"interrupted": True}}, "interrupted"),
        ({**make_reply("d"), "metadata": {"interrupt_timestamp": 5}}, "interrupt_timestamp"),
        ({**make_reply("d"), "metadata": {"original": "def"}}, "original"),
        ({**make_reply("d"), "metadata": {"interrupted": True, "interrupt_timestamp": 1.5}}, "interrupt_timestamp"),
    ],
)
async def test_invalid_records_are_refused_whole(message: dict[str, Any], field: str) -> None:
    """422 with the field's place; no earlier record is written."""
    messages = [user("a"), make_reply("b"), user("c"), message]
    async with gateway([]) as (served, _):
        assert (await served.http.post("/v1/sessions", json={"id": "s"})).status_code == 201
        for refused in (
            await post(served, "messages", {"messages": messages}, 422),
            (await served.http.put(ONE, json={"messages": messages})).json(),
        ):
            assert refused["error"]["code"] == "invalid_metadata"
            assert refused["error"]["param"] == f"messages[3].metadata.{field}"
            assert refused["error"]["message"].startswith(f"messages[3].metadata.{field}")
        assert await history(served) == []
        assert (await served.http.get(ONE)).json()["version"] == 0


def test_command_line_refuses_invalid_records(tmp_path: Path) -> None:
    """The error names the place; Agora's contents are imported and exported."""

    def sessions(*args: str, **more: Any) -> Any:
        store = ("--store", f"sqlite:///{tmp_path}/chat.db")
        return CliRunner().invoke(commands, ["sessions", *args, *store], prog_name="holdfast", **more)

    wrong = {"id": "w", "messages": [user("a"), {**user("b"), "metadata": {"source": "llm"}}]}
    refused = sessions("import", "-", input=json.dumps(wrong))
    assert refused.exit_code == 1
    assert "messages[1].metadata.source" in refused.output
    assert sessions("import", "-", input=json.dumps({"id": "s", "messages": CONTENTS})).exit_code == 0
    (told,) = sessions("export", "--all").stdout.splitlines()
    exported = json.loads(told)
    assert exported["id"] == "s"
    assert [one["metadata"] for one in exported["messages"]] == [one["metadata"] for one in CONTENTS]


async def test_webhook_posts_the_same_records() -> None:
    """With interruptions, without Holdfast's internal metadata."""
    async with receiving() as receiver:
        hook = Webhook(receiver.url, "a secret")
        async with gateway([]) as (served, _):
            served.hf.add_hook(hook)
            await start_session(
                served, *CONTENTS[:2], {**CONTENTS[2], "content": JOKE, "metadata": {"source": "llm"}}, CONTENTS[3]
            )
            await post(served, "interrupt", {"content": HEARD, "timestamp": 1678905225})
            await post(served, "speak", {"text": "Hm.", "interruptable": False})
            told = await history(served)
            assert told[:4] == CONTENTS[:4]
            assert told[4]["metadata"] == {"source": "command"}
            await served.http.post(f"{ONE}/close")
            await served.hf.sweep()
            await receiver.arrived.wait()
            assert receiver.payloads[0]["contents"] == told


# -- interrupting --------------------------------------------------------------


async def test_agoras_interruption_example() -> None:
    """A conversation through the gateway gives Agora's log, except for times."""
    async with gateway([JOKE, "Once upon a time"], AGENTS) as (served, upstream):
        made = await served.http.post("/v1/sessions", json={"id": "s", "agent": "bot"})
        assert (made.status_code, made.json()["message_count"]) == (201, 1)
        assert (await served.chat("Can you tell me a joke?"))["status"] == 200
        done = await post(served, "interrupt", {"chars": 22, "timestamp": 1678905225})
        assert (done["interrupted"], done["stopped"], done["object"]) == (True, False, "interruption")
        assert (await served.chat("You know what? Tell me a story instead."))["status"] == 200
        await post(served, "speak", {"text": "Are you still there?"})
        found = await history(served)
        assert [one["content"] for one in found[:4]] == [one["content"] for one in CONTENTS[:4]]
        assert [one["turn_id"] for one in found] == [0, 1, 1, 2, 2, 3]
        assert found[2]["metadata"] == CONTENTS[2]["metadata"]
        sources = [one["metadata"]["source"] for one in found]
        assert sources == ["greeting", "message", "llm", "message", "llm", "command"]
        assert done["entry"]["content"] == HEARD
        second = upstream.requests[1].body["messages"]
        assert [one["content"] for one in second[1:]] == [one["content"] for one in CONTENTS[:4]]
        assert all(set(one) == {"role", "content"} for one in second)


@pytest.mark.parametrize("knows", [JOKE, HEARD, "Why did the scarecrow win"])
@pytest.mark.parametrize("named", [True, False])
async def test_client_continues_with_the_whole_or_heard_reply(knows: str, named: bool) -> None:
    """By session id or matched: one session, and the model sees what was heard."""
    async with gateway([JOKE, "A story.", "The end."]) as (served, upstream):
        assert (await served.chat("joke?"))["status"] == 200
        await post(served, "interrupt", {"content": HEARD})
        messages = [user("joke?"), make_reply(knows), user("A story!")]
        for reply in ("A story.", "The end."):
            answer = await served.chat(messages, session_id="s" if named else None)
            assert (answer["session_id"], answer["session"]["reconciled"]) == ("s", "continued")
            messages += [make_reply(reply), user("And then?")]
        contents = [content for _, content in await served.log()]
        assert contents == ["joke?", HEARD, "A story!", "A story.", "And then?", "The end."]
        assert [one["content"] for one in upstream.requests[-1].body["messages"]] == contents[:-1]
        assert len((await served.hf.sessions()).sessions) == 1


async def test_running_stream_is_stopped() -> None:
    """The official client reads to its end; the log has the heard part of what had arrived."""
    gate = Gate()
    async with gateway(script(gate)) as (served, _):
        chunks = await start_stream(served)
        done = await post(served, "interrupt", {"content": "one"})
        assert (done["stopped"], done["interrupted"], done["entry"]["content"]) == (True, True, "one")
        rest = [chunk async for chunk in chunks]
        assert rest[-1].choices[0].finish_reason == "stop"
        assert rest[-1].model_extra["session"]["interrupted"] is True
        assert await served.log() == [("user", "a"), ("assistant", "one")]
        assert (await history(served))[1]["metadata"]["original"] == "one "
        answer = await served.chat([user("a"), make_reply("one two"), user("b")])
        assert answer["session"]["reconciled"] in ("continued", "edited")
        gate.open()


async def test_stop_without_a_heard_part_keeps_what_arrived() -> None:
    gate = Gate()
    async with gateway(script(gate)) as (served, _):
        chunks = await start_stream(served)
        done = await post(served, "interrupt", {})
        assert (done["stopped"], done["entry"]["content"]) == (True, "one ")
        async for _chunk in chunks:
            pass
        again = await post(served, "interrupt", {})
        assert (again["stopped"], again["interrupted"], again["version"]) == (False, True, done["version"])
        gate.open()


async def test_waiting_client_gets_a_409_when_interrupted() -> None:
    """And a hint that an automatic retry is useless."""
    gate = Gate()
    async with gateway(lambda _: Reply(text="x", hold=gate)) as (served, upstream):
        first = await start_request(served, upstream, "a")
        done = await post(served, "interrupt", {"chars": 0})
        assert (done["stopped"], done["entry"], done["interrupted"]) == (True, None, False)
        refused = await first
        assert (refused["status"], refused["error"]["code"]) == (409, "turn_interrupted")
        assert await served.log() == [("user", "a")]


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"content": "never said"}, 422, "heard_mismatch", "content"),
        ({"chars": 1, "turn_id": 9}, 409, "no_reply", None),
        ({"chars": 1, "content": "W"}, 400, "invalid_request", "chars"),
        ({"total_ms": 1}, 400, "invalid_request", "total_ms"),
        ({"ms": 1, "total_ms": 0}, 400, "invalid_request", "total_ms"),
    ],
)
async def test_invalid_interruptions_are_refused(
    body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    async with gateway([]) as (served, _):
        await start_session(served, user("joke?"), make_reply(JOKE))
        before = (await served.http.get(ONE)).json()["version"]
        refused = await post(served, "interrupt", body, status)
        assert (refused["error"]["code"], refused["error"]["param"]) == (code, param)
        assert JOKE not in json.dumps(refused)
        assert (await served.http.get(ONE)).json()["version"] == before


async def test_null_fields_are_ignored() -> None:
    async with gateway([]) as (served, _):
        await start_session(served, user("joke?"), make_reply(JOKE))
        done = await post(served, "interrupt", {"content": None, "chars": 3, "ms": None, "turn_id": None})
        assert done["entry"]["content"] == "Why"


async def test_session_without_a_reply_cannot_be_interrupted() -> None:
    async with gateway([]) as (served, _):
        await start_session(served)
        assert (await post(served, "interrupt", {}, 409))["error"]["code"] == "no_reply"
        assert (await served.http.post("/v1/sessions/gone/interrupt", json={})).status_code == 404
        assert (await served.http.post("/v1/sessions/gone/speak", json={"text": "x"})).status_code == 404


# -- speaking ------------------------------------------------------------------


async def test_injected_speech_is_in_the_next_prompt() -> None:
    async with gateway(["A", "B"]) as (served, upstream):
        await served.chat("a")
        done = await post(served, "speak", {"text": "Are you still there?", "source": "silence"})
        assert (done["object"], done["spoken"], done["stopped"]) == ("speech", True, False)
        assert done["entry"]["metadata"] == {"source": "silence"}
        await served.chat("yes")
        assert [one["content"] for one in upstream.requests[1].body["messages"]] == [
            "a",
            "A",
            "Are you still there?",
            "yes",
        ]


async def test_speech_priorities() -> None:
    """Each decides what happens to a running reply."""
    gate = Gate()
    async with gateway(script(gate)) as (served, _):
        chunks = await start_stream(served)
        ignored = await post(served, "speak", {"text": "x", "priority": "IGNORE"})
        assert (ignored["spoken"], ignored["entry"], ignored["stopped"]) == (False, None, False)
        done = await post(served, "speak", {"text": "Stop.", "priority": "INTERRUPT"})
        assert (done["spoken"], done["stopped"], done["entry"]["turn_id"]) == (True, True, 1)
        async for _chunk in chunks:
            pass
        assert await served.log() == [("user", "a"), ("assistant", "one "), ("assistant", "Stop.")]
        gate.open()
        again = await post(served, "speak", {"text": "x", "priority": "APPEND"})
        assert (again["spoken"], again["entry"]["turn_id"]) == (True, 2)


async def test_speech_size_is_limited() -> None:
    """16 KiB in UTF-8, a text of a few minutes."""
    async with gateway([]) as (served, _):
        await start_session(served)
        await post(served, "speak", {"text": "ü" * 8192})
        refused = await post(served, "speak", {"text": "ü" * 8193}, 413)
        assert (refused["error"]["code"], refused["error"]["param"]) == ("too_large", "text")
        assert "16386 bytes" in refused["error"]["message"]
        assert "at most 16384" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"text": " "}, 400, "text"),
        ({"text": "x", "source": "llm"}, 422, "source"),
        ({"text": "x", "source": "asr"}, 422, "source"),
        ({"source": "silence"}, 400, "text"),
    ],
)
async def test_invalid_speech_is_refused(body: dict[str, Any], status: int, param: str) -> None:
    async with gateway([]) as (served, _):
        await start_session(served)
        assert (await post(served, "speak", body, status))["error"]["param"] == param
        assert await history(served) == []


async def test_open_client_calls_block_appended_speech() -> None:
    """APPEND is a 409; INTERRUPT drops the calls, so the next prompt is valid."""
    tools = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
    async with gateway([Reply(text="Let me look.", tool_calls=(("find", {}),)), "fine"]) as (served, upstream):
        await served.chat("a", tools=tools)
        assert (await post(served, "speak", {"text": "x", "priority": "APPEND"}, 409))["error"]["code"] == "calls_open"
        await post(served, "speak", {"text": "Never mind."})
        assert (await served.chat("b", tools=tools))["status"] == 200
        sent = upstream.requests[1].body["messages"]
        assert [one["role"] for one in sent] == ["user", "assistant", "assistant", "user"]
        assert not any("tool_calls" in one for one in sent)


# -- greeting ------------------------------------------------------------------


async def test_created_session_is_greeted() -> None:
    """By its agent, once, in turn 0; the user begins turn 1, and the model sees the greeting."""
    async with gateway(["Hello."], AGENTS) as (served, upstream):
        assert (await served.http.post("/v1/sessions", json={"id": "s", "agent": "bot"})).status_code == 201
        (greeting,) = await history(served)
        assert (greeting["content"], greeting["turn_id"]) == ("How can I help you today?", 0)
        assert greeting["metadata"] == {"source": "greeting"}
        answer = await served.chat([make_reply("How can I help you today?"), user("hi")])
        assert (answer["session"]["turn"], answer["session"]["reconciled"]) == (1, "continued")
        assert [one["content"] for one in upstream.requests[0].body["messages"]] == [
            "Be kind.",
            "How can I help you today?",
            "hi",
        ]
        assert [one["turn_id"] for one in await history(served)] == [0, 1, 1]
        for body in ({"id": "x"}, {"id": "y", "agent": "mute"}):
            assert (await served.http.post("/v1/sessions", json=body)).json()["message_count"] == 0


async def test_session_created_by_a_chat_request_is_not_greeted() -> None:
    """Its client never showed a greeting."""
    async with gateway(["Hello."], AGENTS) as (served, upstream):
        assert (await served.chat("hi", agent="bot"))["status"] == 200
        assert await served.log() == [("user", "hi"), ("assistant", "Hello.")]
        assert [one["content"] for one in upstream.requests[0].body["messages"]] == ["Be kind.", "hi"]


async def test_agents_own_silence_message_is_used() -> None:
    async with gateway([], AGENTS, clock=TickingClock()) as (served, _):
        await served.http.post("/v1/sessions", json={"id": "s", "agent": "bot"})
        done = await post(served, "speak", {"source": "silence"})
        assert (done["entry"]["content"], done["entry"]["agent"]) == ("Are you still there?", "bot")
        session = await served.hf.store.get(SessionRef("default", "s"))
        assert session.tail.turn_id == 1


async def test_older_log_with_unknown_sources_can_be_replaced() -> None:
    """Existing entries are compared, not validated."""
    async with gateway([]) as (served, _):
        await start_session(served, user("a"))
        old = NewEntry(
            message=Message(role="assistant", content="b"), tokens=1, timestamp=1, metadata={"source": "tts"}
        )
        await served.hf.store.append(SessionRef("default", "s"), Append(entries=[old], timestamp=served.hf.clock()))
        assert (await history(served))[1]["metadata"] == {"source": "tts"}
        exported = (await served.http.get(ONE)).json()
        assert (await served.http.put(ONE, json=exported)).status_code == 422
        exported["messages"][1]["metadata"]["source"] = "llm"
        assert (await served.http.put(ONE, json=exported)).json()["imported"] is True
