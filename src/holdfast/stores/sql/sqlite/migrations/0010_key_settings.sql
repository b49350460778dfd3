-- What an API key decides for the chat requests that come with it; null: the agent or the server decides.
ALTER TABLE api_keys ADD COLUMN session_mode TEXT;
ALTER TABLE api_keys ADD COLUMN budget INTEGER;
