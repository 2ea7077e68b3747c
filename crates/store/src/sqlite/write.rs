//! Owns how rows are read and written on SQLite: the texts of INSERT and UPDATE follow from the columns of a row.

use rusqlite::{CachedStatement, Connection, Params, Row, ToSql};

use super::failure::Result;
use crate::port::Error;
use crate::rows::{Cell, Cells, Columns, Record, list};

impl Cells for Row<'_> {
    fn cell<T: Cell>(&self, column: usize) -> Result<T, Error> {
        self.get(column).map_err(|error| Error::Corrupt(format!("SQLite: {error}")))
    }
}

/// Reads all rows of a statement.
pub(super) fn fetch<T: Record>(connection: &Connection, sql: &str, args: impl Params) -> Result<Vec<T>> {
    fetch_each(connection, sql, [args])
}

/// Runs a statement for each of these arguments, and reads all its rows.
pub(super) fn fetch_each<T: Record, P: Params>(
    connection: &Connection,
    sql: &str,
    args: impl IntoIterator<Item = P>,
) -> Result<Vec<T>> {
    let mut records = Vec::new();
    let mut args = args.into_iter().peekable();
    if args.peek().is_none() {
        return Ok(records);
    }
    let mut query = connection.prepare_cached(sql)?;
    for args in args {
        let mut rows = query.query(args)?;
        while let Some(row) = rows.next()? {
            records.push(T::from_row(row)?);
        }
    }
    Ok(records)
}

/// A statement that writes rows of one kind.
pub(super) struct Write {
    sql: String,
    /// The indexes of the columns that are its arguments, in order.
    columns: Vec<usize>,
}

impl Write {
    /// A statement whose arguments are all columns of the row.
    pub(super) fn new<R: Columns>(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), columns: (0..R::COUNT).collect() }
    }

    pub(super) fn insert<R: Columns>(table: &str) -> Self {
        let values = list(&R::columns(), |number, _| format!("?{number}"));
        Self::new::<R>(format!("INSERT INTO {table} ({}) VALUES ({values})", R::names()))
    }

    /// Inserts rows, or replaces those with the same value in the first column.
    pub(super) fn upsert<R: Columns>(table: &str) -> Self {
        Self::insert::<R>(table).then(&R::replace())
    }
    pub(super) fn then(mut self, rest: &str) -> Self {
        self.sql += rest;
        self
    }

    /// Sets columns of the row with the same value in the first column.
    pub(super) fn update<R: Columns>(table: &str, is_set: impl Fn(&str) -> bool) -> Self {
        let (key, rest) = R::chosen(is_set);
        let sets: Vec<_> =
            (2..).zip(&rest).map(|(n, (_, column))| format!("{} = ?{n}", column.name)).collect();
        let sql = format!("UPDATE {table} SET {} WHERE {} = ?1", sets.join(", "), key.name);
        let columns = [0].into_iter().chain(rest.into_iter().map(|(index, _)| index)).collect();
        Self { sql, columns }
    }
    pub(super) fn each<R: Columns>(
        &self,
        connection: &Connection,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<()> {
        self.try_each(connection, rows.into_iter().map(Ok))
    }

    pub(super) fn try_each<R: Columns>(
        &self,
        connection: &Connection,
        rows: impl IntoIterator<Item = Result<R, Error>>,
    ) -> Result<()> {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let mut statement = self.prepare(connection)?;
        for row in rows {
            statement.run(&row?)?;
        }
        Ok(())
    }

    pub(super) fn prepare<'a>(&'a self, connection: &'a Connection) -> Result<Prepared<'a>> {
        Ok(Prepared { statement: connection.prepare_cached(&self.sql)?, columns: &self.columns })
    }
}

pub(super) struct Prepared<'a> {
    statement: CachedStatement<'a>,
    columns: &'a [usize],
}

impl Prepared<'_> {
    pub(super) fn run(&mut self, row: &impl Columns) -> Result<()> {
        for (number, &column) in (1..).zip(self.columns) {
            self.statement.raw_bind_parameter(number, row.value(column) as &dyn ToSql)?;
        }
        self.statement.raw_execute()?;
        Ok(())
    }
}
