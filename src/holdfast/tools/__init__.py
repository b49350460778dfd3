"""Tools that run here: what one is, what it is given, how the calls of a message run, and the built-in ones.

tool       a tool, the tools of a turn, running calls    functions  a tool from a plain function
context    what a call is given: session and state       registry   all tools of a Holdfast, opened and closed
artifacts  save, load and list artifacts                 memory     remember, recall and forget
search     search past conversations                     workspace  commit an agent's workspace, and its history
python     run Python code in a sandbox                  mcp        tools of MCP servers
"""
