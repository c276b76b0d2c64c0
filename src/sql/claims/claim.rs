//! Rows that have been claimed.

use std::time::{Duration, Instant};

use super::Claims;
use crate::{clock::micros, error::Error};

/// Rows that have been claimed; from [`Claims::claim`].
///
/// The application reads them by the lock id: `SELECT … WHERE lock_id = …`. Dropping it does nothing: what is neither completed nor released comes
/// back when the claim expires, if the table has a column for that.
///
/// What a worker does to its rows is safe against one that was overtaken when it says `AND lock_id = …` too.
#[derive(Clone, Debug)]
#[must_use = "the rows stay claimed until they are completed or released"]
pub struct Claim {
    pub(super) claims: Claims,
    pub(super) lock_id: String,
    pub(super) ids: Vec<String>,
    pub(super) begun: Instant,
}

impl Claim {
    /// What stands in the lock's column of its rows: 32 characters.
    pub fn lock_id(&self) -> &str {
        &self.lock_id
    }

    /// The keys of the rows that were claimed, as text, in the order of [`Claims::order`].
    pub fn ids(&self) -> &[String] {
        &self.ids
    }

    /// How long it holds at least, unless it is extended: counted from before the claim, by this process's monotonic clock. `None`: for good.
    pub fn remaining(&self) -> Option<Duration> {
        let (_, after) = self.claims.expiry.as_ref()?;
        Some(after.saturating_sub(self.begun.elapsed()))
    }

    /// Notes that all its rows are done: nobody claims them again. Returns how many are; those that are missing somebody else has claimed.
    ///
    /// Their lock's column then has the lock id with a `-` in front, and the expiry's NULL.
    ///
    /// # Errors
    ///
    /// The database fails, or doesn't answer within its [limit](crate::sql::Database::statement_limit): they come back when the claim expires. It may be called again, also when they were completed.
    pub async fn complete(&self) -> Result<u64, Error> {
        self.complete_rows(None).await
    }

    /// The same of one row; `false`: somebody else has claimed it, or it was released.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn complete_by_row(&self, id: &str) -> Result<bool, Error> {
        Ok(self.complete_rows(Some(id)).await? > 0)
    }

    async fn complete_rows(&self, id: Option<&str>) -> Result<u64, Error> {
        let done = format!("-{}", self.lock_id);
        let claims = &self.claims;
        let set = claims.set(&format!("'{done}'"))?;
        // Those too that it has completed already: it may be done again.
        let locks = [&*self.lock_id, &*done];
        claims.update("complete", &set, &locks, id).await
    }

    /// Gives all rows back that are not completed, for the next one to claim.
    ///
    /// # Errors
    ///
    /// The database fails: they come back when the claim expires.
    pub async fn release(&self) -> Result<(), Error> {
        self.claims.release(&[&self.lock_id], None).await
    }

    /// The same of one row.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn release_by_row(&self, id: &str) -> Result<(), Error> {
        self.claims.release(&[&self.lock_id], Some(id)).await
    }

    /// Lets the claim hold for its whole length again from now. Returns how many rows are still ours and not completed.
    ///
    /// # Errors
    ///
    /// The database fails: it stands as it was.
    pub async fn extend(&mut self) -> Result<u64, Error> {
        let begun = Instant::now();
        let claims = &self.claims;
        let set = match &claims.expiry {
            Some((column, after)) => {
                format!("{} = {{now}} + {}", claims.name(column)?, micros(*after))
            }
            // It holds for good.
            None => format!("{0} = {0}", claims.name(&claims.lock)?),
        };
        let extended = claims
            .update("extend", &set, &[&self.lock_id], None)
            .await?;
        self.begun = begun;
        Ok(extended)
    }
}
