//! The outbox in Postgres.

use super::text::encode;
use super::{PgStore, Result};
use crate::sql::{DeliveryRecord, claim_outbox, retry_delivery, trim_outbox};

const CLAIM: &str = claim_outbox!(
    now!(),
    // Usually no delivery is due, and the index on `due` shows it. The subquery hides the current time from the planner,
    // which could otherwise sort all due deliveries.
    concat!(
        "due <= (SELECT ",
        now!(),
        ") AND (SELECT min(due) FROM refrain_outbox WHERE endpoint = $1) <= ",
        now!()
    ),
    "FOR UPDATE SKIP LOCKED",
    // With `IN`, the planner could expect many rows and read the whole table.
    "= ANY (ARRAY(SELECT id FROM found))"
);
pub(super) const RETRY: &str = retry_delivery!(concat!(now!(), " + $4"));
const TRIM: &str = trim_outbox!(now!(), "FOR UPDATE SKIP LOCKED");

impl PgStore {
    pub(super) async fn claim_outbox(
        &self,
        endpoint: &str,
        lease: i64,
        most: i64,
    ) -> Result<Vec<DeliveryRecord>> {
        let claim = sqlx::query_as(CLAIM).bind(encode(endpoint));
        self.fetch(claim.bind(lease).bind(most)).await
    }

    pub(super) async fn trim_deliveries(&self, age: i64, rows: i64, most: i64) -> Result<u64> {
        let trim = sqlx::query_as(TRIM).bind(age).bind(rows).bind(most);
        let deleted: Vec<(i64,)> = self.fetch(trim).await?;
        Ok(deleted.len() as u64)
    }
}

#[cfg(all(test, feature = "test-postgres"))]
mod tests {
    use super::*;
    use crate::test_postgres::TestPostgres;
    use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

    /// With 10,000 deliveries that wait for a retry, a claim reads none of them, also with a generic plan.
    #[tokio::test]
    async fn claim_does_not_read_waiting_deliveries() {
        let postgres = TestPostgres::shared().expect("a Postgres server");
        let url = postgres.database().await.expect("a database");
        drop(PgStore::open(&url).await.expect("it opens"));
        let mut connection = PgConnection::connect(&url).await.expect("it connects");
        let statements = [
            "INSERT INTO refrain_outbox (endpoint, id, task, tool, status, created, ended, due, attempts, turn) \
                SELECT 'one', 'id' || n, 'task', 'tool', 'completed', 0, 0, 9000000000000000, 1, n \
                FROM generate_series(1, 10000) n"
                .to_owned(),
            "ANALYZE refrain_outbox".to_owned(),
            "SET plan_cache_mode = force_generic_plan".to_owned(),
            format!("PREPARE claim AS {CLAIM}"),
        ];
        for statement in statements {
            let done = connection.execute(AssertSqlSafe(statement)).await;
            done.expect("no error");
        }
        assert_read(&mut connection, "(never executed)").await;
        let make_due = "UPDATE refrain_outbox SET due = 1";
        connection.execute(make_due).await.expect("no error");
        assert_read(&mut connection, "(actual rows=10 ").await;
    }

    /// Asserts that a claim reads rows in the order of turns. `actual` is what the plan says about these rows.
    async fn assert_read(connection: &mut PgConnection, actual: &str) {
        let explain = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE claim('one', 1, 10)";
        let plan = connection.fetch_all(explain).await.expect("a plan");
        let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        let by_turn = "Index Scan using refrain_outbox_turn ";
        let found: Vec<&String> = plan.iter().filter(|step| step.contains(by_turn)).collect();
        let plan = plan.join("\n");
        assert!(found.len() == 1 && found[0].contains(actual), "{plan}");
        assert!(
            !plan.contains("Sort") && !plan.contains("Seq Scan"),
            "{plan}"
        );
    }
}
