"""One turn, from the request to the reply. `respond` is the entry point; each step has its own module.

turn             the state and the writes of a turn
scope            the lock and other resources of a running turn
turn_start       opening a turn, also for a retry
placement        how a request was matched to a session
handover         which agent answers
workflow         agents that answer in another agent's place
delegation       agents that are called like tools
library_turn     turns in which the library's user calls the model
prompt           the prompt of the next call
recall           what a prompt recalls
model_call       one call of a model, with failover
tool_loop        running the tools of a turn
reply_assembler  the reply as the client receives it
replies          writing replies and failure messages
interruptions    replies of which only a part was heard
"""
