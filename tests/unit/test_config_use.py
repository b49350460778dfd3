"""Effective configuration: models, store and address, the output of `config check`, and masked secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from holdfast import config
from holdfast.config import Config
from holdfast.context.settings import ContextSettings
from holdfast.errors import ConfigError

SECRET = "sk-not-to-be-seen"


def load(text: str, **env: str) -> Config:
    return config.load(text, env=env)


# -- defaults --------------------------------------------------------------------


def test_without_a_file_sqlite_and_the_offline_model_are_used() -> None:
    found = config.load_default({})
    upstream = config.resolve_llm(found)
    assert config.resolve_store_url(found) == "sqlite:///holdfast.db"
    assert (upstream.provider, upstream.model, upstream.origin) == ("offline", "offline", "built-in")
    assert found.context == ContextSettings("digest")
    assert (found.sessions.max_messages, found.sessions.max_sessions) == (0, 10_000)
    assert found.sessions.ttl == 86_400
    assert (found.gateway.host, found.gateway.port, found.gateway.max_body) == ("127.0.0.1", 8377, 32 << 20)
    assert config.list_warnings(found) == []


def test_environment_variables_select_the_upstream() -> None:
    found = config.load_default({"OPENAI_API_KEY": f" {SECRET}\n", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1/"})
    upstream = config.resolve_llm(found)
    assert (upstream.provider, upstream.base_url, upstream.api_key) == ("openai", "http://127.0.0.1:1/v1", SECRET)
    assert upstream.origin == "environment"
    assert config.resolve_llm(config.load_default({"OPENAI_API_KEY": SECRET})).base_url == "https://api.openai.com/v1"
    assert config.resolve_llm(config.load_default({"OPENAI_API_KEY": "", "OPENAI_BASE_URL": " "})).provider == "offline"


def test_anthropic_variables_are_used_without_openai_variables() -> None:
    """OpenAI's variables have priority."""
    found = config.resolve_llm(config.load_default({"ANTHROPIC_API_KEY": f" {SECRET}\n"}))
    assert (found.provider, found.model, found.origin) == ("anthropic", "claude-haiku-4-5", "environment")
    assert (found.base_url, found.api_key) == ("https://api.anthropic.com/v1", SECRET)
    both = config.load_default({"ANTHROPIC_API_KEY": SECRET, "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})
    assert (config.resolve_llm(both).provider, config.resolve_llm(both).api_key) == ("openai", None)
    named = config.load_settings({"model": "claude-opus-4-8"}, {"ANTHROPIC_API_KEY": SECRET}).config
    assert (config.resolve_llm(named).provider, config.resolve_llm(named).model) == ("anthropic", "claude-opus-4-8")
    with pytest.raises(ConfigError, match="environment variable ANTHROPIC_BASE_URL: expected a URL"):
        config.load_default({"ANTHROPIC_BASE_URL": "localhost"})


def test_anthropic_entries_use_only_anthropic_variables() -> None:
    """A key is sent neither to the other provider nor to a configured `base_url`."""
    text = (
        "llms: {c: {provider: anthropic}, d: {provider: anthropic, base_url: 'https://r.example'}, o: {model: gpt-4o}}"
    )
    env = {"OPENAI_API_KEY": "sk-o", "ANTHROPIC_API_KEY": "sk-ant", "ANTHROPIC_BASE_URL": "https://a.example"}
    places = [config.resolve_llm(load(text, **env), name) for name in "cdo"]
    assert [(place.base_url, place.api_key) for place in places] == [
        ("https://a.example", "sk-ant"),
        ("https://r.example", None),
        ("https://api.openai.com/v1", "sk-o"),
    ]
    assert places[0].model == "c"
    assert config.resolve_llm(load("llms: {default: {provider: anthropic}}")).model == "claude-haiku-4-5"


def test_the_token_counter_is_set_per_model() -> None:
    found = load(
        "llms: {a: {model: claude-x, count: provider}, b: {model: gpt-4o}, c: {provider: offline, count: provider}}"
    )
    assert [config.resolve_llm(found, name).count for name in "abc"] == ["provider", "local", "local"]
    with pytest.raises(ConfigError, match="expected one of local, provider"):
        load("llms: {a: {count: guess}}")


def test_invalid_environment_variables_are_rejected() -> None:
    with pytest.raises(ConfigError) as caught:
        config.load_default({"OPENAI_BASE_URL": "localhost:1234", "OPENAI_API_KEY": "a\nb"})
    first, second = caught.value.problems
    assert first.startswith("defaults: environment variable OPENAI_BASE_URL: expected a URL")
    assert second.startswith("defaults: environment variable OPENAI_API_KEY: must be printable")


# -- models ----------------------------------------------------------------------------

MODELS = """
llms:
  default: {model: gpt-4o, base_url: "https://a.example/v1/", api_key: k1, context_window: 9000, params: {seed: 1}}
  fast: {model: gpt-4o-mini, vendor: openai, params: {temperature: 0.5}, timeout: 60s}
  gpt-4.1: {timeout: 30s, max_tokens: 100}
  local: {provider: offline}
agents:
  assistant: {llm: fast}
  writer: {llm: gpt-5}
  plain:
"""


def test_agents_resolve_to_their_model() -> None:
    found = load(MODELS, OPENAI_API_KEY="k2")
    fast = config.resolve_llm(found, "assistant")
    assert (fast.name, fast.origin, fast.model, fast.api_key) == ("assistant", "llms.fast", "gpt-4o-mini", "k2")
    assert (fast.base_url, fast.params) == ("https://api.openai.com/v1", {"temperature": 0.5})
    assert fast.timeout == 60
    assert config.resolve_llm(found, "gpt-4.1").model == "gpt-4.1"
    assert config.resolve_llm(found, "gpt-4.1").timeout == 30
    assert config.resolve_llm(found, "local").model == "offline"
    assert config.resolve_llm(found, "offline").provider == "offline"
    for name in (None, "default", "main", "plain"):
        default = config.resolve_llm(found, name)
        assert (default.model, default.base_url, default.api_key) == ("gpt-4o", "https://a.example/v1", "k1")
        assert default.timeout == 300


def test_an_unknown_name_is_a_model_at_the_default_upstream() -> None:
    found = config.resolve_llm(load(MODELS), "writer")
    assert (found.model, found.base_url, found.api_key) == ("gpt-5", "https://a.example/v1", "k1")
    assert (found.context_window, found.params) == (None, {})
    assert config.resolve_llm(config.load_default({"OPENAI_API_KEY": "k"}), "gpt-5").model == "gpt-5"
    assert config.resolve_llm(config.load_default({}), "gpt-5").provider == "offline"


def test_the_environment_key_is_not_sent_to_a_configured_url() -> None:
    found = load("llms: {a: {base_url: 'https://elsewhere.example/v1'}}", OPENAI_API_KEY=SECRET)
    assert config.resolve_llm(found, "a").api_key is None


KEYLESS = "llms: {default: {provider: openai, model: gpt-4o}}"


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (KEYLESS, "set api_key or OPENAI_API_KEY"),
        ("llms: {c: {provider: anthropic, model: claude-haiku-4-5}}", "set api_key or ANTHROPIC_API_KEY"),
        ("llms: {c: {model: gpt-4o, base_url: 'https://api.openai.com/v1/'}}", "set api_key"),
    ],
)
def test_an_llm_of_a_provider_without_a_key_is_a_warning(text: str, fix: str) -> None:
    (warning,) = config.list_warnings(load(text))
    assert "no API key: https://api." in warning
    assert warning.endswith(f"will refuse every call; {fix}")


@pytest.mark.parametrize(
    ("text", "env"),
    [
        (KEYLESS, {"OPENAI_API_KEY": "k"}),
        (KEYLESS, {"OPENAI_BASE_URL": "http://127.0.0.1:11434/v1"}),
        (f"{KEYLESS}\ngateway: {{upstream_auth: passthrough}}", {}),
        ("llms: {default: {model: gpt-4o, api_key: k}}", {}),
        ("llms: {default: {model: gpt-4o, headers: {Authorization: Bearer k}}}", {}),
        ("llms: {default: {model: gpt-4o, base_url: 'http://127.0.0.1:8000/v1'}}", {}),
        ("llms: {default: {provider: offline}}", {}),
    ],
)
def test_an_llm_that_needs_no_key_of_its_own_is_no_warning(text: str, env: dict[str, str]) -> None:
    assert config.list_warnings(load(text, **env)) == []


def test_the_only_llm_is_the_default() -> None:
    assert config.resolve_llm(load("llms: {mine: {model: m}}")).model == "m"
    assert config.resolve_llm(load("llms: {a: {}, b: {}}")).provider == "offline"
    assert config.resolve_llm(load("llms: {a: {}, main: {model: m}}"), "default").model == "m"


# -- the store ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "storage: {sessions: {backend: sql, database: x}}",
            "holdfast.yaml:1: storage.sessions.database: no database 'x'",
        ),
    ],
)
def test_a_missing_database_is_a_warning_and_then_an_error(text: str, message: str) -> None:
    found = load(text)
    assert any(message in warning for warning in config.list_warnings(found))
    with pytest.raises(ConfigError, match=re.escape(message)):
        config.resolve_store_url(found)


# -- flags, environment, file ---------------------------------------------------------


def test_the_file_in_the_working_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config.load_settings({}, {}).file is None
    (tmp_path / "holdfast.yaml").write_text("gateway: {port: 5}\n")
    assert config.load_settings({}, {})[1:4] == ("holdfast.yaml", "127.0.0.1", 5)


def test_the_model_flag_names_an_llm_or_a_model(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(MODELS)
    for model, name in (("fast", "gpt-4o-mini"), ("gpt-9", "gpt-9"), ("offline", "offline")):
        found = config.load_settings({"config": str(file), "model": model}, {}).config
        assert config.resolve_llm(found).model == name
        assert config.resolve_llm(found, "assistant").model == "gpt-4o-mini"


# -- warnings and output ---------------------------------------------------------

DOUBTFUL = """
storage:
  memory:
    backend: vector
    embedder: default
    vector_provider: {type: chromem, chromem: {persist_path: .x/vectors, compress: true}}
  index: {type: vector, embedder: mine}
embedders:
  default: {provider: openai, model: text-embedding-3-small, api_key: "${KEY}"}
agents:
  coordinator.v1: {llm: fsat, sub_agents: [writer, riter], tools: [search], search: {enabled: true, max_results: 5}}
  writer: {context: {strategy: summary_buffer, summarizer_llm: fast}}
  reader: {context: {strategy: summary_buffer, summarizer_llm: none}}
  rater: {context: {strategy: salience, scorer: fsat}}
llms: {fast: {model: gpt-4o-mini}, odd: {model: my-own-model}}
databases: {other: {driver: mysql, host: h, database: d}}
gateway: {host: 0.0.0.0, upstream_auth: passthrough, match: anyone}
auth: {required: false}
hooks: {webhooks: [{url: "https://x/?t=sk-not-to-be-seen", secret: sk-not-to-be-seen}]}
dreaming: {enabled: true}
short_term: {session_ttl: 2s}
"""


def test_doubtful_settings_load_with_a_warning() -> None:
    warnings = config.list_warnings(load(DOUBTFUL, KEY="k"))
    text = "\n".join(warnings)
    assert "no llm 'fsat': used as a model's name; did you mean 'fast'?" in text
    assert (
        "agents.rater.context.scorer: no llm 'fsat': signals of the text are used instead; did you mean 'fast'?" in text
    )
    assert "reader" not in text
    assert re.search("no agent 'riter'.*did you mean 'writer'", text)
    assert "no embedder 'mine'" in text
    assert "llms.odd: the context window of 'my-own-model' is not known" in text
    assert "gateway.host: 0.0.0.0 can be reached from other machines" in text
    lines = [int(line.split(":")[1]) for line in warnings]
    assert lines == sorted(lines)


def test_a_described_configuration_loads_with_the_same_meaning() -> None:
    shown = config.describe(load(MODELS))
    again = load(yaml.safe_dump(shown, sort_keys=False).replace("'***'", "k1"))
    assert config.describe(again) == shown
    assert again.llms == load(MODELS).llms


def test_check_uses_the_address_of_the_short_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.yaml").write_text("auth: {required: false}\ngateway: {port: 9000}\n")
    report = config.check_config(None, {"HOLDFAST_PORT": "9100"})
    assert (report.exit_code, report.data["config"]["gateway"]["port"]) == (0, 9100)
    report = config.check_config(None, {"HOLDFAST_HOST": "0.0.0.0"})
    assert report.exit_code == 1
    assert report.data["problems"] == [
        "HOLDFAST_HOST: gateway.host: 0.0.0.0 can be reached from other machines, and auth.required is false: the server will not start"
    ]


# -- blocks written for other systems ------------------------------------------


def test_agents_inherit_the_top_level_context() -> None:
    found = load("""
agents:
  same:
  keys: {context: {budget: 500}}
  own: {context: {strategy: token_window}}
  other: {context: {strategy: buffer_window, window_size: 3}}
context: {strategy: token_window, budget: 4000, preserve_recent: 2}
""")
    assert (
        config.resolve_context(found, "same")
        == config.resolve_context(found)
        == config.resolve_context(found, "nobody")
    )
    assert config.resolve_context(found, "keys").options == {"budget": 500, "preserve_recent": 2}
    assert config.resolve_context(found, "own") == ContextSettings("token_window")
    assert config.resolve_context(found, "other") == ContextSettings("buffer_window", {"window_size": 3})


# -- the documentation page ----------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs"
PAGES = tuple(f"configuration{part}.md" for part in ("", "-variables", "-sections"))
PAGE = "".join((DOCS / name).read_text(encoding="utf-8") for name in PAGES)


@pytest.mark.parametrize("text", re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
def test_examples_on_the_page_load_without_warnings(text: str) -> None:
    assert config.list_warnings(load(text, OPENAI_API_KEY="k")) == []


CAPPED = "short_term: {max_sessions: 100}"


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        (CAPPED, True),
        (f"{CAPPED}\nstorage: {{sessions: {{retention: 30d}}}}", False),
        (f"{CAPPED}\nstorage: {{sessions: {{backend: inmemory}}}}", False),
        ("short_term: {max_sessions: 0}", False),
        ("short_term: {session_ttl: 1h}", False),
    ],
)
def test_a_session_cap_without_retention_is_a_warning(text: str, warns: bool) -> None:
    found = [line for line in config.list_warnings(load(text)) if "max_sessions" in line]
    assert bool(found) is warns
    assert all("storage.sessions.retention" in line for line in found)
