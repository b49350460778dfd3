"""One turn, from the request to the reply. `respond` is the entry point; each step has its own module.

A *log* is the stored list of a session's messages and notes. Each of them is an *entry* with a number, its `seq`. A *responder*
is an agent, or a model without an agent, that answers a request. An *upstream* is a provider's endpoint that a model is called
at. A *working set* is the list of messages that one model call receives.

turn             the state and the writes of a turn
scope            the lock and other resources of a running turn
turn_start       begin a turn, also for a request that is sent again or that continues after one message, only once
place            the session of a request, and the place in its log from which it continues
handover         the choice of the agent that answers
workflow         agents that run in sequence or in parallel to answer one request
delegation       agents that are called like tools
library_turn     turns of programs that use the library and call the model themselves
prompt           the prompt of the next call
recall           text from earlier conversations and memories for a prompt
compaction       summaries that a request asks for, and the items that stand for them
model_call       one call of a model, with failover
respond          the reply of a turn: model calls and tools until it is complete
tool_loop        running the tools of a turn
reply_assembler  the reply as the client receives it, and failure messages
interruptions    replies that the user heard only in part
"""
