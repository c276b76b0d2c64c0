//! What a column is compared with.

/// What a column is compared with; made [from](From) an integer, a text or a truth value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(pub(super) Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int(i64),
    Text(String),
    Bool(bool),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self(Kind::Int(value))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self(Kind::Text(value.to_owned()))
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self(Kind::Text(value))
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self(Kind::Bool(value))
    }
}
