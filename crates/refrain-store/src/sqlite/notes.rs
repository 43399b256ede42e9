//! Notes about sessions.

use super::file::begin;
use super::{SqliteStore, now};
use crate::sql::{count, most};
use crate::store::{NewNote, StoreError};
use crate::time::micros;
use sqlx::{QueryBuilder, SqliteConnection};

type Result<T> = std::result::Result<T, StoreError>;

/// Places that are looked for at a time.
const BATCH: usize = 500;

const KEEP: &str = "
INSERT INTO refrain_notes (session, name, value, until) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (session, name) DO UPDATE SET value = excluded.value, until = excluded.until";

const FORGET: &str = "
DELETE FROM refrain_notes WHERE rowid IN (SELECT rowid FROM refrain_notes WHERE until <= ?1 LIMIT ?2)";

/// The other notes whose names begin alike.
const OTHERS: &str = "
SELECT count(*), coalesce(sum(length(CAST(name AS BLOB)) - ?5 + length(value)), 0) FROM refrain_notes
WHERE session = ?1 AND substr(name, 1, length(?2)) = ?2 AND name <> ?3 AND until > ?4";

const NOTES: &str =
    "SELECT name, value FROM refrain_notes WHERE session = ?1 AND until > ?2 ORDER BY name";

/// Throws away notes whose time is over. Gives how many.
pub(super) async fn forget_notes(writer: &mut SqliteConnection, most: i64) -> Result<u64> {
    let forget = sqlx::query(FORGET).bind(now()).bind(most);
    Ok(forget.execute(writer).await?.rows_affected())
}

impl SqliteStore {
    pub(super) async fn keep_note(&self, note: NewNote<'_>) -> Result<bool> {
        let room = note.room;
        let mut writer = self.file.writer().await?;
        let mut tx = begin(&mut writer).await?;
        forget_notes(&mut tx, most(crate::FORGOTTEN)).await?;
        let (others, bytes): (i64, i64) = sqlx::query_as(OTHERS)
            .bind(note.place)
            .bind(room.prefix)
            .bind(note.name)
            .bind(now())
            .bind(most(room.prefix.len()))
            .fetch_one(&mut *tx)
            .await?;
        if !room.holds(note.name, &note.value, count(others), count(bytes)) {
            tx.commit().await?;
            return Ok(false);
        }
        sqlx::query(KEEP)
            .bind(note.place)
            .bind(note.name)
            .bind(note.value)
            .bind(now() + micros(note.keep))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        self.tell_noted(note.place);
        Ok(true)
    }

    pub(super) async fn remove_note(&self, place: &str, name: &str) -> Result<bool> {
        let mut writer = self.file.writer().await?;
        let removed = sqlx::query_scalar(
            "DELETE FROM refrain_notes WHERE session = ?1 AND name = ?2 RETURNING until",
        )
        .bind(place)
        .bind(name)
        .fetch_optional(&mut *writer)
        .await?;
        let taken = removed.is_some_and(|until: i64| until > now());
        if taken {
            self.tell_noted(place);
        }
        Ok(taken)
    }

    pub(super) async fn notes_of(&self, place: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let notes = sqlx::query_as(NOTES)
            .bind(place)
            .bind(now())
            .fetch_all(&self.file.readers)
            .await?;
        Ok(notes)
    }

    pub(super) async fn names_of_notes(&self, places: &[String]) -> Result<Vec<(String, String)>> {
        let mut found = Vec::new();
        for places in places.chunks(BATCH) {
            let mut look =
                QueryBuilder::new("SELECT session, name FROM refrain_notes WHERE until > ");
            look.push_bind(now()).push(" AND session IN (");
            let mut list = look.separated(", ");
            for place in places {
                list.push_bind(place);
            }
            look.push(") ORDER BY session, name");
            let names: Vec<(String, String)> =
                look.build_query_as().fetch_all(&self.file.readers).await?;
            found.extend(names);
        }
        Ok(found)
    }

    pub(super) async fn value_of_note(&self, place: &str, name: &str) -> Result<Option<Vec<u8>>> {
        let value = sqlx::query_scalar(
            "SELECT value FROM refrain_notes WHERE session = ?1 AND name = ?2 AND until > ?3",
        )
        .bind(place)
        .bind(name)
        .bind(now())
        .fetch_optional(&self.file.readers)
        .await?;
        Ok(value)
    }

    fn tell_noted(&self, place: &str) {
        // An error means that nobody listens.
        let _ = self.noted.send(place.to_owned());
    }
}
