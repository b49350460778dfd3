"""Tool results in every shape that a digest reads: tables, pairs, logs, lists, code, objects within objects, and failures."""

# ruff: noqa: RUF001 (punctuation of other scripts)

from __future__ import annotations

import json
from typing import Any, Final

SHAPES: Final[tuple[object, ...]] = (
    "name | qty | price\n--- | --- | ---\nkelp | 4 | 12.50\nsalt | 9 | 3.20\n | | \n",
    "+------+------+\n| id   | state |\n+------+------+\n| A-17 | open |\n| A-18 | done |\n+------+------+",
    "sku,qty,when\nP-77,4,2024-01-02\nP-78,9,2024-01-03\nP-79,1,2024-01-04",
    "id\tcity\n1\tLübeck\n2\tOulu\n3\tBergen",
    "Order: KX-7731\nTotal: 12.50 EUR\nStatus: open\n\nOrder: KX-7732\nTotal: 7 EUR\nStatus: paid",
    "\n".join(f"2026-03-02T04:{n:02}:11Z INFO GET /cart/{n} 200" for n in range(9))
    + "\n2026-03-02T05:00:00Z ERROR disk full",
    "1. first do this\n2. then call +49 170 1234567\n- or write to ada@example.com\n- https://example.com/a?b=1",
    "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\nKeyError: 'zone_7'",
    "订单号：AB123已发货，请查收。我要退款！总计：95元",
    {
        "user": {"id": "u_1", "address": {"zip": "19122", "city": "Phila"}},
        "orders": ["#W1", "#W2"],
        "note": "x " * 30,
    },
    {f"10{n}": {"color": "red" if n % 2 else "blue", "price": 10 + n, "stock": True} for n in range(10)},
    [{"id": n, "when": "2024-05-01", "tags": ["a", "b"], "same": "yes"} for n in range(6)],
    {"error": "no such flight HAT-201", "code": 404, "retry": None, "ok": False},
    ["alpha-1", "beta-2", 3.5, True, None, ["deep", {"k": "v-9"}]],
    "",
    "a bare answer",
)


def make_shapes() -> list[dict[str, Any]]:
    """Return a conversation in which an agent looks at each shape."""
    said: list[dict[str, Any]] = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "Read all of these, and never delete order KX-7731."},
    ]
    for number, shape in enumerate(SHAPES):
        arguments = json.dumps({"where": "here", "page": number})
        call = {"id": f"A{number}", "type": "function", "function": {"name": "look", "arguments": arguments}}
        text = shape if isinstance(shape, str) else json.dumps(shape, ensure_ascii=False)
        said += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"A{number}", "content": text},
        ]
    return [*said, {"role": "assistant", "content": "That was all of it. " * 12}]
