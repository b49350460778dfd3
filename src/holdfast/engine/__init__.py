"""Services that all turns share: store, clock, session locks, and the steps that every write passes.

engine           all of it, for one tenant                 tenancy            the engines of several tenants
session_lock     one turn of a session at a time           branches           several agents in one turn
entries          preparing messages for a log              redacting_store    masks secrets in every write
scoped_state     the state of all scopes                   initial_state      state of a new session
write_steps      the steps that writes pass                session_removal    deleting sessions with all their parts
model_calibration  calibrating token counts from providers' answers
"""
