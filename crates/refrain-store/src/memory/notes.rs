//! Notes about sessions.

use crate::store::NewNote;
use crate::time::micros;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Notes of all places together.
const NOTES: usize = 1 << 16;
/// Bytes of them all, names and values.
const BYTES: usize = 64 << 20;

/// Their place and name.
type Key = Arc<(String, String)>;

/// Notes, and when each of them is over.
#[derive(Default)]
pub(super) struct Notes {
    notes: BTreeMap<Key, Note>,
    ends: BTreeSet<(i64, Key)>,
    bytes: usize,
}

struct Note {
    value: Vec<u8>,
    until: i64,
}

impl Notes {
    /// Keeps a note, if there is room for it.
    pub(super) fn keep(&mut self, note: NewNote<'_>, now: i64) -> bool {
        self.forget(now, crate::FORGOTTEN);
        let room = note.room;
        let alike = self.of(note.place, now);
        let others = alike.filter(|(name, _)| *name != note.name && name.starts_with(room.prefix));
        let (others, bytes) = others.fold((0, 0), |(others, bytes), (name, value)| {
            let size = name.len() - room.prefix.len() + value.len();
            (others + 1, bytes + size)
        });
        if !room.holds(note.name, &note.value, others, bytes) {
            return false;
        }
        let before = self.size(note.place, note.name);
        let size = note.place.len() + note.name.len() + note.value.len();
        let notes = self.notes.len() - usize::from(before.is_some());
        if notes >= NOTES || self.bytes - before.unwrap_or(0) + size > BYTES {
            return false;
        }
        self.remove(&key(note.place, note.name));
        let key = key(note.place, note.name);
        let until = now.saturating_add(micros(note.keep));
        self.bytes += size;
        self.ends.insert((until, key.clone()));
        let value = note.value;
        self.notes.insert(key, Note { value, until });
        true
    }

    /// Takes a note back. `false`: it is not there, or over.
    pub(super) fn take(&mut self, place: &str, name: &str, now: i64) -> bool {
        let until = self.remove(&key(place, name));
        until.is_some_and(|until| until > now)
    }

    /// The notes of a place.
    pub(super) fn of(&self, place: &str, now: i64) -> impl Iterator<Item = (&str, &[u8])> {
        let notes = self.notes.range(key(place, "")..);
        let own = notes.take_while(move |(key, _)| key.0 == place);
        let kept = own.filter(move |(_, note)| note.until > now);
        kept.map(|(key, note)| (key.1.as_str(), note.value.as_slice()))
    }

    /// The value of a note.
    pub(super) fn value(&self, place: &str, name: &str, now: i64) -> Option<Vec<u8>> {
        let note = self.notes.get(&key(place, name))?;
        (note.until > now).then(|| note.value.clone())
    }

    /// Throws away what is over, so many at most. Gives how many.
    pub(super) fn forget(&mut self, now: i64, most: usize) -> usize {
        let over = self.ends.iter().take_while(|(until, _)| *until <= now);
        let over: Vec<Key> = over.take(most).map(|(_, key)| key.clone()).collect();
        for key in &over {
            self.remove(key);
        }
        over.len()
    }

    /// Throws away a note. Gives when it would have been over.
    fn remove(&mut self, key: &Key) -> Option<i64> {
        let note = self.notes.remove(key)?;
        self.bytes -= key.0.len() + key.1.len() + note.value.len();
        self.ends.remove(&(note.until, key.clone()));
        Some(note.until)
    }

    /// Bytes of a note.
    fn size(&self, place: &str, name: &str) -> Option<usize> {
        let note = self.notes.get(&key(place, name))?;
        Some(place.len() + name.len() + note.value.len())
    }
}

fn key(place: &str, name: &str) -> Key {
    Arc::new((place.to_owned(), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Room;
    use std::time::Duration;

    fn keep(notes: &mut Notes, name: &str, bytes: usize, now: i64) -> bool {
        let note = NewNote {
            place: "s",
            name,
            value: vec![0; bytes],
            keep: Duration::from_micros(10),
            room: Room::ANY,
        };
        notes.keep(note, now)
    }

    #[test]
    fn all_places_together_have_an_end() {
        let mut notes = Notes::default();
        assert!(!keep(&mut notes, "large", BYTES, 0));
        assert!(keep(&mut notes, "large", BYTES - 6, 0));
        assert!(!keep(&mut notes, "small", 0, 0));
        assert!(keep(&mut notes, "large", BYTES - 6, 5), "in its own place");
        assert!(keep(&mut notes, "small", 0, 15), "its time is over");
        assert_eq!(
            (notes.bytes, notes.notes.len(), notes.ends.len()),
            (6, 1, 1)
        );
        assert!(notes.take("s", "small", 16));
        assert!(!notes.take("s", "small", 16));
        assert_eq!((notes.bytes, notes.ends.len()), (0, 0));
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for() {
        let mut notes = Notes::default();
        for count in 0..NOTES {
            let note = NewNote {
                place: &count.to_string(),
                name: "",
                value: Vec::new(),
                keep: Duration::MAX,
                room: Room::ANY,
            };
            assert!(notes.keep(note, 0));
        }
        assert!(!keep(&mut notes, "more", 0, 0));
        assert!(notes.take("7", "", 0));
        assert!(keep(&mut notes, "more", 0, 0));
    }

    #[test]
    fn what_is_over_is_found_by_its_time() {
        let mut notes = Notes::default();
        for at in 0..40 {
            assert!(keep(&mut notes, &at.to_string(), 1, at));
        }
        // Those of before went as later ones came.
        assert_eq!(notes.notes.len(), 10);
        assert_eq!(notes.forget(45, 4), 4);
        assert_eq!(notes.forget(45, 4), 2);
        assert_eq!(notes.forget(45, 4), 0);
        assert_eq!((notes.notes.len(), notes.ends.len()), (4, 4));
    }
}
