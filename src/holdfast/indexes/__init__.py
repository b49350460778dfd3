"""The index service: an index that follows what is written, off every turn's path, and can be made anew at any time.

settings     which index, and where it lies
tenants      the indexes of all tenants of a process
lazy         an index that opens at its first use
file         whether its file is still the one that was opened
following    the store that tells an index of every write
departures   what tells other indexes that something went
service      what a tenant's index is told, and when it is in
waiting      sessions that wait to be taken in
feeding      entries and memories as documents
sources      a session, brought up to its log
memories     an owner's memories, brought up to the store
marking      what something is about to be done to, so that a crash leaves a trace
walking      what nobody told: found by looking
first_walk   whether all was looked for since the index was made
rebuilding   all of it made anew
leasing      whose turn that is, of several processes
embedding    vectors for what has none
vectors      when they are made
report       how an index is doing
"""
