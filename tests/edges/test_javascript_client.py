"""OpenAI's JavaScript library against `/v1/responses` and `/v1/conversations`."""

from __future__ import annotations

import json
from typing import Any

from tests.edges.javascript import FOLDER, needs_openai, run
from tests.edges.server import gateway


@needs_openai
async def test_javascript_client() -> None:
    def answer(body: dict[str, Any]) -> str:
        text = body["messages"][-1]["content"]
        return '{"city": "Oslo"}' if text == "Where?" else f"Reply to {text}"

    async with gateway(answer) as (served, _):
        result = json.loads(await run("node", "responses.mjs", f"{served.url}/v1", cwd=FOLDER))
    assert result["texts"] == ["Reply to I am Ada.", "Reply to Who am I?"]
    assert result["stored"] == "Reply to Who am I?"
    assert result["inputs"] == [[{"type": "input_text", "text": "Who am I?"}]]
    assert [number for number, _ in result["events"]] == list(range(len(result["events"])))
    assert result["events"][0][1] == "response.created"
    assert result["events"][-1][1] == "response.completed"
    assert result["streamed"] == "Reply to Count."
    assert result["parsed"] == {"city": "Oslo"}
    assert result["background"] == "Reply to In the background."
    assert result["rest"] == list(range(3, result["rest"][-1] + 1))
    assert len(result["rest"]) > 2
    assert result["items"] == ["One.", "0", "Reply to 0", "1", "Reply to 1", "2", "Reply to 2"]
    assert result["error"] == [400, "previous_response_not_found"]
