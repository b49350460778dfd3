"""Agents and models by name: who answers a turn, with which instruction and which view of the session."""

from holdfast.agents.definitions import DEFAULT, Agent, Llm, Summarizer, Voice, offline
from holdfast.agents.roster import Roster

__all__ = ["DEFAULT", "Agent", "Llm", "Roster", "Summarizer", "Voice", "offline"]
