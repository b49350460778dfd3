"""Tools of servers of the Model Context Protocol (MCP), called through its official SDK (extra `mcp`).

settings    how a server is reached, and which of its tools are offered    naming   what the model calls them
connection  one server: started or connected to, kept, called             results  what it answers, for the model
stdio       one that is a program                                         http     one at an address
servers     all of them, and the tools that they make
"""
