"""The public names of the server and the command line."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
from prometheus_client.metrics import MetricWrapperBase

import holdfast
from holdfast import Holdfast, errors
from holdfast.config.model import Document
from holdfast.server.metrics import Metrics
from holdfast.server.streaming import ReplyStreams
from scripts.site.commands import list_contexts
from scripts.site.rest import load_document

SOURCE: Final = Path(holdfast.__file__).parent
STANDARD_HEADERS: Final = frozenset(
    {
        *("accept", "allow", "authorization", "content-encoding", "content-length", "content-type", "cookie", "host"),
        *("origin", "sec-fetch-site", "user-agent", "x-forwarded-host", "x-forwarded-proto"),
        *("x-next", "x-stainless-retry-count"),
    }
)
"""Headers with a meaning that others define. `X-Next` is for the script of the inspector."""
VARIABLES: Final[Mapping[str, str]] = {
    "HOLDFAST_CONFIG": "path of the configuration file",
    "HOLDFAST_HOST": "address on which the server listens",
    "HOLDFAST_PORT": "port on which the server listens",
    "HOLDFAST_STORE": "URL of the database",
    "HOLDFAST_SECTION__KEY": "any configuration key, for example `HOLDFAST_GATEWAY__PORT`",
    "OPENAI_API_KEY": "key of OpenAI's API, or of the server at `OPENAI_BASE_URL`",
    "OPENAI_BASE_URL": "address of a server with OpenAI's API",
    "ANTHROPIC_API_KEY": "key of Anthropic's API",
    "ANTHROPIC_BASE_URL": "address of a server with Anthropic's API",
    "NO_COLOR": "set: commands print without colours",
    "FORCE_COLOR": "set: commands print colours also if the output is not a terminal",
}
"""Environment variables, and what they set. Variables that the configuration file names as `${NAME}` have any name."""


@cache
def get_document() -> Mapping[str, Any]:
    """Return the OpenAPI document."""
    return load_document()


def list_routes() -> Iterator[tuple[str, str, str]]:
    """Yield subject, route and summary of each route, in the order of the OpenAPI document."""
    document = get_document()
    for tag in document["tags"]:
        for path, item in document["paths"].items():
            for method, one in item.items():
                if tag["name"] in one["tags"]:
                    yield tag["name"], f"{method.upper()} {path}", one["summary"]


def pin_routes() -> Iterator[str]:
    """Yield a line for each route: parameters with their defaults, the body, and the answers. A required parameter has `*`."""
    for path, item in get_document()["paths"].items():
        for method, one in item.items():
            parameters = [_format_parameter(given) for given in one["parameters"]]
            body = _format_content(one.get("requestBody", {}).get("content", {}))
            answers = [
                f"{status} {_format_content(answer.get('content', {}))}".strip()
                for status, answer in one["responses"].items()
                if status[0] in "123"
            ]
            yield f"{method.upper()} {path} ({', '.join(parameters)}) {body} -> {', '.join(answers)}".replace("  ", " ")


def _format_parameter(given: Mapping[str, Any]) -> str:
    default = f"={given['schema']['default']}" if "default" in given["schema"] else ""
    place = "" if given["in"] == "query" else f" in {given['in']}"
    return f"{given['name']}{'*' if given.get('required') else ''}{default}{place}"


def _format_content(content: Mapping[str, Any]) -> str:
    return " | ".join(f"{kind} {_format_reference(item['schema'])}".strip() for kind, item in content.items())


def _format_reference(schema: Mapping[str, Any]) -> str:
    found = re.findall(r"#/components/schemas/(\w+)", repr(schema))
    return " or ".join(dict.fromkeys(found))


def pin_objects() -> Iterator[str]:
    """Yield a line for each object of the REST API with its fields. A required field has `*`."""
    for name, schema in sorted(get_document()["components"]["schemas"].items()):
        parts = [list(_list_fields(one)) for one in schema.get("anyOf", (schema,))]
        yield f"{name}: {' | '.join(', '.join(part) for part in parts)}"


def _list_fields(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name in schema.get("properties", {}):
        yield f"{name}{'*' if name in required else ''}"


def list_commands() -> Iterator[tuple[str, str]]:
    """Yield each command with the first sentence of its help text."""
    for context in list_contexts():
        text = " ".join((context.command.help or "").partition("\n\n")[0].split())
        yield context.command_path, text.partition(". ")[0].rstrip(".")


def pin_commands() -> Iterator[str]:
    """Yield a line for each command, with its arguments, options and defaults."""
    for context in list_contexts():
        given = [_format_option(one) for one in context.command.params]
        yield " ".join([context.command_path, *filter(None, given)])


def _format_option(one: click.Parameter) -> str:
    if isinstance(one, click.Argument):
        return f"{(one.name or '').upper()}{'*' if one.required else ''}{'…' if one.nargs == -1 else ''}"
    if getattr(one, "hidden", False):
        return ""
    default = one.default if isinstance(one.default, str | int | float) and not isinstance(one.default, bool) else None
    names = "|".join([*one.opts, *one.secondary_opts])
    return f"{names}{'*' if one.required else ''}{'' if default is None else f'={default}'}"


def list_sections() -> list[str]:
    """Return the sections and single keys at the top of a configuration file."""
    return sorted(Document.__struct_fields__)


def list_headers() -> dict[str, str]:
    """Return the headers of requests and answers that the OpenAPI document describes, with their descriptions."""
    document = get_document()
    found: dict[str, str] = {
        one["name"]: one.get("description", "API key")
        for one in document["components"]["securitySchemes"].values()
        if "name" in one
    }
    for item in document["paths"].values():
        for one in item.values():
            for given in one["parameters"]:
                if given["in"] == "header":
                    found.setdefault(given["name"], given["description"])
            for answer in one["responses"].values():
                for name, header in answer.get("headers", {}).items():
                    found.setdefault(name, header["description"])
    return dict(sorted(found.items()))


def list_read_headers() -> set[str]:
    """Return the headers that the code of the server reads by name, in lower case, without standard ones."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((SOURCE / "server").rglob("*.py")))
    constants = dict(re.findall(r'^(\w+): Final = "([A-Za-z-]+)"$', text, re.MULTILINE))
    read = re.findall(r'(?:get_header|headers\.get)\(([\w"-]+)', text)
    names = {one.strip('"') if one.startswith('"') else constants.get(one, "") for one in read}
    return {one.lower() for one in names if one} - STANDARD_HEADERS


def list_codes() -> dict[str, str]:
    """Return the error codes, each with its class. Requests that are refused early have codes without a class."""
    classes = {getattr(errors, name).code: name for name in errors.__all__}
    found = set(classes)
    for path in sorted((SOURCE / "server").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                found |= set(_list_codes_of_call(node))
    return {code: classes.get(code, "") for code in sorted(found)}


def _list_codes_of_call(call: ast.Call) -> Iterator[str]:
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    given = [one.value for one in call.keywords if one.arg == "code"] if name == "make_error_body" else []
    given += call.args[1:2] if name == "Refused" else []
    for one in given:
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def list_metrics() -> dict[str, list[str]]:
    """Return the metrics as Prometheus names them, each with its labels."""
    return asyncio.run(_collect_metrics())


async def _collect_metrics() -> dict[str, list[str]]:
    async with Holdfast("sqlite://:memory:") as hf:
        metrics = Metrics(hf, ReplyStreams())
        own = {name: [*one._labelnames] for one in vars(metrics).values() for name in _find_names(one)}  # noqa: SLF001
        families = list(metrics.registry.collect())
    found = {
        f"{one.name}{'_total' if one.type == 'counter' else ''}": [*getattr(one, "_labelnames", own.get(one.name, ()))]
        for one in families
    }
    return dict(sorted(found.items()))


def _find_names(metric: object) -> tuple[str, ...]:
    """Return the name of a counter, gauge or histogram, or nothing for other objects."""
    return (metric._name,) if isinstance(metric, MetricWrapperBase) else ()  # noqa: SLF001  # the library has no other way
