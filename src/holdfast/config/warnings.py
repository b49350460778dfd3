"""What loads, and yet will not do what was meant, or is refused by `serve`: a place and a message each."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast.config.convert import nearest
from holdfast.config.gateway import is_loopback
from holdfast.config.model import BUILT_IN, NOT_USED_YET, OFFLINE, Config
from holdfast.config.relations import unknown_agents
from holdfast.config.resolve import store_mistake
from holdfast.config.upstreams import context_of, upstream_of
from holdfast.config.workspace import workspaces_of
from holdfast.context.policies import WITHOUT_MODEL
from holdfast.distribution import format_install_hint
from holdfast.domain.budget import window_note, window_of
from holdfast.errors import InvalidRequest, MissingExtra
from holdfast.secrets.patterns import chosen, unknown
from holdfast.secrets.rules import EXTRA, installed
from holdfast.tools.artifacts import TOOLS as ARTIFACT_TOOLS
from holdfast.tools.mcp.settings import EXTRA as MCP_EXTRA
from holdfast.tools.mcp.settings import McpSettings, prefix_of
from holdfast.tools.memory import MEMORY
from holdfast.tools.search import ALIAS as SEARCH_ALIAS
from holdfast.tools.search import SEARCH
from holdfast.tools.tool import ELSEWHERE, PYTHON
from holdfast.tools.workspace import TOOLS as WORKSPACE_TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


def check(config: Config) -> list[str]:
    """What loads and yet will not do what was meant: one line each, with its place, in the order of the file."""
    return lines_of(config, [*refused(config), *doubtful(config)])


def doubtful(config: Config) -> Iterator[tuple[str, str]]:
    """What is served, and yet will not do what was meant: places and messages."""
    yield from _exposed(config)
    yield from _not_used(config)
    yield from _references(config)
    yield from _tools(config)
    yield from _models(config)
    yield from _scorers(config)
    yield from _redaction_off(config)
    yield from _hooks(config)
    yield from _unbounded(config)


def _unbounded(config: Config) -> Iterator[tuple[str, str]]:
    """A cap that somebody set, where sessions past it stay on disk for ever."""
    sessions, key = config.storage.sessions, "short_term.max_sessions"
    if (
        key in config.lines
        and config.short_term.max_sessions
        and sessions.backend != "inmemory"
        and not sessions.retention
    ):
        yield (
            key,
            "closes the session idle longest, and keeps it on disk for ever: set storage.sessions.retention to bound the disk",
        )


def ignored(config: Config) -> list[str]:
    """Keys of other systems that do nothing here, with their places."""
    told = [(line, f"{path}: does nothing here: {why}") for line, path, why in config.ignored]
    return [f"{config.source}:{line}: {text}" for line, text in sorted(told)]


def refused(config: Config) -> list[tuple[str, str]]:
    """What loads and `serve` of this version refuses: places and messages."""
    mistake = store_mistake(config)
    exposed = _exposed(config) if config.auth.required is False else ()
    return [*([mistake] if mistake else []), *exposed, *_without_rules(config), *_mcp(config)]


_BUILT = frozenset({MEMORY, PYTHON, SEARCH, SEARCH_ALIAS, *ARTIFACT_TOOLS})
"""Tools that are built in."""


def lines_of(config: Config, found: Iterable[tuple[str, str]]) -> list[str]:
    """What was found as lines that begin with their place, in the order of the file, each once."""
    lines = [(config.lines.get(path, 0), path, message) for path, message in dict.fromkeys(found)]
    return [f"{config.place_of(path)}: {message}" for _, path, message in sorted(lines, key=lambda found: found[0])]


def _not_used(config: Config) -> Iterator[tuple[str, str]]:
    for key in NOT_USED_YET:
        if key in config.lines:
            yield key, "not used yet by this version"


def _references(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("memory", "index"):
        part = getattr(config.storage, key)
        if part and part.embedder and part.embedder not in {*config.embedders, *BUILT_IN}:
            yield f"storage.{key}.embedder", f"no embedder {part.embedder!r}{_meant(part.embedder, config.embedders)}"
    index = config.storage.index
    if index and index.database and index.database not in config.databases:
        meant = _meant(index.database, config.databases)
        yield "storage.index.database", f"no database {index.database!r}{meant}"
    yield from unknown_agents(config.agents)


def _tools(config: Config) -> Iterator[tuple[str, str]]:
    """A file names tools, and a program gives them: which there will be is not known here."""
    for name, agent in config.agents.items():
        for tool in agent.tools or ():
            if tool == PYTHON and not config.python.enabled:
                yield f"agents.{name}.tools", f"tool {tool!r} is off, and is left out: python.enabled turns it on"
            elif tool in WORKSPACE_TOOLS:
                if workspaces_of(config.hooks.workspace_git) is None:
                    off = f"tool {tool!r} is off, and turns are refused: hooks.workspace_git turns it on"
                    yield f"agents.{name}.tools", off
            elif tool in ELSEWHERE:
                yield f"agents.{name}.tools", f"no tool {tool!r} is built in: it is left out unless a program gives it"
            elif tool not in _BUILT and not _of_server(config, tool):
                yield (
                    f"agents.{name}.tools",
                    f"no tool {tool!r} is built in: turns are refused unless a program gives it",
                )


def _of_server(config: Config, tool: str) -> bool:
    """Whether a name may be that of an MCP server, or of one of its tools: which these are is known when it runs."""
    named = config.mcp_servers.items()
    return any(tool == name or tool.startswith(prefix_of(name, one.prefix)) for name, one in named)


def _models(config: Config) -> Iterator[tuple[str, str]]:
    used = [(f"agents.{name}.llm", agent.llm) for name, agent in config.agents.items()]
    used.append(("dreaming.model", config.dreaming.model))
    for name in [None, *config.agents]:
        prefix = f"agents.{name}." if name else ""
        used.append((f"{prefix}context.summarizer_llm", context_of(config, name).options.get("summarizer_llm")))
    for path, model in used:
        if model is None or path not in config.lines or model in {*config.llms, *BUILT_IN, OFFLINE, *WITHOUT_MODEL}:
            continue
        if window_of(model) is None:
            yield path, f"no llm {model!r}: taken for a model's name{_meant(model, config.llms)}"
    yield from _fallbacks(config)
    for name, llm in config.llms.items():
        note = None if llm.context_window or llm.provider == "offline" else window_note(upstream_of(config, name).model)
        if note:
            yield f"llms.{name}", note


def _fallbacks(config: Config) -> Iterator[tuple[str, str]]:
    """Those that will not be asked, or not as was meant. Two that name each other are right: a list is not followed on."""
    for name, llm in config.llms.items():
        own, path = upstream_of(config, name), f"llms.{name}.fallbacks"
        seen = {(own.origin, own.model)}
        for other in llm.fallbacks:
            found = upstream_of(config, other)
            if (found.origin, found.model) in seen:
                itself = (found.origin, found.model) == (own.origin, own.model)
                yield path, f"{other!r} is {'this very model' if itself else 'named before'}: it is asked once"
            elif other not in {*config.llms, *BUILT_IN, OFFLINE} and window_of(other) is None:
                yield path, f"no llm {other!r}: taken for a model's name{_meant(other, config.llms)}"
            elif config.gateway.upstream_auth == "passthrough" and _place(found.base_url) != _place(own.base_url):
                yield path, f"{other!r} is elsewhere: a client's own key is not handed on to it (gateway.upstream_auth)"
            seen.add((found.origin, found.model))


def _place(base_url: str) -> tuple[str, str]:
    parts = urlsplit(base_url)
    return parts.scheme, parts.netloc


def _scorers(config: Config) -> Iterator[tuple[str, str]]:
    for name in [None, *config.agents]:
        path = f"agents.{name}.context.scorer" if name else "context.scorer"
        scorer = context_of(config, name).options.get("scorer")
        if scorer is not None and scorer not in config.llms and path in config.lines:
            yield path, f"no llm {scorer!r}: signals of the text rate instead{_meant(scorer, config.llms)}"


def _exposed(config: Config) -> Iterator[tuple[str, str]]:
    reached = f"{config.gateway.host} can be reached from other machines"
    if is_loopback(config.gateway.host) or config.auth.kind == "always":
        return
    if config.auth.kind == "never":
        yield "gateway.host", f"{reached}, and auth.required is false: it is not served so"
    else:
        yield "gateway.host", f"{reached}: it is served as soon as there is a key; `holdfast keys create` makes one"


def _without_rules(config: Config) -> Iterator[tuple[str, str]]:
    redaction, guard = config.redaction, config.secret_guard
    wanted = {
        "redaction": redaction.enabled
        and redaction.use_builtins
        and _any_rule(redaction.rules, redaction.exclude_rules),
        "secret_guard": guard and guard.enabled and _any_rule(guard.rules, guard.exclude_rules),
    }
    for key, rules in wanted.items():
        if rules and not installed():
            yield key, f"the built-in rules need {format_install_hint(EXTRA)}"


def _mcp(config: Config) -> Iterator[tuple[str, str]]:
    for name in config.mcp_servers:
        try:
            McpSettings(name=name, command="any")
        except InvalidRequest as exc:
            yield f"mcp_servers.{name}", str(exc)
    if config.mcp_servers and find_spec("mcp") is None:
        yield "mcp_servers", str(MissingExtra("an MCP server", extra=MCP_EXTRA))


def _any_rule(rules: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether a built-in rule is wanted; not by names that are no rule's, which are told by themselves."""
    return not unknown([*rules, *exclude]) and bool(chosen(rules, exclude))


def _redaction_off(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("patterns", "rules", "exclude_rules", "use_builtins"):
        if f"redaction.{key}" in config.lines and not config.redaction.enabled:
            yield f"redaction.{key}", "redaction is off; `enabled: true` turns it on"


def _hooks(config: Config) -> Iterator[tuple[str, str]]:
    hooks = config.hooks
    if hooks.transcripts_dir is None and "hooks.transcripts" in config.lines:
        yield "hooks.transcripts", "no transcripts are written; `transcripts_dir` says where"
    for at, webhook in enumerate(hooks.webhooks):
        parts = urlsplit(webhook.url)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            yield f"hooks.webhooks[{at}].url", "http:// sends what was said in the clear; use https://"


def _meant(name: str, known: Mapping[str, Any]) -> str:
    near = nearest(name, list(known))
    return f"; did you mean {near!r}?" if near else ""
