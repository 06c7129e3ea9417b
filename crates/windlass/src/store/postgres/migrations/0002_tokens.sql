-- Of the whole database, not of a namespace. Only a hash of the secret is kept; no namespaces are all of them.
CREATE TABLE windlass.api_tokens (
    token_id    text PRIMARY KEY,
    name        text NOT NULL,
    secret_hash bytea NOT NULL,
    scopes      text[] NOT NULL,
    namespaces  text[] NOT NULL,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz
);
