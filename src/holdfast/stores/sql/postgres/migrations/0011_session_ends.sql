-- Sessions by the last visible message of their live path: an exact continuation is found in one step, however many sessions
-- of a user share a beginning.
-- An expression, which no other index has: the planner would take one by name or by time, and read all that a user has.
CREATE INDEX sessions_end ON sessions ((digest || tenant || user_id), updated_at);
