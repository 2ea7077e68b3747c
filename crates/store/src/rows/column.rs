//! Owns the declaration of a row's columns: once, as the fields of a struct. The list of columns, the reader and the
//! values to write are derived from it, for SQLite and for PostgreSQL.

use rusqlite::types as sqlite;
use tokio_postgres::types as postgres;
use uuid::Uuid;

use super::text::{Bytes, Text};
use crate::port::Result;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    /// Its type in PostgreSQL.
    pub(crate) kind: &'static str,
}

/// A value that both databases can write.
pub(crate) trait Value: sqlite::ToSql + postgres::ToSql + Send + Sync {}

impl<T: sqlite::ToSql + postgres::ToSql + Send + Sync> Value for T {}

/// The type of a column: both databases can read and write it.
pub(crate) trait Cell: Value + sqlite::FromSql + for<'a> postgres::FromSql<'a> {
    /// The name of the type in PostgreSQL.
    const KIND: &'static str;
}

macro_rules! cells {
    ($($type:ty = $kind:literal),+) => {
        $(impl Cell for $type { const KIND: &'static str = $kind; })+
    };
}

cells!(bool = "boolean", i16 = "smallint", i32 = "integer", i64 = "bigint", Uuid = "uuid");
cells!(Text<'_> = "text", Bytes<'_> = "bytea");

impl<T: Cell> Cell for Option<T> {
    const KIND: &'static str = T::KIND;
}

/// A row that a database returned.
pub(crate) trait Cells {
    fn cell<T: Cell>(&self, column: usize) -> Result<T>;
}

/// A row of a table, or a part of one. Rows that are read or written together form a pair.
pub(crate) trait Columns: Sized + Send + Sync {
    const COUNT: usize;

    fn columns() -> Vec<Column>;

    /// Reads the row from a longer one, from its column `first` on.
    fn read(row: &impl Cells, first: usize) -> Result<Self>;

    /// Returns the value of the column at this index of [`Columns::columns`].
    fn value(&self, column: usize) -> &dyn Value;

    /// Returns the names, for the text of a statement.
    fn names() -> String {
        list(&Self::columns(), |_, column| column.name.to_owned())
    }

    /// Returns the names, with NULL in the place of some.
    fn names_without(left_out: &[&str]) -> String {
        let name = |column: &Column| if left_out.contains(&column.name) { "NULL" } else { column.name };
        list(&Self::columns(), |_, column| name(column).to_owned())
    }

    /// Returns the names with the alias of their table.
    fn names_in(table: &str) -> String {
        list(&Self::columns(), |_, column| format!("{table}.{}", column.name))
    }

    /// Returns the end of an INSERT that replaces the row with the same value in the first column.
    fn replace() -> String {
        let columns = Self::columns();
        let sets = list(&columns[1..], |_, column| format!("{0} = excluded.{0}", column.name));
        format!(" ON CONFLICT ({}) DO UPDATE SET {sets}", columns[0].name)
    }

    /// Returns the first column and the columns that an UPDATE sets, with their indexes.
    fn chosen(is_set: impl Fn(&str) -> bool) -> (Column, Vec<(usize, Column)>) {
        let columns = Self::columns();
        let rest = columns.iter().copied().enumerate().skip(1);
        (columns[0], rest.filter(|(_, column)| is_set(column.name)).collect())
    }
}

/// Joins a text for each column; `text` gets the column's number, from 1.
pub(crate) fn list(columns: &[Column], text: impl Fn(usize, &Column) -> String) -> String {
    (1..).zip(columns).map(|(number, column)| text(number, column)).collect::<Vec<_>>().join(", ")
}

impl<A: Columns, B: Columns> Columns for (A, B) {
    const COUNT: usize = A::COUNT + B::COUNT;

    fn columns() -> Vec<Column> {
        A::columns().into_iter().chain(B::columns()).collect()
    }

    fn read(row: &impl Cells, first: usize) -> Result<Self> {
        Ok((A::read(row, first)?, B::read(row, first + A::COUNT)?))
    }

    fn value(&self, column: usize) -> &dyn Value {
        if column < A::COUNT { self.0.value(column) } else { self.1.value(column - A::COUNT) }
    }
}

/// Declares a row: its columns are the fields, by their names and in their order.
macro_rules! columns {
    (
        $(#[$doc:meta])*
        struct $row:ident $(<$life:lifetime>)? { $($(#[$note:meta])* $column:ident: $type:ty,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(crate) struct $row $(<$life>)? { $($(#[$note])* pub(crate) $column: $type,)+ }

        impl $(<$life>)? $crate::rows::Columns for $row $(<$life>)? {
            const COUNT: usize = [$(stringify!($column)),+].len();

            fn columns() -> Vec<$crate::rows::Column> {
                vec![$($crate::rows::Column {
                    name: stringify!($column),
                    kind: <$type as $crate::rows::Cell>::KIND,
                }),+]
            }

            fn read(row: &impl $crate::rows::Cells, first: usize) -> $crate::port::Result<Self> {
                let mut columns = first..;
                $(let $column = row.cell(columns.next().unwrap_or_default())?;)+
                Ok(Self { $($column),+ })
            }

            fn value(&self, column: usize) -> &dyn $crate::rows::Value {
                let mut columns = 0..;
                $(if columns.next() == Some(column) {
                    return &self.$column;
                })+
                unreachable!("a {} has no column {column}", stringify!($row))
            }
        }
    };
}
pub(crate) use columns;
