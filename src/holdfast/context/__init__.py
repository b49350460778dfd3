"""Build working sets: select from a session's log the messages for one model call, within a token budget.

- `settings`: names and settings of the strategies.
- `strategies`: the rules that decide which messages stay.
- `units`: groups of messages that are kept or dropped together.
- `window`: the units and compactions from which a prompt is made, and the changes allowed to them.
- `view`: a window that is updated as the log grows.
- `build`: makes the messages of a prompt from a view, and checks that they fit.
- `dialects`: adapts messages to each provider's requirements.
- `agent_view`: shows an agent the messages of other agents as quotes.
- `parts`: the record of a prompt, and the prompt that is assembled from it.
- `explain`: looks up in the record what happened to each entry of the log, and why; words all reasons.
- `presence`: looks up how much of one message a prompt contains.
- `prefix_diff`: compares the messages of a prompt with those of the previous one.
- `cut`: shortens one message.
- `truncation`: shortens, clears and replaces messages of a window.
- `salience`: rates units by importance.
- `values`: rates pieces of text by their form.
- `statements`: finds the sentences in which users state facts and wishes.
- `standing_facts`: the block of the user's statements that are still valid.
- `summaries`: plans summaries, makes the requests to the model, and builds the view after one.
- `digest`: condenses evicted messages without a model.
- `recalled`: the block of recalled text, and the block of facts known from earlier sessions.
- `escaping`: makes quoted text harmless.
- `analysis_cache`: caches analyses of messages.
"""
