"""The MCP server: Holdfast's memories and sessions as tools and resources of the Model Context Protocol (extra `mcp`).

- `caller`: the assistant that calls, and the user it acts for
- `tools`: the tools, as methods; needs no SDK
- `results`: results of the tools, as structs and as text for the model
- `transcript`: a session's messages within a token budget
- `resources`: sessions and memories by URI, and lists of them
- `call_limiter`: limits the calls of one principal (the identity that requests are made with) that run at the same time
- `protocol`: connects tools and resources to the official SDK; serves standard input and output

The route `/mcp` is in `holdfast.server.mcp`, the command `holdfast mcp` in `holdfast.cli.serve`.
"""
