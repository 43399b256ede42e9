//! The traits of a store, implemented by inherent methods.

/// Implements [`TaskStore`](crate::TaskStore) and [`ReplayLog`](refrain_core::ReplayLog) by the inherent methods of a
/// store, each within [`TIMEOUT`].
macro_rules! impl_store {
    ($store:ty) => {
        impl TaskStore for $store {
            fn create(&self, new: NewTask) -> StoreFuture<'_, Created> {
                Box::pin(within(self.create_task(new)))
            }

            fn get<'a>(
                &'a self,
                id: &'a TaskId,
                owner: &'a Principal,
            ) -> StoreFuture<'a, Option<Task>> {
                Box::pin(within(self.get_task(id, owner)))
            }

            fn answer<'a>(
                &'a self,
                id: &'a TaskId,
                owner: &'a Principal,
                answers: Vec<(String, Vec<u8>)>,
            ) -> StoreFuture<'a, bool> {
                Box::pin(within(self.answer_task(id, owner, answers)))
            }

            fn cancel<'a>(&'a self, id: &'a TaskId, owner: &'a Principal) -> StoreFuture<'a, bool> {
                Box::pin(within(self.cancel_task(id, owner)))
            }

            fn claim<'a>(&'a self, claim: Claim<'a>) -> StoreFuture<'a, Vec<Claimed>> {
                Box::pin(within(self.claim_tasks(claim)))
            }

            fn extend<'a>(
                &'a self,
                leases: &'a [Lease],
                lease: Duration,
            ) -> StoreFuture<'a, Vec<Lease>> {
                Box::pin(within(self.extend_leases(leases, lease)))
            }

            fn commit<'a>(
                &'a self,
                lease: &'a Lease,
                commit: Commit,
            ) -> StoreFuture<'a, Committed> {
                Box::pin(within(self.commit_task(lease, commit)))
            }

            fn answers<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, Vec<(String, Vec<u8>)>> {
                Box::pin(within(self.unread_answers(lease)))
            }

            fn revisions<'a>(&'a self, tasks: &'a [TaskId]) -> StoreFuture<'a, Vec<(TaskId, u64)>> {
                Box::pin(within(self.revisions_of(tasks)))
            }

            fn hints(&self) -> broadcast::Receiver<Hint> {
                self.subscribe()
            }

            fn spill<'a>(
                &'a self,
                id: &'a str,
                token: Vec<u8>,
                keep: Duration,
            ) -> StoreFuture<'a, ()> {
                Box::pin(within(self.spill_token(id, token, keep)))
            }

            fn spilled<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<Vec<u8>>> {
                Box::pin(within(self.spilled_token(id)))
            }

            fn sweep(&self, keep: Duration, most: usize) -> StoreFuture<'_, Swept> {
                Box::pin(within(self.sweep_all(keep, most)))
            }

            fn list(&self, list: ListTasks) -> StoreFuture<'_, Vec<TaskRow>> {
                Box::pin(within(self.list_tasks(list)))
            }

            fn find<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
                Box::pin(within(self.find_task(id)))
            }

            fn requeue<'a>(&'a self, id: &'a TaskId) -> StoreFuture<'a, Option<TaskRow>> {
                Box::pin(within(self.requeue_task(id)))
            }
        }

        impl ReplayLog for $store {
            fn begin<'a>(&'a self, key: &'a LogKey, keep: Keep) -> LogFuture<'a, Recorded> {
                Box::pin(within(self.begin_record(key, keep)))
            }

            fn finish<'a>(&'a self, key: &'a LogKey, value: &'a str) -> LogFuture<'a, ()> {
                Box::pin(within(self.finish_record(key, value)))
            }

            fn forget<'a>(&'a self, key: &'a LogKey) -> LogFuture<'a, ()> {
                Box::pin(within(self.forget_record(key)))
            }
        }
    };
}

pub(crate) use impl_store;
