"""Loading a configuration: durations, sizes, variables, and every problem once with its line and path."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast import config
from holdfast.config import Config
from holdfast.config.convert import find_nearest, find_section_of
from holdfast.config.gateway import Gateway
from holdfast.config.model import Document
from holdfast.durations import format_duration, parse_duration
from holdfast.errors import ConfigError
from holdfast.limits import CONFIG_BYTES
from holdfast.sections import format_size, get_fields, parse_size

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "sk-not-to-be-seen"


def load(text: str, **env: str) -> Config:
    return config.load(text, env=env)


def problems(text: str, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, **env)
    return caught.value.problems


# -- durations and sizes ---------------------------------------------------------


@given(st.integers(0, 10**12))
def test_durations_round_trip(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(0, 10**15))
def test_sizes_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", 86_400),
        ("30m", 1_800),
        ("90s", 90),
        ("1h30m", 5_400),
        ("250ms", 0.25),
        ("7d", 604_800),
        ("1d2h3m4s5ms", 93_784.005),
        ("90", 90),
        ("1.5", 1.5),
        ("1.5h", 5_400),
        ("0", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "1w", "30m1h", "1h1h", "-1s", "1 h", "1:30", "inf", "nan", "1e3", "٣s", "5M"]
)
def test_invalid_durations(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("32MiB", 32 << 20), ("32 mib", 32 << 20), ("1GB", 10**9), ("2kB", 2_000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1M", "-1", "1.5MiB", "1TB", "1  MiB"])
def test_invalid_sizes(text: str) -> None:
    assert parse_size(text) is None


# -- problems with their place -------------------------------------------------

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


def test_every_mistake_is_reported_once_with_line_and_path() -> None:
    found = problems(MISTAKES)
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
        ("gateway: {port: 8000.0}", "got 8000.0"),
        ("gateway: {port: 0x1f}", "got '0x1f'"),
        (f"gateway: {{port: {'9' * 390}}}", "expected an integer from 0 to 65535, got 999"),
        ('agents: {a: {instruction: "\\ud800"}}', "agents.a.instruction: contains bytes that are not UTF-8"),
        ('llms: {a: {params: {"\\udfff": 1}}}', "llms.a.params: a key contains bytes that are not UTF-8"),
        ("gateway: {port: true}", "got true"),
        ("agents: {a: {search: {enabled: yes}}}", "expected true or false, got 'yes'"),
        (
            "agents: {a: {search: {tz: Mars}}}",
            "agents.a.search.tz: there is no time zone 'Mars'; one is named like Europe/Berlin",
        ),
        ("agents: {a: {tools: search}}", "agents.a.tools: expected a list, got 'search'"),
        ("agents: {a: {tools: [search, 5]}}", "agents.a.tools[1]: expected a string (put it in quotes), got 5"),
        ("llms: {a: {provider: offline, vendor: openai}}", "llms.a.vendor: the same as 'llms.a.provider' in line 1"),
        ("llms: {a: {params: {model: x}}}", "llms.a.params.model: set `model` next to params"),
        ("llms: {a: {params: {stream: true}}}", "belongs to the request"),
        ("llms: {a: {headers: {'a b': c}}}", "not the name of an HTTP header"),
        ('llms: {a: {headers: {X-A: "c\\r\\nHost: x"}}}', "printable ASCII"),
        ("llms: {a: {base_url: 'ftp://x'}}", "begins with http:// or https://"),
        ("llms: {a: {context_window: 4096, max_tokens: 4096}}", "4096 - 4096 - 256 - 512"),
        ("embedders: {a: {min_similarity: .inf}}", "expected a number from 0 to 1"),
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
        ("short_term: {max_sessions: -1}", "expected an integer from 0"),
    ],
)
def test_a_mistake_is_reported_with_an_explanation(text: str, message: str) -> None:
    found = problems(text)
    assert any(message in line for line in found), found
    assert all(line.startswith("holdfast.yaml") for line in found)


@given(st.sampled_from(sorted(get_fields(Gateway))), st.data())
def test_a_typing_error_suggests_the_nearest_key(key: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(key) - 1))
    letter = data.draw(st.sampled_from(string.ascii_lowercase))
    slip = data.draw(
        st.sampled_from([key[:place] + key[place + 1 :], key[:place] + letter + key[place:], key.replace("_", "-")])
    )
    assume(slip not in get_fields(Gateway))
    assume(len(key) > 4)  # of four letters, one wrong one may be nearer to something else
    assert problems(f"gateway: {{{slip}: 1}}") == [
        f"holdfast.yaml:1: gateway.{slip}: unknown key; did you mean {key!r}?"
    ]


@given(st.text(string.ascii_lowercase + "_", min_size=1, max_size=20))
def test_an_unknown_key_is_one_problem_naming_a_known_key(key: str) -> None:
    assume(key not in get_fields(Document) and key not in {"null", "true", "false"})
    assume(find_section_of(key, get_fields(Document)) is None)
    [problem] = problems(f"{key}: 1")
    assert problem.startswith(f"holdfast.yaml:1: {key}: unknown key; ")
    near = find_nearest(key, list(get_fields(Document)))
    assert (f"did you mean {near!r}?" if near else "known: context, llms") in problem


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("strategy: token_window", "context.strategy"),
        ("budget: 8000", "context.budget"),
        ("agents: {support: {window_size: 5}}", "context.window_size"),
        ("port: 9000", "gateway.port"),
        ("required: true", "auth.required"),
        ("ttl: 1h", "sessions.ttl"),
    ],
)
def test_a_key_one_level_too_high_suggests_its_section(text: str, meant: str) -> None:
    (problem,) = problems(text)
    assert problem.endswith(f": unknown key; did you mean {meant!r}?")


@given(st.lists(st.sampled_from(["port: x", "hots: a", "max_body: []", "host: {}"]), unique=True, min_size=1))
def test_each_mistake_gives_one_problem_with_its_line(mistakes: list[str]) -> None:
    found = problems("gateway:\n" + "".join(f"  {mistake}\n" for mistake in mistakes))
    assert [int(line.split(":")[1]) for line in found] == list(range(2, 2 + len(mistakes)))


@given(st.text(max_size=200))
def test_any_text_loads_or_raises_a_config_error(text: str) -> None:
    try:
        load(text)
    except ConfigError as error:
        found = error.problems
    else:
        found = ["none"]
    assert found


# -- bounds ------------------------------------------------------------------------


def test_exponential_aliases_are_rejected() -> None:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 12)]
    assert "more than 50,000 values" in problems("\n".join(lines))[0]


@pytest.mark.parametrize("text", ["a: " + "[" * 100_000, "a: &a [*a]", "a: &a {b: *a}"])
def test_deep_nesting_is_rejected(text: str) -> None:
    assert "nested more than 32 deep" in problems(text)[0]


def test_files_that_are_too_large_are_rejected(tmp_path: Path) -> None:
    text = "# " + "x" * CONFIG_BYTES
    assert problems(text) == ["holdfast.yaml: larger than 1 MiB"]
    file = tmp_path / "big.yaml"
    file.write_text("# " + "é" * CONFIG_BYTES)
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        config.load_file(file, {})


def test_files_must_be_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_bytes(b"\xef\xbb\xbfagents:\n  a: {instruction: \xc3\xa9}\n")
    assert config.load_file(file, {}).agents["a"].instruction == "é"
    file.write_bytes(b"a: 1\nb: \xe9\n")
    with pytest.raises(ConfigError, match=re.escape(f"{file}:2: not UTF-8")):
        config.load_file(file, {})
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        config.load_file(tmp_path / "none.yaml", {})


# -- variables -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("${HOME_TOWN}", "Ely"),
        ("in ${HOME_TOWN}.", "in Ely."),
        ("${NONE:-here}", "here"),
        ("${EMPTY:-here}", "here"),
        ("${EMPTY}!", "!"),
        ("${NONE:-}!", "!"),
        ("${NONE:-a:-b}", "a:-b"),
        ("${HOME_TOWN:?where}", "Ely"),
        ("$${HOME_TOWN}", "${HOME_TOWN}"),
        ("$$ $1 $HOME_TOWN {user:language}", "$$ $1 $HOME_TOWN {user:language}"),
        ("${NESTED}", "${HOME_TOWN}"),
    ],
)
def test_variables(written: str, read: str) -> None:
    text = yaml.safe_dump({"agents": {"a": {"instruction": written}}})
    assert load(text, HOME_TOWN="Ely", EMPTY="", NESTED="${HOME_TOWN}").agents["a"].instruction == read


@pytest.mark.parametrize("written", ["${", "${}", "${1A}", "${A B}", "${A:-${B}}", "${A:+no}", "cost: ${price + 1}"])
def test_invalid_variables_are_rejected(written: str) -> None:
    text = yaml.safe_dump({"agents": {"a": {"instruction": written}}})
    [problem] = problems(text, A="a", B="b")
    assert "agents.a.instruction" in problem
    assert "$${" in problem


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_values_of_variables_are_not_parsed_as_yaml(value: str) -> None:
    found = load("agents:\n  a: {instruction: '<${V}>'}\n", V=value)
    assert found.agents["a"].instruction == f"<{value}>"
    assert set(found.agents) == {"a"}


def test_a_value_that_is_one_variable_is_converted_to_the_type() -> None:
    text = """
gateway: {port: "${PORT}", shutdown_grace: "${GRACE:-1m}"}
agents: {a: {search: {enabled: "${ON}"}, instruction: "${PORT}"}}
context: {strategy: summary_buffer, budget: "${BUDGET}", threshold: "${SHARE}", target: 0.2, summarizer_llm: "${BUDGET}"}
databases: {d: {driver: postgres, host: h, database: d, password: "${PORT}"}}
llms: {x: {base_url: "${NONE:-}", params: {seed: "${PORT}"}}}
"""
    found = load(text, PORT="9000", ON="true", BUDGET="4000", SHARE="0.5")
    assert (found.gateway.port, found.gateway.shutdown_grace) == (9000, 60)
    assert found.agents["a"].search is not None
    assert found.agents["a"].search.enabled is True
    assert found.agents["a"].instruction == "9000"
    assert found.context.options == {"budget": 4000, "threshold": 0.5, "target": 0.2, "summarizer_llm": "4000"}
    assert found.databases["d"].password == "9000"
    assert found.llms["x"].base_url is None
    assert found.llms["x"].params == {"seed": 9000}


def test_a_variable_within_a_string_is_not_converted() -> None:
    assert problems("gateway: {port: '9${N}'}", N="000") == [
        "holdfast.yaml:1: gateway.port: expected an integer from 0 to 65535, got '9${N}'"
    ]


def test_messages_never_show_values_of_variables() -> None:
    text = (
        "gateway: {port: '${S}'}\nllms: {a: {base_url: '${S}', api_key: ['${S}'], timeout: '${S}', provider: '${S}'}}"
    )
    assert SECRET not in "\n".join(problems(text, S=SECRET))
    assert SECRET not in "\n".join(problems(f"llms: {{a: {{api_key: [{SECRET}], headers: {SECRET}x: }}}}"))


@pytest.mark.parametrize(
    "keys",
    [
        "strategy: '${S}'",
        "strategy: token_window, budget: '${S}', target: 'a ${S}'",
        "strategy: clear_tool_results, exclude_tools: '${S}', keep: 'a ${S}'",
        "strategy: none, clear_tool_results: {keep: '${S}'}",
    ],
)
def test_messages_about_strategies_never_show_values_of_variables(keys: str) -> None:
    found = problems(f"context: {{{keys}}}", S=SECRET)
    assert found
    assert "${S}" in "\n".join(found)
    assert SECRET not in "\n".join(found)


def test_variables_that_are_not_utf_8_are_rejected() -> None:
    assert problems("agents: {a: {instruction: '${S}'}}", S="\udcff") == [
        "holdfast.yaml:1: agents.a.instruction: contains bytes that are not UTF-8, or half of a surrogate pair"
    ]
    assert problems("", HOLDFAST_AGENTS__A__INSTRUCTION="\udcff") == [
        "HOLDFAST_AGENTS__A__INSTRUCTION: contains bytes that are not UTF-8, or half of a surrogate pair"
    ]
