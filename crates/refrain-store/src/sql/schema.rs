//! The tables, and their migrations.

use crate::open::OpenStoreError;

/// The migrations, in the order of their versions, for Postgres. Never change a released migration; append a new one.
///
/// Journals change often. The fill factor, and the absence of indexes on columns that change with them, keep an update on
/// its page (HOT).
const VERSIONS: &[&str] = &["
CREATE TABLE refrain_tasks (
    id             TEXT   COLLATE \"C\" NOT NULL PRIMARY KEY,
    flow           BYTEA  NOT NULL,
    owner          TEXT   COLLATE \"C\",
    tool           TEXT   COLLATE \"C\" NOT NULL,
    call           BYTEA  NOT NULL,
    journal        BYTEA  NOT NULL,
    status         TEXT   COLLATE \"C\" NOT NULL,
    status_message TEXT,
    created        BIGINT NOT NULL,
    updated        BIGINT NOT NULL,
    ttl            BIGINT NOT NULL,
    poll_interval  BIGINT NOT NULL,
    expires        BIGINT NOT NULL,
    ended          BIGINT,
    due            BIGINT,
    worker         TEXT,
    fence          BIGINT NOT NULL,
    attempts       BIGINT NOT NULL,
    last_error     TEXT,
    revision       BIGINT NOT NULL,
    last_commit    BIGINT NOT NULL,
    open           BIGINT NOT NULL,
    unread         BIGINT NOT NULL,
    outcome        BYTEA
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX refrain_tasks_flow ON refrain_tasks (flow, (owner IS NULL), coalesce(owner, ''));
CREATE INDEX refrain_tasks_due ON refrain_tasks (due) WHERE due IS NOT NULL;
CREATE INDEX refrain_tasks_over ON refrain_tasks (expires) WHERE ended IS NOT NULL;
CREATE INDEX refrain_tasks_created ON refrain_tasks (created);

CREATE TABLE refrain_asks (
    task   TEXT   COLLATE \"C\" NOT NULL,
    key    TEXT   COLLATE \"C\" NOT NULL,
    ord    BIGINT NOT NULL,
    ask    BYTEA  NOT NULL,
    answer BYTEA,
    state  TEXT   COLLATE \"C\" NOT NULL,
    PRIMARY KEY (task, key)
);

CREATE TABLE refrain_log (
    flow  BYTEA  NOT NULL,
    name  TEXT   COLLATE \"C\" NOT NULL,
    value TEXT,
    until BIGINT NOT NULL,
    PRIMARY KEY (flow, name)
);
CREATE INDEX refrain_log_until ON refrain_log (until);

CREATE TABLE refrain_tokens (
    id    TEXT   COLLATE \"C\" NOT NULL PRIMARY KEY,
    bytes BYTEA  NOT NULL,
    until BIGINT NOT NULL
);
CREATE INDEX refrain_tokens_until ON refrain_tokens (until);
", "
CREATE TABLE refrain_notes (
    session TEXT   COLLATE \"C\" NOT NULL,
    name    TEXT   COLLATE \"C\" NOT NULL,
    value   BYTEA  NOT NULL,
    until   BIGINT NOT NULL,
    PRIMARY KEY (session, name)
);
CREATE INDEX refrain_notes_until ON refrain_notes (until);
", "
DROP TABLE refrain_notes;
", "
CREATE TABLE refrain_turns (
    last BIGINT NOT NULL
);
INSERT INTO refrain_turns (last) VALUES (0);
ALTER TABLE refrain_tasks ADD COLUMN turn BIGINT;
DROP INDEX refrain_tasks_due;
CREATE INDEX refrain_tasks_due ON refrain_tasks (due) WHERE due IS NOT NULL AND turn IS NULL;
CREATE INDEX refrain_tasks_turn ON refrain_tasks (turn, due) WHERE turn IS NOT NULL;
CREATE INDEX refrain_tasks_owner ON refrain_tasks (coalesce(owner, ''), turn) WHERE turn IS NOT NULL;
"];

/// Replacements that translate the migrations for SQLite, where the database numbers the asks.
#[cfg(feature = "sqlite")]
const SQLITE: [(&str, &str); 7] = [
    (" COLLATE \"C\"", ""),
    ("BYTEA", "BLOB"),
    ("ord    BIGINT NOT NULL", "ord INTEGER NOT NULL PRIMARY KEY"),
    ("PRIMARY KEY (task, key)", "UNIQUE (task, key)"),
    ("BIGINT", "INTEGER"),
    (") WITH (fillfactor = 70);", ") STRICT;"),
    ("\n);", "\n) STRICT;"),
];

pub(crate) const SCHEMA_VERSION: &str = "SELECT max(version) FROM refrain_schema";

pub(crate) const ADD_SCHEMA_VERSION: &str = "INSERT INTO refrain_schema (version) VALUES ($1)";

/// The migrations after version `found`, with their versions.
pub(crate) fn pending_migrations(
    found: Option<i64>,
) -> Result<impl Iterator<Item = (i64, &'static str)>, OpenStoreError> {
    let (found, known) = (found.unwrap_or(0), VERSIONS.len() as i64);
    if found > known {
        return Err(OpenStoreError::Newer { found, known });
    }
    let all = (1..).zip(VERSIONS.iter().copied());
    Ok(all.filter(move |(version, _)| *version > found))
}

/// A migration for SQLite.
#[cfg(feature = "sqlite")]
pub(crate) fn for_sqlite(migration: &str) -> String {
    let replace = |sql: String, (from, to): (&str, &str)| sql.replace(from, to);
    SQLITE.into_iter().fold(migration.to_owned(), replace)
}
