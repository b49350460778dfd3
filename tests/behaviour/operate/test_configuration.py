"""Configuration: which source wins, variables and `.env` files, secrets, all mistakes at once, and the schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import ScriptedUpstream
from tests.behaviour.kit import gateway
from tests.behaviour.kit.seams import run_command

SECRET = "sk-very-secret-0123456789"


async def values(*options: str, env: Mapping[str, str] | None = None) -> dict[str, tuple[Any, str]]:
    """Return what `holdfast config show` says about each key: its value and its source."""
    shown = await run_command(["config", "show", *options, "--json"], env=env)
    assert shown.code == 0, shown
    return {row["key"]: (row["value"], row["source"]) for row in json.loads(shown.out)}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_without_a_file_everything_has_a_default(here: Path) -> None:
    found = await values()
    assert found["gateway.port"] == (8377, "default")
    assert found["gateway.host"] == ("127.0.0.1", "default")
    assert found["model"] == ("offline", "built-in")
    assert found["store"][0] == "sqlite:///holdfast.db"


async def test_the_environment_wins_over_dotenv_and_the_file(here: Path) -> None:
    (here / "holdfast.yaml").write_text("gateway: {port: 1001, host: 127.0.0.2}\nsessions: {ttl: 1h}\n")
    (here / ".env").write_text("HOLDFAST_PORT=1002\nHOLDFAST_SESSIONS__TTL=2h\n")
    found = await values(env={"HOLDFAST_SESSIONS__TTL": "3h"})
    assert found["gateway.port"][0] == 1002
    assert found["sessions.ttl"] == ("3h", "HOLDFAST_SESSIONS__TTL")
    assert found["gateway.host"][0] == "127.0.0.2"
    assert "holdfast.yaml:1" in found["gateway.host"][1]


async def test_the_folder_of_the_file_wins_and_empty_variables_are_not_set(here: Path) -> None:
    """Variables of a `.env` file in the folder of the file come before those in the current folder."""
    (here / "conf").mkdir()
    (here / "conf/holdfast.yaml").write_text("gateway: {port: 1001, host: 127.0.0.2}\n")
    (here / "conf/.env").write_text("HOLDFAST_SESSIONS__TTL=2h\n")
    (here / ".env").write_text("HOLDFAST_SESSIONS__TTL=3h\nHOLDFAST_SESSIONS__MAX_SESSIONS=7\n")
    found = await values("conf/holdfast.yaml", env={"HOLDFAST_PORT": "", "HOLDFAST_HOST": "", "HOLDFAST_STORE": ""})
    assert [found[f"sessions.{key}"][0] for key in ("ttl", "max_sessions")] == ["2h", 7]
    assert [found[f"gateway.{key}"][0] for key in ("port", "host")] == [1001, "127.0.0.2"]
    assert found["store"] == ("sqlite:///holdfast.db", "default")


async def test_a_model_that_is_no_entry_has_the_address_but_not_the_parameters_of_the_default() -> None:
    llm = {"params": {"temperature": 0.5}, "max_tokens": 7}
    async with gateway(["Yes."] * 2, "agents: {a: {llm: gpt-4.1}}", llm=llm) as served:
        for model in ("default", "a"):
            await served.chat("Hi.", model, model=model)
        sent = [
            [one.body.get(name) for name in ("model", "temperature", "max_tokens")] for one in served.upstream.requests
        ]
        assert sent == [["gpt-4o", 0.5, 7], ["gpt-4.1", None, None]]


async def test_a_key_of_the_environment_is_never_sent_to_an_address_of_the_file() -> None:
    async with ScriptedUpstream(["Yes."]) as upstream:
        config = f"llms: {{default: {{model: gpt-4o, base_url: '{upstream.url}'}}}}"
        async with gateway(None, config, env={"OPENAI_API_KEY": SECRET}) as served:
            await served.chat("Hi.")
        assert SECRET not in str(upstream.requests[0].headers)


@pytest.mark.parametrize(("host", "is_sent"), [("res.openai.azure.com", True), ("api.example.com", False)])
async def test_only_providers_that_know_it_get_a_cache_key(
    host: str, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy stands for the provider."""
    async with ScriptedUpstream(["Yes."]) as provider:
        monkeypatch.setenv("HTTP_PROXY", provider.url.removesuffix("/v1"))
        async with gateway(
            None, f"llms: {{default: {{model: gpt-4o, base_url: 'http://{host}/v1', api_key: k}}}}"
        ) as served:
            await served.chat("Hi.")
        assert ("prompt_cache_key" in provider.requests[0].body) is is_sent


@pytest.mark.parametrize(
    ("written", "env", "value"),
    [
        ("${NAME}", {"NAME": "ada"}, "ada"),
        ("${NAME:-bob}", {}, "bob"),
        ("${NAME:-bob}", {"NAME": "ada"}, "ada"),
        ("a-${NAME}-b", {"NAME": "x: {y}"}, "a-x: {y}-b"),
        ("$${NAME}", {"NAME": "ada"}, "${NAME}"),
    ],
)
async def test_variables_are_put_into_values(here: Path, written: str, env: dict[str, str], value: str) -> None:
    (here / "holdfast.yaml").write_text(f"agents: {{a: {{instruction: '{written}'}}}}")
    assert (await values(env=env))["agents.a.instruction"][0] == value


@pytest.mark.parametrize("command", ["check", "show"])
async def test_secrets_are_never_printed(here: Path, command: str) -> None:
    (here / "holdfast.yaml").write_text(
        f"llms: {{default: {{model: m, base_url: 'http://127.0.0.1:9/v1', api_key: {SECRET}}}}}\n"
        f"databases: {{main: {{driver: postgres, host: h, database: d, user: u, password: {SECRET}}}}}\n"
        "storage: {sessions: {backend: sql, database: main}}\n"
        f"hooks: {{webhooks: [{{url: 'https://x/', secret: {SECRET}}}]}}\n"
    )
    for form in ((), ("--json",)):
        printed = await run_command(["config", command, *form])
        assert printed.code == 0, printed
        assert SECRET not in printed.out + printed.err
        assert "***" in printed.out


async def test_all_mistakes_are_reported_at_once_with_line_and_remedy(here: Path) -> None:
    (here / "holdfast.yaml").write_text(
        "gatway: {port: 1}\n"
        "gateway:\n"
        "  port: 70000\n"
        "  max_body: 12 apples\n"
        "llms: {a: {modle: x}}\n"
        "agents: {b: {tools: search}}\n"
        "sessions: {ttl: soon}\n"
    )
    printed = await run_command(["config", "check"], env={"HOLDFAST_GATEWAY__KEEP_ALIVE": "later"})
    assert printed.code == 1
    told = printed.out.splitlines()
    for place, words in (
        ("holdfast.yaml:1: gatway", "did you mean 'gateway'?"),
        ("holdfast.yaml:3: gateway.port", "70000"),
        ("holdfast.yaml:4: gateway.max_body", "12 apples"),
        ("holdfast.yaml:5: llms.a.modle", "did you mean 'model'?"),
        ("holdfast.yaml:6: agents.b.tools", ""),
        ("holdfast.yaml:7: sessions.ttl", "soon"),
        ("HOLDFAST_GATEWAY__KEEP_ALIVE", "later"),
    ):
        assert any(place in line and words in line for line in told), (place, told)
    problems = json.loads((await run_command(["config", "check", "--json"])).out)
    assert (problems["ok"], len(problems["problems"])) == (False, 6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "holdfast.yaml:1"),
        ("gateway: {port: 1}\ngateway: {port: 2}", "gateway"),
        ("- a", "mapping"),
        ("a: &x {b: *x}", "holdfast.yaml"),
        ("agents: {a: {instruction: '${GONE}'}}", "GONE"),
        ("\tgateway: {}", "holdfast.yaml:1"),
    ],
)
async def test_what_is_no_configuration_is_named(here: Path, text: str, words: str) -> None:
    (here / "holdfast.yaml").write_text(text)
    printed = await run_command(["config", "check"])
    assert printed.code == 1
    assert words in printed.out
    assert "Traceback" not in printed.out + printed.err


async def test_the_schema_describes_every_key_for_editors(here: Path) -> None:
    schema = json.loads((await run_command(["config", "show", "--schema"])).out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert {"llms", "agents", "gateway", "sessions", "short_term", "storage", "context"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False
    shown = {key.partition(".")[0].partition("[")[0] for key in await values()} - {"model", "store"}
    assert shown <= set(schema["properties"])
