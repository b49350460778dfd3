"""A session manager and a conversation manager for Strands Agents: the session keeps every message, the model gets fewer.

A call of the model gets the *working set*: the prompt that Holdfast builds within a token budget.

    with holdfast.Portal("sqlite:///chat.db") as portal:
        sessions = HoldfastSessionManager(portal, "trip-7", user_id="ada")
        agent = Agent(session_manager=sessions, conversation_manager=HoldfastConversationManager(sessions, budget=8_000))
        agent("Where is my order?")

Facts about strands-agents 1.62 that this package relies on:

- An agent restores its session in its constructor, which is synchronous. All other hooks of a session manager may be async.
- Two methods of a session manager are called directly from a running event loop: `redact_latest_message` and `sync_agent`.
- The middleware of `InvokeModelStage` gets a deep copy of the agent's messages, and may replace them for one call. Its `next_fn` may be
  called again after it has raised `ContextWindowOverflowException`.
- A message keeps its `tracking_id` when it is redacted, or merged with a later message of the same role.
- Agents that are nodes of a graph or swarm have no session manager. The graph or swarm has one.
"""

from __future__ import annotations

from holdfast.adapters.strands.sessions import HoldfastSessionManager
from holdfast.adapters.strands.working_set import HoldfastConversationManager

__all__ = ["HoldfastConversationManager", "HoldfastSessionManager"]
