"""Run the Python blocks of a documentation page, as a reader would in one notebook."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run_page(name: str, **variables: Any) -> dict[str, Any]:
    """Run all blocks of `docs/NAME.md` in order, and return their variables.

    Args:
        name: name of the page, without `.md`.
        variables: variables that the page expects of its reader, such as a model.
    """
    namespace: dict[str, Any] = {"__name__": "__main__", **variables}
    blocks = _BLOCK.findall((PAGES / f"{name}.md").read_text(encoding="utf-8"))
    assert blocks, "the page has an example"
    for block in blocks:
        code = compile(block, f"{name}.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, namespace))
        else:
            exec(code, namespace)
    return namespace
