//! Group commit: writes that are queued at the same time share one transaction.
//!
//! A write is one query; its caller gets the result after the commit. If a query fails, the transaction is rolled back, and
//! its writes run again in a transaction each, so that only the failing one gets the error. This costs nothing while no
//! query fails, unlike a savepoint for each. If the commit fails, all writes get its error.
//!
//! Small writes do not wait for queued large ones: a transaction of small writes takes no large
//! one. While small writes fill whole transactions, a large write follows each of these. The
//! single writing connection of SQLite also pauses large writes after each transaction with a
//! large one, if small writes were queued since the last such transaction. So a caller with many large writes hardly
//! delays the small writes of others.
//!
//! A queued write whose caller no longer waits is dropped. A write that was added to a transaction is run in any case.

use crate::store::StoreError;
use sqlx::query::Query;
use sqlx::{Connection, Database, Execute, IntoArguments, SqlStr};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The maximum number of writes in a transaction.
const MAX_WRITES: usize = 128;
/// The size of a transaction, in bytes, after which no other write is added.
const MAX_BYTES: usize = 1 << 20;
/// The size in bytes from which a write counts as large.
const LARGE: usize = 64 << 10;
/// The longest pause of large writes.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// How often a transaction tries to get the write lock of another process. A short wait finds the moment between two
/// transactions of a busy process.
const LOCK_POLL: Duration = Duration::from_millis(2);
/// SQLite's primary error code while another connection holds the lock.
const SQLITE_BUSY: u32 = 5;
/// The maximum number of queued writes.
const MAX_QUEUED: usize = 1024;

/// A database with transactions for several writes.
pub(crate) trait GroupCommit: Database<Arguments: Clone + IntoArguments<Self>> {
    /// The statement that begins a transaction.
    const BEGIN: &'static str;
    /// The pause of large writes after a transaction with one, as a multiple of that transaction's
    /// duration.
    const LARGE_PAUSE_FACTOR: u32;
    /// How long a transaction waits for the write lock of another process.
    const LOCK_TIMEOUT: Duration;
    /// Whether a single write runs without [`BEGIN`](Self::BEGIN), in an implicit transaction.
    const IMPLICIT: bool;

    fn fetch(
        connection: &mut Self::Connection,
        query: Query<'static, Self, Self::Arguments>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, sqlx::Error>> + Send;
}

/// A write that waits for its transaction.
struct QueuedWrite<DB: GroupCommit> {
    sql: SqlStr,
    arguments: DB::Arguments,
    bytes: usize,
    reply: oneshot::Sender<Result<Vec<DB::Row>>>,
}

impl<DB: GroupCommit> QueuedWrite<DB> {
    fn query(&self) -> Query<'static, DB, DB::Arguments> {
        sqlx::query_with(self.sql.clone(), self.arguments.clone())
    }

    fn is_large(&self) -> bool {
        self.bytes >= LARGE
    }

    fn reply(self, done: Result<Vec<DB::Row>>) {
        // Fails if the caller no longer waits.
        let _ = self.reply.send(done);
    }
}

/// Queues the writes of a store.
pub(crate) struct WriteSender<DB: GroupCommit> {
    small: mpsc::Sender<QueuedWrite<DB>>,
    large: mpsc::Sender<QueuedWrite<DB>>,
}

/// Takes queued writes.
struct WriteReceiver<DB: GroupCommit> {
    small: mpsc::Receiver<QueuedWrite<DB>>,
    large: mpsc::Receiver<QueuedWrite<DB>>,
    /// Bytes of small writes since the last large one. Each write counts as at least its share of a transaction.
    small_bytes: usize,
    /// The end of the pause of large writes.
    large_paused_until: Instant,
    /// Whether a small write was taken since the end of the last transaction with a large one.
    has_small: bool,
}

impl<DB: GroupCommit> WriteReceiver<DB> {
    /// Waits for the next write whose caller waits. `None`: the store was dropped.
    async fn next(&mut self) -> Option<QueuedWrite<DB>> {
        loop {
            if let Some(write) = self.try_next(true) {
                return Some(write);
            }
            let large = async {
                sleep_until(self.large_paused_until).await;
                self.large.recv().await
            };
            let write = tokio::select! {
                Some(write) = self.small.recv() => write,
                Some(write) = large => write,
                else => return None,
            };
            if !write.reply.is_closed() {
                return Some(self.count(write));
            }
        }
    }

    /// The next write whose caller waits, if there is one. A large one only if `allow_large`, and after their pause.
    fn try_next(&mut self, allow_large: bool) -> Option<QueuedWrite<DB>> {
        loop {
            let write = self.try_take(allow_large)?;
            if !write.reply.is_closed() {
                return Some(self.count(write));
            }
        }
    }

    fn try_take(&mut self, allow_large: bool) -> Option<QueuedWrite<DB>> {
        let mut large = || match allow_large && Instant::now() >= self.large_paused_until {
            true => self.large.try_recv().ok(),
            false => None,
        };
        if self.small_bytes < MAX_BYTES {
            self.small.try_recv().ok().or_else(large)
        } else {
            large().or_else(|| self.small.try_recv().ok())
        }
    }

    /// Pauses large writes after a transaction with one. Without small writes, a pause would only delay.
    fn pause_large(&mut self, pause: Duration) {
        if std::mem::take(&mut self.has_small) || !self.small.is_empty() {
            self.large_paused_until = Instant::now() + pause.min(MAX_PAUSE);
        }
    }

    fn count(&mut self, write: QueuedWrite<DB>) -> QueuedWrite<DB> {
        self.has_small |= !write.is_large();
        self.small_bytes = match write.is_large() {
            true => 0,
            false => self
                .small_bytes
                .saturating_add(write.bytes.max(MAX_BYTES / MAX_WRITES)),
        };
        write
    }
}

impl<DB: GroupCommit> WriteSender<DB> {
    pub(crate) fn new() -> (Self, SharedReceiver<DB>) {
        let (small, small_receiver) = mpsc::channel(MAX_QUEUED);
        let (large, large_receiver) = mpsc::channel(MAX_QUEUED);
        let receiver = WriteReceiver {
            small: small_receiver,
            large: large_receiver,
            small_bytes: 0,
            large_paused_until: Instant::now(),
            has_small: false,
        };
        let receiver = SharedReceiver(Arc::new(Mutex::new(receiver)));
        (Self { small, large }, receiver)
    }

    /// Queues a write with parameters of about this size, and returns its rows after the commit.
    pub(crate) async fn write<'q>(
        &self,
        mut query: impl Execute<'q, DB>,
        bytes: usize,
    ) -> Result<Vec<DB::Row>> {
        let arguments = query.take_arguments().map_err(StoreError::Failed)?;
        let (reply, done) = oneshot::channel();
        let write = QueuedWrite {
            sql: query.sql(),
            arguments: arguments.unwrap_or_default(),
            bytes,
            reply,
        };
        let stopped = || StoreError::Unavailable("the writer of the store has stopped".into());
        let queue = match bytes < LARGE {
            true => &self.small,
            false => &self.large,
        };
        queue.send(write).await.map_err(|_| stopped())?;
        done.await.map_err(|_| stopped())?
    }
}

/// The receiver of the queued writes, for one or more connections that write.
pub(crate) struct SharedReceiver<DB: GroupCommit>(Arc<Mutex<WriteReceiver<DB>>>);

impl<DB: GroupCommit> Clone for SharedReceiver<DB> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<DB: GroupCommit> SharedReceiver<DB> {
    /// Waits for the next writes. `None`: the store was dropped.
    pub(crate) async fn next(&self) -> Option<WriteBatch<DB>> {
        let first = self.0.lock().await.next().await?;
        let mut batch = WriteBatch {
            receiver: self.clone(),
            bytes: first.bytes,
            writes: vec![first],
            begun: None,
        };
        while batch.take_write() {}
        Some(batch)
    }
}

/// Writes that share a transaction.
pub(crate) struct WriteBatch<DB: GroupCommit> {
    receiver: SharedReceiver<DB>,
    writes: Vec<QueuedWrite<DB>>,
    bytes: usize,
    /// When the transaction began, after the wait for a lock.
    begun: Option<Instant>,
}

impl<DB: GroupCommit> WriteBatch<DB> {
    /// Adds a queued write, if there is one and the batch is not full.
    fn take_write(&mut self) -> bool {
        if self.writes.len() >= MAX_WRITES || self.bytes >= MAX_BYTES {
            return false;
        }
        let has_large = self.writes.iter().any(QueuedWrite::is_large);
        // If another connection waits for a write, it has the lock, and gets the next write.
        let next = self.receiver.0.try_lock().ok();
        let Some(write) = next.and_then(|mut receiver| receiver.try_next(has_large)) else {
            return false;
        };
        self.bytes += write.bytes;
        self.writes.push(write);
        true
    }

    /// Commits the writes and replies to them. After an error the state of the connection is unknown.
    pub(crate) async fn commit(&mut self, connection: &mut DB::Connection) -> Result<()> {
        let has_large = self.writes.iter().any(QueuedWrite::is_large);
        let committed = self.commit_writes(connection).await;
        if has_large
            && DB::LARGE_PAUSE_FACTOR > 0
            && let Some(begun) = self.begun
        {
            let pause = begun.elapsed().saturating_mul(DB::LARGE_PAUSE_FACTOR);
            self.receiver.0.lock().await.pause_large(pause);
        }
        committed
    }

    async fn commit_writes(&mut self, connection: &mut DB::Connection) -> Result<()> {
        match self.run(connection).await {
            Ok(Err(_)) if self.writes.len() > 1 => {
                let mut done = Ok(());
                for write in std::mem::take(&mut self.writes) {
                    let mut alone = Self {
                        receiver: self.receiver.clone(),
                        // No other write is added.
                        bytes: MAX_BYTES,
                        writes: vec![write],
                        begun: None,
                    };
                    let results = alone.run(connection).await;
                    done = done.and(alone.reply(results.flatten().map_err(StoreError::from)));
                }
                done
            }
            results => self.reply(results.flatten().map_err(StoreError::from)),
        }
    }

    /// Runs the writes in a transaction, and others that are queued meanwhile. Returns their rows.
    /// The inner error is that of a failed write, whose transaction was rolled back. After an
    /// outer error, the state of the connection is unknown.
    async fn run(
        &mut self,
        connection: &mut DB::Connection,
    ) -> Result<Result<Vec<Vec<DB::Row>>, sqlx::Error>, sqlx::Error> {
        if DB::IMPLICIT && self.writes.len() == 1 {
            let rows = DB::fetch(connection, self.writes[0].query()).await;
            return Ok(rows.map(|rows| vec![rows]));
        }
        let deadline = Instant::now() + DB::LOCK_TIMEOUT;
        let mut tx = loop {
            match connection.begin_with(SqlStr::from_static(DB::BEGIN)).await {
                Ok(tx) => break tx,
                Err(error) if is_locked(&error) && Instant::now() < deadline => {
                    sleep(LOCK_POLL).await;
                }
                Err(error) => return Err(error),
            }
        };
        self.begun = Some(Instant::now());
        let mut results = Vec::with_capacity(self.writes.len());
        while results.len() < self.writes.len() || self.take_write() {
            match DB::fetch(&mut tx, self.writes[results.len()].query()).await {
                Ok(rows) => results.push(rows),
                Err(error) => {
                    return match tx.rollback().await {
                        Ok(()) => Ok(Err(error)),
                        Err(_) => Err(error),
                    };
                }
            }
        }
        tx.commit().await?;
        Ok(Ok(results))
    }

    /// Replies to the writes with their rows, or with this error.
    pub(crate) fn reply(&mut self, results: Result<Vec<Vec<DB::Row>>>) -> Result<()> {
        match results {
            Ok(results) => {
                for (write, rows) in self.writes.drain(..).zip(results) {
                    write.reply(Ok(rows));
                }
                Ok(())
            }
            Err(error) => {
                for write in self.writes.drain(..) {
                    write.reply(Err(copy_error(&error)));
                }
                Err(error)
            }
        }
    }
}

/// Whether another process holds the write lock of a SQLite file. The lower byte of the error code
/// is SQLite's primary code.
fn is_locked(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| {
        code.parse()
            .is_ok_and(|code: u32| code & 0xff == SQLITE_BUSY)
    })
}

/// Copies an error, with the message of its source.
fn copy_error(error: &StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(source) => StoreError::Unavailable(source.to_string().into()),
        StoreError::Corrupt(source) => StoreError::Corrupt(source.to_string().into()),
        StoreError::Failed(source) => StoreError::Failed(source.to_string().into()),
        error => StoreError::Failed(error.to_string().into()),
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use sqlx::{Executor, Sqlite};
    use std::future::poll_fn;
    use std::task::Poll;
    use tokio::task::{spawn_blocking, unconstrained, yield_now};
    use tokio::time::advance;

    /// The writes of these sizes by transaction, all queued before the first one: "s" for a small write, "L" for a large one.
    async fn transactions(sizes: impl IntoIterator<Item = usize>) -> Vec<String> {
        let (sender, receiver) = WriteSender::<Sqlite>::new();
        let write = |bytes| {
            let sql = if bytes < LARGE { "s" } else { "L" };
            sender.write(sqlx::query::<Sqlite>(sql), bytes)
        };
        let mut writes: Vec<_> = sizes
            .into_iter()
            .map(|bytes| Box::pin(unconstrained(write(bytes))))
            .collect();
        for write in &mut writes {
            let is_queued = poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx).is_pending()));
            assert!(is_queued.await, "it waits for its commit");
        }
        let mut taken = 0;
        let mut transactions = Vec::new();
        while taken < writes.len() {
            let batch = receiver.next().await.expect("a batch");
            taken += batch.writes.len();
            let names = batch.writes.iter().map(|write| write.sql.as_str());
            transactions.push(names.collect());
        }
        transactions
    }

    #[tokio::test]
    async fn small_write_does_not_wait_for_queued_large_writes() {
        let large = [4 << 20; 5];
        let expected = ["s", "L", "L", "L", "L", "L"];
        assert_eq!(transactions(large.into_iter().chain([10])).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn small_write_does_not_wait_for_the_pause_of_large_ones() {
        let (sender, receiver) = WriteSender::<Sqlite>::new();
        let from = Instant::now() + MAX_PAUSE;
        receiver.0.lock().await.large_paused_until = from;
        let writes = async {
            let large = sender.write(sqlx::query::<Sqlite>("L"), LARGE);
            let small = sender.write(sqlx::query::<Sqlite>("s"), 10);
            tokio::join!(large, small)
        };
        let next = async || receiver.next().await.expect("a batch").writes.remove(0);
        let taken = async {
            let small = next().await;
            assert_eq!(small.sql.as_str(), "s");
            assert!(Instant::now() < from);
            let large = next().await;
            assert_eq!(large.sql.as_str(), "L");
            assert!(Instant::now() >= from);
        };
        let (writes, ()) = tokio::join!(writes, taken);
        assert!(writes.0.is_err() && writes.1.is_err(), "not committed");
    }

    /// Commits a large write, while a small one is queued if `has_small`. Returns the pause of large writes after it, if there is
    /// one.
    async fn pause_after_large(
        connection: &mut sqlx::SqliteConnection,
        has_small: bool,
    ) -> Option<Duration> {
        let (sender, receiver) = WriteSender::<Sqlite>::new();
        let before = receiver.0.lock().await.large_paused_until;
        let write = |bytes| sender.write(sqlx::query::<Sqlite>("SELECT 1"), bytes);
        let small = async {
            yield_now().await;
            match has_small {
                true => write(10).await,
                false => Ok(Vec::new()),
            }
        };
        let writes = async {
            let written = tokio::join!(write(LARGE), small);
            assert!(written.0.is_ok() && written.1.is_ok());
            std::future::pending::<()>().await;
        };
        let commit = async {
            let mut batch = receiver.next().await.expect("a batch");
            assert!(batch.writes[0].is_large());
            batch.commit(connection).await.expect("it commits");
            let from = receiver.0.lock().await.large_paused_until;
            (from != before).then(|| from.saturating_duration_since(Instant::now()))
        };
        tokio::select! {
            biased;
            () = writes => unreachable!("it is pending"),
            pause = commit => pause,
        }
    }

    #[tokio::test]
    async fn large_writes_pause_only_for_small_ones() {
        let mut connection = memory().await;
        assert!(pause_after_large(&mut connection, true).await.is_some());
        assert!(pause_after_large(&mut connection, false).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn pause_does_not_include_the_wait_for_a_lock() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let url = format!("sqlite:{}?mode=rwc", dir.path().join("a.db").display());
        let connect = async || {
            sqlx::SqliteConnection::connect(&url)
                .await
                .expect("it opens")
        };
        let (mut connection, mut other) = (connect().await, connect().await);
        connection
            .execute("PRAGMA busy_timeout = 0")
            .await
            .expect("no error");
        other.execute("BEGIN IMMEDIATE").await.expect("it locks");
        // While a blocking task runs, the clock does not advance by itself.
        let (end, ended) = std::sync::mpsc::channel::<()>();
        spawn_blocking(move || ended.recv());
        let release = async {
            advance(Duration::from_secs(1)).await;
            other.execute("COMMIT").await.expect("it unlocks");
            drop(end);
        };
        let (pause, ()) = tokio::join!(pause_after_large(&mut connection, true), release);
        assert_eq!(pause, Some(Duration::ZERO));
    }

    #[tokio::test]
    async fn write_without_a_caller_is_dropped() {
        let (sender, receiver) = WriteSender::<Sqlite>::new();
        let write = |sql| sender.write(sqlx::query::<Sqlite>(sql), 10);
        for sql in ["first", "second"] {
            let mut abandoned = Box::pin(write(sql));
            let queued = poll_fn(|cx| Poll::Ready(abandoned.as_mut().poll(cx).is_pending()));
            assert!(queued.await, "it waits for its commit");
        }
        let taken = async {
            let batch = receiver.next().await.expect("a batch");
            let writes = batch.writes.iter().map(|write| write.sql.as_str());
            writes.collect::<String>()
        };
        let (_, taken) = tokio::join!(write("third"), taken);
        assert_eq!(taken, "third");
    }

    async fn memory() -> sqlx::SqliteConnection {
        let memory = sqlx::SqliteConnection::connect("sqlite::memory:").await;
        memory.expect("it opens")
    }

    #[tokio::test]
    async fn large_write_waits_for_one_transaction_of_small_writes() {
        for small in [vec![10; 400], vec![LARGE - 1; 400]] {
            let found = transactions([4 << 20].into_iter().chain(small)).await;
            let large = found.iter().position(|writes| writes.contains('L'));
            assert!(matches!(large, Some(0..=1)), "{found:?}");
        }
    }
}
