"""Convert the log of a program to JSON lines for `holdfast replay` and `holdfast sessions import`: one session per line.

For another log format, change `message`. It must return a Chat Completions message; an import also keeps the fields `timestamp`
(milliseconds since the epoch) and `metadata`.

    python convert.py app.jsonl > sessions.jsonl
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any


def message(line: dict[str, Any]) -> dict[str, Any]:
    """Convert one line of the log to a message. A call and its result share an id, so strategies never separate them."""
    kind, at = line["kind"], {"timestamp": round(datetime.fromisoformat(line["at"]).timestamp() * 1000)}
    if kind == "call":
        function = {"name": line["tool"], "arguments": json.dumps(line["arguments"], ensure_ascii=False)}
        call = {"id": line["call"], "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call], **at}
    if kind == "result":
        result = json.dumps(line["result"], ensure_ascii=False)
        return {"role": "tool", "tool_call_id": line["call"], "content": result, **at}
    return {"role": "user" if kind == "customer" else "assistant", "content": line["text"], **at}


def main() -> None:
    """Group the lines by conversation, in their order."""
    sessions: dict[str, dict[str, Any]] = {}
    with Path(sys.argv[1]).open(encoding="utf-8") as log:
        for line in map(json.loads, log):
            name = line["conversation"]
            # The customer becomes the session's user: users never see each other's data.
            found = sessions.setdefault(name, {"id": name, "user_id": line["customer"], "messages": []})
            found["messages"].append(message(line))
    for session in sessions.values():
        print(json.dumps(session, ensure_ascii=False))


if __name__ == "__main__":
    main()
