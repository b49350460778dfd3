"""Services that all turns share: store, clock, session locks, and the steps that every write passes.

engine             the services of one tenant
tenancy            the engines of several tenants
session_lock       run one turn of a session at a time
branches           let several agents answer in one turn
entries            prepare messages for a log
redacting_store    mask secrets in every write
scoped_state       session state in all its scopes
initial_state      the initial state of a new session
write_steps        the steps that every write passes
session_removal    delete sessions with everything that belongs to them
model_calibration  calibrate token counts from providers' answers
"""
