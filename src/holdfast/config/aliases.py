"""Accept files that were written for other systems: move their keys to the sections where `config.model` defines the keys.

In the classes of `config.model`, `ALIASES` lists keys that only have another name, and `IGNORED` lists keys without effect. This module
handles keys that belong to another section, or have another form.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.config.convert import describe_unknown
from holdfast.config.yaml_tree import Node, Problems, Scalar, Section, is_broken

SERVER: Final = {
    "artifacts": ("storage", "artifacts"),
    "auth": ("auth",),
    "host": ("gateway", "host"),
    "index": ("storage", "index"),
    "memory": ("storage", "memory"),
    "port": ("gateway", "port"),
    "sessions": ("storage", "sessions"),
}
"""New path, in `config.model`, of each key in the section `server` of other systems' files."""
SERVER_IGNORED: Final = {
    "tasks": "interrupted replies are stored with their session; nothing else needs to be stored",
    "transport": "HTTP is the only one",
    "tls": "a proxy in front of this server terminates TLS",
}
_JWT: Final = ("jwks_url", "issuer", "audience")
_AUTH_IGNORED: Final = {
    "excluded_paths": "health checks such as `/healthz` are always open; docs/access.md describes the rest",
    "refresh_interval": "keys are fetched again when they are needed",
}
MEMORY_KEYS: Final = {
    "max_messages": "window_size",
    "max_tokens": "budget",
    "summary_threshold": "threshold",
    "type": "strategy",
}
"""New name, in the section `context`, of each key in the section `working_memory` of other systems' files."""
DATABASE_KEYS: Final = {"max_conns": "pool", "ssl_mode": "sslmode"}
"""Keys of a database in other systems' files that are driver options here, each with the name of the option."""
DATABASE_IGNORED: Final = {"max_idle": "connections of the pool are kept while the process runs"}


def apply_aliases(tree: Section, problems: Problems) -> None:
    """Move all translated keys of `tree` to their path in the model, and record in `problems` how the file spells them."""
    _move_server(tree, problems)
    _move_llm(tree, problems)
    for name, database in _list_sections(tree, "databases"):
        _rename_database_keys(database, f"databases.{name}", problems)
    for name, agent in _list_sections(tree, "agents"):
        _rename_memory_keys(agent, f"agents.{name}", problems)
        _expand_memory(agent)
    _expand_memory(tree)
    hooks = tree.get_section("hooks")
    given = hooks.entries.get("workspace_git") if hooks else None
    if hooks and isinstance(given, Scalar) and given.text.lower() in {"true", "false"}:
        hooks.entries["workspace_git"] = Section(given.line, {"enabled": given})


def _expand_memory(section: Section) -> None:
    """Write `memory: server` of an agent, or at the top, as `memory: {files: server}`."""
    given = section.entries.get("memory")
    if isinstance(given, Scalar) and given.text.lower() in {"server", "client"}:
        section.entries["memory"] = Section(given.line, {"files": given})


def _list_sections(tree: Section, key: str) -> list[tuple[str, Section]]:
    """Return name and value of those entries of a top-level mapping whose values are mappings."""
    found = tree.get_section(key)
    return [(name, child) for name, child in found.entries.items() if isinstance(child, Section)] if found else []


def _move_server(tree: Section, problems: Problems) -> None:
    server = tree.entries.pop("server", None)
    if server is None:
        return
    if not isinstance(server, Section):
        if not is_broken(server) and not (isinstance(server, Scalar) and server.is_empty):
            problems.add(server.line, "server", "expected a mapping")
        return
    for key, node in server.entries.items():
        if key in SERVER_IGNORED:
            problems.ignored.append((node.line, f"server.{key}", SERVER_IGNORED[key]))
        elif key not in SERVER:
            problems.add(node.line, f"server.{key}", describe_unknown(key, SERVER))
        else:
            moved = _translate_auth(node, problems) if key == "auth" else node
            _put(tree, SERVER[key], moved, f"server.{key}", problems)


def _move_llm(tree: Section, problems: Problems) -> None:
    """Move `llm`, a single model, to the entry `default` of `llms`."""
    llm = tree.entries.pop("llm", None)
    if isinstance(llm, Section):
        _put(tree, ("llms", "default"), llm, "llm", problems)
    elif llm is not None:
        problems.add(llm.line, "llm", "expected a mapping, which is the entry `default` of `llms`")


def _put(tree: Section, path: tuple[str, ...], node: Node, spelt: str, problems: Problems) -> None:
    """Set a value at a path, or report a mistake if the path has a value already.

    Args:
        tree: the top level of the file.
        path: path in the model, key by key.
        node: the value.
        spelt: path of the value in the file.
        problems: records the mistake, or the file's spelling of the path.
    """
    section = tree
    for key in path[:-1]:
        inner = section.entries.get(key)
        if inner is None or (isinstance(inner, Scalar) and inner.kind == "null"):
            inner = section.entries[key] = Section(node.line, {})
            problems.written[".".join(path[: path.index(key) + 1])] = spelt.partition(".")[0]
        if not isinstance(inner, Section):
            return  # the converter reports that this value is not a mapping
        section = inner
    if path[-1] in section.entries:
        first = section.entries[path[-1]].line
        problems.add(node.line, "", f"{spelt}: the same as {'.'.join(path)!r} in line {first}")
        return
    section.entries[path[-1]] = node
    problems.written[".".join(path)] = spelt


def _translate_auth(node: Node, problems: Problems) -> Node:
    """Convert the section `server.auth` of another system's file to the section `auth`.

    The keys `enabled` and `require_auth` are translated; `jwks_url`, `issuer` and `audience` are moved to `jwt`.
    """
    if not isinstance(node, Section) or not {"enabled", "require_auth", *_JWT} & node.entries.keys():
        return node
    given = dict(node.entries)
    for key in _AUTH_IGNORED.keys() & given.keys():
        problems.ignored.append((given.pop(key).line, f"server.auth.{key}", _AUTH_IGNORED[key]))
    jwt: dict[str, Node] = {key: given.pop(key) for key in _JWT if key in given}
    enabled, required = given.pop("enabled", None), given.pop("require_auth", None)
    state = enabled.text.lower() if isinstance(enabled, Scalar) else ""
    if enabled is not None and state not in {"true", "false"}:
        problems.add(enabled.line, "", "server.auth.enabled: expected true or false")
    if state != "true":
        off = "authentication is disabled in the file; `enabled: true` enables it"
        problems.ignored += [(child.line, f"server.auth.{key}", off) for key, child in jwt.items()]
        return Section(node.line, given)
    if jwt:
        given["jwt"] = Section(node.line, jwt)
        problems.written["auth.jwt"] = "server.auth"
    if required is not None:
        given["required"] = required
        problems.written["auth.required"] = "server.auth.require_auth"
    return Section(node.line, given)


def _rename_database_keys(database: Section, path: str, problems: Problems) -> None:
    entries = database.entries
    driver = entries.get("driver")
    if isinstance(driver, Scalar) and driver.text == "sqlite3":
        driver = entries["driver"] = replace(driver, text="sqlite")
    is_sqlite = isinstance(driver, Scalar) and driver.text == "sqlite"
    if is_sqlite and "path" not in entries and "database" in entries:
        entries["path"] = entries.pop("database")
        problems.written[f"{path}.path"] = f"{path}.database"
    for key in DATABASE_IGNORED.keys() & entries.keys():
        problems.ignored.append((entries.pop(key).line, f"{path}.{key}", DATABASE_IGNORED[key]))
    for key in [key for key in DATABASE_KEYS if key in entries]:
        if is_sqlite:
            why = "an SQLite file has one connection for writing, and no TLS"
            problems.ignored.append((entries.pop(key).line, f"{path}.{key}", why))
        else:
            _move_to_options(database, key, path, problems)


def _move_to_options(database: Section, key: str, path: str, problems: Problems) -> None:
    """Move a key of a database to `options`, and rename it to the option's name. Report a mistake if `options` already has that name.

    If `options` is not a mapping, nothing is moved.
    """
    option, options = DATABASE_KEYS[key], database.entries.get("options")
    if options is None or (isinstance(options, Scalar) and options.kind == "null"):
        options = database.entries["options"] = Section(database.line, {})
    if not isinstance(options, Section):
        return
    if option in options.entries:
        problems.add(options.line, f"{path}.options.{option}", "given twice, by two names; remove one of the two")
        return
    options.entries[option] = database.entries.pop(key)
    problems.written[f"{path}.options.{option}"] = f"{path}.{key}"


def _rename_memory_keys(agent: Section, path: str, problems: Problems) -> None:
    memory = agent.get_section("working_memory")
    if memory is None:
        return
    for key, name in MEMORY_KEYS.items():
        if key in memory.entries and name not in memory.entries:
            node = memory.entries.pop(key)
            if name == "strategy" and isinstance(node, Scalar) and node.text == "all":
                node = replace(node, text="none")
            memory.entries[name] = node
            problems.written[f"{path}.context.{name}"] = f"{path}.working_memory.{key}"
