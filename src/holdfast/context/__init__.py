"""The working set: from a session's log to the messages that a model should see.

settings   the strategies and their keys                   strategies   what each strategy does
units      what is kept or dropped as one                  window       the units of a view, and the only moves there are
view       a view, carried on as the log grows             build        from a view to a prompt, checked
dialects   what each provider wants of a prompt            agent_view   how an agent sees what others say
explain    what became of every entry, and why             presence     whether a message is in a prompt, when it left, what would keep it
prefix_diff  what a prompt has in common with the one before
cut        one message, made shorter                       truncation   a window's messages cut, cleared or replaced by notes
salience   which units matter                              values       what a piece of text may be worth, by its form
statements  sentences in which users say how things are    standing_facts  those that still hold, laid over a window
summaries  when one is due, what a summarizer is asked, and the view that goes on with its answer
digest     what left, told without a model                 recalled     blocks of recalled text, and of what is known since before
escaping   text that nothing can take for a message        analysis_cache  what is read of messages, kept
"""
