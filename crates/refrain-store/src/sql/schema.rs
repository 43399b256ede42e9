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

/// A migration that is the same for both databases.
const fn tables(tables: &'static str) -> Migration {
    Migration {
        tables,
        postgres: "",
        sqlite: "",
    }
}

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

/// The trigger function that counts tasks. `$old` and `$new` are the SQL expressions for the account of the row before and
/// after the change. Inserts and updates count for the new account, deletes for the old one; the account of a row does not
/// change.
macro_rules! postgres_count_task {
    ($old:literal, $new:literal) => {
        concat!(
            "FUNCTION refrain_count_task() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    tasks BIGINT := 0;
    bytes BIGINT := 0;
    who TEXT;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        who := ",
            $old,
            ";
        tasks := - (OLD.ended IS NULL)::int;
        bytes := - ",
            task_bytes!("OLD."),
            ";
    END IF;
    IF TG_OP <> 'DELETE' THEN
        who := ",
            $new,
            ";
        tasks := tasks + (NEW.ended IS NULL)::int;
        bytes := bytes + ",
            task_bytes!("NEW."),
            ";
    END IF;
    IF tasks <> 0 OR bytes <> 0 THEN
        PERFORM refrain_count(who, tasks, bytes);
    END IF;
    RETURN NULL;
END $$;
"
        )
    };
}

/// Adds to the usage of an account and of all accounts.
macro_rules! sqlite_count {
    ($owner:literal, $tasks:expr, $bytes:expr) => {
        concat!(
            "INSERT INTO refrain_usage (owner, slot, tasks, bytes)
            VALUES ('=' || coalesce(", $owner, ", ''), 0, ", $tasks, ", ", $bytes, "), ('*', 0, ", $tasks, ", ", $bytes, ")
            ON CONFLICT (owner, slot) DO UPDATE SET tasks = tasks + excluded.tasks, bytes = bytes + excluded.bytes;"
        )
    };
}

/// The triggers that count tasks, with the same parameters as `postgres_count_task`.
macro_rules! sqlite_count_task {
    ($old:literal, $new:literal) => {
        concat!("CREATE TRIGGER refrain_count_new_task AFTER INSERT ON refrain_tasks BEGIN
    ", sqlite_count!($new, "(NEW.ended IS NULL)", task_bytes!("NEW.")), "
END;
CREATE TRIGGER refrain_count_task AFTER UPDATE OF call, journal, outcome, extra, ended ON refrain_tasks
WHEN (OLD.ended IS NULL) <> (NEW.ended IS NULL) OR ", task_bytes!("OLD."), " <> ", task_bytes!("NEW."), " BEGIN
    ", sqlite_count!(
        $new,
        "(NEW.ended IS NULL) - (OLD.ended IS NULL)",
        concat!(task_bytes!("NEW."), " - ", task_bytes!("OLD."))
    ), "
END;
CREATE TRIGGER refrain_count_old_task AFTER DELETE ON refrain_tasks BEGIN
    ", sqlite_count!($old, "- (OLD.ended IS NULL)", concat!("- ", task_bytes!("OLD."))), "
END;
")
    };
}

/// Adds a delivery for each endpoint of a task that has ended.
macro_rules! add_deliveries {
    ($endpoints:literal, $columns:literal, $values:literal) => {
        concat!(
            "INSERT INTO refrain_outbox (endpoint, id, task, tool, status, created, ended, due, attempts",
            $columns,
            ")
    SELECT w.value, NEW.id || '_' || NEW.revision, NEW.id, NEW.tool, NEW.status, NEW.created, NEW.ended, NEW.ended, 0",
            $values,
            "
    FROM ",
            $endpoints,
            " AS w WHERE true
    ON CONFLICT DO NOTHING;"
        )
    };
}

/// As `add_deliveries`, with the caller and its turn: after the caller's other deliveries to the endpoint, and not before those
/// of other callers that wait already.
macro_rules! add_deliveries_in_turn {
    ($endpoints:literal) => {
        add_deliveries!(
            $endpoints,
            ", account, turn",
            ",
        coalesce(NEW.account, NEW.owner, ''),
        coalesce(
            (SELECT max(o.turn) + 1 FROM refrain_outbox o
             WHERE o.endpoint = w.value AND o.account = coalesce(NEW.account, NEW.owner, '')),
            (SELECT min(o.turn) FROM refrain_outbox o WHERE o.endpoint = w.value),
            0)"
        )
    };
}

/// The migrations, in the order of their versions. Never change a released migration; append a new one.
///
/// Journals change often. The fill factor, and the absence of indexes on columns that change with them, keep an update on
/// its page (HOT).
///
/// In `refrain_tasks`, `open` is the number of open asks, and `unread` the number of answers that are not in the journal
/// yet.
const MIGRATIONS: &[Migration] = &[tables("
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
"), tables("
CREATE TABLE refrain_notes (
    session TEXT   COLLATE \"C\" NOT NULL,
    name    TEXT   COLLATE \"C\" NOT NULL,
    value   BYTEA  NOT NULL,
    until   BIGINT NOT NULL,
    PRIMARY KEY (session, name)
);
CREATE INDEX refrain_notes_until ON refrain_notes (until);
"), tables("
DROP TABLE refrain_notes;
"), tables("
CREATE TABLE refrain_turns (
    last BIGINT NOT NULL
);
INSERT INTO refrain_turns (last) VALUES (0);
ALTER TABLE refrain_tasks ADD COLUMN turn BIGINT;
DROP INDEX refrain_tasks_due;
CREATE INDEX refrain_tasks_due ON refrain_tasks (due) WHERE due IS NOT NULL AND turn IS NULL;
CREATE INDEX refrain_tasks_turn ON refrain_tasks (turn, due) WHERE turn IS NOT NULL;
CREATE INDEX refrain_tasks_owner ON refrain_tasks (coalesce(owner, ''), turn) WHERE turn IS NOT NULL;
"), Migration {
    tables: concat!("
CREATE TABLE refrain_usage (
    owner TEXT   COLLATE \"C\" NOT NULL,
    slot  BIGINT NOT NULL,
    tasks BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (owner, slot)
) WITH (fillfactor = 70);
ALTER TABLE refrain_tasks ADD COLUMN extra BIGINT NOT NULL DEFAULT 0;
ALTER TABLE refrain_tokens ADD COLUMN owner TEXT COLLATE \"C\";
UPDATE refrain_tasks SET extra = (
    SELECT coalesce(sum(length(ask) + coalesce(length(answer), 0)), 0) FROM refrain_asks WHERE task = id);
INSERT INTO refrain_usage (owner, slot, tasks, bytes)
SELECT '=' || coalesce(owner, ''), 0, sum(CASE WHEN ended IS NULL THEN 1 ELSE 0 END), sum(", task_bytes!(""), ")
FROM refrain_tasks GROUP BY coalesce(owner, '');
INSERT INTO refrain_usage (owner, slot, tasks, bytes)
SELECT '=', 1, 0, coalesce(sum(", token_bytes!(""), "), 0) FROM refrain_tokens;
INSERT INTO refrain_usage (owner, slot, tasks, bytes)
SELECT '*', 0, sum(tasks), sum(bytes) FROM refrain_usage;
"),
    postgres: POSTGRES_TRIGGERS,
    sqlite: SQLITE_TRIGGERS,
}, Migration {
    tables: "
ALTER TABLE refrain_tasks ADD COLUMN account TEXT COLLATE \"C\";
DROP INDEX refrain_tasks_owner;
CREATE INDEX refrain_tasks_account ON refrain_tasks (coalesce(account, owner, ''), turn) WHERE turn IS NOT NULL;
",
    postgres: concat!("CREATE OR REPLACE ", postgres_count_task!("coalesce(OLD.account, OLD.owner)", "coalesce(NEW.account, NEW.owner)")),
    sqlite: concat!("
DROP TRIGGER refrain_count_new_task;
DROP TRIGGER refrain_count_task;
DROP TRIGGER refrain_count_old_task;
", sqlite_count_task!("coalesce(OLD.account, OLD.owner)", "coalesce(NEW.account, NEW.owner)")),
}, Migration {
    tables: "
ALTER TABLE refrain_tasks ADD COLUMN webhooks TEXT;
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
    PRIMARY KEY (endpoint, id)
);
CREATE INDEX refrain_outbox_due ON refrain_outbox (endpoint, due);
CREATE INDEX refrain_outbox_ended ON refrain_outbox (ended);
",
    postgres: concat!("
CREATE FUNCTION refrain_add_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    ", add_deliveries!("json_array_elements_text(NEW.webhooks::json)", "", ""), "
    RETURN NULL;
END $$;
CREATE TRIGGER refrain_add_deliveries AFTER UPDATE OF ended ON refrain_tasks FOR EACH ROW
    WHEN (OLD.ended IS NULL AND NEW.ended IS NOT NULL AND NEW.webhooks IS NOT NULL)
    EXECUTE FUNCTION refrain_add_deliveries();
"),
    sqlite: concat!("
CREATE TRIGGER refrain_add_deliveries AFTER UPDATE OF ended ON refrain_tasks
WHEN OLD.ended IS NULL AND NEW.ended IS NOT NULL AND NEW.webhooks IS NOT NULL BEGIN
    ", add_deliveries!("json_each(NEW.webhooks)", "", ""), "
END;
"),
}, Migration {
    tables: "
ALTER TABLE refrain_log ADD COLUMN account TEXT COLLATE \"C\";
",
    postgres: POSTGRES_COUNT_RECORD,
    sqlite: SQLITE_COUNT_RECORD,
}, Migration {
    tables: "
ALTER TABLE refrain_outbox ADD COLUMN account TEXT COLLATE \"C\" NOT NULL DEFAULT '';
ALTER TABLE refrain_outbox ADD COLUMN turn BIGINT NOT NULL DEFAULT 0;
UPDATE refrain_outbox SET account = coalesce((
    SELECT coalesce(t.account, t.owner) FROM refrain_tasks t WHERE t.id = refrain_outbox.task), '');
CREATE INDEX refrain_outbox_turn ON refrain_outbox (endpoint, turn, due);
CREATE INDEX refrain_outbox_account ON refrain_outbox (endpoint, account, turn);
",
    postgres: concat!("
CREATE OR REPLACE FUNCTION refrain_add_deliveries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    ", add_deliveries_in_turn!("json_array_elements_text(NEW.webhooks::json)"), "
    RETURN NULL;
END $$;
"),
    sqlite: concat!("
DROP TRIGGER refrain_add_deliveries;
CREATE TRIGGER refrain_add_deliveries AFTER UPDATE OF ended ON refrain_tasks
WHEN OLD.ended IS NULL AND NEW.ended IS NOT NULL AND NEW.webhooks IS NOT NULL BEGIN
    ", add_deliveries_in_turn!("json_each(NEW.webhooks)"), "
END;
"),
}];

/// Triggers that count the usage of an owner, as `'=' || owner`, and of all owners, as `'*'`. The usage is the sum over the
/// slots. Each connection uses one slot, so that concurrent writes of one owner rarely wait for each other. Every write
/// locks `'*'` first, so that two connections with the same slot do not deadlock. PL/pgSQL caches plans; a function in SQL is
/// planned by each call.
const POSTGRES_TRIGGERS: &str = concat!("
CREATE FUNCTION refrain_count(who TEXT, more_tasks BIGINT, more_bytes BIGINT) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO refrain_usage AS u (owner, slot, tasks, bytes)
    SELECT v.owner, pg_backend_pid() % 16, more_tasks, more_bytes
    FROM (VALUES ('*'), ('=' || coalesce(who, ''))) AS v (owner)
    WHERE more_tasks <> 0 OR more_bytes <> 0
    ON CONFLICT (owner, slot) DO UPDATE SET tasks = u.tasks + excluded.tasks, bytes = u.bytes + excluded.bytes;
END $$;
CREATE ", postgres_count_task!("OLD.owner", "NEW.owner"), "
CREATE FUNCTION refrain_count_token() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM refrain_count(OLD.owner, 0, - ", token_bytes!("OLD."), ");
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM refrain_count(NEW.owner, 0, ", token_bytes!("NEW."), ");
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER refrain_count AFTER INSERT OR DELETE OR UPDATE OF call, journal, outcome, extra, ended
    ON refrain_tasks FOR EACH ROW EXECUTE FUNCTION refrain_count_task();
CREATE TRIGGER refrain_count AFTER INSERT OR DELETE OR UPDATE OF bytes
    ON refrain_tokens FOR EACH ROW EXECUTE FUNCTION refrain_count_token();
");

const SQLITE_TRIGGERS: &str = concat!(
    "
",
    sqlite_count_task!("OLD.owner", "NEW.owner"),
    "
CREATE TRIGGER refrain_count_new_token AFTER INSERT ON refrain_tokens BEGIN
    ",
    sqlite_count!("NEW.owner", "0", token_bytes!("NEW.")),
    "
END;
CREATE TRIGGER refrain_count_token AFTER UPDATE OF bytes ON refrain_tokens BEGIN
    ",
    sqlite_count!("OLD.owner", "0", concat!("- ", token_bytes!("OLD."))),
    "
    ",
    sqlite_count!("NEW.owner", "0", token_bytes!("NEW.")),
    "
END;
CREATE TRIGGER refrain_count_old_token AFTER DELETE ON refrain_tokens BEGIN
    ",
    sqlite_count!("OLD.owner", "0", concat!("- ", token_bytes!("OLD."))),
    "
END;
"
);

/// Triggers that count the records of the replay log. A record without an account was begun by an earlier version, and does
/// not count.
const POSTGRES_COUNT_RECORD: &str = concat!(
    "
CREATE FUNCTION refrain_count_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.account IS NOT NULL THEN
        PERFORM refrain_count(OLD.account, 0, - ",
    record_bytes!("OLD."),
    ");
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.account IS NOT NULL THEN
        PERFORM refrain_count(NEW.account, 0, ",
    record_bytes!("NEW."),
    ");
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER refrain_count AFTER INSERT OR DELETE OR UPDATE OF value, account
    ON refrain_log FOR EACH ROW EXECUTE FUNCTION refrain_count_record();
"
);

const SQLITE_COUNT_RECORD: &str = concat!(
    "
CREATE TRIGGER refrain_count_new_record AFTER INSERT ON refrain_log WHEN NEW.account IS NOT NULL BEGIN
    ",
    sqlite_count!("NEW.account", "0", record_bytes!("NEW.")),
    "
END;
CREATE TRIGGER refrain_uncount_record AFTER UPDATE OF value, account ON refrain_log WHEN OLD.account IS NOT NULL BEGIN
    ",
    sqlite_count!("OLD.account", "0", concat!("- ", record_bytes!("OLD."))),
    "
END;
CREATE TRIGGER refrain_count_record AFTER UPDATE OF value, account ON refrain_log WHEN NEW.account IS NOT NULL BEGIN
    ",
    sqlite_count!("NEW.account", "0", record_bytes!("NEW.")),
    "
END;
CREATE TRIGGER refrain_count_old_record AFTER DELETE ON refrain_log WHEN OLD.account IS NOT NULL BEGIN
    ",
    sqlite_count!("OLD.account", "0", concat!("- ", record_bytes!("OLD."))),
    "
END;
"
);

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

/// The migrations after version `found`, with their versions.
pub(crate) fn pending_migrations(
    found: Option<i64>,
) -> Result<impl Iterator<Item = (i64, &'static Migration)>, OpenStoreError> {
    let (found, known) = (found.unwrap_or(0), MIGRATIONS.len() as i64);
    if found > known {
        return Err(OpenStoreError::Newer { found, known });
    }
    let all = (1..).zip(MIGRATIONS);
    Ok(all.filter(move |(version, _)| *version > found))
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
