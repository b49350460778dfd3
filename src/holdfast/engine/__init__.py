"""Services that all turns share: store, clock, session locks, and the steps that every write passes.

A *tenant* is a separate customer of one server, with users and sessions of its own. The *log* is the stored list of a session's
messages and notes; each of them is an *entry*. The *guard* finds secrets in texts, and masks or refuses them.

engine             the services of one tenant
tenancy            the engines of several tenants
session_lock       run one turn of a session at a time
branches           let several agents answer in one turn
lost_writes        find out whether a write is in the log after its answer was lost
reservations       reserve sessions for requests whose turns have not begun
entries            prepare messages for a log
redacting_store    mask secrets in every write
scoped_state       the state of sessions, users and tenants
initial_state      the initial state of a new session
write_steps        the steps that every write passes
session_removal    delete sessions with everything that belongs to them
deletion_journal   the receipts of deletions
activity           counts of turns, calls and tokens over time
model_calibration  correct token counts by the counts that providers report
"""
