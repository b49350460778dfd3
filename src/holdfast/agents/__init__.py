"""Agents and models by name, and the choice of the responder that answers a turn."""

from holdfast.agents.definitions import DEFAULT, Agent, Llm, MemoryFileSettings, Responder, Summarizer, offline
from holdfast.agents.roster import Roster

__all__ = ["DEFAULT", "Agent", "Llm", "MemoryFileSettings", "Responder", "Roster", "Summarizer", "offline"]
