"""Settings of the tests' own MCP server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from holdfast.tools.mcp.settings import McpSettings

STUB = Path(__file__).with_name("mcp_stub.py")


def stub(**settings: Any) -> McpSettings:
    """Return settings of the stub over stdio."""
    return McpSettings(**{"name": "stub", "command": sys.executable, "args": (str(STUB), "stdio"), **settings})
