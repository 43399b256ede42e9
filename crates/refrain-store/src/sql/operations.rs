//! The implementation of the store traits for SQLite and Postgres.

/// Implements [`TaskStore`](crate::TaskStore) and [`ReplayLog`](refrain_core::ReplayLog), each operation within
/// [`TIMEOUT`](super::TIMEOUT). The store must have the inherent methods that are called here, and a sibling module `text`
/// that encodes and decodes text.
macro_rules! impl_store {
    ($store:ident, $database:ident) => {
        use crate::quota::{Quota, RECORD_BYTES, is_anonymous_account};
        use crate::sql::{self, column, run};
        use crate::store::{StoreFuture, TaskStore};
        use crate::task::{
            Claim, ClaimedTask, Commit, CommitResult, Creation, Delivery, Hint, Lease, ListTasks,
            NewTask, Next, OpenAsks, StoredTask, SweepCounts, TaskId, TaskRow,
        };
        use refrain_core::{LogFuture, LogKey, Principal, RecordState, ReplayLog, Retention};
        use std::collections::HashSet;

        impl $store {
            /// Runs a write whose parameters have about this size. Returns its rows after the commit.
            async fn write<T>(
                &self,
                query: QueryAs<'_, $database, T, <$database as sqlx::Database>::Arguments>,
                bytes: usize,
            ) -> Result<Vec<T>>
            where
                T: for<'r> FromRow<'r, <$database as sqlx::Database>::Row> + Send,
            {
                let rows = self.writes.write(query, bytes).await?;
                rows.iter().map(|row| Ok(T::from_row(row)?)).collect()
            }

            /// Like [`write`](Self::write), but returns only the number of rows.
            async fn execute(
                &self,
                query: Query<'_, $database, <$database as sqlx::Database>::Arguments>,
                bytes: usize,
            ) -> Result<usize> {
                Ok(self.writes.write(query, bytes).await?.len())
            }

            async fn commit_task(
                &self,
                lease: &Lease,
                mut commit: Commit,
                number: i64,
                bytes: usize,
            ) -> Result<CommitResult> {
                let (statement, quota) = (tasks::commit_statement(&commit), *self.quota.lock());
                let next = std::mem::replace(&mut commit.next, Next::Keep);
                let next = sql::NextColumns::from(next);
                let query = sqlx::query_as(statement)
                    .bind(lease.task.as_str())
                    .bind(column(lease.fence))
                    .bind(number)
                    .bind(commit.journal.take())
                    .bind(commit.status_message.as_deref().map(text::encode))
                    .bind(next.kind)
                    .bind(next.wait)
                    .bind(next.error.as_deref().map(text::encode))
                    .bind(next.outcome)
                    .bind(commit.progress)
                    .bind(column(sql::bytes_of(&commit.publish)))
                    .bind(column(quota.bytes))
                    .bind(column(quota.total_for(false)))
                    .bind(column(quota.total_for(true)));
                let query = tasks::bind_asks(query, &commit)?;
                sql::commit_result(self.write(query, bytes).await?)
            }

            /// Checks whether the quota allows a write of an account, given in its encoded form.
            async fn check_account(&self, account: &str, tasks: u64, bytes: usize) -> Result<()> {
                let get = sqlx::query_as(sql::USAGE).bind(account);
                let used = sql::usage(&self.fetch(get).await?);
                let account = match account {
                    "" => Principal::anonymous(),
                    account => Principal::new(account),
                };
                let quota = *self.quota.lock();
                Ok(quota.check(used, &account, (tasks, bytes as u64))?)
            }

            /// The error of a write that a quota rejected. [`StoreError::Unavailable`]: the quota allows it now.
            async fn quota_error(&self, account: &str, tasks: u64, bytes: usize) -> StoreError {
                match self.check_account(account, tasks, bytes).await {
                    Err(error) => error,
                    Ok(()) => StoreError::Unavailable(
                        "the account's quota was reached a moment ago; try again".into(),
                    ),
                }
            }

            async fn begin_record(
                &self,
                key: &LogKey,
                account: &Principal,
                retention: Retention,
            ) -> Result<RecordState> {
                let flow = key.flow();
                let name = text::encode_indexed("record name", key.name())?;
                let is_anonymous = is_anonymous_account(account);
                let account = account.id().unwrap_or_default();
                let account = text::encode_indexed("record account", account)?;
                loop {
                    let quota = *self.quota.lock();
                    let begin = sqlx::query(sql::BEGIN_RECORD)
                        .bind(&flow.as_bytes()[..])
                        .bind(&name)
                        .bind(column(retention.until))
                        .bind(column(retention.now))
                        .bind(&account)
                        .bind(column(RECORD_BYTES))
                        .bind(column(quota.bytes))
                        .bind(column(quota.total_for(is_anonymous)));
                    if self.execute(begin, 0).await? > 0 {
                        return Ok(RecordState::Fresh);
                    }
                    let get = sqlx::query_as(sql::GET_RECORD)
                        .bind(&flow.as_bytes()[..])
                        .bind(&name)
                        .bind(column(retention.now));
                    let found: Vec<(Option<String>,)> = self.fetch(get).await?;
                    if let Some((value,)) = found.into_iter().next() {
                        let value = value.map(text::decode);
                        return Ok(value.map_or(RecordState::Begun, RecordState::Done));
                    }
                    // Either the quota rejects the record, or an existing record was deleted in
                    // between. In the second case, try again.
                    self.check_account(&account, 0, RECORD_BYTES).await?;
                }
            }

            /// The error of a commit that wrote nothing: its lease is lost, or a limit is reached.
            async fn commit_error(&self, lease: &Lease, number: i64, bytes: usize) -> StoreError {
                let get = sqlx::query_as(sql::COMMITTABLE_ACCOUNT).bind(lease.task.as_str());
                let get = get.bind(column(lease.fence)).bind(number);
                match self.fetch::<(String,)>(get).await {
                    Ok(account) => match account.first() {
                        Some((account,)) => self.quota_error(account, 0, bytes).await,
                        None => StoreError::Lost,
                    },
                    Err(error) => error,
                }
            }
        }

        impl TaskStore for $store {
            fn set_quota(&self, quota: Quota) {
                *self.quota.lock() = quota;
            }

            fn create(&self, new: NewTask) -> StoreFuture<'_, Creation> {
                run(async move {
                    let owner = new.owner.id();
                    let owner = owner.map(|id| text::encode_indexed("task owner", id));
                    let owner = owner.transpose()?;
                    let account = new.account.id();
                    let account = account.map(|id| text::encode_indexed("task account", id));
                    let account = account.transpose()?;
                    let (worker, lease) = match &new.claimed {
                        Some((worker, lease)) => (Some(text::encode(worker)), micros(*lease)),
                        None => (None, 0),
                    };
                    let quota = *self.quota.lock();
                    let size = new.call.len() + new.journal.len();
                    let endpoints = new.webhooks.iter().map(|name| text::encode(name));
                    let insert = sqlx::query_as(tasks::INSERT)
                        .bind(new.id.as_str())
                        .bind(&new.flow.as_bytes()[..])
                        .bind(&owner)
                        .bind(text::encode(&new.tool))
                        .bind(&new.call)
                        .bind(&new.journal)
                        .bind(new.status_message.as_deref().map(text::encode))
                        .bind(micros(new.ttl))
                        .bind(micros(new.poll_interval))
                        .bind(lease)
                        .bind(worker)
                        .bind(column(size))
                        .bind(column(quota.tasks))
                        .bind(column(quota.bytes))
                        .bind(column(quota.total_for(new.owner.id().is_none())))
                        .bind(&account)
                        .bind(sql::endpoint_list(endpoints));
                    let Some(created) = self.insert(&new, insert, size).await? else {
                        let get = sqlx::query_as(sql::GET_EXISTING)
                            .bind(&owner)
                            .bind(new.id.as_str())
                            .bind(&new.flow.as_bytes()[..]);
                        let existing = sql::task_rows(self.fetch(get).await?, text::decode);
                        if let Some(existing) = existing.into_iter().next() {
                            return Ok(Creation::Existing(existing.task));
                        }
                        if self.find(&new.id).await?.is_some() {
                            return Err(StoreError::IdInUse);
                        }
                        let account = account.as_deref().unwrap_or_default();
                        return Err(self.quota_error(account, 1, size).await);
                    };
                    Ok(sql::new_task(new, created))
                })
            }

            fn get<'a>(
                &'a self,
                id: &'a TaskId,
                owner: &'a Principal,
            ) -> StoreFuture<'a, Option<StoredTask>> {
                run(async move {
                    let owner = owner.id().map(text::encode);
                    let get = sqlx::query_as(sql::GET).bind(id.as_str()).bind(owner);
                    let rows = sql::task_rows(self.fetch(get).await?, text::decode);
                    Ok(rows.into_iter().next().map(|row| row.task))
                })
            }

            fn open_asks<'a>(
                &'a self,
                id: &'a TaskId,
                owner: &'a Principal,
                keys: &'a [&'a str],
            ) -> StoreFuture<'a, Option<OpenAsks>> {
                run(async move {
                    let get = sqlx::query_as(tasks::OPEN_ASKS)
                        .bind(id.as_str())
                        .bind(owner.id().map(text::encode))
                        .bind(tasks::key_list(keys));
                    Ok(sql::open_asks(self.fetch(get).await?, text::decode))
                })
            }

            fn answer<'a>(
                &'a self,
                id: &'a TaskId,
                owner: &'a Principal,
                mut answers: Vec<(String, Vec<u8>)>,
            ) -> StoreFuture<'a, bool> {
                // If a key has several answers, the first is used.
                let mut seen = HashSet::new();
                answers.retain(|(key, _)| seen.insert(key.clone()));
                if answers.is_empty() {
                    // An empty list stores nothing, so no quota applies.
                    return run(async move { Ok(self.open_asks(id, owner, &[]).await?.is_some()) });
                }
                run(self.answer_task(id, owner, answers))
            }

            fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool> {
                run(self.cancel_task(id, owner))
            }

            fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<ClaimedTask>> {
                run(async move {
                    let (mut claimed, unread) =
                        sql::claimed_tasks(self.claim_tasks(claim).await?, text::decode)?;
                    if !unread.is_empty() {
                        let get = sqlx::query_as(tasks::ANSWERS_OF).bind(tasks::id_list(&unread));
                        sql::add_answers(&mut claimed, self.fetch(get).await?, text::decode);
                    }
                    Ok(claimed)
                })
            }

            fn extend<'a>(
                &'a self,
                leases: &'a [Lease],
                lease: Duration,
            ) -> StoreFuture<'a, Vec<Lease>> {
                run(self.extend_leases(leases, lease))
            }

            fn commit<'a>(
                &'a self,
                lease: &'a Lease,
                commit: Commit,
            ) -> StoreFuture<'a, CommitResult> {
                run(async move {
                    let is_visible = commit.is_visible();
                    let is_handed_on = matches!(commit.next, Next::HandOn);
                    let is_suspended = matches!(commit.next, Next::Suspend(_));
                    let journal = commit.journal.as_ref().map_or(0, Vec::len);
                    let (number, bytes) = (sql::next_commit(), journal + commit.new_bytes());
                    let committed = match self.commit_task(lease, commit, number, bytes).await {
                        Err(StoreError::Lost) if bytes > 0 => {
                            return Err(self.commit_error(lease, number, bytes).await);
                        }
                        committed => committed?,
                    };
                    let due = is_handed_on || (is_suspended && committed.answers);
                    if is_visible || due {
                        self.hint(&lease.task, due, true);
                    }
                    Ok(committed)
                })
            }

            fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
                run(async move {
                    let get = sqlx::query_as(sql::ANSWERS).bind(lease.task.as_str());
                    let records = self.fetch(get.bind(column(lease.fence))).await?;
                    sql::answers(records, text::decode)
                })
            }

            fn revisions<'a>(&'a self, ids: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>> {
                run(async move {
                    let ids: Vec<String> = ids.iter().map(TaskId::to_string).collect();
                    let get = sqlx::query_as(tasks::REVISIONS).bind(tasks::id_list(&ids));
                    let found: Vec<(String, i64)> = self.fetch(get).await?;
                    let revision =
                        |(id, revision): (_, i64)| (TaskId::stored(id), revision.unsigned_abs());
                    Ok(found.into_iter().map(revision).collect())
                })
            }

            fn hints(&self) -> broadcast::Receiver<Hint> {
                self.hints.subscribe()
            }

            fn check_quota<'a>(
                &'a self,
                account: &'a Principal,
                bytes: usize,
            ) -> StoreFuture<'a, ()> {
                run(async move {
                    let account = account.id().unwrap_or_default();
                    let account = text::encode_indexed("token account", account)?;
                    self.check_account(&account, 0, bytes).await
                })
            }

            fn spill<'a>(
                &'a self,
                id: &'a str,
                account: &'a Principal,
                token: Vec<u8>,
                keep: Duration,
            ) -> StoreFuture<'a, ()> {
                run(async move {
                    let id = text::encode_indexed("token id", id)?;
                    let is_anonymous = is_anonymous_account(account);
                    let account = account.id();
                    let account = account.map(|id| text::encode_indexed("token account", id));
                    let account = account.transpose()?;
                    let (quota, size) = (*self.quota.lock(), token.len());
                    let spill = sqlx::query(tasks::SPILL)
                        .bind(id)
                        .bind(token)
                        .bind(tasks::until(keep))
                        .bind(&account)
                        .bind(column(size))
                        .bind(column(quota.bytes))
                        .bind(column(quota.total_for(is_anonymous)));
                    if self.execute(spill, size).await? == 0 {
                        let account = account.as_deref().unwrap_or_default();
                        return Err(self.quota_error(account, 0, size).await);
                    }
                    Ok(())
                })
            }

            fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
                run(self.spilled_token(id))
            }

            fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, SweepCounts> {
                run(self.sweep_all(micros(keep), column(most)))
            }

            fn claim_deliveries<'a>(
                &'a self,
                endpoint: &'a str,
                lease: Duration,
                most: usize,
            ) -> StoreFuture<'a, Vec<Delivery>> {
                run(async move {
                    let claimed = self.claim_outbox(endpoint, micros(lease), column(most));
                    sql::deliveries(endpoint, claimed.await?, text::decode)
                })
            }

            fn finish_delivery<'a>(
                &'a self,
                delivery: &'a Delivery,
                retry: Option<Duration>,
            ) -> StoreFuture<'a, ()> {
                run(async move {
                    let endpoint = text::encode(&delivery.endpoint);
                    let finish = match retry {
                        Some(wait) => sqlx::query(outbox::RETRY)
                            .bind(endpoint)
                            .bind(&delivery.id)
                            .bind(i64::from(delivery.attempt))
                            .bind(tasks::until(wait)),
                        None => sqlx::query(sql::DELETE_DELIVERY)
                            .bind(endpoint)
                            .bind(&delivery.id),
                    };
                    self.execute(finish, 0).await.map(drop)
                })
            }

            fn trim_outbox(&self, age: Duration, rows: usize, most: usize) -> StoreFuture<'_, u64> {
                run(self.trim_deliveries(micros(age), column(rows), column(most)))
            }

            fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>> {
                run(async move {
                    let query = sqlx::query_as(sql::LIST)
                        .bind(list.status.map(|status| status.as_str()))
                        .bind(list.tool.as_deref().map(text::encode))
                        .bind(column(list.most));
                    Ok(sql::task_rows(self.fetch(query).await?, text::decode))
                })
            }

            fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
                run(async move {
                    let find = sqlx::query_as(sql::FIND).bind(id.as_str());
                    Ok(sql::task_rows(self.fetch(find).await?, text::decode).pop())
                })
            }

            fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
                run(async move {
                    self.requeue_task(id).await?;
                    self.find(id).await
                })
            }
        }

        impl ReplayLog for $store {
            fn begin<'a>(
                &'a self,
                key: &'a LogKey,
                account: &'a Principal,
                retention: Retention,
            ) -> LogFuture<'a, RecordState> {
                run(self.begin_record(key, account, retention))
            }

            fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()> {
                run(async move {
                    let (flow, name) = (key.flow(), text::encode(key.name()));
                    let finish = sqlx::query(sql::FINISH_RECORD).bind(&flow.as_bytes()[..]);
                    let finish = finish.bind(name).bind(text::encode(value));
                    self.execute(finish, value.len()).await.map(drop)
                })
            }

            fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()> {
                run(async move {
                    let (flow, name) = (key.flow(), text::encode(key.name()));
                    let delete = sqlx::query(sql::DELETE_RECORD).bind(&flow.as_bytes()[..]);
                    self.execute(delete.bind(name), 0).await.map(drop)
                })
            }
        }

        impl std::fmt::Debug for $store {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($store)).finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use impl_store;
