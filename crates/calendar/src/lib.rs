//! Schedules for [perennial]: content that becomes stale by the calendar. The first request after an occurrence
//! regenerates it. If content should only have a maximum age, you need no calendar:
//! [`Refresh::every`](perennial::Refresh::every) is enough.
//!
//! ```
//! # fn f() -> Result<(), perennial::Error> {
//! use perennial::Refresh;
//! use perennial_calendar::Calendar;
//!
//! let best_sellers = Refresh::on_schedule(Calendar::monthly(1, "06:00", "Europe/Berlin")?);
//! # Ok(()) }
//! # f().unwrap();
//! ```

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::missing_errors_doc)]

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use cronexpr::Crontab;
use jiff::{
    Timestamp,
    civil::Time,
    tz::{Offset, TimeZone},
};
use perennial::{DAY, Error, Schedule};

/// The time after which there is no occurrence. It is shortly before the latest time with which the library can
/// compute.
const LAST: Timestamp = Timestamp::constant(253_370_764_800, 0);

const YEAR: Duration = Duration::from_hours(365 * 24);

/// The times at which content becomes stale, for [`Refresh::on_schedule`](perennial::Refresh::on_schedule).
///
/// The time zone is a name from the IANA database. When a change of the clocks skips a time of day, the
/// occurrence is moved by the length of the change (02:30 becomes 03:30). When a time of day comes twice, the
/// first one counts. These rules do not apply to a cron expression whose hour begins with `*`: it follows the
/// clock.
pub struct Calendar {
    zone: String,
    /// The schedule has an occurrence whenever one of these expressions has one.
    expressions: Vec<Expression>,
    /// The usual time between two occurrences.
    period: Duration,
}

struct Expression {
    text: String,
    /// True if the schedule counts hours, even an hour that comes twice when the clocks change. False if it
    /// counts times of day.
    each_hour: bool,
    /// The expression in UTC, to find times of day. The zone then converts them.
    in_utc: Crontab,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Weekday {
    Monday = 1,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl Calendar {
    /// Creates a schedule with one time each day, such as `06:00`.
    ///
    /// # Errors
    ///
    /// [`Invalid`](perennial::ErrorKind::Invalid): the time is not written as `HH:MM`, or the time zone is unknown.
    pub fn daily(time: &str, zone: &str) -> Result<Self, Error> {
        Self::of(zone, &[format!("{} * * *", minute_and_hour(time)?)])
    }

    /// Creates a schedule with one occurrence each week.
    ///
    /// # Errors
    ///
    /// The errors of [`daily`](Self::daily).
    pub fn weekly(day: Weekday, time: &str, zone: &str) -> Result<Self, Error> {
        let time = minute_and_hour(time)?;
        Self::of(zone, &[format!("{time} * * {}", day as u8)])
    }

    /// Creates a schedule with one occurrence each month, on this day (1 – 31), or on the last day of a
    /// shorter month.
    ///
    /// # Errors
    ///
    /// The errors of [`daily`](Self::daily), and [`Invalid`](perennial::ErrorKind::Invalid) if the day is not
    /// from 1 to 31.
    pub fn monthly(day: u8, time: &str, zone: &str) -> Result<Self, Error> {
        let time = minute_and_hour(time)?;
        match day {
            1..=28 => Self::of(zone, &[format!("{time} {day} * *")]),
            29 | 30 => Self::of(
                zone,
                &[format!("{time} {day} * *"), format!("{time} L 2 *")],
            ),
            31 => Self::of(zone, &[format!("{time} L * *")]),
            _ => Err(Error::invalid(format!(
                "a month has no day {day}: write a day from 1 to 31"
            ))),
        }
    }

    /// Creates a schedule from a cron expression of five fields: minute, hour, day of the month,
    /// month, and day of the week, such as `0 6,18 * * 1-5`.
    ///
    /// The crate `cronexpr` parses the expression. If neither of the two day fields begins with `*`, it is
    /// enough that one of them matches, as with cron.
    ///
    /// # Errors
    ///
    /// [`Invalid`](perennial::ErrorKind::Invalid): the expression cannot be read, the time zone is unknown, or
    /// there is no occurrence in the next four years.
    pub fn cron(expression: &str, zone: &str) -> Result<Self, Error> {
        Self::of(zone, &[expression.trim().to_owned()])
    }

    fn of(zone: &str, expressions: &[String]) -> Result<Self, Error> {
        let name = format!("{} {zone}", expressions.join(" or "));
        if let Err(error) = TimeZone::get(zone) {
            return Err(Error::invalid(format!(
                "the time zone {zone:?} is unknown: write a name of the IANA database, such as `Europe/Berlin` or `UTC` ({error})"
            )));
        }
        let expressions = expressions.iter().map(|text| Expression::read(text));
        let mut calendar = Self {
            zone: zone.to_owned(),
            expressions: expressions.collect::<Result<_, _>>()?,
            period: YEAR,
        };
        let Some(first) = calendar.after(Timestamp::now()) else {
            return Err(Error::invalid(format!(
                "the schedule {name:?} has no occurrence in the next four years"
            )));
        };
        if let Some(second) = calendar.after(first) {
            calendar.period = second.duration_since(first).unsigned_abs();
        }
        Ok(calendar)
    }

    /// Returns the first occurrence after this time.
    fn after(&self, time: Timestamp) -> Option<Timestamp> {
        if time > LAST {
            return None;
        }
        // The zone is looked up each time, as the system's database of time zones may have been replaced.
        // Jiff keeps it for five minutes.
        let zone = TimeZone::get(&self.zone).unwrap_or(TimeZone::UTC);
        let next = self
            .expressions
            .iter()
            .filter_map(|it| it.after(time, &zone));
        next.min()
    }
}

impl Schedule for Calendar {
    fn period(&self) -> Duration {
        self.period
    }

    fn next(&self, after: SystemTime) -> Option<SystemTime> {
        let next = self.after(Timestamp::try_from(after).ok()?)?;
        Some(next.into())
    }
}

impl Expression {
    fn read(text: &str) -> Result<Self, Error> {
        // One more field would be taken for the time zone.
        let fields = text.split_whitespace().count();
        if fields != 5 {
            return Err(Error::invalid(format!(
                "the cron expression {text:?} has {fields} fields: write five, for the minute, the hour, the day of the month, the \
                 month and the day of the week, as in `0 6 1 * *`"
            )));
        }
        let in_utc = cronexpr::parse_crontab(&format!("{text} UTC"));
        let in_utc = in_utc.map_err(|error| Error::invalid(error.to_string()))?;
        let hour = text.split_whitespace().nth(1).unwrap_or_default();
        Ok(Self {
            text: text.to_owned(),
            each_hour: hour.starts_with('*'),
            in_utc,
        })
    }

    fn after(&self, time: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        if self.each_hour {
            let name = zone.iana_name().unwrap_or("UTC");
            let crontab = cronexpr::parse_crontab(&format!("{} {name}", self.text)).ok()?;
            return Some(crontab.find_next(time).ok()?.timestamp());
        }
        // An occurrence whose time of day was skipped is moved to a later time. It may still lie ahead although
        // that time of day is over, so the search begins with the offset of yesterday if that is earlier.
        let [now, yesterday] = [time, time - DAY].map(|time| zone.to_offset(time));
        let mut day = now.min(yesterday).to_datetime(time);
        loop {
            let as_utc = Offset::UTC.to_timestamp(day).ok()?;
            day = self.in_utc.find_next(as_utc).ok()?.datetime();
            let found = zone.to_ambiguous_zoned(day).compatible().ok()?;
            if found.timestamp() > time {
                return Some(found.timestamp());
            }
        }
    }
}

/// Returns the first two fields of a cron expression for a time of day.
fn minute_and_hour(time: &str) -> Result<String, Error> {
    let read = Time::strptime("%H:%M", time).map_err(|error| {
        Error::invalid(format!(
            "{time:?} is no time of day: write hours and minutes, as in `06:00` ({error})"
        ))
    })?;
    Ok(format!("{} {}", read.minute(), read.hour()))
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.expressions.iter().map(|it| &*it.text).collect();
        write!(f, "Calendar({} {})", texts.join(" or "), self.zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first occurrences after a time.
    fn after(calendar: &Calendar, time: &str, count: usize) -> Vec<String> {
        let mut at: Timestamp = time.parse().expect("a time");
        let zone = TimeZone::get(&calendar.zone).expect("a zone");
        let next = std::iter::from_fn(|| {
            at = calendar.after(at)?;
            Some(at.to_zoned(zone.clone()).strftime("%F %R%z").to_string())
        });
        next.take(count).collect()
    }

    /// Each line: a schedule, a start time, and the next occurrences.
    const OCCURRENCES: &str = "
        daily 06:00 Europe/Berlin | 2026-01-01T05:00Z | 2026-01-02 06:00+0100, 2026-01-03 06:00+0100
        daily 06:00 Europe/Berlin | 2026-01-01T04:59:59Z | 2026-01-01 06:00+0100
        # Summer begins on 2026-03-29: 02:00 becomes 03:00. The same time of day, 23 h later.
        daily 06:00 Europe/Berlin | 2026-03-28T05:00Z | 2026-03-29 06:00+0200, 2026-03-30 06:00+0200
        # 02:30 does not exist.
        daily 02:30 Europe/Berlin | 2026-03-28T12:00Z | 2026-03-29 03:30+0200, 2026-03-30 02:30+0200
        # From 03:10, that is 10 min after the change, 03:30 is still to come.
        daily 02:30 Europe/Berlin | 2026-03-29T01:10Z | 2026-03-29 03:30+0200, 2026-03-30 02:30+0200
        # Summer ends on 2026-10-25: 02:30 comes twice, and the first one counts.
        daily 02:30 Europe/Berlin | 2026-10-24T12:00Z | 2026-10-25 02:30+0200, 2026-10-26 02:30+0100
        daily 02:30 Europe/Berlin | 2026-10-25T01:10Z | 2026-10-26 02:30+0100
        # Each hour, elapsed time counts.
        cron 0 * * * * Europe/Berlin | 2026-10-25T00:10Z | 2026-10-25 02:00+0100, 2026-10-25 03:00+0100
        cron 0 * * * * Europe/Berlin | 2026-03-29T00:10Z | 2026-03-29 03:00+0200, 2026-03-29 04:00+0200
        # A change of half an hour, in the other hemisphere.
        daily 02:15 Australia/Lord_Howe | 2026-10-03T00:00Z | 2026-10-04 02:45+1100, 2026-10-05 02:15+1100
        weekly Monday 06:00 Europe/Berlin | 2026-11-22T12:00Z | 2026-11-23 06:00+0100, 2026-11-30 06:00+0100
        weekly Sunday 00:00 UTC | 2026-11-22T00:00Z | 2026-11-29 00:00+0000
        monthly 1 06:00 Europe/Berlin | 2026-03-02T00:00Z | 2026-04-01 06:00+0200, 2026-05-01 06:00+0200
        # Months without the day.
        monthly 31 06:00 UTC | 2026-01-31T06:00Z | 2026-02-28 06:00+0000, 2026-03-31 06:00+0000, 2026-04-30 06:00+0000
        monthly 30 06:00 UTC | 2026-01-31T06:00Z | 2026-02-28 06:00+0000, 2026-03-30 06:00+0000
        monthly 29 06:00 UTC | 2028-01-31T06:00Z | 2028-02-29 06:00+0000, 2028-03-29 06:00+0000
        monthly 29 06:00 UTC | 2026-01-31T06:00Z | 2026-02-28 06:00+0000, 2026-03-29 06:00+0000
        # By a cron expression, a month without this day has no occurrence.
        cron 0 6 31 * * UTC | 2026-01-31T06:00Z | 2026-03-31 06:00+0000, 2026-05-31 06:00+0000
        cron 0 0 29 2 * UTC | 2026-01-01T00:00Z | 2028-02-29 00:00+0000, 2032-02-29 00:00+0000
        cron 0 6,18 * * 1-5 Europe/Berlin | 2026-11-20T12:00Z | 2026-11-20 18:00+0100, 2026-11-23 06:00+0100
        # Zones that changed their rules: Brazil ended summer time in 2019; Samoa left out a day.
        daily 06:00 America/Sao_Paulo | 2018-11-03T10:00Z | 2018-11-04 06:00-0200
        daily 06:00 America/Sao_Paulo | 2019-11-02T10:00Z | 2019-11-03 06:00-0300
        daily 06:00 Pacific/Apia | 2011-12-29T17:00Z | 2011-12-31 06:00+1400, 2012-01-01 06:00+1400";

    fn schedule(text: &str) -> Result<Calendar, Error> {
        let (kind, rest) = text.split_once(' ').expect("a kind");
        let (rest, zone) = rest.rsplit_once(' ').expect("a zone");
        let day_and_time = || rest.split_once(' ').expect("a day and a time");
        match kind {
            "daily" => Calendar::daily(rest, zone),
            "cron" => Calendar::cron(rest, zone),
            "weekly" => {
                let (day, time) = day_and_time();
                let day = match day {
                    "Monday" => Weekday::Monday,
                    "Sunday" => Weekday::Sunday,
                    _ => panic!("{text}"),
                };
                Calendar::weekly(day, time, zone)
            }
            "monthly" => {
                let (day, time) = day_and_time();
                Calendar::monthly(day.parse().expect("a number"), time, zone)
            }
            _ => panic!("{text}"),
        }
    }

    #[test]
    fn occurrences_follow_the_calendar_of_the_zone() {
        let lines = OCCURRENCES.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let [text, from, expected] = *line.split(" | ").collect::<Vec<_>>() else {
                panic!("{line}")
            };
            let schedule = schedule(text).expect("a schedule");
            let count = expected.split(", ").count();
            assert_eq!(after(&schedule, from, count).join(", "), expected, "{line}");
        }
    }

    #[test]
    fn each_occurrence_is_later_than_the_one_before() {
        let mut at: Timestamp = "2026-01-01T00:00Z".parse().expect("a time");
        for text in ["17 1,2,3 * * *", "*/20 * * * *", "0 2 * * 0"] {
            let schedule = Calendar::cron(text, "Europe/Berlin").expect("a schedule");
            let end = at + 400 * DAY;
            let (mut last, mut count) = (at, 0);
            while last < end {
                let next = schedule.after(last).expect("one");
                assert!(next > last, "{text}: {last} then {next}");
                // Between the two there is none.
                let middle = last + next.duration_since(last) / 2;
                assert_eq!(schedule.after(middle), Some(next), "{text} {last}");
                (last, count) = (next, count + 1);
            }
            assert!(count > 50, "{text}: {count}");
        }
        at = Timestamp::MAX;
        let daily = Calendar::daily("06:00", "UTC").expect("a schedule");
        assert_eq!(daily.after(at), None);
    }

    #[test]
    fn a_wrong_schedule_says_what_is_wrong() {
        for (text, message) in [
            (
                "daily 6o'clock UTC",
                "is no time of day: write hours and minutes, as in `06:00`",
            ),
            ("daily 24:00 UTC", "\"24:00\" is no time of day"),
            ("daily 06:00:30 UTC", "is no time of day"),
            (
                "daily 06:00 Europe/Atlantis",
                "the time zone \"Europe/Atlantis\" is unknown",
            ),
            ("monthly 0 06:00 UTC", "write a day from 1 to 31"),
            ("monthly 32 06:00 UTC", "write a day from 1 to 31"),
            ("cron 0 6 * * UTC", "has 4 fields: write five"),
            ("cron 0 0 6 1 * * UTC", "has 6 fields: write five"),
            // The position is marked.
            ("cron 0 25 * * * UTC", "0 25 * * * UTC\n  ^ "),
            (
                "cron 0 6 30 2 * UTC",
                "has no occurrence in the next four years",
            ),
        ] {
            let error = schedule(text).expect_err(message);
            assert_eq!(error.kind(), perennial::ErrorKind::Invalid);
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn calendar_says_what_it_is() {
        Calendar::daily("06:00", "CEST UTC").expect_err("is no zone");
        let daily = Calendar::daily("06:00", "UTC").expect("a schedule");
        assert_eq!(daily.period(), DAY);
        assert_eq!(format!("{daily:?}"), "Calendar(0 6 * * * UTC)");
    }
}
