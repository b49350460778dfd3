"""The page docs/public-names.md, and the list tests/public_names.txt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import holdfast
from scripts.public_names import python_names, server_names
from scripts.site.markdown import escape_prose, format_code, format_table
from scripts.site.python_api import find_packages

ROOT: Final = Path(__file__).parents[2]
SUBJECTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Open and serve": ("open", "Holdfast", "from_config", "connect", "RemoteHoldfast", "portal", "Portal", "serve"),
    "Sessions and turns": (
        *("SessionHandle", "RemoteSession", "SessionRef", "OpenTurn", "Message", "CarryOver", "fit", "EndedSession"),
        *("LifeSettings", "Transcripts", "Webhook"),
    ),
    "Prompts": (
        *("Context", "MessageSource", "Explanation", "ContextSettings", "Budget", "window_of", "StrategyFunction"),
        *("StrategyUnit", "register_strategies", "forget_strategies", "anthropic_tools", "gemini_tools"),
    ),
    "Models, agents and tools": (
        *("Roster", "Llm", "Agent", "OpenAIModel", "ResponsesModel", "AnthropicModel", "Tool", "ToolContext"),
        *("ToolLimits", "tool_from", "McpSettings", "PythonSettings", "WorkspaceSettings"),
    ),
    "Memories and search": (
        *("Memory", "Owner", "MemorySettings", "MemoryFiles", "MemoryFileSettings", "ConsolidationSettings"),
        *("IndexSettings", "RecallSettings", "EmbedderSettings", "embedder_of", "RerankSettings"),
    ),
    "Data": ("Records", "Record", "RecordName", "PutRecord", "DeleteRecord", "ArtifactSettings", "open_store"),
    "Secrets and errors": ("Guard", "Pattern", "make_redactor", "HoldfastError"),
    "Version": ("__version__",),
}
"""The names of the package `holdfast` by subject."""
SUMMARIES: Final[Mapping[str, str]] = {
    "StrategyFunction": "Type of a function that chooses the messages of a working set",
    "__version__": "The version of Holdfast",
    "connect": "Connect to a server: a `RemoteHoldfast`",
    "open": "Open a database: a `Holdfast`",
    "portal": "Open a database for synchronous code, threads and other event loops: a `Portal`",
}
"""Descriptions of names whose docstring describes something else, or that have none."""
PAGES: Final[Mapping[str, str]] = {
    "holdfast.adapters.adk": "adk.md",
    "holdfast.adapters.agent_framework": "agent-framework.md",
    "holdfast.adapters.anthropic": "anthropic-memory.md",
    "holdfast.adapters.langchain": "langchain.md",
    "holdfast.adapters.langgraph": "langgraph.md",
    "holdfast.adapters.llama_index": "llama-index.md",
    "holdfast.adapters.openai_agents": "openai-agents.md",
    "holdfast.adapters.pydantic_ai": "pydantic-ai.md",
    "holdfast.adapters.pydantic_ai_store": "pydantic-ai.md",
    "holdfast.adapters.strands": "strands.md",
    "holdfast.agents": "agents.md",
    "holdfast.artifacts": "artifacts.md",
    "holdfast.config": "configuration.md",
    "holdfast.embedders": "custom-embedders.md",
    "holdfast.errors": "errors.md",
    "holdfast.hooks": "hooks.md",
    "holdfast.models": "upstreams.md",
    "holdfast.replay": "replay.md",
    "holdfast.rerankers": "rerank.md",
    "holdfast.secrets": "secrets.md",
    "holdfast.stores": "stores.md",
    "holdfast.testing": "testing.md",
    "holdfast.workspace": "workspace.md",
}
"""The page about each public package."""
_HEAD: Final = """\
# Public names

These are the names that you can rely on. Every other name may change at any time.
A test fails if one of these names, or a parameter or default of it, changes without this page and the pinned list `tests/public_names.txt`.
"""


def make_page() -> str:
    """Return the page."""
    return "\n".join(_make_lines())


def _make_lines() -> Iterator[str]:
    yield from (_HEAD, "<!-- made by `python -m scripts.public_names` -->", "", "## Python", "")
    yield from ("The package `holdfast`. Its parts are imported on first use.", "")
    for subject, names in SUBJECTS.items():
        yield from (f"### {subject}", "")
        yield from format_table(("name", ""), [(format_code(name), _describe(name)) for name in names])
    yield from _format_methods()
    yield from _format_packages()
    yield from _format_routes()
    yield from _format_server()


def _describe(name: str) -> str:
    text = SUMMARIES.get(name) or python_names.get_summary(name)
    return escape_prose(text[0].upper() + text[1:])


def _list_code(names: list[str]) -> str:
    return ", ".join(map(format_code, names))


def _format_methods() -> Iterator[str]:
    yield from (
        "### Methods and attributes",
        "",
        "The objects that you work with, under the names of their classes.",
        "",
    )
    rows = [
        (format_code(name), _list_code(python_names.list_members(cls)))
        for name, cls in python_names.list_interfaces().items()
        if cls not in python_names.PROTOCOLS
    ]
    yield from format_table(("class", "methods, properties, attributes"), rows)


def _format_packages() -> Iterator[str]:
    found = {name: [*module.__all__] for name, module in find_packages().items() if module is not holdfast}
    found |= python_names.list_adapters()
    yield from ("### Further packages", "")
    rows = [(f"[{format_code(name)}]({PAGES[name]})", _list_code(names)) for name, names in sorted(found.items())]
    yield from format_table(("package", "names"), rows)
    yield from (
        "For authors of stores, the modules that [stores](stores.md) names are public too: they define the protocols of `holdfast.stores.Store`.",
        "",
    )


def _format_routes() -> Iterator[str]:
    yield from ("## HTTP", "", "The routes. A running server describes their parameters and objects at `/docs`.", "")
    subject = ""
    rows: list[tuple[str, str]] = []
    for tag, route, summary in server_names.list_routes():
        if tag != subject:
            yield from format_table(("route", ""), rows)
            yield from (f"### Routes: {tag}", "")
            subject, rows = tag, []
        rows.append((format_code(route), escape_prose(summary)))
    yield from format_table(("route", ""), rows)
    yield from ("### Headers", "", "[Keys](access.md) and [sessions](gateway.md) explain how to use them.", "")
    rows = [(format_code(name), escape_prose(text)) for name, text in server_names.list_headers().items()]
    yield from format_table(("header", ""), rows)
    yield from ("### Error codes", "", "[Errors](errors.md) explains the codes.", "")
    codes = [(format_code(code), format_code(name) if name else "") for code, name in server_names.list_codes().items()]
    yield from format_table(("code", "class"), codes)
    yield from ("### Metrics", "", "[Metrics](metrics.md) explains them.", "")
    metrics = [(format_code(name), _list_code(labels)) for name, labels in server_names.list_metrics().items()]
    yield from format_table(("metric", "labels"), metrics)


def _format_server() -> Iterator[str]:
    yield from ("## Commands", "", "[Command line](command-line.md) explains them; `--help` lists their options.", "")
    rows = [(format_code(name), escape_prose(text)) for name, text in server_names.list_commands()]
    yield from format_table(("command", ""), rows)
    yield from (
        "## Configuration",
        "",
        f"The keys at the top of the file: {_list_code(server_names.list_sections())}. [All keys](configuration-keys.md) lists what they contain.",
        "",
        "## Environment variables",
        "",
    )
    rows = [(format_code(name), text) for name, text in server_names.VARIABLES.items()]
    yield from format_table(("variable", ""), rows)


def make_pin() -> str:
    """Return the pinned list: each name with its parameters and defaults, one a line."""
    parts: Mapping[str, Callable[[], Iterator[str]]] = {
        "Python: packages": python_names.pin_packages,
        "Python: methods, properties and fields": python_names.pin_members,
        "Python: adapters": python_names.pin_adapters,
        "routes": server_names.pin_routes,
        "objects of the REST API": server_names.pin_objects,
        "commands": server_names.pin_commands,
        "configuration": lambda: iter(server_names.list_sections()),
        "headers": lambda: iter(server_names.list_headers()),
        "error codes": lambda: iter(server_names.list_codes()),
        "metrics": lambda: (" ".join([name, *labels]) for name, labels in server_names.list_metrics().items()),
        "environment variables": lambda: iter(server_names.VARIABLES),
    }
    lines = [
        "# The public names. `python -m scripts.public_names` writes this file: read what differs before you commit it."
    ]
    for title, pin in parts.items():
        lines += ["", f"# {title}", "", *pin()]
    return "\n".join(lines) + "\n"


FILES: Final[Mapping[Path, Callable[[], str]]] = {
    ROOT / "docs" / "public-names.md": make_page,
    ROOT / "tests" / "public_names.txt": make_pin,
}
