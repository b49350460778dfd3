-- Sessions by the last visible message of their live path: an exact continuation is found in one step, however many sessions
-- of a user share a beginning.
CREATE INDEX sessions_end ON sessions (tenant, user_id, digest, updated_at);
