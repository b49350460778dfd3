"""Treatment of secrets by rule, by place and by sender."""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import assistant, calls, result, system, user
from tests.behaviour.kit.exchanges import Exchange, exchange

KEY = "sk-ant-api03-" + "xKqz" * 12
URL = "postgres://ada:hunter@db/chat"
OWN = "EMP-123456"
PATTERNS = "patterns: [{regex: 'EMP-\\d{6}', label: employee}, {regex: '(?i)password\\W{1,4}(?P<secret>\\S+)', label: password}]"


async def send_secrets(x: Exchange) -> None:
    await x.served.rest.given("s", user("Hello."))
    turn = [
        user(f"{KEY} {OWN}."), calls(("c", "find", {"url": URL})), result("c", f"password: {OWN} {KEY}"), assistant(f"At {URL}.")
    ]  # fmt: skip
    for said in (
        [user(f"Use {KEY}, please.")], [user([{"type": "text", "text": URL}])], [user("x", name=OWN)], [user("x", metadata={"k": KEY})],
        [assistant(f"The {KEY}")], turn[1:], [user(f"password: [REDACTED:employee]{OWN} x[REDACTED:password] password=a[REDACTED:b]c")],
        [user([{"type": "image_url", "image_url": {"url": f"data:image/png;name={OWN};base64,iVBORw0KGgo="}}])], [calls(("d", "find", {OWN: 1, f"a{OWN}": "\ud800 " + OWN, "n": 12}))], [user("clean"), user(f"{OWN}-{OWN}")], [user("/home/ada/a " + "ab12" * 16)],
    ):  # fmt: skip
        x.served.clock.now += 1000
        await x.send("POST", "/v1/sessions/s/messages", {"messages": said})
    for path, body in (
        ("/v1/sessions", {"id": "t", "system_messages": [system(KEY)]}),
        ("/v1/sessions", {"id": "u", "metadata": {"k": {OWN: URL}}}), ("/v1/sessions", {"id": OWN, "state": {"a": KEY}}),
        ("/v1/memories", {"content": f"The password: {OWN}", "user_id": "ada", "metadata": {"k": KEY}}),
        ("/v1/chat/completions", {"session_id": "c", "messages": [user(f"{KEY} {OWN}")]}),
        ("/v1/chat/completions", {"session_id": "c", "messages": [user("Once more.")]}),
        ("/v1/chat/completions", {"session_id": "c", "messages": [user(f"{KEY} {OWN}"), assistant(REPLIES[0]), user("Once more."), assistant("Yes."), user("Third.")]})
    ):  # fmt: skip
        await x.send("POST", path, body)
    changes: tuple[tuple[str, str, Any], ...] = (
        ("PATCH", "/v1/sessions/s", {"metadata": {"m": KEY}}), ("PATCH", "/v1/sessions/s/state", {"user:a": URL, OWN: 1, "b": KEY, "user:c": KEY}),
        *[("POST", "/v1/state?session_id=s", {"changes": [{"op": "expect", "key": key, "value": old}, {"op": "set", "key": key, "value": 1}]}) for key, old in (("b", KEY), ("user:c", KEY))],
        ("PUT", "/v1/sessions/s/messages/0", {"content": f"Now {URL}"}), *[("PUT", "/v1/sessions/i", {"messages": turn, "metadata": {"k": KEY}, "state": {"a": URL}, "records": [{"namespace": ["n"], "key": "k", "value": {"x": KEY}, "text": f"At {URL}"}]})] * 2,
    )  # fmt: skip
    for method, path, body in changes:
        await x.send(method, path, body)
    for name in ("s", "c", "i"):
        await x.rows(
            f"/v1/sessions/{name}/messages", "seq", "role", "name", "content", "tool_calls", "metadata", limit=100
        )
    await x.get("/v1/search", q="please")
    lines = (await x.served.http.get("/metrics")).text.splitlines()
    x.note("metrics", [line for line in lines if line.startswith("holdfast_secrets_total")])


REPLIES = [f"I know {KEY} and {OWN}.", "Yes.", "No."]


@exchange(REPLIES, f"redaction: {{enabled: true, rules: [anthropic_key, home_path], {PATTERNS}}}")
async def test_secrets_are_replaced(x: Exchange) -> None:
    await send_secrets(x)


@exchange(REPLIES, "secret_guard: {on_secret: block}", f"redaction: {{{PATTERNS}}}")
async def test_secrets_are_refused(x: Exchange) -> None:
    await send_secrets(x)


@exchange(REPLIES, "secret_guard: {on_secret: redact, exclude_rules: [basic_auth]}", f"redaction: {{{PATTERNS}}}")
async def test_the_guard_replaces_secrets(x: Exchange) -> None:
    await send_secrets(x)


@exchange(
    REPLIES,
    "secret_guard: {on_secret: warn}",
    f"redaction: {{enabled: true, exclude_rules: [basic_auth, anthropic_key], {PATTERNS}}}",
)
async def test_secrets_are_stored_with_a_warning(x: Exchange) -> None:
    await send_secrets(x)
