"""Call tools of Model Context Protocol (MCP) servers through the official SDK (extra `mcp`).

- `settings`: how to reach a server, and which of its tools to offer
- `connection`: one server: start or connect, keep the connection, call
- `http`: transport to a server with a URL
- `servers`: all servers, the tools made from theirs, and results
"""
