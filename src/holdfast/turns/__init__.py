"""One turn, from the request to the reply. `respond` is the entry point; each step has its own module.

turn             the state and the writes of a turn        scope            what a turn holds while it runs
turn_start       opening a turn, also for a retry          placement        how a request was matched to a session
handover         which agent answers                       workflow         agents that answer in another one's place
delegation       agents that are called like tools         library_turn     turns whose model the library's user calls
prompt           the prompt of the next call               recall           what a prompt recalls
model_call       one call of a model, with failover        tool_loop        running the tools of a turn
reply_assembler  the reply as the client sees it           replies          writing replies and failure messages
interruptions    replies of which only a part was heard
"""
