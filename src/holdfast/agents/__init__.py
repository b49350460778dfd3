"""Agents and models by name, and who answers a turn with which instruction and view of the session."""

from holdfast.agents.definitions import DEFAULT, Agent, Llm, Responder, Summarizer, offline
from holdfast.agents.roster import Roster

__all__ = ["DEFAULT", "Agent", "Llm", "Responder", "Roster", "Summarizer", "offline"]
