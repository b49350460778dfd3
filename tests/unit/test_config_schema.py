"""The JSON Schema agrees with the loader about types, for every known block and for wrong ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from holdfast.config.gateway import Gateway
from holdfast.config.json_schema import DURATION, SIZE, build_json_schema
from holdfast.config.loader import load
from holdfast.context.settings import STRATEGIES
from holdfast.durations import format_duration, parse_duration
from holdfast.errors import ConfigError
from holdfast.sections import format_size, get_fields, parse_size
from scripts.configuration_keys import list_rows
from tests.behaviour.kit.examples import BLOCKS

SCHEMA = build_json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = [
    text
    for page in sorted(DOCS.glob("*.md"))
    if page.name != "releasing.md"  # its block is a workflow of the code host
    for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
]


def list_schema_errors(text: str) -> list[str]:
    return [error.json_path for error in VALIDATOR.iter_errors(yaml.safe_load(text) or {})]


def test_the_schema_is_valid() -> None:
    """In the dialect that it names."""
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"].endswith("2020-12/schema")


@pytest.mark.parametrize("text", [*BLOCKS.values(), *EXAMPLES])
def test_blocks_that_load_are_valid(text: str) -> None:
    """Every collected block and every example in the documentation."""
    assert list_schema_errors(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "gatway: {}",
        "gateway: {prot: 1}",
        "gateway: {port: 70000}",
        "gateway: {port: '80'}",
        "gateway: {max_body: 5M}",
        "gateway: {shutdown_grace: soon}",
        "gateway: {on_disconnect: stop}",
        "llms: {a: {modle: x}}",
        "llms: {a: {max_requests: -3}}",
        "llms: {a: {timeout: {read: 5}}}",
        "agents: {a: {tools: search}}",
        "agents: {a: {output_key: 5}}",
        "agents: {a: {context: {strategy: digets}}}",
        "agents: {a: {context: {strategy: buffer_window, preserve_recent: 5}}}",
        "context: {strategy: summary_buffer, threshold: 1.0}",
        "context: {clear_tool_results: {kep: 1}}",
        "hooks: {webhooks: [{url: 'https://x'}]}",
        "storage: {sessions: {backend: file}}",
        "mcp_servers: {a: {comand: x}}",
        "server: {port: 1}",
        "databases: {a: {driver: oracle}}",
    ],
)
def test_blocks_that_do_not_load_are_invalid(text: str) -> None:
    with pytest.raises(ConfigError):
        load(text, env={})
    assert list_schema_errors(text)


@given(st.sampled_from(sorted(get_fields(Gateway))), st.sampled_from(["${X}", "${X:-1}", "${X:?set it}"]))
def test_any_value_can_be_a_variable(key: str, variable: str) -> None:
    """An editor does not know its value."""
    assert list_schema_errors(yaml.safe_dump({"gateway": {key: variable}})) == []


@given(st.floats(0, 10**9), st.integers(0, 10**12))
def test_formatted_durations_and_sizes_match_the_patterns(seconds: float, size: int) -> None:
    assert re.search(DURATION, format_duration(round(seconds, 3)))
    assert re.search(SIZE, format_size(size))


@given(st.text("0123456789dhmsMiBkK. ", max_size=8))
def test_the_patterns_accept_what_the_loader_accepts(text: str) -> None:
    assert bool(re.search(DURATION, text)) == (parse_duration(text) is not None)
    assert bool(re.search(SIZE, text)) == (parse_size(text) is not None)


def test_the_schema_contains_every_key() -> None:
    options = {key for strategy in STRATEGIES.values() for key in strategy.keys}
    keys = [
        key
        for row in list_rows()
        for key in ([row.key.replace("KEY", name) for name in options] if "KEY" in row.key else [row.key])
    ]
    for key in keys:
        node: Any = SCHEMA
        for part in re.split(r"\.", key):
            node = inner(node)
            node = node["additionalProperties"] if part == "NAME" else node["properties"][part.removesuffix("[]")]
            node = node["items"] if part.endswith("[]") else node
        assert node is not None, key


def inner(node: Any) -> Any:
    """Resolve a reference to its schema."""
    if "anyOf" in node:
        node = node["anyOf"][0]
    return SCHEMA["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
