//! Owns the rows of a run: the live part, the fixed part, and the definition.

use std::sync::Arc;

use downbeat_core::ids::{ClusterId, RunId, ServerId};
use downbeat_core::plan::Resolved;
use downbeat_core::run::{
    RolloutProgress, RolloutSize, RunBrief, RunEnd, RunLive, RunMade, RunRecord, RunStage, RunState,
    StopCause, Stopped,
};
use downbeat_core::spec::Definition;
use uuid::Uuid;

use super::codes::Code;
use super::column::{Cells, Columns, columns};
use super::content::{Contents, NewContents, Stored, hashes};
use super::record::{Record, select};
use super::scalar::{
    count, int, json, micros, params_column, parse, parse_opt, small, small_count, time, time_opt,
};
use super::text::Text;
use crate::port::{Error, Result};

columns! {
    /// The columns of `runs` that change.
    struct RunLiveRow<'a> {
        id: Text<'a>,
        state: i16,
        started_at: Option<i64>,
        finished_at: Option<i64>,
        partial: Option<bool>,
        error: Option<Text<'a>>,
        cancel_requested_at: Option<i64>,
        paused_at: Option<i64>,
        admitted_at: Option<i64>,
        /// Why and when the rest of the run was ended; none if an older program did it.
        stop_cause: Option<i16>,
        stopped_at: Option<i64>,
        /// How far a roll-out is; none before its first wave.
        wave: Option<i32>,
        wave_failures: Option<i32>,
        round: i32,
        /// When the run entered its states; none before the first move, and if only older programs moved it.
        states: Option<Text<'a>>,
        /// Its constraints and actions so far; none if it had none.
        life: Option<Text<'a>>,
        owner: Uuid,
        epoch: i64,
    }
}

columns! {
    /// The columns of `runs` that never change.
    struct RunMadeRow<'a> {
        cluster: Uuid,
        job: Option<Text<'a>>,
        submitted_by: Text<'a>,
        idempotency_key: Option<Text<'a>>,
        request_hash: Option<Text<'a>>,
        created_at: i64,
        retry_of: Option<Text<'a>>,
        no_cache: bool,
        job_version: Option<i64>,
        /// The number of steps and of nodes; none if an older program wrote the row and it is not completed yet.
        steps: Option<i32>,
        nodes: Option<i32>,
        /// Which counts are kept; none if an older program wrote the row, or changed an execution.
        keeps: Option<i16>,
        /// The size of a roll-out; none if an older program wrote the row.
        waves: Option<i32>,
        budget: Option<i32>,
    }
}

columns! {
    /// The key of a row of `definitions`.
    struct DefinitionKey<'a> {
        run: Text<'a>,
    }
}

columns! {
    /// The rest of a row of `definitions`, which is read together with the row of `runs`.
    struct DefinitionRow<'a> {
        definition: Text<'a>,
        resolved: Text<'a>,
        params: Option<Text<'a>>,
        definition_hash: Option<Text<'a>>,
        resolved_hash: Option<Text<'a>>,
    }
}

/// A whole row of `runs`.
pub(crate) type RunRow<'a> = (RunLiveRow<'a>, RunMadeRow<'a>);

/// A whole row of `definitions`.
pub(crate) type DefinedRow<'a> = (DefinitionKey<'a>, DefinitionRow<'a>);

impl<'a> RunLiveRow<'a> {
    pub(crate) fn of(id: &'a RunId, live: &'a RunLive) -> Self {
        Self {
            id: id.as_str().into(),
            state: live.state().code(),
            started_at: micros(live.started_at),
            finished_at: micros(live.finished_at()),
            partial: live.end().map(|end| end.partial),
            error: live.end().and_then(|end| end.error.as_deref()).map(Text::from),
            cancel_requested_at: micros(live.cancel_requested_at),
            paused_at: micros(live.paused_at),
            admitted_at: micros(live.admitted_at),
            stop_cause: live.stopped.map(|stopped| stopped.cause.code()),
            stopped_at: micros(live.stopped.map(|stopped| stopped.at)),
            wave: live.rollout.map(|rollout| small(rollout.wave)),
            wave_failures: live.rollout.map(|rollout| small(rollout.failed)),
            round: small(live.round),
            states: (!live.states.is_empty())
                .then(|| serde_json::to_string(&live.states).unwrap_or_default().into()),
            life: (!live.life.is_empty())
                .then(|| serde_json::to_string(&live.life).unwrap_or_default().into()),
            owner: live.owner.0,
            epoch: int(live.epoch),
        }
    }

    fn live(self) -> Result<(RunId, RunLive)> {
        let state = RunState::decode(self.state)?;
        let end = RunEnd { partial: self.partial.unwrap_or_default(), error: self.error.map(String::from) };
        let end = time_opt(self.finished_at)?.map(|at| (at, end));
        let stage = RunStage::of(state, self.admitted_at.is_some(), end);
        let cause = self.stop_cause.map(StopCause::decode).transpose()?;
        let stopped = cause.zip(time_opt(self.stopped_at)?).map(|(cause, at)| Stopped { cause, at });
        let rollout = match self.wave.zip(self.wave_failures) {
            Some((wave, failed)) => {
                Some(RolloutProgress { wave: small_count(wave)?, failed: small_count(failed)? })
            }
            None => None,
        };
        let live = RunLive {
            stage: stage.ok_or_else(|| Error::Corrupt(format!("a run in state {state} has no end")))?,
            admitted_at: time_opt(self.admitted_at)?,
            started_at: time_opt(self.started_at)?,
            cancel_requested_at: time_opt(self.cancel_requested_at)?,
            paused_at: time_opt(self.paused_at)?,
            stopped,
            rollout,
            round: small_count(self.round)?,
            states: parse_opt("states", self.states.as_ref())?.unwrap_or_default(),
            life: parse_opt("constraints of a run", self.life.as_ref())?.unwrap_or_default(),
            owner: ServerId(self.owner),
            epoch: count(self.epoch)?,
        };
        Ok((RunId::from(String::from(self.id)), live))
    }
}

pub(crate) fn run_row<'a>(run: &'a RunRecord, live: &'a RunLive) -> RunRow<'a> {
    let rollout = run.rollout_size();
    let made = RunMadeRow {
        cluster: run.cluster.0,
        job: run.job.as_deref().map(Text::from),
        submitted_by: run.by.as_str().into(),
        idempotency_key: run.idempotency_key.as_deref().map(Text::from),
        request_hash: run.request_hash.as_deref().map(Text::from),
        created_at: run.created_at.as_microsecond(),
        retry_of: run.retry_of.as_ref().map(|run| run.as_str().into()),
        no_cache: run.no_cache,
        job_version: run.job_version.map(int),
        steps: Some(small(run.definition.step_count())),
        nodes: Some(small(run.resolved.node_count())),
        keeps: Some(run.keeps().code()),
        waves: rollout.map(|rollout| small(rollout.waves)),
        budget: rollout.map(|rollout| small(rollout.budget)),
    };
    (RunLiveRow::of(&run.id, live), made)
}

pub(crate) fn definition_row<'a>(run: &'a RunRecord, contents: &mut NewContents) -> Result<DefinedRow<'a>> {
    let (definition, definition_hash) = contents.place(json(&run.definition)?);
    let (resolved, resolved_hash) = contents.place(json(&run.resolved)?);
    let params = params_column(&run.params).map(Text::from);
    let row = DefinitionRow { definition, resolved, params, definition_hash, resolved_hash };
    Ok((DefinitionKey { run: run.id.as_str().into() }, row))
}

impl Record for (RunId, RunLive) {
    select!(RunLiveRow<'_>, "runs");

    fn from_row(row: &impl Cells) -> Result<Self> {
        RunLiveRow::read(row, 0)?.live()
    }
}

/// The definition of a run, without the content that it may refer to.
#[derive(Debug)]
pub(crate) struct StoredDefinition {
    run: Text<'static>,
    definition: Text<'static>,
    hash: Option<Text<'static>>,
}

impl Record for StoredDefinition {
    fn select() -> &'static str {
        "SELECT run, definition, definition_hash FROM definitions"
    }

    fn from_row(row: &impl Cells) -> Result<Self> {
        Ok(Self { run: row.cell(0)?, definition: row.cell(1)?, hash: row.cell(2)? })
    }
}

impl Stored for StoredDefinition {
    type Whole = (RunId, Arc<Definition>);

    fn hashes(&self) -> Vec<&str> {
        hashes([&self.hash])
    }

    fn whole(self, contents: &mut Contents) -> Result<Self::Whole> {
        let definition = contents.text_or("definition", &self.definition, self.hash.as_ref())?;
        Ok((String::from(self.run).into(), definition))
    }
}

/// A run in a list.
#[derive(Debug)]
pub(crate) struct BriefRow {
    pub(crate) run: RunBrief,
    /// Whether the row has the numbers of steps and nodes; otherwise they are 0 here, and in the [`Extent`].
    pub(crate) is_complete: bool,
}

impl Record for BriefRow {
    select!(RunRow<'_>, "r", "runs");

    fn from_row(row: &impl Cells) -> Result<Self> {
        let (live, made) = RunRow::read(row, 0)?;
        let (id, live) = live.live()?;
        let rollout = match made.waves.zip(made.budget) {
            Some((waves, budget)) => {
                Some(RolloutSize { waves: small_count(waves)?, budget: small_count(budget)? })
            }
            None => None,
        };
        let run = RunBrief {
            id,
            cluster: ClusterId(made.cluster),
            job: made.job.map(String::from),
            steps: small_count(made.steps.unwrap_or_default())?,
            nodes: small_count(made.nodes.unwrap_or_default())?,
            rollout,
            retry_of: made.retry_of.map(|run| String::from(run).into()),
            no_cache: made.no_cache,
            job_version: made.job_version.map(count).transpose()?,
            by: made.submitted_by.into(),
            created_at: time(made.created_at)?,
            live,
        };
        Ok(Self { run, is_complete: made.steps.is_some() })
    }
}

/// How many steps and nodes a run has, according to its definition; for rows of older programs.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) run: String,
    pub(crate) steps: u32,
    pub(crate) nodes: u32,
    /// The size of the texts that were read for it.
    pub(crate) bytes: usize,
}

impl Record for Extent {
    fn select() -> &'static str {
        "SELECT d.run, d.definition, d.resolved FROM definitions d"
    }

    fn from_row(row: &impl Cells) -> Result<Self> {
        let [run, definition, resolved]: [Text<'_>; 3] = [row.cell(0)?, row.cell(1)?, row.cell(2)?];
        Ok(Self {
            run: run.into(),
            steps: parse::<Definition>("definition", &definition.0)?.step_count(),
            nodes: parse::<Resolved>("resolved targets", &resolved.0)?.node_count(),
            bytes: definition.0.len() + resolved.0.len(),
        })
    }
}

/// The extent of a run, or why it cannot be read.
impl Record for (RunId, Result<Extent>) {
    fn select() -> &'static str {
        Extent::select()
    }

    fn from_row(row: &impl Cells) -> Result<Self> {
        let run: Text<'_> = row.cell(0)?;
        Ok((String::from(run).into(), Extent::from_row(row)))
    }
}

/// A run, without the contents that its definition may refer to.
#[derive(Debug)]
pub(crate) struct StoredRun(RunRow<'static>, DefinitionRow<'static>);

impl Record for StoredRun {
    select!({
        let (run, definition) = (RunRow::names_in("r"), DefinitionRow::names_in("d"));
        format!("SELECT {run}, {definition} FROM runs r JOIN definitions d ON d.run = r.id")
    });

    fn from_row(row: &impl Cells) -> Result<Self> {
        let (run, definition) = <(RunRow<'_>, DefinitionRow<'_>)>::read(row, 0)?;
        Ok(Self(run, definition))
    }
}

impl Stored for StoredRun {
    type Whole = RunRecord;

    fn hashes(&self) -> Vec<&str> {
        hashes([&self.1.definition_hash, &self.1.resolved_hash])
    }

    fn whole(self, contents: &mut Contents) -> Result<RunRecord> {
        let Self((live, made), row) = self;
        let (id, live) = live.live()?;
        let made = RunMade {
            id,
            cluster: ClusterId(made.cluster),
            job: made.job.map(String::from),
            definition: contents.text_or("definition", &row.definition, row.definition_hash.as_ref())?,
            resolved: contents.text_or("resolved targets", &row.resolved, row.resolved_hash.as_ref())?,
            params: parse_opt("params", row.params.as_ref())?.unwrap_or_default(),
            retry_of: made.retry_of.map(|run| String::from(run).into()),
            no_cache: made.no_cache,
            job_version: made.job_version.map(count).transpose()?,
            by: made.submitted_by.into(),
            idempotency_key: made.idempotency_key.map(String::from),
            request_hash: made.request_hash.map(String::from),
            created_at: time(made.created_at)?,
        };
        Ok(RunRecord { made: Arc::new(made), live })
    }
}
