"""Wrong arguments of the library are rejected at once, with the name of the argument and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.holdfast import Holdfast


@pytest.mark.parametrize("wrong", [5, -0.1, "x", True, float("nan")])
async def test_importance_must_be_a_number_from_0_to_1(wrong: Any) -> None:
    async with Holdfast("sqlite://:memory:") as hf:
        session = await hf.session("s")
        await session.append("Hello.")
        with pytest.raises(InvalidMessage, match="importance must be a number from 0 to 1"):
            await session.annotate(0, importance=wrong)
        assert (await session.entries())[0].importance is None


async def test_dialect_must_be_known() -> None:
    wrong: Any = "mistral"
    async with Holdfast("sqlite://:memory:") as hf:
        session = await hf.session("s")
        with pytest.raises(InvalidRequest, match="known: openai, anthropic, gemini"):
            await session.context(dialect=wrong)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"scorers": {"mine": 5}}, r"scorers\['mine'\] must be a function, not int"),
        ({"summarizers": {"mine": "gpt-4o"}}, r"summarizers\['mine'\] must be a function, not str"),
        ({"summarizers": {"none": print}}, r"summarizers\['none'\]: this name means that there is no summarizer"),
    ],
)
def test_scorers_and_summarizers_must_be_callable(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Holdfast("sqlite://:memory:", **given)


@pytest.mark.parametrize("wrong", ["abc", [1], 1.5, True])
async def test_max_tokens_must_be_a_whole_number(wrong: Any) -> None:
    """Nothing is written for the rejected turn."""
    async with Holdfast("sqlite://:memory:") as hf:
        session = await hf.session("s")
        with pytest.raises(InvalidRequest, match="max_tokens must be a whole number of tokens") as caught:
            await session.send("Hello.", max_tokens=wrong)
        assert caught.value.param == "max_tokens"
        assert (await session.info()).messages == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("roster", "Roster"),
        ("guard", "Guard"),
        ("artifacts", "ArtifactSettings"),
        ("life", "LifeSettings"),
        ("hooks", "a list"),
        ("clock", "a function"),
        ("new_id", "a function"),
        ("tool_limits", "ToolLimits"),
        ("python", "PythonSettings"),
        ("mcp_servers", "a list"),
        ("workspaces", "WorkspaceSettings"),
        ("memory", "MemorySettings"),
        ("consolidation", "ConsolidationSettings"),
    ],
)
def test_setting_of_a_wrong_type_is_rejected_by_name(name: str, words: str) -> None:
    wrong: Any = {name: 5}
    with pytest.raises(InvalidRequest, match=f"^{name} must be {words}, not int$") as caught:
        Holdfast("sqlite://:memory:", **wrong)
    assert caught.value.param == name
