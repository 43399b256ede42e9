//! The tables, and their migrations.

use crate::open::OpenStoreError;

/// A change from one version of the tables to the next.
pub(crate) struct Migration {
    /// SQL for Postgres, which is translated for SQLite.
    tables: &'static str,
    /// SQL for one database only.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(dead_code, reason = "Postgres is off")
    )]
    postgres: &'static str,
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "SQLite is off"))]
    sqlite: &'static str,
}

/// The version of the tables that the first migration creates. Earlier versions were never released.
const FIRST_VERSION: i64 = 10;

/// The migrations, in the order of their versions. Never change a released migration; append a new one.
const MIGRATIONS: &[Migration] = &[Migration {
    tables: TABLES,
    postgres: POSTGRES_TRIGGERS,
    sqlite: SQLITE_TRIGGERS,
}];

/// Journals change often. The fill factor, and the absence of indexes on columns that change with them, keep an update on
/// its page (HOT).
///
/// In `refrain_tasks`, `open` is the number of open asks, `unread` the number of answers that are not in the journal yet,
/// and `extra` the bytes of asks and answers. An empty `account` is that of anonymous callers without an address.
const TABLES: &str = "
CREATE TABLE refrain_tasks (
    id             TEXT   COLLATE \"C\" NOT NULL PRIMARY KEY,
    flow           BYTEA  NOT NULL,
    owner          TEXT   COLLATE \"C\",
    account        TEXT   COLLATE \"C\" NOT NULL,
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
    turn           BIGINT,
    worker         TEXT,
    fence          BIGINT NOT NULL,
    attempts       BIGINT NOT NULL,
    last_error     TEXT,
    revision       BIGINT NOT NULL,
    last_commit    BIGINT NOT NULL,
    open           BIGINT NOT NULL,
    unread         BIGINT NOT NULL,
    extra          BIGINT NOT NULL DEFAULT 0,
    outcome        BYTEA,
    webhooks       TEXT
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX refrain_tasks_flow ON refrain_tasks (flow, (owner IS NULL), coalesce(owner, ''));
CREATE INDEX refrain_tasks_due ON refrain_tasks (due) WHERE due IS NOT NULL AND turn IS NULL;
CREATE INDEX refrain_tasks_turn ON refrain_tasks (turn, due) WHERE turn IS NOT NULL;
CREATE INDEX refrain_tasks_account ON refrain_tasks (account, turn) WHERE turn IS NOT NULL;
CREATE INDEX refrain_tasks_over ON refrain_tasks (expires) WHERE ended IS NOT NULL;
CREATE INDEX refrain_tasks_created ON refrain_tasks (created);

CREATE TABLE refrain_turns (
    last BIGINT NOT NULL
);
INSERT INTO refrain_turns (last) VALUES (0);

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
    flow    BYTEA  NOT NULL,
    name    TEXT   COLLATE \"C\" NOT NULL,
    value   TEXT,
    until   BIGINT NOT NULL,
    account TEXT   COLLATE \"C\" NOT NULL,
    PRIMARY KEY (flow, name)
);
CREATE INDEX refrain_log_until ON refrain_log (until);

CREATE TABLE refrain_tokens (
    id      TEXT   COLLATE \"C\" NOT NULL PRIMARY KEY,
    bytes   BYTEA  NOT NULL,
    until   BIGINT NOT NULL,
    account TEXT   COLLATE \"C\" NOT NULL
);
CREATE INDEX refrain_tokens_until ON refrain_tokens (until);

CREATE TABLE refrain_usage (
    owner TEXT   COLLATE \"C\" NOT NULL,
    slot  BIGINT NOT NULL,
    tasks BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (owner, slot)
) WITH (fillfactor = 70);

CREATE TABLE refrain_outbox (
    endpoint TEXT   COLLATE \"C\" NOT NULL,
    id       TEXT   COLLATE \"C\" NOT NULL,
    task     TEXT   COLLATE \"C\" NOT NULL,
    tool     TEXT   COLLATE \"C\" NOT NULL,
    status   TEXT   COLLATE \"C\" NOT NULL,
    created  BIGINT NOT NULL,
    ended    BIGINT NOT NULL,
    due      BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    account  TEXT   COLLATE \"C\" NOT NULL,
    turn     BIGINT NOT NULL,
    PRIMARY KEY (endpoint, id)
);
CREATE INDEX refrain_outbox_due ON refrain_outbox (endpoint, due);
CREATE INDEX refrain_outbox_ended ON refrain_outbox (ended);
CREATE INDEX refrain_outbox_turn ON refrain_outbox (endpoint, turn, due);
CREATE INDEX refrain_outbox_account ON refrain_outbox (endpoint, account, turn);
";

/// The bytes that count towards a quota for a row of tasks: call, journal, outcome, asks and answers.
macro_rules! task_bytes {
    ($row:literal) => {
        concat!(
            "((length(",
            $row,
            "call) + length(",
            $row,
            "journal) + coalesce(length(",
            $row,
            "outcome), 0) + ",
            $row,
            "extra) / 1024 + 1) * 1024"
        )
    };
}

/// The bytes that count towards a quota for a row of tokens.
macro_rules! token_bytes {
    ($row:literal) => {
        concat!("(length(", $row, "bytes) / 1024 + 1) * 1024")
    };
}

/// The bytes that count towards a quota for a row of the replay log. The constant is `RECORD_BYTES`.
macro_rules! record_bytes {
    ($row:literal) => {
        concat!("(100 + coalesce(octet_length(", $row, "value), 0))")
    };
}

/// Triggers that count the bytes of a table other than `refrain_tasks`. `$columns` are those that an update may change.
macro_rules! postgres_count {
    ($row:literal, $table:literal, $columns:literal, $bytes:ident) => {
        concat!(
            "
CREATE FUNCTION refrain_count_",
            $row,
            "() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM refrain_count(OLD.account, 0, - ",
            $bytes!("OLD."),
            ");
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM refrain_count(NEW.account, 0, ",
            $bytes!("NEW."),
            ");
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER refrain_count AFTER INSERT OR DELETE OR UPDATE OF ",
            $columns,
            "
    ON ",
            $table,
            " FOR EACH ROW EXECUTE FUNCTION refrain_count_",
            $row,
            "();
"
        )
    };
}

/// Adds to the usage of an account and of all accounts.
macro_rules! sqlite_add {
    ($account:literal, $tasks:expr, $bytes:expr) => {
        concat!(
            "INSERT INTO refrain_usage (owner, slot, tasks, bytes)
            VALUES ('=' || ", $account, ", 0, ", $tasks, ", ", $bytes, "), ('*', 0, ", $tasks, ", ", $bytes, ")
            ON CONFLICT (owner, slot) DO UPDATE SET tasks = tasks + excluded.tasks, bytes = bytes + excluded.bytes;"
        )
    };
}

/// The triggers of `postgres_count` for SQLite.
macro_rules! sqlite_count {
    ($row:literal, $table:literal, $columns:literal, $bytes:ident) => {
        concat!(
            "
CREATE TRIGGER refrain_count_new_",
            $row,
            " AFTER INSERT ON ",
            $table,
            " BEGIN
    ",
            sqlite_add!("NEW.account", "0", $bytes!("NEW.")),
            "
END;
CREATE TRIGGER refrain_count_",
            $row,
            " AFTER UPDATE OF ",
            $columns,
            " ON ",
            $table,
            " BEGIN
    ",
            sqlite_add!("OLD.account", "0", concat!("- ", $bytes!("OLD."))),
            "
    ",
            sqlite_add!("NEW.account", "0", $bytes!("NEW.")),
            "
END;
CREATE TRIGGER refrain_count_old_",
            $row,
            " AFTER DELETE ON ",
            $table,
            " BEGIN
    ",
            sqlite_add!("OLD.account", "0", concat!("- ", $bytes!("OLD."))),
            "
END;
"
        )
    };
}

/// Adds a delivery for each endpoint of a task that has ended, in the turn of its caller: after the caller's other deliveries
/// to the endpoint, and not before those of other callers that wait already.
macro_rules! add_deliveries {
    ($endpoints:literal) => {
        concat!(
            "INSERT INTO refrain_outbox (endpoint, id, task, tool, status, created, ended, due, attempts, account, turn)
    SELECT w.value, NEW.id || '_' || NEW.revision, NEW.id, NEW.tool, NEW.status, NEW.created, NEW.ended, NEW.ended, 0,
        NEW.account,
        coalesce(
            (SELECT max(o.turn) + 1 FROM refrain_outbox o WHERE o.endpoint = w.value AND o.account = NEW.account),
            (SELECT min(o.turn) FROM refrain_outbox o WHERE o.endpoint = w.value),
            0)
    FROM ", $endpoints, " AS w WHERE true
    ON CONFLICT DO NOTHING;"
        )
    };
}

/// Triggers that count the usage of an account, as `'=' || account`, and of all accounts, as `'*'`. The usage is the sum over
/// the slots. Each connection uses one slot, so that concurrent writes of one account rarely wait for each other. Every write
/// locks `'*'` first, so that two connections with the same slot do not deadlock. PL/pgSQL caches plans; a function in SQL is
/// planned by each call.
const POSTGRES_TRIGGERS: &str = concat!("
CREATE FUNCTION refrain_count(who TEXT, more_tasks BIGINT, more_bytes BIGINT) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO refrain_usage AS u (owner, slot, tasks, bytes)
    SELECT v.owner, pg_backend_pid() % 16, more_tasks, more_bytes
    FROM (VALUES ('*'), ('=' || who)) AS v (owner)
    WHERE more_tasks <> 0 OR more_bytes <> 0
    ON CONFLICT (owner, slot) DO UPDATE SET tasks = u.tasks + excluded.tasks, bytes = u.bytes + excluded.bytes;
END $$;
CREATE FUNCTION refrain_count_task() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    tasks BIGINT := 0;
    bytes BIGINT := 0;
    who TEXT;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        who := OLD.account;
        tasks := - (OLD.ended IS NULL)::int;
        bytes := - ", task_bytes!("OLD."), ";
    END IF;
    IF TG_OP <> 'DELETE' THEN
        who := NEW.account;
        tasks := tasks + (NEW.ended IS NULL)::int;
        bytes := bytes + ", task_bytes!("NEW."), ";
    END IF;
    IF tasks <> 0 OR bytes <> 0 THEN
        PERFORM refrain_count(who, tasks, bytes);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER refrain_count AFTER INSERT OR DELETE OR UPDATE OF call, journal, outcome, extra, ended
    ON refrain_tasks FOR EACH ROW EXECUTE FUNCTION refrain_count_task();
", postgres_count!("token", "refrain_tokens", "bytes, account", token_bytes), "
", postgres_count!("record", "refrain_log", "value, account", record_bytes), "
CREATE FUNCTION refrain_add_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    ", add_deliveries!("json_array_elements_text(NEW.webhooks::json)"), "
    RETURN NULL;
END $$;
CREATE TRIGGER refrain_add_deliveries AFTER UPDATE OF ended ON refrain_tasks FOR EACH ROW
    WHEN (OLD.ended IS NULL AND NEW.ended IS NOT NULL AND NEW.webhooks IS NOT NULL)
    EXECUTE FUNCTION refrain_add_deliveries();
");

const SQLITE_TRIGGERS: &str = concat!("
CREATE TRIGGER refrain_count_new_task AFTER INSERT ON refrain_tasks BEGIN
    ", sqlite_add!("NEW.account", "(NEW.ended IS NULL)", task_bytes!("NEW.")), "
END;
CREATE TRIGGER refrain_count_task AFTER UPDATE OF call, journal, outcome, extra, ended ON refrain_tasks
WHEN (OLD.ended IS NULL) <> (NEW.ended IS NULL) OR ", task_bytes!("OLD."), " <> ", task_bytes!("NEW."), " BEGIN
    ", sqlite_add!(
        "NEW.account",
        "(NEW.ended IS NULL) - (OLD.ended IS NULL)",
        concat!(task_bytes!("NEW."), " - ", task_bytes!("OLD."))
    ), "
END;
CREATE TRIGGER refrain_count_old_task AFTER DELETE ON refrain_tasks BEGIN
    ", sqlite_add!("OLD.account", "- (OLD.ended IS NULL)", concat!("- ", task_bytes!("OLD."))), "
END;
", sqlite_count!("token", "refrain_tokens", "bytes, account", token_bytes), "
", sqlite_count!("record", "refrain_log", "value, account", record_bytes), "
CREATE TRIGGER refrain_add_deliveries AFTER UPDATE OF ended ON refrain_tasks
WHEN OLD.ended IS NULL AND NEW.ended IS NOT NULL AND NEW.webhooks IS NOT NULL BEGIN
    ", add_deliveries!("json_each(NEW.webhooks)"), "
END;
");

/// Replacements that translate the migrations for SQLite. There `ord` is an `INTEGER PRIMARY KEY`, so SQLite assigns it.
#[cfg(feature = "sqlite")]
const SQLITE_REPLACEMENTS: [(&str, &str); 7] = [
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

/// The migrations after version `found`, with their versions; all of them for a new database.
pub(crate) fn pending_migrations(
    found: Option<i64>,
) -> Result<impl Iterator<Item = (i64, &'static Migration)>, OpenStoreError> {
    let known = FIRST_VERSION + MIGRATIONS.len() as i64 - 1;
    match found {
        Some(found) if found > known => return Err(OpenStoreError::Newer { found, known }),
        Some(found) if found < FIRST_VERSION => return Err(OpenStoreError::Older { found }),
        _ => {}
    }
    let all = (FIRST_VERSION..).zip(MIGRATIONS);
    Ok(all.filter(move |(version, _)| found.is_none_or(|found| *version > found)))
}

impl Migration {
    #[cfg(feature = "postgres")]
    pub(crate) fn for_postgres(&self) -> String {
        format!("{}{}", self.tables, self.postgres)
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn for_sqlite(&self) -> String {
        let replace = |sql: String, (from, to): (&str, &str)| sql.replace(from, to);
        let tables = SQLITE_REPLACEMENTS
            .into_iter()
            .fold(self.tables.to_owned(), replace);
        format!("{tables}{}", self.sqlite)
    }
}
