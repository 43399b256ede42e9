//! The tables of a SQLite store.

/// How the tables came about, version by version. What was released is never changed; new ones go to the end.
pub(super) const VERSIONS: &[&str] = &["
CREATE TABLE refrain_tasks (
    id             TEXT    NOT NULL PRIMARY KEY,
    flow           BLOB    NOT NULL,
    owner          TEXT,
    tool           TEXT    NOT NULL,
    call           BLOB    NOT NULL,
    journal        BLOB    NOT NULL,
    status         TEXT    NOT NULL,
    status_message TEXT,
    created        INTEGER NOT NULL,
    updated        INTEGER NOT NULL,
    ttl            INTEGER NOT NULL,
    poll_interval  INTEGER NOT NULL,
    expires        INTEGER NOT NULL,
    ended          INTEGER,
    due            INTEGER,
    worker         TEXT,
    fence          INTEGER NOT NULL,
    attempts       INTEGER NOT NULL,
    last_error     TEXT,
    revision       INTEGER NOT NULL,
    last_commit    INTEGER NOT NULL,
    open           INTEGER NOT NULL,
    unread         INTEGER NOT NULL,
    outcome        BLOB
) STRICT;
CREATE UNIQUE INDEX refrain_tasks_flow ON refrain_tasks (flow, (owner IS NULL), coalesce(owner, ''));
CREATE INDEX refrain_tasks_due ON refrain_tasks (due) WHERE due IS NOT NULL;
CREATE INDEX refrain_tasks_over ON refrain_tasks (expires) WHERE ended IS NOT NULL;
CREATE INDEX refrain_tasks_created ON refrain_tasks (created);

CREATE TABLE refrain_asks (
    ord    INTEGER NOT NULL PRIMARY KEY,
    task   TEXT    NOT NULL,
    key    TEXT    NOT NULL,
    ask    BLOB    NOT NULL,
    answer BLOB,
    state  TEXT    NOT NULL,
    UNIQUE (task, key)
) STRICT;

CREATE TABLE refrain_log (
    flow  BLOB    NOT NULL,
    name  TEXT    NOT NULL,
    value TEXT,
    until INTEGER NOT NULL,
    PRIMARY KEY (flow, name)
) STRICT;
CREATE INDEX refrain_log_until ON refrain_log (until);

CREATE TABLE refrain_tokens (
    id    TEXT    NOT NULL PRIMARY KEY,
    bytes BLOB    NOT NULL,
    until INTEGER NOT NULL
) STRICT;
CREATE INDEX refrain_tokens_until ON refrain_tokens (until);
", "
CREATE TABLE refrain_notes (
    session TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    value   BLOB    NOT NULL,
    until   INTEGER NOT NULL,
    PRIMARY KEY (session, name)
) STRICT;
CREATE INDEX refrain_notes_until ON refrain_notes (until);
", "
DROP TABLE refrain_notes;
"];
