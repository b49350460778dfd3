"""Define and run tools in this process, including the built-in tools.

- `tool`: tools, toolsets, and running a call
- `functions`: create tools from functions
- `context`: the session and state that a tool call can use
- `registry`: all tools of a Holdfast, which opens and closes them
- `artifacts`: tools that save, load and list artifacts
- `memory`: the tool that remembers, recalls and forgets
- `search`: the tool that searches past conversations
- `workspace`: tools that commit an agent's workspace and list its commits
- `python`: the tool that runs Python code in a sandbox
- `mcp`: tools of MCP servers
"""
