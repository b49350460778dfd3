"""What turns share: store, clock, session locks, and what every write passes on its way.

engine     all of it, of one tenant                        tenancy    the engines of many tenants
queueing   one turn of a session at a time                 claiming   the same over several servers
branching  several who speak in one turn                   entries    messages on their way into a log
guarded    the store, behind the guard for secrets         scoped     the state of all scopes
beginning  what a new session's state has                  removing   sessions that go, with what belongs to them
indexing   an index told of what was written               learning   what providers' answers teach
"""
