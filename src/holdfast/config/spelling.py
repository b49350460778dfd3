"""Other systems' spelling: what a file written for them means here, moved to where this model has it.

What only has another name is in `ALIASES` of the model's own classes, and what means nothing here in their `IGNORED`. Here is
what stands in another place, or is said in another way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.config.convert import unknown
from holdfast.config.document import Node, Problems, Scalar, Section

SERVER: Final = {
    "artifacts": ("storage", "artifacts"),
    "auth": ("auth",),
    "host": ("gateway", "host"),
    "index": ("storage", "index"),
    "memory": ("storage", "memory"),
    "port": ("gateway", "port"),
    "sessions": ("storage", "sessions"),
}
"""Keys of `server`, and where they are here."""
SERVER_IGNORED: Final = {
    "tasks": "replies that were cut off are kept with their session: there is nothing else to store",
    "transport": "there is one, HTTP",
    "tls": "TLS ends at a proxy before this server",
}
_JWT: Final = ("jwks_url", "issuer", "audience")
_AUTH_IGNORED: Final = {
    "excluded_paths": "`/healthz` and its like are always open; everything else is as docs/access.md says",
    "refresh_interval": "keys are fetched again as they are needed",
}
MEMORY_KEYS: Final = {
    "max_messages": "window_size",
    "max_tokens": "budget",
    "summary_threshold": "threshold",
    "type": "strategy",
}
"""Keys of `working_memory`, and those of `context`."""
DATABASE_KEYS: Final = {"max_conns": "pool", "ssl_mode": "sslmode"}
"""Keys of a database that are options of its driver, and their names there."""
DATABASE_IGNORED: Final = {"max_idle": "connections of the pool are kept while the process runs"}


def respelt(tree: Section, problems: Problems) -> None:
    """Put everything where the model has it, and note where it stood."""
    _server(tree, problems)
    _llm(tree, problems)
    for name, database in _sections(tree, "databases"):
        _database(database, f"databases.{name}", problems)
    for name, agent in _sections(tree, "agents"):
        _working_memory(agent, f"agents.{name}", problems)
    _workspaces(tree)


def _sections(tree: Section, key: str) -> list[tuple[str, Section]]:
    """The mappings in a mapping of the top level, by name."""
    _, found = tree.entries.get(key, (0, None))
    entries = found.entries.items() if isinstance(found, Section) else ()
    return [(name, child) for name, (_, child) in entries if isinstance(child, Section)]


def _server(tree: Section, problems: Problems) -> None:
    _, server = tree.entries.get("server", (0, None))
    if server is None:
        return
    del tree.entries["server"]
    if not isinstance(server, Section):
        empty = isinstance(server, Scalar) and (server.kind == "null" or server.broken)
        if not empty:
            problems.add(server.line, "server", "expected a mapping")
        return
    for key, (at, node) in server.entries.items():
        if key in SERVER_IGNORED:
            problems.ignored.append((at, f"server.{key}", SERVER_IGNORED[key]))
        elif key not in SERVER:
            problems.add(at, f"server.{key}", unknown(key, list(SERVER)))
        else:
            moved = _auth(node, problems) if key == "auth" else node
            _put(tree, SERVER[key], (at, moved), f"server.{key}", problems)


def _llm(tree: Section, problems: Problems) -> None:
    """`llm`, the only one that there is: the entry `default` of `llms`."""
    line, llm = tree.entries.pop("llm", (0, None))
    if llm is None:
        return
    if isinstance(llm, Section):
        _put(tree, ("llms", "default"), (line, llm), "llm", problems)
    else:
        problems.add(line, "llm", "expected a mapping, which is the entry `default` of `llms`")


def _put(tree: Section, path: tuple[str, ...], found: tuple[int, Node], spelt: str, problems: Problems) -> None:
    """Put a value at a path where nothing stands yet."""
    section, line = tree, found[0]
    for key in path[:-1]:
        _, inner = section.entries.get(key, (0, None))
        if inner is None or (isinstance(inner, Scalar) and inner.kind == "null"):
            inner = Section(line, {})
            section.entries[key] = line, inner
            problems.written[".".join(path[: path.index(key) + 1])] = spelt.partition(".")[0]
        if not isinstance(inner, Section):
            return  # told where it stands
        section = inner
    if path[-1] in section.entries:
        first = section.entries[path[-1]][0]
        problems.add(line, "", f"{spelt}: the same as {'.'.join(path)!r} in line {first}")
        return
    section.entries[path[-1]] = found
    problems.written[".".join(path)] = spelt


def _auth(node: Node, problems: Problems) -> Node:
    """`enabled`, `require_auth` and the three of a token: the key `auth`."""
    if not isinstance(node, Section) or not {"enabled", "require_auth", *_JWT} & node.entries.keys():
        return node
    given = dict(node.entries)
    for key in _AUTH_IGNORED.keys() & given.keys():
        problems.ignored.append((given.pop(key)[0], f"server.auth.{key}", _AUTH_IGNORED[key]))
    _, enabled = given.pop("enabled", (0, None))
    jwt: dict[str, tuple[int, Node]] = {key: given.pop(key) for key in _JWT if key in given}
    required = given.pop("require_auth", None)
    on = isinstance(enabled, Scalar) and enabled.text.lower() == "true"
    if enabled is not None and not (isinstance(enabled, Scalar) and enabled.text.lower() in {"true", "false"}):
        problems.add(enabled.line, "", "server.auth.enabled: expected true or false")
    if not on:
        told = "authentication is off in the file: `enabled: true` turns it on"
        problems.ignored += [(line, f"server.auth.{key}", told) for key, (line, _) in jwt.items()]
        return Section(node.line, given)
    if jwt:
        given["jwt"] = node.line, Section(node.line, jwt)
        problems.written["auth.jwt"] = "server.auth"
    if required is not None:
        given["required"] = required
        problems.written["auth.required"] = "server.auth.require_auth"
    return Section(node.line, given)


def _database(database: Section, path: str, problems: Problems) -> None:
    entries = database.entries
    line, driver = entries.get("driver", (0, None))
    if isinstance(driver, Scalar) and driver.text == "sqlite3":
        driver = replace(driver, text="sqlite")
        entries["driver"] = line, driver
    sqlite = isinstance(driver, Scalar) and driver.text == "sqlite"
    if sqlite and "path" not in entries and "database" in entries:
        entries["path"] = entries.pop("database")
        problems.written[f"{path}.path"] = f"{path}.database"
    for key in DATABASE_IGNORED.keys() & entries.keys():
        problems.ignored.append((entries.pop(key)[0], f"{path}.{key}", DATABASE_IGNORED[key]))
    for key, option in DATABASE_KEYS.items():
        if key in entries and sqlite:
            told = "a file has one connection that writes, and no TLS"
            problems.ignored.append((entries.pop(key)[0], f"{path}.{key}", told))
        elif key in entries and _option(database, option, path, problems):
            problems.written[f"{path}.options.{option}"] = f"{path}.{key}"
            _, options = entries["options"]
            assert isinstance(options, Section)
            options.entries[option] = entries.pop(key)


def _option(database: Section, option: str, path: str, problems: Problems) -> bool:
    """Whether there is room for an option of the driver's."""
    line, options = database.entries.get("options", (0, None))
    if options is None or (isinstance(options, Scalar) and options.kind == "null"):
        database.entries["options"] = database.line, Section(database.line, {})
        return True
    if isinstance(options, Section) and option in options.entries:
        problems.add(line, f"{path}.options.{option}", "given twice, by two names; remove one of the two")
    return isinstance(options, Section) and option not in options.entries


def _workspaces(tree: Section) -> None:
    """`workspace_git: true`: a mapping that says so."""
    _, hooks = tree.entries.get("hooks", (0, None))
    line, said = hooks.entries.get("workspace_git", (0, None)) if isinstance(hooks, Section) else (0, None)
    if isinstance(hooks, Section) and isinstance(said, Scalar) and said.text.lower() in {"true", "false"}:
        hooks.entries["workspace_git"] = line, Section(line, {"enabled": (line, said)})


def _working_memory(agent: Section, path: str, problems: Problems) -> None:
    _, memory = agent.entries.get("working_memory", (0, None))
    if not isinstance(memory, Section):
        return
    for key, name in MEMORY_KEYS.items():
        if key in memory.entries and name not in memory.entries:
            line, node = memory.entries.pop(key)
            if name == "strategy" and isinstance(node, Scalar) and node.text == "all":
                node = replace(node, text="none")
            memory.entries[name] = line, node
            problems.written[f"{path}.context.{name}"] = f"{path}.working_memory.{key}"
