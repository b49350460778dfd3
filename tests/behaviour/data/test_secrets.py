"""Secrets: masked, refused or reported before anything is stored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Guard, Pattern, make_redactor
from holdfast.testing import Reply
from tests.behaviour.kit import Refused, World, answer_of, assistant, refused, texts, through, user
from tests.behaviour.kit.data import Files, Records, State

HERE = ("library", "connect", "rest")
KEY = "sk-ant-api03-" + "x7Kq" * 12
SHOWN = "[REDACTED:anthropic_key]"
MASK = "redaction: {enabled: true}"
BLOCK = "secret_guard: {on_secret: block}"

FOUND: list[tuple[str, str]] = [
    (KEY, "anthropic_key"),
    ("sk-proj-" + "a1B2" * 12, "openai_key"),
    ("postgres://ada:s3cret@db/chat", "basic_auth"),
    ("AKIAZ7Q2XW4T9LMN3PQR", "aws_access_key"),
    ("ghp_" + "a1B2c3" * 6, "github_token"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAx\n-----END RSA PRIVATE KEY-----", "private_key"),
]


@pytest.mark.parametrize(("secret", "label"), FOUND, ids=[label for _, label in FOUND])
def test_a_secret_is_replaced_by_its_label(secret: str, label: str) -> None:
    shown = make_redactor().redacted(f"It is {secret}, keep it.")
    assert f"[REDACTED:{label}" in shown
    assert shown.startswith("It is ")
    assert shown.endswith(", keep it.")


@pytest.mark.parametrize("text", ["sk-ant", "The sky is blue.", "z" * 200, "0123456789abcdef", "user@example.org"])
def test_other_text_is_left_alone(text: str) -> None:
    assert make_redactor().redacted(text) == text


@through(*HERE)
async def test_nothing_that_is_stored_has_a_masked_secret(world: World) -> None:
    """Neither the error of a hook, with which it is called again later."""

    def fail(session: Any, reason: str) -> None:
        raise RuntimeError(f"{KEY} was refused")

    async with world.open(MASK, script=[f"Use {KEY}.", "Again."], store="file") as hf:
        world.native.on_expire(fail)
        session = await hf.create("s", user="ada", system_messages=[f"Never say {KEY}."], metadata={"k": KEY})
        records = [] if world.driver == "rest" else [(await session.native()).records("r").make_put("k", {"v": KEY})]
        await session.append(user("Hi."), records=records)
        await session.send(user(f"My key is {KEY}, keep it."))
        await State(hf, "s", "ada").set(a={"b": [KEY]})
        await Records(hf, "r", user="ada").put("k", {"v": KEY}, text=f"Key {KEY}")
        await hf.remember(f"The key is {KEY}", user="ada")
        await Files(session).save("a.txt", "x", metadata={"k": KEY})
        found = [
            await session.export(retired=True), await session.info(), await hf.memories(user="ada"),
            await State(hf, "s", "ada").all(), await Records(hf, "r", user="ada").list(), await Files(session).list(),
        ]  # fmt: skip
        sent = hf.upstream.requests[0].body["messages"]
        assert KEY not in json.dumps([found, sent])
        assert sent[-1]["content"] == f"My key is {SHOWN}, keep it."
        assert (await session.messages())[-1]["content"] == f"Use {SHOWN}."
        with refused("invalid_request"):
            await Records(hf, "r", user="ada").put(KEY, 1)
        await session.close()
        await hf.settle()
    files = [path for path in world.folder.rglob("*.db*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@through("library", "rest")
async def test_a_conversation_that_is_sent_again_is_recognized(world: World) -> None:
    async with world.open(MASK, script=["Noted.", "A key."]) as hf:
        session = hf.session("s")
        reply = answer_of(await session.send(user(f"My key is {KEY}.")))
        await session.send(user(f"My key is {KEY}."), assistant(reply), user("What was it?"))
        assert texts(await session.messages()) == [f"My key is {SHOWN}.", "Noted.", "What was it?", "A key."]


@through("library", "connect")
async def test_a_turn_with_a_secret_is_recognized_by_its_key_or_its_message(world: World) -> None:
    """Also after a failure. Of a reply that broke off, the log has the beginning."""
    async with world.open(MASK, script=[Reply(status=503), Reply(text=f"{KEY} it is", cut_after=2)]) as hf:
        session, text = hf.session("s"), f"My key is {KEY}."
        for _ in range(2):
            with pytest.raises(Refused):
                await session.send(user(text))
        assert texts(await session.messages()) == [f"My key is {SHOWN}.", f"{SHOWN} "]
        for reply in ("Yes.", None):
            await session.turn(user(f"{KEY}?"), reply=reply, idempotency_key="k")
        assert texts(await session.messages())[2:] == [f"{SHOWN}?", "Yes."]
        with refused("idempotency_conflict"):
            await session.turn(user("Another?"), idempotency_key="k")


@through(*HERE)
async def test_a_guard_refuses_what_a_client_sends(world: World) -> None:
    async with world.open(BLOCK, script=[f"It is {KEY}."]) as hf:
        session = await hf.given("s", user("Hello."), user="ada")
        for use in (
            session.append(user("One."), user(f"Use {KEY}.")),
            session.update(metadata={"k": KEY}),
            State(hf, "s", "ada").set(a=KEY),
            hf.remember(f"The key is {KEY}", user="ada"),
            hf.create("t", user="ada", system_messages=[KEY]),
            session.send(user(f"Use {KEY}.")),
        ):
            with refused("secret_blocked") as refusal:
                await use
            assert KEY not in str(refusal.value)
        assert KEY not in str(await hf.remember(f"The key is {KEY}", user="ada", origin="tool")), "it is no client's"
        assert texts(await session.messages()) == ["Hello."]
        assert [row["id"] for row in await hf.sessions(user="ada")] == ["s"]
        await session.send(user("What is it?"))
        assert texts(await session.messages())[-1] == f"It is {SHOWN}.", "a reply is masked"


@through("library", "rest")
async def test_a_guard_may_only_warn_or_mask(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for action, stored in (("warn", KEY), ("redact", SHOWN)):
        async with world.open(f"secret_guard: {{on_secret: {action}}}") as hf:
            session = await hf.given("s", user(f"Use {KEY}."))
            assert texts(await session.messages()) == [f"Use {stored}."]
        assert ("a secret was stored" in caplog.text) is (action == "warn")
        assert KEY not in caplog.text
        caplog.clear()


@through(*HERE)
async def test_own_patterns_and_chosen_rules(world: World) -> None:
    config = "redaction: {enabled: true, rules: [home_path], patterns: [{regex: 'EMP-\\d{6}', label: employee}]}"
    async with world.open(config) as hf:
        session = await hf.given("s", user(f"EMP-123456 in /home/ada/x has {KEY}"))
        (text,) = texts(await session.messages())
        assert "[REDACTED:employee]" in text
        assert "/home/ada" not in text
        assert KEY in text


@through(*HERE)
async def test_the_guard_knows_the_patterns_of_a_redaction_that_is_off(world: World) -> None:
    config = "redaction: {patterns: [{regex: 'EMP-\\d{6}', label: employee}]}"
    async with world.open(config) as hf:
        await hf.given("s", user("I am EMP-123456."))
    async with world.open(config, BLOCK) as hf:
        with refused("secret_blocked", "employee"):
            await hf.given("s", user("I am EMP-123456."))


@through(*HERE)
async def test_values_are_judged_with_their_names_and_none_is_lost(world: World) -> None:
    pattern = {"regex": 'pin: "(?P<secret>[0-9]+)"', "label": "pin"}
    keys = [f"sk-ant-api03-{letter * 48}" for letter in "ab"]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", "note": KEY}, "note": KEY}
    async with world.open(f"redaction: {{enabled: true, patterns: [{json.dumps(pattern)}]}}") as hf:
        session = await hf.create("s", metadata={"pin": ["4711", {"room": "4711"}], "of": dict.fromkeys(keys, 1)})
        assert (await session.info())["metadata"] == {
            "pin": ["[REDACTED:pin]", {"room": "4711"}],
            "of": {SHOWN: 1, f"{SHOWN} (2)": 1},
        }
        await session.append(user("Go."), assistant(None, tool_calls=[call]))
        assert KEY not in json.dumps(await session.export())


@through("library")
async def test_a_program_passes_a_guard(world: World) -> None:
    guard = Guard(make_redactor(rules=[], patterns=[Pattern(r"code (?P<secret>\d+)", "code")]))
    async with world.open(guard=guard, script=[Reply(tool_calls=[("nope", {"a": "code 1234"})]), "Done."]) as hf:
        await hf.given("s", user("The code 4711 is mine."))
        assert texts(await hf.session("s").messages()) == ["The code [REDACTED:code] is mine."]


@through(*HERE)
async def test_imports_and_forks_are_checked(world: World) -> None:
    exported = {"id": "s", "messages": [user(f"Use {KEY}.")], "state": {"k": KEY}}
    async with world.open(MASK) as hf:
        await hf.import_session(exported)
        assert KEY not in json.dumps(await hf.session("s").export())
    async with world.open(BLOCK) as hf:
        with refused("secret_blocked"):
            await hf.import_session(exported)
        assert await hf.sessions() == []


@through("rest")
async def test_errors_do_not_quote_secrets(world: World) -> None:
    error: Any = {"message": f"bad key {KEY}", "type": "auth"}
    async with world.open(MASK, script=[Reply(status=401, error=error)]) as hf:
        with pytest.raises(Refused) as refusal:
            await hf.session("s").send(user("Hi."))
        assert KEY not in str(refusal.value) + json.dumps(refusal.value.body)
