//! Enums whose values are words: one spelling in the API, the log, metrics and JSON.

/// Defines an enum with a word for each variant, and its conversions from and to text. A variant
/// may carry a further word, as `NotStored(why: Bypass) => "not-stored"`, whose text is
/// `not-stored: private`.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident ($noun:literal) {
            $($(#[$on_variant:meta])* $variant:ident $(($detail:ident: $inner:ident))? => $word:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $type {
            $($(#[$on_variant])* $variant $(($inner))?,)+
        }

        impl $type {
            /// The number of values.
            #[doc(hidden)]
            pub const COUNT: usize = 0 $(+ $crate::words!(@count $($inner)?))+;

            /// Returns the word, for logs and metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $word,)+
                }
            }

            /// Returns all values.
            pub fn all() -> impl Iterator<Item = Self> {
                std::iter::empty()$(.chain($crate::words!(@values $variant $($inner)?)))+
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant $(($detail))? => {
                        f.write_str($word)?;
                        $(write!(f, ": {}", $detail)?;)?
                    })+
                }
                Ok(())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::Error;

            /// Reads the word that `Display` writes.
            ///
            /// # Errors
            ///
            /// [`Invalid`](crate::ErrorKind::Invalid) if the text is none of the words that `Display`
            /// writes.
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::all().find(|it| it.to_string() == text).ok_or_else(|| {
                    let all: Vec<_> = Self::all().map(|it| it.to_string()).collect();
                    let (noun, all) = ($noun, all.join(", "));
                    $crate::Error::invalid(format!("{text:?} is no {noun}: write one of {all}"))
                })
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
    (@count) => { 1 };
    (@count $inner:ident) => { $inner::COUNT };
    (@values $variant:ident) => { std::iter::once(Self::$variant) };
    (@values $variant:ident $inner:ident) => { $inner::all().map(Self::$variant) };
}

/// Serializes a time in seconds.
pub fn seconds<S: serde::Serializer>(
    time: &std::time::Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// Reads a time in seconds.
pub fn read_seconds<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<std::time::Duration, D::Error> {
    let seconds = <f64 as serde::Deserialize>::deserialize(deserializer)?;
    Ok(of_seconds(seconds))
}

/// Returns this number of seconds as a duration. The longest durations, which `f64` rounds up to more than a
/// `Duration` can hold, become `Duration::MAX`.
pub fn of_seconds(seconds: f64) -> std::time::Duration {
    let longest = if seconds > 0.0 {
        std::time::Duration::MAX
    } else {
        std::time::Duration::ZERO
    };
    std::time::Duration::try_from_secs_f64(seconds).unwrap_or(longest)
}

/// Serializes a moment as seconds since 1970.
pub fn unix_time<S: serde::Serializer>(
    at: &std::time::SystemTime,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let since = at.duration_since(std::time::SystemTime::UNIX_EPOCH);
    seconds(&since.unwrap_or_default(), serializer)
}
