"""Define and run tools in this process, including the built-in tools.

- `tool`: a tool, the toolset of a turn, running calls
- `functions`: tools from functions
- `context`: the session and state that a call gets
- `registry`: all tools of a Holdfast, opened and closed with it
- `artifacts`: save, load and list artifacts
- `memory`: remember, recall and forget
- `search`: search past conversations
- `workspace`: commit an agent's workspace, and its history
- `python`: run Python code in a sandbox
- `mcp`: tools of MCP servers
"""
