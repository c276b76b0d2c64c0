//! The statements for the statistics that processes share with each other.

use super::PerDialect;

/// name, figures -> nothing
pub(crate) const NOTE: PerDialect = PerDialect {
    mysql: "INSERT INTO {p}process (name, noted_at, figures) VALUES ($1, {now}, $2)
        ON DUPLICATE KEY UPDATE noted_at = VALUES(noted_at), figures = VALUES(figures)",
    ..PerDialect::same(
        "INSERT INTO {p}process (name, noted_at, figures) VALUES ($1, {now}, $2)
        ON CONFLICT (name) DO UPDATE SET noted_at = excluded.noted_at, figures = excluded.figures",
    )
};

/// number of rows -> name, time by the database's clock, time since then, figures
pub(crate) const LIST: PerDialect = PerDialect::same(
    "{waits}SELECT r.name, r.noted_at, n.at - r.noted_at, r.figures
    FROM (SELECT {now} AS at) n JOIN {p}process r ON r.noted_at > 0 ORDER BY r.noted_at DESC LIMIT $1",
);

/// Removes the rows of processes that have been silent for a time. A row that is dated far in the future was
/// written before the database's clock was set back, and is removed as well.
///
/// time -> the number of changed rows
pub(crate) const PRUNE: PerDialect = PerDialect::same(
    "{waits}DELETE FROM {p}process WHERE noted_at <= {now} - $1 OR noted_at > {now} + $1",
);
