"""The working set: from a session's log to the messages that a model should see.

settings   the strategies and their keys                   policies     what each strategy does
units      what is kept or dropped as one                  window       the units of a view, and the only moves there are
view       a view, carried on as the log grows             buffer       one that sees the newest messages alone
build      from a view to a prompt, checked                dialects     what each provider wants of it
explain    what became of every entry, and why             trail        what a prompt has in common with the one before
perspective  how an agent sees what others say             reasoning    a model's reasoning beside its messages
salience, signals  which units matter                      values       what a piece of text may be worth, by its form
squeeze, cut  what must stay, made shorter                 clearing     tool results replaced by markers
summaries  when one is due, and the view with it           summary_prompts  what a summarizer is asked, and gives
digest     what left, told without a model                 condense     that, laid over a window
recalled   the block of recalled text                      introduced   the block of what is known since before
"""
