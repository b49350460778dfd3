"""Mistakes in a configuration file that its schema does not say, and what the error suggests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import ConfigError


@pytest.fixture
def find_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Return a function that loads a text as `holdfast.yaml`, and returns its problems."""
    monkeypatch.chdir(tmp_path)

    def find_problems(text: str) -> list[str]:
        Path("holdfast.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(ConfigError) as caught:
            holdfast.from_config("holdfast.yaml", env={})
        return str(caught.value).splitlines()

    return find_problems


MISTAKES = """\
llms:
  fast:
    modle: gpt-4o
    base_url: 5
    timeout: a while
    max_requests: -3
databases:
  main:
    driver: postgresql
  other:
    driver: sqlite
    host: localhost
storage:
  sessions: {backend: inmemory, database: main}
short_term: 50
agents:
  assistant:
    llm: 5
    instruction: {a: b}
    context:
      strategy: buffer_window
      window_sise: 20
      window_size: 0
  second:
    context: {strategy: summary_buffer, threshold: 1.0, target: 1.5}
  third:
    context: {strategy: sumary_buffer, budget: x}
gateway:
  port: 99999
  max_body: 5M
  host: ${NO_SUCH_VARIABLE}
  shutdown_grace: -1s
  port: 1
gatway: {}
"""


def test_every_mistake_is_reported_once_with_line_and_path(find_problems: Callable[[str], list[str]]) -> None:
    found = find_problems(MISTAKES)
    places = [tuple(line.split(": ")[:2]) for line in found]
    assert places == [
        ("holdfast.yaml:3", "llms.fast.modle"),
        ("holdfast.yaml:4", "llms.fast.base_url"),
        ("holdfast.yaml:5", "llms.fast.timeout"),
        ("holdfast.yaml:6", "llms.fast.max_requests"),
        ("holdfast.yaml:9", "databases.main.driver"),
        ("holdfast.yaml:10", "databases.other.path"),
        ("holdfast.yaml:12", "databases.other.host"),
        ("holdfast.yaml:14", "storage.sessions.database"),
        ("holdfast.yaml:15", "short_term"),
        ("holdfast.yaml:18", "agents.assistant.llm"),
        ("holdfast.yaml:19", "agents.assistant.instruction"),
        ("holdfast.yaml:22", "agents.assistant.context.window_sise"),
        ("holdfast.yaml:23", "agents.assistant.context.window_size"),
        ("holdfast.yaml:25", "agents.second.context.threshold"),
        ("holdfast.yaml:25", "agents.second.context.target"),
        ("holdfast.yaml:27", "agents.third.context.strategy"),
        ("holdfast.yaml:29", "gateway.port"),
        ("holdfast.yaml:30", "gateway.max_body"),
        ("holdfast.yaml:31", "gateway.host"),
        ("holdfast.yaml:32", "gateway.shutdown_grace"),
        ("holdfast.yaml:33", "gateway.port"),
        ("holdfast.yaml:34", "gatway"),
    ]
    text = "\n".join(found)
    assert "window_sise: unknown key; did you mean 'window_size'?" in text
    assert "gateway.port: given twice; first in line 29" in text
    assert "the environment variable NO_SUCH_VARIABLE is not set" in text
    assert "expected an integer from 0 to 65535, got 99999" in text
    assert "expected a number above 0 and below 1, got 1.0" in text
    assert "unknown strategy 'sumary_buffer'; did you mean 'summary_buffer'?" in text
    assert "expected a string (put it in quotes), got 5" in text


MEANT = [
    ("strategy: token_window", "context.strategy"),
    ("budget: 8000", "context.budget"),
    ("agents: {support: {window_size: 5}}", "context.window_size"),
    ("port: 9000", "gateway.port"),
    ("required: true", "auth.required"),
    ("ttl: 1h", "sessions.ttl"),
]


@pytest.mark.parametrize(("text", "meant"), MEANT)
def test_a_key_one_level_too_high_suggests_its_section(
    text: str, meant: str, find_problems: Callable[[str], list[str]]
) -> None:
    (problem,) = find_problems(text)
    assert problem.endswith(f": unknown key; did you mean {meant!r}?")


PROBLEMS = [
    ("agents: [a]", "agents: expected a mapping, got a list"),
    ("- a", "expected a mapping of keys at the top of the file"),
    ("a: [", "not valid YAML"),
    ("a: b: c", "not valid YAML"),
    ("agents: {a: {}}\n---\nagents: {}", "not valid YAML"),
    ("\x00", "not valid YAML"),
    ("a: !!python/object/apply:os.system ['true']", "is not supported"),
    ("agents: {a: !mine {}}", "the tag '!mine' is not supported"),
    ("agents: {[a]: {}}", "a key must be a string"),
    ("agents: {'': {}}", "a name must be"),
    ("a: &a {x: 1}\nagents: {b: {<<: *a}}", "merge keys are not supported"),
    ("gateway: {port: '8000'}", "expected an integer from 0 to 65535, got '8000'"),
    ("gateway: {port: 0x1f}", "got '0x1f'"),
    (f"gateway: {{port: {'9' * 390}}}", "expected an integer from 0 to 65535, got 999"),
    ('agents: {a: {instruction: "\\ud800"}}', "agents.a.instruction: contains bytes that are not UTF-8"),
    ('llms: {a: {params: {"\\udfff": 1}}}', "llms.a.params: a key contains bytes that are not UTF-8"),
    (
        "agents: {a: {search: {tz: Mars}}}",
        "agents.a.search.tz: there is no time zone 'Mars'; one is named like Europe/Berlin",
    ),
    ("agents: {a: {tools: [search, 5]}}", "agents.a.tools[1]: expected a string (put it in quotes), got 5"),
    ("llms: {a: {provider: offline, vendor: openai}}", "llms.a.vendor: the same as 'llms.a.provider' in line 1"),
    ("llms: {a: {params: {model: x}}}", "llms.a.params.model: set `model` next to params"),
    ("llms: {a: {params: {stream: true}}}", "belongs to the request"),
    ("llms: {a: {headers: {'a b': c}}}", "not the name of an HTTP header"),
    ('llms: {a: {headers: {X-A: "c\\r\\nHost: x"}}}', "printable ASCII"),
    ("llms: {a: {base_url: 'ftp://x'}}", "begins with http:// or https://"),
    ("llms: {a: {context_window: 4096, max_tokens: 4096}}", "4096 - 4096 - 256 - 512"),
    (
        f"redaction: {{patterns: [{{label: x, regex: '{'(' * 2000}a{')' * 2000}'}}]}}",
        "is not a valid regular expression",
    ),
    ("databases: {a: {}}", "databases.a.driver: missing"),
    ("databases: {a: {driver: sqlite}}", "databases.a.path: missing"),
    ("databases: {a: {driver: postgres, host: h, path: p}}", "databases.a.path: only for driver 'sqlite'"),
    ("databases: {a: {driver: postgres, host: h}}", "databases.a.database: missing"),
    ("databases: {a: {driver: postgres, url: 'mysql://h/d'}}", "databases.a.url: expected a URL"),
    ("databases: {a: {url: 'sqlite:///x', path: y}}", "databases.a.path: set together with `url`"),
    ("storage: {memory: {backend: vector}}", "storage.memory.embedder: missing"),
    ("storage: {index: {type: vector}}", "storage.index.embedder: missing"),
    ("storage: {sessions: {backend: inmemory, database: x}}", "uses no database"),
    ("context: {strategy: summary_buffer, threshold: 0.5}", "context.target: must be less than threshold (0.5)"),
    (
        "context: {strategy: none, window_size: 3}",
        "unknown key; keys of strategy 'none': facts, clear_tool_results, recall",
    ),
    ("context: digest", "expected a mapping with `strategy` and its keys, got 'digest'"),
    ("short_term: {session_ttl: 101y}", "a duration from 0s to 36500d"),
    ("short_term: {session_ttl: x}", "holdfast.yaml:1: short_term.session_ttl: expected a duration"),
    ("short_term: {ttl: 1s, session_ttl: 2s}", "short_term.session_ttl: the same as 'sessions.ttl' in line 1"),
    (
        "sessions: {ttl: 1s}\nshort_term: {session_ttl: 2s}",
        "holdfast.yaml:2: short_term: the same as 'sessions' in line 1",
    ),
    ("{dreaming: {}, consolidation: {}}", "dreaming: the same as 'consolidation' in line 1"),
    ("llm: {vendor: other}", "holdfast.yaml:1: llm.vendor: expected one of"),
    ("llm: gpt", "holdfast.yaml:1: llm: expected a mapping, which is the entry `default` of `llms`"),
    ("{llm: {}, llms: {default: {}}}", "llm: the same as 'llms.default' in line 1"),
    ("{llm: {}, llms: 5}", "llms: expected a mapping"),
    ("llms: {a: {vendor: openai, provider: openai}}", "llms.a.vendor: the same as 'llms.a.provider' in line 1"),
    ("memory: sever", "memory: expected one of client, server, got 'sever'"),
    ("hooks: {workspace_git: yes}", "hooks.workspace_git: expected true or false"),
    ("llms: {a: {timeout: soon}}", "llms.a.timeout: expected a duration"),
    ("server: {port: 9}", "server: unknown key"),
    ("databases: {a: {driver: sqlite3, path: x.db}}", "driver: expected one of"),
    ("databases: {a: {driver: postgres, host: h, database: d, username: u}}", "username: unknown key"),
    ("agents: {a: {working_memory: {type: all}}}", "working_memory: unknown key"),
    ("agents: {a: {prompt: hi}}", "prompt: unknown key"),
    ("agents: {a: {streaming: true}}", "streaming: unknown key"),
    ("preset: mistralrs", "preset: unknown key"),
    ("rate_limiting: {enabled: false}", "rate_limiting: unknown key"),
    ("embedders: {a: {dimensions: 3}}", "dimensions: unknown key"),
    ("embedders: {e: {provider: vllm, model: m}}", "base_url: missing; the address of provider 'vllm' is unknown"),
    ("embedders: {e: {provider: ollama}}", "model: missing"),
    ("embedders: {e: {provider: local, model: bge}}", "model: provider 'local' has all-MiniLM-L6-v2, not 'bge'"),
    ("embedders: {e: {provider: local, query_prefix: q}}", "query_prefix: not for provider 'local'"),
    ("embedders: {e: {provider: local, passage_prefix: q}}", "passage_prefix: not for provider 'local'"),
    ("embedders: {e: {provider: local, dimension: 512}}", "dimension: provider 'local' has 384, not 512"),
    ("embedders: {e: {provider: local, api_key: k}}", "api_key: not for provider 'local'"),
    ("embedders: {e: {provider: local, base_url: 'http://h'}}", "base_url: not for provider 'local'"),
    ("embedders: {e: {path: /x}}", "path: only for provider 'local'"),
    ("embedders: {e: {base_url: 'ftp://h'}}", "base_url: expected a URL"),
    ("embedders: {e: {headers: {'a b': c}}}", "not the name of an HTTP header"),
    ("storage: {index: {rerank: {}}}", "base_url: missing"),
    ("storage: {index: {rerank: {base_url: 'http://x'}}}", "model: missing; form 'cohere'"),
    ("storage: {index: {rerank: {base_url: 'http://x', form: voyage}}}", "model: missing; form 'voyage'"),
    ("storage: {index: {rerank: {base_url: 'ftp://x', model: m}}}", "base_url: expected a URL"),
    ("storage: {index: {rerank: {path: m, base_url: 'http://x'}}}", "base_url: not with `path`"),
    ("storage: {index: {rerank: {path: m, api_key: k}}}", "api_key: not with `path`"),
    ("storage: {artifacts: {backend: s3}}", "storage.artifacts.bucket: "),
    ("storage: {artifacts: {backend: disk, bucket: b}}", "storage.artifacts.bucket: "),
    ("storage: {artifacts: {backend: database, path: p}}", "storage.artifacts.path: "),
    ("storage: {artifacts: {bucket: b, path: p}}", "storage.artifacts.path: "),
    ("storage: {artifacts: {region: r}}", "storage.artifacts.region: "),
    ("storage: {artifacts: {bucket: b, access_key: a}}", "storage.artifacts.access_key: "),
    ("storage: {artifacts: {bucket: b, endpoint: e}}", "storage.artifacts.endpoint: "),
    ("storage: {artifacts: {bucket: /p}}", "storage.artifacts.bucket: "),
    ("storage: {artifacts: {types: [image/*]}}", "storage.artifacts.types: "),
    ("hooks: {webhooks: [{url: 'https://x/'}]}", "hooks.webhooks[0].secret: "),
    ("hooks: {webhooks: [{url: 'ftp://x/', secret: s}]}", "hooks.webhooks[0].url: "),
    ("hooks: {webhooks: [{url: 'https://x/', secret: 'whsec_?'}]}", "hooks.webhooks[0].secret: "),
    ("hooks: {webhooks: [{url: 'https://x/', secret: s, events: []}]}", "hooks.webhooks[0].events: "),
    ("hooks: {webhooks: [{url: 'https://x/', secret: s, headers: {'a b': c}}]}", "hooks.webhooks[0].headers.a b: "),
    ("auth: {jwt: {issuer: https://i, audience: a}}", "jwks_url: missing"),
    ("auth: {jwt: {issuer: https://i, audience: a, jwks_url: 'http://i/keys'}}", "must start with https://"),
    ("auth: {jwt: {issuer: https://i, audience: a, jwks_url: 'ftp://i/keys'}}", "jwks_url: expected a URL"),
    ("auth: {jwt: {issuer: i, audience: [], jwks_url: f}}", "audience: is empty"),
    ("auth: {jwt: {issuer: i, jwks_url: f}}", "audience: missing"),
    ("auth: {jwt: {audience: a, jwks_url: f}}", "issuer: missing"),
]


@pytest.mark.parametrize(("text", "message"), PROBLEMS)
def test_a_mistake_is_reported_with_an_explanation(
    text: str, message: str, find_problems: Callable[[str], list[str]]
) -> None:
    found = find_problems(text)
    assert any(message in line for line in found), found
    assert all(line.startswith("holdfast.yaml") for line in found)
