//! The outbox in Postgres.

use super::text::encode;
use super::{PgStore, Result};
use crate::sql::{DeliveryRecord, claim_outbox, retry_delivery, trim_outbox};

const CLAIM: &str = claim_outbox!(now!(), "FOR UPDATE SKIP LOCKED");
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
