"""What is laid over logs between calls: views, summaries, ratings; and what this process remembers of them.

views        a view as it is read from the store           session_cache  what is remembered of sessions
compacting   when a summary is made, and by whom           drafting     what one reads, and what comes of it
summarizers  who writes it                                 scoring      messages rated behind turns
scorers      who rates them                                passage_tables  what left windows, analysed for recall
"""
