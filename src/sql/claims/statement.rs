//! The statements that claim.

use super::{Claims, Filter, Kind, Value};
use crate::{clock::micros, error::Error, sql::run::Arg};

impl Claims {
    /// The statement that claims, and its arguments.
    pub(super) fn to_claim<'a>(
        &'a self,
        lock_id: &'a str,
        most: u32,
    ) -> Result<(String, Vec<Arg<'a>>), Error> {
        let (lock, mut arguments) = (self.name(&self.lock)?, vec![Arg::Text(lock_id)]);
        arguments.push(Arg::Int(most.into()));
        let mut conditions = vec![format!("{lock} IS NULL")];
        let mut claimed = format!("{lock} = $1");
        for filter in &self.filters {
            conditions.push(self.condition(filter, &mut arguments)?);
        }
        if let Some((column, after)) = &self.expiry {
            let column = self.name(column)?;
            arguments.push(Arg::Int(micros(*after)));
            // Asked for once: what may be another in each row can't be looked up in an index.
            conditions[0] = format!("({lock} IS NULL OR {column} <= (SELECT {{now}}))");
            claimed.push_str(&format!(", {column} = {{now}} + ${}", arguments.len()));
        }
        let free = format!("{} {}", conditions.join(" AND "), self.order_by()?);
        let statement = self.sql.dialect().claim;
        let statement = statement
            .replace("{table}", &self.table()?)
            .replace("{id}", &self.name(&self.id)?)
            .replace("{free}", &free)
            .replace("{claimed}", &claimed);
        Ok((statement, arguments))
    }

    /// The statement that reads the keys of what was claimed. (Their text has another name than the key, which is to order.)
    pub(super) fn to_read_back(&self) -> Result<String, Error> {
        let (table, lock) = (self.table()?, self.name(&self.lock)?);
        let id = self.text(&self.name(&self.id)?);
        let mut statement = format!("SELECT {id} AS claimed_id FROM {table} WHERE {lock} = $1");
        if let Some((column, _)) = &self.expiry {
            let column = self.name(column)?;
            statement.push_str(&format!(" AND {column} > (SELECT {{now}})"));
        }
        Ok(format!("{statement} {}", self.order_by()?))
    }

    pub(super) fn condition<'a>(
        &self,
        filter: &'a Filter,
        arguments: &mut Vec<Arg<'a>>,
    ) -> Result<String, Error> {
        let (column, argument) = match filter {
            Filter::Null(column) => return Ok(format!("{} IS NULL", self.name(column)?)),
            Filter::Sql(condition) if condition.contains(['$', '?', '{']) => {
                return Err(Error::invalid(format!(
                    "the condition {condition:?} cannot be used: write it without `$`, `?` and `{{`"
                )));
            }
            Filter::Sql(condition) => return Ok(format!("({condition})")),
            Filter::Is(column, Value(Kind::Bool(value))) => {
                return Ok(format!("{} = {value}", self.name(column)?));
            }
            Filter::Is(column, Value(Kind::Int(value))) => (column, Arg::Int(*value)),
            Filter::Is(column, Value(Kind::Text(value))) => (column, Arg::Text(value)),
        };
        arguments.push(argument);
        Ok(format!("{} = ${}", self.name(column)?, arguments.len()))
    }

    pub(super) fn order_by(&self) -> Result<String, Error> {
        let columns = self.order.iter();
        let columns = columns.map(|(column, way)| Ok(format!("{}{way}", self.name(column)?)));
        let columns = columns.collect::<Result<Vec<_>, Error>>()?;
        Ok(match &*columns {
            [] => String::new(),
            columns => format!("ORDER BY {}", columns.join(", ")),
        })
    }

    pub(super) fn table(&self) -> Result<String, Error> {
        let parts = self.table.splitn(2, '.');
        let parts = parts
            .map(|part| self.name(part))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(parts.join("."))
    }

    /// A name, quoted, if it is one.
    pub(super) fn name(&self, name: &str) -> Result<String, Error> {
        let is_name = (1..=63).contains(&name.len())
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            return Err(Error::invalid(format!(
                "{name:?} cannot be used as the name of a table or a column: write a letter or `_`, then up to 62 letters, digits and `_`"
            )));
        }
        let quote = self.sql.dialect().quote;
        Ok(format!("{quote}{name}{quote}"))
    }

    /// A key as text.
    pub(super) fn text(&self, key: &str) -> String {
        self.sql.dialect().text.replace("{key}", key)
    }
}
