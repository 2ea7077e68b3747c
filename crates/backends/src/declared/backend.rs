//! Runs declared actions: fills the templates and runs the program.

use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::backend::BackendSchema;

use super::read::Declared;
use super::template::Template;
use crate::backend::{Backend, Call, Finish};
use crate::process::{self, Ledger, Program};

#[derive(Debug)]
pub struct DeclaredBackend {
    pub declared: Declared,
    pub ledger: Arc<Ledger>,
}

#[async_trait]
impl Backend for DeclaredBackend {
    fn schema(&self) -> BackendSchema {
        self.declared.schema.clone()
    }

    async fn run(&self, call: Call) -> Finish {
        let Some(action) = self.declared.actions.get(&call.action) else {
            let name = self.declared.name();
            return Finish::failed(None, format!("backend `{name}` has no action `{}`", call.action));
        };
        let filled = |(name, template): &(String, Template)| {
            template.fill(&call.params).into_iter().next().map(|value| (name.clone(), value))
        };
        let program = Program {
            name: action.argv.first().and_then(Template::literal).unwrap_or_default().to_owned(),
            args: action.argv.iter().skip(1).flat_map(|template| template.fill(&call.params)).collect(),
            env: action.env.iter().filter_map(filled).collect(),
            working_dir: action.working_dir.clone(),
            ..Program::default()
        };
        process::run(program, &call, &self.ledger).await
    }
}
