//! Owns the lines that the agent writes to a guard.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::watch::Deadlines;
use crate::backend::Identity;
use crate::builtin::Engine;
use crate::process::Leader;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// All processes of an attempt.
    Processes(Identity),
    Container {
        engine: Engine,
        name: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Work(Work),
    /// The first process of the work.
    Started(Leader),
    Until(Deadlines),
    /// The work has ended: the guard can exit.
    Done,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(Work::Processes(identity)) => write!(f, "processes {identity}"),
            // The engine's path is last: it may contain blanks.
            Self::Work(Work::Container { engine, name }) => write!(f, "container {name} {engine}"),
            Self::Started(Leader { pid, started }) => write!(f, "started {pid} {started}"),
            Self::Until(Deadlines { end, kill }) => write!(f, "until {} {}", end.as_nanos(), kill.as_nanos()),
            Self::Done => f.write_str("done"),
        }
    }
}

impl FromStr for Line {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let two = || rest.split_once(' ').ok_or(());
        match word {
            "processes" => Ok(Self::Work(Work::Processes(rest.parse()?))),
            "container" => {
                let (name, engine) = two()?;
                let engine = Engine::read(engine).map_err(|_| ())?;
                Ok(Self::Work(Work::Container { engine, name: name.to_owned() }))
            }
            "started" => {
                let (pid, started) = two()?;
                Ok(Self::Started(Leader { pid: number(pid)?, started: number(started)? }))
            }
            "until" => {
                let (end, kill) = two()?;
                let time = |nanos| number(nanos).map(Duration::from_nanos);
                Ok(Self::Until(Deadlines { end: time(end)?, kill: time(kill)? }))
            }
            "done" if rest.is_empty() => Ok(Self::Done),
            _ => Err(()),
        }
    }
}

fn number<N: FromStr>(text: &str) -> Result<N, ()> {
    text.parse().map_err(|_| ())
}

#[cfg(test)]
mod tests {
    use downbeat_core::ids::ExecutionId;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn every_line_is_read_as_it_was_written() {
        let identity = Identity { execution: ExecutionId(Uuid::from_u128(7)), attempt: 2 };
        let engine = |text| Engine::read(text).unwrap();
        for line in [
            Line::Work(Work::Processes(identity)),
            Line::Work(Work::Container {
                engine: engine("/run/my docker.sock"),
                name: "downbeat-7-2".into(),
            }),
            Line::Work(Work::Container {
                engine: engine("tcp://10.0.0.1:2375"),
                name: "downbeat-7-2".into(),
            }),
            Line::Started(Leader { pid: 4242, started: u64::MAX }),
            Line::Until(Deadlines { end: Duration::from_nanos(1), kill: Duration::from_secs(3_000_000) }),
            Line::Done,
        ] {
            assert_eq!(line.to_string().parse(), Ok(line));
        }
    }

    #[test]
    fn a_line_of_another_release_is_not_read_as_something_else() {
        for line in
            ["", "done now", "until 1", "until 1 x", "started 1", "processes x", "container x", "pause"]
        {
            assert_eq!(line.parse::<Line>(), Err(()), "{line}");
        }
    }
}
