"""The working set: from a session's log to the messages that a model should see.

- `settings`: the strategies and their keys.
- `strategies`: the implementation of each strategy.
- `units`: messages that are kept or dropped together.
- `window`: the units of a view, and the only changes allowed to them.
- `view`: a view, updated as the log grows.
- `build`: from a view to a checked prompt.
- `dialects`: requirements of each provider.
- `agent_view`: how an agent sees other agents' messages.
- `explain`: what happened to each entry, and why.
- `presence`: whether a message is in a prompt, since when it is not, and how to keep it.
- `prefix_diff`: the common prefix of a prompt and the previous one.
- `cut`: shortening one message.
- `truncation`: cutting, clearing and replacing messages of a window.
- `salience`: ratings of units by importance.
- `values`: ratings of pieces of text by their form.
- `statements`: finding the sentences in which users state facts and wishes.
- `standing_facts`: the block of the user's statements that are still true.
- `summaries`: when a summary is due, the summarizer's prompt, and the resulting view.
- `digest`: evicted messages, condensed without a model.
- `recalled`: the blocks of recalled text and of facts known from earlier sessions.
- `escaping`: making quoted text inert.
- `analysis_cache`: cached analyses of messages.
"""
