"""One turn, from what came to the reply: `flow` is the onion, and each of its layers is a file.

flow         the layers, in their order                    turn         what all of them hold in hand
opening      how a turn opens, a retry of one too          reconciling  what came, related to the log and written ahead
handover     which agent answers                           workflow     agents that speak in another one's place
delegating   agents that are called like tools             library_turn a turn whose model the library's user calls
prompting    the prompt of the next call                   instructing  what the agent is told
recalling    what a prompt recalls: recalling_conversations, recalling_memories; introducing_memories at a session's start
session_passages  what it recalls of the session itself
calling      one call of a model                           failover     what is done where it does not answer
tooling      the tools of a turn                           showing      the reply as the client sees it
replying     the reply, written                            reply_artifacts  the artifacts that it is about
failing      what is said in place of a reply              voice_records  what an upstream for voice is sent besides
afterwards   what comes after a turn
"""
