"""Tools of servers of the Model Context Protocol (MCP), called through its official SDK (extra `mcp`).

settings    how a server is reached, and which of its tools are offered
connection  one server: started or connected to, kept, called             http  the transport to an address
servers     all of them, the tools made of theirs, and results
"""
