//! `bench`: prints the results of the bench crate's loads.

use downbeat_bench::{BenchArgs, Code as Cause, Output, Part};

use crate::exit::{Code, Failure, Result};
use crate::out::{Format, Out};
use crate::render::table::{Cell, Table, facts};

pub(crate) async fn run(args: BenchArgs, out: Out) -> Result {
    match downbeat_bench::run(args, |text| Out::new(Format::Table).note(text)).await? {
        Output::Report(report) => out.result(&report, || page(report.page())),
        Output::Raw(text) => out.raw(&text),
    }
}

fn page(parts: Vec<Part>) -> String {
    let drawn = parts.into_iter().map(|part| match part {
        Part::Line(line) => format!("{line}\n"),
        Part::Facts(rows) => {
            facts(&rows.into_iter().map(|(name, value)| (name, Cell::from(value))).collect::<Vec<_>>())
        }
        Part::Table { head, rows } => {
            let mut table = Table::new(head);
            rows.into_iter().for_each(|row| table.row(row.into_iter().map(Cell::from)));
            table.draw(None)
        }
    });
    drawn.collect::<Vec<_>>().join("\n")
}

impl From<downbeat_bench::Failure> for Failure {
    fn from(failure: downbeat_bench::Failure) -> Self {
        let code = match failure.code {
            Cause::RunFailed => Code::RunFailed,
            Cause::BadInput => Code::BadInput,
            Cause::Unreachable => Code::Unreachable,
            Cause::Refused => Code::Refused,
            Cause::Bug => Code::Bug,
        };
        let mut details = failure.details;
        if !failure.measured.is_empty() {
            details.push(page(failure.measured));
        }
        Self::new(code, failure.message).with_details(details)
    }
}
