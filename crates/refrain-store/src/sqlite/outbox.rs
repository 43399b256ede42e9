//! The outbox in SQLite.

use super::{Result, SqliteStore, now};
use crate::sql::{DeliveryRecord, claim_outbox, retry_delivery, trim_outbox};

// The `+` excludes the index on `due`.
const CLAIM: &str = claim_outbox!("$4", "+due <= $4", "", "IN (SELECT id FROM found)");
pub(super) const RETRY: &str = retry_delivery!("$4");
const TRIM: &str = trim_outbox!("$4", "");
const IS_DUE: &str =
    "SELECT EXISTS (SELECT 1 FROM refrain_outbox WHERE endpoint = $1 AND due <= $2)";
const IS_EMPTY: &str = "SELECT NOT EXISTS (SELECT 1 FROM refrain_outbox)";

impl SqliteStore {
    pub(super) async fn claim_outbox(
        &self,
        endpoint: &str,
        lease: i64,
        most: i64,
    ) -> Result<Vec<DeliveryRecord>> {
        // Usually no delivery is due, and reading does not wait for the writer.
        let due = sqlx::query_scalar(IS_DUE).bind(endpoint).bind(now());
        if !due.fetch_one(&self.readers).await? {
            return Ok(Vec::new());
        }
        let claim = sqlx::query_as(CLAIM).bind(endpoint).bind(lease);
        self.write(claim.bind(most).bind(now()), 0).await
    }

    pub(super) async fn trim_deliveries(&self, age: i64, rows: i64, most: i64) -> Result<u64> {
        if sqlx::query_scalar(IS_EMPTY)
            .fetch_one(&self.readers)
            .await?
        {
            return Ok(0);
        }
        let trim = sqlx::query(TRIM).bind(age).bind(rows).bind(most);
        Ok(self.execute(trim.bind(now()), 0).await? as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::AssertSqlSafe;

    #[tokio::test]
    async fn claim_reads_due_deliveries_in_their_order() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let store = SqliteStore::open(dir.path().join("refrain.db")).await;
        let store = store.expect("it opens");
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {CLAIM}"));
        let explain = sqlx::query_as(explain).bind("one").bind(1_i64);
        let explain = explain.bind(10_i64).bind(now());
        let plan: Vec<(i64, i64, i64, String)> = store.fetch(explain).await.expect("a plan");
        let plan: Vec<&str> = plan.iter().map(|step| step.3.as_str()).collect();
        let found = "SEARCH refrain_outbox USING INDEX refrain_outbox_turn (endpoint=?)";
        assert!(plan.contains(&found), "{plan:?}");
        let sorts = plan.iter().any(|step| step.contains("ORDER BY"));
        assert!(!sorts, "{plan:?}");
    }
}
