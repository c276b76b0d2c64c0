//! The options of the command line.

use std::time::Duration;

use humantime::parse_duration;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The time of the demonstration's generator.
const GENERATOR: Duration = Duration::from_millis(1500);

pub(crate) const HELP: &str = "\
A small bookshop whose lists regrow by themselves, and a demonstration around it.

Usage: bookshop [--plain | --shop] [OPTIONS]

Without --plain and --shop, the demonstration runs until Ctrl-C: two shops over one database,
visitors who never stop, and a page that shows who regenerates what.

      --plain                      The demonstration as text in this terminal, and its six stories
                                   one after another; ends by itself after a minute
      --shop                       The shop alone, in this process
      --listen ADDRESS             The address of the page or the shop [default: 127.0.0.1:3000]
      --database URL               The database, as in sqlite://bookshop.db or
                                   postgres://user:password@host/database; an empty one gets a
                                   catalogue and some orders [default: sqlite://bookshop.db]
      --slow TIME                  The time of the demonstration's generator, from 1ms to 5s
                                   [default: 1500ms]; with --shop, the extra time of each generator
                                   [default: 0s]
      --best-sellers-every TIME    With --shop: the age at which the best-sellers and the sidebar are
                                   stale [default: 30d]
      --new-releases-every TIME    With --shop: the age at which the new releases are stale
                                   [default: 7d]
  -h, --help                       This text

A TIME is a number with its unit, as in 300ms, 20s or 30d.";

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mode {
    /// The demonstration with its page.
    Page,
    /// The demonstration as text.
    Plain,
    /// The shop alone.
    Shop,
    /// A shop of the demonstration.
    Controlled,
}

pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) listen: String,
    pub(crate) database: String,
    pub(crate) best_sellers_every: Duration,
    pub(crate) new_releases_every: Duration,
    pub(crate) slow: Duration,
}

impl Options {
    /// Reads the arguments. `None` means that the user asks for help. An error is a sentence without its end.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            mode: Mode::Page,
            listen: "127.0.0.1:3000".to_owned(),
            database: "sqlite://bookshop.db".to_owned(),
            best_sellers_every: 30 * DAY,
            new_releases_every: 7 * DAY,
            slow: Duration::ZERO,
        };
        let mut slow = None;
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (&*argument, None),
            };
            let mode = match name {
                "-h" | "--help" => return Ok(None),
                "--plain" => Some(Mode::Plain),
                "--shop" => Some(Mode::Shop),
                "--controlled" => Some(Mode::Controlled),
                _ => None,
            };
            if let Some(mode) = mode {
                if options.mode != Mode::Page {
                    return Err("--plain and --shop exclude each other".to_owned());
                }
                options.mode = mode;
                continue;
            }
            let mut value = || {
                let value = value.clone().or_else(|| arguments.next());
                value.ok_or_else(|| format!("{name} needs a value"))
            };
            let time = |value: String| {
                let time = parse_duration(&value);
                time.map_err(|error| format!("{name} {value}: {error}"))
            };
            match name {
                "--listen" => options.listen = value()?,
                "--database" => options.database = value()?,
                "--best-sellers-every" => options.best_sellers_every = time(value()?)?,
                "--new-releases-every" => options.new_releases_every = time(value()?)?,
                "--slow" => slow = Some(time(value()?)?),
                _ => return Err(format!("{argument} is no option")),
            }
        }
        options.slow = match options.mode {
            Mode::Page | Mode::Plain => slow.unwrap_or(GENERATOR),
            Mode::Shop | Mode::Controlled => slow.unwrap_or_default(),
        };
        let bounds = Duration::from_millis(1)..=Duration::from_secs(5);
        if matches!(options.mode, Mode::Page | Mode::Plain) && !bounds.contains(&options.slow) {
            return Err("the demonstration needs --slow from 1ms to 5s".to_owned());
        }
        Ok(Some(options))
    }
}
