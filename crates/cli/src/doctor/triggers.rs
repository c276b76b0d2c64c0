//! Checks the triggers that invalidate pages when the application's tables change. The command line learns of
//! them only from the database. A site that declares its triggers can also compare the triggers in the
//! database with those that it has declared.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Verdict,
    examined::{Checked, ExaminedDatabase, Kind, found},
};

/// The names of all triggers. The name of a disabled trigger is followed by `!`.
const POSTGRES: &str = "SELECT tgname::text || CASE WHEN tgenabled IN ('O', 'A') THEN '' ELSE '!' END FROM pg_trigger WHERE NOT tgisinternal";
const MYSQL: &str = "SELECT CAST(trigger_name AS CHAR) FROM information_schema.triggers WHERE trigger_schema = DATABASE()";
const SQLITE: &str = "SELECT name FROM sqlite_schema WHERE type = 'trigger'";

impl ExaminedDatabase<'_> {
    pub(super) async fn triggers(&mut self) -> Checked {
        let (names, changes) = match self.kind {
            Kind::Sqlite => (SQLITE, &CHANGES[..3]),
            Kind::MySql => (MYSQL, &CHANGES[..3]),
            Kind::Postgres => (POSTGRES, &CHANGES[..]),
        };
        let names = self.texts(names).await?;
        let prefix = self.source.table("");
        let (tables, faults) = judge(&names, &prefix, changes);
        match &*faults {
            [] if tables == 0 => found(
                Verdict::Ok,
                "no table invalidates pages by triggers; if some should, `perennial triggers --check` names what is missing",
            ),
            [] if tables == 1 => found(Verdict::Ok, "one table invalidates pages by triggers"),
            [] => found(
                Verdict::Ok,
                format!("{tables} tables invalidate pages by triggers"),
            ),
            faults => found(
                Verdict::Warning,
                format!(
                    "{}: pages do not follow these changes. Run what `perennial triggers` prints; with `--check` it compares them",
                    faults.join("; ")
                ),
            ),
        }
    }
}

const CHANGES: [&str; 4] = ["insert", "update", "delete", "truncate"];

/// Returns the number of tables that have triggers of Perennial, and what is wrong with these triggers.
fn judge(names: &[String], prefix: &str, changes: &[&str]) -> (usize, Vec<String>) {
    let mut tables: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut faults = Vec::new();
    for name in names {
        let (name, is_disabled) = match name.strip_suffix('!') {
            Some(name) => (name, true),
            None => (&**name, false),
        };
        let Some((table, change)) = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.rsplit_once('_'))
        else {
            continue;
        };
        // Others are the application's own, or have truncated names.
        if changes.contains(&change) {
            tables.entry(table).or_default().insert(change);
            if is_disabled {
                faults.push(format!("the trigger {name:?} is disabled"));
            }
        }
    }
    for (table, there) in &tables {
        for change in changes.iter().filter(|change| !there.contains(*change)) {
            faults.push(format!(
                "the trigger \"{prefix}{table}_{change}\" is missing"
            ));
        }
    }
    (tables.len(), faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triggers_that_are_missing_or_disabled_are_found_by_their_names() {
        let names = [
            "perennial_product_insert",
            "perennial_product_update!",
            "perennial_product_delete",
            "perennial_price_list_insert",
            "perennial_price_list_delete",
            "perennial_price_list_update",
            "audit_product_insert",
            "perennial_trigger_0123456789ab",
        ]
        .map(str::to_owned);
        let (tables, faults) = judge(&names, "perennial_", &CHANGES[..3]);
        assert_eq!(tables, 2);
        assert_eq!(
            faults,
            ["the trigger \"perennial_product_update\" is disabled"]
        );
        let (_, faults) = judge(&names[..2], "perennial_", &CHANGES[..3]);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert_eq!(judge(&names[6..], "perennial_", &CHANGES).0, 0);
    }
}
