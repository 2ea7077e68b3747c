//! Owns how rows are read and written on PostgreSQL: many rows are one statement over arrays, one array for each column.
//! The texts of INSERT and UPDATE follow from the columns of a row.

use std::error::Error as StdError;

use deadpool_postgres::Object;
use futures_util::future::join_all;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Row, Statement};

use super::failure::Result;
use crate::port::Error;
use crate::rows::{Cell, Cells, Column, Columns, Value, list};

impl Cells for Row {
    fn cell<T: Cell>(&self, column: usize) -> Result<T, Error> {
        self.try_get(column).map_err(|error| Error::Corrupt(format!("PostgreSQL: {error}")))
    }
}

/// A value as an argument. It checks its type itself.
pub(super) struct Arg<'a>(pub(super) &'a dyn Value);

impl std::fmt::Debug for Arg<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self.0 as &dyn ToSql, f)
    }
}

impl ToSql for Arg<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        self.0.to_sql_checked(kind, out)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A statement that writes many rows of one kind.
pub(super) struct Write {
    sql: String,
    /// The indexes of the columns that are its arguments, in order.
    columns: Vec<usize>,
}

/// Returns a table `u` of the rows, for the text of a statement.
pub(super) fn unnest<R: Columns>() -> String {
    unnested(&R::columns())
}

fn unnested(columns: &[Column]) -> String {
    let arrays = list(columns, |number, column| format!("${number}::{}[]", column.kind));
    format!("unnest({arrays}) AS u ({})", list(columns, |_, column| column.name.to_owned()))
}

impl Write {
    /// A statement whose arguments are all columns of the rows.
    pub(super) fn new<R: Columns>(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), columns: (0..R::COUNT).collect() }
    }

    pub(super) fn insert<R: Columns>(table: &str) -> Self {
        Self::new::<R>(format!("INSERT INTO {table} ({}) SELECT * FROM {}", R::names(), unnest::<R>()))
    }

    /// Inserts rows, or replaces those with the same value in the first column.
    pub(super) fn upsert<R: Columns>(table: &str) -> Self {
        Self::insert::<R>(table).then(&R::replace())
    }

    pub(super) fn then(mut self, rest: &str) -> Self {
        self.sql += rest;
        self
    }

    pub(super) fn sql(&self) -> &str {
        &self.sql
    }

    pub(super) fn args<'a, R: Columns>(&self, rows: &'a [R]) -> Args<'a> {
        arrays(&rows.iter(), self.columns.iter().copied())
    }

    /// Sets columns of the rows with the same value in the first column.
    pub(super) fn update<R: Columns>(table: &str, is_set: impl Fn(&str) -> bool) -> Self {
        let (key, rest) = R::chosen(is_set);
        let (mut columns, mut given) = (vec![0], vec![key]);
        columns.extend(rest.iter().map(|(index, _)| index));
        given.extend(rest.iter().map(|(_, column)| column));
        let sets = list(&given[1..], |_, column| format!("{0} = u.{0}", column.name));
        let rows = unnested(&given);
        Self {
            sql: format!("UPDATE {table} t SET {sets} FROM {rows} WHERE t.{0} = u.{0}", key.name),
            columns,
        }
    }
}

pub(super) type Args<'a> = Vec<Box<dyn ToSql + Sync + Send + 'a>>;

pub(super) fn arrays<'a, R: Columns + 'a>(
    rows: &(impl Iterator<Item = &'a R> + Clone),
    columns: impl Iterator<Item = usize>,
) -> Args<'a> {
    let array = |column| -> Vec<Arg<'a>> { rows.clone().map(|row| Arg(row.value(column))).collect() };
    columns.map(|column| Box::new(array(column)) as _).collect()
}

/// Statements that are sent together, without waiting for each other's response.
#[derive(Default)]
pub(super) struct Flight<'a> {
    statements: Vec<(&'a str, Args<'a>)>,
}

impl<'a> Flight<'a> {
    /// Writes rows; adds no statement if there are none.
    pub(super) fn rows<R: Columns + 'a>(
        &mut self,
        write: &'a Write,
        rows: impl IntoIterator<Item = &'a R, IntoIter: Clone>,
    ) {
        let rows = rows.into_iter();
        if rows.clone().next().is_some() {
            self.push(&write.sql, arrays(&rows, write.columns.iter().copied()));
        }
    }

    pub(super) fn push(&mut self, sql: &'a str, args: Args<'a>) {
        self.statements.push((sql, args));
    }

    /// Prepares the statements; those of an earlier batch are cached.
    pub(super) async fn prepare(self, client: &Object) -> Result<Prepared<'a>> {
        let mut statements = Vec::with_capacity(self.statements.len());
        for (sql, args) in self.statements {
            statements.push((client.prepare_cached(sql).await?, args));
        }
        Ok(Prepared(statements))
    }
}

/// A flight whose statements are prepared.
pub(super) struct Prepared<'a>(Vec<(Statement, Args<'a>)>);

impl Prepared<'_> {
    /// Sends all statements, and returns the first failure.
    pub(super) async fn send(self, client: &Object) -> Result<()> {
        let sent = self
            .0
            .into_iter()
            .map(|(statement, args)| async move { client.execute_raw(&statement, args).await });
        for answer in join_all(sent).await {
            answer?;
        }
        Ok(())
    }
}
