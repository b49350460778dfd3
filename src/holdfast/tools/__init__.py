"""Tools that run here: what one is, what it is given, how the calls of a message run, and those that are built in.

tool       a tool, and the tools that a turn has         functions       a tool from a plain function
context    what a call is given of its session           state           the state of all scopes, as a call sees it
running    one call, to its end                          workshop        all tools of a Holdfast, opened and closed
agents     another agent, called like a tool             artifacts       save, load and list artifacts
memory     remember, recall and forget                   memory_sources  whose words a new memory is made of
search     search past conversations                     workspace       commit an agent's workspace, and its history
python     run Python code, held in                      mcp             tools of other people's servers
"""
