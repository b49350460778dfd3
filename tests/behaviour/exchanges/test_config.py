"""Configuration: defaults, what a file and variables make of them, and each mistake and warning of `holdfast config check`."""

from __future__ import annotations

from typing import Any, Final

from tests.behaviour.kit.exchanges import Exchange, exchange

NO_FILE: Final[dict[str, Any]] = {"HOLDFAST_CONFIG": None, "HOLDFAST_STORE": None}
FULL: Final = """
llms:
  default: {model: gpt-4o, base_url: "http://127.0.0.1:9/v1/", api_key: sk-0123456789abcdef, params: {temperature: 0.5}, max_tokens: 100, fallbacks: [claude]}
  claude: {provider: anthropic, model: claude-sonnet-4-5, api_key: "${KEY:-none}", timeout: 1m, headers: {x-a: b}}
  small: {context_window: 8000}
embedders: {e: {provider: ollama, model: nomic}}
databases:
  main: {driver: postgres, host: db, port: 5433, database: "d b", user: "u@x", password: "p/w", options: {sslmode: require}}
storage:
  sessions: {backend: sql, retention: 30d}
  memory: {backend: hybrid, embedder: e}
  index: {type: keyword}
gateway: {port: 9000, max_body: 2MiB, keep_alive: 0s, user_headers: X-User, allowed_strategies: [digest], max_tool_rounds: 0, session_queue: reject}
sessions: {ttl: 90m, max_sessions: 5}
context: {strategy: summary_buffer, budget: 4000, summarizer_llm: small}
agents:
  a: {llm: claude, tools: [save_artifact], output_key: "user:x", state: {n: 1, "app:m": [1, 2]}, memory: server, search: {enabled: true, tz: Europe/Berlin}}
  b: {context: {budget: 500}, sequence: []}
  c: {parallel: [a, b], description: "both"}
auth: {required: true, rate: 60}
redaction: {enabled: true, rules: [], patterns: [{regex: "sec[0-9]+", label: SECRET}]}
hooks:
  workspace_git: true
  transcripts_dir: t
  webhooks: [{url: "https://h/x", secret: whsec-0123456789abcdef, events: close}]
mcp_servers: {m: {command: run, args: [a, "b c"], env: {TOKEN: t-0123456789abcdef}, timeout: 5s}}
"""
SECOND: Final = """
llm: {name: gpt-4o, url: "http://127.0.0.1:9/v1", key: k}
short_term: {max_turns: 5}
sessions: {ttl_seconds: 60}
"""


async def check(x: Exchange, text: str, command: str = "check", *options: str, **env: str) -> None:
    """Check a file with this text."""
    x.lines += ["# " + line for line in text.strip().splitlines()]
    (x.folder / "c.yaml").write_text(text)
    file = (str(x.folder / "c.yaml"),) if command == "check" else ("--config", str(x.folder / "c.yaml"))
    await x.run("config", command, *file, *options, env={**NO_FILE, **env})


@exchange(None, stores=["file"])
async def test_defaults_and_effective_values(x: Exchange) -> None:
    await check(x, "{}", "show")
    await check(x, FULL, KEY="sk-ant-0123456789")
    await check(x, FULL, "check", "--json")
    await check(x, FULL, "show", HOLDFAST_PORT="1", HOLDFAST_GATEWAY__HOST="0.0.0.0", HOLDFAST_STORE="mysql://u:pw@h/d")
    await check(x, SECOND, "check")
    for env in ({"OPENAI_API_KEY": "sk-1"}, {"ANTHROPIC_API_KEY": "sk-2"}, {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": "http://h:1/v1"}, {"HOLDFAST_MODEL": "m"}, {"HOLDFAST_MODEL": "small", "OPENAI_API_KEY": "sk-1"}):  # fmt: skip
        await check(x, "llms: {small: {model: gpt-4o-mini}, big: {model: o3}}", "check", "--json", **env)
        await check(x, "agents: {a: {}}", **env)


MISTAKES: Final = (
    "gatway: {port: 1}\ngateway: {port: 70000, max_body: 12 apples, host: '', log_level: loud, keep_alive: -1s}\nsessions: {ttl: soon}",
    "gateway: {user_headers: 'a b', session_headers: [x, X], allowed_strategies: [best], max_tool_rounds: 1001, max_media: 1}",
    "gateway: {max_tool_rounds: 1000, max_media: 1KiB, port: 65535, keep_alive: 86400s, shutdown_grace: 24h}",
    "auth: {jwt: {jwks_url: 'http://h/keys', issuer: i, audience: []}}",
    "auth: {jwt: {jwks_url: 'http://localhost/keys', issuer: i, audience: a, role: king}}",
    "llms: {default: {model: m, base_url: h, api_key: 'a b\tü', params: {model: x, messages: [], temperature: 1}, max_tokens: 0}}",
    "llms: {a: {model: gpt-4o, max_tokens: 200000}, b: {modle: x}, c: {provider: best}, default: {context_window: 10}}",
    "llms: {a: {model: gpt-4o, headers: {'a b': c, x: 'é'}, system_messages: [{role: user}], fallbacks: " + str([f"m{n}" for n in range(17)]) + "}}",
    "databases: {a: {}, b: {driver: sqlite, host: h}, c: {driver: postgres, path: p}, d: {url: 'mysql://x', host: h}, e: {url: 'x://y'}, f: {driver: mysql, url: 'postgres://h/d'}}",
    "storage: {sessions: {backend: inmemory, database: main}, memory: {backend: vector}, index: {type: hybrid}}",
    "storage: {sessions: {backend: sql, database: gone}}\ndatabases: {main: {url: 'sqlite:///a.db'}}",
    "storage: {index: {enabled: false, type: hybrid}, memory: {embedder: gone}}\nembedders: {gon: {}}",
    "agents: {a: {sequence: [b], parallel: [b], llm: x, tools: [], output_key: 'temp:'}, b: {state: {'temp:x': 1, '': 2}}}",
    "agents: {a: {sub_agents: [b], agent_tools: [c]}, b: {sequence: [a]}, c: {sub_agents: [c]}}",
    "agents: {a: {sub_agents: [b, c]}, b: {sub_agents: [c]}, c: {}}",
    "agents: {a: {memory: {enabled: true, files: server}, search: {tz: Nowhere}}, '..': {}, b: {context: {strategy: best, budget: 1}}}",
    "agents: {a: {tools: [python, memory, run_python, gone, workspace_write], sub_agents: [B], llm: gpt-9, context: {strategy: summary_buffer, summarizer_llm: sml, scorer: smol}}, b: {}}\nllms: {small: {}}",
    "llms: {a: {model: gpt-4o, fallbacks: [a, b, b, c, gpt-4o-mini, zzz]}, b: {model: m, base_url: 'http://x/v1', fallbacks: [d]}, c: {model: gpt-4o}, d: {model: n, base_url: 'http://x/v2'}}\ngateway: {upstream_auth: passthrough}",
    "llms: {a: {model: gpt-4o}, b: {provider: anthropic, headers: {X-Api-Key: k}}, c: {model: zzz, base_url: 'http://x/v1'}, d: {model: gpt-4o, api_key: k}}",
    "llms: {a: {model: m, base_url: 'http://x/v1', api: responses, fallbacks: " + str([f"m{n}" for n in range(16)]) + "}}\nstorage: {memory: {backend: keyword}}\nsearch: {enabled: true}",
    "agents: {a: {parallel: [b], llm: x}, b: {instruction: !!str 3, description: !x y, tools: !!set {a}}}",
    "agents: " + "{a: " * 33 + "1" + "}" * 33, "agents: {a: {state: " + "{a: " * 27 + "1" + "}" * 27 + "}}", "agents: {a: {state: " + "{a: " * 28 + "1" + "}" * 28 + "}}", "agents: {a: {state: " + "{a: " * 29 + "1" + "}" * 29 + "}}",
    "llms: {default: {api_key: [secret-1], model: {a: sk-2}}}\nhooks: {webhooks: {url: 3}}\nagents: {a: {tools: [1, true, null], instruction: 3, output_key: 1.5}}",
    "gateway: {host: 0.0.0.0}\nauth: {required: false}",
    "gateway: {host: '::1'}\nauth: {required: false}",
    "gateway: {host: '192.0.2.1'}",
    "redaction: {rules: [none_such], exclude_rules: [], patterns: [{regex: '(', label: x}, {regex: a, label: 'a b'}]}\nsecret_guard: {exclude_rules: [x]}",
    "redaction: {patterns: [{regex: 'b*', label: ''}], rules: [jwt, aws_acces_key]}",
    "redaction: {patterns: [{regex: abc, label: X}], exclude_rules: []}\nsecret_guard: {enabled: false}",
    "hooks: {webhooks: [{url: 'http://h/x', secret: short, events: []}, {url: 'ftp://h', secret: whsec-0123456789abcdef}], workspace_git: {path: ''}}",
    "hooks: {webhooks: [{url: 'http://h/x', secret: whsec-0123456789abcdef}, {url: 'http://h/x', secret: whsec-0123456789abcdef, headers: {a: b}}]}",
    "mcp_servers: {'a b': {command: x}, c: {}, d: {command: x, url: 'http://h'}, e: {url: h, timeout: 0s}}",
    "sessions: {max_sessions: 3}\nstorage: {sessions: {retention: 1d}}",
    "sessions: {max_sessions: 3}",
    "context: {strategy: buffer_window, window_size: 0, budgt: 1}\nmemory: {enabled: 'yes', max_results: 21, budget: 32001}",
    "context: {strategy: token_window, window_size: 3}\nsearch: {max_results: 100, budget: 0}\nmemory: {enabled: on, max_results: 20, budget: 32000}",
    "llms: {a: {api_key: 123456, headers: {x: 5}}}\ndatabases: {a: {password: 1.5, user: 7}}", "databases: {a: {driver: oracle, host: h}, b: {driver: postgres, port: x}, c: {driver: mysql, host: h, path: 3}}", "a: [", "gateway: {port: 1}\ngateway: {port: 2}", "- a", "a: &x {b: *x}", "agents: {a: {instruction: '${GONE} ${}'}}", "\tgateway: {}", "", "agents: []", "llm: 3", "llm: {}\nllms: {default: {}}",
)  # fmt: skip


@exchange(None, stores=["file"])
async def test_mistakes_and_warnings(x: Exchange) -> None:
    for text in MISTAKES:
        await check(x, text)
    for value in ("", "given"):
        await check(
            x, "agents: {a: {instruction: '${EMPTY:-use} ${EMPTY} $${EMPTY} ${EMPTY:?must}'}}", "show", EMPTY=value
        )
        await check(x, "agents: {a: {instruction: '${EMPTY:-use} ${EMPTY} $${EMPTY}'}}", "show", EMPTY=value)
    await x.run("config", "check", str(x.folder / "gone.yaml"), env=NO_FILE)
    await x.run("config", "check", str(x.folder / "gone.yaml"), "--json", env=NO_FILE)
    await x.run("config", "show", env={**NO_FILE, "HOLDFAST_CONFIG": str(x.folder / "gone.yaml")})


VARIABLES: Final = (
    {"HOLDFAST_GATEWAY__PORT": "1", "HOLDFAST_PORT": "2", "HOLDFAST_HOST": "h", "HOLDFAST_AGENTS__MY_AGENT__TOOLS": "zzz"},
    {"HOLDFAST_GATEWAY_PORT": "1", "HOLDFAST_GATEWAY": "x", "HOLDFAST_OTHER": "y", "HOLDFAST_GATEWAY__PROT": "3", "HOLDFAST_GATEWAY__ZZZ": "4"},
    {"HOLDFAST_AGENTS__A__TOOLS": "memory, python,", "HOLDFAST_AGENTS__A__STATE__N": "2", "HOLDFAST_AGENTS__NEW__LLM": "x", "HOLDFAST_AGENTS__BETTA__LLM": "x"},
    {"HOLDFAST_LLMS__DEFAULT__PARAMS__TOP_P": "0.5", "HOLDFAST_LLMS__DEFAULT__PARAMS": "x", "HOLDFAST_LLMS__DEFAULT": "x", "HOLDFAST_LLMS__DEFAULT__MODEL__X": "y"},
    {"HOLDFAST_HOOKS__WEBHOOKS__0__URL": "https://x/", "HOLDFAST_HOOKS__WEBHOOKS__0__SECRET": "whsec-0123456789abcdef", "HOLDFAST_HOOKS__WEBHOOKS__2__URL": "y", "HOLDFAST_HOOKS__WEBHOOKS": "z"},
    {"HOLDFAST_CONTEXT__BUDGET": "900", "HOLDFAST_CONTEXT__NOTHING": "1", "HOLDFAST_AGENTS__A__CONTEXT__WINDOW_SIZE": "3", "HOLDFAST_AGENTS__A__MEMORY": "server"},
    {"HOLDFAST_SESSIONS__TTL": "", "HOLDFAST_GATEWAY__port": "5", "HOLDFAST_GATEWAY__PORT": "6", "HOLDFAST_HOOKS__WORKSPACE_GIT": "true"},
    {"HOLDFAST_AGENTS__A__TOOLS": "memory, save_artifact,", "HOLDFAST_AGENTS__A__STATE__N": "2", "HOLDFAST_AGENTS__NEW__LLM": "x", "HOLDFAST_LLMS__DEFAULT__PARAMS__TOP_P": "0.5", "HOLDFAST_HOOKS__WEBHOOKS__0__URL": "https://x/", "HOLDFAST_HOOKS__WEBHOOKS__0__SECRET": "whsec-0123456789abcdef", "HOLDFAST_CONTEXT__BUDGET": "900", "HOLDFAST_AGENTS__A__CONTEXT__WINDOW_SIZE": "3", "HOLDFAST_AGENTS__BETA__MEMORY": "server", "HOLDFAST_HOOKS__WORKSPACE_GIT": "true"},
    {"HOLDFAST_LLMS__DEFAULT__MAX_TOKENS": "3", "HOLDFAST_AGENTS__A__INSTRUCTION": "3", "HOLDFAST_GATEWAY__SINGLE_USER": "true", "HOLDFAST_SHORT_TERM__TTL": "2h", "HOLDFAST_HOOKS__WEBHOOKS__X__URL": "u", "HOLDFAST_AGENTS__A__STATE__M": "true"},
    {"HOLDFAST_STORE": "mysql://u:pw@h:1/d", "HOLDFAST_MODEL": "gpt-4o"},
)  # fmt: skip
DOTENV: Final = """# comment
HOLDFAST_PORT=1002 # more
export HOLDFAST_SESSIONS__TTL='2h'
HOLDFAST_AGENTS__A__INSTRUCTION="Say \\"hi\\"
\\n now"
wrong line
OPENAI_API_KEY=sk-0123456789abcdef
EMPTY=
HOLDFAST_PORT=1003
B='x' y
"""


@exchange(None, stores=["file"])
async def test_variables(x: Exchange) -> None:
    text = "agents: {a: {tools: [memory], state: {n: 1}}, beta: {}, My-Agent: {}}\nllms: {default: {model: m, base_url: 'http://x/v1'}}\ncontext: {strategy: buffer_window}\nsessions: {ttl: 1h}"
    for env in VARIABLES:
        await check(x, text, **env)
    texts = "agents: {a: {instruction: 'x ${A} ${B:-b} ${B:-} $${C} $D', llm: '${A}'}}"
    await check(x, texts, A="1: {y}")
    (x.folder / ".env").write_text(DOTENV)
    (x.folder / ".env").chmod(0o644)
    await check(x, "gateway: {host: '::1'}", "check")
    (x.folder / ".env").write_text(DOTENV.replace("wrong line\n", "").replace("B='x' y\n", ""))
    await check(x, "gateway: {host: '::1'}", "check", HOLDFAST_PORT="7")
    (x.folder / ".env").chmod(0o640)
    await check(x, "gateway: {host: '::1'}", "check", "--json")
