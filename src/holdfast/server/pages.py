"""Render the API description as an HTML page, which uses no scripts and no external files."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from holdfast.server.replies import Reply

Schema = Mapping[str, Any]
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--line:#d8dee4;--back:#fff;--card:#f6f8fa;--accent:#0a6b55}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#30363d;--back:#0d1117;--card:#161b22;--accent:#4ac2a0}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:62rem;padding:2.5rem 1.25rem 5rem;background:var(--back);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
h1{font-size:1.9rem;margin:0}h2{margin:2.5rem 0 .75rem;font-size:1.25rem}h3{margin:1.1rem 0 .4rem;font-size:.95rem;color:var(--soft)}
p{margin:.5rem 0}a{color:var(--accent)}.soft{color:var(--soft)}
code,pre{font:.875em/1.5 ui-monospace,monospace;overflow-wrap:anywhere}pre{background:var(--card);padding:.8rem;border-radius:6px;overflow-x:auto}
details{border:1px solid var(--line);border-radius:8px;margin:.5rem 0;background:var(--card)}
summary{cursor:pointer;padding:.6rem .9rem}details>div{padding:0 .9rem .9rem;background:var(--back);border-top:1px solid var(--line);border-radius:0 0 8px 8px}
.verb{display:inline-block;min-width:4.2rem;font-weight:700;color:var(--accent)}
table{border-collapse:collapse;width:100%;font-size:.9rem}td,th{text-align:left;vertical-align:top;padding:.35rem .6rem .35rem 0;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--soft)}td:first-child{white-space:nowrap}
nav{display:flex;flex-wrap:wrap;gap:.2rem .9rem}
"""
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final[Mapping[str, str]] = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def render_docs(document: Schema) -> Reply:
    """Return an OpenAPI document as one HTML page."""
    title, body = escape(f"{document['info']['title']} API"), "".join(_render_document(document))
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{title}</title>"
    html = f"<!doctype html><html lang=en><head>{head}<style>{_STYLE}</style></head><body>{body}</body></html>"
    return Reply(html.encode(), headers=_HEADERS)


def _render_document(document: Schema) -> Iterator[str]:
    info = document["info"]
    yield f"<h1>{escape(info['title'])}</h1><p class=soft>{escape(info['summary'])} Version {escape(info['version'])}.</p>"
    yield f"<p>{_render_text(info['description'])}</p>"
    names = [tag["name"] for tag in document["tags"]]
    links = "".join(f'<a href="#{_make_anchor(name)}">{escape(name)}</a>' for name in [*names, "objects"])
    yield f"<nav><a href=/>Overview</a>{links}<a href=/openapi.json>openapi.json</a></nav>"
    for tag in document["tags"]:
        yield f'<h2 id="{_make_anchor(tag["name"])}">{escape(tag["name"].capitalize())}</h2><p>{_render_text(tag["description"])}</p>'
        for path, item in document["paths"].items():
            for method, operation in item.items():
                if tag["name"] in operation["tags"]:
                    yield from _render_operation(method, path, operation)
    yield '<h2 id="objects">Objects</h2>'
    for name, schema in document["components"]["schemas"].items():
        yield f'<details id="{_make_anchor(name)}"><summary><code>{escape(name)}</code></summary><div>'
        yield f"<p>{_render_text(schema.get('description', ''))}</p>{_render_fields(schema)}</div></details>"


def _render_operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f'<details id="{_make_anchor(operation["operationId"])}"><summary><span class=verb>{escape(method.upper())}</span>'
    yield f"<code>{escape(path)}</code> <span class=soft>{_render_text(operation['summary'])}</span></summary><div>"
    if "description" in operation:
        yield f"<p>{_render_text(operation['description'])}</p>"
    if operation["parameters"]:
        yield "<h3>Parameters</h3>" + _render_table(
            (
                parameter["name"],
                parameter["in"],
                f"{_render_type(parameter['schema'])}. {_render_text(parameter['description'])}",
            )
            for parameter in operation["parameters"]
        )
    if "requestBody" in operation:
        yield f"<h3>Body</h3><p>{_render_content(operation['requestBody']['content'])}</p>"
    yield "<h3>Responses</h3>" + _render_table(
        (
            status,
            "",
            f"{_render_text(answer['description'])} {_render_content(answer.get('content', {}))}{_render_headers(answer)}",
        )
        for status, answer in operation["responses"].items()
    )
    yield "</div></details>"


def _render_content(content: Schema) -> str:
    return "; ".join(f"<code>{escape(kind)}</code> {_render_type(item['schema'])}" for kind, item in content.items())


def _render_headers(answer: Schema) -> str:
    headers = (
        f"<code>{escape(name)}</code>: {_render_text(header['description'])}"
        for name, header in answer.get("headers", {}).items()
    )
    return "".join(f"<br>header {line}" for line in headers)


def _render_fields(schema: Schema) -> str:
    if "anyOf" in schema:
        return "".join(_render_fields(one) for one in schema["anyOf"])
    required = schema.get("required", ())
    return _render_table(
        (
            name,
            "required" if name in required else "",
            f"{_render_type(field)}. {_render_text(field.get('description', ''))}",
        )
        for name, field in schema.get("properties", {}).items()
    )


def _render_table(rows: Iterator[tuple[str, str, str]] | Any) -> str:
    """Return an HTML table. Each row has a name, a plain text, and HTML."""
    cells = (
        f"<tr><td><code>{escape(name)}</code></td><td class=soft>{escape(word)}</td><td>{html}</td></tr>"
        for name, word, html in rows
    )
    return f"<table>{''.join(cells)}</table>"


def _render_type(schema: Schema) -> str:
    """Return a description of the type that a schema allows, in HTML."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{_make_anchor(name)}">{escape(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(_render_type(one) for one in schema["anyOf"])
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    kinds = schema.get("type", "anything")
    words = " or ".join([kinds] if isinstance(kinds, str) else kinds)
    html = escape(words)
    if "items" in schema:
        html += f" of {_render_type(schema['items'])}"
    if "properties" in schema:
        html += " with " + ", ".join(
            f"<code>{escape(n)}</code>: {_render_type(f)}" for n, f in schema["properties"].items()
        )
    return html + _format_range(schema)


def _format_range(schema: Schema) -> str:
    words = {
        "minimum": "from {}",
        "exclusiveMinimum": "above {}",
        "maximum": "to {}",
        "exclusiveMaximum": "below {}",
        "minItems": "at least {}",
    }
    limits = [form.format(schema[name]) for name, form in words.items() if name in schema]
    return f" {escape(' '.join(limits))}" if limits else ""


def _render_text(text: str) -> str:
    """Convert a text to HTML. Parts between backticks become code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if at % 2 else piece for at, piece in enumerate(pieces))


def _make_anchor(name: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else "-" for char in name)
