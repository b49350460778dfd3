"""An MCP server that breaks the rules, over stdio: `python mcp_raw.py FILE [dies | chatters | changes]`.

It writes the time of each start, and of each request for its tools, to FILE. It is written by hand, because the SDK's servers would not send
these messages.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

FILE = Path(sys.argv[1])
KIND = sys.argv[2] if len(sys.argv) > 2 else ""
NOTHING: dict[str, Any] = {"type": "object"}
TOOLS = {
    "wrong": NOTHING,
    "untrue": NOTHING,
    "slow": NOTHING,
    "endless": NOTHING,
    "either": {"type": "object", "properties": {"a": {}}, "oneOf": [{"required": ["a"]}], "not": {"required": ["b"]}},
    "asked": NOTHING,
    "transfer_to_agent": NOTHING,
    "clerk": NOTHING,
}
writing = threading.Lock()


def note(what: str) -> None:
    with FILE.open("a") as file:
        file.write(f"{what} {time.monotonic()}\n")


def say(**message: Any) -> None:
    with writing:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def tools() -> dict[str, Any]:
    note("asked")
    told = [{"name": name, "inputSchema": schema} for name, schema in TOOLS.items()]
    told[1]["outputSchema"] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    return {"tools": told}


def call(number: Any, name: str) -> None:
    text = [{"type": "text", "text": name}]
    if name == "wrong":
        say(id=number, result={"content": "nonsense"})
    elif name == "untrue":
        say(id=number, result={"content": text, "structuredContent": {"a": "no number"}})
    elif name == "slow":
        threading.Timer(0.3, say, kwargs={"id": number, "result": {"content": text}}).start()
    elif name == "endless":
        while True:
            sys.stdout.write("x" * 65536)
    elif name == "asked":
        told = str(FILE.read_text().count("asked"))
        say(id=number, result={"content": [{"type": "text", "text": told}]})
    else:
        say(id=number, result={"content": text})


def answer(message: dict[str, Any]) -> None:
    number, method = message.get("id"), message.get("method")
    if method == "initialize":
        about = {"capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "raw", "version": "1"}}
        say(id=number, result={"protocolVersion": "2025-06-18", **about})
    elif method == "tools/list":
        say(id=number, result=tools())
        if KIND == "dies":
            sys.exit()
        if KIND == "changes":
            say(method="notifications/tools/list_changed")
    elif method == "tools/call":
        call(number, message["params"]["name"])
    elif number is not None:
        say(id=number, error={"code": -32601, "message": "no"})


note("started")
if KIND == "chatters":
    print("connecting with the password hunter2\n" * 20, flush=True)
for line in sys.stdin:
    answer(json.loads(line))
