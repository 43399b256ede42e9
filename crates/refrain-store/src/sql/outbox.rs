//! Statements and rows of the outbox. A trigger of the table of tasks adds the rows.

use super::rows::{attempts, system_time};
use crate::store::StoreError;
use crate::task::{Delivery, StoredStatus, TaskId};

/// Claims due deliveries to the endpoint `$1` for `$2` microseconds, at most `$3`. The callers take turns. `$is_due` is the
/// condition for due rows, written so that the database reads them in the order of turns and does not sort all of them. `$found`
/// matches the ids of the query `found`.
macro_rules! claim_outbox {
    ($now:expr, $is_due:expr, $lock:literal, $found:literal) => {
        concat!(
            // Materialized, so that the limit applies once.
            "WITH found AS MATERIALIZED (
                SELECT id FROM refrain_outbox WHERE endpoint = $1 AND ",
            $is_due,
            "
                ORDER BY turn, due LIMIT $3 ",
            $lock,
            ")
            UPDATE refrain_outbox SET due = ",
            $now,
            " + $2, attempts = attempts + 1
            WHERE endpoint = $1 AND id ",
            $found,
            "
            RETURNING id, task, tool, status, created, ended, attempts"
        )
    };
}

/// Makes the delivery `$2` to the endpoint `$1` due at `$due`, unless it was claimed again after the claim `$3`.
macro_rules! retry_delivery {
    ($due:expr) => {
        concat!(
            "UPDATE refrain_outbox SET due = ",
            $due,
            " WHERE endpoint = $1 AND id = $2 AND attempts = $3 RETURNING 1"
        )
    };
}

/// Deletes deliveries older than `$1`, and those over `$2` rows, at most `$3` in total. The caller with the most rows loses its
/// oldest ones first.
macro_rules! trim_outbox {
    ($now:expr, $lock:literal) => {
        concat!(
            // The rows to keep are counted in a separate query, which does not lock them.
            "DELETE FROM refrain_outbox WHERE (endpoint, id) IN (
                SELECT endpoint, id FROM refrain_outbox WHERE ended <= ", $now, " - $1 OR (endpoint, id) IN (
                    SELECT endpoint, id FROM (
                        SELECT endpoint, id, ended, row_number() OVER (PARTITION BY account ORDER BY ended DESC) AS newer
                        FROM refrain_outbox) AS counted
                    ORDER BY newer DESC, ended
                    LIMIT (SELECT CASE WHEN count(*) > $2 THEN count(*) - $2 ELSE 0 END FROM refrain_outbox))
                ORDER BY ended LIMIT $3 ", $lock, ")
            RETURNING CAST(1 AS BIGINT)"
        )
    };
}

pub(crate) use {claim_outbox, retry_delivery, trim_outbox};

pub(crate) const DELETE_DELIVERY: &str =
    "DELETE FROM refrain_outbox WHERE endpoint = $1 AND id = $2";

/// The endpoints as a JSON array, for the column `webhooks`. `None`: there are none.
pub(crate) fn endpoint_list(endpoints: impl Iterator<Item: AsRef<str>>) -> Option<String> {
    let quote = |name: _| serde_json::Value::from(AsRef::<str>::as_ref(&name)).to_string();
    let quoted: Vec<String> = endpoints.map(quote).collect();
    (!quoted.is_empty()).then(|| format!("[{}]", quoted.join(",")))
}

/// The columns of a claimed delivery.
pub(crate) type DeliveryRecord = (String, String, String, String, i64, i64, i64);

pub(crate) fn deliveries(
    endpoint: &str,
    records: Vec<DeliveryRecord>,
    decode: super::DecodeText,
) -> Result<Vec<Delivery>, StoreError> {
    let delivery = |(id, task, tool, status, created, ended, attempt): DeliveryRecord| {
        let status = StoredStatus::parse(&status).ok_or_else(|| {
            StoreError::Corrupt(format!("unknown status {status:?} in the outbox").into())
        })?;
        Ok::<_, StoreError>(Delivery {
            endpoint: endpoint.to_owned(),
            id,
            task: TaskId::stored(task),
            tool: decode(tool),
            status,
            created: system_time(created),
            ended: system_time(ended),
            attempt: attempts(attempt),
        })
    };
    let mut deliveries: Vec<Delivery> = records
        .into_iter()
        .map(delivery)
        .collect::<Result<_, _>>()?;
    // The order of returned rows is undefined.
    deliveries.sort_by_key(|delivery| delivery.ended);
    Ok(deliveries)
}
