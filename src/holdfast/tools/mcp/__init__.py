"""Call tools of Model Context Protocol (MCP) servers through the official SDK (extra `mcp`).

- `settings`: how to reach a server, and which of its tools to offer
- `connection`: the connection to one server, which can be lost and restored, and calls of its tools
- `http`: the transport to a server with a URL
- `servers`: all servers of a Holdfast; converts their tools and results
"""
