//! Owns text columns: borrowed when written, owned when read.

use std::borrow::Cow;
use std::error::Error as StdError;

use rusqlite::types::{FromSqlResult, ToSqlOutput, ValueRef};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, Type, accepts, to_sql_checked};

type Fault = Box<dyn StdError + Sync + Send>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl Text<'_> {
    /// Returns the same text without copying it.
    pub(crate) fn borrowed(&self) -> Text<'_> {
        Text(Cow::Borrowed(&self.0))
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

impl From<Text<'_>> for String {
    fn from(text: Text<'_>) -> Self {
        text.0.into_owned()
    }
}

impl rusqlite::ToSql for Text<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0.as_bytes())))
    }
}

impl rusqlite::types::FromSql for Text<'_> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_str().map(|text| text.to_owned().into())
    }
}

impl tokio_postgres::types::ToSql for Text<'_> {
    /// PostgreSQL's text cannot contain NUL. An agent's error that has one must not fail the whole batch.
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Fault> {
        if self.0.contains('\0') {
            return self.0.replace('\0', "\u{fffd}").to_sql(kind, out);
        }
        self.0.to_sql(kind, out)
    }

    accepts!(TEXT);
    to_sql_checked!();
}

impl<'b> tokio_postgres::types::FromSql<'b> for Text<'_> {
    fn from_sql(kind: &Type, raw: &'b [u8]) -> Result<Self, Fault> {
        String::from_sql(kind, raw).map(Into::into)
    }

    accepts!(TEXT);
}

/// A piece of output: stored as text by SQLite, and as bytes by PostgreSQL because it may contain NUL.
#[derive(Debug, Default)]
pub(crate) struct Bytes<'a>(pub(crate) Cow<'a, str>);

impl rusqlite::ToSql for Bytes<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0.as_bytes())))
    }
}

impl rusqlite::types::FromSql for Bytes<'_> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_str().map(|text| Self(Cow::Owned(text.to_owned())))
    }
}

impl tokio_postgres::types::ToSql for Bytes<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Fault> {
        self.0.as_bytes().to_sql(kind, out)
    }

    accepts!(BYTEA);
    to_sql_checked!();
}

impl<'b> tokio_postgres::types::FromSql<'b> for Bytes<'_> {
    fn from_sql(_: &Type, raw: &'b [u8]) -> Result<Self, Fault> {
        Ok(Self(Cow::Owned(std::str::from_utf8(raw)?.to_owned())))
    }

    accepts!(BYTEA);
}
