"""An agent as a tool of another one: what the model is told of it, and how it is called."""

from __future__ import annotations

from typing import Any, Final

from holdfast.errors import InvalidRequest
from holdfast.tools.context import ToolContext
from holdfast.tools.tool import Tool

TIMEOUT: Final = 300.0
"""Seconds that such a call may take: it is a whole turn, with tools of its own."""
_DESCRIPTION: Final = "Another agent, {name!r}, that does what it is asked and answers."
_REQUEST: Final = (
    "What is wanted of it, with all that it has to know: it sees this text, and nothing of the conversation here."
)


def agent_tool(name: str, description: str | None) -> Tool:
    """The tool by which an agent is called.

    Args:
        name: the agent's, and the tool's.
        description: what it is for; None: the model is told its name alone.

    Raises:
        InvalidRequest: a tool cannot be called so.
    """

    async def call(context: ToolContext, arguments: dict[str, Any]) -> str:
        request = arguments.get("request")
        if not isinstance(request, str) or not request.strip():
            raise InvalidRequest("request is missing: what is wanted, a text with words in it")
        if context.call.delegate is None:
            raise InvalidRequest("agents cannot be called here")
        return await context.call.delegate(context, name, request)

    return Tool(
        name=name,
        call=call,
        description=description or _DESCRIPTION.format(name=name),
        parameters={
            "type": "object",
            "properties": {"request": {"type": "string", "description": _REQUEST}},
            "required": ["request"],
        },
        timeout=TIMEOUT,
        reads_state=False,
    )
