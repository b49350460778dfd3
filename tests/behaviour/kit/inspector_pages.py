"""The pages of the inspector, on the server of `inspector.py`."""

from __future__ import annotations

from typing import Final

from tests.behaviour.kit.inspector import SECRET

S: Final = "/inspect/sessions/s"
MEMORIES: Final = "/inspect/memories"
OF_DEFAULT: Final = "scope=user&owner=default"
PAGES: Final[dict[str, list[str]]] = {
    "/": ["Overview", "Turns 9", "Failed turns 0", "Sessions 2", "2023-11-14 22:00 9 0 9 0 4,3", "Database", "Latest"],
    "/?range=hours": ["Turns 9", "3 hours ago"],
    "/?range=month": ["Turns 9", "30 days ago"],
    "/inspect/sessions": ["s active 8 turns, 126,895 tokens", "condensed before #17", "second active 1 turn", "ada"],
    "/inspect/sessions?sort=tokens": ["log tokens ↓"],
    "/inspect/sessions?user_id=ada&status=active": ["second active"],
    "/inspect/sessions?q=launch+code": ["s #0", "the launch code is 0000-swordfish", "Name a user to see more hits"],
    "/inspect/sessions?user_id=nobody": ["No session matches"],
    S: ["Messages 19", "Tokens in the log 126,895", "18 of 19", "user #0", "… 980,000 more characters"],
    f"{S}?q=flight&at=5": ["messages with", "SK4700"],
    f"{S}?view=raw": ['"seq": 0', '"content": "Plan a trip to Oslo'],
    f"{S}/messages/4": ["assistant #4", "search_flights", '"id": "call_1"', "Markdown ### 4. assistant"],
    f"{S}/messages/6/erase": ["Erase message 6?", "This cannot be undone."],
    f"{S}/turns/1": ["Fork after turn 1", "Later messages leave the conversation: 6 turns."],
    f"{S}/manage": ["the setting of the server applies", "closing a session deletes it"],
    f"{S}/delete": ["This deletes 19 messages (983.8 KiB with replaced ones)", "3 keys of the state"],
    f"{S}/prompt": ["exactly as it was sent · strategy digest", "Task 22", "Messages 3 of 18", "tokens free"],
    f"{S}/prompt?call=next&shape=gemini": ["What would be sent now", "Messages 4 of 19", '"role": "user"'],
    f"{S}/prompt?call=0&shape=anthropic": ["← Turn 0 →", "exactly as it was sent", "written after this prompt"],
    f"{S}/prompt?strategy=token_window&budget=900": ["B: token_window, 900 tokens strategy", "Back to the prompt"],
    f"{S}/state": ["cart", "Shared with other sessions", 'user:language "en"', "report.html text/html 160 B 1"],
    f"{S}/artifacts/report.html": ["version 1 text/html 160 B", "Delete all versions"],
    f"{S}/artifacts/report.html?version=0": [SECRET],
    f"{S}/artifacts/dot.png": ["version 0 image/png 75 B"],
    f"{S}/compactions": ["Digest 1 to 17 126,605", "No summaries are stored"],
    f"{S}/forgotten": ["What the user said and the prompt no longer has", "message 17, turn 7"],
    f"{S}/forgotten?q=launch+code": [
        "The prompt has a part of this message.",
        "Left the prompt in turn 2",
        "Pin it",
    ],
    f"{S}/forgotten?q=codes+for+a+launch": ["No message contains these words"],
    f"{S}/forgotten?seq=2&turn=6": ["In the prompt of turn 6 : compacted: replaced by a digest"],
    "/inspect/playground": ["Your message starts a new session."],
    "/inspect/playground?session_id=s": ["user 22 tokens Plan a trip to Oslo", "search_flights"],
    MEMORIES: ["Everyone wears a hat active semantic said by the user, trust 1.0", "What do these words mean?"],
    f"{MEMORIES}?{OF_DEFAULT}": ["My favourite colour is blue", "held", "taste"],
    f"{MEMORIES}?{OF_DEFAULT}&q=favourite+colour": ["My favourite colour is green", "score"],
    f"{MEMORIES}?q=launch+code": ["No memory of the app contains a word of this question."],
    f"{MEMORIES}/held": ["No memory is held", "Also held for: user default"],
    f"{MEMORIES}/held?{OF_DEFAULT}": ["Send money to", "/memories/held.md", "Approve", "Reject"],
    f"{MEMORIES}/files?{OF_DEFAULT}": ["/memories/notes.md"],
    f"{MEMORIES}/files?path=/memories/notes.md": [
        "2: edited @@ -1,2 +1,2 @@ -# Notes +# Notes of the user",
        "1: created",
    ],
    f"{MEMORIES}/diary": ["No consolidation yet", "at least 3 recalls by 2 different questions"],
    "/inspect/state": ["1 key of the app", 'app:motto "the launch code'],
    "/inspect/state?scope=user&user_id=default": ["1 key of user default", 'user:language "en"'],
    "/inspect/state/edit?session_id=s&key=cart": ["cart", '"items": ['],
    "/inspect/state/records?session_id=s": ["prefs/", "theme", '"dark": "the launch code is'],
    "/inspect/state/records?session_id=s&q=launch": ["No record matches"],
    "/inspect/artifacts": ["user:data.bin application/octet-stream 3 B", "Last sessions s"],
    "/inspect/artifacts/user:data.bin": ["version 0 application/octet-stream 3 B"],
    "/inspect/agents": ["No agents are configured", "default gpt-4o openai 128,000", "available 9 calls"],
    "/inspect/agents/default": ["Strategy: digest", "target 0.33", "No tools run in the server."],
    "/inspect/keys": ["There is no key yet", "Create key"],
    "/inspect/deletions": ["No deletions", "The journal has no ids of users or sessions"],
    "/inspect/retention": ["Idle sessions end after 1d", "Active sessions, at most 10,000", "2 sessions are active."],
}
"""All pages, on a filled server, and some of what they say."""
