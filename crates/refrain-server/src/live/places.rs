//! How many calls an instance keeps in memory, and how many of one caller.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::Notify;

/// The places for live calls of one instance.
#[derive(Debug)]
pub(crate) struct LivePlaces {
    taken: Mutex<Taken>,
    most: usize,
    most_each: usize,
    /// Told when a place is given back.
    left: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Those of callers who can be told apart.
    each: HashMap<LiveCaller, usize>,
}

/// Whose call it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LiveCaller {
    /// The principal of this name.
    Principal(Arc<str>),
    /// An older client in the session with this key.
    Session(Arc<str>),
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLivePlace {
    /// As many are held as may.
    Full(usize),
    /// As many of this caller's are held as may.
    FullForCaller(usize),
}

impl LivePlaces {
    pub(crate) fn new(most: usize, most_each: usize) -> Arc<Self> {
        Arc::new(Self {
            taken: Mutex::default(),
            most,
            most_each,
            left: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock()
    }

    /// Takes a place. Callers who cannot be told apart share all there are.
    pub(crate) fn enter(
        self: &Arc<Self>,
        caller: Option<LiveCaller>,
    ) -> Result<LivePlace, NoLivePlace> {
        let mut taken = self.lock();
        if taken.all >= self.most {
            return Err(NoLivePlace::Full(self.most));
        }
        if let Some(caller) = &caller {
            let of_caller = taken.each.get(caller).copied().unwrap_or_default();
            if of_caller >= self.most_each {
                return Err(NoLivePlace::FullForCaller(self.most_each));
            }
            taken.each.insert(caller.clone(), of_caller + 1);
        }
        taken.all += 1;
        drop(taken);
        Ok(LivePlace {
            places: self.clone(),
            caller,
        })
    }

    /// How many are taken.
    pub(crate) fn len(&self) -> usize {
        self.lock().all
    }

    /// Waits until none is taken.
    pub(crate) async fn all_left(&self) {
        loop {
            let mut left = pin!(self.left.notified());
            // One that is given back from now on is heard of.
            left.as_mut().enable();
            if self.len() == 0 {
                return;
            }
            left.await;
        }
    }
}

/// The place of one live call, from its beginning to its end. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct LivePlace {
    places: Arc<LivePlaces>,
    caller: Option<LiveCaller>,
}

impl Drop for LivePlace {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all -= 1;
        if let Some(caller) = &self.caller
            && let Some(count) = taken.each.get_mut(caller)
        {
            *count -= 1;
            if *count == 0 {
                taken.each.remove(caller);
            }
        }
        drop(taken);
        self.places.left.notify_waiters();
    }
}
