-- Of the whole database, not of a namespace. Only a hash of the secret is kept; no namespaces are all of them.
CREATE TABLE api_tokens (
    token_id    TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    secret_hash BLOB NOT NULL,
    scopes      TEXT NOT NULL,
    namespaces  TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER
) WITHOUT ROWID;
