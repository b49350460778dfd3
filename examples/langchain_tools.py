"""LangChain through the gateway: `ChatOpenAI` with a tool, and no memory class.

Needs a running `holdfast serve`, and `pip install langchain-openai`. The session is stored by the gateway, so the chain sends only
new messages: a question, or the results of tool calls.
"""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

GATEWAY = os.environ.get("HOLDFAST_URL", "http://127.0.0.1:8377")
REAL = "OPENAI_API_KEY" in os.environ
"""True if the server has a real model; set the variable in both terminals."""


@tool
def order_status(number: int) -> str:
    """Tell where an order is."""
    return f"Order {number} left the warehouse on Monday."


def connect(session_id: str) -> Any:
    """Return a chat model bound to one session; another one with the same id continues the same conversation."""
    model = ChatOpenAI(
        model="default",
        base_url=f"{GATEWAY}/v1",
        api_key=SecretStr("unused"),
        extra_body={"session_id": session_id},
    )
    return model.bind_tools([order_status])


def ask(model: Any, question: str) -> str:
    """Run one turn: tools run here, in the client, until the model answers with text."""
    new: list[BaseMessage] = [HumanMessage(question)]
    while True:
        reply = model.invoke(new)
        if not reply.tool_calls:
            return str(reply.content)
        # Send only the results: the gateway has the question and the calls in its log.
        new = [order_status.invoke(call) for call in reply.tool_calls]
        print(f"  ran {', '.join(call['name'] for call in reply.tool_calls)}: {new[-1].content}")


def main() -> None:
    """Ask a question that needs the tool, then continue the session with a new model object."""
    session_id = f"langchain-{uuid4().hex[:8]}"
    # The offline model calls the tool that the message names; a real model decides by itself.
    print(ask(connect(session_id), "Where is my order 7461?" if REAL else 'call order_status {"number": 7461}'))

    # A new object without history, as after a restart: the session is still there.
    print(ask(connect(session_id), "What did I ask you before?" if REAL else "What do you see?"))

    with urlopen(f"{GATEWAY}/v1/sessions/{session_id}/messages") as answer:
        log = json.load(answer)["data"]
    print(f"the log of {session_id}:", " ".join(entry["role"] for entry in log))


if __name__ == "__main__":
    main()
