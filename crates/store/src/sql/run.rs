//! Statements, and the one place that gives them to a driver.

use std::sync::Arc;

use crate::{
    driver::{Argument, DriverConnection, DriverError, Engine, ErrorCode, Row, Rows},
    fence::{Epoch, Fence},
    sql::{dialect::DialectRules, statements::Dialect},
};

/// A statement, as it is sent.
#[derive(Clone, Debug)]
pub struct Statement {
    /// The text, with `$n` if arguments are written into it, or else with `?`.
    sql: Arc<str>,
    /// The argument for each `?`.
    order: Vec<usize>,
    engine: Engine,
}

impl Statement {
    /// Builds a statement from a template. A template may contain only strings that cannot carry an injection:
    /// Perennial's own SQL, names that perennial-jobs has checked, the `&'static str` of `Claims::filter_sql`,
    /// a prefix that `schema::check_prefix` has checked, numbers, a dialect's literals, and the quoted name of
    /// the database.
    pub fn new(dialect: Dialect, prefix: &str, template: &str) -> Self {
        let engine = dialect.engine();
        let sql = dialect.render(template, prefix);
        let mut order = Vec::new();
        let sql = match engine {
            Engine::Postgres => sql,
            _ => substitute(&sql, |argument| {
                order.push(argument);
                "?".to_owned()
            }),
        };
        Self {
            sql: sql.into(),
            order,
            engine,
        }
    }

    /// Returns the text.
    pub fn sql(&self) -> &Arc<str> {
        &self.sql
    }

    /// Returns the statement with different SQL. The new SQL has to have the same placeholders for arguments.
    pub fn with_text(&self, text: impl FnOnce(&str) -> String) -> Self {
        Self {
            sql: text(&self.sql).into(),
            ..self.clone()
        }
    }
}

/// Replaces each `$n`.
fn substitute(template: &str, mut argument: impl FnMut(usize) -> String) -> String {
    let mut parts = template.split('$');
    let mut sql = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|c: char| !c.is_ascii_digit());
        let (number, rest) = part.split_at(digits.unwrap_or(part.len()));
        let number: usize = number.parse().expect("`$` and a number");
        sql.push_str(&argument(number - 1));
        sql.push_str(rest);
    }
    sql
}

/// An argument of a statement.
#[derive(Clone, Copy)]
pub enum Arg<'a> {
    Int(i64),
    Text(&'a str),
    /// A string whose type follows from the column that it is compared with.
    Untyped(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> From<Arg<'a>> for Argument<'a> {
    fn from(argument: Arg<'a>) -> Self {
        match argument {
            Arg::Int(int) => Argument::Int(int),
            Arg::Text(text) | Arg::Untyped(text) => Argument::Text(text),
            Arg::Bytes(bytes) => Argument::Bytes(bytes),
        }
    }
}

/// Runs a statement on a connection.
pub async fn run(
    connection: &mut (dyn DriverConnection + '_),
    statement: &Statement,
    arguments: &[Arg<'_>],
) -> Result<Rows, DriverError> {
    if let Some(literal) = statement.engine.rules().literal {
        let literal = |argument: usize| literal(arguments[argument]);
        let sql = substitute(&statement.sql, literal);
        return connection.run(sql.into(), &[]).await;
    }
    let arguments = statement.order.iter().map(|&place| arguments[place].into());
    let arguments: Vec<Argument<'_>> = arguments.collect();
    connection.run(Arc::clone(&statement.sql), &arguments).await
}

/// Reads values of a row as the types that Perennial itself stores. A value that is NULL is an error.
pub trait Cells {
    fn number(&self, column: usize) -> Result<i64, DriverError>;
    fn name(&self, column: usize) -> Result<String, DriverError>;

    fn fence(&self, column: usize) -> Result<Fence, DriverError> {
        self.number(column).map(Fence)
    }

    fn epoch(&self, column: usize) -> Result<Epoch, DriverError> {
        self.number(column).map(Epoch)
    }
}

impl Cells for Row {
    fn number(&self, column: usize) -> Result<i64, DriverError> {
        self.int(column)?.ok_or_else(|| null(column))
    }

    fn name(&self, column: usize) -> Result<String, DriverError> {
        self.text(column)?.ok_or_else(|| null(column))
    }
}

fn null(column: usize) -> DriverError {
    DriverError::other(format!("column {column} of the answer is NULL"))
}

/// Returns the first row of an answer that must have one.
pub fn first_row(done: &Rows) -> Result<&Row, DriverError> {
    let row = done.rows.first();
    row.ok_or_else(|| DriverError::other("the answer has no row"))
}

/// Returns the number in the first row. If the statement returns no rows, as on MySQL, it is the insert id that
/// the statement has set. `None` means that it was NULL, or that the statement did nothing.
pub fn number(done: &Rows) -> Result<Option<i64>, DriverError> {
    match done.rows.first() {
        Some(row) => row.int(0),
        None => Ok(done.insert_id.filter(|_| done.changed > 0)),
    }
}

/// Returns true if the statement did nothing because it lost a race against another one.
pub fn is_contended(error: &DriverError) -> bool {
    has_code(error, |rules| rules.contention)
}

/// Returns true if the connection is broken, so that the statement may or may not have been executed.
pub fn is_broken(error: &DriverError) -> bool {
    error.is_broken_connection() || has_code(error, |rules| rules.connection_lost)
}

/// Returns true if the error has one of the codes that `codes` selects from the rules of the error's database.
pub fn has_code(error: &DriverError, codes: fn(&DialectRules) -> &'static [ErrorCode]) -> bool {
    let code = error.code();
    code.is_some_and(|code| codes(Engine::of(code).rules()).contains(&code))
}
