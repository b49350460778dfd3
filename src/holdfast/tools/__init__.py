"""Tools that run in this process: definition, context of a call, running calls, and the built-in tools.

tool       tools, the tools of a turn, running calls       functions  creates a tool from a function
context    session and state that a call gets              registry   all tools of a Holdfast, opened and closed with it
artifacts  save, load and list artifacts                   memory     remember, recall and forget
search     search past conversations                       workspace  commit an agent's workspace, and its history
python     run Python code in a sandbox                    mcp        tools of MCP servers
"""
