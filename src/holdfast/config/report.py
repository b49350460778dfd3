"""What `holdfast config check` tells: mistakes, warnings, and the configuration as it is understood, secrets hidden."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from holdfast.config.convert import nearest
from holdfast.config.model import NOT_USED_YET, Config
from holdfast.config.relations import unknown_agents
from holdfast.config.resolve import (
    BUILT_IN,
    OFFLINE,
    ServerSettings,
    Settled,
    context_of,
    is_loopback,
    place_of,
    settled,
    store_mistake,
    upstream_of,
)
from holdfast.config.shown import describe
from holdfast.config.values import mask_url
from holdfast.config.workspace import workspaces_of
from holdfast.context.policies import WITHOUT_MODEL
from holdfast.domain.budget import window_note, window_of
from holdfast.errors import InvalidRequest, MissingExtra
from holdfast.secrets.patterns import chosen, unknown
from holdfast.secrets.rules import EXTRA, installed
from holdfast.tools.artifacts import TOOLS as ARTIFACT_TOOLS
from holdfast.tools.checkpoint import TOOLS as WORKSPACE_TOOLS
from holdfast.tools.mcp.settings import EXTRA as MCP_EXTRA
from holdfast.tools.mcp.settings import McpSettings, prefix_of
from holdfast.tools.memory import MEMORY
from holdfast.tools.search import ALIAS as SEARCH_ALIAS
from holdfast.tools.search import SEARCH
from holdfast.tools.tool import ELSEWHERE, PYTHON

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

# -- warnings ----------------------------------------------------------------------


def check(config: Config) -> list[str]:
    """What loads and yet will not do what was meant: one line each, with its place, in the order of the file."""
    return _lines(config, [*refused(config), *_doubtful(config)])


def _doubtful(config: Config) -> Iterator[tuple[str, str]]:
    yield from _exposed(config)
    yield from _not_used(config)
    yield from _references(config)
    yield from _tools(config)
    yield from _models(config)
    yield from _scorers(config)
    yield from _redaction_off(config)
    yield from _hooks(config)


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


def _lines(config: Config, found: Iterable[tuple[str, str]]) -> list[str]:
    lines = [(config.lines.get(path, 0), path, message) for path, message in dict.fromkeys(found)]
    return [f"{place_of(config, path)}: {message}" for _, path, message in sorted(lines, key=lambda found: found[0])]


def _not_used(config: Config) -> Iterator[tuple[str, str]]:
    for pattern in NOT_USED_YET:
        section, star, key = pattern.partition(".*.")
        for path in [f"{section}.{name}.{key}" for name in getattr(config, section)] if star else [pattern]:
            if path in config.lines:
                yield path, "not used yet by this version"


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
            yield key, f"the built-in rules need the extra {EXTRA!r}: pip install 'holdfast[{EXTRA}]'"


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


# -- the command -----------------------------------------------------------------------


class Report(NamedTuple):
    """What a command prints and ends with."""

    exit_code: int
    """0: it can be served, warnings or not; 1: it cannot; 2: there is no such file."""
    text: str
    data: dict[str, Any]
    """The same for `--json`."""


def config_check(file: str | None, env: Mapping[str, str]) -> Report:
    """The work of `holdfast config check [FILE]`.

    Args:
        file: the file; None: the one that `serve` would read.
        env: the environment.
    """
    found = settled({"config": file}, env)
    settings = found.settings
    name = settings.file or "defaults"
    if found.missing:
        data = {"file": settings.file, "ok": False, "problems": found.problems, "warnings": []}
        return Report(2, "\n".join(found.problems), data)
    further = [line for line in _further(settings.config, found.wrong) if line not in found.problems]
    warnings = [line for line in _warnings(settings.config, found.wrong) if line not in {*found.problems, *further}]
    if _ill_formed(found, settings.config):
        return _refusal(name, settings.file, [*found.problems, *further], warnings)
    return _accepted(settings, [*found.problems, *further], warnings, name)


def _ill_formed(found: Settled, config: Config) -> bool:
    """Whether it does not even load; a store that is not there does."""
    mistake = store_mistake(config)
    return any(mistake is None or not line.endswith(mistake[1]) for line in found.problems)


def _further(config: Config, wrong: Collection[str]) -> list[str]:
    """What `serve` refuses, without what only follows from mistakes that are told."""
    return _lines(config, [(path, message) for path, message in refused(config) if not _follows(path, wrong)])


def _warnings(config: Config, wrong: Collection[str]) -> list[str]:
    """The warnings; where a whole section is wrong, what refers to it would be told for nothing."""
    if any("." not in path and "[" not in path for path in wrong):
        return ignored(config)
    found = [(path, message) for path, message in _doubtful(config) if not _follows(path, wrong)]
    return [*ignored(config), *_lines(config, found)]


def _follows(path: str, wrong: Collection[str]) -> bool:
    """Whether what is said of a key may only be said because something else is wrong."""
    behind = {"gateway.host": "auth", "storage.sessions.database": "databases", "storage.sessions.backend": "databases"}
    return any(_touches(path, other) or (path in behind and _touches(behind[path], other)) for other in wrong)


def _touches(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.")


def _refusal(name: str, file: str | None, problems: list[str], warnings: list[str]) -> Report:
    count = f"{len(problems)} mistake{'s' * (len(problems) > 1)}"
    lines = [*problems, *(f"warning: {warning}" for warning in warnings), f"{name}: {count}"]
    return Report(1, "\n".join(lines), {"file": file, "ok": False, "problems": problems, "warnings": warnings})


def _accepted(settings: ServerSettings, problems: list[str], warnings: list[str], name: str) -> Report:
    config = settings.config
    model = upstream_of(config)
    store = "none" if store_mistake(config) and "store" not in config.origins else mask_url(settings.store)
    answers = f"{model.model} at {mask_url(model.base_url)} ({model.origin})" if model.base_url else "offline, built in"
    shown = describe(config)
    text = "\n".join(
        [
            *problems,
            *(f"warning: {warning}" for warning in warnings),
            _verdict(name, problems, warnings),
            f"model: {answers}",
            f"store: {store}",
            "",
            yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100).rstrip(),
        ]
    )
    data = {
        "file": settings.file,
        "ok": not problems,
        "problems": problems,
        "warnings": warnings,
        "model": {
            "name": model.model,
            "provider": model.provider,
            "base_url": mask_url(model.base_url),
            "origin": model.origin,
        },
        "store": store,
        "config": shown,
    }
    return Report(1 if problems else 0, text, data)


def _verdict(name: str, problems: list[str], warnings: list[str]) -> str:
    told = [f"{len(found)} {what}{'s' * (len(found) > 1)}" for found, what in ((warnings, "warning"),) if found]
    if problems:
        return ", ".join([f"{name}: loads, and this version cannot serve it", *told])
    return ", ".join([f"{name}: ok", *told])
