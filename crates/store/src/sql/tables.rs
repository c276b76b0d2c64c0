//! Where a site's tables are. Statements that run on the application's own connections need to know this,
//! because the application decides which schema is current there.

use std::sync::{Arc, OnceLock};

use super::{
    Connection, pool::dialect_on, run::Statement, schema::check_prefix, statements::Dialect,
};
use crate::{driver::DriverError, error::Error};

/// The tables of a site: their names, and what is known of them since they were found or made. Cheap to
/// clone.
#[derive(Clone, Debug)]
pub struct Tables(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    prefix: String,
    /// Others make the tables.
    are_expected: bool,
    /// Known once the tables have been found or made.
    found: OnceLock<Found>,
}

/// Where the tables are.
#[derive(Debug)]
pub(super) struct Found {
    /// The dialect of their server.
    pub(super) dialect: Dialect,
    /// Their schema, or database on MySQL, as SQL writes it. `None` means that SQL needs no name for it.
    pub(super) schema: Option<String>,
    /// A random number that was stored when the tables were made.
    pub(super) id: Option<u64>,
}

impl Tables {
    /// Names Perennial's tables, without asking the database whether they are there.
    ///
    /// # Errors
    ///
    /// At least one kind of database does not allow the prefix.
    pub fn new(prefix: &str) -> Result<Self, Error> {
        check_prefix(prefix)?;
        Ok(Self(Arc::new(Inner {
            prefix: prefix.to_owned(),
            are_expected: false,
            found: OnceLock::new(),
        })))
    }

    /// Marks these tables as ones that this process must never create.
    #[must_use]
    pub fn expected(self) -> Self {
        Self(Arc::new(Inner {
            prefix: self.0.prefix.clone(),
            are_expected: true,
            found: OnceLock::new(),
        }))
    }

    pub(super) fn are_expected(&self) -> bool {
        self.0.are_expected
    }

    /// The prefix of the tables' names.
    pub fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// The dialect of the tables' server, or `None` if the tables have not been found yet.
    pub fn found_dialect(&self) -> Option<Dialect> {
        Some(self.0.found.get()?.dialect)
    }

    /// A number that all processes of a site share and no other site has. `None` means that the tables have
    /// not been found yet.
    pub fn id(&self) -> Option<u64> {
        self.0.found.get()?.id
    }

    pub(super) fn set(&self, found: Found) {
        // The tables are found only once.
        let _ = self.0.found.set(found);
    }

    /// Returns the dialect of the server behind one of the application's connections.
    pub async fn dialect_on(
        &self,
        connection: &mut Connection<'_>,
    ) -> Result<Dialect, DriverError> {
        match self.found_dialect() {
            Some(dialect) => Ok(dialect),
            None => dialect_on(connection.engine(), connection.get()).await,
        }
    }

    /// Returns the tables' prefix together with their schema. This is for connections on which the application
    /// may have selected another schema.
    pub fn qualified(&self) -> String {
        let found = self.0.found.get();
        match found.and_then(|found| found.schema.as_deref()) {
            // `$` marks arguments.
            Some(schema) if !schema.contains('$') => format!("{schema}.{}", self.prefix()),
            _ => self.prefix().to_owned(),
        }
    }

    /// Returns a statement for a connection of the application's.
    pub fn statement(&self, dialect: Dialect, template: &str) -> Statement {
        Statement::new(dialect, &self.qualified(), template)
    }
}
